"""Where logs begin and end, and what is committed, asked for until there is an answer; where a task
without a position begins.

Not here: what a store or a task does with it.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import partial

from streamsx.config import Config
from streamsx.engine.journal import LOG
from streamsx.errors import BrokerUnreachable, StateOnSpark, StreamsxError
from streamsx.kafka import admin
from streamsx.kafka.admin import Bounds
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.inquiries import Inquiries
from streamsx.lifecycle.metadata import OffsetMetadata
from streamsx.model import TopicPartition


class LogBounds:
    """Of the partitions of one cluster. `of`: as of now, while `run` runs, however long it takes:
    whoever waits for it is cancelled by its owner. `committed`: offsets of the app's group, with
    their metadata, in the same way.
    """

    def __init__(self, cluster: Cluster, config: Config) -> None:
        self._cluster, self._app = cluster, config.id
        self._latest = config.consumer_auto_offset_reset == "latest"
        self._stale = False
        """A leader did not answer, or was none."""
        inquiries = Inquiries(self.look, lambda why: LOG.warning("offsets: %s", why))
        self.of, self.run = inquiries.of, inquiries.run
        self.committed = Inquiries(
            partial(admin.committed_now, cluster, config.id),
            lambda why: LOG.info("positions: %s", why),
        )

    async def begin(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where to begin without a position, by `consumer_auto_offset_reset`."""
        found = await self.of(tps)
        return {tp: b.high_watermark if self._latest else b.start for tp, b in found.items()}

    async def positions(
        self, tps: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, OffsetMetadata]]:
        """Return what is committed, offset and metadata; where nothing is, where to begin. Raises
        StateOnSpark.
        """
        texts = await self.committed.of(tps)
        found = {tp: (offset, OffsetMetadata.decode(text)) for tp, (offset, text) in texts.items()}
        for uri in filter(None, (beside.spark for _, beside in found.values())):
            raise StateOnSpark(
                f"state was not handed over: {self._app}: Spark has gone on with it, in {uri}: "
                f"streamsx spark handover MODULE --state {uri}"
            )
        begin = await self.begin([tp for tp, (offset, _) in found.items() if offset < 0])
        return {tp: (begin.get(tp, offset), beside) for tp, (offset, beside) in found.items()}

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
