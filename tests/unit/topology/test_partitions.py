"""topology/partitions.py: the number of tasks, and the topics that are created for them."""

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


def test_missing_topics_are_created_with_the_default_count(counted: Topology) -> None:
    made = planned(counted, {})
    assert made.tasks == {0: 8, 1: 8}
    assert [(spec.name, spec.partitions) for spec in made.create] == [
        ("app-counts-changelog", 8), ("lines", 8), ("words", 8),
    ]  # fmt: skip


def test_changelog_gets_the_partition_count_of_the_source_topic(counted: Topology) -> None:
    made = planned(counted, {"words": 3, "lines": 5})
    assert made.tasks == {0: 5, 1: 3}
    assert [(spec.name, spec.partitions) for spec in made.create] == [("app-counts-changelog", 3)]
    assert made.counts == {"lines": 5, "words": 3, "app-counts-changelog": 3}


def test_tasks_are_named_in_order(counted: Topology) -> None:
    made = planned(counted, {"lines": 1, "words": 2})
    assert list(made.ids()) == [TaskId(0, 0), TaskId(1, 0), TaskId(1, 1)]


def test_stateless_task_count_is_the_largest_partition_count(stage: Make, topology: Make) -> None:
    made = planned(topology(stage("a", "one two three")), {"one": 4, "two": 6})
    assert made.tasks == {0: 8}
    assert made.counts == {"one": 4, "two": 6, "three": 8}


def test_stateful_missing_topic_gets_the_count_of_the_existing_topics(
    stage: Make, topology: Make
) -> None:
    made = planned(topology(stage("a", "one two", tables="t")), {"two": 3})
    assert made.counts == {"one": 3, "two": 3, "app-t-changelog": 3}


def test_stateful_sources_with_different_counts_are_an_error(stage: Make, topology: Make) -> None:
    with pytest.raises(
        PartitionMismatch,
        match=r"sub-topology 0 reads together one \(4\), two \(6\), with state in t: group",
    ):
        planned(topology(stage("a", "one two", tables="t")), {"one": 4, "two": 6})


def test_topic_is_created_with_the_requested_count(stage: Make, topology: Make) -> None:
    specs = [TopicSpec("one", TopicKind.SOURCE, 2), TopicSpec("out", TopicKind.OUTPUT, 5)]
    made = planned(topology(stage("a", "one", "out other"), specs=specs), {})
    assert made.counts == {"one": 2, "out": 5, "other": 8}


def test_existing_partition_count_overrides_the_requested_count(
    stage: Make, topology: Make
) -> None:
    made = topology(stage("a", "one"), specs=[TopicSpec("one", TopicKind.SOURCE, 2)])
    assert planned(made, {"one": 7}).tasks == {0: 7}


def test_state_made_for_another_partition_count_stops_the_app(counted: Topology) -> None:
    with pytest.raises(
        PartitionCountChanged,
        match=r"words has 8 partitions, the state of table counts was made for 4: "
        r"read a new topic with 4 partitions, or raise the app's version",
    ):
        planned(counted, {"words": 8, "app-counts-changelog": 4})


def test_missing_source_is_created_with_the_count_of_the_changelog(counted: Topology) -> None:
    assert planned(counted, {"app-counts-changelog": 4}).counts["words"] == 4


def test_only_partition_counts_of_stateful_sources_must_not_change(counted: Topology) -> None:
    made = {"lines": 2, "words": 4, "app-counts-changelog": 4}
    refuse_changes(counted, made, {"lines": 8, "words": 4})
    refuse_changes(counted, made, {"words": 0})
    for count in (3, 8):
        says = f"words has {count} partitions, the state of table counts was made for 4"
        with pytest.raises(PartitionCountChanged, match=says):
            refuse_changes(counted, made, {"words": count})


def test_table_requesting_another_partition_count_is_an_error(stage: Make, topology: Make) -> None:
    specs = [TopicSpec("app-t-changelog", TopicKind.CHANGELOG, 2)]
    with pytest.raises(PartitionMismatch, match="table t asks for 2 partitions, one has 8"):
        planned(topology(stage("a", "one", tables="t"), specs=specs), {})


def test_all_missing_topics_are_one_error_without_declare(counted: Topology) -> None:
    with pytest.raises(TopologyError, match="missing: app-counts-changelog, words: create them"):
        resolve_partition_counts(counted, {"lines": 1}, default=8, declare=False)
    found = {"lines": 1, "words": 2, "app-counts-changelog": 2}
    assert resolve_partition_counts(counted, found, default=8, declare=False).create == ()
