"""topology/describe.py: the word count as text and drawing."""

import json
from dataclasses import replace

from streamsx import App, hopping, session, sliding, tumbling
from streamsx.examples.wordcount import app
from streamsx.operators.forward import forward
from streamsx.operators.rekey import rekey
from streamsx.topology.build import Topology
from streamsx.topology.describe import as_data, as_mermaid, as_text
from streamsx.topology.internal_topics import TopicKind, TopicSpec
from streamsx.topology.nodes import AgentNode, Branch, Source, SubTopology
from streamsx.topology.partitions import resolve_partition_counts
from tests.support.codecs import coded

TOPOLOGY = app.topology()
PARTITIONS = resolve_partition_counts(TOPOLOGY, {}, default=8, declare=True)


def test_text_describes_each_sub_topology() -> None:
    assert list(as_text(TOPOLOGY, PARTITIONS)) == [
        "wordcount",
        "",
        "sub-topology 0: stateless, 8 tasks if wordcount-lines is created",
        "  reads   wordcount-lines",
        "    agent streamsx.examples.wordcount.split",
        "  sends   wordcount-words",
        "",
        "sub-topology 1: stateful, 8 tasks if wordcount-words is created",
        "  reads   wordcount-words",
        "    agent streamsx.examples.wordcount.count",
        "  table   counts: keys json, values json, on disk, changelog wordcount-counts-changelog",
        "",
        "topics",
        "  wordcount-counts-changelog  changelog       8 if created  cleanup.policy=compact",
        "  wordcount-lines             source          8 if created",
        "  wordcount-words             source          8 if created",
    ]


def test_text_tells_topics_that_exist_from_those_to_create() -> None:
    found = {"wordcount-lines": 4}
    known = resolve_partition_counts(TOPOLOGY, found, default=8, declare=True)
    lines = list(as_text(TOPOLOGY, known))
    assert lines[2] == "sub-topology 0: stateless, 4 tasks"
    assert lines[-3:] == [
        "  wordcount-counts-changelog  changelog       8 if created  cleanup.policy=compact",
        "  wordcount-lines             source          4",
        "  wordcount-words             source          8 if created",
    ]
    every = {spec.name: 4 for spec in TOPOLOGY.topics}
    known = resolve_partition_counts(TOPOLOGY, every, default=8, declare=True)
    assert not any("created" in line for line in as_text(TOPOLOGY, known))


def grouped() -> Topology:
    forks = replace(rekey(str, str.encode), then=(forward("x"), forward("y")))
    branches = Branch("a", forks), Branch("b", forward("z"))
    source = Source("t", coded(bytes), coded(bytes), branches, (AgentNode("c", lambda _: None),))  # type: ignore[arg-type, return-value]
    topics = tuple(TopicSpec(name, TopicKind.SOURCE) for name in "txyz")
    return Topology("app", (SubTopology(0, (source,), outputs=frozenset("xyz")),), topics)


def test_text_indents_operators_below_their_parent() -> None:
    made = grouped()
    partitions = resolve_partition_counts(made, {}, default=1, declare=True)
    assert list(as_text(made, partitions))[2:13] == [
        "sub-topology 0: stateless, 1 task if t is created",
        "  reads   t",
        "    agent a, ahead of its body",
        "      rekey",
        "        forward to x",
        "        forward to y",
        "    agent b, ahead of its body",
        "      forward to z",
        "    agent c",
        "  sends   x",
        "  sends   y",
    ]


def test_diagram_shows_the_agent_and_outputs_of_each_branch() -> None:
    lines = [line.strip() for line in as_mermaid(grouped())]
    assert 's0o0_0["a: rekey forward forward"]' in lines
    assert [line for line in lines if "-->" in line] == [
        "t0 --> s0a0", "t0 --> s0o0_0", "s0o0_0 --> t1", "s0o0_0 --> t2", "t0 --> s0o0_1",
        "s0o0_1 --> t3",
    ]  # fmt: skip


def test_diagram_has_an_arrow_for_each_data_flow() -> None:
    lines = [line.strip() for line in as_mermaid(TOPOLOGY)]
    assert lines[0] == "flowchart LR"
    assert [line for line in lines if "-->" in line] == [
        "t1 --> s0a0", "s0 --> t2", "t2 --> s1a0", "s1a0 <--> s1d0",
    ]  # fmt: skip


def test_topology_data_is_json_serializable() -> None:
    data = json.loads(json.dumps(as_data(TOPOLOGY, PARTITIONS)))
    assert [(s["number"], s["stateful"], s["tasks"]) for s in data["subtopologies"]] == [
        (0, False, 8), (1, True, 8),
    ]  # fmt: skip
    assert [s["signature"] for s in data["subtopologies"]] == list(TOPOLOGY.signatures)
    assert data["topics"][0]["config"] == {"cleanup.policy": "compact"}


def flows() -> Topology:
    made = App("shop", store="memory://")
    orders = made.flow("orders")
    payments = made.flow("payments")
    orders.join(payments, max, within=("1h", "90s"), name="paid").to("settled")
    groups = orders.merge(payments).group_by_key()
    groups.window(tumbling("1h", grace="1500ms")).count("per-hour", emit="final").to("counts")
    groups.window(hopping("1h", "10m")).count("per-10-minutes")
    groups.window(session("30m", grace="1d")).count("visits")
    return made.topology()


def test_text_names_stores_and_times_of_flows() -> None:
    made = flows()
    partitions = resolve_partition_counts(made, {}, default=1, declare=True)
    lines = list(as_text(made, partitions))[3:24]
    assert [line.replace("keys raw, values json", "...") for line in lines] == [
        "  reads   orders",
        "    flow of orders to paid-left",
        "      join_left paid-left, paid-right",
        "        send to settled",
        "    flow of orders to per-hour",
        "      merge",
        "        window_count_final per-hour",
        "          send_windowed to counts",
        "        window_count_commit per-10-minutes",
        "        session_commit visits",
        "  reads   payments",
        "    flow of payments to paid-left",
        "      join_right paid-left, paid-right",
        "        send to settled, as above",
        "    flow of payments to per-hour",
        "      merge, as above",
        "  buffer  paid-left: ..., kept 90s, in memory, changelog shop-paid-left-changelog",
        "  buffer  paid-right: ..., kept 1h, in memory, changelog shop-paid-right-changelog",
        (
            "  table   per-10-minutes: ..., hopping 1h each 10m, grace 0, in memory, "
            "changelog shop-per-10-minutes-changelog"
        ),
        (
            "  table   per-hour: ..., tumbling 1h, grace 1500ms, in memory, "
            "changelog shop-per-hour-changelog"
        ),
        "  table   visits: ..., gap 30m, grace 1d, in memory, changelog shop-visits-changelog",
    ]


def test_diagram_shows_the_operators_stores_and_topics_of_flows() -> None:
    lines = [line.strip() for line in as_mermaid(flows())]
    boxes = {line.partition("[")[0]: line for line in lines if "[" in line}
    assert boxes["s0f0"] == 's0f0["join_left"]'
    assert boxes["s0d3"] == 's0d3[("per-hour<br>tumbling 1h<br>grace 1500ms")]'
    assert [line for line in lines if "-->" in line] == [
        "t1 --> s0f0", "s0f0 <--> s0d0", "s0f0 <--> s0d1", "s0f0 --> t3",
        "t1 --> s0f1", "s0f1 --> s0f2", "s0f2 <--> s0d3", "s0f2 --> t0",
        "s0f1 --> s0f3", "s0f3 <--> s0d2", "s0f1 --> s0f4", "s0f4 <--> s0d4",
        "t2 --> s0f5", "s0f5 <--> s0d0", "s0f5 <--> s0d1", "s0f5 --> t3", "t2 --> s0f1",
    ]  # fmt: skip


def test_topic_that_carries_event_time_is_shown_as_such() -> None:
    made = App("shop", store="memory://")
    groups = made.flow("orders").group_by(len)
    groups.window(sliding("1h", grace="5m")).count("per-hour")
    topology = made.topology()
    partitions = resolve_partition_counts(topology, {}, default=1, declare=True)
    lines = [line.strip() for line in as_text(topology, partitions)]
    assert "sends   shop-per-hour-repartition, with the event time of each task" in lines
    assert any("sliding 1h, grace 5m" in line for line in lines)
    assert '  t2[/"shop-per-hour-repartition<br>with event time"/]' in as_mermaid(topology)
