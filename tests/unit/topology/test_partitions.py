"""topology/partitions.py: how many tasks there are, and what is created for them."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from streamsx.errors import PartitionCountChanged, PartitionMismatch, TopologyError
from streamsx.model import TaskId
from streamsx.topology.build import Topology
from streamsx.topology.internal_topics import TopicKind, TopicSpec
from streamsx.topology.partitions import Layout, refuse_changes, resolve_partition_counts

Make = Callable[..., Any]


@pytest.fixture
def counted(stage: Make, topology: Make) -> Topology:
    made: Topology = topology(
        stage("split", "lines", "words"), stage("count", "words", tables="counts")
    )
    return made


def planned(topology: Topology, found: Mapping[str, int], default: int = 8) -> Layout:
    return resolve_partition_counts(topology, found, default=default, declare=True)


def test_what_is_missing_is_created_with_the_default(counted: Topology) -> None:
    made = planned(counted, {})
    assert made.tasks == {0: 8, 1: 8}
    assert [(spec.name, spec.partitions) for spec in made.create] == [
        ("app-counts-changelog", 8), ("lines", 8), ("words", 8),
    ]  # fmt: skip


def test_a_changelog_follows_the_topic_that_its_task_reads(counted: Topology) -> None:
    made = planned(counted, {"words": 3, "lines": 5})
    assert made.tasks == {0: 5, 1: 3}
    assert [(spec.name, spec.partitions) for spec in made.create] == [("app-counts-changelog", 3)]
    assert made.counts == {"lines": 5, "words": 3, "app-counts-changelog": 3}


def test_tasks_are_named_in_order(counted: Topology) -> None:
    made = planned(counted, {"lines": 1, "words": 2})
    assert list(made.ids()) == [TaskId(0, 0), TaskId(1, 0), TaskId(1, 1)]


def test_without_state_the_largest_count_is_the_number_of_tasks(
    stage: Make, topology: Make
) -> None:
    made = planned(topology(stage("a", "one two three")), {"one": 4, "two": 6})
    assert made.tasks == {0: 8}
    assert made.counts == {"one": 4, "two": 6, "three": 8}


def test_with_state_a_missing_topic_follows_those_that_are_there(
    stage: Make, topology: Make
) -> None:
    made = planned(topology(stage("a", "one two", tables="t")), {"two": 3})
    assert made.counts == {"one": 3, "two": 3, "app-t-changelog": 3}


def test_with_state_counts_that_differ_are_an_error(stage: Make, topology: Make) -> None:
    with pytest.raises(
        PartitionMismatch,
        match=r"sub-topology 0 reads together one \(4\), two \(6\), with state in t: group",
    ):
        planned(topology(stage("a", "one two", tables="t")), {"one": 4, "two": 6})


def test_a_topic_is_created_with_the_count_that_it_asks_for(stage: Make, topology: Make) -> None:
    specs = [TopicSpec("one", TopicKind.SOURCE, 2), TopicSpec("out", TopicKind.OUTPUT, 5)]
    made = planned(topology(stage("a", "one", "out other"), specs=specs), {})
    assert made.counts == {"one": 2, "out": 5, "other": 8}


def test_a_count_that_is_there_beats_the_one_that_is_asked_for(stage: Make, topology: Make) -> None:
    made = topology(stage("a", "one"), specs=[TopicSpec("one", TopicKind.SOURCE, 2)])
    assert planned(made, {"one": 7}).tasks == {0: 7}


def test_state_that_was_made_for_another_count_stops_the_app(counted: Topology) -> None:
    with pytest.raises(
        PartitionCountChanged,
        match=r"words has 8 partitions, the state of table counts was made for 4: "
        r"read a new topic with 4 partitions, or raise the app's version",
    ):
        planned(counted, {"words": 8, "app-counts-changelog": 4})


def test_a_source_that_is_gone_is_created_as_its_state_was_made(counted: Topology) -> None:
    assert planned(counted, {"app-counts-changelog": 4}).counts["words"] == 4


def test_only_what_state_was_made_from_must_not_change(counted: Topology) -> None:
    made = {"lines": 2, "words": 4, "app-counts-changelog": 4}
    refuse_changes(counted, made, {"lines": 8, "words": 4})
    refuse_changes(counted, made, {"words": 0})
    for count in (3, 8):
        says = f"words has {count} partitions, the state of table counts was made for 4"
        with pytest.raises(PartitionCountChanged, match=says):
            refuse_changes(counted, made, {"words": count})


def test_a_table_that_asks_for_another_count_is_an_error(stage: Make, topology: Make) -> None:
    specs = [TopicSpec("app-t-changelog", TopicKind.CHANGELOG, 2)]
    with pytest.raises(PartitionMismatch, match="table t asks for 2 partitions, one has 8"):
        planned(topology(stage("a", "one", tables="t"), specs=specs), {})


def test_without_leave_to_create_all_that_is_missing_is_one_error(counted: Topology) -> None:
    with pytest.raises(TopologyError, match="missing: app-counts-changelog, words: create them"):
        resolve_partition_counts(counted, {"lines": 1}, default=8, declare=False)
    found = {"lines": 1, "words": 2, "app-counts-changelog": 2}
    assert resolve_partition_counts(counted, found, default=8, declare=False).create == ()
