"""What every kind of group is to its coordinator, and what its machine has in hand. Pure.

The kinds are `coordinator.GroupKind`. Each decides who is in the group and who may commit; what
was committed is kept the same way for all of them (`offsets`).
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
    """Limits of groups, named like Kafka's `group.*`. The shortest times are for tests."""

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
    """Who wants to commit, and what: -1 and "" stand for nobody in particular."""

    member_id: str
    instance_id: str | None
    epoch: int
    """The member's epoch; in the classic protocol the generation."""
    places: Collection[tuple[str, int]]
    """Topics that there are, and partitions."""
    version: int
    """Of its request."""
    staged: bool
    """Within a transaction."""


class CoordinatedGroup(Protocol):
    """One group, of any kind. Requests and wall-clock times come in through `step` alone."""

    kind: ClassVar[str]
    """As ListGroups calls it."""
    described_by: ClassVar[Api]
    """The request that describes it; to others it is not there."""
    id: str
    committed: CommittedOffsets

    def step(
        self, now: float, event: e.ClientRequest | e.BrokerTick | e.ClientGone
    ) -> list[e.Effect]:
        """Raises InvalidTransition if a request came through that its state does not know."""

    def load(self, now: float, key: GroupRowKey, value: GroupRowValue) -> list[e.Effect]:
        """One of the rows that were persisted."""

    def keys(self) -> Collection[GroupRowKey]:
        """Of all its rows on disk; what it committed is not among them."""

    def members(self) -> Collection[object]:
        """Who is in it."""

    def awaited(self) -> bool:
        """Whether somebody who is not in it may come under an id that was promised."""

    def may_commit(self, now: float, who: CommitIdentity) -> list[e.Effect]:
        """What it does about a commit that is in order. Raises Refused for all of it."""

    def may_fetch(self, member_id: str | None, epoch: int) -> None:
        """None and -1 stand for nobody in particular. Raises Refused."""

    def reads(self) -> Callable[[str], bool]:
        """Whether a member is subscribed to a topic. Raises Refused where nobody could say."""

    def unused_since(self) -> Callable[[str, OffsetValue], float]:
        """Unix ms since which nobody needs an offset; never (inf) while somebody may (KIP-211)."""

    def listed(self) -> ReplyBody:
        """As ListGroups tells it: state and protocol type."""

    def described(self) -> ReplyBody:
        """As the answer to `described_by` tells it."""


class GroupTurn:
    """What one step puts out, and when the group wants to be woken."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.now = 0.0
        self.wall_ms = 0
        self.effects: list[e.Effect] = []
        self.wake_at = self.armed = inf  # when it wants to be woken, and when it will be

    def begin(self, now: float) -> None:
        """A step."""
        self.now, self.effects = now, []

    def over(self) -> list[e.Effect]:
        """What it puts out. Whoever wants to be woken earlier must say so."""
        if self.wake_at < self.armed:
            self.effects.append(e.Wake(self.group_id, self.wake_at))
        self.armed = self.wake_at
        return self.effects

    def reply(self, waiter: int, body: ReplyBody) -> None:
        """Answers a request."""
        self.effects.append(e.ClientReply(waiter, body))

    def arm(self, at: float) -> None:
        """Something is due then."""
        self.wake_at = min(self.wake_at, at)

    def tell(self, event: str, about: str) -> None:
        """One line for the log."""
        self.effects.append(e.Story(f"{event} group={self.group_id} {about}"))
