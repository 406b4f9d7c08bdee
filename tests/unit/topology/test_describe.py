"""topology/describe.py: the word count, drawn."""

import json

from streamsx.examples.wordcount import app
from streamsx.topology.describe import as_data, as_mermaid, as_text
from streamsx.topology.partitions import partitioned

TOPOLOGY = app.topology()
PARTITIONS = partitioned(TOPOLOGY, {}, default=8, declare=True)


def test_the_text_says_what_each_sub_topology_does() -> None:
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


def test_the_diagram_has_an_arrow_for_each_way() -> None:
    lines = [line.strip() for line in as_mermaid(TOPOLOGY)]
    assert lines[0] == "flowchart LR"
    assert [line for line in lines if "-->" in line] == [
        "t1 --> s0a0", "s0 --> t2", "t2 --> s1a0", "s1a0 <--> s1d0",
    ]  # fmt: skip


def test_the_data_is_for_json() -> None:
    data = json.loads(json.dumps(as_data(TOPOLOGY, PARTITIONS)))
    assert [(s["number"], s["stateful"], s["tasks"]) for s in data["subtopologies"]] == [
        (0, False, 8), (1, True, 8),
    ]  # fmt: skip
    assert [s["signature"] for s in data["subtopologies"]] == list(TOPOLOGY.signatures)
    assert data["topics"][0]["config"] == {"cleanup.policy": "compact"}
