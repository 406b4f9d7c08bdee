"""Events of a history: what clients asked of a broker and what it answered, in order.

The words are Jepsen's (`jepsen.tests.kafka`). An operation is **invoked**. Then it is **ok**; or it
**fails**: it was not done and never will be; or its outcome is unknown (**info**). The operation of
a killed client is of the last kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from streamsx.model import TopicPartition


class Phase(StrEnum):
    INVOKE, OK, FAIL, INFO = "invoke", "ok", "fail", "info"


class Level(StrEnum):
    """Isolation level of a reader; it never changes."""

    COMMITTED, UNCOMMITTED = "committed", "uncommitted"


class Row(NamedTuple):
    """Record as a reader got it."""

    tp: TopicPartition
    offset: int
    value: str


class Source(NamedTuple):
    """Record from which a transaction of a group made another record."""

    group: str
    tp: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send of a value that is sent once only. `txn`: its transaction, by a unique id; `offset`:
    once it is ok, if the client knows it.
    """

    tp: TopicPartition
    value: str
    txn: str | None = None
    offset: int | None = None
    source: Source | None = None


@dataclass(frozen=True, slots=True)
class End:
    """End of a transaction. One without this event was abandoned, and never committed."""

    txn: str
    commits: bool


@dataclass(frozen=True, slots=True)
class Assign:
    """Start offsets of a reader; ok at once. It reads these partitions and no others."""

    positions: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Poll:
    """Poll of a reader. `txn`: the transaction that continues from these records."""

    level: Level
    rows: tuple[Row, ...] = ()
    txn: str | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """Reader that has read everything: `ends` are after the last records when it asked."""

    level: Level
    ends: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit of a group's offsets; with `txn` it is done when that transaction is committed."""

    group: str
    offsets: Mapping[TopicPartition, int]
    txn: str | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """Request for a group's committed offsets; partitions without one are not in the answer."""

    group: str
    partitions: tuple[TopicPartition, ...]
    offsets: Mapping[TopicPartition, int]


Action = Send | End | Assign | Poll | Drain | Commit | Committed


@dataclass(frozen=True, slots=True)
class Event:
    """Event. `operation`: number of the client's, the same at invocation and end."""

    client: str
    operation: int
    phase: Phase
    action: Action


History = list[Event]
"""In real time: what was over before another thing was invoked stands before it."""
