"""Handler of the group's messages on the data loop: turns a member's partitions into tasks.

Not here: the life of a task (`task_driver`), the report for the next join (`task_reports`), the
member's reaction to an answer (`group`).
"""

from collections.abc import Callable, Collection, Mapping
from functools import singledispatchmethod
from typing import Protocol

from streamsx.assignor.document import decision_of
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor
from streamsx.client.error_advice import commit_error, fatal_group_error
from streamsx.client.fetcher import Fetcher
from streamsx.clock import Clock
from streamsx.errors import Bug, PartitionCountChanged, StreamsxError, TaskFailed, first_of
from streamsx.group import member_events as e
from streamsx.group.session import Session
from streamsx.journal import LOG, Journal
from streamsx.tasks import task_registry
from streamsx.tasks.committer import Committer
from streamsx.tasks.group_gateway import GroupGateway
from streamsx.tasks.handovers import Handovers
from streamsx.tasks.rebalance_listeners import ListenerCalls
from streamsx.tasks.rebalance_log import AssignedTasks, RebalanceLog, sorted_text
from streamsx.tasks.task_driver import TaskDriver
from streamsx.tasks.task_reports import TaskReports

SHARED_NAME = (
    "Another worker is called %s too, with a state directory of its own, and leave cannot tell "
    "which one is meant. Start one of them again with an --instance-id of its own."
)


class MembershipOwner(Protocol):
    """Interface of the worker for the end of its membership."""

    def fail(self, error: Exception) -> None: ...
    def ended(self, error: Exception | None) -> None: ...


class RebalanceHandler:
    """Handler of one worker.

    Attributes:
        leads: whether the member is the leader of the group.
        lost_leaving: whether tasks were lost while the worker was leaving.
        losses: number of handled losses, of those that the session has reported.

    Args:
        owner: worker that ends with its membership.
        assignor: maps partitions to tasks.
        session: control thread of the member.
        gateway: way back to the member, which the tasks use too.
        tasks: driver of the tasks.
        committer: commits that the member answers.
        handovers: hand-overs that begin with an assignment.
        fetchers: fetchers of sources and changelogs.
        listener_calls: calls of the app's rebalance listeners.
        reports: report on the tasks for the next join.
        log: log of rebalances.
        refuse_counts: raises PartitionCountChanged for counts that do not fit the state.
        principal: user at the broker, for messages.
        directory: state directory of the worker, for messages.
        journal: receives assignments, revokes and losses.
        clock: time of the worker.
    """

    def __init__(
        self,
        *,
        owner: MembershipOwner,
        assignor: StreamsPartitionAssignor,
        session: Session,
        gateway: GroupGateway,
        tasks: TaskDriver,
        committer: Committer,
        handovers: Handovers,
        fetchers: Collection[Fetcher],
        listener_calls: ListenerCalls,
        reports: TaskReports,
        log: RebalanceLog,
        refuse_counts: Callable[[Mapping[str, int]], None],
        principal: str,
        directory: str,
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._owner = owner
        self._assignor = assignor
        self._session = session
        self._gateway = gateway
        self._tasks = tasks
        self._committer = committer
        self._handovers = handovers
        self._fetchers = fetchers
        self._listener_calls = listener_calls
        self._reports = reports
        self._log = log
        self._refuse_counts = refuse_counts
        self._principal = principal
        self._directory = directory
        self._journal = journal
        self._clock = clock
        self._owned = gateway.owned
        self.leads = self.lost_leaving = False
        self._halts: dict[str, bool] = {}
        """Field `stays` of the events of the end, if the worker stays in the group."""
        self.losses = 0
        self._warned = False

    @property
    def leaving(self) -> bool:
        """Return whether this worker is leaving the group."""
        return self._gateway.leaving

    # -- from the member

    @singledispatchmethod
    def handle(self, message: object) -> None:
        """Handle a message of the member, on the data loop, in the order of sending.

        Raises:
            Bug: there is no handler for this type of message.
        """
        raise Bug(f"group: nobody hears {message}")

    @handle.register
    def _(self, message: e.Joining) -> None:
        self._journal("rebalance_started", generation=message.generation, reason=message.reason)
        self._log.joining()

    @handle.register
    def _(self, message: e.OnAssignment) -> None:
        view = message.view
        self._gateway.generation = message.generation
        self.leads = message.leader
        active = self._assignor.tasks_of(message.assigned)
        learners = (view.learners | view.wanted) - active
        foreign = self._reports.note_foreign(learners)
        learners -= foreign
        standbys = view.standbys - view.wanted - active
        standbys -= self._reports.foreign_of(standbys)
        self._journal(
            "assigned",
            generation=message.generation,
            active=sorted_text(active),
            standby=sorted_text(standbys),
            learner=sorted_text(learners),
        )
        self._log.planned(AssignedTasks(active, learners, standbys), view)
        if message.leader:
            decisions = [decision_of(decision) for decision in view.decisions]
            self._journal("plan", generation=message.generation, decisions=decisions)
        if view.shared_name and not self._warned:
            self._warned = True
            LOG.warning(SHARED_NAME, self._journal.instance)
        for fetcher in self._fetchers:
            fetcher.hurry()
        self._handovers.granted(active)
        self._tasks.feed(task_registry.TasksPlanned(active, learners, view.promises, standbys))
        if foreign - view.promises:
            self._reports.publish()
            self._gateway.ready()
        if view.stop_app:
            self._owner.fail(TaskFailed(f"another worker has stopped the app: {view.stop_app}"))

    @handle.register
    def _(self, message: e.Assigned) -> None:
        began = self._clock.now()
        self._tasks.feed(self._owned.assigned(message.tps))
        self._reports.assigned = True
        self._log.assigned()
        taken_s = self._clock.now() - began
        log = self._log
        self._listener_calls.assigned(
            message.tps, lambda took_s: log.listeners_returned(taken_s + took_s)
        )

    @handle.register
    def _(self, message: e.Revoke) -> None:
        if foreign := self._owned.foreign(message.tps):
            self._session.post(e.Released(foreign, message.number))
        revoked = self._owned.revoked(message.tps, message.number)
        self._journal("revoked", tasks=sorted_text(revoked.tasks))
        self._tasks.feed(revoked)

    @handle.register
    def _(self, message: e.Lost) -> None:
        began = self._clock.now()
        lost = self._owned.lost(message.tps)
        self._journal("lost", tasks=sorted_text(lost.tasks), reason=message.why)
        self._log.lost()
        self.lost_leaving = self.lost_leaving or self._gateway.leaving
        self._tasks.feed(lost)
        self.losses += 1
        taken_s = self._clock.now() - began
        metrics = self._session.metrics
        self._listener_calls.lost(message.tps, lambda took_s: metrics.lost(taken_s + took_s))

    @handle.register
    def _(self, message: e.PartitionsChanged) -> None:
        """End the worker if its state does not fit the new partition counts."""
        try:
            self._refuse_counts(message.counts)
        except PartitionCountChanged as error:
            self._owner.fail(error)

    @handle.register
    def _(self, message: e.CommitDone) -> None:
        if message.why is e.Refusal.ABORTED:
            self._committer.transaction_over(message.id, message.code)
            return
        if message.why is not None:
            what = f"commit dropped: {message.why.value}: its records are processed again"
            self._journal("error", what=what, where="group")
            self._committer.refused(message.id)
            return
        denied = {
            task: commit_error(task, tp, code, self._principal)
            for tp, code in message.missing.items()
            if code != e.NOT_OURS and (task := self._assignor.task_of(tp)) is not None
        }
        gone = (tp for tp, code in message.missing.items() if code == e.NOT_OURS)
        self._committer.committed(message.id, self._assignor.tasks_of(gone), denied)

    @handle.register
    def _(self, message: e.IsLeaving) -> None:
        first = not self._gateway.leaving
        self._gateway.leaving = True
        self._gateway.leave_by = message.deadline
        deadline = None
        if not first:
            return
        if message.deadline is not None:
            deadline = message.deadline - self._clock.now() + self._clock.wall()
        self._halts = {"stays": True} if message.stays else {}
        how = {"at_once": True} if message.at_once else self._halts
        self._journal("leaving", deadline=deadline, **how)

    @handle.register
    def _(self, _: e.Stays) -> None:
        """Forget losses on the way out: they have no meaning for a later leave."""
        self._gateway.leaving = self.lost_leaving = False
        self._journal("stays")

    @handle.register
    def _(self, _: e.Left) -> None:
        self._journal("left", directory=self._directory, **self._halts)
        self._owner.ended(None)

    @handle.register
    def _(self, message: e.Fatal) -> None:
        self._owner.ended(fatal_group_error(message.why, message.code, self._principal))

    def crashed(self, why: BaseException) -> None:
        """End the worker: the control thread has a bug, or could not begin."""
        error = why = first_of(why)
        if not isinstance(error, StreamsxError):
            error = Bug(f"the thread of the group ended: {type(error).__name__}: {error}")
            error.__cause__ = why
        self._owner.ended(error)
