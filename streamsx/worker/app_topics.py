"""Topics of an app: check at the start of a worker, creation of missing topics, watch for losses.

`topology/partitions` decides which topics may be created, and `topology/presence` decides on
missing topics. The group member also watches the source topics (`group/partition_counts`).
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

from streamsx.client import admin
from streamsx.client.admin import NewTopic
from streamsx.client.cluster import Cluster
from streamsx.clock import Clock
from streamsx.config import Config
from streamsx.errors import BrokerUnreachable, StreamsxError, TopologyError, WorldError
from streamsx.journal import LOG, Journal
from streamsx.log_sentences import counted
from streamsx.model import TopicPartition
from streamsx.state.directory import StateDirectory
from streamsx.state.layout import StoreNode
from streamsx.tasks.inactive_stores import InactivePositions
from streamsx.tasks.start_positions import holds
from streamsx.topology.build import Topology, check_names
from streamsx.topology.internal_topics import TopicKind
from streamsx.topology.partitions import Layout, resolve_partition_counts
from streamsx.topology.presence import (
    GONE_AFTER_S,
    NO_ID,
    Absence,
    Presence,
    TopicIds,
    made_anew,
    refuse_lost,
)

LOOK_AGAIN_S = 1.0
LOOK_EVERY_S = 5.0
ASKED_AGAIN = "Changelogs are not there, and their state is: %s. Asking again for %g s."
CREATED = "Created topic %s with %s."
CREATED_SOURCE = (
    "Created topic %s with %s: the app reads it, and it was not there. It is empty; check its "
    "name if another program should write to it."
)


class AppTopics:
    """Topics of one worker's app."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        topology: Topology,
        config: Config,
        directory: StateDirectory,
        journal: Journal,
        clock: Clock,
    ) -> None:
        self.cluster = cluster
        self.topology = topology
        self.config = config
        self.directory = directory
        self.journal = journal
        self.clock = clock

    # -- before tasks and the group begin

    async def layout(self) -> Layout:
        """Return the partition count of each topic, existing or to be created.

        Raises:
            TopologyError: the topics or names in Kafka do not fit the app.
            PartitionCountChanged: a topic has another count than at the time when the state was
                made.
        """
        if self.topology.otherwise:
            begun = await admin.committed_topics(self.cluster, self.topology.app_id)
            check_names(self.topology, begun, self.config.repartition_names)
        found = await admin.partition_counts(self.cluster, self._names())
        return resolve_partition_counts(
            self.topology,
            {name: count for name, count in found.items() if count},
            default=self.config.topic_partitions,
            declare=self.config.topic_allow_declare,
        )

    async def make(self, layout: Layout, leftovers: Iterable[InactivePositions]) -> None:
        """Create the missing topics; `leftovers`: the stores on this disk.

        Raises:
            ChangelogLost: a changelog with state on this disk is gone; no topic is created then.
            TopologyError: a changelog is not compacted.
        """
        read = {tp.topic for positions in leftovers for tp, at in positions.items() if at}
        await self._refuse_lost(read)
        await self._warn_of_empty_tables({spec.name for spec in layout.create})
        own = frozenset[str]().union(*(plan.outputs for plan in self.topology.subtopologies))
        made = [
            NewTopic(spec.name, spec.partitions or 0, spec.replication, spec.config)
            for spec in layout.create
        ]
        await admin.create_topics(self.cluster, made)
        for spec in layout.create:
            size = counted(spec.partitions or 0, "partition")
            named_by_app = spec.name.startswith(f"{self.topology.app_id}-")
            if spec.kind is TopicKind.SOURCE and spec.name not in own and not named_by_app:
                LOG.warning(CREATED_SOURCE, spec.name, size)
            else:
                LOG.info(CREATED, spec.name, size)
        await self._check_changelogs()
        await self.cluster.follow(self._names())

    async def _refuse_lost(self, changelogs: set[str]) -> None:
        """Refuse to start when a changelog with state on this disk is missing or was created anew.

        `changelogs`: the changelogs with state on this disk.

        Raises:
            ChangelogLost: still missing after `GONE_AFTER_S`, or created anew.
        """
        began = self.clock.now()
        warned = False
        found = dict[str, bytes | None]()
        while changelogs:
            found = await admin.topic_ids(self.cluster, changelogs)
            missing = sorted(topic for topic, topic_id in found.items() if topic_id is None)
            if not missing or self.clock.now() - began >= GONE_AFTER_S:
                break
            if not warned:
                LOG.warning(ASKED_AGAIN, ", ".join(missing), GONE_AFTER_S)
                warned = True
            await asyncio.sleep(LOOK_AGAIN_S)
        for node in self._tables():
            if (topic := node.changelog) in changelogs:
                before = self.directory.changelog_id(node.name) or NO_ID
                folder = self.directory.stores_of(node.name)
                refuse_lost(node.name, topic, before, found.get(topic, NO_ID), folder)

    async def _warn_of_empty_tables(self, missing: set[str]) -> None:
        """Warn of tables that begin empty although their source topics were read already.

        Such a table is either new, or lost with every copy; this worker cannot distinguish the two.
        """
        lost = [
            (node, plan.topics)
            for plan in self.topology.subtopologies
            for node in plan.stores
            if node.changelog in missing
        ]
        begun = await admin.committed_topics(self.cluster, self.topology.app_id) if lost else set()
        for node, sources in lost:
            if read := sorted(begun.intersection(sources)):
                LOG.warning(
                    "Table %s begins empty: its changelog %s was not there, and %s was read "
                    "already. No action needed if the table is new; else raise the app's version "
                    "to make it again from the start of its topics.",
                    *(node.name, node.changelog, ", ".join(read)),
                )

    async def _check_changelogs(self) -> None:
        """Refuse a changelog that is not compacted, because it loses state sooner or later.

        Raises:
            TopologyError: a changelog is not compacted.
        """
        names = [spec.name for spec in self.topology.topics if spec.kind is TopicKind.CHANGELOG]
        for name, configs in (await admin.topic_configs(self.cluster, names)).items():
            policy = configs.get("cleanup.policy")
            if policy != "compact":
                raise TopologyError(
                    f"changelog is not compacted: {name}: its cleanup.policy is {policy}: "
                    f"kafka-configs --alter --entity-type topics --entity-name {name} "
                    "--add-config cleanup.policy=compact"
                )

    async def without_offsets(self, layout: Layout) -> frozenset[str]:
        """Return the topics of stateless tasks that feed state and have lost all committed offsets.

        The topics of a task count when the group has no offsets for any of their partitions, and
        the state that the task feeds has rows: reading these topics again would count records
        twice.

        The check runs once, before the worker joins the group: at the first start of an app its
        members commit, and make state, while others begin.
        """
        feeding = {
            plan.topics: self.topology.fed(plan)
            for plan in self.topology.subtopologies
            if not plan.stateful and self.topology.fed(plan)
        }
        if not feeding:
            return frozenset()
        committed = await admin.committed_topics(self.cluster, self.topology.app_id)
        if committed - layout.counts.keys():
            return frozenset()
        lost = set[str]()
        for topics, changelogs in feeding.items():
            if committed.isdisjoint(topics) and await self._hold(changelogs, layout):
                lost |= set(topics)
        return frozenset(lost)

    async def _hold(self, topics: Iterable[str], layout: Layout) -> bool:
        """Return whether any of these topics has records."""
        tps = [TopicPartition(topic, n) for topic in topics for n in range(layout.counts[topic])]
        return holds(await admin.bounds(self.cluster, tps))

    # -- while the worker runs

    async def noted(self) -> Presence:
        """Return the topics that exist now, and store the topic ids of this disk's stores."""
        found = await admin.topic_ids(self.cluster, self._names())
        for node in self._tables():
            if node.persistent:
                topic_id = found.get(node.changelog) or NO_ID
                self.directory.remember_changelog(node.name, node.changelog, topic_id)
        self._note_sources(found)
        return Presence(found)

    def _note_sources(self, found: TopicIds) -> None:
        """Store the ids and partition counts of the topics that the app reads.

        Brokers forget the offsets of a deleted topic. Then only these ids show that a topic of the
        same name is another topic.
        """
        read = {topic for plan in self.topology.subtopologies for topic in plan.topics}
        ids = self.directory.source_ids()
        counts = self.directory.source_counts()
        now = {t: topic_id.hex() for t in read if (topic_id := found.get(t)) and topic_id != NO_ID}
        counts = {topic: self.cluster.partitions(topic) for topic in read} | counts
        if now != ids or counts != self.directory.source_counts():
            self.directory.remember_sources(ids | now, counts)

    async def watch(self, presence: Presence, fail: Callable[[StreamsxError], None]) -> None:
        """Watch the topics every `LOOK_EVERY_S` until cancelled.

        `fail` receives the error for a changelog that was created anew.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                found: TopicIds = await admin.topic_ids(self.cluster, self._names())
            except WorldError as error:
                LOG.debug("topics of the app: %s", error)
                continue
            for effect in presence.heard(self.clock.now(), found):
                self._on_absence(effect, fail)
                if effect.anew:  # readers of the topic use the metadata (`tasks/source_watch`)
                    self._note_sources(found)
                    with suppress(BrokerUnreachable):  # a refused fetch refreshes the metadata too
                        await self.cluster.refresh()

    def _on_absence(self, effect: Absence, fail: Callable[[StreamsxError], None]) -> None:
        topic = effect.topic
        nodes = [node for node in self._tables() if node.changelog == topic]
        where = self.directory.stores_of(nodes[0].name) if nodes else ""
        if not effect.anew:
            what = "records sent to it wait: create it again, with as many partitions as it had"
            if topic in self._sources():
                what = f"nothing is read from it, and {what}"
            if nodes:
                what = (
                    f"table {nodes[0].name} is not committed any more, and its tasks wait: "
                    f"{where} may hold its last copy, keep it: stop the workers, and raise the "
                    "app's version to begin without state and from the start of its topics"
                )
            self.journal("error", what=f"topic {topic} is not there any more: {what}", where=topic)
        elif nodes:
            fail(made_anew(topic, nodes[0].name, where))

    def _names(self) -> list[str]:
        return [spec.name for spec in self.topology.topics]

    def _sources(self) -> set[str]:
        return {spec.name for spec in self.topology.topics if spec.kind is TopicKind.SOURCE}

    def _tables(self) -> list[StoreNode]:
        return [node for plan in self.topology.subtopologies for node in plan.stores]
