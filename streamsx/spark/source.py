"""Kafka data source for Spark, with our own codec: `streamsx-kafka`.

    spark.dataSource.register(KafkaSource)
    spark.readStream.format("streamsx-kafka").option("subscribe", "orders,clicks")

| option | |
|---|---|
| `app` | MODULE[:ATTR], for its brokers and for its credentials, which cannot be written as text |
| `kafka.bootstrap.servers` | HOST:PORT[,HOST:PORT]: counts more than the app's |
| `subscribe` | topics, with commas between them |
| `tasks` | JSON: `[["orders", "clicks"]]`, topics that one task reads; others are read alone |
| `state` | URI of a snapshot: how far in time the topics of a task were taken, for their order |
| `startingOffsets`, `endingOffsets` | `earliest`, `latest` or JSON, as offsets in checkpoints are |
| `maxOffsetsPerTrigger` | limit in all, shared by what is left of each partition, one at least |

Each task is one Spark partition, with records in the order in which the task takes them: no
shuffle, no sort. Only committed records are read. Writing is at least once: a row that Spark writes
again is in the topic twice. A stream writes its batches through `foreachBatch`. The columns are
`rows.RECORDS`. Spark hands options over in lower case, and calls by keyword.
"""

import json
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from streamsx.app.lookup import app_named
from streamsx.client import admin
from streamsx.client.cluster import START_TIMEOUT_S, TIMEOUT_S, Cluster
from streamsx.client.range_reader import within, writing
from streamsx.client.security import PLAINTEXT, security_of
from streamsx.clock import SystemClock
from streamsx.errors import NotFound, SettingError, TopicGone
from streamsx.event_loops import run
from streamsx.model import TopicPartition
from streamsx.processing.inbox import Send
from streamsx.spark.reading import NEVER, Brokers, TopicRange, rows
from streamsx.spark.rows import RECORDS_DDL
from streamsx.state.snapshot import newest, typed
from streamsx.state.snapshot_files import open_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME: Final = "streamsx-kafka"
EARLIEST = "earliest"
LATEST = "latest"
AT: Final = {-2: EARLIEST, -1: LATEST}
"""Numbers of these offsets in JSON, the same as in Kafka's own connector."""

COLUMNS: Final = ("topic", "partition", "key", "value", "headers", "timestamp")
NOT_WRITTEN: Final = "rows cannot be written"
CHUNK_ROWS: Final = 1000
"""Rows between two checks of how much is not acknowledged."""

T = TypeVar("T")
OffsetsJson = dict[str, dict[str, int]]
"""Offsets by topic and partition, in the form of Kafka's own connector in checkpoints."""


class KafkaSource(DataSource):
    """Data source that Spark makes of the options, on the driver and in each task."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return RECORDS_DDL

    def reader(self, schema: object) -> "BatchReader":
        return BatchReader(SourceOptions(self.options))

    def streamReader(self, schema: object) -> "StreamReader":  # noqa: N802  # Spark's
        return StreamReader(SourceOptions(self.options))

    def writer(self, schema: object, overwrite: bool) -> "BatchSink":
        return BatchSink(SourceOptions(self.options))


class SourceOptions:
    """Options of the source, parsed at each use. Methods raise SettingError."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    def get(self, name: str, default: str | None = None) -> str:
        if (value := self._options.get(name.lower(), default)) is None:
            raise SettingError(f"option {name} is missing: {NAME}: give it")
        return value

    @property
    def brokers(self) -> Brokers:
        if "app" not in self._options:
            return Brokers(self.get("kafka.bootstrap.servers"), PLAINTEXT)
        conf = app_named(self.get("app")).conf
        where = self.get("kafka.bootstrap.servers", ",".join(conf.bootstrap))
        return Brokers(where, security_of(conf.broker_credentials, conf.ssl_context))

    def ask(
        self, what: Callable[[Cluster], Coroutine[Any, Any, T]], within_s: float = START_TIMEOUT_S
    ) -> T:
        """Return the answer of the brokers to one request.

        `within_s` is the time in which the brokers must be found. Raises WorldError.
        """

        async def whole() -> T:
            cluster = self.brokers.cluster(TIMEOUT_S)
            try:
                await cluster.start(within_s)
                return await what(cluster)
            finally:
                await cluster.stop()

        return run(whole())

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(each.strip() for each in self.get("subscribe").split(",")))

    @property
    def tasks(self) -> list[list[str]]:
        """Return the topics of each task; every topic is in exactly one."""
        kind = tuple[tuple[str, ...], ...]
        together = [*map(list, self.json("tasks", "[]", kind, '[["orders", "clicks"]]'))]
        known = {topic for topics in together for topic in topics}
        if sum(map(len, together)) > len(known) or not known <= set(self.topics):
            raise SettingError(f"option tasks: {together}: name each topic once, subscribe to all")
        return [*together, *([topic] for topic in self.topics if topic not in known)]

    def json(self, name: str, default: str, kind: Any, like: str) -> Any:
        text = self.get(name, default)
        try:
            return typed(kind, json.loads(text))
        except (AttributeError, TypeError, ValueError):
            raise SettingError(f"option {name}: {text!r}: write it like {like}") from None

    def place(self, name: str, default: str, there: "TopicBounds") -> OffsetsJson:
        """Return the offsets that the option `name` gives, for a start or an end.

        A partition that the JSON leaves out is at the default.
        """
        text = self.get(name, default)
        if text in AT.values():
            return there.at(text)
        found = there.at(default)
        kind = Mapping[str, Mapping[str, int]]
        for topic, numbers in self.json(name, default, kind, '{"orders": {"0": 17}}').items():
            for number, offset in numbers.items():
                if number not in found.get(topic, {}):
                    raise SettingError(f"option {name}: no such partition: {topic}-{number}")
                word = AT.get(offset)
                found[topic][number] = there.at(word)[topic][number] if word else offset
        return found

    def highs(self) -> Mapping[str, Mapping[int, int]]:
        """Return the highest timestamps of the newest snapshot, by topic and partition."""
        if "state" not in self._options:
            return {}
        manifest = newest(open_files(self.get("state")))
        positions = manifest.positions if manifest else {}
        return {t: {n: at.high for n, at in parts.items()} for t, parts in positions.items()}


@dataclass(frozen=True)
class TopicBounds:
    """Bounds of the topics: first offset, and end of committed records."""

    bounds: Mapping[TopicPartition, admin.Bounds]

    def at(self, word: str) -> OffsetsJson:
        found: OffsetsJson = {}
        for (topic, number), (start, end) in sorted(self.bounds.items()):
            found.setdefault(topic, {})[str(number)] = start if word == EARLIEST else end
        return found


def there(asked: SourceOptions) -> TopicBounds:
    """Return the present bounds of all topics.

    Raises:
        NotFound: a topic is not there.
        WorldError: the brokers do not answer.
    """

    async def look(cluster: Cluster) -> TopicBounds:
        counts = await admin.partition_counts(cluster, asked.topics)
        if missing := sorted(set(asked.topics) - counts.keys()):
            raise NotFound(f"no such topic: {', '.join(missing)}: create it, or correct subscribe")
        tps = [TopicPartition(t, number) for t in counts for number in range(counts[t])]
        return TopicBounds(await admin.bounds(cluster, tps, committed=True))

    return asked.ask(look)


# -- reading


class TaskRange(InputPartition):
    """Input partition of one task: the offset ranges of its topics."""

    def __init__(self, number: int, stretches: list[TopicRange]) -> None:
        self.number = number
        self.stretches = stretches


def planned(
    tasks: Sequence[Sequence[str]],
    start: OffsetsJson,
    end: OffsetsJson,
    highs: Mapping[str, Mapping[int, int]],
) -> list[TaskRange]:
    """Return one range per task that has something to read."""
    found: dict[tuple[int, int], list[TopicRange]] = {}
    for index, topics in enumerate(tasks):
        for topic in topics:
            for number, stop in end.get(topic, {}).items():
                begin = start[topic][number]
                high = highs.get(topic, {}).get(int(number), NEVER)
                if begin < stop:
                    stretches = found.setdefault((index, int(number)), [])
                    stretches.append(TopicRange(topic, begin, stop, high))
    return [TaskRange(number, found[index, number]) for index, number in sorted(found)]


class TaskReader:
    """Reader of the range of one task.

    Without a plan Spark makes one partition of its own, which is read as empty.
    """

    def __init__(self, asked: SourceOptions) -> None:
        self._asked = asked

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TaskRange):
            return iter(())
        return rows(self._asked.brokers, partition.number, partition.stretches)


class BatchReader(TaskReader, DataSourceReader):
    """Batch reader of all records that are there when the batch is planned."""

    def partitions(self) -> list[InputPartition]:
        asked = self._asked
        now = there(self._asked)
        start = asked.place("startingOffsets", EARLIEST, now)
        end = asked.place("endingOffsets", LATEST, now)
        return [*planned(asked.tasks, start, end, asked.highs())]


class StreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader, batch after batch; Spark remembers the offsets."""

    _goal: TopicBounds | None = None
    """End of a query with the trigger availableNow: the bounds when the query begins."""

    def initialOffset(self) -> OffsetsJson:  # noqa: N802  # Spark's
        # Spark calls this after `prepareForTriggerAvailableNow`. Records that arrive in between
        # must not move the start beyond the goal.
        return self._asked.place("startingOffsets", EARLIEST, self._goal or there(self._asked))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's
        self._goal = there(self._asked)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's
        most: int = self._asked.json("maxOffsetsPerTrigger", "0", int, "1000")
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:  # noqa: N802  # Spark's
        now = self._goal or there(self._asked)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = now.at(LATEST)
        return advanced(begun(start, end, self._asked), end, most)

    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> list[InputPartition]:
        begin = begun(start, end, self._asked)
        return [*planned(self._asked.tasks, begin, end, self._asked.highs())]


def begun(start: OffsetsJson, end: OffsetsJson, asked: SourceOptions) -> OffsetsJson:
    """Return `start`, with partitions that are new since the last batch at their first offset."""
    if all(start.get(topic, {}).keys() >= numbers.keys() for topic, numbers in end.items()):
        return start
    first = there(asked).at(EARLIEST)
    return {topic: first.get(topic, {}) | start.get(topic, {}) for topic in end}


def advanced(start: OffsetsJson, end: OffsetsJson, most: int | None) -> OffsetsJson:
    """Return the offsets that are `most` offsets in all beyond `start`, but not beyond `end`.

    Each partition gets a share in proportion to what is left of it, and one offset at least.
    Otherwise a small partition would wait for as long as a large one is behind.

    Raises:
        TopicGone: a topic ends before `start`.
    """
    left = {(t, n): stop - start[t][n] for t, numbers in end.items() for n, stop in numbers.items()}
    if gone := [f"{t}-{n}" for (t, n), count in left.items() if count < 0]:
        raise TopicGone(
            f"records are gone: {', '.join(gone)} end before the offsets that were read: the "
            "topic was deleted and created again: start with a new checkpoint"
        )
    total = sum(left.values())
    if most is None or most >= total:
        return end
    shares = {at: min(count, max(1, count * most // total)) for at, count in left.items()}
    rest = max(0, most - sum(shares.values()))
    for at in [at for at, count in left.items() if shares[at] < count][:rest]:
        shares[at] += 1
    return {t: {n: start[t][n] + shares[t, n] for n in numbers} for t, numbers in end.items()}


# -- writing


async def write(cluster: Cluster, batches: Iterator[pa.RecordBatch]) -> int:
    """Write the rows and return how many there were.

    Without a partition the key decides; without a timestamp the present time counts.

    Raises:
        NotFound: a topic is not there.
        UsageError: a partition is not there, or a column or header is wrong.
        WorldError: the brokers do not answer, or refuse the records.
    """
    count = 0
    clock = SystemClock()
    try:
        await cluster.start()
        async with writing(cluster, clock) as producer:
            await within(producer.start(), NOT_WRITTEN)
            for batch in batches:
                if "topic" not in batch.schema.names or batch.column("topic").null_count:
                    raise SettingError("column topic is missing: of the rows to write: add it")
                await cluster.follow(pc.unique(batch.column("topic")).to_pylist())
                now = int(clock.wall() * 1000)
                to = dict[tuple[str, int | None], Send]()
                for start in range(0, batch.num_rows, CHUNK_ROWS):
                    for topic, partition, key, value, headers, at in _rows(batch, start):
                        if (send := to.get((topic, partition))) is None:
                            send = to[topic, partition] = producer.to(topic, partition)
                        send(key, value, now if at is None else at, headers)
                    if producer.full():
                        await within(producer.flush(), NOT_WRITTEN)
                await within(producer.flush(), NOT_WRITTEN)
                count += batch.num_rows
    finally:
        await cluster.stop()
    return count


def _rows(batch: pa.RecordBatch, start: int) -> Iterator[tuple[Any, ...]]:
    """Return up to CHUNK_ROWS rows as tuples in the order of COLUMNS; a missing column is None."""
    some = batch.slice(start, CHUNK_ROWS)
    columns: list[list[Any]] = [
        some.column(name).to_pylist() if name in some.schema.names else [None] * some.num_rows
        for name in COLUMNS
    ]
    at = COLUMNS.index("headers")
    columns[at] = [each and [*map(_header, each)] for each in columns[at]]
    return zip(*columns, strict=True)


def _header(given: Mapping[str, Any] | None) -> tuple[str, bytes | None]:
    if given is None or given["key"] is None:
        raise SettingError("column headers: a header without a key: Kafka has none: leave it out")
    return given["key"], given["value"]


class BatchSink(DataSourceArrowWriter):
    """Sink for rows with `topic` and any of `partition`, `key`, `value`, `headers`, `timestamp`."""

    def __init__(self, asked: SourceOptions) -> None:
        self._asked = asked

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        run(write(self._asked.brokers.cluster(), iterator))
        return WriterCommitMessage()


# -- in a session


def frame(
    spark: "SparkSession", options: Mapping[str, str], *, stream: bool = False
) -> "DataFrame":
    """Return the records of the topics that the options of the source name."""
    spark.dataSource.register(KafkaSource)
    reader = (spark.readStream if stream else spark.read).format(NAME)
    return reader.options(**options).load()


def into_topics(rows: "DataFrame", options: Mapping[str, str]) -> None:
    """Write rows to topics.

    Spark looks the source up in the active session of a thread in the JVM. After Python has
    connected to the JVM anew, the thread has no active session, so this function sets one.
    """
    spark: Any = rows.sparkSession
    spark.dataSource.register(KafkaSource)
    spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001  # no public name
    rows.write.format(NAME).options(**options).mode("append").save()
