"""What the broker's machines are told, and what they ask for: frozen values, one union each.

A machine is `step(now, event) -> [effects]`; `now` is in seconds of a monotonic clock. The shell
carries the effects out in their order, and the simulator does the same without disk or sockets.
Nothing here is encoded: bodies are decoded requests with the attributes of the newest version,
replies are dicts for the encoder, rows are the values of `records`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamsx.broker.metadata_rows import Key, Value
from streamsx.protocol.wire import Api

TRANSACTIONS = ""
"""No group's id: ticks of this one are for transactions."""
ReplyBody = dict[str, Any]
"""A reply, by field name; the encoder leaves out what the version of its request does not know."""


class Peer(NamedTuple):
    """Who sent a request: the client id of its header, and the address."""

    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """A decoded request; exactly one Reply bears its `waiter`, unless the connection closes first.

    `fresh_id` becomes part of a member id if one is needed; `wall_ms` is stored, never compared
    with `now`.
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
    """The time that this group's last Wake named has come. Late is allowed, early is harmless."""

    group: str
    wall_ms: int


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The connection of a parked request closed. Its member stays until its session ends."""

    group: str
    waiter: int


@dataclass(frozen=True, slots=True)
class Topics:
    """All topics there are: id and number of partitions, by name. Behind `Load`."""

    topics: Mapping[str, tuple[bytes, int]]


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """These were created, grew or were deleted, in one step: ids and numbers of partitions, or
    None.
    """

    topics: Mapping[str, tuple[bytes, int] | None]


@dataclass(frozen=True, slots=True)
class Load:
    """Every persisted row, in key order, before anything else; or those of a forgotten group."""

    rows: tuple[tuple[Key, Value], ...]


@dataclass(frozen=True, slots=True)
class ExpireOffsets:
    """Once in a while: what nobody has committed for long goes."""

    wall_ms: int


@dataclass(frozen=True, slots=True)
class AddPartition:
    """A transaction's first batch comes to a partition, and says so by itself (KIP-890)."""

    transactional_id: str
    owner: tuple[int, int]
    place: tuple[str, int]
    wall_ms: int


@dataclass(frozen=True, slots=True)
class MarkersWritten:
    """All that a WriteMarkers asked for is there to stay."""

    transactional_id: str
    decision: int
    wall_ms: int


@dataclass(frozen=True, slots=True)
class OpenInLogs:
    """Transactions that the logs found open at the start: whose, and where. Behind `Load`."""

    found: tuple[tuple[tuple[int, int], tuple[str, int]], ...]
    wall_ms: int


TransactionEvent = (
    ClientRequest | BrokerTick | ExpireOffsets | AddPartition | MarkersWritten | OpenInLogs
)
GroupEvent = ClientRequest | BrokerTick | ClientGone
Event = TransactionEvent | GroupEvent | Topics | TopicsChanged | Load


@dataclass(frozen=True, slots=True)
class Persist:
    """One atomic write. What stands behind it happens only after it returned.

    If it fails, the rest of this step is dropped, every open request is answered with 15
    COORDINATOR_NOT_AVAILABLE, and a new machine is loaded from what is on disk.
    """

    puts: tuple[tuple[Key, Value], ...] = ()
    deletes: tuple[Key, ...] = ()


@dataclass(frozen=True, slots=True)
class ClientReply:
    """Answers the request of this waiter, in the version it came in."""

    waiter: int
    body: ReplyBody


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Ends a transaction in these partitions, wherever something of it is open: then
    MarkersWritten, with the same number of the `decision`. `owner`: as markers name it.
    """

    transactional_id: str
    owner: tuple[int, int]
    places: tuple[tuple[str, int], ...]
    decision: int
    commit: bool


@dataclass(frozen=True, slots=True)
class Wake:
    """Send this group a Tick at that time, and forget the earlier Wake of the group."""

    group: str
    at: float


@dataclass(frozen=True, slots=True)
class Story:
    """One decision in one line for the log: the event's name, then key=value."""

    text: str


Effect = Persist | ClientReply | WriteMarkers | Wake | Story
