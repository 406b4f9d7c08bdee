"""What the requests in `api/` are answered from: all that one broker has."""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from streamsx.broker.groups.runtime import CoordinatorRuntime
from streamsx.broker.log.cleaner import Cleaner
from streamsx.broker.log.flusher import Flusher
from streamsx.broker.metadata_store import MetadataStore
from streamsx.broker.net.client_connection import ConnectionLimits
from streamsx.broker.options import Options
from streamsx.broker.topics import TopicStore
from streamsx.clock import Clock

NODE_ID = 0
CLUSTER_ID = "streamsx"
NO_OPERATIONS = -(2**31)
"""Authorized operations, where they were not asked for: there are no rights here."""
PARTITIONS_AT_ONCE = 1000
"""That one request may make, about a millisecond each: everybody else waits meanwhile. Kafka's own
limit is 10,000.
"""


@dataclass(frozen=True, slots=True)
class Service:
    """One per broker."""

    options: Options
    limits: ConnectionLimits
    advertised: tuple[str, int] | None
    """Where it says that it is; None: where it was reached."""
    meta: MetadataStore
    topics: TopicStore
    groups: CoordinatorRuntime
    flusher: Flusher
    cleaner: Cleaner
    fresh_id: Callable[[], UUID]
    clock: Clock

    def room(self) -> "PartitionRoom":
        """That there is for one request."""
        left = self.limits.partitions_max - self.topics.partitions
        return PartitionRoom(min(left, max(PARTITIONS_AT_ONCE, self.options.partitions)))


@dataclass(slots=True)
class PartitionRoom:
    """For so many more partitions."""

    left: int
