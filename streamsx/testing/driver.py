"""Runs an app without a broker: topics are lists, stores are dicts, time moves when it is told to.

The tasks are those of a worker: the same topology, partitions, stores and commit order; records
find their partition as they do in Kafka. What a worker adds is not here: no group, no rebalance,
no disk, and no event loop, so bodies may await what is ours only.

    with TestDriver(app) as driver:
        driver.pipe("orders", [{"user": "ann", "price": 2.0}])
        assert driver.table("totals") == {"ann": 2.0}

A driver that was closed leaves its app as it was; one app has one driver at a time.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Final, NamedTuple, Self

from streamsx.app.app import App
from streamsx.app.channel import Topic
from streamsx.app.services import Job
from streamsx.config import seconds
from streamsx.errors import NotFound, TaskFailed, UsageError
from streamsx.kafka.partitioner import check_place, partition_of
from streamsx.model import Headers, TaskId, TopicPartition
from streamsx.state.cache import CachedStore
from streamsx.state.memory import MemoryRows
from streamsx.task.batch import Batch
from streamsx.task.policy import Failure, Policy, Word
from streamsx.task.stores import cached
from streamsx.task.stream import Send, SendRows, StepPump
from streamsx.task.task import Task, TaskMetadata
from streamsx.topology.nodes import SubTopology
from streamsx.topology.partitions import partitioned

START_S: Final = 1_700_000_000.0
"""When time begins, unless it is said: a day in 2023, the same in every run."""
CACHE_BYTES: Final = 64 << 20
SLICE_ROWS: Final = 1000
ROUNDS_MAX: Final = 100_000
"""In each, every task takes up to SLICE_ROWS records."""


class Record(NamedTuple):
    """One record of a topic, decoded as the app's topic object says; `timestamp` in seconds."""

    key: Any
    value: Any
    timestamp: float
    headers: dict[str, bytes | None]
    partition: int
    offset: int


_Row = tuple[bytes | None, bytes | None, int, Headers | None]
"""Key, value, timestamp in ms, headers; the offset is its place in the list."""


class TestDriver:
    """`partitions`: of topics that are there already, others get what they ask for, or the app's
    `topic_partitions`; `commit`: after each `pipe` and `advance`; `now`: seconds since 1970.

    `failures`: records that failed and did not stop their task. Raises what `App.topology` raises,
    PartitionMismatch and PartitionCountChanged.
    """

    __test__ = False  # pytest: no test, but used in one

    def __init__(
        self,
        app: App,
        *,
        partitions: Mapping[str, int] | None = None,
        commit: bool = True,
        now: float = START_S,
    ) -> None:
        if app.host is not None:
            raise UsageError(f"app runs already: {app!r}: close its driver first")
        self._app, self._commits = app, commit
        self._now_ms = int(now * 1000)
        self.topology = app.topology()
        config = app.conf
        default = config.topic_partitions
        made = partitioned(self.topology, partitions or {}, default=default, declare=True)
        self._counts = dict(made.counts)
        self.failures: list[Failure] = []
        words = Word(config.on_error), Word(config.on_decode_error)
        self._policy = Policy(*words, self.failures.append, config.consecutive_failures_max)
        self._logs: defaultdict[TopicPartition, list[_Row]] = defaultdict(list)
        self._rows: defaultdict[tuple[str, int], MemoryRows] = defaultdict(MemoryRows)
        self._unkeyed = count()
        plans = {each.number: each for each in self.topology.subtopologies}
        self._plans = {task: plans[task.subtopology] for task in made.ids()}
        self._metadata = {
            task: TaskMetadata(dict.fromkeys(plan.topics, 0)) for task, plan in self._plans.items()
        }
        jobs = enumerate(app.jobs())
        self._timers = [(self._after(job), n, job) for n, job in jobs if job.interval_s]
        heapify(self._timers)
        self._tasks: dict[TaskId, Task] = {}
        self._offered: dict[TopicPartition, int] = {}
        app.host = self
        self._start()

    # -- records in and out

    def pipe(
        self, topic: Topic | str, values: Iterable[Any], *, partition: int | None = None
    ) -> None:
        """Write records and run until nothing is left to do.

        Each is a value, or a tuple (key, value) or (key, value, seconds since 1970).
        """
        name, known = self._topic(topic)
        send = self.to(name, partition)
        for each in values:
            key, value, at = (*each, None)[:3] if isinstance(each, tuple) else (None, each, None)
            at_ms = self._now_ms if at is None else round(at * 1000)
            send(known.encode_key(key), known.encode_value(value), at_ms, None)
        self._settle()

    def read(self, topic: Topic | str) -> list[Record]:
        """All that a topic holds, partition by partition, decoded."""
        name, known = self._topic(topic)
        check_place(name, None, self._counts.get(name, 0))
        parts = [TopicPartition(name, partition) for partition in range(self._counts[name])]
        return [record for tp in parts for record in self._read(known, tp)]

    def _read(self, topic: Topic, tp: TopicPartition) -> Iterator[Record]:
        for offset, (key, value, at_ms, headers) in enumerate(self._logs[tp]):
            decoded = topic.key_codec.decode(key), topic.value_codec.decode(value)
            yield Record(*decoded, at_ms / 1000, dict(headers or ()), tp.partition, offset)

    def table(self, name: str) -> dict[Any, Any]:
        """All partitions of a table, as one dict.

        Raises UsageError when a key is in several: what has no key goes to any partition.
        """
        found = self.stores(name).values()
        if not found:
            raise NotFound(f"no such table: {name}: no agent touches it")
        rows = [row for store in found for row in store.items()]
        merged = dict(rows)
        if len(merged) < len(rows):
            raise UsageError(
                f"a key in several partitions: table {name}: send with keys, group_by, or ask "
                "store(name, partition)"
            )
        return merged

    def store(self, name: str, partition: int) -> CachedStore[Any, Any]:
        """One partition of a table. Raises NotFound."""
        found = self.stores(name).get(partition)
        if found is None:
            raise NotFound(f"no such store: {name}, partition {partition}: no task has it")
        return found

    def _topic(self, topic: Topic | str) -> tuple[str, Topic]:
        """Its name, and the object whose codecs it has."""
        if isinstance(topic, Topic):
            return topic.name, topic
        return topic, self._app.topics.get(topic) or Topic(self._app, [topic])

    # -- time, commits, restarts

    def advance(self, duration: object) -> None:
        """Move time on; timers that are due run at theirs, in order."""
        end_ms = self._now_ms + int(seconds(duration) * 1000)
        while self._timers and self._timers[0][0] <= end_ms:
            self._now_ms, n, job = heappop(self._timers)
            heappush(self._timers, (self._after(job), n, job))
            self._run(job)
        self._now_ms = end_ms
        self._settle()

    def _after(self, job: Job) -> int:
        assert job.interval_s is not None, "no timer"
        return self._now_ms + int(job.interval_s * 1000)

    def _run(self, job: Job) -> None:
        call = job.call()
        try:
            waits = call.send(None)
        except StopIteration:
            self._settle()
        else:
            call.close()
            raise TaskFailed(
                f"timer waits for something foreign: {job.name}: {waits!r}: it needs the event "
                "loop of a worker"
            )

    def commit(self) -> None:
        """As a worker does after each interval: changelogs, positions, stores."""
        for id_, task in self._tasks.items():
            while (sealed := task.seal(SLICE_ROWS)) is None:
                pass
            ends = {
                node.name: len(self._logs[TopicPartition(node.changelog, id_.partition)])
                for node in self._plans[id_].stores
            }
            task.committed(sealed, ends)
            while not task.write_some(SLICE_ROWS):
                pass
            self._metadata[id_] = TaskMetadata(sealed.positions, sealed.stream_time)

    def restart(self) -> None:
        """Drop what was not committed and go on from the last commit, as after a crash.

        What was sent since then stays, and is sent again.
        """
        self._stop()
        self._start()
        self._settle()

    def close(self) -> None:
        """End all bodies."""
        self._stop()
        self._app.host = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    # -- what tasks and user code reach

    def to(self, topic: str, partition: int | None = None) -> Send:
        """Of a task's outbox, and for what is sent outside of tasks."""
        partitions = self._counts.get(topic, 0)
        check_place(topic, partition, partitions)

        def send(
            key: bytes | None, value: bytes | None, at_ms: int, headers: Headers | None
        ) -> None:
            chosen = partition
            if chosen is None:
                turn = next(self._unkeyed)
                chosen = turn % partitions if key is None else partition_of(key, partitions)
            self._logs[TopicPartition(topic, chosen)].append((key, value, at_ms, headers))

        return send

    def rows(self, topic: str, partition: int) -> SendRows:
        """To a changelog."""
        log = self._logs[TopicPartition(topic, partition)]

        def send(keys: Sequence[bytes], values: Sequence[bytes | None], at_ms: int) -> None:
            log.extend((key, value, at_ms, None) for key, value in zip(keys, values, strict=True))

        return send

    def now_ms(self) -> int:
        return self._now_ms

    def stores(self, name: str) -> Mapping[int, CachedStore[Any, Any]]:
        return {
            id_.partition: task.stores[name]
            for id_, task in self._tasks.items()
            if name in task.stores
        }

    def is_leader(self) -> bool:
        return True

    # -- tasks

    def _start(self) -> None:
        self._tasks = {id_: self._task(id_, plan) for id_, plan in self._plans.items()}
        self._offered = {
            TopicPartition(topic, id_.partition): position
            for id_, metadata in self._metadata.items()
            for topic, position in metadata.positions.items()
        }

    def _task(self, id_: TaskId, plan: SubTopology) -> Task:
        stores = {
            node.name: cached(node, self._rows[node.name, id_.partition], CACHE_BYTES)
            for node in plan.stores
        }
        metadata = self._metadata[id_]
        return Task(plan, id_.partition, stores, self, StepPump(), self._policy, metadata)

    def _stop(self) -> None:
        for task in self._tasks.values():
            task.close()
        self._tasks = {}

    def _settle(self) -> None:
        for _ in range(ROUNDS_MAX):
            if not sum(self._step(id_, task) for id_, task in self._tasks.items()):
                break
        else:
            raise UsageError(
                f"never settles: {self._app!r}: its agents feed each other without end, or need "
                f"more than {ROUNDS_MAX} rounds: pipe fewer records"
            )
        if self._commits:
            self.commit()

    def _step(self, id_: TaskId, task: Task) -> bool:
        """Hand one task what is new; whether there was any."""
        for topic in task.plan.topics:
            tp = TopicPartition(topic, id_.partition)
            if batch := _batch(tp, self._offered[tp], self._logs[tp]):
                task.offer(batch)
                self._offered[tp] = batch.next_offset
        return task.run(SLICE_ROWS, task.plan.topics) > 0


def _batch(tp: TopicPartition, start: int, log: Sequence[_Row]) -> Batch | None:
    if start == len(log):
        return None
    keys, values, timestamps, headers = zip(*log[start:], strict=True)
    offsets = range(start, len(log))
    return Batch(*tp, keys, values, timestamps, offsets, [h or [] for h in headers], len(log))
