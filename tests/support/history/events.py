"""What a history is made of: what clients asked of a broker, and what they were told, in order.

The words are Jepsen's (`jepsen.tests.kafka`): an operation is **invoked**; then it is **ok**, or it
**fails**, which says that it was not done and never will be, or nobody knows (**info**). One that
was never heard of again, since its client was killed, is of that last kind too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from streamsx.model import TopicPartition


class Phase(StrEnum):
    INVOKE, OK, FAIL, INFO = "invoke", "ok", "fail", "info"


class Level(StrEnum):
    """Of isolation. That of a reader never changes."""

    COMMITTED, UNCOMMITTED = "committed", "uncommitted"


class Row(NamedTuple):
    """A record as somebody read it."""

    tp: TopicPartition
    offset: int
    value: str


class Source(NamedTuple):
    """The record from which a transaction of a group made another one."""

    group: str
    tp: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Send:
    """No value is sent twice. `txn`: the transaction it is part of, whose id is no other's.
    `offset`: once it is ok, if the client was told.
    """

    tp: TopicPartition
    value: str
    txn: str | None = None
    offset: int | None = None
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class End:
    """Of a transaction; one that ends without this was left alone, and never committed."""

    txn: str
    commits: bool


@dataclass(frozen=True, slots=True)
class Assign:
    """From where on a reader reads; ok at once. It reads these partitions and no others."""

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Poll:
    """`txn`: the transaction that goes on from what was read."""

    level: Level
    rows: tuple[Row, ...] = ()
    txn: str | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """This reader has read all there was: `ends` are behind the last record, when it asked."""

    level: Level
    ends: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """Of a group's offsets; with `txn` it is done when that is committed."""

    group: str
    offsets: Mapping[TopicPartition, int]
    txn: str | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The question for what a group has committed; partitions without are not in the answer."""

    group: str
    partitions: tuple[TopicPartition, ...]
    offsets: Mapping[TopicPartition, int]


Action = Send | End | Assign | Poll | Drain | Commit | Committed


@dataclass(frozen=True, slots=True)
class Event:
    """`operation`: a number of the client's, the same when it is invoked and when it is over."""

    client: str
    operation: int
    phase: Phase
    action: Action


History = list[Event]
"""In real time: what was over before another thing was invoked stands before it."""
