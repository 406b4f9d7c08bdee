"""What the requests in `api/` are answered from: topics, groups, ids, and the broker's options."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from streamsx.broker.connection import ConnectionLimits
from streamsx.broker.flusher import Flusher
from streamsx.broker.meta import Meta
from streamsx.broker.shell import Groups
from streamsx.broker.topics import TopicStore

NODE_ID = 0
CLUSTER_ID = "streamsx"
NO_OPERATIONS = -(2**31)
"""Authorized operations, where they were not asked for: there are no rights here."""


@dataclass(frozen=True, slots=True)
class Options:
    """Of the broker. With `sync` nothing is acknowledged before it is on the disk."""

    sync: bool = False
    auto_create: bool = True
    partitions: int = 1
    """Of a topic for which nobody said how many."""


@dataclass(frozen=True, slots=True)
class Service:
    """One per broker."""

    options: Options
    limits: ConnectionLimits
    meta: Meta
    topics: TopicStore
    groups: Groups
    flusher: Flusher
    fresh_id: Callable[[], UUID]

    @property
    def room(self) -> int:
        """For so many more partitions."""
        return self.limits.partitions_max - self.topics.partitions
