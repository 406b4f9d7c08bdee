"""Events, effects and worker messages of a group member: frozen values, one union of each kind.

The performer of a `SendRequest` reports its outcome exactly once: as `Reply`, or as `Disconnected`
for the whole connection. After a `Close` no outcome is reported for that connection. A connection
carries its requests in order. The user data of a JoinGroup are built when the `SendRequest` is
performed, once per nonce.

Not here: the reaction to an event (`member`) and the bytes of a request (`requests`).
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum

from streamsx.assignor.claims import Metadata
from streamsx.assignor.wire import AssignmentView
from streamsx.client.transactional_id import TransactionIdentity
from streamsx.model import Offsets, TopicPartition

Partitions = tuple[TopicPartition, ...]
"""Partitions in sorted order."""
AnyPartitions = AbstractSet[TopicPartition]


FOLLOWS = "the group is rebalancing"
"""Join reason of a member that joins again because the group is rebalancing."""


EVICTED = "it did not leave by its deadline"
"""Reason of a leader to remove another member."""


class ConnectionName(Enum):
    """Connections of a member; a broker answers one request per connection at a time."""

    JOIN = "join"
    """JoinGroup and SyncGroup, which may wait for minutes."""
    BEAT = "beat"
    """All other requests."""


class Timer(Enum):
    """Timers of a member; arming a timer again moves the timer."""

    HEARTBEAT = "heartbeat"
    FENCE = "fence"
    FIND = "find"
    BACKOFF = "backoff"
    REVOKE = "revoke"
    COLLECT = "collect"
    DRAIN = "drain"
    STOP = "stop"
    EVICT = "evict"
    STAGE = "stage"


# Requests.


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """JoinGroup request of one round.

    `deadline`: the time until which a leaving member waits for others to take its tasks. `ran`: the
    partitions that an eager member released for this round.
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
    """SyncGroup request; `assignments` by member id come from the leader alone."""

    assignments: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Heartbeat request, which carries only the member's identity."""


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """OffsetCommit request, which carries the member's identity and generation too."""

    offsets: Offsets


@dataclass(frozen=True, slots=True)
class TxnOffsetCommit:
    """TxnOffsetCommit request: offsets that count once the transaction is committed."""

    offsets: Offsets
    transaction: TransactionIdentity


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """LeaveGroup request for this member or for members that are gone; `why` is for people."""

    member_ids: tuple[str, ...]
    why: str


Request = JoinGroup | SyncGroup | Heartbeat | OffsetCommit | TxnOffsetCommit | LeaveGroup


# Answers.


@dataclass(frozen=True, slots=True)
class Joined:
    """JoinGroup answer; only the leader receives `members`.

    With MEMBER_ID_REQUIRED only the member id counts.
    """

    generation: int
    member_id: str
    leader: str
    members: Metadata = ()


@dataclass(frozen=True, slots=True)
class Synced:
    """Assignment from a SyncGroup answer.

    `view`: the leader's data beside the partitions. `deadline`: the deadline of the mark in the
    view, in monotonic seconds.
    """

    partitions: frozenset[TopicPartition]
    view: AssignmentView = AssignmentView()  # noqa: RUF009  # frozen
    deadline: float | None = None


Denied = Mapping[TopicPartition, int]
"""Partitions of a commit that were refused for good, with Kafka's code. The error of the same
answer holds for all other partitions."""


# Events.


@dataclass(frozen=True, slots=True)
class Start:
    """Start of membership; `predecessor`: member id of a dead process with this state directory."""

    predecessor: str | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """Reason to join again, because of news for the leader."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ready:
    """First catch-up of a learner or of a wanted standby within this assignment."""


@dataclass(frozen=True, slots=True)
class Found:
    """Node id of the coordinator; None: unknown at present."""

    node: int | None


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer to a request; `error`: Kafka's code; `body`: decoded answer, None beside an error."""

    request: int
    error: int
    body: Joined | Synced | Denied | None = None


@dataclass(frozen=True, slots=True)
class Disconnected:
    """Connection failure (reset, refused or timed out): all its requests stay unanswered."""

    lane: ConnectionName


@dataclass(frozen=True, slots=True)
class Planned:
    """Answer to `Assign`.

    If the plan `failed`, the assignments return the claims to all members. `evictions`: the members
    to remove, each with its time, while this plan is the newest.
    """

    request: int
    assignments: Mapping[str, bytes]
    failed: bool = False
    evictions: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Released:
    """Release of partitions after a commit, in answer to the `Revoke` of this number."""

    tps: frozenset[TopicPartition]
    number: int


@dataclass(frozen=True, slots=True)
class PartitionsChanged:
    """Source topics with changed partition counts, also for the worker; 0: the topic is gone."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """Request of the worker to commit offsets.

    `generation`: that of the newest `OnAssignment` that the worker has processed. The race: the
    worker loses p and is assigned p again while it is too busy to process either message; its next
    commit of p is an old one. `transaction`: the offsets are staged there, all of them or none.
    """

    id: int
    offsets: Offsets
    generation: int
    transaction: TransactionIdentity | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """Request to leave as soon as other members have taken all tasks, or at the deadline."""

    deadline: float | None


@dataclass(frozen=True, slots=True)
class Stop:
    """Request to release all partitions now and leave; at the deadline without the release.

    `comes_back`: a static member stays a member for the rest of its session.
    """

    deadline: float
    comes_back: bool = False


@dataclass(frozen=True, slots=True)
class Silent:
    """Departure with all partitions lost, because the worker does not answer any more."""

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
    """Lookup of the coordinator at any broker; answered by `Found`."""


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Request to the coordinator.

    After `timeout_s` without an answer the connection is aborted: `Disconnected`. `at`, `member_id`
    and `generation` are the send time and the member's ids at that time; `stable`: the member was
    STABLE then.
    """

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
    """Abort of the connection; its requests, sent or queued, are abandoned."""

    lane: ConnectionName


@dataclass(frozen=True, slots=True)
class Arm:
    """Timer to fire `at`, in monotonic seconds; None disarms the timer."""

    timer: Timer
    at: float | None


@dataclass(frozen=True, slots=True)
class Assign:
    """Request for a plan by the leader; answered by `Planned`, perhaps after its leadership."""

    request: int
    member_id: str
    generation: int
    members: Metadata


@dataclass(frozen=True, slots=True)
class Joining:
    """Start of a round; `generation` is the one that ends."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class OnAssignment:
    """Whole assignment, sent before the messages for its parts.

    `leader`: this member made the plan.
    """

    generation: int
    assigned: Partitions
    view: AssignmentView
    leader: bool = False


@dataclass(frozen=True, slots=True)
class Assigned:
    """Partitions to begin; sent even when empty, because a round has ended."""

    tps: Partitions


@dataclass(frozen=True, slots=True)
class Revoke:
    """Partitions to commit and release; answered by `Released`, for which no round waits.

    An assignment that names a partition again does not undo the revoke: another `Assigned` follows
    the release.
    """

    tps: Partitions
    number: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Partitions to drop without a commit; `why` is for people."""

    tps: Partitions
    why: str = field(default="", compare=False)


class Refusal(Enum):
    """Reason why a whole commit was refused."""

    NOT_OWNED = "none of its partitions is owned"
    ABORTED = "its transaction cannot be committed"
    FENCED = "the group went on without this worker"
    GONE = "this worker has left"


NOT_OURS = 0


@dataclass(frozen=True, slots=True)
class CommitDone:
    """End of a commit.

    `missing`: partitions that are not committed, with NOT_OURS for a lost partition or Kafka's code
    for a refusal for good. `why`: the reason if no partition was committed. `code`: Kafka's code
    for a transaction that cannot be committed.
    """

    id: int
    missing: Mapping[TopicPartition, int] = field(default_factory=dict)
    why: Refusal | None = None
    code: int = 0


@dataclass(frozen=True, slots=True)
class Count:
    metric: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Remember:
    """Member id to write to disk before any request with this id, for a successor process.

    None: no successor needs the id.
    """

    member_id: str | None


@dataclass(frozen=True, slots=True)
class IsLeaving:
    """Departure of the member, repeated when the deadline moves.

    `deadline`: monotonic seconds; None without a deadline. `stays`: the process ends, and the
    static member stays in the group for the rest of its session. `at_once`: all tasks are released
    now, and others have not learned them before.
    """

    deadline: float | None
    stays: bool = False
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Stays:
    """Withdrawal of a request to leave."""


@dataclass(frozen=True, slots=True)
class Fatal:
    """Fatal error: the process must end with an exit code other than 0.

    `code`: Kafka's code, if a broker refused the member.
    """

    why: str
    code: int = 0


@dataclass(frozen=True, slots=True)
class Left:
    """Clean departure from the group.

    `why`: the reason why the session may still run at the coordinator; empty if it does not.
    """

    why: str = ""


ControlMessage = (
    Joining | OnAssignment | Assigned | Revoke | Lost | CommitDone | IsLeaving | Stays | Fatal
    | Left | PartitionsChanged
)  # fmt: skip
"""Messages from the member to the worker."""
Effect = Find | SendRequest | Close | Arm | Assign | Count | Remember | ControlMessage
