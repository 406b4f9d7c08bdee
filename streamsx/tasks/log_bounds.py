"""Where logs begin and end, and what is committed, asked for until there is an answer; where a task
without a position begins.

Not here: what a store or a task does with it.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial

from streamsx.client import admin
from streamsx.client.admin import Bounds
from streamsx.client.batched_lookup import PAUSE_MAX_S, BatchedLookup
from streamsx.client.cluster import Cluster
from streamsx.config import Config
from streamsx.errors import BrokerUnreachable, StateOnSpark, StreamsxError, WorldError
from streamsx.journal import LOG
from streamsx.model import TopicPartition
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.tasks.start_positions import OffsetReset, StartPositions, holds, made_anew, other

LATEST = "latest"


class LogBounds:
    """Of the partitions of one cluster. `of`: as of now, while `run` runs, however long it takes:
    whoever waits for it is cancelled by its owner. `committed`: offsets of the app's group, with
    their metadata, in the same way. `reset`: where partitions without an offset begin.
    """

    def __init__(self, cluster: Cluster, config: Config, reset: OffsetReset | None = None) -> None:
        self._cluster, self._app = cluster, config.id
        self.reset = reset or OffsetReset(config.consumer_auto_offset_reset == LATEST)
        self.without_offsets: Collection[str] = ()
        """Topics of tasks that feed state and keep none, whose offsets are gone."""
        self._stale = False
        """A leader did not answer, or was none."""
        inquiries = BatchedLookup(self.look, lambda why: LOG.warning("offsets: %s", why))
        self.of, self.run = inquiries.of, inquiries.run
        self.committed = BatchedLookup(
            partial(admin.committed_now, cluster, config.id),
            lambda why: LOG.info("positions: %s", why),
        )

    async def begin(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where partitions begin of which the group has no offset."""
        topic_id = self._cluster.topic_id
        return {
            tp: self.reset.offset(tp, start, end, topic_id(tp.topic))
            for tp, (start, end) in (await self.of(tps)).items()
        }

    async def beginnings(
        self,
        tps: Collection[TopicPartition],
        changelogs: Collection[TopicPartition] = (),
        task: str = "",
    ) -> StartPositions:
        """Return where each partition begins: where the group has committed, else by the rule.

        Args:
            tps: all partitions that a task reads.
            changelogs: those of its stores.
            task: its name, for people.

        Raises:
            StateOnSpark: Spark has gone on with the app's state.
        """
        texts = await self.committed.of(tps)
        found = {tp: (offset, OffsetMetadata.decode(text)) for tp, (offset, text) in texts.items()}
        for uri in filter(None, (beside.spark for _, beside in found.values())):
            raise StateOnSpark(
                f"state was not handed over: {self._app}: Spark has gone on with it, in {uri}: "
                f"streamsx spark handover MODULE --state {uri}"
            )
        begin, stop = await self.begin([tp for tp, (at, _) in found.items() if at < 0]), ""
        if len(begin) == len(found) and await self._lost(found, changelogs):
            choice = self.reset.without_offsets(task, await self.of(found))
            begin, stop = dict(choice.begin), choice.why if choice.stops else ""
            if not stop:
                LOG.warning("%s", choice.why)
        for tp in begin:
            if self.reset.anew(tp.topic, self._cluster.topic_id(tp.topic)):
                LOG.warning("%s", made_anew(tp, None, begin[tp]).why)
        anew = await self._anew(found)
        begin |= anew
        places = {
            tp: (begin.get(tp, offset), beside._replace(topic_id=self._id(tp, beside)))
            for tp, (offset, beside) in found.items()
        }
        for tp in anew:
            places[tp] = anew[tp], OffsetMetadata(found[tp][1].stream_time, topic_id=self._id(tp))
        return StartPositions(places, frozenset(begin), stop)

    async def _lost(
        self, tps: Collection[TopicPartition], changelogs: Collection[TopicPartition]
    ) -> bool:
        """Return whether the offsets of a task that has none are gone, and not to be made yet."""
        lost = {tp.topic for tp in tps} <= set(self.without_offsets)
        if changelogs:
            lost = holds(await self.of(changelogs))
        if not lost or not holds(await self.of(tps)):
            return False
        if all(self.reset.anew(tp.topic, self._cluster.topic_id(tp.topic)) for tp in tps):
            return False
        while True:
            try:
                committed = await admin.committed_topics(self._cluster, self._app)
            except WorldError as error:
                LOG.info("positions: %s", error)
                await asyncio.sleep(PAUSE_MAX_S)
            else:
                return committed <= self.reset.counts.keys()

    async def _anew(
        self, found: Mapping[TopicPartition, tuple[int, OffsetMetadata]]
    ) -> dict[TopicPartition, int]:
        """Return where topics begin that are not those that the group's offsets are of."""
        if not self._others(found):
            return {}
        with suppress(BrokerUnreachable):  # bounds are asked for until there is an answer
            await self._cluster.refresh()  # what is known here may be older than those offsets
        begin = {tp: bounds.start for tp, bounds in (await self.of(self._others(found))).items()}
        for tp, start in begin.items():
            LOG.warning("%s", made_anew(tp, found[tp][0], start).why)
        return begin

    def _others(
        self, found: Mapping[TopicPartition, tuple[int, OffsetMetadata]]
    ) -> list[TopicPartition]:
        return [
            tp
            for tp, (_, beside) in found.items()
            if other(beside.topic_id, self._cluster.topic_id(tp.topic))
        ]

    def _id(self, tp: TopicPartition, beside: OffsetMetadata | None = None) -> str | None:
        """Return the topic's id: as it is now, else as it was."""
        return self._cluster.topic_id(tp.topic) or (beside and beside.topic_id)

    async def look(
        self, tps: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, Bounds], StreamsxError | None]:
        """As of now, of those whose leaders answer; else why they do not."""
        if self._stale:
            with suppress(BrokerUnreachable):  # the question will say so
                await self._cluster.refresh()
        found, why = await admin.bounds_now(self._cluster, tps)
        self._stale = why is not None
        return found, why
