"""topology/describe.py: the word count, drawn."""

import json
from dataclasses import replace
from typing import Any

from streamsx import App
from streamsx.app.window import hopping, session
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
        "sub-topology 0: stateless, 8 tasks",
        "  reads   wordcount-lines",
        "    agent streamsx.examples.wordcount.split",
        "  sends   wordcount-words",
        "",
        "sub-topology 1: stateful, 8 tasks",
        "  reads   wordcount-words",
        "    agent streamsx.examples.wordcount.count",
        "  table   counts: keys json, values json, on disk, changelog wordcount-counts-changelog",
        "",
        "topics",
        "  wordcount-counts-changelog  changelog       8  cleanup.policy=compact",
        "  wordcount-lines             source          8",
        "  wordcount-words             source          8",
    ]


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
        "sub-topology 0: stateless, 1 tasks",
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


def test_flows_are_shown_with_their_stores_and_times() -> None:
    flows = App("app", topic_partitions=1)
    clicks = flows.flow("clicks").group_by_key()
    clicks.window(hopping("9s", "3s", grace="1s")).count("views").to("out")
    clicks.window(session("4s")).count("visits")
    made = flows.topology()
    partitions = resolve_partition_counts(made, {}, default=1, declare=True)
    text = [line.strip() for line in as_text(made, partitions)]
    assert "flow of clicks to views" in text
    tables = [line.partition(", keys")[0] for line in text if line.startswith("table")]
    assert tables == [
        "table   views: windows of 9 s every 3 s, open for 10 s",
        "table   visits: sessions with gaps up to 4 s, open for 4 s",
    ]
    arrows = [line.strip() for line in as_mermaid(made) if "<-->" in line]
    assert arrows == ["s0o0_0 <--> s0d0", "s0o0_1 <--> s0d1"]
    found: Any = as_data(made, partitions)["subtopologies"]
    stores = [(each["kind"], each["size"], each["step"]) for each in found[0]["stores"]]
    assert stores == [("window", 9000, 3000), ("session", 4000, 4000)]
