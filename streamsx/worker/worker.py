"""Starts and stops everything of one worker: topics, threads, loops, signals.

The main thread is the data loop: tasks, stores, fetching, producing, user code. The control thread
is the group: heartbeats, commits of offsets, plans. Messages cross in both directions, in order;
three values are read across without one: the lease, how often something was lost, and what the
data loop has published of its tasks.

Not here: what the parts do (`assemble` makes them).
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
from streamsx.config import Config
from streamsx.errors import StreamsxError, TaskFailed, first_of
from streamsx.event_loops import Threads, guarded, system_thread
from streamsx.group import member_events as e
from streamsx.group.member_events import ControlMessage
from streamsx.journal import LOG, Journal
from streamsx.state.directory import StateDirectory
from streamsx.tasks.rebalance_listeners import RebalanceListeners
from streamsx.tasks.task_registry import Ended
from streamsx.tasks.worker_context import RowsOf, WorkerContext, rocks_rows
from streamsx.topology.build import Topology
from streamsx.topology.partitions import Layout
from streamsx.topology.presence import Presence
from streamsx.worker.app_topics import AppTopics
from streamsx.worker.host import WorkerHost, take_sends_as_tasks
from streamsx.worker.leftovers import end_leftovers
from streamsx.worker.wiring import WorkerComponents

START_TIMEOUT_S = 30.0
"""For brokers that come up together with their workers: to answer, and then, to each question of a
start, that they are still loading.
"""
STOP_NOW_S = 5.0
"""A second signal, or a failure: one last commit may take this long."""
CLOSING_MAX_S = 30.0
CONTROL_END_S = 5.0
LAST_WORDS_S = 1.0
"""At least so long users' code has to end when it is cancelled."""
LAST_FLUSH_S = 5.0
CLEANUP_EVERY_S = 60.0
TIMEOUT_SHARE = 1 / 3
"""Of the session: a broker that has neither taken a connection nor answered by then has vanished,
and what it has not acknowledged by then is dropped by the kernel."""

NamedService = tuple[str, Callable[[], Coroutine[Any, Any, None]]]
"""A name and what runs beside the tasks: timers, the app's own tasks."""


class Worker:
    """One worker of an app; `run` to the end, `stop` from a signal or another task.

    `hosted` is given what the app asks outside of its tasks; `begun` is called once, when all parts
    are made and nothing of the group has begun. A simulation hands in threads, rows and randomness
    of its own.
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
        self._topology, self._config, self._directory = topology, config, directory
        self._journal, self._clock = journal, clock
        self._services, self._hosted = services, hosted
        self._tell_begun, self._threads, self._rows, self._rng = begun, threads, rows, rng
        self._listeners = listeners or RebalanceListeners()
        self._starting: asyncio.Task[Any] | None = None
        self._error: Exception | None = None
        self._out_at: float | None = None
        """Since when this worker is out of the group for good."""
        self._stopping = False
        self._security = security_of(config.broker_credentials, config.ssl_context)
        self._unreached = UnreachableAddresses()
        self._begun = False
        """It may be in the group: to end is to leave."""
        self._jobs: dict[asyncio.Task[None], None] = {}
        self._give_up_at: float | None = None
        """When users' code that does not end is left behind; None while nobody has said so."""
        self.left_behind: list[str] = []
        """Users' code that has not ended with this worker, by name and line."""
        self._users: set[asyncio.Task[None]] = set()
        self._control: asyncio.Future[None] | None = None
        """The control thread, done when it is over."""
        self._broken = False
        """One of them has failed: all are being cancelled, and nothing can begin."""
        self._alone = not topology.subtopologies
        """Timers only: there is no group to be in."""

    async def run(self) -> int:
        """Until it has left the group. The exit code; raises what stopped it.

        Raises BrokerUnreachable, UsageError and others before anything has begun.
        """
        self._journal(
            "worker_started",
            pid=os.getpid(),
            version=__version__,
            app=self._topology.app_id,
            instance=self._journal.instance,
            broker=",".join(self._config.bootstrap),
            directory=str(self._directory.path),
        )
        if self._security.shows_password:
            LOG.warning("password in the clear: SASL_PLAINTEXT: give the credentials ssl_context")
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
            return 0  # told to stop before there was anything to leave
        except BaseExceptionGroup as group:
            raise first_of(group) from None
        if self._error is not None:
            raise self._error
        return 1 if self._made.link.lost_leaving else 0

    async def _run(self) -> None:
        others, cluster = asyncio.all_tasks(), self.connect()
        try:
            await cluster.start(START_TIMEOUT_S)
            given = WorkerContext(
                self, self._topology, self._config, self._directory, self._journal, self._clock,
                cluster, self._rows, self._listeners,
            )  # fmt: skip
            topics = AppTopics(given)
            layout = await topics.layout()
            async with asyncio.TaskGroup() as self._group:
                made = WorkerComponents(given, layout.counts)
                presence = await self._begin(made, topics, layout)
                await self._work(made, topics.watch(presence, self.fail))
        finally:
            await cluster.stop()
            self.left_behind = await end_leftovers(others, self.patience_s())

    def patience_s(self) -> float:
        """Return how long users' code may still take to end."""
        if self._give_up_at is None:
            return STOP_NOW_S
        return max(self._give_up_at - self._clock.now(), LAST_WORDS_S)

    def stop(self) -> None:
        """Leave as soon as others have taken over, within `shutdown_timeout`; again: now. A static
        member that comes back commits and goes, within that time too, but not one that was told to
        leave.
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
        elif self._config.on_stop == "stay" and not self._made.link.leaving:
            most_s = min(self._limit_s, self._config.revoke_timeout_s)
            self._made.session.post(e.Stop(now + max(STOP_NOW_S, most_s), comes_back=True))
        else:
            limit_s = self._limit_s
            self._made.session.post(e.Leave(now + limit_s if limit_s < math.inf else None))
        self._stopping = True

    @property
    def _limit_s(self) -> float:
        """Seconds that a clean end may take."""
        return min(self._config.shutdown_timeout_s, self._config.scale_down_timeout_s)

    def fail(self, error: Exception) -> None:
        """What no retry mends: the other tasks commit, then this worker goes."""
        if self._error is not None:
            return
        self._error, self._stopping = error, True
        self._give_up_at = self._clock.now() + STOP_NOW_S
        self._journal("error", what=f"{type(error).__name__}: {error}", where="worker")
        if isinstance(error, TaskFailed) and error.__cause__ is not None:
            LOG.error("users' code has failed", exc_info=error.__cause__)
        if self._control is not None and not self._control.done():
            self._made.session.post(e.Stop(self._clock.now() + STOP_NOW_S))
        else:
            self.ended(error)

    @property
    def made(self) -> WorkerComponents | None:
        """The parts, for who looks on; None until the topics are there."""
        return getattr(self, "_made", None)

    # -- what the parts call

    def spawn(self, job: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        made = self._group.create_task(job, name=name)
        self._jobs[made] = None
        made.add_done_callback(self._job_over)
        return made

    def spawn_users(self, job: Coroutine[Any, Any, None], *, name: str) -> None:
        """Run users' code: when it does not end with this worker, the worker ends without it."""
        made = self._loop.create_task(job, name=name)
        self._users.add(made)
        made.add_done_callback(self._users_over)

    def _users_over(self, job: asyncio.Task[None]) -> None:
        self._users.discard(job)
        if not job.cancelled() and isinstance(job.exception(), Exception):
            job.result()  # what is raised here is a fault of ours, and ends the worker

    def _job_over(self, job: asyncio.Task[None]) -> None:
        del self._jobs[job]
        self._broken = self._broken or (not job.cancelled() and job.exception() is not None)

    def deliver(self, message: ControlMessage) -> None:
        """From the control thread."""
        with suppress(RuntimeError):  # the loop is over, and with it everybody who could hear
            self._loop.call_soon_threadsafe(self._hear, message)

    def ended(self, error: Exception | None) -> None:
        """Out of the group for good: what is still held is closed."""
        self._error = self._error or error
        self._out_at = self._clock.now()
        self._made.tasks.feed(Ended())

    def connect(self) -> Cluster:
        """Each thread has its own: connections belong to an event loop."""
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

    def _hear(self, message: ControlMessage) -> None:
        """Unless it ends by an error: then nothing can begin any more.

        The race (seed 32): a full disk ends the closing of a store, and with it this worker; all
        that it runs is being cancelled; its member hears that everything is lost, and says so.
        """
        if not self._broken:
            self._made.link.hear(message)
            self._made.arrived.set()

    # -- at work

    async def _begin(self, made: WorkerComponents, topics: AppTopics, layout: Layout) -> Presence:
        """The disk is looked at before a topic is made of which it may have the last copy."""
        await self._loop.run_in_executor(made.executor, self._directory.empty_trash)
        leftovers = made.stores.leftovers()
        await topics.make(layout, leftovers.values())
        presence = await topics.noted()
        made.tasks.bounds.without_offsets = await topics.without_offsets(layout)
        self._made = made
        await made.limits.learn([spec.name for spec in self._topology.topics])
        await made.producer.start()
        await made.host.producer.start()
        self._hosted(made.host)  # before listeners are called, and bodies that ask it
        await made.tasks.dormant.begin(leftovers)
        made.link.publish()
        return presence

    async def _work(self, made: WorkerComponents, watch: Coroutine[Any, Any, None]) -> None:
        background = {
            "watch the topics": watch,
            "fetch data": made.tasks.fetcher.run(),
            "fetch changelogs": made.tasks.changelogs.run(),
            "ask for bounds": made.tasks.bounds.run(),
            "ask for positions": made.tasks.bounds.committed.run(),
            "watch what is on the disk": made.tasks.dormant.watch(),
            "clean up": self._clean_up(made),
            "purge": made.purging.run(),
            "tell of failures": made.failures.run(),
            "watch outputs": made.limits.run(),
            "services": self._serve(made),
        }
        for name, job in background.items():
            _ = self.spawn(job, name=name)
        self._tell_begun()
        self._begun = True
        try:
            if self._alone:
                made.link.restored.set()
            else:
                self._control = self._threads("control", self._in_group)
                self._control.add_done_callback(self._out)
            await made.loop.run(self._over)
            if self._error is None:
                await self._last_flush(made.host.producer)
        finally:
            made.producer.close()
            made.host.producer.close()
            made.session.post(e.Silent("its data loop has ended"))  # nothing to one that has left
            for left in (*self._jobs, *self._users):
                left.cancel()
            if self._control is not None:
                await asyncio.wait([self._control], timeout=CONTROL_END_S)
            made.executor.shutdown()
            made.stores.snapshots.close()

    async def _in_group(self) -> None:
        """On the control thread."""
        directory, cluster = self._directory, self.connect()
        predecessor = None  # of a static member the coordinator knows it
        if not self._config.static_membership:
            predecessor = directory.predecessor(self._topology.app_id, socket.gethostname())
        try:
            await guarded(self._made.session.run(cluster, predecessor))
        finally:
            await cluster.stop()

    def _out(self, control: asyncio.Future[None]) -> None:
        if (error := control.exception()) is not None:
            self._made.link.crashed(error)

    def _over(self) -> bool:
        """Out of the group, everything closed and everybody told, or given up."""
        if self._out_at is None:
            return False
        now, out_for_s = self._clock.now(), self._clock.now() - self._out_at
        if out_for_s >= CLOSING_MAX_S:
            return True
        called = len(self._made.listening)
        if called and self._give_up_at is not None and out_for_s >= LAST_WORDS_S:
            called = now < self._give_up_at
        return not (len(self._made.tasks.holdings) or called)

    async def _last_flush(self, producer: Producer) -> None:
        """What timers have sent. Tasks have nothing left that is theirs to send."""
        try:
            async with asyncio.timeout(LAST_FLUSH_S):
                await producer.flush()
        except TimeoutError:
            LOG.warning("not everything was sent: the broker did not take it in %s s", LAST_FLUSH_S)

    async def _serve(self, made: WorkerComponents) -> None:
        """The app's own tasks and timers, once this worker's first tasks are restored."""
        if not self._services:
            return
        await made.link.restored.wait()
        for name, start in self._services:
            self.spawn_users(start(), name=name)

    async def _clean_up(self, made: WorkerComponents) -> None:
        """Stores that no task here has had for a while."""
        while True:
            await asyncio.sleep(CLEANUP_EVERY_S)
            try:
                await made.stores.clean_up(made.tasks.holdings, made.tasks.dormant.remove)
            except StreamsxError as error:
                self.fail(error)
