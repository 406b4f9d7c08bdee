"""Test driver for apps, without a broker: topics are lists, stores are dicts, time is virtual.

The tasks are those of a worker: the same topology, partitions, stores and commit order. Records
find their partition as they do in Kafka. The driver leaves out a worker's surroundings: no group,
no rebalance, no disk.

    with TestDriver(app) as driver:
        driver.pipe("orders", [{"user": "ann", "price": 2.0}])
        assert driver.table("totals") == {"ann": 2.0}

Errors are raised in the test, with the agent's own traceback: an error of an agent, a task or a
timer, a record that cannot be decoded, and a table value that was changed in place and not put
back. A test of an app's behaviour on bad records looks at `failures`:

    with TestDriver(app, raises=False) as driver:
        driver.pipe("orders", [{"user": "ann"}, {"user": "bob", "price": 1.0}])
        assert driver.table("totals") == {"bob": 1.0}
        assert type(driver.failures[0].error) is KeyError

The app's tasks run when the driver starts, its timers as time goes by. Agents, tasks and timers may
await anything. A sleep ends when `advance` reaches its time. Sockets and threads are waited for in
real time.

    with TestDriver(app) as driver:
        driver.pipe("orders", [order])         # its agent awaits asyncio.sleep(5)
        assert driver.table("totals") == {}
        driver.advance("5s")
        assert driver.table("totals") == {"ann": 2.0}

Under `exactly_once` the outputs of tasks are read once they are committed, by a test and by other
tasks. `pipe` and `advance` commit, unless `commit` is False.

A closed driver leaves its app unchanged. An app has one driver at a time.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple, Self, SupportsFloat

from streamsx.app.app import App
from streamsx.app.channel import HeadersArg, Topic, encoded_headers
from streamsx.client.record_accumulator import OutputPartition
from streamsx.config import Config, is_exact, seconds
from streamsx.errors import (
    NotFound,
    StreamsxError,
    TaskFailed,
    TaskStopped,
    UsageError,
    ValueRefused,
)
from streamsx.model import Headers, TaskId, TopicPartition
from streamsx.processing.actor import GatedActor
from streamsx.processing.batch import Batch
from streamsx.processing.failure_policy import QUIET_S, Failure, Policy
from streamsx.processing.inbox import Done, Host, Outbox, Send, SendRows, SentRecord, sent_to
from streamsx.processing.rerun import NO_RERUN, RecordUndone, Rerun
from streamsx.processing.task import Task, TaskMetadata
from streamsx.protocol.partitioner import check_place, partition_of
from streamsx.protocol.record_batch import NO_HEADERS, BatchFormat
from streamsx.serde.codec import Decode, NoValue
from streamsx.state.cache import CachedStore
from streamsx.state.factory import make_store
from streamsx.state.global_store import GlobalStore
from streamsx.state.layout import KEY_VALUE
from streamsx.state.memory import MemoryRows
from streamsx.tasks.open_records import RECORD_PATIENCE_S
from streamsx.testing.watched import ValuesHandedOut, WatchedStore
from streamsx.topology.internal_topics import TopicSpec, dead_letters_name
from streamsx.topology.partitions import resolve_partition_counts
from streamsx.topology.time_links import time_links
from streamsx.worker.driver_loop import INSTANT_S, DriverLoop

START_S: Final = 1_700_000_000.0
"""Default start of virtual time: a day in 2023, the same in every run."""
CACHE_BYTES: Final = 64 << 20
SLICE_ROWS: Final = 1000
WAIT_S: Final = 5.0
ROUNDS_MAX: Final = 100_000
"""Limit of rounds. In each round, every task takes up to SLICE_ROWS records."""

PIPED_MIN: Final = 2
PIPED_MAX: Final = 4
"""Most parts of a record to pipe: key, value, time and headers."""


class Record(NamedTuple):
    """Record of a topic, decoded by the app's topic object.

    Attributes:
        key: Decoded key.
        value: Decoded value.
        timestamp: Time in seconds since 1970.
        headers: Headers as a dict; of several with one name the last counts.
        partition: Partition of the record.
        offset: Offset of the record.
    """

    key: Any
    value: Any
    timestamp: float
    headers: dict[str, bytes | None]
    partition: int
    offset: int


_Row = tuple[bytes | None, bytes | None, int, Headers | None]
"""Key, value, timestamp in ms, headers. The offset is the row's place in the list."""
_Write = Callable[[TopicPartition, _Row], None]
"""Function that takes a record which its topic accepts."""


class _Logs(Outbox):
    """Topics as lists, one per partition. `counts` gives each topic's number of partitions."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = dict(counts)
        self._unkeyed = count()
        self._rows: defaultdict[TopicPartition, list[_Row]] = defaultdict(list)
        self._last: tuple[int, int]
        """Partition and offset of the record that was sent last."""

    def to(self, topic: str, partition: int | None = None, write: _Write | None = None) -> Send:
        """Return a function that sends to a topic, or that hands accepted records to `write`.

        The function raises the same errors as a worker's: for a record that is too large, or for a
        header that is not bytes.

        Raises:
            NotFound: there is no such topic.
            UsageError: the topic has no such partition.
        """
        partitions = self._counts.get(topic, 0)
        check_place(topic, partition, partitions)
        taken = write or self.write

        def send(
            key: bytes | None,
            value: bytes | None,
            at_ms: int,
            headers: Headers | None,
            by: bytes | None = None,
        ) -> None:
            chosen = partition
            if chosen is None:
                turn = next(self._unkeyed)
                place = key if by is None else by
                chosen = turn % partitions if place is None else partition_of(place, partitions)
            tp = TopicPartition(topic, chosen)
            OutputPartition(tp, BatchFormat(), _nothing).open(
                at_ms, key, value, headers or NO_HEADERS
            )
            taken(tp, (key, value, at_ms, headers))

        return send

    def check(self, topic: str, partition: int | None = None) -> Send:
        """Return a function that raises what a sender to the topic would, and sends nothing."""
        batches = OutputPartition(TopicPartition(topic, partition or 0), BatchFormat(), _nothing)

        def check(
            key: bytes | None,
            value: bytes | None,
            at_ms: int,
            headers: Headers | None,
            by: bytes | None = None,
        ) -> None:
            batches.checked(at_ms, key, value, headers or NO_HEADERS)

        return check

    def write(self, tp: TopicPartition, row: _Row) -> None:
        """Append a record, so that everybody sees it."""
        log = self._rows[tp]
        self._last = tp.partition, len(log)
        log.append(row)

    def make(self, topic: str, partitions: int) -> None:
        """Make a topic."""
        self._counts[topic] = partitions

    def last_sent(self, topic: str, at_ms: int) -> Done:
        return sent_to(topic, at_ms, *self._last)

    def rows(self, topic: str, partition: int) -> SendRows:
        """Return a function that writes rows to a changelog."""
        log = self._rows[TopicPartition(topic, partition)]

        def send(keys: Sequence[bytes], values: Sequence[bytes | None], at_ms: int) -> None:
            log.extend((key, value, at_ms, None) for key, value in zip(keys, values, strict=True))

        return send

    def of(self, topic: str) -> Iterator[tuple[int, list[_Row]]]:
        """Yield each partition of a topic with its rows.

        Raises:
            NotFound: there is no such topic.
        """
        check_place(topic, None, self._counts.get(topic, 0))
        for partition in range(self._counts[topic]):
            yield partition, self._rows[TopicPartition(topic, partition)]

    def end(self, tp: TopicPartition) -> int:
        return len(self._rows[tp])

    def batch(self, tp: TopicPartition, start: int) -> Batch | None:
        """Return the records from an offset on; None at the end."""
        log = self._rows[tp]
        if start == len(log):
            return None
        keys, values, timestamps, headers = zip(*log[start:], strict=True)
        offsets = range(start, len(log))
        return Batch(*tp, keys, values, timestamps, offsets, [h or [] for h in headers], len(log))


class _Transaction(Outbox):
    """Outbox of one task under exactly-once: nobody sees its records before a commit.

    A task that goes back, or is killed, is dropped with its transaction. The rows of changelogs do
    not wait here: a task sends them as a part of its commit.
    """

    closes = True

    def __init__(self, logs: _Logs) -> None:
        self._logs = logs
        self._open: defaultdict[TopicPartition, list[_Row]] = defaultdict(list)
        self._last: TopicPartition
        """Partition of the record that was sent last."""

    def to(self, topic: str, partition: int | None = None) -> Send:
        return self._logs.to(topic, partition, self._hold)

    def check(self, topic: str, partition: int | None = None) -> Send:
        return self._logs.check(topic, partition)

    def rows(self, topic: str, partition: int) -> SendRows:
        return self._logs.rows(topic, partition)

    def last_sent(self, topic: str, at_ms: int) -> Done:
        """Return the Done of the record that was sent last.

        The offset is right if nobody else writes to the partition before the commit.
        """
        tp = self._last
        offset = self._logs.end(tp) + len(self._open[tp]) - 1
        return sent_to(topic, at_ms, tp.partition, offset)

    def _hold(self, tp: TopicPartition, row: _Row) -> None:
        self._last = tp
        self._open[tp].append(row)

    def commit(self) -> None:
        """Let everybody see the records."""
        for tp, rows in self._open.items():
            for row in rows:
                self._logs.write(tp, row)
        self._open.clear()


class TestDriver:
    """Test driver for one app: no broker, virtual time, the tasks of a worker.

        with TestDriver(app) as driver:
            driver.pipe("orders", [{"user": "ann", "price": 2.0}])
            assert driver.table("totals") == {"ann": 2.0}

    Under `exactly_once` a task's outputs, the records that it sends to other tasks, and dead
    letters are a transaction, which ends with the task's commit. `read` returns what a consumer
    with `isolation_level=read_committed` sees. With `commit=False` that is nothing of a task until
    `commit` is called. What timers and the app's own tasks send is seen at once.

    A task commits between two records: a body that waits in the middle of one comes to its end
    first. At least once, that holds for tasks with tables, and for 30 s.

    Args:
        app: App to run. It has one driver at a time.
        partitions: Numbers of partitions of existing topics. Other topics get the number they ask
            for, or the app's `topic_partitions`.
        commit: Commit after each `pipe` and `advance`.
        now: Start of virtual time, in seconds since 1970.
        raises: Raise errors in the test, once everything else is done.
        wait_s: Longest wait for a socket or a thread, in real seconds.

    Attributes:
        failures: Records that failed and did not stop their task.

    Raises:
        PartitionMismatch: topics that must have equal numbers of partitions do not.
        PartitionCountChanged: the number of partitions of a topic does not fit the app's state.
        StreamsxError: an error of `App.topology`.
    """

    __test__ = False  # for pytest: this class is no test

    def __init__(
        self,
        app: App,
        *,
        partitions: Mapping[str, int] | None = None,
        commit: bool = True,
        now: float = START_S,
        raises: bool = True,
        wait_s: float = WAIT_S,
    ) -> None:
        if app.host is not None:
            raise UsageError(f"app runs already: {app!r}: close its driver first")
        self._app = app
        self._commits = commit
        self._raises = raises
        self._start_ms = int(now * 1000)
        self.topology = app.topology()
        config = app.conf
        default = config.topic_partitions
        made = resolve_partition_counts(
            self.topology, partitions or {}, default=default, declare=True
        )
        if unknown := sorted((partitions or {}).keys() - made.counts.keys()):
            raise NotFound(f"no such topics: partitions of {', '.join(unknown)}: {app!r} has none")
        self.failures: list[Failure] = []
        self._errors: list[Exception] = []
        """Errors since the last time that one was raised."""
        self._tables: dict[str, GlobalStore] = {}
        """Global tables by name."""
        self._table_positions: defaultdict[tuple[str, int], int] = defaultdict(int)
        """Next offset of each partition of a global table's topic."""
        self._policy = self._policy_of(config)
        self._logs = _Logs(made.counts)
        self._rows: defaultdict[tuple[str, int], MemoryRows] = defaultdict(MemoryRows)
        plans = {each.number: each for each in self.topology.subtopologies}
        self._plans = {task: plans[task.subtopology] for task in made.ids()}
        self._stages = [
            [id_ for id_ in self._plans if id_.subtopology == number] for number in plans
        ]
        """Tasks of each sub-topology."""
        link = partial(time_links, plans.values(), counts=made.counts)
        self._links = {id_: link(plan, id_.partition) for id_, plan in self._plans.items()}
        self._tasks: dict[TaskId, Task] = {}
        self._due: dict[TaskId, float] = {}
        """Tasks that commit at the end of the record at hand, and since when."""
        self._offered: dict[TopicPartition, int] = {}
        self._fed_s: dict[TopicPartition, float] = {}
        """Time at which each partition was last read from."""
        self._failed_first: list[tuple[TaskId, RecordUndone]] = []
        """Tasks of which a record has failed in this round, so that they go back."""
        self._calls = 0
        self._loop = DriverLoop(wait_s, self._busy)
        self._handed = {name: ValuesHandedOut(table.default) for name, table in app.tables.items()}
        app.host = self
        try:
            self._begin()
        except BaseException:
            self._end()
            raise

    # -- records in and out

    def pipe(
        self,
        topic: Topic | str,
        values: Iterable[Any],
        *,
        partition: int | None = None,
        headers: HeadersArg | None = None,
    ) -> None:
        """Write records, and run until no work is left or all bodies wait.

        Each record is a value, or a tuple (key, value), (key, value, seconds since 1970) or (key,
        value, seconds, headers). A time of None is the driver's.

            driver.pipe("orders", [{"user": "ann"}, ("key", {"user": "bob"}), (None, {}, 0.5)])
            driver.pipe("orders", [("key", {}, None, {"trace": "7"})])
            driver.pipe("orders", [{"user": "ann"}], headers={"trace": "7"})

        Args:
            topic: Topic or its name.
            values: Records.
            partition: Partition to write to; chosen by the keys unless given.
            headers: Headers of all records that have none of their own: a dict, or pairs of a name
                and text or bytes, as for `send`.

        Raises:
            TypeError: `values` is not a list of records, or a header is neither text nor bytes.
            NotFound: there is no such topic.
            Exception: an error of the app, unless `raises` is False.
        """
        if isinstance(values, str | bytes | Mapping):
            raise TypeError(f"not a list of values: {values!r}: write pipe(topic, [value])")
        name, known = _known(self._app, topic)
        send = self.to(name, partition)
        encode_key = known.key_codec.encoders.or_none().encode
        of_all = None if headers is None else encoded_headers(name, headers)
        for each in values:
            key, value, at, own = _piped(each)
            at_ms = self.now_ms() if at is None else round(at * 1000)
            extra = of_all and [*of_all] if own is None else encoded_headers(name, own)
            send(encode_key(key), known.value_codec.encode(value), at_ms, extra)
        self._settle()

    def read(self, topic: Topic | str) -> list[Record]:
        """Return all records of a topic, partition by partition, decoded.

        Under `exactly_once`, all committed records. A key or value of a dead letter that cannot be
        decoded is given as bytes, unless the app has a topic object of the dead-letter topic.

        Args:
            topic: Topic or its name.

        Raises:
            NotFound: there is no such topic.
            Exception: a record cannot be decoded.
        """
        name, known = _known(self._app, topic)
        key_of = known.key_codec.decode
        value_of = known.value_codec.decode
        declared = known is topic or name in self._app.topics
        if name == dead_letters_name(self._app.conf) and not declared:
            key_of, value_of = _or_bytes(key_of), _or_bytes(value_of)
        return [
            Record(
                _decoded(key_of, key),
                _decoded(value_of, value),
                at / 1000,
                dict(headers or ()),
                partition,
                offset,
            )
            for partition, log in self._logs.of(name)
            for offset, (key, value, at, headers) in enumerate(log)
        ]

    def table(self, name: str) -> dict[Any, Any]:
        """Return all partitions of a table, as one dict, with changes that are not committed yet.

        Args:
            name: Name of the table, or of a flow's store.

        Raises:
            NotFound: no agent touches such a table.
            UsageError: a key is in several partitions, since records without a key go to any
                partition.
        """
        found = self.stores(name).values()
        if not found:
            raise NotFound(f"no such table: {name}: no agent uses it")
        rows = [row for store in found for row in store.items()]
        merged = dict(rows)
        if len(merged) < len(rows):
            raise UsageError(
                f"a key in several partitions: table {name}: send with keys, group_by, or ask "
                "store(name, partition)"
            )
        return merged

    def store(self, name: str, partition: int) -> CachedStore:
        """Return one partition of a table.

        Args:
            name: Name of the table, or of a flow's store.
            partition: Number of the partition.

        Raises:
            NotFound: no task has this store.
        """
        found = self.stores(name).get(partition)
        if found is None:
            raise NotFound(f"no such store: {name}, partition {partition}: no task has it")
        return found

    # -- time, commits, restarts

    def advance(self, duration: object) -> None:
        """Move time on. Sleepers and timers go on at their own times, in order.

        Args:
            duration: Duration: seconds, or a text such as `5s`.

        Raises:
            Exception: an error of the app, unless `raises` is False.
        """
        end_s = self._loop.now_s + seconds(duration)
        while self._loop.due_s is not None and self._loop.due_s <= end_s + INSTANT_S:
            self._loop.now_s = max(self._loop.now_s, self._loop.due_s)
            self._settle()
        self._loop.now_s = max(self._loop.now_s, end_s)
        self._settle()

    def commit(self) -> None:
        """Commit as a worker does after each interval: changelogs, positions, stores.

        A value that cannot be encoded fails the record that set the value, and no other record.

        A task whose body waits in the middle of a record may commit at the end of that record: see
        the class.
        """
        for _ in range(ROUNDS_MAX):
            for id_ in self._plans:
                self._commit_between_records(id_)
            if not self._unread():
                break
            self._run()
        else:
            raise self._endless()
        self._raise_first()

    def _commit_between_records(self, id_: TaskId) -> None:
        """Commit a task, now or when its body has come to the end of the record at hand."""
        if self._is_held(id_):
            return
        try:
            self._commit_task(id_)
        except ValueRefused as why:
            self._undone(id_, why)
            self._run()
            self._find_changed()
            if not self._is_held(id_):
                self._commit_task(id_)

    def _is_held(self, id_: TaskId) -> bool:
        """Return whether a task cannot commit now.

        The race: a body has sent for a record and sleeps; the task commits; what was sent is
        committed, and the record is not. So the body sees no record behind this one before the
        commit. A task that a record has ended commits nothing, unless it has stopped ahead of that
        record.
        """
        task = self._tasks[id_]
        if self._is_open(id_):
            task.withhold()
            self._due.setdefault(id_, self._loop.now_s)
            return True
        return isinstance(task.ended, (TaskFailed, TaskStopped)) and not task.sealable

    def _commit_task(self, id_: TaskId) -> None:
        task = self._tasks[id_]
        _commit(task, self._logs)
        if transaction := _transaction_of(task):
            transaction.commit()
        self._due.pop(id_, None)

    def _is_open(self, id_: TaskId) -> bool:
        """Return whether a commit would have a part of a record, and still waits for its end."""
        task = self._tasks[id_]
        if _transaction_of(task) is not None:
            return task.busy
        waits_s = self._loop.now_s - self._due.get(id_, self._loop.now_s)
        return task.halfway and waits_s < RECORD_PATIENCE_S

    def _commit_due(self) -> None:
        """Commit the tasks whose bodies have come to the end of the record they were at."""
        for id_ in sorted(self._due):
            task = self._tasks[id_]
            if task.ended is not None:
                self._due.pop(id_)  # its next run tells why
            elif not self._is_open(id_):
                self._find_changed()
                self._commit_between_records(id_)

    def _unread(self) -> bool:
        """Return whether a commit has sent records that tasks have not read."""
        return any(self._logs.end(tp) > at for tp, at in self._offered.items())

    def _undone(self, id_: TaskId, why: ValueRefused) -> None:
        """Begin a task anew from the last commit, as a worker does."""
        old = self._tasks[id_]
        rerun = old.rerun(why)
        if not isinstance(why, RecordUndone):
            self._find_changed()
        for name in old.stores.keys() & self._handed.keys():
            self._handed[name].forget()  # the careful run hands the values out again
        old.aborted()
        self._due.pop(id_, None)
        self._tasks[id_] = self._loop.call(lambda: self._task(id_, old.committed_at, rerun))

    def restart(self) -> None:
        """Drop everything uncommitted and go on from the last commit, as after a crash.

        Records sent since that commit stay, and are sent again. Under `exactly_once` those of tasks
        are dropped too: outputs, records for other tasks, dead letters.
        """
        at = {id_: task.committed_at for id_, task in self._tasks.items()}
        self._stop()
        self._start(at)
        self._settle()

    def close(self) -> None:
        """End all bodies, tasks and timers, and raise the first error."""
        self._end()
        self._raise_first()

    def _end(self) -> None:
        if self._loop.is_closed():
            return
        for name, handed in self._handed.items():
            self._app.tables[name].default = handed.default
        self._stop()
        self._loop.end()
        self._app.host = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        self._end()
        if raised is None:
            self._raise_first()

    # -- host of user code outside of tasks

    def to(self, topic: str, partition: int | None = None) -> Send:
        return self._logs.to(topic, partition)

    def last_sent(self, topic: str, at_ms: int) -> Done:
        return self._logs.last_sent(topic, at_ms)

    def send_late(
        self, outbox: Outbox | Host, spec: TopicSpec, partition: int | None, record: SentRecord
    ) -> Done:
        """Make the topic, if the app may make topics, and send.

        Raises:
            UsageError: the app may not make topics.
        """
        if not self._app.conf.topic_allow_declare:
            raise UsageError(
                f"unknown topic: {spec.name}: it does not exist, and the app may not create it: "
                "name it in partitions=, or set topic_allow_declare"
            )
        self._logs.make(spec.name, spec.partitions or self._app.conf.topic_partitions)
        outbox.to(spec.name, partition)(*record)
        return outbox.last_sent(spec.name, record.timestamp)

    @property
    def thread(self) -> int | None:
        return self._loop.thread

    def now_ms(self) -> int:
        return self._start_ms + round(self._loop.now_s * 1000)

    def stores(self, name: str) -> Mapping[int, CachedStore]:
        if name in self._tables:
            return {0: self._tables[name]}
        return {
            id_.partition: task.stores[name]
            for id_, task in self._tasks.items()
            if name in task.stores
        }

    def look(self, name: str, key: Any) -> Any:
        """Return the value of a key of a table; the driver has all partitions."""
        found = (store.get(key) for store in self.stores(name).values())
        return next((value for value in found if value is not None), None)

    def warn_of_part(self, name: str) -> None:
        """Do nothing: the driver has all partitions."""

    def is_leader(self) -> bool:
        return True

    # -- tasks

    def _begin(self) -> None:
        if self._raises:
            self._loop.set_exception_handler(self._broken)
        for name, handed in self._handed.items():
            if handed.default is not None:
                self._app.tables[name].default = handed
        self._start({i: TaskMetadata(dict.fromkeys(p.topics, 0)) for i, p in self._plans.items()})
        jobs = [job._replace(fun=partial(self._call, job.fun)) for job in self._app.jobs]
        self._running = [self._loop.create_task(job.run(), name=job.name) for job in jobs]
        self._settle()

    def _start(self, at: Mapping[TaskId, TaskMetadata]) -> None:
        for name, node in self.topology.tables.items():
            self._tables[name] = GlobalStore(node, MemoryRows(), CACHE_BYTES)
        self._table_positions.clear()
        self._read_tables()
        self._tasks = self._loop.call(lambda: {id_: self._task(id_, at[id_]) for id_ in at})

    def _read_tables(self) -> None:
        """Apply the new records of the topics of global tables."""
        positions = self._table_positions
        for name, node in self.topology.tables.items():
            for partition, _ in self._logs.of(node.changelog):
                tp = TopicPartition(node.changelog, partition)
                if batch := self._logs.batch(tp, positions[name, partition]):
                    self._tables[name].apply(batch.keys, batch.values)
                    positions[name, partition] = batch.next_offset

    def _task(self, id_: TaskId, metadata: TaskMetadata, rerun: Rerun = NO_RERUN) -> Task:
        plan = self._plans[id_]
        for topic, position in metadata.positions.items():
            tp = TopicPartition(topic, id_.partition)
            self._offered[tp] = position
            self._fed_s[tp] = self._loop.now_s
        stores: dict[str, CachedStore] = {}
        for node in plan.stores:
            rows = self._rows[node.name, id_.partition]
            handed = self._handed.get(node.name)
            if handed is None or node.kind != KEY_VALUE:
                stores[node.name] = make_store(node, rows, CACHE_BYTES)
                continue
            stores[node.name] = made = WatchedStore(node, rows, CACHE_BYTES)
            made.watch(handed, id_.partition)
        start = partial(GatedActor, _nothing)
        outbox = _Transaction(self._logs) if self._policy.whole else self._logs
        about = plan, id_.partition, stores, outbox, start, self._policy, metadata, rerun
        return Task(*about, self._links[id_], self._tables)

    def _stop(self) -> None:
        for task in self._tasks.values():
            task.close()
        self._tasks = {}
        self._due.clear()
        for handed in self._handed.values():
            handed.forget()
        self._loop.run_ready()

    def _settle(self) -> None:
        try:
            self._run()
        except StreamsxError:
            self._raise_first()
            raise
        self._find_changed()
        self._pass_over()
        if self._commits:
            self.commit()
        while self._look_for_idle():
            self._run()
            if self._commits:
                self.commit()
        self._raise_first()

    def _find_changed(self) -> None:
        """Note values that were changed in place, while the stores know the ones put back."""
        if self._raises:
            self._errors += [each for table in self._handed.values() for each in table.changed()]

    def _pass_over(self) -> None:
        """Pass over the failures at the end of each topic that has been quiet for QUIET_S."""
        for id_, task in self._tasks.items():
            for topic in task.plan.topics:
                quiet_s = self._loop.now_s - self._fed_s[TopicPartition(topic, id_.partition)]
                if quiet_s >= QUIET_S and task.holds(topic):
                    task.give_up(topic)

    def _look_for_idle(self) -> bool:
        """Let tasks close what waits for input; return whether there was any."""
        found = False
        for id_, task in self._tasks.items():
            tps = (TopicPartition(topic, id_.partition) for topic in task.plan.topics)
            at_end = [tp.topic for tp in tps if self._offered[tp] == self._logs.end(tp)]
            look = partial(task.look_for_idle, self._loop.now_s, at_end)
            try:
                found = self._loop.call(look) or found
            except RecordUndone as why:
                self._undone(id_, why)
                found = True
        return found

    def _run(self) -> None:
        for _ in range(ROUNDS_MAX):
            self._read_tables()
            self._loop.run_ready()
            self._commit_due()
            worked = self._loop.call(lambda: sum(map(self._slowest, self._stages)))
            undone = self._failed_first
            self._failed_first = []
            for id_, why in undone:
                self._undone(id_, why)
            if not (worked or undone):
                return
        raise self._endless()

    def _endless(self) -> UsageError:
        return UsageError(
            f"never settles: {self._app!r}: its agents feed each other without end, or need "
            f"more than {ROUNDS_MAX} rounds: pipe fewer records"
        )

    def _slowest(self, tasks: Sequence[TaskId]) -> bool:
        """Run the task of a sub-topology that is behind the others in event time and has work."""
        by_time = sorted(tasks, key=lambda id_: self._tasks[id_].stream_time)
        return any(map(self._step, by_time))

    def _step(self, id_: TaskId) -> bool:
        """Give one task its new records, and return whether the task handled any."""
        task = self._tasks[id_]
        for topic in task.plan.topics:
            tp = TopicPartition(topic, id_.partition)
            if batch := self._logs.batch(tp, self._offered[tp]):
                task.offer(batch)
                self._offered[tp] = batch.next_offset
                self._fed_s[tp] = self._loop.now_s
        if id_ in self._due:
            return False
        try:
            task.waits(math.inf)  # a record is tried again at once
            return task.run(SLICE_ROWS, task.plan.topics) > 0 or task.wait_s > 0
        except RecordUndone as why:
            self._failed_first.append((id_, why))
            return False

    def _busy(self) -> bool:
        """Return whether a body is at work, or waits for something outside of the driver."""
        return self._calls > 0 or any(task.busy for task in self._tasks.values())

    # -- errors

    def _policy_of(self, config: Config) -> Policy:
        return Policy(
            config.on_error,
            config.on_decode_error,
            self._failed,
            config.consecutive_failures_max,
            dead_letters=dead_letters_name(config),
            undoes=True,
            whole=is_exact(config),
        )

    def _failed(self, failure: Failure) -> None:
        self.failures.append(failure)
        if self._raises:
            failure.error.add_note(str(failure))
            self._errors.append(failure.error)

    def _broken(self, _: object, context: dict[str, Any]) -> None:
        """Keep an error that an event loop would only log."""
        self._errors.append(context.get("exception") or UsageError(context["message"]))

    async def _call(self, fun: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        """Run a task of the app, or one tick of a timer."""
        self._calls += 1
        try:
            await fun(*arguments)
        except Exception as error:  # user code may raise anything
            if not self._raises:
                raise
            self._errors.append(error)
        finally:
            self._calls -= 1

    def _raise_first(self) -> None:
        errors = self._errors
        self._errors = []
        for error in errors:
            raise error


def _transaction_of(task: Task) -> _Transaction | None:
    """Return the transaction of a task; None at least once."""
    return task.outbox if isinstance(task.outbox, _Transaction) else None


def _commit(task: Task, logs: _Logs) -> None:
    while (sealed := task.seal(SLICE_ROWS)) is None:
        pass
    ends = {
        node.name: logs.end(TopicPartition(node.changelog, task.id.partition))
        for node in task.plan.stores
    }
    task.committed(sealed, ends)
    while not task.write_some(SLICE_ROWS):
        pass


def _known(app: App, topic: Topic | str) -> tuple[str, Topic]:
    """Return the name of a topic, and the object with its codecs."""
    if isinstance(topic, Topic):
        return topic.name, topic
    return topic, app.topics.get(topic) or Topic(app, [topic])


def _decoded(decode: Decode, data: bytes | None) -> Any:
    """Return the decoded value; None if there is none, whether or not an agent would get one."""
    try:
        return decode(data)
    except NoValue:
        return None


def _or_bytes(decode: Decode) -> Decode:
    """Return a decoder that returns bytes as they are where `decode` fails."""

    def decode_or_keep(data: bytes | None) -> Any:
        try:
            return decode(data)
        except NoValue:
            raise
        except Exception:  # as many kinds as there are codecs
            return data

    return decode_or_keep


def _piped(each: Any) -> tuple[Any, Any, float | None, HeadersArg | None]:
    """Return key, value, time and headers of a record to pipe. Raises TypeError."""
    if not isinstance(each, tuple):
        return None, each, None, None
    if not PIPED_MIN <= len(each) <= PIPED_MAX:
        raise TypeError(
            f"not a record: {each!r}: write (key, value), (key, value, time) or (key, value, time, "
            "headers)"
        )
    key, value, *more = each
    at, headers = (*more, None, None)[:2]
    if not isinstance(at, SupportsFloat | None):
        raise TypeError(
            f"not a time: {at!r}: in {each!r}: write (key, value, seconds), and (key, value, None, "
            "headers) for headers"
        )
    return key, value, None if at is None else float(at), headers


def _nothing(*_: object) -> None:
    """Do nothing.

    This serves actors without waiters, and batches with a record that a list has already.
    """
