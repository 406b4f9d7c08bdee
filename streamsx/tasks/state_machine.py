"""The life of a task on one worker, as a table.

Every state in two sentences:

CREATED     The worker has been told of the task and has touched nothing yet. It lasts for one step.
OPENING     Its stores are being opened; an active's committed positions are asked for meanwhile.
            Nothing was processed, so it can be let go at once.
PLACED      An active whose positions came first; its stores are still being opened.
OPENED      Its stores are open. An active's positions may still be asked for; behind both, and
            behind a follower's stores alone, the ends of its changelogs are.
RESTORING   Changelog records go into its stores: an active's up to an end that was read after the
            previous owner had let go, a follower's until it is near enough. An active task in this
            state is down time; a follower is not, its owner runs elsewhere.
TAILING     A follower that is near enough; it goes on reading its changelog until the plan makes it
            active or drops it. Its stores stay open through a promotion.
RUNNING     The one state in which records are processed.
STOPPED     Something that only people can mend stands in its way: it processes nothing more, its
            bodies have ended. It stays ours, so that nobody else runs into the same thing at once,
            until the group gives it to somebody else, or its worker ends.
SUSPENDED   The group wants it back, or it begins anew: it processes nothing more and waits for its
            last commit. Until then it is still ours.
ABANDONED   Released, lost or renewed while its stores were being opened: when they are, or cannot
            be, they are closed.
CLOSING     Released, lost or renewed; its stores are being written and closed, off the way of the
            group. What it becomes then is for the newest plan to say.
CLOSED      Final.

A follower is a learner, which the group waits for, or a standby, which it does not; it may become
the other at any time, and nothing else changes by that.

The odd ones. A promotion passes RESTORING even when nothing is left to read, because only an end
read after the release counts: so positions are asked for anew, and the ends behind them. Ends that
were read as a follower let an active restore, and not run. REVOKE in CLOSING answers with a release
at once: the task was given back while it closed, and taken away again before it was opened. LOST in
SUSPENDED answers with one too: a part of it may be lost, and another is still wanted back.

Not here: stores, changelog positions (`tasks/store_restore`), which task should be what
(`tasks/task_registry`).
"""

from collections import deque
from enum import Enum, auto
from typing import Final

from streamsx.errors import InvalidTransition
from streamsx.model import Role, TaskId

STORY_STEPS = 200


class TaskState(Enum):
    """The first word of a value is that of the event `task`."""

    CREATED = "created"
    OPENING = "opening"
    PLACED = "opening with positions"
    OPENED = "opening with stores"
    RESTORING = "restoring"
    TAILING = "tailing"
    RUNNING = "running"
    STOPPED = "stopped"
    SUSPENDED = "suspended"
    ABANDONED = "closing without stores"
    CLOSING = "closing"
    CLOSED = "closed"

    @property
    def word(self) -> str:
        return self.value.split()[0]

    @property
    def ends(self) -> bool:
        """Whatever happens, it is closed."""
        return self in (TaskState.ABANDONED, TaskState.CLOSING)


class Event(Enum):
    """What happens to a task."""

    START = auto()
    STORES_OPEN = auto()
    POSITIONS_KNOWN = auto()
    BEHIND = auto()
    """Ends known; there is something to restore."""
    AT_END = auto()
    """Ends known; nothing to restore, or no state at all."""
    REACHED_END = auto()
    """Everything up to the end is written (follower: is near enough)."""
    FELL_BEHIND = auto()
    PROMOTE = auto()
    RENEW = auto()
    """An active has other partitions: it is opened again with them."""
    REVOKE = auto()
    """The group wants the partitions of an active back."""
    DROP = auto()
    """No list of the plan names the follower any more; it owns nothing."""
    SETTLED = auto()
    """A suspended task has nothing left to commit."""
    STOP = auto()
    """It cannot go on, and the other tasks can."""
    UNDO = auto()
    """What it did since its last commit cannot be committed: it begins anew from there."""
    LOST = auto()
    """The group went on without us: nothing more may be committed."""
    FAIL = auto()
    CLOSED = auto()


class Effect(Enum):
    """What the holder of the task has to do."""

    OPEN = auto()
    PLACE = auto()
    """Ask for its committed positions as of now."""
    READ_ENDS = auto()
    """Ask for the bounds of its changelogs as of now."""
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
    ANEW = auto()
    """When it is closed, it is opened again."""


Cell = tuple[TaskState | None, tuple[Effect, ...]]
"""The next state, None: it stays; and what is to be done."""
Transitions = tuple[tuple[Event, tuple[TaskState, ...], TaskState | None, tuple[Effect, ...]], ...]
"""What happens in which states, and the cell of each."""
_S, _E, _X = TaskState, Event, Effect
_EARLY = _S.OPENING, _S.PLACED
_READS = _S.OPENED, _S.RESTORING
_WORKS = _S.RUNNING, _S.STOPPED
_ENDS = _S.ABANDONED, _S.CLOSING

BOTH: Final[Transitions] = (
    (_E.STORES_OPEN, (_S.ABANDONED,), _S.CLOSING, (_X.CLOSE,)),
    (_E.BEHIND, (_S.OPENED,), _S.RESTORING, ()),
    (_E.RENEW, _ENDS, None, (_X.ANEW,)),
    (_E.REVOKE, _ENDS, None, (_X.RELEASE,)),
    (_E.LOST, _ENDS, None, ()),
    (_E.FAIL, (*_EARLY, *_READS, _S.TAILING, _S.ABANDONED), _S.CLOSING, (_X.CLOSE,)),
    (_E.FAIL, (_S.CLOSING,), None, ()),
    (_E.CLOSED, (_S.CLOSING,), _S.CLOSED, ()),
)
ACTIVE: Final[Transitions] = (
    (_E.START, (_S.CREATED,), _S.OPENING, (_X.OPEN, _X.PLACE)),
    (_E.STORES_OPEN, (_S.OPENING,), _S.OPENED, ()),
    (_E.STORES_OPEN, (_S.PLACED,), _S.OPENED, (_X.READ_ENDS,)),
    (_E.POSITIONS_KNOWN, (_S.OPENING,), _S.PLACED, ()),
    (_E.POSITIONS_KNOWN, _READS, None, (_X.READ_ENDS,)),
    (_E.AT_END, (_S.OPENED,), _S.RUNNING, (_X.RUN,)),
    (_E.REACHED_END, (_S.RESTORING,), _S.RUNNING, (_X.RUN,)),
    (_E.RENEW, _EARLY, _S.ABANDONED, (_X.ANEW,)),
    (_E.RENEW, _READS, _S.CLOSING, (_X.CLOSE, _X.ANEW)),
    (_E.RENEW, _WORKS, _S.SUSPENDED, (_X.SUSPEND, _X.ANEW)),
    (_E.RENEW, (_S.SUSPENDED,), None, (_X.ANEW,)),
    (_E.REVOKE, _EARLY, _S.ABANDONED, (_X.RELEASE,)),
    (_E.REVOKE, _READS, _S.CLOSING, (_X.RELEASE, _X.CLOSE)),
    (_E.REVOKE, _WORKS, _S.SUSPENDED, (_X.SUSPEND,)),
    (_E.REVOKE, (_S.SUSPENDED,), None, ()),
    (_E.STOP, (_S.RUNNING,), _S.STOPPED, (_X.STOP,)),
    (_E.STOP, (_S.SUSPENDED,), None, ()),
    (_E.SETTLED, (_S.SUSPENDED,), _S.CLOSING, (_X.RELEASE, _X.CLOSE)),
    (_E.UNDO, _WORKS, _S.CLOSING, (_X.FORGET, _X.CLOSE, _X.ANEW)),
    (_E.UNDO, (_S.SUSPENDED,), _S.CLOSING, (_X.FORGET, _X.CLOSE, _X.RELEASE)),
    (_E.LOST, _EARLY, _S.ABANDONED, ()),
    (_E.LOST, _READS, _S.CLOSING, (_X.CLOSE,)),
    (_E.LOST, _WORKS, _S.CLOSING, (_X.FORGET, _X.CLOSE)),
    (_E.LOST, (_S.SUSPENDED,), _S.CLOSING, (_X.FORGET, _X.CLOSE, _X.RELEASE)),
    (_E.FAIL, (*_WORKS, _S.SUSPENDED), _S.CLOSING, (_X.FORGET, _X.CLOSE)),
)
FOLLOWER: Final[Transitions] = (
    (_E.START, (_S.CREATED,), _S.OPENING, (_X.OPEN,)),
    (_E.STORES_OPEN, (_S.OPENING,), _S.OPENED, (_X.READ_ENDS,)),
    (_E.AT_END, (_S.OPENED,), _S.RESTORING, ()),
    (_E.REACHED_END, (_S.RESTORING,), _S.TAILING, (_X.READY,)),
    (_E.FELL_BEHIND, (_S.TAILING,), _S.RESTORING, ()),
    (_E.PROMOTE, (_S.OPENING, *_READS), None, (_X.PLACE,)),
    (_E.PROMOTE, (_S.TAILING,), _S.RESTORING, (_X.PLACE,)),
    (_E.DROP, (_S.OPENING,), _S.ABANDONED, ()),
    (_E.DROP, (*_READS, _S.TAILING), _S.CLOSING, (_X.CLOSE,)),
)


def cells(rows: Transitions) -> dict[tuple[Event, TaskState], Cell]:
    """One for each event and state."""
    return {(event, at): (then, do) for event, states, then, do in rows for at in states}


TABLE: Final = {
    role: cells(BOTH + (FOLLOWER if role.follows else ACTIVE)) for role in Role
}  # fmt: skip


class TaskStateMachine:
    """One task; `step` is the only door."""

    def __init__(self, task: TaskId, role: Role) -> None:
        self.task, self.role, self.state = task, role, TaskState.CREATED
        self.story: deque[tuple[float, Event, Role, TaskState]] = deque(maxlen=STORY_STEPS)

    def knows(self, event: Event) -> bool:
        """Its cell is not empty."""
        return (event, self.state) in TABLE[self.role]

    def turn(self, role: Role) -> None:
        """A learner becomes a standby, or the other way round."""
        assert self.role.follows, f"only followers turn, a promotion is an event: {self.task}"
        self.role = role

    def step(self, now: float, event: Event) -> tuple[Effect, ...]:
        """The effects of one event, in order. Raises InvalidTransition with the task's story."""
        cell = TABLE[self.role].get((event, self.state))
        if cell is None:
            raise InvalidTransition(
                f"task {self.task}: {event.name} while {self.role.value} and {self.state.value}: "
                f"story: {list(self.story)}"
            )
        self.story.append((now, event, self.role, self.state))
        if event is Event.PROMOTE:
            self.role = Role.ACTIVE
        then, effects = cell
        self.state = then or self.state
        return effects
