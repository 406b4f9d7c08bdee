"""What one worker holds, against what the group wants of it: plans in, the lives of tasks out.

It owns a `Life` for each task that it was handed and has not closed. What a task waits for is its
state, and what an event makes of it stands in the table of `task`; here is what only the plans
know: who is promised, whose release was asked for, and what a closing task becomes.

Order. The member says of an assignment: Revoked, Planned, Assigned. Planned comes before
Assigned, so a follower that no list names is dropped only if the task is not assigned either; else
each hand-over would close and reopen the store it has just warmed.

A closing task that is assigned again is opened when it is closed; a second assignment during a slow
close names nothing new, so that wish is kept for as long as the plans name the task. Only Assigned
makes the wish, never a plan that names it: m releases 1_0; before that arrives the member applies
an assignment that gives 1_0 back, and one that takes it away, which it need not say because the
first revoke is not answered yet; then it hears the release and gives 1_0 up.

A task that is given back while it is suspended is settled, closed and opened again: it is rare, and
one way less that has to be right. So is a task whose partitions change (`owned`), by growth of a
topic or because some of them are taken away: nothing that is ours stays unread.

Readiness of a learner is announced once per assignment; nobody waits for a standby. A learner that
is promised its task announces nothing: its hand-over is under way. A new assignment that neither
promises nor grants a copy that was ready (the join was built before it was) makes it announce
again, at once. Where a hand-over is to wait for all of them (`together`), they announce when the
last one is ready, or is no more: fewer rebalances, each with more in it.

Not here: partitions (tasks only), stores, offsets, when a commit is due (`tasks/commit_cycle`).
"""

from dataclasses import dataclass
from typing import Final

from streamsx.model import Role, TaskId
from streamsx.tasks import state_machine as life
from streamsx.tasks.state_machine import TaskState, TaskStateMachine


@dataclass(frozen=True, slots=True)
class TasksPlanned:
    """An assignment in full, before its `TasksAssigned`. No task is in two of the lists, but those
    that were `promised` are in another one too.
    """

    active: frozenset[TaskId]
    learners: frozenset[TaskId]
    promised: frozenset[TaskId]
    standbys: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class TasksAssigned:
    """These became ours, or more of them did."""

    tasks: frozenset[TaskId]


@dataclass(frozen=True, slots=True)
class Revoked:
    """The group wants these back. `number`: the member's, to be repeated with each RELEASE. Of some
    it wants only a part: what is `kept` is still ours.
    """

    tasks: frozenset[TaskId]
    number: int
    kept: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class TasksLost:
    """A part of them, where the rest is `kept`."""

    tasks: frozenset[TaskId]
    kept: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class Happened:
    """What has become of a task, or of an effect:

    STORES_OPEN, FAIL and CLOSED answer OPEN and CLOSE: FAIL where stores cannot be opened or read,
    and by a task's policy. STORES_OPEN may come while the task is closing. SETTLED answers SUSPEND.
    STOP and UNDO are of a task that runs, or is suspended. POSITIONS_KNOWN answers the newest
    PLACE; AT_END and BEHIND answer READ_ENDS: nothing, or something, is left to restore.
    REACHED_END and FELL_BEHIND say how its stores stand, each time that may have changed: all at
    the end (active) or near enough (follower) and written, or not. `role`: as what they are
    restored.
    """

    task: TaskId
    event: life.Event
    role: Role | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The member is out of the group for good: what is still held is closed."""


Event = TasksPlanned | TasksAssigned | Revoked | TasksLost | Ended | Happened


@dataclass(frozen=True, slots=True)
class Do:
    """What is to be done about a task, in the role that it has by now; one of these:

    OPEN: make or open its stores. PLACE: ask for its committed offsets as of now; nothing is
    answered to an older one. READ_ENDS: ask
    for the bounds of its changelogs as of now; nothing is answered after a CLOSE. RUN: make the
    task and feed it from its committed positions. READY: tell the group that this learner may be
    made active. SUSPEND: feed it nothing more, answered by SETTLED. STOP: its bodies end too; what
    it has done is committed all the same. RELEASE: feed it no more, and tell the group that what it
    wanted of it is free. FORGET: drop everything that is not committed. CLOSE: write what is
    committed, close its stores, answered by CLOSED.

    `number`: of the `Revoked` that a RELEASE answers, 0 where nothing was wanted.

    A release without a number could be taken for the answer to a later revoke: m is busy with user
    code for a second; meanwhile its member is fenced, joins again, is given 1_0 and asked for it
    back; then m's answer to the first revoke arrives, and m goes on to open and run 1_0.
    """

    task: TaskId
    effect: life.Effect
    number: int = 0


@dataclass(frozen=True, slots=True)
class TaskMoved:
    """A transition, for the event log."""

    task: TaskId
    role: Role
    old: TaskState
    new: TaskState


@dataclass(frozen=True, slots=True)
class Turned:
    """A learner is a standby from now on, or a standby a learner."""

    task: TaskId
    role: Role


Effect = Do | TaskMoved | Turned


STANDS: Final = frozenset({life.Event.REACHED_END, life.Event.FELL_BEHIND})
LATE: Final = STANDS | {life.Event.POSITIONS_KNOWN, life.Event.AT_END, life.Event.BEHIND}
"""Answers, which may come when nobody waits for them any more."""


@dataclass(slots=True)
class RegisteredTask:
    """A task, and what the plans have said of it."""

    life: TaskStateMachine
    promised: bool = False
    """The group has given its word that this follower is next."""
    announced: bool = False
    revoke: int = 0
    """Number of the revoke that its release answers."""
    afterwards: Role | None = None
    """What it is when it is closed."""


class TaskRegistry:
    """All tasks of one worker; `step` is the only door. `together`: its learners announce that they
    are ready when all of them are.
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
        """Read only. Raises KeyError for a task that is not held."""
        return self._held[task].life

    def tasks(self, *states: TaskState) -> list[TaskId]:
        """In order; all of them when no state is named."""
        return sorted(t for t, h in self._held.items() if not states or h.life.state in states)

    def step(self, now: float, event: Event) -> list[Effect]:
        """The effects of one event, in order. Raises InvalidTransition with the task's story."""
        self._now, self._effects = now, []
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
            return  # asked for a holding that is over
        told, role = answer.event, answer.role
        older = role is None or role.follows != held.life.role.follows
        if older and told in STANDS:
            return  # of before a promotion
        if older and told is life.Event.AT_END:
            told = life.Event.BEHIND  # too old to run on
        if told is life.Event.CLOSED:
            self._closed(held)
        elif told not in LATE or held.life.knows(told):
            self._step(held, told)

    # -- from the group

    def _planned(self, plan: TasksPlanned) -> None:
        for task in sorted(self._held.keys() | plan.learners | plan.standbys):
            role = Role.STANDBY if task in plan.standbys else Role.LEARNER
            held = self._held.get(task) or self._hold(task, role)
            # What is active by this plan is assigned in a moment, and asks for nothing.
            held.announced, held.promised = task in plan.active, task in plan.promised
            follows = task in plan.learners or task in plan.standbys
            if held.life.state.ends:
                kept = held.afterwards if task in plan.active else None
                held.afterwards = role if follows else kept
            elif held.life.role is Role.ACTIVE or task in plan.active:
                continue
            elif follows:
                self._follows(held, role)
            else:
                self._step(held, life.Event.DROP)

    def _follows(self, held: RegisteredTask, role: Role) -> None:
        if held.life.role is not role:
            held.life.turn(role)
            self._effects.append(Turned(held.life.task, role))
        if held.life.state is TaskState.TAILING:
            self._announce(held)

    def _assigned(self, task: TaskId) -> None:
        held = self._held.get(task)
        if held is None:
            self._hold(task, Role.ACTIVE)
        elif held.life.role.follows and not held.life.state.ends:
            self._step(held, life.Event.PROMOTE)
        else:
            self._step(held, life.Event.RENEW)

    def _revoked(self, task: TaskId, number: int, *, kept: bool) -> None:
        held = self._held.get(task)
        if held is None:  # it failed and was closed
            self._effects.append(Do(task, life.Effect.RELEASE, number))
        else:
            held.afterwards, held.revoke = Role.ACTIVE if kept else None, number
            self._step(held, life.Event.REVOKE)

    def _lost(self, held: RegisteredTask, *, kept: bool) -> None:
        if kept:
            held.afterwards = Role.ACTIVE
        elif held.afterwards is Role.ACTIVE:
            held.afterwards = None
        if held.life.role is Role.ACTIVE or held.life.state.ends:
            self._step(held, life.Event.LOST)

    def _ended(self) -> None:
        for _, held in sorted(self._held.items()):
            held.afterwards = None
            if not held.life.state.ends:
                follows = held.life.role.follows
                self._step(held, life.Event.DROP if follows else life.Event.LOST)

    # -- lives

    def _closed(self, held: RegisteredTask) -> None:
        self._step(held, life.Event.CLOSED)
        del self._held[held.life.task]
        if held.afterwards is not None:
            promised = held.promised
            self._hold(held.life.task, held.afterwards).promised = promised

    def _hold(self, task: TaskId, role: Role) -> RegisteredTask:
        held = self._held[task] = RegisteredTask(TaskStateMachine(task, role))
        self._step(held, life.Event.START)
        return held

    def _step(self, held: RegisteredTask, event: life.Event) -> None:
        alive = held.life
        task, old = alive.task, alive.state
        effects = alive.step(self._now, event)
        if alive.state.word != old.word:
            self._effects.append(TaskMoved(task, alive.role, old, alive.state))
        for effect in effects:
            match effect:
                case life.Effect.READY:
                    self._announce(held)
                case life.Effect.RELEASE:
                    self._effects.append(Do(task, effect, held.revoke))
                case life.Effect.ANEW:
                    held.afterwards = Role.ACTIVE
                case _:
                    self._effects.append(Do(task, effect))

    def _announce(self, held: RegisteredTask) -> None:
        waits = held.life.role is Role.LEARNER
        if waits and not (self._together or held.promised or held.announced):
            held.announced = True
            self._effects.append(Do(held.life.task, life.Effect.READY))

    def _announce_together(self) -> None:
        learners = [
            held for _, held in sorted(self._held.items() if self._together else ())
            if held.life.role is Role.LEARNER and not (held.promised or held.life.state.ends)
        ]  # fmt: skip
        if all(held.life.state is TaskState.TAILING for held in learners):
            for held in (held for held in learners if not held.announced):
                held.announced = True
                self._effects.append(Do(held.life.task, life.Effect.READY))
