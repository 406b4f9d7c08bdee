"""Rows from topics and into topics; the order of several is that of `task.merge`, in any cut."""

import random
from collections import deque
from collections.abc import Iterator

import pyarrow as pa
import pytest

from streamsx.client.security import PLAINTEXT
from streamsx.errors import NotFound, SettingError, TopicGone, UsageError
from streamsx.event_loops import run
from streamsx.model import TopicPartition
from streamsx.processing.batch import Batch, Chunk
from streamsx.processing.merge import Merge
from streamsx.protocol.partitioner import partition_of
from streamsx.protocol.record_batch import Builder
from streamsx.spark.reading import Brokers, TopicRange, columns, merged, rows
from streamsx.spark.rows import RECORDS
from streamsx.spark.source import write
from streamsx.testing import Broker
from tests.support.client import Client

Log = list[tuple[int, int]]
"""Offsets and timestamps."""
CUTS = range(60)


def batch(topic: str, log: Log) -> Batch:
    offsets, times = [at for at, _ in log], [time for _, time in log]
    return Batch(topic, 3, [None] * len(log), [b"v"] * len(log), times, offsets, None, 1 << 20)


def cut(rng: random.Random, topic: str, log: Log) -> Iterator[pa.RecordBatch]:
    while log:
        count = rng.randint(1, 9)
        yield columns(batch(topic, log[:count]))
        log = log[count:]


def order_of(batches: Iterator[pa.RecordBatch]) -> list[tuple[str, int]]:
    rows = [row for each in batches for row in each.to_pylist()]
    return [(row["topic"], row["offset"]) for row in rows]


@pytest.mark.parametrize("seed", CUTS)
def test_merged_order_equals_task_processing_order(seed: int) -> None:
    rng = random.Random(seed)
    highs = {topic: rng.choice([-1, 0, 20]) for topic in "abc"[: rng.randint(1, 3)]}
    logs: dict[str, Log] = {
        topic: [(2 * n, rng.randint(n - 15, n + 15)) for n in range(rng.randint(0, 50))]
        for topic in highs
    }
    queues = {t: deque([Chunk(batch(t, log), 0, len(log))]) for t, log in logs.items()}
    task = Merge(queues, highs)
    wanted: list[tuple[str, int]] = []
    while chunk := task.next(1, list(logs)):
        taken = chunk.batch.offsets[chunk.start : chunk.stop]
        wanted += [(chunk.batch.topic, offset) for offset in taken]
    inputs = [(cut(rng, topic, log), highs[topic]) for topic, log in sorted(logs.items())]
    assert order_of(merged(inputs)) == wanted


def test_record_columns_keep_values_and_nulls() -> None:
    headers: list[list[tuple[str, bytes | None]]] = [[], [("a", b"1"), ("a", None)]]
    found = columns(Batch("t", 3, [None, b"k"], [b"v", None], [-1, 7], [5, 9], headers, 10))
    assert found.schema == RECORDS
    assert found.to_pylist() == [
        {
            "topic": "t", "partition": 3, "offset": 5, "timestamp": -1,
            "key": None, "value": b"v", "headers": [],
        },
        {
            "topic": "t", "partition": 3, "offset": 9, "timestamp": 7,
            "key": b"k", "value": None,
            "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
        },
    ]  # fmt: skip
    (without,) = columns(batch("t", [(1, 1)])).to_pylist()
    assert without["headers"] == []


# -- from a broker


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    """`a` and `b` have two partitions."""
    with Broker(topics={"a": 2, "b": 2}) as broker:
        yield Brokers(broker.bootstrap, PLAINTEXT)


@pytest.fixture
def client(brokers: Brokers) -> Iterator[Client]:
    client = Client(brokers.bootstrap)
    yield client
    client.close()


def written(client: Client, topic: str, log: Log) -> None:
    builder = Builder(1 << 20)
    for _, time in log:
        builder.append(time, None, b"v", [("h", None)])
    client.send_raw(TopicPartition(topic, 1), builder.close())


def test_topics_of_task_are_read_in_task_order_from_position(
    brokers: Brokers, client: Client
) -> None:
    written(client, "a", [(0, 10), (1, 5), (2, 30), (3, 40)])
    written(client, "b", [(0, 20), (1, 30), (2, 35)])
    stretches = [TopicRange("b", 0, 3), TopicRange("a", 1, 4, high=10)]
    found = list(rows(brokers, 1, stretches))
    assert order_of(iter(found)) == [("a", 1), ("b", 0), ("a", 2), ("b", 1), ("b", 2), ("a", 3)]
    assert {row["partition"] for each in found for row in each.to_pylist()} == {1}


def test_closed_reader_leaves_nothing_open_and_logs_no_warning(
    brokers: Brokers, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    written(client, "a", [(n, n) for n in range(10_000)])
    assert sum(each.num_rows for each in rows(brokers, 1, [TopicRange("a", 0, 10_000)])) == 10_000
    reading = rows(brokers, 1, [TopicRange("a", 0, 10_000)])
    assert next(reading).num_rows
    reading.close()  # type: ignore[attr-defined]  # a generator; what stays open would warn
    assert not [each.message for each in caplog.records if each.levelname == "WARNING"]


def test_reading_does_not_format_batches_as_text(
    brokers: Brokers, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []  # whoever asks swallows what is raised

    def words(batch: Batch) -> str:
        told.append(len(batch.keys))
        return "batch"

    monkeypatch.setattr(Batch, "__repr__", words)
    written(client, "a", [(n, n) for n in range(1000)])
    assert sum(each.num_rows for each in rows(brokers, 1, [TopicRange("a", 0, 1000)])) == 1000
    assert not told


@pytest.mark.parametrize(("start", "end"), [(1, 4), (2, 5)])
def test_missing_records_are_refused_before_any_is_read(
    brokers: Brokers, client: Client, start: int, end: int
) -> None:
    written(client, "a", [(n, n) for n in range(4)])
    client.delete_records(TopicPartition("a", 1), 2)
    with pytest.raises(TopicGone, match=f"a-1: offsets {start} to {end} .* holds 2 to 4"):
        next(rows(brokers, 1, [TopicRange("a", start, end)]))


# -- to a broker


def of_row(**values: object) -> dict[str, object]:
    none = {"partition": None, "key": None, "value": None, "headers": None, "timestamp": None}
    return {"topic": "a", **none, **values}


def test_written_rows_keep_all_fields_and_are_partitioned_by_key(
    brokers: Brokers, client: Client
) -> None:
    keys = [b"k%d" % n for n in range(40)]
    given = [of_row(key=key, timestamp=n, value=b"v") for n, key in enumerate(keys)]
    given.append(
        of_row(partition=1, timestamp=99, value=b"", headers=[{"key": "h", "value": b"x"}])
    )
    schema = pa.schema([field for field in RECORDS if field.name != "offset"])
    batches = pa.Table.from_pylist(given, schema).to_batches(max_chunksize=7)
    assert run(write(brokers.cluster(), iter(batches))) == 41
    parts = [
        [row for each in rows(brokers, n, [TopicRange("a", 0, end)]) for row in each.to_pylist()]
        for (_, n), end in client.ends(TopicPartition("a", n) for n in (0, 1)).items()
    ]
    last = parts[1].pop()
    assert (last["timestamp"], last["value"], last["headers"]) == (99, b"", given[-1]["headers"])
    for number, part in enumerate(parts):
        wanted = [(at, key) for at, key in enumerate(keys) if partition_of(key, 2) == number]
        assert [(row["timestamp"], row["key"]) for row in part] == wanted


@pytest.mark.parametrize(
    ("row", "kind", "says"),
    [
        (of_row(topic="nowhere"), NotFound, "unknown topic: nowhere"),
        (of_row(partition=2), UsageError, "no such partition: a-2"),
        ({"value": b"v"}, SettingError, "column topic is missing"),
        (of_row(topic=None), SettingError, "column topic is missing"),
        (of_row(headers=[{"key": None, "value": b"x"}]), SettingError, "header without a key"),
    ],
)
def test_unwritable_rows_are_refused(
    brokers: Brokers, row: dict[str, object], kind: type[Exception], says: str
) -> None:
    batches = pa.Table.from_pylist([row]).to_batches()
    with pytest.raises(kind, match=says):
        run(write(brokers.cluster(), iter(batches)))
