"""Deletes from repartition topics what all commits have behind them.

Nobody reads those records again, and their topics have no retention: without this they grow for as
long as the app lives. The worker that commits a partition deletes in it (KIP-107), with the offsets
that Kafka has already taken.

It is housekeeping: what fails is said, and tried again with the next round. Not here: topics of
users, which they may read from the start whenever they like.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.errors import StreamsxError
from streamsx.journal import LOG
from streamsx.model import TaskId, TopicPartition

PURGE_EVERY_S: Final = 30.0
"""As Kafka Streams' repartition.purge.interval.ms."""


class RepartitionPurge:
    """One per worker. `topics`: those that may be purged."""

    def __init__(
        self, cluster: Cluster, topics: Collection[str], every_s: float = PURGE_EVERY_S
    ) -> None:
        self._cluster, self._topics, self._every_s = cluster, frozenset(topics), every_s
        self._behind: dict[TopicPartition, int] = {}
        """Committed since the last round; nothing is asked for what has not moved."""

    def committed(self, task: TaskId, positions: Mapping[str, int]) -> None:
        """`positions`: next offset per topic, that Kafka has taken."""
        for topic in self._topics & positions.keys():
            self._behind[TopicPartition(topic, task.partition)] = positions[topic]

    async def run(self) -> None:
        """For as long as the worker lives; returns at once when there is nothing to purge."""
        while self._topics:
            await asyncio.sleep(self._every_s)
            due, self._behind = self._behind, {}
            if not due:
                continue
            try:
                await admin.delete_records(self._cluster, due)
            except StreamsxError as error:
                LOG.warning("not purged, next try in %s s: %s", self._every_s, error)
                self._behind = due | self._behind
