"""Driver of a worker's tasks: opens, restores, runs, suspends, releases and closes them.

`streamsx.tasks.task_registry` decides; the driver performs each effect and answers with an event.
The data loop alone owns the driver. Each open, read of ends and close is a separate asyncio task,
at most one per task of the topology; a close cancels the one under way.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from streamsx.client.fetcher import Fetcher, limits_of
from streamsx.client.producer import Producer
from streamsx.client.rejected_batch import SourceRecords
from streamsx.errors import (
    STORE_FAULTS,
    IncompatibleStore,
    StreamsxError,
    TaskStopped,
    ValueRefused,
)
from streamsx.group.member import LAST_COMMIT_S
from streamsx.journal import LOG
from streamsx.model import Role, TaskId, TopicPartition
from streamsx.processing.actor import GatedActor
from streamsx.processing.failure_policy import Policy
from streamsx.processing.task import Task
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.state.api import Rows
from streamsx.state.cache import CachedStore
from streamsx.state.factory import make_store
from streamsx.state.layout import refuse_other_types
from streamsx.tasks import state_machine as life
from streamsx.tasks import task_registry
from streamsx.tasks.active_task import Active
from streamsx.tasks.commit_cycle import place_of
from streamsx.tasks.committer import WRITE_ROWS, Committer
from streamsx.tasks.failure_reports import tell_damaged
from streamsx.tasks.group_gateway import GroupGateway
from streamsx.tasks.inactive_stores import InactiveStores, kept
from streamsx.tasks.log_bounds import LogBounds
from streamsx.tasks.processing_gap import ProcessingGap
from streamsx.tasks.produce_errors import OnProduceError, ProduceErrors
from streamsx.tasks.repartition_purge import RepartitionPurge
from streamsx.tasks.restorer import Restorer
from streamsx.tasks.source_watch import SourceWatch
from streamsx.tasks.state_machine import TaskState
from streamsx.tasks.store_opener import StoreOpener
from streamsx.tasks.task_registry import Happened, TaskRegistry
from streamsx.tasks.worker_context import CACHE_SHARE, WorkerContext
from streamsx.topology.nodes import SubTopology

if TYPE_CHECKING:
    from streamsx.tasks.start_positions import StartPositions

PATIENCE_SHARE = 1 / 2
"""Share of the time for a task's release that its bodies may take; the rest is for its last commit.
In a worker that leaves, the last LAST_COMMIT_S before its deadline are for last commits too."""

CommittedPlace = tuple[int, OffsetMetadata]
"""Committed offset of a partition, and the metadata beside it."""


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
    """Driver of all tasks of one worker; events come in through `feed`."""

    def __init__(
        self,
        context: WorkerContext,
        gateway: GroupGateway,
        stores: StoreOpener,
        producer: Producer,
        policy: Policy,
        purging: RepartitionPurge,
        arrived: asyncio.Event,
        bounds: LogBounds,
        tables: Mapping[str, CachedStore] = MappingProxyType({}),
    ) -> None:
        self._context = context
        self._tables = tables
        self._plans = context.plans
        self._gateway = gateway
        self._stores = stores
        self._producer = producer
        self._policy = policy
        self._arrived = arrived
        config = context.config
        clock = context.clock
        cluster = context.cluster
        data, log = limits_of(config)
        damaged = partial(tell_damaged, context.journal)
        self.fetcher = Fetcher(cluster, clock, "data", data, arrived.set, self.source_cut, damaged)
        self.changelogs = Fetcher(
            cluster, clock, "restore", log, arrived.set, self.changelog_cut, damaged
        )
        self.restorer = Restorer(context, self.changelogs, self.feed, self.failed)
        self.committing = Committer(
            context, producer, gateway.commit, purging.committed,
            settled=self.feed, undone=self.undone, failed=self.failed,
            patient_until=self._patient_until,
        )  # fmt: skip
        self.holdings = TaskRegistry(together=not config.learner_partial_rebalance)
        self.actives: dict[TaskId, Active] = {}
        self.refusing = refusing_of(context, self, producer)
        self.bounds = bounds
        self.sources = SourceWatch(context, bounds, self.fetcher, self.actives)
        self.dormant = InactiveStores(self.bounds, lambda: setattr(self, "changed", True))
        self.changed = False
        """Whether anything has changed since the last report."""
        self._positions: dict[TaskId, Mapping[str, CommittedPlace]] = {}
        self._beginnings: dict[TaskId, StartPositions] = {}
        """Start positions of tasks that do not run yet, from which `_positions` were taken."""
        self._rows: dict[TaskId, dict[str, Rows]] = {}
        self._closing: dict[TaskId, Active] = {}
        self._anew: dict[TaskId, tuple[Mapping[str, int], Exception]] = {}
        """Tasks that were undone: the positions each had reached, and the reason. Released and lost
        tasks are removed: the next owner, maybe this worker, begins without that knowledge."""
        self._jobs = Jobs(context.owner.spawn, self.failed)
        self._placing = Jobs(context.owner.spawn, self.failed)
        """Jobs that ask for positions, beside the jobs for the task's stores."""
        self._granted: dict[TaskId, tuple[float, int]] = {}
        """Followers that became active, until their hand-over is complete: the time of the
        assignment, and the lag at that time."""
        self._events: deque[task_registry.Event] = deque()
        self._feeding = False

    def _patient_until(self, since: float) -> float:
        """Return the time until which a task suspended at `since` waits for its bodies."""
        until = since + PATIENCE_SHARE * self._context.config.revoke_timeout_s
        leave_by = self._gateway.leave_by if self._gateway.leaving else None
        if leave_by is None:
            return until
        least = since + PATIENCE_SHARE * LAST_COMMIT_S
        return min(until, max(least, leave_by - LAST_COMMIT_S))

    # -- events

    def feed(self, event: task_registry.Event) -> None:
        """Decide about an event and perform the effects; events they cause come after it."""
        if isinstance(event, task_registry.TasksLost):
            for task in event.tasks:
                self._anew.pop(task, None)
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        try:
            while self._events:
                effects = self.holdings.step(self._context.clock.now(), self._events.popleft())
                for effect in effects:
                    self._perform(effect)
        finally:
            self._feeding = False
        self.changed = True

    def granted(self, tasks: Iterable[TaskId]) -> None:
        """Begin the hand-over of followers that this assignment makes active."""
        now = self._context.clock.now()
        for task in tasks:
            if task in self.holdings and self.holdings.of(task).role.follows:
                self._granted[task] = now, self.restorer.lag(task) or 0

    def processed(self, active: Active, now: float, *, more: bool) -> None:
        """Note that the loop has processed records of a task; `more` are waiting."""
        active.gap.processed(now, more=more)
        if active.first:
            active.first = False
            self._context.journal("first_record", task=str(active.id))
            self._handed_over(active.id, now)

    def gaps(self, now: float) -> dict[TaskId, float]:
        """Return the longest gap of each task since the last call, in seconds.

        Stopped tasks, whose bodies have ended, are left out.
        """
        return {t: a.gap.taken(now) for t, a in sorted(self.actives.items()) if not a.why}

    def stopped(self, task: TaskId, why: TaskStopped) -> None:
        """Stop a running task that cannot go on; other tasks run on.

        The task stays at the same position until the worker is started again.
        """
        self._context.journal("error", what=str(why), where=f"task {task}")
        self.actives[task].why = str(why)
        self.feed(Happened(task, life.Event.STOP))

    def undone(self, task: TaskId, why: ValueRefused | TaskStopped) -> None:
        """Begin a task anew from the last commit, because later work cannot be committed.

        After ValueRefused the new run looks for the record with that value, to pass over it.
        After TaskStopped the task stops at the last commit.
        """
        self._anew[task] = dict(self.actives[task].task.taken), why
        self.feed(Happened(task, life.Event.UNDO))
        if isinstance(why, ValueRefused):
            what = f"{why}: going back to the last commit, to pass over its record"
            self._context.journal("error", what=what, where=f"task {task}")

    def failed(self, task: TaskId, error: Exception) -> None:
        """Fail a task, by its policy or by its stores: the worker ends, the other tasks commit."""
        self._context.owner.fail(error)
        self.feed(Happened(task, life.Event.FAIL))

    def handed_over(self) -> None:
        """Complete the hand-over of promoted tasks that find no input.

        Their hand-over ended when they began to run. The worker calls this now and then.
        """
        for task in sorted(self._granted.keys() & self.actives.keys()):
            active = self.actives[task]
            if all(map(self.fetcher.caught_up, active.sources)):
                self._handed_over(task, active.gap.last)

    def _handed_over(self, task: TaskId, at: float) -> None:
        if task in self._granted:
            granted_at, lag = self._granted.pop(task)
            ms = round((at - granted_at) * 1000, 1)
            self._context.journal("promoted", task=str(task), lag=lag, handover_ms=ms, at=at)

    # -- logs that were cut

    def source_cut(self, tp: TopicPartition, offset: int) -> None:
        """Move a source whose next offset the broker does not have any more, or not yet."""
        self.sources.cut(tp)

    def changelog_cut(self, tp: TopicPartition, offset: int) -> None:
        """Restart the restore of a changelog that was cut; the store knows the position."""
        self._spawn(self._read_bounds(tp), f"bounds of {tp}")

    async def _read_bounds(self, tp: TopicPartition) -> None:
        self.restorer.out_of_range(tp, (await self.bounds.of([tp]))[tp])

    def _spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
        """Start a job that ends by itself; the worker's task group owns the job."""
        _ = self._context.owner.spawn(job, name=name)

    # -- effects

    def _perform(self, effect: task_registry.Effect) -> None:
        if isinstance(effect, task_registry.TaskMoved):
            self._moved(effect)
            return
        if isinstance(effect, task_registry.Turned):
            self.restorer.turned(effect.task, effect.role)
            return
        task = effect.task
        match effect.effect:
            case life.Effect.OPEN:
                self._jobs.start(task, self._open(task), "open")
            case life.Effect.PLACE:
                self._placing.start(task, self._find_positions(task), "positions of")
            case life.Effect.READ_ENDS:
                role = self.holdings.of(task).role
                self._jobs.start(task, self._read_ends(task, role), "ends of")
            case life.Effect.CLOSE:
                self._jobs.start(task, self._close(task), "close")
            case life.Effect.RELEASE:
                self._anew.pop(task, None)
                self._stop(task)
                self._gateway.released(task, effect.number, self.dormant.lags)
            case what:
                self._do(task, what)

    def _do(self, task: TaskId, what: life.Effect) -> None:
        match what:
            case life.Effect.RUN:
                self._run(task)
            case life.Effect.READY:
                self._context.journal("learner_ready", task=str(task), lag=self.restorer.lag(task))
                self._gateway.ready()
            case life.Effect.SUSPEND:
                self.actives[task].suspended = True
                self.committing.suspend(self.actives[task])
            case life.Effect.STOP:
                self._halt(self.actives[task])
                self._gateway.stopped.append(task)
                self._arrived.set()
            case life.Effect.FORGET:
                self.committing.lose(task)
                self._stop(task)
                self._producer.drop(self._changelogs(task).values())
                if task in self._closing:  # else one of its stores failed before it ran
                    self._closing[task].task.aborted()

    def _moved(self, moved: task_registry.TaskMoved) -> None:
        old = moved.old.word
        new = moved.new.word
        told: dict[str, object] = {"role": moved.role.value, "from": old, "to": new}
        if moved.new is TaskState.SUSPENDED:
            told["last_record"] = self.actives[moved.task].gap.last
        self._context.journal("task", task=str(moved.task), **told)

    async def _open(self, task: TaskId) -> None:
        rows = self._rows[task] = dict[str, Rows]()
        self.dormant.remove(task)
        for node in self._plans[task.subtopology].stores:
            opened = rows[node.name] = await self._stores.open(task, node)
            await self._stores.snapshots.fill(task, node, opened, self.bounds, self.holdings)
        self.feed(Happened(task, life.Event.STORES_OPEN))

    async def _read_ends(self, task: TaskId, role: Role) -> None:
        behind = False
        if changelogs := self._changelogs(task):
            bounds = await self.bounds.of(changelogs.values())
            role = now if role.follows and (now := self.holdings.of(task).role).follows else role
            stores = self._plans[task.subtopology].stores
            rows = self._rows[task]
            behind = self.restorer.ends(task, role, stores, changelogs, rows, bounds)
        known = life.Event.BEHIND if behind else life.Event.AT_END
        stands = life.Event.FELL_BEHIND if behind else life.Event.REACHED_END
        for event in (known, stands):
            self.feed(Happened(task, event, role))

    def _run(self, task: TaskId) -> None:
        self.restorer.remove(task)
        found = self._positions.pop(task)
        plan = part_of(self._plans[task.subtopology], found.keys())
        rows = self._rows[task]
        try:
            for node in plan.stores:
                refuse_other_types(node, rows[node.name])
        except IncompatibleStore as error:  # rows out of a changelog are not checked at the start
            self.failed(task, error)
            return
        stores = {node.name: make_store(node, rows[node.name], 0) for node in plan.stores}
        metadata = place_of(found)
        tell_newer(plan, task.partition, found)
        start = partial(GatedActor, self._arrived.set)
        until, why = self._anew.pop(task, ({}, None))
        outbox = self._producer.of(task, lambda: source_of(made))
        about = stores, outbox, start, self._policy, metadata, until, self._tables
        made = Task(plan, task.partition, *about)
        active = self.actives[task] = Active(made, ProcessingGap(last=self._context.clock.now()))
        self.sources.add(active)
        self._share_cache()
        beginnings = self._beginnings.pop(task)
        if beginnings.chosen and not beginnings.stop:
            self.committing.first(active)
        if beginnings.stop:
            why = TaskStopped(beginnings.stop)
        if isinstance(why, TaskStopped):
            self.stopped(task, why)

    def _share_cache(self) -> None:
        """Share the worker's cache budget equally among the stores of all active tasks."""
        stores = [s for active in self.actives.values() for s in active.task.stores.values()]
        cache_bytes = int(self._context.config.memory_budget_bytes * CACHE_SHARE)
        for store in stores:
            store.share(cache_bytes // len(stores))

    def _halt(self, active: Active) -> None:
        """Feed a task no more, and end the bodies."""
        active.suspended = True
        for tp in active.sources:
            self.fetcher.remove(tp)
        active.task.close()

    def _stop(self, task: TaskId) -> None:
        """End an active task; committed rows may still have to be written before the close."""
        active = self.actives.pop(task, None)
        if active is None:
            return
        self._halt(active)
        self._closing[task] = active
        if any(node.persistent for node in self._plans[task.subtopology].stores):
            self.dormant.lags[task] = 0  # the rows it lacks are being written
        self._share_cache()

    async def _close(self, task: TaskId) -> None:
        lag = self.restorer.lag(task)
        self.restorer.remove(task)
        if (active := self._closing.pop(task, None)) is not None:
            for store in active.task.stores.values():
                store.stop_scans()
            with self._as_far():
                await write_out(active.task)
            self.committing.lose(task)  # a task with a refused write is still in the cycle
            lag = 0
        self._producer.forget(task)
        rows = self._rows.pop(task, {})
        with self._as_far():
            if rows:
                plan = self._plans[task.subtopology]
                self.dormant.add(task, kept(plan, task.partition, rows), lag)
        self._positions.pop(task, None)
        self._beginnings.pop(task, None)
        self._granted.pop(task, None)
        with self._as_far():
            await self._stores.close(task, rows)
        self.feed(Happened(task, life.Event.CLOSED))

    @contextmanager
    def _as_far(self) -> Iterator[None]:
        """End the worker over a full or damaged disk, and go on: no task stays half closed."""
        try:
            yield
        except STORE_FAULTS as error:
            self._context.owner.fail(error)

    def _changelogs(self, task: TaskId) -> dict[str, TopicPartition]:
        return self._plans[task.subtopology].changelogs(task.partition)

    async def _find_positions(self, task: TaskId) -> None:
        tps = self._gateway.owned.of(task)
        changelogs = self._changelogs(task).values()
        found = await self.bounds.beginnings(tps, changelogs, f"task {task}")
        self._beginnings[task] = found
        self._positions[task] = {tp.topic: place for tp, place in found.places.items()}
        self.feed(Happened(task, life.Event.POSITIONS_KNOWN))


def refusing_of(context: WorkerContext, tasks: TaskDriver, producer: Producer) -> ProduceErrors:
    """Return the handler of task records that brokers refuse."""
    stores = (node for plan in context.plans.values() for node in plan.stores)
    return ProduceErrors(
        OnProduceError(context.config.on_produce_error),
        context.cluster.principal,
        tasks.actives,
        producer.current,
        frozenset(node.changelog for node in stores),
        context.journal,
        context.clock,
        stops=tasks.undone,
        fails=tasks.failed,
    )


def source_of(task: Task) -> SourceRecords | None:
    """Return the records that a task is processing, as the origin of the records it sends.

    Returns:
        None while the task processes no record.
    """
    if (chunk := task.at_hand) is None or chunk.start == chunk.stop:
        return None
    batch = chunk.batch
    offsets = chunk.batch.offsets
    return SourceRecords(
        batch.topic, batch.partition, offsets[chunk.start], offsets[chunk.stop - 1]
    )


async def write_out(task: Task) -> None:
    """Write all committed rows of a task to the stores, in slices."""
    done = False
    while not done:
        done = task.write_some(WRITE_ROWS)
        await asyncio.sleep(0)


def tell_newer(plan: SubTopology, partition: int, found: Mapping[str, CommittedPlace]) -> None:
    """Log the agents that repeat records because a later release wrote metadata it alone reads."""
    for source in plan.sources:
        offset, beside = found[source.topic]
        if beside.newer and len(source.readers) > 1:
            LOG.warning(
                "metadata_newer %s-%d: a later version of streamsx committed offset %d, this one "
                "cannot read how far each agent was: those of %s that were ahead repeat records "
                "from there: run the later version, or expect them twice",
                source.topic, partition, offset, ", ".join(sorted(source.readers.values())),
            )  # fmt: skip


def part_of(plan: SubTopology, topics: Collection[str]) -> SubTopology:
    """Return the plan with only the sources among `topics`.

    Without state, a topic may have fewer partitions than others in its sub-topology: tasks with
    higher numbers read fewer topics.
    """
    return replace(plan, sources=tuple(s for s in plan.sources if s.topic in topics))
