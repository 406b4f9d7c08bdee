"""The data loop's side of the group: what its member says, in tasks; what it has to hear.

Partitions outside, tasks inside. It also tells of rebalances: how long those that stay stood still,
and how long they did before, when nothing was going on.

Not here: what becomes of a task (`tasks`), what the member does about an answer (`membership`).
"""

import asyncio
from collections.abc import Mapping
from functools import singledispatchmethod
from typing import Final

from streamsx.assignor.document import decision_of
from streamsx.assignor.model import Copy, CopyRole, MemberMetadata
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor
from streamsx.client.error_advice import commit_error, fatal_group_error
from streamsx.errors import Bug, PartitionCountChanged, StreamsxError, first_of
from streamsx.group import member_events as e
from streamsx.group.session import Session
from streamsx.journal import LOG
from streamsx.model import Role, TaskId
from streamsx.tasks import task_registry
from streamsx.tasks.group_gateway import GroupGateway
from streamsx.tasks.rebalance_listeners import ListenerCalls
from streamsx.tasks.state_machine import TaskState
from streamsx.tasks.task_driver import TaskDriver
from streamsx.tasks.worker_context import WorkerContext
from streamsx.topology.partitions import refuse_changes

GAP_AFTER_S = 0.5
"""Behind an assignment: stores that it opened are part of what it did to those that stay."""
STALLED_S = 60.0
FOLLOWS_AS: Final = {Role.LEARNER: CopyRole.LEARNER, Role.STANDBY: CopyRole.STANDBY}
RESTORES = frozenset({TaskState.OPENING, TaskState.PLACED, TaskState.OPENED, TaskState.RESTORING})
SHARED_NAME = (
    "instance_id_shared instance=%s: a worker with another state directory has this name too, and "
    "leave cannot tell who is meant: start one of them again with an --instance-id of its own"
)


class RebalanceHandler:
    """`door`: the way back to the member, which the tasks have too."""

    def __init__(
        self,
        given: WorkerContext,
        partitions: Mapping[str, int],
        assignor: StreamsPartitionAssignor,
        session: Session,
        door: GroupGateway,
        tasks: TaskDriver,
        listening: ListenerCalls,
    ) -> None:
        self._listening = listening
        self._given, self._clock, self._journal = given, given.clock, given.journal
        self._assignor, self._session, self._door, self._tasks = assignor, session, door, tasks
        self._owned, self._limit = door.owned, given.config.acceptable_recovery_lag
        self._plans, self._partitions = given.plans, partitions
        self._stayed: frozenset[TaskId] | None = None
        """Tasks that ran when the rebalance under way began; None between rebalances."""
        self._gap_timer: asyncio.TimerHandle | None = None
        self._calm_since = 0.0
        self._lags: dict[TaskId, tuple[int, float]] = {}
        self._foreign: frozenset[TaskId] = frozenset()
        """What it is to learn and cannot, by a leader with other code."""
        self.leads = self.lost_leaving = False
        self.losses = 0
        """Of those that the session has told of, how many were heard."""
        self.restored = asyncio.Event()
        """The first tasks of this worker run."""
        self._assigned = self._warned = False

    @property
    def leaving(self) -> bool:
        """It was told to."""
        return self._door.leaving

    # -- to the member

    def publish(self) -> None:
        """What a join has to tell, roles and lags as of now: the control thread reads it then. Of
        what it cannot learn a member is as near as it will ever be: whoever is to hand that over
        need not wait."""
        copies = {t: Copy(CopyRole.DORMANT, lag) for t, lag in self._tasks.dormant.lags.items()}
        copies |= dict.fromkeys(self._foreign, Copy(CopyRole.LEARNER, 0))
        holdings, now = self._tasks.holdings, self._clock.now()
        learning = set()
        for task in holdings.tasks():
            alive, lag = holdings.of(task), self._tasks.restorer.lag(task)
            if alive.role.follows and not alive.state.ends:
                if alive.state is TaskState.TAILING:
                    lag = min(lag or 0, self._limit)  # it has said so, and does not flicker
                elif alive.role is Role.LEARNER:  # a standby waits behind whatever is restored
                    learning.add(task)
                    self._note_lag(task, lag, now)
                copies[task] = Copy(FOLLOWS_AS[alive.role], lag)
            elif alive.state in RESTORES and self._plans[task.subtopology].stateful:
                copies[task] = Copy(CopyRole.RESTORING, lag)
        self._lags = {task: noted for task, noted in self._lags.items() if task in learning}
        starting = (holdings.of(task).role is Role.ACTIVE for task in holdings.tasks(*RESTORES))
        if self._assigned and not any(starting):
            self.restored.set()
        stalled = (t for t, (_, since) in self._lags.items() if now - since > STALLED_S)
        stopped = {t: self._tasks.actives[t].why for t in holdings.tasks(TaskState.STOPPED)}
        self._session.seat.report = MemberMetadata(
            "",
            copies=copies,
            stalled=frozenset(stalled),
            stopped=frozenset(stopped),
            reasons=stopped,
        )
        while self._door.stopped:  # a round, for what a group shows is what its joins said
            self._session.post(e.Want(f"task {self._door.stopped.pop()} stopped"))

    def _note_lag(self, task: TaskId, lag: int | None, now: float) -> None:
        """Since when it has not come nearer."""
        least, _ = self._lags.get(task, (None, now))
        if lag is not None and (least is None or lag < least):
            self._lags[task] = lag, now

    # -- from the member

    @singledispatchmethod
    def hear(self, message: object) -> None:
        """On the data loop, in the order in which things were said."""
        raise Bug(f"group: nobody hears {message}")

    @hear.register
    def _(self, message: e.Joining) -> None:
        self._journal("rebalance_started", generation=message.generation, reason=message.reason)
        self._cancel_gaps()
        if self._stayed is None:
            self._tell_gaps("calm_gap", seconds=round(self._clock.now() - self._calm_since, 3))
            self._stayed = frozenset(self._tasks.actives)

    @hear.register
    def _(self, message: e.OnAssignment) -> None:
        view = message.view
        self._door.generation, self.leads = message.generation, message.leader
        active = self._assignor.tasks_of(message.assigned)
        learners = (view.learners | view.wanted) - active
        self._foreign = frozenset(t for t in learners if t.subtopology not in self._plans)
        learners -= self._foreign
        idle = view.standbys - view.wanted - active
        standbys = frozenset(t for t in idle if t.subtopology in self._plans)
        self._journal(
            "assigned",
            generation=message.generation,
            active=sorted_text(active),
            standby=sorted_text(standbys),
            learner=sorted_text(learners),
        )
        if message.leader:
            told = [decision_of(decision) for decision in view.decisions]
            self._journal("plan", generation=message.generation, decisions=told)
        if view.shared_name and not self._warned:
            self._warned = True
            LOG.warning(SHARED_NAME, self._journal.instance)
        self._tasks.fetcher.hurry()
        self._tasks.changelogs.hurry()
        self._tasks.granted(active)
        self._tasks.feed(task_registry.TasksPlanned(active, learners, view.promises, standbys))
        if self._foreign - view.promises:
            self.publish()
            self._door.ready()

    @hear.register
    def _(self, message: e.Assigned) -> None:
        began = self._clock.now()
        self._tasks.feed(self._owned.assigned(message.tps))
        self._assigned = True
        self._cancel_gaps()
        loop = asyncio.get_running_loop()
        self._gap_timer = loop.call_later(GAP_AFTER_S, self._rebalanced)
        taken_s = self._clock.now() - began

        def over(took_s: float) -> None:
            self._session.metrics.assigned(self._clock.now(), taken_s + took_s)
            if self._gap_timer is None:  # they were told without this one
                self._tell_metrics()

        self._listening.assigned(message.tps, over)

    @hear.register
    def _(self, message: e.Revoke) -> None:
        if foreign := self._owned.foreign(message.tps):
            self._session.post(e.Released(foreign, message.number))
        revoked = self._owned.revoked(message.tps, message.number)
        self._journal("revoked", tasks=sorted_text(revoked.tasks))
        self._tasks.feed(revoked)

    @hear.register
    def _(self, message: e.Lost) -> None:
        began, lost = self._clock.now(), self._owned.lost(message.tps)
        self._journal("lost", tasks=sorted_text(lost.tasks), reason=message.why)
        self.lost_leaving = self.lost_leaving or self._door.leaving
        self._tasks.feed(lost)
        self.losses += 1
        taken_s, metrics = self._clock.now() - began, self._session.metrics
        self._listening.lost(message.tps, lambda took_s: metrics.lost(taken_s + took_s))

    @hear.register
    def _(self, message: e.PartitionsChanged) -> None:
        """It ends the worker where its state does not fit."""
        try:
            refuse_changes(self._given.topology, self._partitions, message.counts)
        except PartitionCountChanged as error:
            self._given.owner.fail(error)

    @hear.register
    def _(self, message: e.CommitDone) -> None:
        if message.why is not None:
            self._journal("error", what=f"commit dropped: {message.why.value}", where="group")
            self._tasks.committing.refused(message.id)
            return
        user = self._given.cluster.principal
        denied = {
            task: commit_error(task, tp, code, user)
            for tp, code in message.missing.items()
            if code != e.NOT_OURS and (task := self._assignor.task_of(tp)) is not None
        }
        gone = (tp for tp, code in message.missing.items() if code == e.NOT_OURS)
        self._tasks.committing.committed(message.id, self._assignor.tasks_of(gone), denied)

    @hear.register
    def _(self, message: e.IsLeaving) -> None:
        first, self._door.leaving = not self._door.leaving, True
        self._door.leave_by, deadline = message.deadline, None
        if not first:
            return
        if message.deadline is not None:
            deadline = message.deadline - self._clock.now() + self._clock.wall()
        self._journal("leaving", deadline=deadline)

    @hear.register
    def _(self, _: e.Stays) -> None:
        """What was lost on the way out says nothing of how it leaves another time."""
        self._door.leaving = self.lost_leaving = False
        self._journal("stays")

    @hear.register
    def _(self, _: e.Left) -> None:
        self._journal("left")
        self._given.owner.ended(None)

    @hear.register
    def _(self, message: e.Fatal) -> None:
        user = self._given.cluster.principal
        self._given.owner.ended(fatal_group_error(message.why, message.code, user))

    def crashed(self, why: BaseException) -> None:
        """The control thread is over, by a bug or because it could not begin."""
        error = why = first_of(why)
        if not isinstance(error, StreamsxError):
            error = Bug(f"the control thread ended: {type(error).__name__}: {error}")
            error.__cause__ = why
        self._given.owner.ended(error)

    # -- gaps

    def _cancel_gaps(self) -> None:
        """A follow-up round belongs to the same rebalance."""
        if self._gap_timer is not None:
            self._gap_timer.cancel()
            self._gap_timer = None

    def _rebalanced(self) -> None:
        self._gap_timer = None
        self._tell_gaps("gap")
        self._tell_metrics()
        self._stayed, self._calm_since = None, self._clock.now()

    def _tell_metrics(self) -> None:
        told = self._session.metrics.values(self._clock.now())
        self._journal("metrics", **{name: round(value, 3) for name, value in told.items()})

    def _tell_gaps(self, event: str, **more: float) -> None:
        """The longest of each task that runs, and ran before the rebalance if there is one."""
        for task, gap_s in self._tasks.gaps(self._clock.now()).items():
            if self._stayed is None or task in self._stayed:
                self._journal(event, task=str(task), ms=round(gap_s * 1000, 1), **more)


def sorted_text(tasks: frozenset[TaskId]) -> list[str]:
    return [str(task) for task in sorted(tasks)]
