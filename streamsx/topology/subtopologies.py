"""The graph cut into sub-topologies, and their numbers.

A stage is what has to run in one place: an agent, or one half of it when it groups by another key.
Stages that read one topic, or touch one table, live together: a partition has one owner, and so has
the store of a partition. What else they send to does not bind them.

Numbers follow the records: a sub-topology comes after those that send to it, ties go by the
smallest name of a topic. So they depend on the graph alone, never on the order of imports. In a
circle, where nobody is first, the smallest name is. State is never named by a number.

Not here: how many tasks (`partitions`), how stages are found (`streamsx.app`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from streamsx.errors import TopologyError
from streamsx.state.layout import StoreNode
from streamsx.topology.nodes import Source, SubTopology


@dataclass(frozen=True, slots=True)
class Stage:
    """`name`: the agent's; `tables`: by name; `outputs`: topics that it sends to, if known."""

    name: str
    sources: tuple[Source, ...]
    tables: frozenset[str] = frozenset()
    outputs: frozenset[str] = frozenset()

    @property
    def topics(self) -> set[str]:
        return {source.topic for source in self.sources}

    def meets(self, other: "Stage") -> bool:
        """They have to run in one place."""
        return bool(self.topics & other.topics or self.tables & other.tables)


def subtopologies(
    stages: Iterable[Stage], stores: Mapping[str, StoreNode]
) -> tuple[SubTopology, ...]:
    """Numbered, in the order of their numbers.

    Raises TopologyError when two agents read one topic with different codecs.
    """
    made = _ordered([_made(group, stores) for group in _joined(stages)])
    return tuple(replace(each, number=number) for number, each in enumerate(made))


def _joined(stages: Iterable[Stage]) -> list[list[Stage]]:
    groups: list[list[Stage]] = []
    for stage in stages:
        group = [stage]
        for other in [other for other in groups if any(map(stage.meets, other))]:
            groups.remove(other)
            group += other
        groups.append(group)
    return groups


def _made(group: Iterable[Stage], stores: Mapping[str, StoreNode]) -> SubTopology:
    tables = {name for stage in group for name in stage.tables}
    outputs = frozenset(name for stage in group for name in stage.outputs)
    return SubTopology(0, _merged(group), tuple(stores[name] for name in sorted(tables)), outputs)


def _ordered(made: Iterable[SubTopology]) -> list[SubTopology]:
    left, ordered = sorted(made, key=lambda each: each.topics), []
    while left:
        first = next((each for each in left if not _waits(each, left)), left[0])
        left.remove(first)
        ordered.append(first)
    return ordered


def _waits(each: SubTopology, left: Iterable[SubTopology]) -> bool:
    return any(other is not each and other.outputs.intersection(each.topics) for other in left)


def _merged(stages: Iterable[Stage]) -> tuple[Source, ...]:
    """One source per topic, with what all stages do there; in the order of the agents' names."""
    merged: dict[str, Source] = {}
    for stage in sorted(stages, key=lambda stage: stage.name):
        for source in stage.sources:
            other = merged.get(source.topic)
            merged[source.topic] = source if other is None else _both(other, source, stage.name)
    return tuple(merged[topic] for topic in sorted(merged))


def _both(one: Source, other: Source, agent: str) -> Source:
    if (one.decode_key, one.decode_value) != (other.decode_key, other.decode_value):
        raise TopologyError(
            f"one topic, read in two ways: {one.topic}: agent {agent} has another key or value "
            "type or serializer than an agent before: give both agents the same topic object"
        )
    branches, agents = one.branches + other.branches, one.agents + other.agents
    return replace(one, branches=branches, agents=agents)
