"""State machine of a task on one worker, as a table.

The states:

CREATED     The worker knows the task and has touched nothing yet. This state lasts for one step.
OPENING     The stores of the task are being opened; committed positions of an active are asked for
            meanwhile. Nothing was processed, so the task can be released at once.
PLACED      The positions of an active came first; the stores are still being opened.
OPENED      The stores are open. Positions of an active may still be asked for. The ends of the
            changelogs are asked for next: after stores and positions for an active, after the
            stores alone for a follower.
RESTORING   Changelog records go into the stores. An active reads up to an end that was read after
            the previous owner's release, a follower until it is near enough. An active in this
            state is down time; a follower is not, because the owner runs elsewhere.
TAILING     A follower is near enough, and goes on reading the changelogs until the plan makes
            the follower active or drops the task. The stores stay open through a promotion.
RUNNING     Records are processed, in this state alone.
STOPPED     The task has met a problem that only people can mend. It processes nothing more, and its
            bodies have ended. The task stays ours, so that no other worker meets the same problem
            at once, until the group gives the task to another member or the worker ends.
SUSPENDED   The group wants the task back, or the task begins anew. The task processes nothing more
            and waits for the last commit. Until then the task is still ours.
ABANDONED   The task was released, lost or renewed while the stores were being opened. They are
            closed as soon as they are open, or cannot be opened.
CLOSING     The task was released, lost or renewed. The stores are being written and closed; the
            group does not wait for that. The newest plan decides what the task becomes then.
CLOSED      The end.

A follower is a learner, for which the group waits, or a standby, for which the group does not wait.
A learner may become a standby at any time, and the reverse, and nothing else changes by that.

Some transitions look odd:

- A promotion passes RESTORING even when nothing is left to read, because only an end read after the
  release counts. So positions are asked for again, and the ends after them. Ends that were read as
  a follower let an active restore, but not run.
- REVOKE in CLOSING answers with a release at once: the task was assigned again while the stores
  closed, and revoked again before they were opened.
- LOST in SUSPENDED answers with a release too: some partitions of the task may be lost while others
  are still wanted back.

Not here: stores, changelog positions (`tasks/store_restore`), the choice of each task's role
(`tasks/task_registry`).
"""

from collections import deque
from enum import Enum, auto
from typing import Final

from streamsx.errors import InvalidTransition
from streamsx.model import Role, TaskId

STORY_STEPS = 200


class TaskState(Enum):
    """State of a task. The first word of a value stands in the journal's `task` events."""

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
        """Return the name of the state in the journal."""
        return self.value.split()[0]

    @property
    def ends(self) -> bool:
        """Return whether the task is closed next, whatever happens."""
        return self in (TaskState.ABANDONED, TaskState.CLOSING)


class TaskEvent(Enum):
    """Event that happens to a task."""

    START = auto()
    STORES_OPEN = auto()
    POSITIONS_KNOWN = auto()
    BEHIND = auto()
    """The ends are known, and something is left to restore."""
    AT_END = auto()
    """The ends are known, and nothing is left to restore, or the task has no state."""
    REACHED_END = auto()
    """Everything up to the end is written (follower: the stores are near enough)."""
    FELL_BEHIND = auto()
    PROMOTE = auto()
    RENEW = auto()
    """The partitions of an active have changed: the task is opened again with the new ones."""
    REVOKE = auto()
    """The group wants the partitions of an active back."""
    DROP = auto()
    """No list of the plan names the follower any more. A follower owns no partitions."""
    SETTLED = auto()
    """A suspended task has nothing left to commit."""
    STOP = auto()
    """The task cannot go on; other tasks can."""
    UNDO = auto()
    """The work since the last commit cannot be committed: the task begins anew from there."""
    LOST = auto()
    """The group went on without this member: nothing more may be committed."""
    FAIL = auto()
    CLOSED = auto()


class TaskEffect(Enum):
    """Action that the owner of the machine has to perform."""

    OPEN = auto()
    PLACE = auto()
    """Ask for the committed positions of the task as of now."""
    READ_ENDS = auto()
    """Ask for the bounds of the task's changelogs as of now."""
    RUN = auto()
    READY = auto()
    """Announce that the learner may be made active."""
    SUSPEND = auto()
    STOP = auto()
    """End the bodies of the task, and report the stop to the group."""
    RELEASE = auto()
    """Release the partitions that the group wants back."""
    FORGET = auto()
    """Drop everything that is not committed."""
    CLOSE = auto()
    ANEW = auto()
    """Open the task again once it is closed."""


Cell = tuple[TaskState | None, tuple[TaskEffect, ...]]
"""Next state, None if the state stays, and the effects in order."""
Transition = tuple[TaskEvent, tuple[TaskState, ...], TaskState | None, tuple[TaskEffect, ...]]
Transitions = tuple[Transition, ...]
"""Rows of the table: an event, the states in which it may happen, and the cell for them."""
_S = TaskState
_E = TaskEvent
_X = TaskEffect
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


def cells(rows: Transitions) -> dict[tuple[TaskEvent, TaskState], Cell]:
    """Return the cell of each event and state."""
    return {(event, at): (then, do) for event, states, then, do in rows for at in states}


TABLE: Final = {
    role: cells(BOTH + (FOLLOWER if role.follows else ACTIVE)) for role in Role
}  # fmt: skip


class TaskStateMachine:
    """State machine of one task; events come in through `step` alone."""

    def __init__(self, task: TaskId, role: Role) -> None:
        self.task = task
        self.role = role
        self.state = TaskState.CREATED
        self.story: deque[tuple[float, TaskEvent, Role, TaskState]] = deque(maxlen=STORY_STEPS)

    def knows(self, event: TaskEvent) -> bool:
        """Return whether the table has a cell for this event in the current state."""
        return (event, self.state) in TABLE[self.role]

    def turn(self, role: Role) -> None:
        """Turn a learner into a standby, or a standby into a learner."""
        assert self.role.follows, f"only followers turn, a promotion is an event: {self.task}"
        self.role = role

    def step(self, now: float, event: TaskEvent) -> tuple[TaskEffect, ...]:
        """Return the effects of one event, in order.

        Raises:
            InvalidTransition: the table has no cell for the event; the message holds the story.
        """
        cell = TABLE[self.role].get((event, self.state))
        if cell is None:
            raise InvalidTransition(
                f"task {self.task}: {event.name} while {self.role.value} and {self.state.value}: "
                f"story: {list(self.story)}"
            )
        self.story.append((now, event, self.role, self.state))
        if event is TaskEvent.PROMOTE:
            self.role = Role.ACTIVE
        then, effects = cell
        self.state = then or self.state
        return effects
