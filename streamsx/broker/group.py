"""What the machine of a group of any kind has in hand: limits, who commits, one step. Pure.

The kinds are `coordinator.GroupKind`. Each decides who is in the group and who may commit; what was
committed is kept the same way for all of them (`offsets`).
"""

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from streamsx.broker import events as e
from streamsx.broker.events import ReplyBody


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


class Committer(NamedTuple):
    """Who wants to commit, and what: -1 and "" stand for nobody in particular."""

    member_id: str
    instance_id: str | None
    epoch: int
    """The member's epoch; in the classic protocol the generation."""
    places: Collection[tuple[str, int]]
    """Topics that there are, and partitions."""
    version: int
    """Of its request."""


class Turn:
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
