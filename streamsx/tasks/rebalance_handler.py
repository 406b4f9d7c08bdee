"""Handler of the group's messages on the data loop: turns a member's partitions into tasks.

The handler also publishes the state of this worker's tasks for the next join, and logs the
processing gaps of tasks that stay through a rebalance, and their gaps in the calm before.

Not here: the life of a task (`task_driver`), the member's reaction to an answer (`group`).
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
"""Time after an assignment at which gaps are logged: opening stores for the assignment holds up the
tasks that stay, and counts."""
STALLED_S = 60.0
"""Time without progress after which a learner is reported as stalled."""
FOLLOWS_AS: Final = {Role.LEARNER: CopyRole.LEARNER, Role.STANDBY: CopyRole.STANDBY}
RESTORES = frozenset({TaskState.OPENING, TaskState.PLACED, TaskState.OPENED, TaskState.RESTORING})
SHARED_NAME = (
    "instance_id_shared instance=%s: a worker with another state directory has this name too, and "
    "leave cannot tell who is meant: start one of them again with an --instance-id of its own"
)


class RebalanceHandler:
    """Handler of one worker.

    Args:
        context: shared parts and settings of the worker.
        partitions: partition count of each topic.
        assignor: maps partitions to tasks.
        session: control thread of the member.
        gateway: way back to the member, which the tasks use too.
        tasks: driver of the tasks.
        listening: calls of the app's rebalance listeners.
    """

    def __init__(
        self,
        context: WorkerContext,
        partitions: Mapping[str, int],
        assignor: StreamsPartitionAssignor,
        session: Session,
        gateway: GroupGateway,
        tasks: TaskDriver,
        listening: ListenerCalls,
    ) -> None:
        self._listening = listening
        self._context = context
        self._clock = context.clock
        self._journal = context.journal
        self._assignor = assignor
        self._session = session
        self._gateway = gateway
        self._tasks = tasks
        self._owned = gateway.owned
        self._limit = context.config.acceptable_recovery_lag
        self._plans = context.plans
        self._partitions = partitions
        self._stayed: frozenset[TaskId] | None = None
        """Tasks that ran when the rebalance under way began; None between rebalances."""
        self._gap_timer: asyncio.TimerHandle | None = None
        self._calm_since = 0.0
        self._lags: dict[TaskId, tuple[int, float]] = {}
        self._foreign: frozenset[TaskId] = frozenset()
        """Tasks that a leader with other code asks this worker to learn, and that its app lacks."""
        self.leads = self.lost_leaving = False
        self.losses = 0
        """Number of handled losses, of those that the session has reported."""
        self.restored = asyncio.Event()
        """Set once the first tasks of this worker run."""
        self._assigned = self._warned = False

    @property
    def leaving(self) -> bool:
        """Return whether this worker is leaving the group."""
        return self._gateway.leaving

    # -- to the member

    def publish(self) -> None:
        """Publish the roles and lags of all copies as of now, for the next join.

        The control thread reads this report for each join. Report lag 0 for tasks this worker
        cannot learn, so that their owner does not wait to hand them over.
        """
        copies = {t: Copy(CopyRole.DORMANT, lag) for t, lag in self._tasks.dormant.lags.items()}
        copies |= dict.fromkeys(self._foreign, Copy(CopyRole.LEARNER, 0))
        holdings = self._tasks.holdings
        now = self._clock.now()
        learning = set()
        for task in holdings.tasks():
            alive = holdings.of(task)
            lag = self._tasks.restorer.lag(task)
            if alive.role.follows and not alive.state.ends:
                if alive.state is TaskState.TAILING:
                    lag = min(lag or 0, self._limit)  # announced as ready: must not flicker
                elif alive.role is Role.LEARNER:  # a standby waits for all others, not stalled
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
        while self._gateway.stopped:  # needs a round: the group shows only reports from joins
            self._session.post(e.Want(f"task {self._gateway.stopped.pop()} stopped"))

    def _note_lag(self, task: TaskId, lag: int | None, now: float) -> None:
        """Note the time at which the lag of a learner last fell to a new minimum."""
        least, _ = self._lags.get(task, (None, now))
        if lag is not None and (least is None or lag < least):
            self._lags[task] = lag, now

    # -- from the member

    @singledispatchmethod
    def hear(self, message: object) -> None:
        """Handle a message of the member, on the data loop, in the order of sending.

        Raises:
            Bug: there is no handler for this type of message.
        """
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
        self._gateway.generation = message.generation
        self.leads = message.leader
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
            self._gateway.ready()

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
            if self._gap_timer is None:  # the metrics were logged without this time
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
        began = self._clock.now()
        lost = self._owned.lost(message.tps)
        self._journal("lost", tasks=sorted_text(lost.tasks), reason=message.why)
        self.lost_leaving = self.lost_leaving or self._gateway.leaving
        self._tasks.feed(lost)
        self.losses += 1
        taken_s = self._clock.now() - began
        metrics = self._session.metrics
        self._listening.lost(message.tps, lambda took_s: metrics.lost(taken_s + took_s))

    @hear.register
    def _(self, message: e.PartitionsChanged) -> None:
        """End the worker if its state does not fit the new partition counts."""
        try:
            refuse_changes(self._context.topology, self._partitions, message.counts)
        except PartitionCountChanged as error:
            self._context.owner.fail(error)

    @hear.register
    def _(self, message: e.CommitDone) -> None:
        if message.why is not None:
            self._journal("error", what=f"commit dropped: {message.why.value}", where="group")
            self._tasks.committing.refused(message.id)
            return
        user = self._context.cluster.principal
        denied = {
            task: commit_error(task, tp, code, user)
            for tp, code in message.missing.items()
            if code != e.NOT_OURS and (task := self._assignor.task_of(tp)) is not None
        }
        gone = (tp for tp, code in message.missing.items() if code == e.NOT_OURS)
        self._tasks.committing.committed(message.id, self._assignor.tasks_of(gone), denied)

    @hear.register
    def _(self, message: e.IsLeaving) -> None:
        first = not self._gateway.leaving
        self._gateway.leaving = True
        self._gateway.leave_by = message.deadline
        deadline = None
        if not first:
            return
        if message.deadline is not None:
            deadline = message.deadline - self._clock.now() + self._clock.wall()
        self._journal("leaving", deadline=deadline)

    @hear.register
    def _(self, _: e.Stays) -> None:
        """Forget losses on the way out: they have no meaning for a later leave."""
        self._gateway.leaving = self.lost_leaving = False
        self._journal("stays")

    @hear.register
    def _(self, _: e.Left) -> None:
        self._journal("left")
        self._context.owner.ended(None)

    @hear.register
    def _(self, message: e.Fatal) -> None:
        user = self._context.cluster.principal
        self._context.owner.ended(fatal_group_error(message.why, message.code, user))

    def crashed(self, why: BaseException) -> None:
        """End the worker: the control thread has a bug, or could not begin."""
        error = why = first_of(why)
        if not isinstance(error, StreamsxError):
            error = Bug(f"the control thread ended: {type(error).__name__}: {error}")
            error.__cause__ = why
        self._context.owner.ended(error)

    # -- gaps

    def _cancel_gaps(self) -> None:
        """Cancel the report of gaps: a follow-up round belongs to the same rebalance."""
        if self._gap_timer is not None:
            self._gap_timer.cancel()
            self._gap_timer = None

    def _rebalanced(self) -> None:
        self._gap_timer = None
        self._tell_gaps("gap")
        self._tell_metrics()
        self._stayed = None
        self._calm_since = self._clock.now()

    def _tell_metrics(self) -> None:
        told = self._session.metrics.values(self._clock.now())
        self._journal("metrics", **{name: round(value, 3) for name, value in told.items()})

    def _tell_gaps(self, event: str, **more: float) -> None:
        """Log the longest gap of each running task; in a rebalance, only of tasks that stay."""
        for task, gap_s in self._tasks.gaps(self._clock.now()).items():
            if self._stayed is None or task in self._stayed:
                self._journal(event, task=str(task), ms=round(gap_s * 1000, 1), **more)


def sorted_text(tasks: frozenset[TaskId]) -> list[str]:
    return [str(task) for task in sorted(tasks)]
