"""Container of the parts of one broker, from which the requests in `api/` are answered."""

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
"""Authorized operations in a reply that were not asked for: this broker has no access rights."""
PARTITIONS_AT_ONCE = 1000
"""Partitions that one request may create. Each takes about a millisecond, and all other clients
wait meanwhile. Kafka's own limit is 10,000.
"""


@dataclass(frozen=True, slots=True)
class Service:
    """Parts of one broker."""

    options: Options
    limits: ConnectionLimits
    advertised: tuple[str, int] | None
    """Host and port that clients are given; None: the address at which each connected."""
    meta: MetadataStore
    topics: TopicStore
    groups: CoordinatorRuntime
    flusher: Flusher
    cleaner: Cleaner
    fresh_id: Callable[[], UUID]
    clock: Clock

    def room(self) -> "PartitionRoom":
        """Return the room for new partitions that one request has."""
        left = self.limits.partitions_max - self.topics.partitions
        return PartitionRoom(min(left, max(PARTITIONS_AT_ONCE, self.options.partitions)))


@dataclass(slots=True)
class PartitionRoom:
    """Number of partitions that a request may still create."""

    left: int
