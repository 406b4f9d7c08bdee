"""Worker of an app: start and end of its topics, threads, event loops and signal handlers.

The main thread runs the data loop: tasks, stores, fetching, producing, user code. The control
thread runs the group member: heartbeats, offset commits, plans. Messages cross in both directions,
in order. Three values are read across threads without a message: the lease, the number of losses,
and the data loop's published report on its tasks.

Not here: the work of the parts (`wiring` creates them).
"""

import asyncio
import math
import os
import random
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from streamsx import __version__
from streamsx.client.cluster import TIMEOUT_S, Cluster
from streamsx.client.producer import Producer
from streamsx.client.security import security_of
from streamsx.client.unreachable import UnreachableAddresses
from streamsx.clock import Clock
from streamsx.config import Config, is_exact
from streamsx.errors import AppStopped, StreamsxError, TaskFailed, first_of
from streamsx.event_loops import Threads, guarded, system_thread
from streamsx.group import member_events as e
from streamsx.group.member_events import ControlMessage
from streamsx.journal import LOG, Journal
from streamsx.state.directory import StateDirectory
from streamsx.tasks.rebalance_listeners import RebalanceListeners
from streamsx.tasks.task_registry import Ended
from streamsx.topology.build import Topology
from streamsx.topology.partitions import Layout
from streamsx.topology.presence import Presence
from streamsx.worker.app_topics import AppTopics
from streamsx.worker.host import WorkerHost, take_sends_as_tasks
from streamsx.worker.leftovers import end_leftovers
from streamsx.worker.memory_budget import RowsOf, rocks_rows
from streamsx.worker.wiring import WorkerComponents, WorkerContext

START_TIMEOUT_S = 30.0
"""Limit for brokers that start together with their workers: for the first answer, and then for each
request of the start that is answered with "still loading"."""
STOP_NOW_S = 5.0
"""Time for one last commit after a second signal or a failure."""
TELL_S = 5.0
"""Seconds for which a worker that stops its app stays in the group, and repeats it in each join.

A member may miss the first round with the reason: another member has read it and left, so the
SyncGroup of this one is refused and it joins again."""
DO_AGAIN_S = 2.0
"""Seconds for which the other tasks of a worker go on when one ends it, under exactly-once.

That one has gone back first, and all of them with it. "The worker leaves at once": tasks that have
not begun again commit nothing, and a second task with such a record takes back the work of all. So
a worker that is started again and again would get no further.
"""
CLOSING_MAX_S = 30.0
CONTROL_END_S = 5.0
LAST_WORDS_S = 1.0
"""Least time that cancelled user code has to end."""
LAST_FLUSH_S = 5.0
CLEANUP_EVERY_S = 60.0
TIMEOUT_SHARE = 1 / 3
"""Share of the session timeout. A broker that has neither accepted a connection nor answered by
then has vanished, and the kernel drops the connection if data stay unacknowledged for that long."""

IN_THE_CLEAR = (
    "The password travels in the clear (SASL_PLAINTEXT): give the credentials an ssl_context."
)
NOT_SENT = (
    "Not all records of timers and own tasks were sent: the brokers did not take them within %g s. "
    "They are lost."
)
NO_AGENTS = (
    "App %s has no agents or flows: this worker reads no topic and joins no group; only the app's "
    "timers and own tasks run."
)

NamedService = tuple[str, Callable[[], Coroutine[Any, Any, None]]]
"""Name and coroutine function of a job beside the tasks: timers, the app's own tasks."""


class Worker:
    """Worker of an app; `run` runs until the end, `stop` is for a signal or another task.

    `hosted` receives the host for requests of the app outside of its tasks. `begun` is called once,
    when all parts exist and the group has not begun. A simulation passes threads, rows and
    randomness of its own.
    """

    def __init__(
        self,
        topology: Topology,
        config: Config,
        directory: StateDirectory,
        journal: Journal,
        clock: Clock,
        *,
        services: Sequence[NamedService] = (),
        hosted: Callable[[WorkerHost], None] = lambda _: None,
        begun: Callable[[], None] = lambda: None,
        threads: Threads = system_thread,
        rows: RowsOf = rocks_rows,
        listeners: RebalanceListeners | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._topology = topology
        self._config = config
        self._directory = directory
        self._journal = journal
        self._clock = clock
        self._services = services
        self._hosted = hosted
        self._on_begun = begun
        self._threads = threads
        self._rows = rows
        self._rng = rng
        self._listeners = listeners or RebalanceListeners()
        self._starting: asyncio.Task[Any] | None = None
        self._error: Exception | None = None
        self._out_at: float | None = None
        """Time since when this worker is out of the group for good."""
        self._stopping = False
        self._security = security_of(config.broker_credentials, config.ssl_context)
        self._unreached = UnreachableAddresses()
        self._begun = False
        """The worker may be a member of the group, so an end requires leaving."""
        self._jobs: dict[asyncio.Task[None], None] = {}
        self._give_up_at: float | None = None
        """Time at which user code that does not end is left behind; None: no limit yet."""
        self.left_behind: list[str] = []
        """User code that has not ended with this worker, by name and line."""
        self._users: set[asyncio.Task[None]] = set()
        self._control: asyncio.Future[None] | None = None
        """Future of the control thread, done when the thread is over."""
        self._broken = False
        """A job has failed: all jobs are being cancelled, and no new job can begin."""
        self._alone = not topology.subtopologies
        """The app has timers only, and joins no group."""

    async def run(self) -> int:
        """Run until the worker has left the group, and return the exit code.

        Raises:
            BrokerUnreachable: no broker answers at the start.
            UsageError: the app, its settings or its topics are wrong; nothing has begun.
            StreamsxError: the error that stopped the worker.
        """
        self._journal(
            "worker_started",
            pid=os.getpid(),
            version=__version__,
            app=self._topology.app_id,
            instance=self._journal.instance,
            broker=",".join(self._config.bootstrap),
            directory=str(self._directory.path),
            guarantee=self._config.processing_guarantee,
        )
        if self._security.shows_password:
            LOG.warning(IN_THE_CLEAR)
        if self._alone:
            LOG.warning(NO_AGENTS, self._topology.app_id)
        self._loop = asyncio.get_running_loop()
        take_sends_as_tasks(self._loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        self._starting = asyncio.current_task()
        try:
            await guarded(self._run())
        except asyncio.CancelledError:
            if self._begun or not self._stopping:
                raise
            return 0  # stopped before the worker had joined
        except BaseExceptionGroup as group:
            raise first_of(group) from None
        if self._error is not None:
            raise self._error
        return 1 if self._made.rebalance_handler.lost_leaving else 0

    async def _run(self) -> None:
        others = asyncio.all_tasks()
        cluster = self.connect()
        try:
            await cluster.start(START_TIMEOUT_S)
            context = WorkerContext(
                self, self._topology, self._config, self._directory, self._journal, self._clock,
                cluster, self._rows, self._listeners,
            )  # fmt: skip
            topics = AppTopics(
                cluster=cluster,
                topology=self._topology,
                config=self._config,
                directory=self._directory,
                journal=self._journal,
                clock=self._clock,
            )
            layout = await topics.layout()
            async with asyncio.TaskGroup() as self._group:
                made = WorkerComponents(context, layout.counts)
                presence = await self._begin(made, topics, layout)
                await self._work(made, topics.watch(presence, self.fail))
        finally:
            await cluster.stop()
            self.left_behind = await end_leftovers(others, self.patience_s())

    def patience_s(self) -> float:
        """Return the seconds that user code may still take to end."""
        if self._give_up_at is None:
            return STOP_NOW_S
        return max(self._give_up_at - self._clock.now(), LAST_WORDS_S)

    def stop(self) -> None:
        """Leave as soon as others have taken over, within `shutdown_timeout`; a second call
        hurries.

        The second call leaves within `STOP_NOW_S`. A static member that comes back commits and
        goes, within `shutdown_timeout` too, unless it was asked to leave.
        """
        now = self._clock.now()
        patience_s = STOP_NOW_S if self._stopping else self._config.shutdown_timeout_s
        if patience_s < math.inf:
            self._give_up_at = now + patience_s
        if not self._begun:
            assert self._starting is not None
            self._starting.cancel()
        elif self._alone:
            self.ended(None)
        elif self._stopping:
            self._made.session.post(e.Stop(now + STOP_NOW_S))
        elif self._config.on_stop == "stay" and not self._made.rebalance_handler.leaving:
            most_s = min(self._limit_s, self._config.revoke_timeout_s)
            self._made.session.post(e.Stop(now + max(STOP_NOW_S, most_s), comes_back=True))
        else:
            limit_s = self._limit_s
            self._made.session.post(e.Leave(now + limit_s if limit_s < math.inf else None))
        self._stopping = True

    @property
    def _limit_s(self) -> float:
        """Return the seconds that a clean end may take."""
        return min(self._config.shutdown_timeout_s, self._config.scale_down_timeout_s)

    def fail(self, error: Exception) -> None:
        """End the worker after an error that no retry cures; the other tasks commit first."""
        if self._error is not None:
            return
        self._error = error
        self._stopping = True
        self._give_up_at = self._clock.now() + STOP_NOW_S
        self._journal("error", what=f"{type(error).__name__}: {error}", where="worker")
        if isinstance(error, TaskFailed) and error.__cause__ is not None:
            LOG.error("The error of the app's own code was:", exc_info=error.__cause__)
        if self._control is None or self._control.done():
            self.ended(error)
        elif isinstance(error, AppStopped):
            self._give_up_at += TELL_S
            self._made.reports.stop_app(str(error))
            self._loop.call_later(TELL_S, self._leave_now)
        elif isinstance(error, TaskFailed) and is_exact(self._config):
            self._give_up_at += DO_AGAIN_S
            self._loop.call_later(DO_AGAIN_S, self._leave_now)
        else:
            self._leave_now()

    def _leave_now(self) -> None:
        """Release all tasks and leave the group."""
        if self._control is not None and not self._control.done():
            self._made.session.post(e.Stop(self._clock.now() + STOP_NOW_S))

    @property
    def made(self) -> WorkerComponents | None:
        """Return the parts for an observer; None until the topics exist."""
        return getattr(self, "_made", None)

    # -- called by the parts

    def spawn(self, job: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        made = self._group.create_task(job, name=name)
        self._jobs[made] = None
        made.add_done_callback(self._job_over)
        return made

    def spawn_users(self, job: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run user code, which is left behind if it does not end with this worker."""
        made = self._loop.create_task(job, name=name)
        self._users.add(made)
        made.add_done_callback(self._users_over)

    def _users_over(self, job: asyncio.Task[None]) -> None:
        self._users.discard(job)
        if not job.cancelled() and isinstance(job.exception(), Exception):
            job.result()  # an error here is a bug of streamsx, and ends the worker

    def _job_over(self, job: asyncio.Task[None]) -> None:
        del self._jobs[job]
        self._broken = self._broken or (not job.cancelled() and job.exception() is not None)

    def deliver(self, message: ControlMessage) -> None:
        """Pass a message from the control thread to the data loop."""
        with suppress(RuntimeError):  # the loop is closed, and all receivers have ended
            self._loop.call_soon_threadsafe(self._handle, message)

    def ended(self, error: Exception | None) -> None:
        """Close the remaining tasks, because the worker is out of the group for good."""
        self._error = self._error or error
        self._out_at = self._clock.now()
        self._made.tasks.feed(Ended())

    def connect(self) -> Cluster:
        """Return a new cluster client; each thread needs one, as connections belong to a loop."""
        share_s = self._config.session_timeout_s * TIMEOUT_SHARE
        bootstrap = ",".join(self._config.bootstrap)
        return Cluster(
            bootstrap,
            self._security,
            timeout_s=min(TIMEOUT_S, share_s),
            user_timeout_ms=int(share_s * 1000),
            tries_for_s=START_TIMEOUT_S,
            rng=self._rng,
            unreached=self._unreached,
        )

    def _handle(self, message: ControlMessage) -> None:
        """Handle a message of the member, unless a failed job is ending the worker.

        The race (seed 32): a full disk fails the closing of a store, and with it this worker; all
        jobs are being cancelled; the member reports that all partitions are lost. No new job can
        begin then.
        """
        if not self._broken:
            self._made.rebalance_handler.handle(message)
            self._made.arrived.set()

    # -- at work

    async def _begin(self, made: WorkerComponents, topics: AppTopics, layout: Layout) -> Presence:
        """Open the state directory, create topics and start the producers.

        The disk is read before a topic is created, because the disk may have the last copy of its
        state.
        """
        await self._loop.run_in_executor(made.executor, self._directory.empty_trash)
        leftovers = made.opener.leftovers()
        await topics.make(layout, leftovers.values())
        presence = await topics.noted()
        made.bounds.without_offsets = await topics.without_offsets(layout)
        self._made = made
        await made.limits.learn([spec.name for spec in self._topology.topics])
        await made.producer.start()
        await made.host.producer.start()
        await made.global_tables.fill()
        self._hosted(made.host)  # before listeners and bodies can use the host
        await made.inactive.begin(leftovers)
        made.reports.publish()
        return presence

    async def _work(self, made: WorkerComponents, watch: Coroutine[Any, Any, None]) -> None:
        background = {
            "watch the topics": watch,
            "fetch data": made.fetcher.run(),
            "fetch changelogs": made.changelogs.run(),
            "ask for bounds": made.bounds.run(),
            "ask for positions": made.bounds.committed.run(),
            "watch what is on the disk": made.inactive.watch(),
            "clean up": self._clean_up(made),
            "purge": made.purge.run(),
            "tell of failures": made.failures.run(),
            "watch outputs": made.limits.run(),
            "services": self._serve(made),
        }
        for name, job in background.items():
            _ = self.spawn(job, name=name)
        self._on_begun()
        self._begun = True
        try:
            if self._alone:
                made.reports.restored.set()
            else:
                self._control = self._threads("control", self._in_group)
                self._control.add_done_callback(self._out)
            await made.loop.run(self._over)
            if self._error is None:
                await self._last_flush(made.host.producer)
            await self._finish(made.producer)
        finally:
            made.producer.close()
            made.host.producer.close()
            made.session.post(
                e.Silent("its main thread has ended")
            )  # no effect once the member has left
            for left in (*self._jobs, *self._users):
                left.cancel()
            if self._control is not None:
                await asyncio.wait([self._control], timeout=CONTROL_END_S)
            made.executor.shutdown()
            made.snapshots.close()

    async def _in_group(self) -> None:
        """Run the session on the control thread."""
        directory = self._directory
        cluster = self.connect()
        predecessor = None  # a static member comes back under its instance id
        if not self._config.static_membership:
            predecessor = directory.predecessor(self._topology.app_id, socket.gethostname())
        try:
            await guarded(self._made.session.run(cluster, predecessor))
        finally:
            await cluster.stop()

    def _out(self, control: asyncio.Future[None]) -> None:
        if (error := control.exception()) is not None:
            self._made.rebalance_handler.crashed(error)

    def _over(self) -> bool:
        """Return whether the data loop may end.

        The worker is out of the group, all stores are closed and all listeners are called, or their
        time is over.
        """
        if self._out_at is None:
            return False
        now = self._clock.now()
        out_for_s = self._clock.now() - self._out_at
        if out_for_s >= CLOSING_MAX_S:
            return True
        called = len(self._made.listener_calls)
        if called and self._give_up_at is not None and out_for_s >= LAST_WORDS_S:
            called = now < self._give_up_at
        return not (len(self._made.registry) or called)

    async def _last_flush(self, producer: Producer) -> None:
        """Send the remaining records of timers; tasks have none of their own left."""
        try:
            async with asyncio.timeout(LAST_FLUSH_S):
                await producer.flush()
        except TimeoutError:
            LOG.warning(NOT_SENT, LAST_FLUSH_S)

    async def _finish(self, producer: Producer) -> None:
        """Leave no transaction open; brokers would abort it after its time-out."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_FLUSH_S):
                await producer.finish()

    async def _serve(self, made: WorkerComponents) -> None:
        """Start the app's own tasks and timers, once this worker's first tasks are restored."""
        if not self._services:
            return
        await made.reports.restored.wait()
        for name, start in self._services:
            self.spawn_users(start(), name=name)

    async def _clean_up(self, made: WorkerComponents) -> None:
        """Remove stores that no task here has used for a while."""
        while True:
            await asyncio.sleep(CLEANUP_EVERY_S)
            try:
                await made.cleanup.run(made.registry, made.inactive.remove)
            except StreamsxError as error:
                self.fail(error)
