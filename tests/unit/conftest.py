"""A cluster of one scripted broker; the real broker and real workers in virtual time.

A worker at the `Bench` is either whole, or a test plays its control thread (`Hand`): the test sends
what the group would send, and sees what the worker reports.
"""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from math import inf
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from streamsx import App, Stream
from streamsx.assignor.wire import AssignmentView
from streamsx.broker.api.served import answered
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.log import appending
from streamsx.broker.log.log import Log
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.broker.net.server import BrokerServer
from streamsx.broker.service import Service
from streamsx.client.cluster import Cluster
from streamsx.clock import Clock
from streamsx.errors import DiskFailed
from streamsx.group import member_events as e
from streamsx.journal import Journal
from streamsx.metrics import MetricRegistry
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.record_batch import Builder, columns
from streamsx.protocol.wire import Api
from streamsx.simulation.network import Network
from streamsx.simulation.nodes import name_topics
from streamsx.simulation.process import Process, ProcessMain
from streamsx.simulation.scheduler import Scheduler, SimClock
from streamsx.state.api import END, ROW, Rows
from streamsx.state.directory import StateDirectory
from streamsx.state.memory import MemoryRows
from streamsx.state.rocks import RocksMemory, RocksRows
from streamsx.worker.wiring import WorkerComponents
from streamsx.worker.worker import Worker
from tests.support.scripted_broker import ScriptedBroker

Clusters = Callable[[ScriptedBroker], AbstractAsyncContextManager[Cluster]]


@pytest.fixture
def connected() -> Clusters:
    """Connect a cluster to a running broker; it follows the broker's topics."""

    @asynccontextmanager
    async def connect(broker: ScriptedBroker) -> AsyncIterator[Cluster]:
        cluster = Cluster(broker.bootstrap)
        await cluster.start()
        await cluster.follow(broker.topics)
        try:
            yield cluster
        finally:
            await cluster.stop()

    return connect


HOST, PORT = "127.0.0.1", 9092
READ_BYTES = 1 << 20
BATCH_BYTES = 1 << 20
ROWS_PER_BATCH = 500


class VirtualCluster:
    """Real broker in virtual time. `topics`: topics that exist at the start, with their
    partitions.
    """

    def __init__(self, folder: Path, topics: Mapping[str, int], seed: int = 1) -> None:
        self.folder = folder
        self.scheduler = Scheduler(seed)
        self.net = Network(self.scheduler)
        self.answer: Callable[[Service, ServedRequest], ReplyBody | None] = answered
        """A test may stand between."""
        self.committed: dict[TopicPartition, tuple[int, str]] = {}
        """Offset and metadata, of the groups that are played by hand."""
        self.uncommitted = (0, "")
        """The same of other partitions: a group that runs has committed all that it reads."""
        self._fetched: list[tuple[float, TopicPartition, int]] = []
        ids = self.scheduler.stream("ids")
        self.fresh_id = lambda: UUID(int=ids.getrandbits(128))
        self.process = Process(self.net, "broker", host=HOST)
        self.broker = BrokerServer(
            folder / "broker",
            host=HOST,
            port=PORT,
            topics=topics,
            clock=self.process.clock,
            fresh_id=self.fresh_id,
            answer=self._answer,
        )
        self.process.start(self._serve)
        self.run(0.01)

    def _answer(self, service: Service, call: ServedRequest) -> ReplyBody | None:
        name_topics(service, call)
        if call.api is Api.FETCH:
            now = self.scheduler.now
            for topic in call.body.topics:
                for part in topic.partitions:
                    tp = TopicPartition(str(topic.topic), part.partition)
                    self._fetched.append((now, tp, part.fetch_offset))
        return self.answer(service, call)

    async def _serve(self) -> None:
        async with self.broker:
            await asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """End all. Raises Violation if something forbidden happened."""
        self.scheduler.close()
        if self.scheduler.violation is not None:
            raise self.scheduler.violation

    def station(
        self, app: App, name: str = "w1", *, by_hand: bool = True, stores: "Stored | None" = None
    ) -> "WorkerHarness":
        """Start a worker, whose group is played by hand or real. `stores`: those of a dead
        worker.
        """
        return WorkerHarness(self, app, name, {} if stores is None else stores, by_hand=by_hand)

    def begun(self, app: App, name: str = "w1") -> "WorkerHarness":
        """Start a worker, and wait until it waits for its first assignment."""
        station = self.station(app, name)
        self.until(lambda: station.hand.alive)
        return station

    def run(self, seconds: float) -> None:
        self.scheduler.run_until(self.scheduler.now + seconds)

    def until(self, done: Callable[[], object], limit_s: float = 60.0) -> None:
        """Run until a condition holds; fail at the time limit."""
        end = self.scheduler.now + limit_s
        self.scheduler.run_until(end, lambda: bool(done()))
        assert done(), f"not within {limit_s} s"

    def fetched(self, since: float) -> list[tuple[TopicPartition, int]]:
        """Return the partitions and offsets that were fetched from that second on."""
        return [(tp, offset) for at, tp, offset in self._fetched if at >= since]

    # -- logs

    def log(self, tp: TopicPartition) -> Log:
        found = self.broker.service.topics.by_name[tp.topic].log(tp.partition)
        assert found is not None
        return found

    def append(
        self, tp: TopicPartition, rows: Iterable[tuple[bytes | None, bytes | None]],
        at_ms: int | None = None,
    ) -> None:  # fmt: skip
        """Append one batch of keys and values."""
        now_ms = int(SimClock(self.scheduler).wall() * 1000)
        builder = Builder(BATCH_BYTES)
        for key, value in rows:
            assert builder.append(now_ms if at_ms is None else at_ms, key, value)
        self.at_broker(
            lambda: appending.append(self.log(tp), memoryview(builder.close()), BATCH_BYTES)
        )

    def feed(self, partition: int, *values: str, at_ms: int | None = None) -> None:
        """Append words."""
        self.append(words(partition), [(None, value.encode()) for value in values], at_ms)

    def remember(self, tp: TopicPartition, batches: int, value: bytes = b"%d") -> int:
        """Append rows to a changelog, 500 per batch; return their number."""
        for batch in range(batches):
            numbers = range(batch * ROWS_PER_BATCH, (batch + 1) * ROWS_PER_BATCH)
            self.append(tp, [(b'"%06d"' % n, value % n) for n in numbers])
        self.run(0.1)
        return batches * ROWS_PER_BATCH

    def counted(self) -> Counter[str]:
        """Return the counts in the changelogs."""
        found = Counter[str]()
        for partition in range(3):
            for key, value in {k: v for k, v in self.read(changelog(partition)) if k and v}.items():
                found[key.decode().strip('"')] += int(value)
        return found

    def grow(self, topic: str, partitions: int) -> None:
        topics = self.broker.service.topics
        self.at_broker(lambda: topics.grow([(topics.by_name[topic], partitions)]))
        self.run(0.01)

    def delete(self, topic: str) -> None:
        topics = self.broker.service.topics
        self.at_broker(lambda: topics.delete(topics.by_name[topic]))
        self.run(0.01)

    def create(self, topic: str, partitions: int) -> None:
        service = self.broker.service
        named = service.fresh_id().bytes
        self.at_broker(lambda: service.topics.create(topic, named, partitions, {}))
        self.run(0.01)

    def at_broker(self, what: Callable[[], object]) -> None:
        """Call a function in a turn of the broker's thread."""
        self.process.main.call(what)

    def read(self, tp: TopicPartition) -> list[tuple[bytes | None, bytes | None]]:
        """Return all keys and values of a topic."""
        log, found = self.log(tp), list[tuple[bytes | None, bytes | None]]()
        at = log.start
        while at < log.high_watermark:
            batch = columns(log.read(at, READ_BYTES), at)
            found += zip(batch.keys, batch.values, strict=True)
            at = batch.next_offset
        return found


def words(partition: int) -> TopicPartition:
    return TopicPartition("words", partition)


def changelog(partition: int, table: str = "counts") -> TopicPartition:
    return TopicPartition(f"t-{table}-changelog", partition)


def app_of(**settings: Any) -> App:
    given = {"broker": f"{HOST}:{PORT}", "session_timeout": 10, "memory_budget": "32MiB"}
    return App("t", topic_partitions=3, **{**given, **settings})


def counting(*, tables: int = 0, **settings: Any) -> App:
    """Return an app that counts each word, in several tables on request; `poison` is
    not counted.
    """
    app = app_of(**settings)
    counts = app.Table("counts", default=int, key_type=str, value_type=int)
    others = [app.Table(f"other{n}", default=int, value_type=int) for n in range(tables)]

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def count(stream: Stream[str]) -> None:
        async for word in stream:
            if word == "poison":
                raise ValueError(word)
            counts[word] += 1
            for other in others:
                other[word] += 1

    return app


class KeptRows(MemoryRows):
    """Rows as on a disk: they stay when closed, and each write takes time."""

    def __init__(self, station: "WorkerHarness", layout: str = "") -> None:
        super().__init__()
        self._station, self._layout = station, layout

    def take(self, folder: str, old: str) -> bool:
        """Take the rows of a database in that folder."""
        Path(old).mkdir()
        memory = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=1 << 20)
        with closing(RocksRows(Path(folder), memory, self._layout)) as built:
            self.wipe()
            super().write(dict(built.scan(ROW, END)), built.position())
        shutil.rmtree(folder)
        return True

    def write(self, rows: Mapping[bytes, bytes | None], position: int | None) -> None:
        self._station.writes += 1
        if self._station.full:
            raise DiskFailed("disk full or broken: here: make room")
        if self._station.write_s:
            self._station.bench.scheduler.elapse(self._station.write_s)
        super().write(rows, position)

    def close(self) -> None: ...


Stored = dict[tuple[str, int], MemoryRows]
"""By name and partition."""


class WorkerHarness:
    """Worker of an app that starts now.

    `stores`: its disk, by name and partition; a write to it takes `write_s`.
    """

    def __init__(
        self, bench: VirtualCluster, app: App, name: str, stores: "Stored", *, by_hand: bool
    ) -> None:
        self.bench, self.name, self._app = bench, name, app
        self.topology = app.topology()
        self.events: list[tuple[float, str, dict[str, object]]] = []
        self.stores = stores
        self.write_s, self.writes, self.full = 0.0, 0, False
        self.refusals: list[Exception] = []
        """What the next openings of stores raise."""
        self.hand = FakeMember(self)
        self.process = Process(bench.net, name)
        self.process.on_kill.append(self._release)
        self._threads = self._hand if by_hand else self.process.begin
        self._worker: Worker | None = None
        self._directory: StateDirectory | None = None
        self.main = self.process.start(self._main, "data")

    async def _main(self) -> int:
        config, folder = self._app.conf, self.bench.folder / self.name
        directory = self._directory = StateDirectory(folder, config.id, self.bench.fresh_id)
        self._worker = worker = Worker(
            self.topology,
            config,
            directory,
            _Journal(self.name, self.process.clock, self.events),
            self.process.clock,
            services=[(job.name, job.run) for job in self._app.jobs],
            hosted=lambda host: setattr(self._app, "host", host),
            threads=self._threads,
            rows=lambda _: self._rows,
            listeners=self._app.listeners,
            rng=self.bench.scheduler.stream(self.name),
        )
        try:
            return await worker.run()
        finally:
            directory.release()

    def _release(self) -> None:
        if self._directory is not None:
            self._directory.release()

    def _hand(self, _: str, __: ProcessMain) -> "asyncio.Future[None]":
        return self.hand.start()

    def _rows(self, path: Path, layout: str) -> Rows:
        if self.refusals:
            raise self.refusals.pop(0)
        path.mkdir(parents=True, exist_ok=True)
        return self.stores.setdefault((path.parent.name, int(path.name)), KeptRows(self, layout))

    @property
    def begun(self) -> bool:
        """Return whether the worker has started and lives."""
        return self.process.alive and self._worker is not None and self._worker.made is not None

    @property
    def left_behind(self) -> list[str]:
        """Return the users' code that the worker has left running at its end."""
        return self._worker.left_behind if self._worker else []

    @property
    def made(self) -> WorkerComponents:
        parts = self._worker.made if self._worker else None
        assert parts is not None
        return parts

    @property
    def metrics(self) -> MetricRegistry:
        """Return the metrics of the worker that runs, or ran last."""
        return self.made._context.metrics

    def told(self, event: str) -> list[dict[str, object]]:
        """Return the events of its journal."""
        return [fields for _, name, fields in self.events if name == event]

    def states(self, task: TaskId) -> list[object]:
        """Return the states that the task has passed."""
        return [moved["to"] for moved in self.told("task") if moved["task"] == str(task)]

    def position(self, partition: int, table: str = "counts") -> int:
        """Return the position of a store."""
        store = self.stores.get((table, partition))
        return (store.position() or 0) if store else 0

    def rows(self, partition: int, table: str = "counts") -> dict[str, bytes]:
        """Return the rows of a table."""
        found = self.stores[table, partition].scan(ROW, None)
        return {key.removeprefix(ROW).decode().strip('"'): value for key, value in found}

    def deliver(self, message: e.ControlMessage) -> None:
        assert self._worker is not None
        self._worker.deliver(message)


class FakeMember:
    """Control thread played by a test: a thread and a session without a loop.

    It answers with the positions in `Bench.committed` and accepts every commit, unless `holds` says
    to wait.
    """

    def __init__(self, station: WorkerHarness) -> None:
        self._station, self._bench = station, station.bench
        self.alive, self.holds = False, False
        self.posted: list[e.Event] = []
        self._generation = 0
        self._active: frozenset[TaskId] = frozenset()

    # -- the group, as a test wants it

    def plan(
        self,
        *active: TaskId,
        learners: Iterable[TaskId] = (),
        promises: Iterable[TaskId] = (),
        standbys: Iterable[TaskId] = (),
        wanted: Iterable[TaskId] = (),
    ) -> None:
        """Send an assignment; partitions that are missing in it must have been revoked."""
        self._generation += 1
        new, self._active = frozenset(active) - self._active, frozenset(active)
        view = AssignmentView(
            learners=frozenset(learners),
            promises=frozenset(promises),
            standbys=frozenset(standbys),
            wanted=frozenset(wanted),
        )
        assigned = tuple(sorted(self._tps(active)))
        self._station.deliver(e.OnAssignment(self._generation, assigned, view))
        self._station.deliver(e.Assigned(tuple(sorted(self._tps(new)))))

    def revoke(self, *tasks: TaskId, number: int = 1) -> None:
        self._active -= frozenset(tasks)
        self._station.deliver(e.Revoke(tuple(sorted(self._tps(tasks))), number))

    def lose(self, *tasks: TaskId) -> None:
        self._active -= frozenset(tasks)
        self._station.made.session.losses += 1
        self._station.deliver(e.Lost(tuple(sorted(self._tps(tasks)))))

    def commit(self, asked: e.Commit) -> None:
        """Accept the commit, as Kafka does."""
        self._bench.committed.update(asked.offsets)
        self._station.deliver(e.CommitDone(asked.id))

    def released(self) -> list[int]:
        """Return the numbers of the revokes that were answered."""
        return [event.number for event in self.posted if isinstance(event, e.Released)]

    def _tps(self, tasks: Iterable[TaskId]) -> frozenset[TopicPartition]:
        plans = {plan.number: plan for plan in self._station.topology.subtopologies}
        return frozenset(
            TopicPartition(topic, task.partition)
            for task in tasks
            for topic in plans[task.subtopology].topics
        )

    # -- the thread, as the worker wants it

    def start(self) -> "asyncio.Future[None]":
        self.alive = True
        session = self._station.made.session
        session.member.lease.until = inf
        session.post = self._post  # type: ignore[method-assign]
        self._station.made.bounds.committed.of = self._committed  # type: ignore[method-assign]
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        return self._over

    def _post(self, event: e.Event) -> None:
        if not self.alive:
            return
        self.posted.append(event)
        if isinstance(event, e.Commit) and not self.holds:
            self.commit(event)
        if isinstance(event, e.Silent):
            self.alive = False
            self._over.set_result(None)

    async def _committed(
        self, tps: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        return {tp: self._bench.committed.get(tp, self._bench.uncommitted) for tp in tps}


class _Journal(Journal):
    """Journal that writes nothing; tests look at its events."""

    def __init__(
        self, name: str, clock: Clock, events: list[tuple[float, str, dict[str, object]]]
    ) -> None:
        super().__init__(name, clock)
        self._now, self._events = clock.now, events

    def __call__(self, event: str, **fields: object) -> None:
        super().__call__(event, **fields)
        self._events.append((self._now(), event, fields))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[VirtualCluster]:
    """Return a bench on which `words` has three partitions; an unexpected error fails the test."""
    made = VirtualCluster(tmp_path, {"words": 3})
    yield made
    made.close()
