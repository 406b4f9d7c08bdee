"""topology/subtopologies.py: parts of the graph that run together, and their order."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from streamsx.errors import TopologyError
from streamsx.topology.subtopologies import subtopologies
from tests.support.codecs import coded

Make = Callable[..., Any]


def drawn(topology: Any) -> list[tuple[list[str], list[str]]]:
    """Return topics and tables of each sub-topology, in the order of their numbers."""
    return [(list(s.topics), [store.name for store in s.stores]) for s in topology.subtopologies]


def test_agents_on_one_topic_share_a_sub_topology(stage: Make, topology: Make) -> None:
    made = topology(stage("b", "words"), stage("a", "words"), stage("c", "lines"))
    assert drawn(made) == [(["lines"], []), (["words"], [])]
    assert [agent.name for agent in made.subtopologies[1].sources[0].agents] == ["a", "b"]


def test_agents_on_one_table_share_a_sub_topology(stage: Make, topology: Make) -> None:
    made = topology(
        stage("a", "orders", tables="totals"), stage("b", "users", tables="totals names")
    )
    assert drawn(made) == [(["orders", "users"], ["names", "totals"])]


def test_agent_reading_two_groups_merges_their_sub_topologies(stage: Make, topology: Make) -> None:
    made = topology(
        stage("a", "one", tables="t"), stage("b", "two", tables="u"), stage("c", "one two")
    )
    assert drawn(made) == [(["one", "two"], ["t", "u"])]


def test_sending_to_a_topic_does_not_join_sub_topologies(stage: Make, topology: Make) -> None:
    made = topology(stage("split", "lines", "words"), stage("count", "words", tables="counts"))
    assert drawn(made) == [(["lines"], []), (["words"], ["counts"])]


def test_sub_topology_is_numbered_after_upstream_sub_topologies(
    stage: Make, topology: Make
) -> None:
    made = topology(stage("a", "z", "m"), stage("b", "m", "a"), stage("c", "a"), stage("d", "b"))
    assert [topics[0] for topics, _ in drawn(made)] == ["b", "z", "m", "a"]


def test_smallest_topic_name_is_first_in_a_cycle(stage: Make, topology: Make) -> None:
    made = topology(stage("a", "y", "x"), stage("b", "x", "y"), stage("c", "w", "w"))
    assert [topics[0] for topics, _ in drawn(made)] == ["w", "x", "y"]


def test_numbers_and_signatures_do_not_depend_on_the_order_of_imports(
    stage: Make, topology: Make
) -> None:
    stages = [
        stage("split", "lines", "words"),
        stage("count", "words", "alerts", tables="counts"),
        stage("other", "words"),
        stage("warn", "alerts users", tables="users"),
    ]
    made = [topology(*order) for order in itertools.permutations(stages)]
    assert len({str(drawn(each)) for each in made}) == 1
    assert len({each.signatures for each in made}) == 1


def test_loops_and_agents_on_one_topic_are_one_source(stage: Make, topology: Make) -> None:
    made = topology(stage("a", "orders", "by-user", loop=True), stage("b", "orders"))
    source = made.subtopologies[0].sources[0]
    assert [step.topic for step in source.operators] == ["by-user"]
    assert [agent.name for agent in source.agents] == ["b"]


def test_topic_read_with_two_codecs_is_refused(stage: Make) -> None:
    one, two = stage("a", "orders"), stage("b", "orders")
    source = replace(two.sources[0], values=coded(bytes))
    other = replace(two, sources=(source,))
    with pytest.raises(TopologyError, match="read in two ways: orders: agents a and b"):
        subtopologies([one, other])
