"""Registry of a worker's tasks: compares the group's plans with the tasks held, and moves each one.

The registry owns a `TaskStateMachine` for each task that it was given and has not closed. The state
of the machine names the event for which a task waits, and the table in `state_machine` the
consequences of each event. The registry adds the knowledge of the plans: promises, revokes to
answer, and the role of a closing task once it is closed.

Order. For an assignment the member sends Revoked, Planned, Assigned. Planned comes before Assigned,
so a follower that no list names is dropped only if the task is not assigned either. Otherwise each
hand-over would close and reopen the store that was just warmed.

A closing task that is assigned again is opened once it is closed. A second assignment during a slow
close names no new task, so the registry keeps the wish to open the task for as long as the plans
name it. Only Assigned makes this wish, never a plan that names the task. The race: m releases 1_0;
before the release arrives, the member applies an assignment that gives 1_0 back, and one that takes
1_0 away; the member need not report the second revoke, because the first is not answered yet; then
the release arrives, and the member gives 1_0 up.

A task that is assigned again while it is suspended is settled, closed and opened again. This case
is rare, so there is no shorter way, which would have to be right too. The same happens to a task
whose partitions change (`task_partitions`), because a topic grows or some partitions are revoked:
no partition of ours stays unread.

A learner announces once per assignment that it is ready; a standby never does, because no member
waits for a standby. A learner with a promise announces nothing: its hand-over is under way. A new
assignment may neither promise nor grant a copy that was ready, because the join was built before;
then the learner announces again, at once. If hand-overs are to wait for all learners
(`together`), they announce when the last one is ready or gone: fewer rebalances, each with more
tasks.

Not here: partitions (tasks only), stores, offsets, the time of a commit (`tasks/commit_cycle`).
"""

from dataclasses import dataclass
from typing import Final

from streamsx.model import Role, TaskId
from streamsx.tasks.state_machine import TaskEffect, TaskEvent, TaskState, TaskStateMachine


@dataclass(frozen=True, slots=True)
class TasksPlanned:
    """Event: an assignment in full, before the `TasksAssigned`.

    No task is in two of the lists, except that `promised` tasks are in another one too.
    """

    active: frozenset[TaskId]
    learners: frozenset[TaskId]
    promised: frozenset[TaskId]
    standbys: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class TasksAssigned:
    """Event: these tasks became ours, or more of their partitions did."""

    tasks: frozenset[TaskId]


@dataclass(frozen=True, slots=True)
class Revoked:
    """Event: the group wants these tasks back.

    Attributes:
        tasks: tasks of which the group wants all partitions or some.
        number: the member's number of the revoke, repeated with each RELEASE.
        kept: tasks of which the group wants only some partitions; the rest is still ours.
    """

    tasks: frozenset[TaskId]
    number: int
    kept: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class TasksLost:
    """Event: these tasks are lost; of those in `kept`, only some partitions are."""

    tasks: frozenset[TaskId]
    kept: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class Happened:
    """Event: something happened to a task, or an effect is answered.

    - STORES_OPEN answers OPEN, maybe while the task is closing already.
    - CLOSED answers CLOSE.
    - FAIL answers OPEN or CLOSE if stores cannot be opened or read. The policy of a task causes
      FAIL too.
    - SETTLED answers SUSPEND.
    - STOP and UNDO happen to a task that runs, or is suspended.
    - POSITIONS_KNOWN answers the newest PLACE.
    - AT_END and BEHIND answer READ_ENDS: nothing, or something, is left to restore.
    - REACHED_END and FELL_BEHIND give the state of the task's stores, each time that may have
      changed: all at the end (active) or near enough (follower) and written, or not.

    Attributes:
        task: the task.
        event: the event of the state machine.
        role: role in which the stores are restored; None for events that are not about a restore.
    """

    task: TaskId
    event: TaskEvent
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """Event: the member is out of the group for good; all tasks still held are closed."""


Event = TasksPlanned | TasksAssigned | Revoked | TasksLost | Ended | Happened


@dataclass(frozen=True, slots=True)
class Do:
    """Effect: do one of these for a task, in its current role.

    - OPEN: make or open the stores of the task.
    - PLACE: ask for the committed offsets as of now; an older PLACE is not answered any more.
    - READ_ENDS: ask for the bounds of the changelogs as of now; not answered after a CLOSE.
    - RUN: make the Task and feed records from the committed positions.
    - READY: announce to the group that this learner may be made active.
    - SUSPEND: feed the task nothing more; SETTLED answers.
    - STOP: end the bodies too; the work is committed all the same.
    - RELEASE: feed the task no more, and release the partitions that the group wants back.
    - FORGET: drop everything that is not committed.
    - CLOSE: write everything committed and close the stores; CLOSED answers.

    Attributes:
        task: the task.
        effect: the effect of the state machine.
        number: number of the `Revoked` that a RELEASE answers; 0 if there was none.

    A release without a number could be taken for the answer to a later revoke: m is busy with user
    code for a second; meanwhile its member is fenced, joins again, is given 1_0 and asked for it
    back; then m's answer to the first revoke arrives, and m goes on to open and run 1_0.
    """

    task: TaskId
    effect: TaskEffect
    number: int = 0


@dataclass(frozen=True, slots=True)
class TaskMoved:
    """Effect: log a transition of a task."""

    task: TaskId
    role: Role
    old: TaskState
    new: TaskState


@dataclass(frozen=True, slots=True)
class Turned:
    """Effect: a learner is a standby from now on, or a standby a learner."""

    task: TaskId
    role: Role


Effect = Do | TaskMoved | Turned


STANDS: Final = frozenset({TaskEvent.REACHED_END, TaskEvent.FELL_BEHIND})
LATE: Final = STANDS | {
    TaskEvent.POSITIONS_KNOWN, TaskEvent.AT_END, TaskEvent.BEHIND, TaskEvent.UNDO,
}  # fmt: skip
"""Events that may come when the task no longer waits for them."""


@dataclass(slots=True)
class RegisteredTask:
    """Task held here: its state machine, and the plans' words about it."""

    machine: TaskStateMachine
    promised: bool = False
    """Whether the group has promised the task to this follower."""
    announced: bool = False
    """Whether this learner has announced that it is ready, since the newest plan."""
    revoke: int = 0
    """Number of the revoke that the next release answers."""
    afterwards: Role | None = None
    """Role in which the task is opened again once it is closed; None if it stays closed."""


class TaskRegistry:
    """Registry of all tasks of one worker; events come in through `step` alone.

    Args:
        together: whether learners announce that they are ready only when all of them are.
    """

    def __init__(self, *, together: bool = False) -> None:
        self._together = together
        self._held: dict[TaskId, RegisteredTask] = {}
        self._now = 0.0
        self._effects: list[Effect] = []

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, task: TaskId) -> bool:
        return task in self._held

    def of(self, task: TaskId) -> TaskStateMachine:
        """Return the state machine of a task, to be read only.

        Raises:
            KeyError: the task is not held.
        """
        return self._held[task].machine

    def tasks(self, *states: TaskState) -> list[TaskId]:
        """Return the tasks in the given states, sorted; all tasks if no state is given."""
        return sorted(t for t, h in self._held.items() if not states or h.machine.state in states)

    def step(self, now: float, event: Event) -> list[Effect]:
        """Return the effects of one event, in order.

        Raises:
            InvalidTransition: the event does not fit a task's state; the message holds the story.
        """
        self._now = now
        self._effects = []
        match event:
            case TasksPlanned():
                self._planned(event)
            case TasksAssigned(tasks):
                for task in sorted(tasks):
                    self._assigned(task)
            case Revoked(tasks, number, kept):
                for task in sorted(tasks):
                    self._revoked(task, number, kept=task in kept)
            case TasksLost(tasks, kept):
                for task in sorted(tasks & self._held.keys()):
                    self._lost(self._held[task], kept=task in kept)
            case Ended():
                self._ended()
            case Happened():
                self._answered(event)
        self._announce_together()
        return self._effects

    def _answered(self, answer: Happened) -> None:
        held = self._held.get(answer.task)
        if held is None:
            return  # the answer is about a task that was closed since
        event = answer.event
        role = answer.role
        older = role is None or role.follows != held.machine.role.follows
        if older and event in STANDS:
            return  # the answer dates from before a promotion
        if older and event is TaskEvent.AT_END:
            event = TaskEvent.BEHIND  # these ends are too old to run on
        if event is TaskEvent.CLOSED:
            self._closed(held)
        elif event not in LATE or held.machine.knows(event):
            self._step(held, event)

    # -- from the group

    def _planned(self, plan: TasksPlanned) -> None:
        for task in sorted(self._held.keys() | plan.learners | plan.standbys):
            role = Role.STANDBY if task in plan.standbys else Role.LEARNER
            held = self._held.get(task) or self._hold(task, role)
            # A task that this plan makes active is assigned in a moment, and announces nothing.
            held.announced = task in plan.active
            held.promised = task in plan.promised
            follows = task in plan.learners or task in plan.standbys
            if held.machine.state.ends:
                kept = held.afterwards if task in plan.active else None
                held.afterwards = role if follows else kept
            elif held.machine.role is Role.ACTIVE or task in plan.active:
                continue
            elif follows:
                self._follows(held, role)
            else:
                self._step(held, TaskEvent.DROP)

    def _follows(self, held: RegisteredTask, role: Role) -> None:
        if held.machine.role is not role:
            held.machine.turn(role)
            self._effects.append(Turned(held.machine.task, role))
        if held.machine.state is TaskState.TAILING:
            self._announce(held)

    def _assigned(self, task: TaskId) -> None:
        held = self._held.get(task)
        if held is None:
            self._hold(task, Role.ACTIVE)
        elif held.machine.role.follows and not held.machine.state.ends:
            self._step(held, TaskEvent.PROMOTE)
        else:
            self._step(held, TaskEvent.RENEW)

    def _revoked(self, task: TaskId, number: int, *, kept: bool) -> None:
        held = self._held.get(task)
        if held is None:  # the task failed and was closed
            self._effects.append(Do(task, TaskEffect.RELEASE, number))
        else:
            held.afterwards = Role.ACTIVE if kept else None
            held.revoke = number
            self._step(held, TaskEvent.REVOKE)

    def _lost(self, held: RegisteredTask, *, kept: bool) -> None:
        if kept:
            held.afterwards = Role.ACTIVE
        elif held.afterwards is Role.ACTIVE:
            held.afterwards = None
        if held.machine.role is Role.ACTIVE or held.machine.state.ends:
            self._step(held, TaskEvent.LOST)

    def _ended(self) -> None:
        for _, held in sorted(self._held.items()):
            held.afterwards = None
            if not held.machine.state.ends:
                follows = held.machine.role.follows
                self._step(held, TaskEvent.DROP if follows else TaskEvent.LOST)

    # -- state machines

    def _closed(self, held: RegisteredTask) -> None:
        self._step(held, TaskEvent.CLOSED)
        del self._held[held.machine.task]
        if held.afterwards is not None:
            promised = held.promised
            self._hold(held.machine.task, held.afterwards).promised = promised

    def _hold(self, task: TaskId, role: Role) -> RegisteredTask:
        held = self._held[task] = RegisteredTask(TaskStateMachine(task, role))
        self._step(held, TaskEvent.START)
        return held

    def _step(self, held: RegisteredTask, event: TaskEvent) -> None:
        alive = held.machine
        task = alive.task
        old = alive.state
        effects = alive.step(self._now, event)
        if alive.state.word != old.word:
            self._effects.append(TaskMoved(task, alive.role, old, alive.state))
        for effect in effects:
            match effect:
                case TaskEffect.READY:
                    self._announce(held)
                case TaskEffect.RELEASE:
                    self._effects.append(Do(task, effect, held.revoke))
                case TaskEffect.ANEW:
                    held.afterwards = Role.ACTIVE
                case _:
                    self._effects.append(Do(task, effect))

    def _announce(self, held: RegisteredTask) -> None:
        waits = held.machine.role is Role.LEARNER
        if waits and not (self._together or held.promised or held.announced):
            held.announced = True
            self._effects.append(Do(held.machine.task, TaskEffect.READY))

    def _announce_together(self) -> None:
        learners = [
            held for _, held in sorted(self._held.items() if self._together else ())
            if held.machine.role is Role.LEARNER and not (held.promised or held.machine.state.ends)
        ]  # fmt: skip
        if all(held.machine.state is TaskState.TAILING for held in learners):
            for held in (held for held in learners if not held.announced):
                held.announced = True
                self._effects.append(Do(held.machine.task, TaskEffect.READY))
