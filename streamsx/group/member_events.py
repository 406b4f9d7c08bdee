"""What a member hears, what it asks for and what its worker is told: frozen values, one union each.

Whoever performs a `SendRequest` reports its fate exactly once: `Reply`, or `Disconnected` for its
whole lane; after a `Close` nothing is reported of that lane any more. A lane is one connection, in
order. The user data of a JoinGroup are built when its `SendRequest` is performed, once per nonce.

Not here: what follows from them (member.py) and what they look like in bytes.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum

from streamsx.assignor.claims import Metadata
from streamsx.assignor.wire import AssignmentView
from streamsx.model import TopicPartition

Partitions = tuple[TopicPartition, ...]
"""Sorted."""
AnyPartitions = AbstractSet[TopicPartition]


Offsets = Mapping[TopicPartition, tuple[int, str]]
"""The next offset to read, and what the committer wants to find beside it."""


FOLLOWS = "the group is rebalancing"
"""The reason of those who join again because somebody else did."""


class ConnectionName(Enum):
    """One connection each: a broker answers one request per connection at a time."""

    JOIN = "join"
    """JoinGroup and SyncGroup, which may wait for minutes."""
    BEAT = "beat"
    """All others."""


class Timer(Enum):
    """What may be armed; arming again moves it."""

    HEARTBEAT = "heartbeat"
    FENCE = "fence"
    FIND = "find"
    BACKOFF = "backoff"
    REVOKE = "revoke"
    COLLECT = "collect"
    DRAIN = "drain"
    STOP = "stop"
    EVICT = "evict"


# Requests.


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """`deadline`: until when a leaving member waits for others to take its tasks. `ran`: what an
    eager member has let go of for this round.
    """

    claims: Partitions
    owned_generation: int
    nonce: int
    leaving: bool
    deadline: float | None
    reason: str
    ran: Partitions = ()


@dataclass(frozen=True, slots=True)
class SyncGroup:
    """`assignments`: per member id; of the leader alone, empty from all others."""

    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing is said but who says it."""


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """`member_ids`: itself, or others that are gone; `why`: for people."""

    member_ids: tuple[str, ...]
    why: str


Request = JoinGroup | SyncGroup | Heartbeat | OffsetCommit | LeaveGroup


# Answers.


@dataclass(frozen=True, slots=True)
class Joined:
    """`members`: for the leader alone. With MEMBER_ID_REQUIRED only the member id counts."""

    generation: int
    member_id: str
    leader: str
    members: Metadata = ()


@dataclass(frozen=True, slots=True)
class Synced:
    """An assignment: what the leader says beside the partitions is the `view`; `deadline` is that
    of its mark, in the member's time."""

    partitions: frozenset[TopicPartition]
    view: AssignmentView = AssignmentView()  # noqa: RUF009  # frozen
    deadline: float | None = None


Denied = Mapping[TopicPartition, int]
"""Of a commit: partitions that were refused for good, by Kafka's code; the answer's error is what
the others were told."""


# Events.


@dataclass(frozen=True, slots=True)
class Start:
    """`predecessor`: member id of a dead process that held this state directory."""

    predecessor: str | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """Something the leader must hear of."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ready:
    """A learner or wanted standby has caught up, for the first time in this assignment."""


@dataclass(frozen=True, slots=True)
class Found:
    """The coordinator's node id; None: nobody knows it now."""

    node: int | None


@dataclass(frozen=True, slots=True)
class Reply:
    """`error`: Kafka's code; `body`: what its request asks for, None beside an error."""

    request: int
    error: int
    body: Joined | Synced | Denied | None = None


@dataclass(frozen=True, slots=True)
class Disconnected:
    """All requests of the lane are unanswered and over: reset, refused, or out of time."""

    lane: ConnectionName


@dataclass(frozen=True, slots=True)
class Planned:
    """Answers `Assign`. If it `failed`, the assignments return everybody's claims. `evictions`:
    which members to remove and when, if this plan is still the newest.
    """

    request: int
    assignments: Mapping[str, bytes]
    failed: bool = False
    evictions: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Released:
    """The worker has committed and let go, as the `Revoke` of this number wanted."""

    tps: frozenset[TopicPartition]
    number: int


@dataclass(frozen=True, slots=True)
class PartitionsChanged:
    """Source topics that have other partition counts than before; 0: it is gone. The worker is told
    too."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """`generation`: of the newest `OnAssignment` that the worker has taken in: "it loses p and is
    given p again, and hears of neither, busy as it is; its next commit of p is an old one"."""

    id: int
    offsets: Offsets
    generation: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Go as soon as others have taken everything, or at the deadline."""

    deadline: float | None


@dataclass(frozen=True, slots=True)
class Stop:
    """Release everything now, then go; at the deadline without. `comes_back`: a static member
    stays one, for as long as its session."""

    deadline: float
    comes_back: bool = False


@dataclass(frozen=True, slots=True)
class Silent:
    """The worker does not answer any more: out, as lost."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    timer: Timer


Event = (
    Start | Want | Ready | Found | Reply | Disconnected | Planned | Released
    | PartitionsChanged | Commit | Leave | Stop | Silent | Tick
)  # fmt: skip


# Effects.


@dataclass(frozen=True, slots=True)
class Find:
    """Ask any broker for the coordinator; answered by `Found`."""


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Unanswered for `timeout_s`, the lane is aborted: `Disconnected`. Its member was known as
    `member_id` in this `generation` when it was sent, `at`; `stable`: and in STABLE."""

    request: int
    node: int
    lane: ConnectionName
    timeout_s: float
    body: Request
    at: float
    member_id: str
    generation: int
    stable: bool


@dataclass(frozen=True, slots=True)
class Close:
    """Abort the lane's connection; its requests, sent or waiting, are abandoned."""

    lane: ConnectionName


@dataclass(frozen=True, slots=True)
class Arm:
    """None: not any more."""

    timer: Timer
    at: float | None


@dataclass(frozen=True, slots=True)
class Assign:
    """Make the plan, as this leader; answered by `Planned`, when it may be none any more."""

    request: int
    member_id: str
    generation: int
    members: Metadata


@dataclass(frozen=True, slots=True)
class Joining:
    """A round begins; `generation` is the one that ends."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class OnAssignment:
    """The whole assignment, before the callbacks for its parts. `leader`: this member's plan."""

    generation: int
    assigned: Partitions
    view: AssignmentView
    leader: bool = False


@dataclass(frozen=True, slots=True)
class Assigned:
    """Begin. Also when empty: a round has ended."""

    tps: Partitions


@dataclass(frozen=True, slots=True)
class Revoke:
    """Commit and let go, then say `Released`; nobody waits for it. An assignment that names the
    partition again takes nothing back: after the release comes another `Assigned`."""

    tps: Partitions
    number: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Not ours any more: let go without a commit. `why`: for people."""

    tps: Partitions
    why: str = field(default="", compare=False)


class Refusal(Enum):
    """Why nothing of a commit was taken."""

    NOT_OWNED = "none of its partitions is owned"
    FENCED = "the group went on without this member"
    GONE = "this member has left"


NOT_OURS = 0


@dataclass(frozen=True, slots=True)
class CommitDone:
    """`missing`: what is not committed: NOT_OURS any more, or refused by the broker for good, with
    Kafka's code. `why`: nothing of it was taken."""

    id: int
    missing: Mapping[TopicPartition, int] = field(default_factory=dict)
    why: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Count:
    metric: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Remember:
    """To disk, before anything is sent with this id: a successor of this process will need it.
    None: it will not."""

    member_id: str | None


@dataclass(frozen=True, slots=True)
class IsLeaving:
    """The member is on its way out; monotonic second of its deadline, None without one. Repeated
    when the deadline moves.
    """

    deadline: float | None


@dataclass(frozen=True, slots=True)
class Stays:
    """Whoever wanted it to leave has taken that back."""


@dataclass(frozen=True, slots=True)
class Fatal:
    """The process must end, not 0. `code`: Kafka's, if a broker said it."""

    why: str
    code: int = 0


@dataclass(frozen=True, slots=True)
class Left:
    """Out of the group, cleanly; `why` its session may run on there, if it may."""

    why: str = ""


ControlMessage = (
    Joining | OnAssignment | Assigned | Revoke | Lost | CommitDone | IsLeaving | Stays | Fatal
    | Left | PartitionsChanged
)  # fmt: skip
"""What the worker hears."""
Effect = Find | SendRequest | Close | Arm | Assign | Count | Remember | ControlMessage
