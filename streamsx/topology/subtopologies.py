"""Cut of the graph into sub-topologies, and their numbers.

A stage is the part of an agent that has to run in one place: the whole agent, or one half of an
agent that groups by another key. Stages that read one topic, or use one table, belong together: a
partition has one owner, and so has the store of a partition. Topics that stages send to do not bind
them.

Numbers follow the records: a sub-topology comes after those that send to it, and ties go by the
smallest topic name. So numbers depend on the graph alone, never on the order of imports. In a
cycle, the sub-topology with the smallest topic name comes first. State is never named by a number.

Not here: the number of tasks (`partitions`), the discovery of stages (`streamsx.app`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from streamsx.errors import TopologyError
from streamsx.mistakes import Mistakes
from streamsx.topology.nodes import Source, SubTopology

NO_PLACES: Final[Mapping[str, str]] = {}


def subtopologies(
    stages: Iterable[SubTopology], made_at: Mapping[str, str] = NO_PLACES
) -> tuple[SubTopology, ...]:
    """Merge stages that have to run in one place; return them numbered, in that order.

    `made_at` is the place of each agent in the user's code, for errors.

    Raises:
        TopologyError: two agents read one topic with different codecs.
        SeveralMistakes: there are several such topics.
    """
    stages = list(stages)
    _check_readers(stages, made_at)
    joined: list[SubTopology] = []
    for stage in stages:
        near = [other for other in joined if _share_place(stage, other)]
        joined = [other for other in joined if other not in near]
        joined.append(_join([stage, *near]))
    ordered = enumerate(_ordered(joined))
    return tuple(replace(each, number=number) for number, each in ordered)


def _share_place(one: SubTopology, other: SubTopology) -> bool:
    """Return whether two stages have to run in one place."""
    read = set(one.topics).intersection(other.topics)
    return bool(read) or any(store in other.stores for store in one.stores)


def _join(group: Iterable[SubTopology]) -> SubTopology:
    stores = {store.name: store for stage in group for store in stage.stores}
    outputs = frozenset(name for stage in group for name in stage.outputs)
    return SubTopology(0, _merged(group), tuple(stores[name] for name in sorted(stores)), outputs)


def _ordered(made: Iterable[SubTopology]) -> list[SubTopology]:
    left = sorted(made, key=lambda each: each.topics)
    ordered = []
    while left:
        first = next((each for each in left if not _waits(each, left)), left[0])
        left.remove(first)
        ordered.append(first)
    return ordered


def _waits(each: SubTopology, left: Iterable[SubTopology]) -> bool:
    return any(other is not each and other.outputs.intersection(each.topics) for other in left)


def _merged(stages: Iterable[SubTopology]) -> tuple[Source, ...]:
    """Return one source per topic, with the readers of all stages in the order of their names."""
    merged: dict[str, Source] = {}
    for source in (source for stage in stages for source in stage.sources):
        other = merged.get(source.topic)
        merged[source.topic] = source if other is None else _join_sources(other, source)
    return tuple(merged[topic] for topic in sorted(merged))


def _check_readers(stages: Iterable[SubTopology], made_at: Mapping[str, str]) -> None:
    """Refuse agents that read one topic in two ways. Raises TopologyError, SeveralMistakes."""
    mistakes = Mistakes()
    first: dict[str, Source] = {}
    for source in (source for stage in stages for source in stage.sources):
        one = first.setdefault(source.topic, source)
        if [one.keys.decode, one.values.decode] != [source.keys.decode, source.values.decode]:
            names = sorted({*_readers(one), *_readers(source)})
            places = (f"{name} ({made_at[name]})" if name in made_at else name for name in names)
            text = (
                f"one topic, read in two ways: {one.topic}: agents {' and '.join(places)} have "
                "different key or value types or serializers: give both the same topic object"
            )
            mistakes.add(TopologyError(text))
    mistakes.check()


def _readers(source: Source) -> Iterator[str]:
    yield from (branch.agent for branch in source.branches)
    yield from (agent.name for agent in source.agents)


def _join_sources(one: Source, other: Source) -> Source:
    branches = sorted(one.branches + other.branches, key=lambda branch: branch.agent)
    agents = sorted(one.agents + other.agents, key=lambda agent: agent.name)
    made = replace(one, branches=tuple(branches), agents=tuple(agents))
    if clash := made.clash:
        raise TopologyError(
            f"agents cannot be told apart in commits: {' and '.join(clash)}, which read "
            f"{one.topic}: their names have the same digest: rename one of them"
        )
    return made
