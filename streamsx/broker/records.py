"""The coordinator's rows: what survives a crash of the broker, one key and one value each.

Joins under way and ids not yet used are not here: after a crash their clients ask again.
"""

from dataclasses import dataclass
from typing import NamedTuple


class GroupKey(NamedTuple):
    """The row of a group that ever had a member."""

    group: str


class OffsetKey(NamedTuple):
    """The row of one committed offset."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class MemberValue:
    """One member as its last JoinGroup described it; timeouts in ms, as on the wire."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout: int
    session_timeout: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A generation, and with `synced` also what its leader assigned; members as they joined."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    synced: bool
    members: tuple[MemberValue, ...]


@dataclass(frozen=True, slots=True)
class OffsetValue:
    """Where to read on; `commit_timestamp` in unix ms."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int


Key = GroupKey | OffsetKey
Value = GroupValue | OffsetValue
Committed = dict[tuple[str, int], OffsetValue]
"""What one group committed, by topic and partition."""
