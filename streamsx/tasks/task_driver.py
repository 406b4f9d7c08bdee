"""Driver of a worker's tasks: opens, restores, runs, suspends, releases and closes them.

`streamsx.tasks.task_registry` decides; the driver performs each effect and answers with an event.
The data loop alone owns the driver. Each open, read of ends and close is a separate asyncio task,
at most one per task of the topology; a close cancels the one under way.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from streamsx.clock import Clock
from streamsx.errors import (
    STORE_FAULTS,
    IncompatibleStore,
    StreamsxError,
    TaskStopped,
    ValueRefused,
)
from streamsx.journal import LOG, Journal
from streamsx.model import Role, TaskId, TopicPartition
from streamsx.processing.rerun import NO_RERUN, RecordUndone, Rerun
from streamsx.tasks import task_registry
from streamsx.tasks.active_tasks import ActiveTasks, CommittedPlace
from streamsx.tasks.committer import Committer
from streamsx.tasks.group_gateway import GroupGateway
from streamsx.tasks.handovers import Handovers
from streamsx.tasks.log_bounds import LogBounds
from streamsx.tasks.source_watch import SourceWatch
from streamsx.tasks.state_machine import TaskEffect, TaskEvent, TaskState
from streamsx.tasks.task_registry import Happened, TaskRegistry
from streamsx.tasks.task_stores import TaskStores

NO_STOPS: Mapping[TaskId, str] = MappingProxyType({})

if TYPE_CHECKING:
    from streamsx.tasks.start_positions import StartPositions


class Jobs:
    """Jobs under way, at most one for each task: a newer job cancels the older.

    A job that cannot open, read or write a store fails the task, and thereby ends the worker.
    """

    def __init__(
        self,
        spawn: Callable[..., asyncio.Task[None]],
        failed: Callable[[TaskId, Exception], None],
    ) -> None:
        self._spawn = spawn
        self._failed = failed
        self._of: dict[TaskId, asyncio.Task[None]] = {}

    def start(self, task: TaskId, job: Coroutine[Any, Any, None], what: str) -> None:
        """Start a job for a task under the name `what`, and cancel the task's older job."""
        if (old := self._of.pop(task, None)) is not None:
            old.cancel()
        made = self._of[task] = self._spawn(self._tried(task, job), name=f"{what} {task}")
        made.add_done_callback(lambda done: self._over(task, done, job))

    async def _tried(self, task: TaskId, job: Coroutine[Any, Any, None]) -> None:
        try:
            await job
        except StreamsxError as error:
            self._failed(task, error)

    def _over(self, task: TaskId, done: asyncio.Task[None], job: Coroutine[Any, Any, None]) -> None:
        job.close()  # a job that was cancelled before its first step still needs this
        if self._of.get(task) is done:
            del self._of[task]


class TaskDriver:
    """Driver of all tasks of one worker; events come in through `feed`.

    Attributes:
        changed: whether anything has changed since the last report.

    Args:
        registry: decides on each event.
        actives: active tasks.
        stores: stores of all tasks.
        sources: source partitions of active tasks.
        committer: commits of active tasks.
        handovers: hand-overs under way.
        bounds: committed positions, and bounds of changelogs.
        gateway: way to the group.
        spawn: starts a job that the worker owns.
        fail: ends the worker after an error.
        journal: receives the transitions of tasks, and errors.
        clock: time of the worker.
        abort_transaction: drops the transaction of all tasks and begins the next one; None without
            transactions.
    """

    def __init__(
        self,
        *,
        registry: TaskRegistry,
        actives: ActiveTasks,
        stores: TaskStores,
        sources: SourceWatch,
        committer: Committer,
        handovers: Handovers,
        bounds: LogBounds,
        gateway: GroupGateway,
        spawn: Callable[..., asyncio.Task[None]],
        fail: Callable[[Exception], None],
        journal: Journal,
        clock: Clock,
        abort_transaction: Callable[[], None] | None = None,
    ) -> None:
        self.registry = registry
        self._active_tasks = actives
        self.actives = actives.running
        self._stores = stores
        self._sources = sources
        self._committer = committer
        self._handovers = handovers
        self._bounds = bounds
        self._gateway = gateway
        self._spawn = spawn
        self._fail = fail
        self._journal = journal
        self._clock = clock
        self.changed = False
        self._positions: dict[TaskId, Mapping[str, CommittedPlace]] = {}
        self._beginnings: dict[TaskId, StartPositions] = {}
        """Start positions of tasks that do not run yet, from which `_positions` were taken."""
        self._reruns: dict[TaskId, Rerun] = {}
        """Orders of tasks that were undone and begin anew. Those of released and lost tasks are
        removed: the next owner, maybe this worker, begins without that knowledge."""
        self._abort_transaction = abort_transaction
        self._transactional = abort_transaction is not None
        self._reasons: dict[TaskId, str] = {}
        """Reasons of the tasks that are being undone, for the line about an aborted transaction."""
        self._undone: set[TaskId] = set()
        """Tasks that an abort undoes, until they are forgotten."""
        self._jobs = Jobs(spawn, self.failed)
        self._placing = Jobs(spawn, self.failed)
        """Jobs that ask for positions, beside the jobs for the task's stores."""
        self._events: deque[task_registry.Event] = deque()
        self._feeding = False

    # -- events

    def feed(self, event: task_registry.Event) -> None:
        """Decide about an event and perform the effects; events they cause come after it."""
        if isinstance(event, task_registry.TasksLost):
            for task in event.tasks:
                self._reruns.pop(task, None)
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                effects = self.registry.step(self._clock.now(), self._events.popleft())
                for effect in effects:
                    self._perform(effect)
        finally:
            self._feeding = False
        self.changed = True

    def stopped(self, task: TaskId, why: TaskStopped, *, told: bool = False) -> None:
        """Stop a running task that cannot go on; other tasks run on.

        The task stays at the same position until the worker is started again.
        """
        if not told:
            self._journal("error", what=str(why), where=f"task {task}")
        self.actives[task].why = str(why)
        self.feed(Happened(task, TaskEvent.STOP))

    def undone(
        self, task: TaskId, why: ValueRefused | TaskStopped, *, puts_back: bool = True
    ) -> None:
        """Begin a task anew from the last commit, because later work cannot be committed.

        After RecordUndone the new run meets the failure again, and undoes that record alone. After
        another ValueRefused it looks for the record with that value, to pass over it.
        After TaskStopped the task stops at the last commit. With `puts_back`, the rows that left
        for the changelogs since are set back too.

        A task with a failed record and a commit under way goes back to that commit, so it waits:
        it reports the failure again whenever it is to run. Two races without that. "The task asks
        for its positions over another connection, and is told the older ones; the commit arrives":
        its records count twice. "Results of `emit=commit` have left with the seal": they leave
        again with the next one. Under exactly-once, going back at once would abort a transaction
        that has all of its records.
        """
        if isinstance(why, RecordUndone) and self._committer.failure_waits(task):
            self.actives[task].task.withhold()  # what its other bodies do will be undone
            return
        # With the offsets of these rows on their way, putting the rows back could lose their work.
        # Rows of an aborted transaction are in no changelog.
        puts_back = puts_back and not (self._transactional or self._committer.offsets_sent(task))
        try:
            rerun = self.actives[task].task.rerun(why, puts_back=puts_back)
        except STORE_FAULTS as error:
            self.failed(task, error)
            return
        self._reruns[task] = rerun
        if rerun.rows:
            rows = sum(map(len, rerun.rows.values()))
            LOG.debug("Task %s puts back %d uncommitted rows with its next commit.", task, rows)
        self._reasons[task] = str(why)
        self.feed(Happened(task, TaskEvent.UNDO))
        self._reasons.pop(task, None)
        if isinstance(why, RecordUndone):
            LOG.debug("Task %s goes back to its last commit: %s.", task, why)
        elif rerun.stop is None:
            what = f"{why}: going back to the last commit, to skip its record"
            self._journal("error", what=what, where=f"task {task}")

    def halted(self, task: TaskId, why: TaskStopped) -> None:
        """Stop a running task that cannot go on.

        Under exactly-once a task that may hold a part of a record stops at its last commit, because
        that part would be in the transaction of all tasks. If a commit is under way, it waits for
        that one, as `undone` says.
        """
        if not self._transactional or self.actives[task].task.sealable:
            self.stopped(task, why)
        elif self._committer.failure_waits(task):
            self.actives[task].task.withhold()
        else:
            self.undone(task, why)

    def abort(self, why: str, stops: Mapping[TaskId, str] = NO_STOPS) -> None:
        """Undo all tasks, because their transaction cannot be committed.

        Stopped tasks stay stopped. The race without an exception: a broken deploy; one task stops,
        and the first failure of another one aborts the transaction, with all that the first task
        has done ahead of its bad record. So a task with such records does them again, and stops at
        the same record.

        Args:
            why: the reason.
            stops: tasks that stop at their last commit, each with its reason.
        """
        assert self._abort_transaction is not None, f"no transaction to abort: {why}"
        begin_again = self.actives.keys() | self._reasons.keys()
        undone = {task for task in self._reasons if self._reruns.get(task, NO_RERUN).stop}
        stopping = [str(task) for task in sorted(stops.keys() | undone)]
        self._journal("aborted", why=why, tasks=len(begin_again), stops=stopping)
        for task, active in sorted(self.actives.items()):
            if task in self._undone:
                continue
            self._undone.add(task)
            goes_on = task not in stops and active.task.stopped_uncommitted
            stop = "" if goes_on else stops.get(task) or active.why
            told = task not in stops
            again = Rerun(stop=TaskStopped(stop), stop_told=told) if stop else active.task.again()
            self._reruns[task] = again
            self.feed(Happened(task, TaskEvent.UNDO))
        self._committer.aborted()
        self._abort_transaction()

    def sends_again(self, task: TaskId) -> None:
        """Let a task that begins anew send all outputs again, because some have not arrived."""
        if (rerun := self._reruns.get(task)) is not None:
            self._reruns[task] = replace(rerun, reached={})

    def failed(self, task: TaskId, error: Exception) -> None:
        """Fail a task, by its policy or by its stores: the worker ends, the other tasks commit.

        Under exactly-once they cannot without this one, since one transaction has the work of all.
        So a task that its policy ends ahead of a record stops there, and commits too. After other
        errors what all tasks have done since the last commit is done again. That includes the same
        error for the second time: the task has stopped, and a result fails at its last seal.
        """
        self._fail(error)
        active = self.actives.get(task)
        ahead = active is not None and active.task.stops_ahead and error is active.task.ended
        if active is not None and ahead and not active.why:
            active.why = str(error)
            self.feed(Happened(task, TaskEvent.STOP))
        else:
            self.feed(Happened(task, TaskEvent.FAIL))

    def changelog_cut(self, tp: TopicPartition) -> None:
        """Restart the restore of a changelog that was cut."""
        _ = self._spawn(self._stores.read_again(tp), name=f"bounds of {tp}")

    # -- effects

    def _perform(self, effect: task_registry.Effect) -> None:
        if isinstance(effect, task_registry.TaskMoved):
            self._moved(effect)
            return
        if isinstance(effect, task_registry.Turned):
            self._stores.turned(effect.task, effect.role)
            return
        task = effect.task
        match effect.effect:
            case TaskEffect.OPEN:
                self._jobs.start(task, self._open(task), "open")
            case TaskEffect.PLACE:
                self._placing.start(task, self._find_positions(task), "positions of")
            case TaskEffect.READ_ENDS:
                role = self.registry.of(task).role
                self._jobs.start(task, self._read_ends(task, role), "ends of")
            case TaskEffect.CLOSE:
                self._jobs.start(task, self._close(task), "close")
            case TaskEffect.RELEASE:
                self._reruns.pop(task, None)
                self._stop(task)
                self._gateway.released(task, effect.number, self._stores.on_disk)
            case what:
                self._do(task, what)

    def _do(self, task: TaskId, what: TaskEffect) -> None:
        match what:
            case TaskEffect.RUN:
                self._run(task)
            case TaskEffect.READY:
                self._journal("learner_ready", task=str(task), lag=self._stores.lag(task))
                self._gateway.ready()
            case TaskEffect.SUSPEND:
                self.actives[task].suspended = True
                self._committer.suspend(self.actives[task])
            case TaskEffect.STOP:
                self._sources.remove(self.actives[task])
                self._gateway.stopped.append(task)
                self._active_tasks.stop(task)
            case TaskEffect.FORGET:
                self._forget(task)

    def _forget(self, task: TaskId) -> None:
        """Drop everything of a task that is not committed, with its transaction if there is one."""
        self._committer.lose(task)
        self._stop(task)
        self._active_tasks.abort(task, self._stores.changelogs(task).values())
        undone = task in self._undone
        self._undone.discard(task)
        if self._transactional and not undone:
            lost = f"task {task} is no longer here, and its outputs are in the transaction"
            self.abort(self._reasons.get(task, lost))

    def _moved(self, moved: task_registry.TaskMoved) -> None:
        old = moved.old.word
        new = moved.new.word
        fields: dict[str, object] = {"role": moved.role.value, "from": old, "to": new}
        if moved.new is TaskState.SUSPENDED:
            fields["last_record"] = self.actives[moved.task].gap.last
        self._journal("task", task=str(moved.task), **fields)

    async def _open(self, task: TaskId) -> None:
        await self._stores.open(task)
        self.feed(Happened(task, TaskEvent.STORES_OPEN))

    async def _read_ends(self, task: TaskId, role: Role) -> None:
        role, behind = await self._stores.read_ends(task, role)
        known = TaskEvent.BEHIND if behind else TaskEvent.AT_END
        stands = TaskEvent.FELL_BEHIND if behind else TaskEvent.REACHED_END
        for event in (known, stands):
            self.feed(Happened(task, event, role))

    def _run(self, task: TaskId) -> None:
        self._stores.end_restore(task)
        self._undone.discard(task)
        found = self._positions.pop(task)
        try:
            self._stores.refuse_other_types(task)
        except IncompatibleStore as error:  # rows out of a changelog are not checked at the start
            self.failed(task, error)
            return
        beginnings = self._beginnings.pop(task)
        rerun = self._reruns.pop(task, NO_RERUN)
        if beginnings.stop:
            rerun = Rerun(stop=TaskStopped(beginnings.stop), stop_told=rerun.stop_told)
        active = self._active_tasks.run(task, found, self._stores.rows(task), rerun)
        self._sources.add(active)
        if rerun.stop is not None:
            self.stopped(task, rerun.stop, told=rerun.stop_told)
        elif beginnings.chosen:
            self._committer.first(active)

    def _stop(self, task: TaskId) -> None:
        """End an active task; committed rows may still have to be written before the close."""
        active = self.actives.get(task)
        if active is None:
            return
        self._sources.remove(active)
        self._active_tasks.end(task)
        self._stores.being_written(task)

    async def _close(self, task: TaskId) -> None:
        if self._reruns.get(task, NO_RERUN).reached and not await self._active_tasks.delivered():
            self.sends_again(task)
        lag = self._stores.lag(task)
        self._stores.end_restore(task)
        if task in self._active_tasks.closing:
            with self._as_far():
                await self._active_tasks.write_out(task)
            self._committer.lose(task)  # a task with a refused write is still in the cycle
            lag = 0
        self._active_tasks.forget(task)
        with self._as_far():
            self._stores.note_inactive(task, lag)
        self._positions.pop(task, None)
        self._beginnings.pop(task, None)
        self._handovers.forget(task)
        with self._as_far():
            await self._stores.close(task)
        self.feed(Happened(task, TaskEvent.CLOSED))

    @contextmanager
    def _as_far(self) -> Iterator[None]:
        """End the worker over a full or damaged disk, and go on: no task stays half closed."""
        try:
            yield
        except STORE_FAULTS as error:
            self._fail(error)

    async def _find_positions(self, task: TaskId) -> None:
        tps = self._gateway.owned.of(task)
        changelogs = self._stores.changelogs(task).values()
        found = await self._bounds.beginnings(tps, changelogs, f"task {task}")
        self._beginnings[task] = found
        self._positions[task] = {tp.topic: place for tp, place in found.places.items()}
        self.feed(Happened(task, TaskEvent.POSITIONS_KNOWN))
