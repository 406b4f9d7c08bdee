"""Topology of an app: its sub-topologies, and every topic that the app reads, writes or sends to.

Not here: the origin of stages (`streamsx.app`), partition counts (`partitions`).
"""

import json
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from zlib import crc32

from streamsx.errors import NameClash, TopologyError
from streamsx.mistakes import Mistakes
from streamsx.state.layout import KEY_VALUE, StoreNode
from streamsx.topology.internal_topics import TopicKind, TopicSpec, agent_topic_name
from streamsx.topology.nodes import Source, SubTopology
from streamsx.topology.subtopologies import NO_PLACES, subtopologies
from streamsx.topology.time_links import linked


@dataclass(frozen=True)
class Topology:
    """Graph of an app. `topics` are in the order of their names.

    `notes` are remarks for the user who starts the app, one line each. `otherwise` are the names
    that repartition topics would have under the other `repartition_names`, where those differ.
    """

    app_id: str
    subtopologies: tuple[SubTopology, ...]
    topics: tuple[TopicSpec, ...]
    notes: tuple[str, ...] = ()
    otherwise: frozenset[str] = frozenset()

    @property
    def own(self) -> frozenset[str]:
        """Return the topics that the app's own tasks write, and the default topics of agents."""
        agents = {
            agent_topic_name(self.app_id, name)
            for plan in self.subtopologies
            for source in plan.sources
            for name in (*(a.name for a in source.agents), *(b.agent for b in source.branches))
        }
        sent = {topic for plan in self.subtopologies for topic in plan.outputs}
        return frozenset(spec.name for spec in self.topics if spec.name in agents | sent)

    def fed(self, plan: SubTopology) -> frozenset[str]:
        """Return the changelogs of all stores that records of this sub-topology reach.

        Records may go through any number of topics in between.
        """
        seen = {plan.number}
        ways = deque([plan])
        changelogs = set[str]()
        while ways:
            each = ways.popleft()
            changelogs |= {node.changelog for node in each.stores}
            for other in self.subtopologies:
                if other.number not in seen and each.outputs.intersection(other.topics):
                    seen.add(other.number)
                    ways.append(other)
        return frozenset(changelogs)

    @cached_property
    def tables(self) -> dict[str, StoreNode]:
        """Return the global tables of the app, by name; their changelogs are topics."""
        return {name: node for plan in self.subtopologies for name, node in plan.tables.items()}

    @property
    def signatures(self) -> tuple[int, ...]:
        """Return 32 bits for each sub-topology, equal where sources, stores and outputs are."""
        return tuple(crc32(json.dumps(outline(each)).encode()) for each in self.subtopologies)


def build(
    app_id: str,
    stages: Iterable[SubTopology],
    topics: Iterable[TopicSpec],
    notes: Iterable[str] = (),
    otherwise: Iterable[str] = (),
    made_at: Mapping[str, str] = NO_PLACES,
) -> Topology:
    """Build the topology. `topics` has at least one spec per name that a stage uses.

    `made_at` is the place of each agent in the user's code, for errors.

    Raises:
        NameClash: a changelog or repartition topic has the name of another topic.
        TopologyError: two agents read one topic with different codecs.
        SeveralMistakes: there are several of these.
    """
    mistakes = Mistakes()
    specs: dict[str, TopicSpec] = {}
    for spec in topics:
        other = specs.setdefault(spec.name, spec)
        if other != spec:
            with mistakes.noted():
                specs[spec.name] = _merge_specs(other, spec)
    between = {name for name, spec in specs.items() if spec.kind is TopicKind.REPARTITION}
    with mistakes.noted():
        cut = linked(subtopologies(stages, made_at), between)
    mistakes.check()
    left = frozenset(otherwise) - specs.keys()
    return Topology(app_id, cut, tuple(specs[name] for name in sorted(specs)), tuple(notes), left)


def _merge_specs(one: TopicSpec, other: TopicSpec) -> TopicSpec:
    """Merge two specs of one name: a source takes precedence over an output. Raises NameClash."""
    kinds = {one.kind, other.kind}
    if not kinds <= {TopicKind.SOURCE, TopicKind.OUTPUT}:
        raise NameClash(
            f"two topics with one name: {one.name}: one is a {one.kind.value} topic{one.place}, "
            f"the other a {other.kind.value} topic{other.place}: rename the table, the agent or "
            "the topic"
        )
    partitions = {one.partitions, other.partitions} - {None}
    if len(partitions) > 1:
        raise NameClash(
            f"two topics with one name: {one.name}: they ask for {one.partitions}{one.place} and "
            f"{other.partitions} partitions{other.place}: use one topic object"
        )
    main = one if one.kind is TopicKind.SOURCE else other
    return replace(main, partitions=next(iter(partitions), None))


def check_names(topology: Topology, committed: Collection[str], names: str) -> None:
    """Refuse repartition topics that the group has begun to read under other names.

    `committed` are the topics for which the app's group has committed offsets. `names` is the value
    of the setting `repartition_names`.

    Raises:
        TopologyError: the records under the other names would stay unread.
    """
    begun = sorted(topology.otherwise.intersection(committed))
    if begun:
        other = "faust" if names == "app" else "app"
        raise TopologyError(
            f"repartition topics have other names: {', '.join(begun)}: group {topology.app_id} "
            f"has committed offsets there: set repartition_names={other!r} to continue with them, "
            "or delete these topics with their unread records"
        )


def outline(subtopology: SubTopology) -> dict[str, object]:
    """Return the names in a sub-topology, without functions, to be hashed and shown."""
    return {
        "sources": [_source_outline(source) for source in subtopology.sources],
        "stores": [_store_outline(store) for store in subtopology.stores],
        "outputs": sorted(subtopology.outputs),
    }


def _store_outline(store: StoreNode) -> dict[str, object]:
    """Return the names in a store, and the sizes that its rows depend on.

    The outline of a key-value store must never change, like that of a chain of operators.
    """
    return {
        "name": store.name, "changelog": store.changelog, "key": store.keys.name,
        "value": store.values.name, "persistent": store.persistent,
    } | ({} if store.kind == KEY_VALUE else {"kind": store.kind, **store.sizes})  # fmt: skip


def _source_outline(source: Source) -> dict[str, object]:
    """Return the names in a source.

    The outline of a chain of operators without forks must never change, because a signature is
    compared with those of older versions.
    """
    return {
        "topic": source.topic,
        "operators": [
            {"kind": operator.kind, "topic": operator.topic}
            | (
                {"stores": [node.name for node in operator.stores.values()]}
                if operator.stores
                else {}
            )
            | ({"then": len(operator.then)} if len(operator.then) > 1 else {})
            for operator in source.operators
        ],
        "agents": [agent.name for agent in source.agents],
    }
