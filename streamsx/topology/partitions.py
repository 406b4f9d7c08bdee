"""Partition counts of all topics of an app, and the number of tasks that follows.

In a sub-topology with state, all sources have one partition count, because equal keys of two topics
must be in partitions of the same number. A source to be created takes the count of the existing
sources, or else of the changelogs. The changelogs have the same count too. State cannot be
repartitioned, so a changelog with another count stops the app, and so does a source that grows
while the app runs. Without state, the largest count of a source gives the number of tasks. Any
other missing topic is created with the count in its spec, or the default.

Pure: the broker's answer goes in, the topics to create come out.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from streamsx.errors import PartitionCountChanged, PartitionMismatch, TopologyError
from streamsx.mistakes import Mistakes
from streamsx.model import TaskId
from streamsx.topology.build import Topology
from streamsx.topology.internal_topics import TopicSpec
from streamsx.topology.nodes import SubTopology


@dataclass(frozen=True, slots=True)
class Layout:
    """Partition counts by topic, including topics to create, and task counts by sub-topology."""

    counts: Mapping[str, int]
    tasks: Mapping[int, int]
    create: tuple[TopicSpec, ...]

    def ids(self) -> Iterator[TaskId]:
        for number, tasks in self.tasks.items():
            yield from (TaskId(number, partition) for partition in range(tasks))


def resolve_partition_counts(
    topology: Topology, found: Mapping[str, int], *, default: int, declare: bool
) -> Layout:
    """Compute the layout of a topology.

    `found` are the partition counts of existing topics. `declare` allows the creation of others.

    Raises:
        PartitionMismatch: sources or a table of one sub-topology ask for different counts.
        PartitionCountChanged: a changelog was made for another count.
        TopologyError: topics are missing and must not be created.
        SeveralMistakes: there are several of these.
    """
    mistakes = Mistakes()
    specs = {spec.name: spec for spec in topology.topics}
    missing = [name for name in specs if name not in found]
    if missing and not declare:
        raise TopologyError(
            f"topics are missing: {', '.join(missing)}: create them, or set topic_allow_declare"
        )
    counts = {name: found[name] for name in specs if name in found}
    tasks: dict[int, int] = {}
    for each in topology.subtopologies:
        with mistakes.noted():
            counts |= _sources(each, specs, counts, default)
            tasks[each.number] = max(counts[topic] for topic in each.topics)
            counts |= _changelogs(each, specs, counts)
    mistakes.check()
    counts |= {name: specs[name].partitions or default for name in specs if name not in counts}
    create = tuple(replace(specs[name], partitions=counts[name]) for name in missing)
    return Layout(counts, tasks, create)


def _sources(
    each: SubTopology, specs: Mapping[str, TopicSpec], counts: Mapping[str, int], default: int
) -> dict[str, int]:
    asked = {topic: counts.get(topic) or specs[topic].partitions for topic in each.topics}
    known = {topic: count for topic, count in asked.items() if count is not None}
    if not each.stateful:
        return {topic: known.get(topic, default) for topic in each.topics}
    if len(set(known.values())) > 1:
        raise PartitionMismatch(
            f"partition counts differ: sub-topology {each.number} reads together {_list(known)}, "
            f"with state in {', '.join(store.name for store in each.stores)}: group one of them "
            "by its key (group_by), or create them with the same "
            f"number{_places(specs[name] for name in known)}"
        )
    made = (counts[store.changelog] for store in each.stores if store.changelog in counts)
    return dict.fromkeys(each.topics, next(iter(known.values()), next(made, default)))


def _changelogs(
    each: SubTopology, specs: Mapping[str, TopicSpec], counts: Mapping[str, int]
) -> dict[str, int]:
    source = each.topics[0]
    count = counts[source]
    for store in each.stores:
        found = counts.get(store.changelog, count)
        asked = specs[store.changelog].partitions
        if found != count:
            raise changed(source, count, store.name, found)
        if asked not in (None, count):
            places = _places([specs[store.changelog], specs[source]])
            raise PartitionMismatch(
                f"partition counts differ: table {store.name} asks for {asked} partitions, "
                f"{source} has {count}: leave out the table's, or make both the same{places}"
            )
    return {store.changelog: count for store in each.stores}


def refuse_changes(topology: Topology, made: Mapping[str, int], found: Mapping[str, int]) -> None:
    """Refuse a changed partition count of a topic from which a table's state was made.

    `made` are the partition counts of all topics when the app started. `found` are some current
    counts, 0 for a topic that is gone.

    Raises:
        PartitionCountChanged: a count has changed.
    """
    for each in topology.subtopologies:
        for topic in each.topics if each.stateful else ():
            now = found.get(topic)
            if now and now != made[topic]:
                raise changed(topic, now, each.stores[0].name, made[topic])


def changed(topic: str, count: int, table: str, made: int) -> PartitionCountChanged:
    """Return the error for a changed count.

    Kafka never removes partitions, and the state of a key belongs to the key's partition.
    """
    return PartitionCountChanged(
        f"partition count changed: {topic} has {count} partitions, the state of table {table} was "
        f"made for {made}: read a new topic with {made} partitions, or raise the app's version to "
        "begin without state and from the start of its topics"
    )


def _list(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{topic} ({count})" for topic, count in sorted(counts.items()))


def _places(specs: Iterable[TopicSpec]) -> str:
    """Return the places of topics in the user's code, in brackets; empty if none is known."""
    found = sorted({spec.made_at for spec in specs} - {""})
    return f" ({', '.join(found)})" if found else ""
