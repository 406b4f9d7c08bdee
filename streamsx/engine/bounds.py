"""Where logs begin and end, asked for until there is an answer; where a task without a position
begins.

Not here: what a store or a task does with it.
"""

import asyncio
from collections.abc import Iterable

from streamsx.config import Config
from streamsx.engine.journal import LOG
from streamsx.errors import WorldError
from streamsx.kafka import admin
from streamsx.kafka.admin import Bounds
from streamsx.kafka.cluster import Cluster
from streamsx.model import TopicPartition

RETRY_S = 0.1


class LogBounds:
    """Of the partitions of one cluster."""

    def __init__(self, cluster: Cluster, config: Config) -> None:
        self._cluster = cluster
        self._latest = config.consumer_auto_offset_reset == "latest"

    async def of(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """As of now. However long it takes: whoever waits for it is cancelled by its owner."""
        wanted = list(tps)
        while True:
            try:
                return await admin.bounds(self._cluster, wanted)
            except WorldError as error:
                LOG.warning("offsets: %s", error)
                await asyncio.sleep(RETRY_S)

    async def begin(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Where to begin without a position, by `consumer_auto_offset_reset`."""
        found = await self.of(tps)
        return {tp: b.high_watermark if self._latest else b.start for tp, b in found.items()}
