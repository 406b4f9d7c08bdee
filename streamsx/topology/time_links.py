"""Repartition topics that carry the event time of the tasks that write them. Pure.

A repartition topic carries times if something below depends on stream time: an operator that closes
windows, or another topic that carries times. Other topics cost nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple
from zlib import crc32

from streamsx.operators.operator import Operator
from streamsx.topology.nodes import SubTopology


class Writer(NamedTuple):
    """Task that writes a topic: the digest of its source topics, and its partition."""

    stage: int
    partition: int


class TimeLinks(NamedTuple):
    """Links of one task to others by topics that carry times.

    `writer` is the task itself; `partitions`: number of partitions of each topic to which the task
    tells its time; `writers`: tasks that tell theirs, by source topic; `idle_ms`: time without
    input after which the task tells a topic that it is idle, as an operator below asks.
    """

    writer: Writer = Writer(0, 0)
    partitions: Mapping[str, int] = MappingProxyType({})
    writers: Mapping[str, Collection[Writer]] = MappingProxyType({})
    idle_ms: Mapping[str, int] = MappingProxyType({})


def linked(plans: Collection[SubTopology], between: Collection[str]) -> tuple[SubTopology, ...]:
    """Note in sources and sub-topologies which topics carry times. `between`: internal topics."""
    carried = _carried(plans, between)
    return tuple(
        replace(
            plan,
            tells=plan.outputs & carried.keys(),
            sources=tuple(
                replace(
                    source,
                    writers=tuple(p.number for p in plans if source.topic in p.outputs),
                )
                if source.topic in carried
                else source
                for source in plan.sources
            ),
        )
        for plan in plans
    )


def _carried(plans: Collection[SubTopology], between: Collection[str]) -> Mapping[str, None]:
    """Return the topics that carry times, up the graph until nothing is added."""
    carried: dict[str, None] = {}
    grown = True
    while grown:
        grown = False
        for source in (source for plan in plans for source in plan.sources):
            asked = source.topic in between and source.topic not in carried
            if asked and any(_depends(each, carried) for each in source.operators):
                carried[source.topic] = None
                grown = True
    return carried


def _depends(operator: Operator, carried: Mapping[str, None]) -> bool:
    return operator.code.close is not None or operator.topic in carried


def stage_of(plan: SubTopology) -> int:
    """Return the digest of a sub-topology by its source topics.

    Numbers of sub-topologies change when others come and go.
    """
    return stage_of_topics(plan.topics)


def stage_of_topics(topics: Iterable[str]) -> int:
    return crc32("\n".join(sorted(topics)).encode())


def time_links(
    plans: Collection[SubTopology],
    plan: SubTopology,
    partition: int,
    counts: Mapping[str, int],
) -> TimeLinks:
    """Return the links of a task. `counts` are the numbers of partitions of topics."""
    stages = {each.number: stage_of(each) for each in plans}
    tasks = {each.number: max(counts.get(topic, 0) for topic in each.topics) for each in plans}
    return TimeLinks(
        Writer(stages[plan.number], partition),
        {topic: counts[topic] for topic in sorted(plan.tells)},
        {
            source.topic: [
                Writer(stages[number], n) for number in source.writers for n in range(tasks[number])
            ]
            for source in plan.sources
            if source.writers
        },
        {topic: ms for topic in plan.tells if (ms := idle_below(plans, topic)) is not None},
    )


def idle_below(plans: Collection[SubTopology], topic: str) -> int | None:
    """Return the least time, in ms, after which an operator below a topic takes input for idle."""
    seen = {topic}
    left = [topic]
    found: list[int] = []
    while left:
        each = left.pop()
        sources = (s for plan in plans for s in plan.sources if s.topic == each)
        operators = [operator for source in sources for operator in source.operators]
        found += [operator.idle_ms for operator in operators if operator.idle_ms is not None]
        further = {o.topic for o in operators if o.topic is not None} - seen
        seen |= further
        left += further
    return min(found, default=None)
