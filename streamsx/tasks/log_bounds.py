"""Look-ups of log bounds, committed offsets and start positions, repeated until there is an answer.

Not here: the use of bounds and positions by stores and tasks.
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
from streamsx.errors import BrokerUnreachable, StreamsxError, WorldError
from streamsx.journal import LOG
from streamsx.log_sentences import sentence
from streamsx.model import TopicPartition
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.tasks.start_positions import (
    OffsetReset,
    StartPositions,
    holds,
    made_anew,
    other,
    refuse_on_spark,
)

LATEST = "latest"
NO_BOUNDS = "The ends of topics are not known yet: %s. Asking again until the brokers answer."
NO_POSITIONS = "The committed offsets are not known yet: %s. Asking again until there is an answer."


class LogBounds:
    """Bounds and committed offsets of one cluster's partitions.

    Attributes:
        of: returns the bounds of partitions as of now. `run` must be running. A caller may wait for
            any length of time; the caller's owner cancels the wait.
        committed: look-up of the app's group offsets with their metadata, in the same way.
        reset: rule for the start of partitions without an offset.
    """

    def __init__(self, cluster: Cluster, config: Config, reset: OffsetReset | None = None) -> None:
        self._cluster = cluster
        self._app = config.id
        self.reset = reset or OffsetReset(config.consumer_auto_offset_reset == LATEST)
        self.without_offsets: Collection[str] = ()
        """Topics without offsets, read by tasks that feed other tasks' state and keep none."""
        self._stale = False
        """Whether at the last look a leader did not answer, or a partition had none."""
        inquiries = BatchedLookup(self.look, lambda why: LOG.warning(NO_BOUNDS, why))
        self.of = inquiries.of
        self.run = inquiries.run
        self.committed = BatchedLookup(
            partial(admin.committed_now, cluster, config.id),
            lambda why: LOG.info(NO_POSITIONS, why),
        )

    async def begin(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the start offset of each partition without a committed offset."""
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
        """Return the start of each partition: the committed offset, else an offset by the rule.

        Args:
            tps: all partitions that a task reads.
            changelogs: partitions of the task's changelogs.
            task: name of the task in messages.

        Raises:
            StateOnSpark: Spark continues from these offsets.
        """
        texts = await self.committed.of(tps)
        found = {tp: (offset, OffsetMetadata.decode(text)) for tp, (offset, text) in texts.items()}
        refuse_on_spark(self._app, [beside for _, beside in found.values()])
        begin = await self.begin([tp for tp, (at, _) in found.items() if at < 0])
        stop = ""
        if len(begin) == len(found) and await self._lost(found, changelogs):
            choice = self.reset.without_offsets(task, await self.of(found))
            begin = dict(choice.begin)
            stop = choice.why if choice.stops else ""
            if not stop:
                LOG.warning("%s", sentence(choice.why))
        for tp in begin:
            if self.reset.anew(tp.topic, self._cluster.topic_id(tp.topic)):
                LOG.warning("%s", sentence(made_anew(tp, None, begin[tp]).why))
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
        """Return whether a task without offsets has lost them, rather than not committed yet."""
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
                LOG.info(NO_POSITIONS, error)
                await asyncio.sleep(PAUSE_MAX_S)
            else:
                return committed <= self.reset.counts.keys()

    async def _anew(
        self, found: Mapping[TopicPartition, tuple[int, OffsetMetadata]]
    ) -> dict[TopicPartition, int]:
        """Return the start of each partition whose offset is of a deleted topic of that name."""
        if not self._others(found):
            return {}
        with suppress(BrokerUnreachable):  # the bounds are asked for until there is an answer
            await self._cluster.refresh()  # known metadata may be older than those offsets
        begin = {tp: bounds.start for tp, bounds in (await self.of(self._others(found))).items()}
        for tp, start in begin.items():
            LOG.warning("%s", sentence(made_anew(tp, found[tp][0], start).why))
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
        """Return the topic's id of now, else the one committed beside the offset."""
        return self._cluster.topic_id(tp.topic) or (beside and beside.topic_id)

    async def look(
        self, tps: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, Bounds], StreamsxError | None]:
        """Look up the bounds of partitions as of now.

        Returns:
            The bounds of partitions whose leaders answer, and the first error, None without one.
        """
        if self._stale:
            with suppress(BrokerUnreachable):  # the look-up below reports the error
                await self._cluster.refresh()
        found, why = await admin.bounds_now(self._cluster, tps)
        self._stale = why is not None
        return found, why
