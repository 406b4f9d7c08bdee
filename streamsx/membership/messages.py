"""What the control thread tells the data loop, and the one thing it reads of it. Frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamsx.assignor.model import Copy
from streamsx.assignor.wire import AssignmentView
from streamsx.membership import events as e
from streamsx.model import TaskId, TopicPartition


@dataclass(frozen=True, slots=True)
class Published:
    """What the data loop last said of its tasks; a join is built from it."""

    copies: Mapping[TaskId, Copy]
    stalled: frozenset[TaskId] = frozenset()
    stopped: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class Joining:
    """A round begins; `generation` is the one that ends."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class PlanRead:
    """An assignment in full, before its parts."""

    generation: int
    assigned: frozenset[TopicPartition]
    view: AssignmentView
    leader: bool


@dataclass(frozen=True, slots=True)
class PositionsRead:
    """Committed offset and metadata; -1 where nothing is committed. `ticket`: of who asked."""

    ticket: Any
    found: Mapping[TopicPartition, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Counted:
    """Source topics that have other partition counts than before; 0: it is gone."""

    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class IsLeaving:
    """The member is on its way out; monotonic second of its deadline, None without one."""

    deadline: float | None


@dataclass(frozen=True, slots=True)
class Stays:
    """Whoever wanted it to leave has taken that back."""


@dataclass(frozen=True, slots=True)
class Crashed:
    """The thread is over, by a bug or because it could not begin."""

    error: BaseException


ControlMessage = (
    Joining | PlanRead | PositionsRead | Counted | IsLeaving | Stays | Crashed | e.Assigned
    | e.Revoke | e.Lost | e.CommitDone | e.CommitFailed | e.Fatal | e.Left
)  # fmt: skip
