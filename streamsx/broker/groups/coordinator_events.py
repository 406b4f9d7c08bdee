"""Events and effects of the broker's machines: frozen values, one union of each.

A machine is a function `step(now, event) -> [effects]`, with `now` in seconds of a monotonic clock.
The shell carries out the effects in their order; the simulator does the same without disk or
sockets.

No value here is encoded. Bodies are decoded requests with the attributes of the newest version,
replies are dicts for the encoder, and rows are the values of `metadata_rows`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamsx.broker.metadata_rows import Key, Value
from streamsx.protocol.wire import Api

TRANSACTIONS = ""
"""Group id in ticks for transactions; no group has this id."""
ReplyBody = dict[str, Any]
"""Reply by field name; the encoder omits fields that the request's version lacks."""


class Peer(NamedTuple):
    """Sender of a request: the client id of the header, and the address."""

    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """Decoded request.

    Exactly one ClientReply carries this `waiter`, unless the connection closes first. `fresh_id`
    becomes part of a member id if one is needed. `wall_ms` is stored, never compared with `now`.
    """

    waiter: int
    api: Api
    version: int
    peer: Peer
    body: Any
    fresh_id: str
    wall_ms: int


@dataclass(frozen=True, slots=True)
class BrokerTick:
    """Timer: the time of the group's last Wake has come. Late is allowed, early is harmless."""

    group: str
    wall_ms: int


@dataclass(frozen=True, slots=True)
class ClientGone:
    """Closed connection of a parked request. The member stays until its session ends."""

    group: str
    waiter: int


@dataclass(frozen=True, slots=True)
class Topics:
    """All existing topics: id and number of partitions, by name. Comes after `Load`."""

    topics: Mapping[str, tuple[bytes, int]]


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """Topics that were created, grew or were deleted in one step.

    `topics` holds id and number of partitions by name; None for a deleted topic.
    """

    topics: Mapping[str, tuple[bytes, int] | None]


@dataclass(frozen=True, slots=True)
class Load:
    """All persisted rows in key order, before any other event; or those of a forgotten group."""

    rows: tuple[tuple[Key, Value], ...]


@dataclass(frozen=True, slots=True)
class ExpireOffsets:
    """Periodic request to delete offsets that were last committed long ago."""

    wall_ms: int


@dataclass(frozen=True, slots=True)
class AddPartition:
    """Request of a transaction's first batch to add its partition by itself (KIP-890)."""

    transactional_id: str
    owner: tuple[int, int]
    place: tuple[str, int]
    wall_ms: int


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """Completion of a WriteMarkers: all markers are durable."""

    transactional_id: str
    decision: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class OpenInLogs:
    """Open transactions that the logs found at the start: owner and partition. After `Load`."""

    found: tuple[tuple[tuple[int, int], tuple[str, int]], ...]
    wall_ms: int


TransactionEvent = (
    ClientRequest | BrokerTick | ExpireOffsets | AddPartition | MarkersWritten | OpenInLogs
)
GroupEvent = ClientRequest | BrokerTick | ClientGone
Event = TransactionEvent | GroupEvent | Topics | TopicsChanged | Load


@dataclass(frozen=True, slots=True)
class Persist:
    """Atomic write. The effects after it happen only once the write has returned.

    If the write fails, the rest of the step is dropped, every open request is answered with 15
    COORDINATOR_NOT_AVAILABLE, and a new machine is loaded from the disk.
    """

    puts: tuple[tuple[Key, Value], ...] = ()
    deletes: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientReply:
    """Reply to the request of this waiter, in the version of the request."""

    waiter: int
    body: ReplyBody


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Order to end a transaction in these partitions, where it is still open.

    MarkersWritten follows, with the same `decision` number. `owner` is the producer id and epoch of
    the markers.
    """

    transactional_id: str
    owner: tuple[int, int]
    places: tuple[tuple[str, int], ...]
    decision: int
    commit: bool


@dataclass(frozen=True, slots=True)
class Wake:
    """Order to send this group a BrokerTick at that time, in place of the group's earlier Wake."""

    group: str
    at: float


@dataclass(frozen=True, slots=True)
class Story:
    """Decision as one log line: the event's name, then key=value, at DEBUG.

    `said`: the decision as a sentence for people; empty if it is one step of many.
    """

    text: str
    said: str = ""


Effect = Persist | ClientReply | WriteMarkers | Wake | Story
