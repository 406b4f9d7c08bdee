"""Purge of repartition topics: deletes the records before the committed offsets.

No task reads those records again, and their topics have no retention: without the purge they grow
for as long as the app lives. The worker that commits a partition deletes the records (KIP-107), up
to the offset that Kafka has already taken.

The purge is housekeeping: a failure is logged, and tried again with the next round. Not here:
topics of users, which they may read from the start whenever they like.
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
"""Interval of the purge, the same as Kafka Streams' repartition.purge.interval.ms."""


class RepartitionPurge:
    """Purge of one worker; `topics` are those that may be purged."""

    def __init__(
        self, cluster: Cluster, topics: Collection[str], every_s: float = PURGE_EVERY_S
    ) -> None:
        self._cluster = cluster
        self._topics = frozenset(topics)
        self._every_s = every_s
        self._behind: dict[TopicPartition, int] = {}
        """Offsets committed since the last round; a partition that has not moved is left alone."""

    def committed(self, task: TaskId, positions: Mapping[str, int]) -> None:
        """Note the positions of a task: the next offset of each topic, which Kafka has taken."""
        for topic in self._topics & positions.keys():
            self._behind[TopicPartition(topic, task.partition)] = positions[topic]

    async def run(self) -> None:
        """Purge every interval until cancelled; return at once if no topic may be purged."""
        while self._topics:
            await asyncio.sleep(self._every_s)
            due = self._behind
            self._behind = {}
            if not due:
                continue
            try:
                await admin.delete_records(self._cluster, due)
            except StreamsxError as error:
                LOG.warning(
                    "Records of repartition topics that are done are not deleted: %s. Next try in "
                    "%g s.",
                    error, self._every_s,
                )  # fmt: skip
                self._behind = due | self._behind
