"""Protocol that all kinds of groups share towards the coordinator, and the state of one step. Pure.

`coordinator.GroupKind` lists the kinds. Each kind decides which members are in the group and may
commit. Committed offsets are kept in the same way for all kinds (`offsets`).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from typing import ClassVar, NamedTuple, Protocol

from streamsx.broker.groups import coordinator_events as e
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.metadata_rows import CommittedOffsets, GroupRowKey, GroupRowValue, OffsetValue
from streamsx.protocol.wire import Api


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Limits of groups, named like Kafka's `group.*`; the shortest times are meant for tests."""

    initial_delay_ms: int = 0
    rebalance_timeout_min_ms: int = 10
    session_timeout_min_ms: int = 1
    session_timeout_max_ms: int = 30 * 60 * 1000
    members_max: int = 1000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    metadata_bytes_max: int = 64 << 10
    offset_metadata_bytes_max: int = 4 << 10
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000


class CommitIdentity(NamedTuple):
    """Sender and partitions of a commit; epoch -1 and member id "" stand for no member."""

    member_id: str
    instance_id: str | None
    epoch: int
    """Epoch of the member; in the classic protocol the generation."""
    places: Collection[tuple[str, int]]
    """Partitions of existing topics."""
    version: int
    """Version of the request."""
    staged: bool
    """True within a transaction."""


class CoordinatedGroup(Protocol):
    """Group of any kind. Requests and wall-clock times come in through `step` alone."""

    kind: ClassVar[str]
    """Group type, named as by ListGroups."""
    described_by: ClassVar[Api]
    """Request that describes this kind; other requests do not find the group."""
    id: str
    committed: CommittedOffsets

    def step(
        self, now: float, event: e.ClientRequest | e.BrokerTick | e.ClientGone
    ) -> list[e.Effect]:
        """Apply one event, and return the effects.

        Raises:
            InvalidTransition: The request is impossible in the group's state.
        """

    def load(self, now: float, key: GroupRowKey, value: GroupRowValue) -> list[e.Effect]:
        """Load one persisted row of the group."""

    def keys(self) -> Collection[GroupRowKey]:
        """Return the keys of the group's rows on the disk, without those of committed offsets."""

    def members(self) -> Collection[object]:
        """Return the members."""

    def awaited(self) -> bool:
        """Return whether a client may still join under a member id that was promised."""

    def may_commit(self, now: float, who: CommitIdentity) -> list[e.Effect]:
        """Accept a commit, and return the effects on the group.

        Raises:
            Refused: No partition may be committed.
        """

    def may_fetch(self, member_id: str | None, epoch: int) -> None:
        """Accept a fetch of offsets; None and -1 stand for no member.

        Raises:
            Refused: The member id or the epoch is wrong.
        """

    def reads(self) -> Callable[[str], bool]:
        """Return a function that tests whether any member is subscribed to a topic.

        Raises:
            Refused: The members' subscriptions cannot be known.
        """

    def unused_since(self) -> Callable[[str, OffsetValue], float]:
        """Return a function from topic and offset to the time since which the offset is unused.

        Times are unix ms; inf while a member may use the offset (KIP-211).
        """

    def listed(self) -> ReplyBody:
        """Return the state and the protocol type, as in ListGroups."""

    def described(self) -> ReplyBody:
        """Return the description, as in the reply to `described_by`."""


class GroupTurn:
    """Effects of one step, and the time at which the group wants to be woken."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.now = 0.0
        self.wall_ms = 0
        self.effects: list[e.Effect] = []
        self.wake_at = self.armed = inf  # wake-up time wanted now, and requested already

    def begin(self, now: float) -> None:
        """Begin a step."""
        self.now = now
        self.effects = []

    def over(self) -> list[e.Effect]:
        """End the step, and return the effects; add a Wake if the next wake-up is earlier."""
        if self.wake_at < self.armed:
            self.effects.append(e.Wake(self.group_id, self.wake_at))
        self.armed = self.wake_at
        return self.effects

    def reply(self, waiter: int, body: ReplyBody) -> None:
        """Reply to a request."""
        self.effects.append(e.ClientReply(waiter, body))

    def arm(self, at: float) -> None:
        """Wake the group at this time at the latest."""
        self.wake_at = min(self.wake_at, at)

    def tell(self, event: str, about: str, said: str = "") -> None:
        """Log an event, and a sentence for people if there is one."""
        self.effects.append(e.Story(f"{event} group={self.group_id} {about}", said))
