"""tasks/task_registry.py: how a worker follows its plans, as stories and at random."""

import random
from collections import deque
from collections.abc import Callable

import pytest

from streamsx.model import Role, TaskId, TopicPartition
from streamsx.tasks.state_machine import TaskEffect, TaskEvent, TaskState
from streamsx.tasks.task_partitions import TaskPartitions
from streamsx.tasks.task_registry import (
    Do,
    Effect,
    Ended,
    Event,
    Happened,
    Revoked,
    TaskMoved,
    TaskRegistry,
    TasksAssigned,
    TasksLost,
    TasksPlanned,
    Turned,
)

T, U = TaskId(1, 0), TaskId(1, 1)
STORES_OPEN, SETTLED, CLOSED = TaskEvent.STORES_OPEN, TaskEvent.SETTLED, TaskEvent.CLOSED
STOPPED, UNDO, FAIL = TaskEvent.STOP, TaskEvent.UNDO, TaskEvent.FAIL
RUN, READY, SUSPEND = TaskEffect.RUN, TaskEffect.READY, TaskEffect.SUSPEND
STOP, FORGET, CLOSE = TaskEffect.STOP, TaskEffect.FORGET, TaskEffect.CLOSE
OPEN, PLACE, READ_ENDS = TaskEffect.OPEN, TaskEffect.PLACE, TaskEffect.READ_ENDS
RELEASE, POSITIONS_KNOWN = TaskEffect.RELEASE, TaskEvent.POSITIONS_KNOWN


def tasks(*some: TaskId) -> frozenset[TaskId]:
    return frozenset(some)


def tp(topic: str, task: TaskId) -> TopicPartition:
    """Return a partition of the topic of each sub-topology."""
    return TopicPartition(f"{topic}{task.subtopology}", task.partition)


def task_of(at: TopicPartition) -> TaskId:
    return TaskId(int(at.topic[1:]), at.partition)


def plan(
    active: frozenset[TaskId] = tasks(),
    learners: frozenset[TaskId] = tasks(),
    promised: frozenset[TaskId] = tasks(),
    standbys: frozenset[TaskId] = tasks(),
) -> TasksPlanned:
    return TasksPlanned(active, learners, promised, standbys)


def ends_known(task: TaskId, role: Role, *, behind: bool) -> Happened:
    return Happened(task, TaskEvent.BEHIND if behind else TaskEvent.AT_END, role)


def restored(task: TaskId, role: Role, *, done: bool) -> Happened:
    return Happened(task, TaskEvent.REACHED_END if done else TaskEvent.FELL_BEHIND, role)


def run(holdings: TaskRegistry, *events: Event) -> list[Effect]:
    """Return the effects of the last event, without lines of the log."""
    effects: list[Effect] = []
    for event in events:
        effects = holdings.step(0.0, event)
    return [effect for effect in effects if not isinstance(effect, TaskMoved)]


def running() -> TaskRegistry:
    holdings = TaskRegistry()
    run(
        holdings,
        plan(tasks(T)),
        TasksAssigned(tasks(T)),
        Happened(T, STORES_OPEN),
        Happened(T, POSITIONS_KNOWN),
    )
    assert run(holdings, ends_known(T, Role.ACTIVE, behind=False)) == [Do(T, RUN)]
    return holdings


def tailing() -> TaskRegistry:
    holdings = TaskRegistry()
    run(
        holdings,
        plan(learners=tasks(T)),
        Happened(T, STORES_OPEN),
        ends_known(T, Role.LEARNER, behind=True),
    )
    assert run(holdings, restored(T, Role.LEARNER, done=True)) == [Do(T, READY)]
    return holdings


def test_active_reads_ends_after_stores_open_and_positions_known() -> None:
    holdings = TaskRegistry()
    assert run(holdings, TasksAssigned(tasks(T))) == [Do(T, OPEN), Do(T, PLACE)]
    assert run(holdings, Happened(T, STORES_OPEN)) == []
    assert run(holdings, Happened(T, POSITIONS_KNOWN)) == [Do(T, READ_ENDS)]
    assert run(holdings, ends_known(T, Role.ACTIVE, behind=True)) == []
    assert run(holdings, restored(T, Role.ACTIVE, done=True)) == [Do(T, RUN)]


def test_stopped_task_is_released_like_a_running_one() -> None:
    holdings = running()
    assert run(holdings, Happened(T, STOPPED)) == [Do(T, STOP)]
    assert holdings.tasks(TaskState.STOPPED) == [T]
    assert run(holdings, plan(tasks(T))) == []
    assert run(holdings, Revoked(tasks(T), 7)) == [Do(T, SUSPEND)]
    assert run(holdings, Happened(T, STOPPED)) == []
    assert run(holdings, Happened(T, SETTLED)) == [Do(T, RELEASE, 7), Do(T, CLOSE)]


def test_a_stopped_task_that_is_lost_is_forgotten() -> None:
    holdings = running()
    assert run(holdings, Happened(T, STOPPED), TasksLost(tasks(T))) == [Do(T, FORGET), Do(T, CLOSE)]


def test_undone_task_reopens_from_committed_positions() -> None:
    holdings = running()
    assert run(holdings, Happened(T, UNDO)) == [Do(T, FORGET), Do(T, CLOSE)]
    assert run(holdings, Happened(T, CLOSED)) == [Do(T, OPEN), Do(T, PLACE)]


def test_undone_stopped_task_reopens_too() -> None:
    holdings = running()
    assert run(holdings, Happened(T, STOPPED), Happened(T, UNDO)) == [Do(T, FORGET), Do(T, CLOSE)]
    assert run(holdings, Happened(T, CLOSED)) == [Do(T, OPEN), Do(T, PLACE)]


def test_undone_revoked_task_is_released_and_not_reopened() -> None:
    holdings = running()
    run(holdings, Revoked(tasks(T), 7))
    assert run(holdings, Happened(T, UNDO)) == [Do(T, FORGET), Do(T, CLOSE), Do(T, RELEASE, 7)]
    assert run(holdings, Happened(T, CLOSED)) == []


def test_learner_keeps_store_through_hand_over() -> None:
    holdings = tailing()
    assert run(holdings, plan(learners=tasks(T), promised=tasks(T))) == []
    assert run(holdings, plan(active=tasks(T))) == []
    assert run(holdings, TasksAssigned(tasks(T))) == [Do(T, PLACE)]
    assert run(holdings, Happened(T, POSITIONS_KNOWN)) == [Do(T, READ_ENDS)]
    assert run(holdings, restored(T, Role.ACTIVE, done=True)) == [Do(T, RUN)]


def test_ready_learner_announces_again_when_passed_over() -> None:
    holdings = tailing()
    assert run(holdings, plan(learners=tasks(T))) == [Do(T, READY)]


def learning(task: TaskId) -> tuple[Event, ...]:
    return Happened(task, STORES_OPEN), ends_known(task, Role.LEARNER, behind=True)


def test_learners_in_together_mode_announce_together() -> None:
    holdings, both = TaskRegistry(together=True), tasks(T, U)
    run(holdings, plan(learners=both))
    for task in both:
        assert run(holdings, *learning(task)) == []
    assert run(holdings, restored(T, Role.LEARNER, done=True)) == []
    assert run(holdings, restored(T, Role.LEARNER, done=False)) == []
    assert run(holdings, restored(U, Role.LEARNER, done=True)) == []  # T has fallen behind
    assert run(holdings, restored(T, Role.LEARNER, done=True)) == [Do(T, READY), Do(U, READY)]
    assert run(holdings, restored(T, Role.LEARNER, done=False)) == []
    assert run(holdings, restored(T, Role.LEARNER, done=True)) == []  # once per assignment
    assert run(holdings, plan(learners=both)) == [Do(T, READY), Do(U, READY)]


def test_learner_does_not_wait_for_dropped_or_promised_learners() -> None:
    holdings, both = TaskRegistry(together=True), tasks(T, U)
    run(holdings, plan(learners=both), *learning(T), *learning(U))
    assert run(holdings, restored(T, Role.LEARNER, done=True)) == []
    assert run(holdings, plan(learners=both, promised=tasks(U))) == [Do(T, READY)]
    dropped = run(holdings, plan(learners=tasks(T)))
    assert dropped[-1] == Do(T, READY)
    assert Do(U, CLOSE) in dropped


def test_a_learner_announces_once_per_assignment() -> None:
    holdings = tailing()
    run(holdings, restored(T, Role.LEARNER, done=False))
    assert run(holdings, restored(T, Role.LEARNER, done=True)) == []


def following() -> TaskRegistry:
    """Return a standby with a small lag."""
    holdings = TaskRegistry()
    run(
        holdings,
        plan(standbys=tasks(T)),
        Happened(T, STORES_OPEN),
        ends_known(T, Role.STANDBY, behind=True),
    )
    assert run(holdings, restored(T, Role.STANDBY, done=True)) == []
    assert run(holdings, plan(standbys=tasks(T))) == []
    return holdings


def test_standby_turned_learner_announces_when_ready() -> None:
    holdings = following()
    assert run(holdings, plan(learners=tasks(T))) == [Turned(T, Role.LEARNER), Do(T, READY)]
    assert run(holdings, plan(standbys=tasks(T))) == [Turned(T, Role.STANDBY)]
    run(holdings, restored(T, Role.LEARNER, done=False))  # said before it turned
    assert holdings.of(T).state is TaskState.RESTORING
    assert run(holdings, plan(learners=tasks(T))) == [Turned(T, Role.LEARNER)]
    assert run(holdings, restored(T, Role.STANDBY, done=True)) == [Do(T, READY)]


def test_standby_keeps_store_when_owner_dies() -> None:
    holdings = following()
    assert run(holdings, plan(active=tasks(T))) == []
    assert run(holdings, TasksAssigned(tasks(T))) == [Do(T, PLACE)]
    assert run(holdings, Happened(T, POSITIONS_KNOWN)) == [Do(T, READ_ENDS)]
    assert run(holdings, restored(T, Role.STANDBY, done=True)) == []  # of before
    assert run(holdings, restored(T, Role.ACTIVE, done=True)) == [Do(T, RUN)]


def test_learner_does_not_wait_for_standby() -> None:
    holdings = TaskRegistry(together=True)
    run(
        holdings, plan(learners=tasks(T), standbys=tasks(U)), *learning(T), Happened(U, STORES_OPEN)
    )
    assert run(holdings, restored(T, Role.LEARNER, done=True)) == [Do(T, READY)]


def test_released_task_may_reopen_as_standby() -> None:
    holdings = running()
    run(holdings, Revoked(tasks(T), 7))
    assert run(holdings, Happened(T, SETTLED)) == [Do(T, RELEASE, 7), Do(T, CLOSE)]
    assert run(holdings, plan(standbys=tasks(T))) == []
    assert run(holdings, Happened(T, CLOSED)) == [Do(T, OPEN)]
    assert holdings.of(T).role is Role.STANDBY


def test_ends_read_as_learner_do_not_let_active_run() -> None:
    holdings = TaskRegistry()
    run(holdings, plan(learners=tasks(T)), Happened(T, STORES_OPEN), TasksAssigned(tasks(T)))
    assert run(holdings, Happened(T, POSITIONS_KNOWN)) == [Do(T, READ_ENDS)]
    assert run(holdings, ends_known(T, Role.LEARNER, behind=False)) == []
    assert run(holdings, restored(T, Role.LEARNER, done=True)) == []
    assert run(holdings, restored(T, Role.ACTIVE, done=True)) == [Do(T, RUN)]


def test_revoked_task_is_released_after_last_commit() -> None:
    holdings = running()
    assert run(holdings, Revoked(tasks(T), 7)) == [Do(T, SUSPEND)]
    assert run(holdings, plan()) == []
    assert run(holdings, Happened(T, SETTLED)) == [Do(T, RELEASE, 7), Do(T, CLOSE)]
    run(holdings, Happened(T, CLOSED))
    assert T not in holdings


def test_task_revoked_while_stores_open_closes_once_open() -> None:
    holdings = TaskRegistry()
    run(holdings, TasksAssigned(tasks(T)))
    assert run(holdings, Revoked(tasks(T), 7)) == [Do(T, RELEASE, 7)]
    assert run(holdings, Happened(T, STORES_OPEN)) == [Do(T, CLOSE)]


def test_task_revoked_before_ends_are_known_closes_at_once() -> None:
    holdings = TaskRegistry()
    run(holdings, TasksAssigned(tasks(T)), Happened(T, STORES_OPEN))
    assert run(holdings, Revoked(tasks(T), 7)) == [Do(T, RELEASE, 7), Do(T, CLOSE)]


def test_task_given_back_while_closing_reopens() -> None:
    holdings = running()
    run(
        holdings,
        Revoked(tasks(T), 7),
        Happened(T, SETTLED),
        plan(tasks(T)),
        TasksAssigned(tasks(T)),
    )
    assert run(holdings, Happened(T, CLOSED)) == [Do(T, OPEN), Do(T, PLACE)]


def test_task_revoked_again_while_closing_is_released_at_once() -> None:
    holdings = running()
    run(
        holdings,
        Revoked(tasks(T), 7),
        Happened(T, SETTLED),
        plan(tasks(T)),
        TasksAssigned(tasks(T)),
    )
    assert run(holdings, Revoked(tasks(T), 7)) == [Do(T, RELEASE, 7)]
    run(holdings, Happened(T, CLOSED))
    assert T not in holdings


def test_plan_during_slow_close_decides_next_role() -> None:
    """The first plan gives the task back, the second makes it a learner: nothing new is
    assigned.
    """
    holdings = running()
    run(
        holdings,
        Revoked(tasks(T), 7),
        Happened(T, SETTLED),
        plan(tasks(T)),
        TasksAssigned(tasks(T)),
    )
    run(holdings, TasksLost(tasks(T)), plan(learners=tasks(T)))
    assert run(holdings, Happened(T, CLOSED)) == [Do(T, OPEN)]
    assert holdings.of(T).role is Role.LEARNER


def test_fenced_worker_drops_active_tasks_and_keeps_learners() -> None:
    holdings = running()
    run(holdings, plan(tasks(T), learners=tasks(U)), Happened(U, STORES_OPEN))
    assert run(holdings, TasksLost(tasks(T))) == [Do(T, FORGET), Do(T, CLOSE)]
    assert holdings.of(U).state is TaskState.OPENED


def test_stores_failing_to_open_while_closing_are_closed() -> None:
    holdings = TaskRegistry()
    run(holdings, TasksAssigned(tasks(T)), TasksLost(tasks(T)))
    assert run(holdings, Happened(T, FAIL)) == [Do(T, CLOSE)]


def test_end_closes_every_task() -> None:
    holdings = running()
    run(holdings, plan(tasks(T), learners=tasks(U)), Happened(U, STORES_OPEN))
    assert run(holdings, Ended()) == [Do(T, FORGET), Do(T, CLOSE), Do(U, CLOSE)]


def test_running_task_given_more_partitions_reopens() -> None:
    """Topic b grows beside a: the task was promoted while it ran, which no table knows."""
    holdings = running()
    assert run(holdings, plan(tasks(T)), TasksAssigned(tasks(T))) == [Do(T, SUSPEND)]
    assert run(holdings, Happened(T, SETTLED)) == [Do(T, RELEASE, 0), Do(T, CLOSE)]
    assert run(holdings, Happened(T, CLOSED)) == [Do(T, OPEN), Do(T, PLACE)]


def test_task_losing_some_partitions_reopens_with_rest() -> None:
    holdings = running()
    assert run(holdings, Revoked(tasks(T), 7, kept=tasks(T))) == [Do(T, SUSPEND)]
    assert run(holdings, Happened(T, SETTLED)) == [Do(T, RELEASE, 7), Do(T, CLOSE)]
    assert run(holdings, Happened(T, CLOSED)) == [Do(T, OPEN), Do(T, PLACE)]
    assert run(holdings, Happened(T, STORES_OPEN), TasksLost(tasks(T), kept=tasks(T))) == [
        Do(T, CLOSE)
    ]
    assert run(holdings, Happened(T, CLOSED)) == [Do(T, OPEN), Do(T, PLACE)]


def test_revoked_task_losing_another_partition_is_still_released() -> None:
    """a-0 is revoked; then b-0 is assigned, and lost while the task is being settled. a-0 was never
    released, and its next owner waited until it was lost too.
    """
    owned = TaskPartitions(task_of)
    a, b = tp("a", T), tp("b", T)
    holdings = TaskRegistry()
    run(
        holdings,
        plan(tasks(T)),
        owned.assigned([a]),
        Happened(T, STORES_OPEN),
        Happened(T, POSITIONS_KNOWN),
    )
    run(holdings, ends_known(T, Role.ACTIVE, behind=False), owned.revoked([a], 24))
    run(holdings, plan(tasks(T)), owned.assigned([b]))
    assert run(holdings, owned.lost([b])) == [Do(T, FORGET), Do(T, CLOSE), Do(T, RELEASE, 24)]
    assert owned.released(T, 24) == [(frozenset({a}), 24)]
    assert run(holdings, Happened(T, CLOSED)) == []


Said = Callable[[TaskPartitions], Event]
"""A word of the member, as the worker takes it."""


class Member:
    """Small model of the group: its events reach the worker in order, and late.

    Its topics are `a`, and `b`, which grows and shrinks.
    """

    def __init__(self, seed: int, everything: list[TaskId]) -> None:
        self.random, self.everything = random.Random(f"{seed}/member"), everything
        self.topics = random.Random(f"{seed}/topics")
        self.there = {tp("a", task) for task in everything}
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.owned: frozenset[TopicPartition] = frozenset()
        self.revoking: dict[TopicPartition, int] = {}
        self.number = 0
        self.learners = self.promised = self.standbys = tasks()
        self.follows = random.Random(f"{seed}/follows")
        self.said: deque[Said] = deque()
        self.heard: deque[tuple[frozenset[TopicPartition], int]] = deque()

    def some(self, share: float, but: frozenset[TaskId] = tasks()) -> frozenset[TaskId]:
        return frozenset(
            t for t in self.everything if t not in but and self.random.random() < share
        )

    def assign(self) -> None:
        self.there ^= {tp("b", task) for task in self.everything if self.topics.random() < 0.2}
        active = self.some(0.5)
        self.assigned = frozenset(at for at in self.there if task_of(at) in active)
        self.learners = self.some(0.5, but=active.union(map(task_of, self.owned)))
        revoked = self.owned - self.assigned - self.revoking.keys()
        new = self.assigned - self.owned
        self.number += 1
        self.revoking |= dict.fromkeys(revoked, self.number)
        self.owned |= new
        self.promised = self.some(0.3) & self.learners
        self.standbys = frozenset(t for t in sorted(self.learners) if self.follows.random() < 0.3)
        self.learners -= self.standbys
        planned = TasksPlanned(active, self.learners, self.promised, self.standbys)
        if revoked:
            number = self.number
            self.said.append(lambda owned: owned.revoked(revoked, number))
        self.said.append(lambda _: planned)
        self.said.append(lambda owned: owned.assigned(new))

    def lose(self) -> None:
        """Lose all partitions at once, or some that were not released in time."""
        share = self.topics.choice((0.3, 1.0))
        lost = frozenset(at for at in sorted(self.owned) if self.topics.random() < share)
        if lost:
            self.said.append(lambda owned: owned.lost(lost))
        self.owned, self.assigned = self.owned - lost, self.assigned - lost
        self.revoking = {at: n for at, n in self.revoking.items() if at not in lost}

    def hear(self) -> None:
        released, number = self.heard.popleft()
        over = {at for at in released if self.revoking.get(at) == number}
        for at in over:
            del self.revoking[at]
        back = over & self.assigned
        self.owned -= over - back
        if back:
            self.said.append(lambda owned: owned.assigned(back))


class Shell:
    """Shell that answers effects in a random order, as a worker would, and checks the
    invariants.
    """

    def __init__(self, seed: int, member: Member) -> None:
        self.random, self.member = random.Random(seed), member
        self.holdings = TaskRegistry(together=seed % 3 == 0)
        self.stops = random.Random(f"stops {seed}")
        self.stopped: set[TaskId] = set()
        self.owned = TaskPartitions(task_of)
        self.todo: list[Event] = []
        self.open: set[TaskId] = set()
        self.asked: dict[TaskId, frozenset[TopicPartition]] = {}
        """When its positions were asked for last."""
        self.reads: dict[TaskId, frozenset[TopicPartition]] = {}
        """By the newest positions."""
        self.runs: set[TaskId] = set()
        self.ready: set[TaskId] = set()

    def feed(self, event: Event) -> None:
        if isinstance(event, Happened) and event.event is POSITIONS_KNOWN:
            self.reads[event.task] = self.asked[event.task]
        for effect in self.holdings.step(0.0, event):
            if isinstance(effect, Do) and effect.effect is READY:
                self.ready.add(effect.task)
            self.perform(effect)
        assert set(self.holdings.tasks(TaskState.RUNNING)) == self.runs
        self.stopped &= set(self.holdings.tasks(TaskState.STOPPED))

    def perform(self, effect: Effect) -> None:
        match effect:
            case Do(task, TaskEffect.OPEN):
                assert task not in self.open, f"{task} opened twice"
                self.open.add(task)
                self.todo.append(Happened(task, STORES_OPEN))
            case Do(task, TaskEffect.PLACE):
                known = Happened(task, POSITIONS_KNOWN)
                self.asked[task] = self.owned.of(task)
                self.todo = [*(e for e in self.todo if e != known), known]
            case Do(task, TaskEffect.READ_ENDS):
                role = self.holdings.of(task).role
                self.todo.append(ends_known(task, role, behind=self.random.random() < 0.5))
                self.todo.append(restored(task, role, done=True))
            case Do(task, TaskEffect.RUN):
                assert task in self.open
                self.runs.add(task)
            case Do(task, TaskEffect.SUSPEND):
                self.runs.discard(task)
                self.todo.append(Happened(task, SETTLED))
            case Do(task, TaskEffect.STOP):
                self.runs.discard(task)
                self.stopped.add(task)
            case Do(task, TaskEffect.FORGET):
                self.runs.discard(task)
                self.todo = [e for e in self.todo if e != Happened(task, SETTLED)]
            case Do(task, TaskEffect.RELEASE, number):
                assert task not in self.runs
                self.member.heard += self.owned.released(task, number)
            case Do(task, TaskEffect.CLOSE):
                assert task in self.open, f"{task} closed and was not open"
                assert task not in self.runs
                self.open.discard(task)
                self.todo = [e for e in self.todo if not answers_ends(e, task)]
                self.todo.append(Happened(task, CLOSED))

    def step(self) -> None:
        draw = self.random.random()
        if self.runs and self.stops.random() < 0.05:
            self.feed(Happened(self.stops.choice(sorted(self.runs)), UNDO))
        if self.runs and self.stops.random() < 0.05:
            self.feed(Happened(self.stops.choice(sorted(self.runs)), STOPPED))
        if self.todo and draw < 0.5:
            self.feed(self.todo.pop(self.random.randrange(len(self.todo))))
        elif self.member.said and draw < 0.7:
            self.feed(self.member.said.popleft()(self.owned))
        elif self.member.heard and draw < 0.85:
            self.member.hear()
        elif draw < 0.98:
            self.member.assign()
        else:
            self.member.lose()

    def settle(self) -> None:
        for _ in range(1000):
            if self.member.said:
                self.feed(self.member.said.popleft()(self.owned))
            elif self.member.heard:
                self.member.hear()
            elif self.todo:
                self.feed(self.todo.pop(0))
            else:
                return
        raise AssertionError(f"never quiet: {self.todo}")


def answers_ends(event: Event, task: TaskId) -> bool:
    told = (TaskEvent.BEHIND, TaskEvent.AT_END, TaskEvent.REACHED_END)
    return isinstance(event, Happened) and event.event in told and event.task == task


@pytest.mark.parametrize("seed", [*range(100), 591, 1233])
def test_any_order_of_plans_and_answers_ends_at_last_plan(seed: int) -> None:
    member = Member(seed, [TaskId(n, p) for n in range(2) for p in range(2)])
    shell = Shell(seed, member)
    for _ in range(200):
        shell.step()
    shell.settle()
    shell.ready.clear()
    member.assign()
    shell.settle()

    assert shell.ready == member.learners - member.promised
    ours = shell.runs | shell.stopped
    assert member.owned == member.assigned
    assert {task: shell.reads[task] for task in ours} == {
        task: frozenset(at for at in member.owned if task_of(at) == task)
        for task in map(task_of, member.owned)
    }
    for role, wanted in ((Role.LEARNER, member.learners), (Role.STANDBY, member.standbys)):
        tailing = shell.holdings.tasks(TaskState.TAILING)
        assert {task for task in tailing if shell.holdings.of(task).role is role} == wanted
    assert len(shell.holdings) == len(ours) + len(member.learners) + len(member.standbys)
    shell.feed(Ended())
    shell.settle()
    assert not len(shell.holdings)
    assert not shell.open
