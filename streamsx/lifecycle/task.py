"""The life of a task on one worker, as a table.

Every state in two sentences:

CREATED     The worker has been told of the task and has touched nothing yet. It lasts for one step.
OPENING     Its stores are being opened and the ends of its changelogs asked for; an active also
            waits for its committed positions. Nothing was processed, so it can be let go at once.
RESTORING   Changelog records go into its stores: an active's up to an end that was read after the
            previous owner had let go, a learner's until it is near enough. An active task in this
            state is down time; a learner is not, its owner runs elsewhere.
TAILING     A learner that is near enough; it follows its changelog until the plan makes it active
            or drops it. Its stores stay open through a promotion.
RUNNING     The one state in which records are processed.
STOPPED     Something that only people can mend stands in its way: it processes nothing more, its
            bodies have ended. It stays ours, so that nobody else runs into the same thing at once,
            until the group gives it to somebody else, or its worker ends.
SUSPENDED   The group wants it back, or it begins anew: it processes nothing more and waits for its
            last commit. Until then it is still ours.
CLOSING     Released, lost or renewed; its stores are being written and closed, off the way of the
            group. What it becomes then is for the newest plan to say.
CLOSED      Final.

The odd ones. A promotion passes RESTORING even when nothing is left to read, because only an end
read after the release counts. REVOKE in CLOSING answers with a release at once: the task was
given back while it closed, and taken away again before it was opened.

Not here: stores, changelog positions (`lifecycle/restore`), which task should be what
(`lifecycle/reconcile`).
"""

from collections import deque
from enum import Enum, auto
from typing import Final, NamedTuple

from streamsx.errors import InvalidTransition
from streamsx.model import Role, TaskId

STORY_STEPS = 200


class TaskState(Enum):
    """Values are the words of the event `task`."""

    CREATED = "created"
    OPENING = "opening"
    RESTORING = "restoring"
    TAILING = "tailing"
    RUNNING = "running"
    STOPPED = "stopped"
    SUSPENDED = "suspended"
    CLOSING = "closing"
    CLOSED = "closed"


class Event(Enum):
    """What happens to a task."""

    START = auto()
    OPENED_BEHIND = auto()
    """Stores open, ends known; there is something to restore."""
    OPENED_AT_END = auto()
    """Stores open, ends known; nothing to restore, or no state at all."""
    REACHED_END = auto()
    """Everything up to the end is written (learner: is near enough)."""
    FELL_BEHIND = auto()
    PROMOTE = auto()
    RENEW = auto()
    """An active has other partitions: it is opened again with them."""
    REVOKE = auto()
    """The group wants the partitions of an active back."""
    DROP = auto()
    """No list of the plan names the learner any more; it owns nothing."""
    SETTLED = auto()
    """A suspended task has nothing left to commit."""
    STOP = auto()
    """It cannot go on, and the other tasks can."""
    LOST = auto()
    """The group went on without us: nothing more may be committed."""
    FAIL = auto()
    CLOSED = auto()


class Effect(Enum):
    """What the holder of the task has to do."""

    OPEN = auto()
    READ_END = auto()
    """Read the committed positions and then the ends of the changelogs, once more."""
    RUN = auto()
    READY = auto()
    """A learner may be made active."""
    SUSPEND = auto()
    STOP = auto()
    """End its bodies, and tell the group."""
    RELEASE = auto()
    """Tell the group that what it wants of its partitions is free."""
    FORGET = auto()
    """Drop everything that is not committed."""
    CLOSE = auto()


class Cell(NamedTuple):
    """None as the next state: stays."""

    next: TaskState | None
    effects: tuple[Effect, ...] = ()


_C, _O, _R, _T = TaskState.CREATED, TaskState.OPENING, TaskState.RESTORING, TaskState.TAILING
_RUN, _S, _X, _END = TaskState.RUNNING, TaskState.SUSPENDED, TaskState.CLOSING, TaskState.CLOSED
_STOP = TaskState.STOPPED
STAYS: Final = Cell(None)

BOTH: Final[dict[tuple[Event, TaskState], Cell]] = {
    (Event.START, _C): Cell(_O, (Effect.OPEN,)),
    (Event.OPENED_BEHIND, _O): Cell(_R),
    (Event.OPENED_BEHIND, _X): Cell(None, (Effect.CLOSE,)),
    (Event.OPENED_AT_END, _X): Cell(None, (Effect.CLOSE,)),
    (Event.RENEW, _X): STAYS,
    (Event.REVOKE, _X): Cell(None, (Effect.RELEASE,)),
    (Event.LOST, _X): STAYS,
    (Event.FAIL, _O): Cell(_X, (Effect.CLOSE,)),
    (Event.FAIL, _R): Cell(_X, (Effect.CLOSE,)),
    (Event.CLOSED, _X): Cell(_END),
}
ACTIVE: Final[dict[tuple[Event, TaskState], Cell]] = {
    (Event.OPENED_AT_END, _O): Cell(_RUN, (Effect.RUN,)),
    (Event.REACHED_END, _R): Cell(_RUN, (Effect.RUN,)),
    (Event.RENEW, _O): Cell(_X),
    (Event.RENEW, _R): Cell(_X, (Effect.CLOSE,)),
    (Event.RENEW, _RUN): Cell(_S, (Effect.SUSPEND,)),
    (Event.RENEW, _STOP): Cell(_S, (Effect.SUSPEND,)),
    (Event.RENEW, _S): STAYS,
    (Event.REVOKE, _O): Cell(_X, (Effect.RELEASE,)),
    (Event.REVOKE, _R): Cell(_X, (Effect.RELEASE, Effect.CLOSE)),
    (Event.REVOKE, _RUN): Cell(_S, (Effect.SUSPEND,)),
    (Event.REVOKE, _STOP): Cell(_S, (Effect.SUSPEND,)),
    (Event.REVOKE, _S): STAYS,
    (Event.STOP, _RUN): Cell(_STOP, (Effect.STOP,)),
    (Event.STOP, _S): STAYS,
    (Event.SETTLED, _S): Cell(_X, (Effect.RELEASE, Effect.CLOSE)),
    (Event.LOST, _O): Cell(_X),
    (Event.LOST, _R): Cell(_X, (Effect.CLOSE,)),
    (Event.LOST, _RUN): Cell(_X, (Effect.FORGET, Effect.CLOSE)),
    (Event.LOST, _STOP): Cell(_X, (Effect.FORGET, Effect.CLOSE)),
    (Event.LOST, _S): Cell(_X, (Effect.FORGET, Effect.CLOSE)),
    (Event.FAIL, _RUN): Cell(_X, (Effect.FORGET, Effect.CLOSE)),
    (Event.FAIL, _STOP): Cell(_X, (Effect.FORGET, Effect.CLOSE)),
    (Event.FAIL, _S): Cell(_X, (Effect.FORGET, Effect.CLOSE)),
}
LEARNER: Final[dict[tuple[Event, TaskState], Cell]] = {
    (Event.OPENED_AT_END, _O): Cell(_R),
    (Event.REACHED_END, _R): Cell(_T, (Effect.READY,)),
    (Event.FELL_BEHIND, _T): Cell(_R),
    (Event.PROMOTE, _O): Cell(None, (Effect.READ_END,)),
    (Event.PROMOTE, _R): Cell(None, (Effect.READ_END,)),
    (Event.PROMOTE, _T): Cell(_R, (Effect.READ_END,)),
    (Event.DROP, _O): Cell(_X),
    (Event.DROP, _R): Cell(_X, (Effect.CLOSE,)),
    (Event.DROP, _T): Cell(_X, (Effect.CLOSE,)),
    (Event.FAIL, _T): Cell(_X, (Effect.CLOSE,)),
}
TABLE: Final = {Role.ACTIVE: BOTH | ACTIVE, Role.LEARNER: BOTH | LEARNER}


class Step(NamedTuple):
    """One line of the story; the state is the one before."""

    now: float
    event: Event
    role: Role
    state: TaskState
    effects: tuple[Effect, ...]


class Life:
    """One task; `step` is the only door."""

    def __init__(self, task: TaskId, role: Role) -> None:
        self.task, self.role, self.state = task, role, TaskState.CREATED
        self.story: deque[Step] = deque(maxlen=STORY_STEPS)

    def step(self, now: float, event: Event) -> tuple[Effect, ...]:
        """The effects of one event, in order. Raises InvalidTransition with the task's story."""
        cell = TABLE[self.role].get((event, self.state))
        if cell is None:
            raise InvalidTransition(
                f"task {self.task}: {event.name} while {self.role.value} and {self.state.value}: "
                f"story: {list(self.story)}"
            )
        self.story.append(Step(now, event, self.role, self.state, cell.effects))
        if event is Event.PROMOTE:
            self.role = Role.ACTIVE
        if cell.next is not None:
            self.state = cell.next
        return cell.effects
