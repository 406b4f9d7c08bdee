"""spark/bootstrap.py: state out of history is, byte for byte, what a TestDriver makes of it."""

import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamsx.errors import NotFound, NotOnSpark, PartitionCountChanged, UsageError
from streamsx.examples.shop_history import PastOrder, history, write
from streamsx.model import TopicPartition
from streamsx.protocol.partitioner import partition_of
from streamsx.protocol.record_batch import Builder
from streamsx.spark import bootstrap as module
from streamsx.spark.bootstrap import bootstrap
from streamsx.spark.checkout import discard_all
from streamsx.spark.rows import RECORDS
from streamsx.state.snapshot import newest
from streamsx.state.snapshot_files import open_files
from streamsx.testing import Broker
from tests.support.client import Client
from tests.unit.spark.conftest import Fed, Stored, driven, fed, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from streamsx.spark.runner import Committed

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]
SHOP, WORDS = "streamsx.examples.shop", "streamsx.examples.wordcount"
COUNTS = {"orders": 3, "shop-changes": 2}


@pytest.fixture(autouse=True)
def nothing_stays_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "LOOK_S", 0.05)  # for brokers that most tests do without
    yield
    discard_all()


class Boot:
    """Bootstraps into one folder."""

    def __init__(self, spark: "SparkSession", folder: Path) -> None:
        self.spark, self.folder, self.uri = spark, folder, str(folder / "out")

    def __call__(self, app: str, history: dict[str, str], **more: Any) -> "Committed":
        more = {"publishes": False, "scratch": str(self.folder), **more}
        return bootstrap(self.spark, app, self.uri, history, **more)

    def stored(self) -> Stored:
        return stored(open_files(self.uri), str(self.folder))


@pytest.fixture
def boot(spark: "SparkSession", tmp_path: Path) -> Boot:
    return Boot(spark, tmp_path)


def shop_records() -> list[Fed]:
    """Return records in the order of arrival: some late, some cancelled."""
    return as_fed(history(600, 40))


def as_fed(rows: Iterable[PastOrder]) -> list[Fed]:
    records = [fed("orders", 3, row.key, row.value or "", row.timestamp) for row in rows]
    return [each if each.value else each._replace(value=None) for each in records]


def with_offsets(records: list[Fed], folder: Path) -> None:
    """A file for each topic, with the rows in another order."""
    ends: dict[tuple[str, int], int] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    for each in records:
        at = ends[each[:2]] = ends.get(each[:2], 9) + 1
        headers = [{"key": k, "value": v} for k, v in each.headers]
        row = {**each._asdict(), "offset": at, "headers": headers or None}
        rows.setdefault(each.topic, []).append(row)
    for topic, some in rows.items():
        pq.write_table(pa.Table.from_pylist(some[::-1], RECORDS), folder / f"{topic}.parquet")


def app_of(name: str) -> Any:
    from streamsx.app.lookup import app_named

    return app_named(name)


@pytest.mark.parametrize("form", ["parquet", "jsonl"])
@pytest.mark.slow
def test_bootstrap_from_files_reads_in_order_of_time(boot: Boot, tmp_path: Path, form: str) -> None:
    rows = sorted(history(600, 40), key=lambda row: row.timestamp)  # stable, as a file is
    write(tmp_path / "orders", history(600, 40), form, 250)
    done = boot(SHOP, {"orders": f"{tmp_path}/orders/*.{form}"}, partitions=COUNTS)
    assert done.manifest.positions["orders"][0].next == 0
    assert boot.stored() == driven(app_of(SHOP), as_fed(rows), COUNTS)
    assert {name for name, _ in boot.stored()} == {"standing", "customers", "sold"}


@pytest.mark.slow
def test_files_with_offsets_are_read_in_offset_order_up_to_until(
    boot: Boot, tmp_path: Path
) -> None:
    records = shop_records()
    with_offsets(records, tmp_path)
    until = sorted(each.timestamp for each in records)[400]
    taken: list[Fed] = []
    over: set[int] = set()
    for each in records:
        over |= {each.partition} if each.timestamp >= until else set()
        taken += [] if each.partition in over else [each]
    orders = {"orders": f"{tmp_path}/orders.parquet"}
    done = boot(SHOP, orders, partitions=COUNTS, until_ms=until)
    assert boot.stored() == driven(app_of(SHOP), taken, COUNTS)
    in_first = sum(each.partition == 0 for each in taken)
    assert done.manifest.positions["orders"][0].next == 10 + in_first
    with pytest.raises(UsageError, match=r"snapshots exist already: .*--replace"):
        boot(SHOP, orders, partitions=COUNTS)
    again = boot(SHOP, orders, partitions=COUNTS, replace=True)
    assert again.manifest.number == 1
    assert boot.stored() == driven(app_of(SHOP), records, COUNTS)


@pytest.mark.slow
def test_topic_is_read_to_the_end_in_offset_order(boot: Boot) -> None:
    app = app_of(WORDS)
    lines = [Fed("wordcount-lines", n % 2, 100 - n, None, b"a b%d a" % (n % 7)) for n in range(60)]
    with Broker(topics={"wordcount-lines": 2, "wordcount-words": 3}) as broker:
        client = Client(broker.bootstrap)
        for number in range(2):
            builder = Builder(1 << 20)
            for each in lines[number::2]:
                builder.append(each.timestamp, each.key, each.value, [])
            client.send_raw(TopicPartition("wordcount-lines", number), builder.close())
        client.close()
        app.override(bootstrap=broker.bootstrap)
        done = boot(WORDS, {"wordcount-lines": "kafka"})
    assert done.manifest.partitions["wordcount-words"] == 3
    assert done.manifest.positions["wordcount-lines"][1].next == 30
    assert boot.stored() == driven(app, lines, {"wordcount-lines": 2, "wordcount-words": 3})


def test_records_sent_during_bootstrap_are_behind_the_snapshot(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the look for the first late record and ahead of the batch: first one that is late, so
    that what follows it must not be passed over.
    """
    app, found = app_of(WORDS), TopicPartition("wordcount-lines", 0)
    real = module.cut

    def send(*lines: tuple[int, bytes]) -> None:
        builder = Builder(1 << 20)
        for at, value in lines:
            builder.append(at, None, value, [])
        client.send_raw(found, builder.close())

    def cut(*about: Any) -> Any:
        rows = real(*about)
        send((90, b"late"), (20, b"behind"))
        return rows

    monkeypatch.setattr(module, "cut", cut)
    with Broker(topics={"wordcount-lines": 1, "wordcount-words": 1}) as broker:
        client = Client(broker.bootstrap)
        send((10, b"first"))
        app.override(bootstrap=broker.bootstrap)
        done = boot(WORDS, {"wordcount-lines": "kafka"}, until_ms=50)
        client.close()
    assert done.manifest.positions["wordcount-lines"][0].next == 1
    assert done.records == 2  # a line, a word


@pytest.mark.slow
def test_bootstrap_from_a_topic_keeps_late_and_cancelled_orders(boot: Boot) -> None:
    app, records = app_of(SHOP), shop_records()
    assert None in {each.value for each in records}
    assert records != sorted(records, key=lambda each: each.timestamp)
    with Broker(topics=COUNTS) as broker:
        client = Client(broker.bootstrap)
        for number in range(COUNTS["orders"]):
            builder = Builder(1 << 20)
            for each in records:
                if each.partition == number:
                    builder.append(each.timestamp, each.key, each.value, [])
            client.send_raw(TopicPartition("orders", number), builder.close())
        client.close()
        app.override(bootstrap=broker.bootstrap)
        boot(SHOP, {"orders": "kafka"})
    assert boot.stored() == driven(app, records, COUNTS)


@pytest.mark.parametrize("form", ["jsonl", pytest.param("parquet", marks=pytest.mark.slow)])
def test_bootstrap_counts_lines_from_files_as_a_worker_does(
    boot: Boot, tmp_path: Path, form: str
) -> None:
    counts = {"wordcount-lines": 2, "wordcount-words": 3}
    rows: list[dict[str, Any]] = [
        {"key": None, "value": f"a b{n % 7} {'c' * (n % 3)}", "timestamp": n * 37 % 100}
        for n in range(60)
    ]
    path = tmp_path / f"lines.{form}"
    if form == "parquet":
        kinds = {"key": pa.string(), "value": pa.string(), "timestamp": pa.int64()}
        pq.write_table(pa.Table.from_pylist(rows, pa.schema(kinds)), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    boot(WORDS, {"wordcount-lines": str(path)}, partitions=counts)
    lines = [
        Fed("wordcount-lines", 0, row["timestamp"], None, row["value"].encode())
        for row in sorted(rows, key=lambda row: row["timestamp"])
    ]
    assert boot.stored() == driven(app_of(WORDS), lines, counts)
    assert len({n for _, n in boot.stored()}) > 1


def test_keyless_rows_are_partitioned_by_value(boot: Boot, tmp_path: Path) -> None:
    rows = [{"key": None, "value": f"w{n % 7}", "timestamp": n} for n in range(40)]
    (tmp_path / "words.jsonl").write_text("\n".join(map(json.dumps, rows)))
    frail, counts = "tests.spark.apps:frail", {"words": 2}
    boot(frail, {"words": f"{tmp_path}/words.jsonl"}, partitions=counts)
    words = [b"w%d" % (n % 7) for n in range(40)]
    records = [Fed("words", partition_of(w, 2), n, None, w) for n, w in enumerate(words)]
    assert boot.stored() == driven(app_of(frail), records, counts)
    assert {n for _, n in boot.stored()} == {0, 1}


@pytest.mark.slow
def test_topics_of_one_task_are_merged_in_order_of_time(boot: Boot, tmp_path: Path) -> None:
    paired, sides = "tests.unit.spark.apps:paired", ("lefts", "rights")
    records = [
        Fed(sides[n * 7 % 5 < 2], n % 2, n * 37 % 100, None, b"abcdef"[n % 6 : n % 6 + 1],
            (("from", b"%d" % n),) * (n % 3 == 0))
        for n in range(120)
    ]  # fmt: skip
    with_offsets(records, tmp_path)
    paths = {side: f"{tmp_path}/{side}.parquet" for side in sides}
    boot(paired, paths, partitions=dict.fromkeys(sides, 2))
    assert boot.stored() == driven(app_of(paired), records, dict.fromkeys(sides, 2))


def test_late_records_are_forwarded_in_the_order_of_the_writer(boot: Boot, tmp_path: Path) -> None:
    counts = {"said": 2, "told": 3}
    records = [fed("said", 2, f"k{n % 5}", f"{n} ", (n * 37) % 100) for n in range(120)]
    with_offsets(records, tmp_path)
    handed = "tests.unit.spark.apps:handed"
    boot(handed, {"said": f"{tmp_path}/said.parquet"}, partitions=counts)
    assert boot.stored() == driven(app_of(handed), records, counts)


GOOD = {"key": "k", "value": "v", "timestamp": 1}
BAD: dict[str, tuple[dict[str, Any] | str, str]] = {
    "no timestamp": ({"key": "k", "value": "v"}, "expected columns timestamp, found key, value"),
    "no value": ({"key": "k", "at": 1}, "expected columns value, timestamp, found at, key"),
    "a value with parts": ({**GOOD, "value": {"a": 1}}, "found struct<a:bigint>"),
    "a row without timestamp": ({**GOOD, "timestamp": None}, "a row without timestamp"),
    "a partition too many": ({**GOOD, "partition": 3}, "partition 3 of orders: expected 3"),
    "torn": ('{"key": "k", "va', r'bad\.jsonl: a line that is no JSON: {"key": "k", "va'),
    "a torn one before it": ('{"key": "k", ' + json.dumps(GOOD), "no JSON: "),
    "two in a line": (json.dumps(GOOD) + json.dumps(GOOD), "no JSON: "),
    "no number": ({**GOOD, "partition": 0, "offset": -1}, "a row with offset below 0"),
    "no place": ({**GOOD, "offset": 1}, "offsets without partition: give both"),
    "no topic": ({**GOOD, "partition": 0, "topic": None}, "a row without topic"),
    "gone": ("", "no such file: .*history of orders"),
}
SLOW = {"a row without timestamp", "a partition too many", "a torn one before it", "two in a line"}
"""Refused as another one is, and only once rows have been read: 2 s each."""


@pytest.mark.parametrize(
    "bad", [pytest.param(bad, marks=pytest.mark.slow) if bad in SLOW else bad for bad in BAD]
)
def test_bad_rows_are_refused_before_anything_is_written(
    boot: Boot, tmp_path: Path, bad: str
) -> None:
    row, what = BAD[bad]
    text = row if isinstance(row, str) else json.dumps(row)
    if text:
        filled = {"topic": "orders", "partition": 0, "offset": 0}
        good = json.dumps(GOOD | {name: filled[name] for name in filled if name in row})
        lines = [text] if bad.startswith(("no ", "a value")) else [good, text]
        (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    with pytest.raises((UsageError, NotFound, PartitionCountChanged), match=what):
        boot(SHOP, {"orders": f"{tmp_path}/bad.jsonl"}, partitions=COUNTS)
    assert newest(open_files(boot.uri)) is None


ROW = {"key": "k", "value": "v", "timestamp": 1_700_000_000_000}
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "offsets": ({**ROW, "partition": 1, "offset": 7}, "a row without partition"),
    "times": ({**ROW, "timestamp": datetime.fromtimestamp(1.7e9, UTC)}, "CANNOT_MERGE"),
    "nothing": (ROW, ""),
}


@pytest.mark.parametrize("other", OTHERS)
def test_each_file_is_read_by_the_columns_of_that_file(
    boot: Boot, tmp_path: Path, other: str
) -> None:
    row, what = OTHERS[other]
    pq.write_table(pa.Table.from_pylist([ROW]), tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "b.parquet")
    with pytest.raises(UsageError, match=what) if what else nullcontext():
        boot(SHOP, {"orders": f"{tmp_path}/*.parquet"}, partitions=COUNTS)
    assert (newest(open_files(boot.uri)) is None) == bool(what)


def test_headers_present_in_only_some_files_are_read_by_name(boot: Boot, tmp_path: Path) -> None:
    without = {"key": "k", "value": "a", "timestamp": 1}
    headed = {**without, "timestamp": 2, "headers": [{"value": b"1", "key": "from"}]}
    for name, row in (("a", without), ("b", headed)):
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / f"{name}.parquet")
    paired = "tests.unit.spark.apps:paired"
    history = {"rights": f"{tmp_path}/*.parquet", "lefts": "none"}
    boot(paired, history, partitions={"lefts": 2, "rights": 2})
    ((_, last), (_, every)) = next(iter(boot.stored().values()))
    assert (every, last) == (b'"AA"', b"\"b'1'\"")


def test_a_torn_file_is_named(boot: Boot, tmp_path: Path) -> None:
    with_offsets(shop_records(), tmp_path)
    whole = (path := tmp_path / "orders.parquet").read_bytes()
    path.write_bytes(whole[:200] + bytes(200) + whole[400:])
    with pytest.raises(UsageError, match=r"spark: .*orders\.parquet"):
        boot(SHOP, {"orders": str(path)}, partitions=COUNTS)
    path.write_bytes(whole[:-9])
    with pytest.raises(UsageError, match=r"spark: .*orders\.parquet"):
        boot(SHOP, {"orders": str(path)}, partitions=COUNTS)
    assert newest(open_files(boot.uri)) is None


@pytest.mark.parametrize(
    ("app", "history", "more", "what"),
    [
        (SHOP, {}, {}, "no history: orders: give"),
        (
            SHOP,
            {"orders": "none", "shop-changes": "x.orc"},
            {},
            "not a topic from outside of the app: shop-chan",
        ),
        (SHOP, {"orders": "lake/orders"}, {}, "write kafka, none, or files by their ending"),
        ("tests.unit.spark.apps:fed_by_itself", {}, {}, "feeds itself"),
    ],
)
def test_bad_bootstrap_arguments_are_refused_before_anything_is_read(
    boot: Boot, app: str, history: dict[str, str], more: dict[str, Any], what: str
) -> None:
    with pytest.raises((UsageError, NotOnSpark), match=what):
        boot(app, history, partitions=COUNTS, **more)
    assert not Path(boot.uri).exists()


@pytest.mark.slow
def test_bootstrap_without_history_makes_an_empty_snapshot(boot: Boot) -> None:
    done = boot(SHOP, {"orders": "none"}, partitions=COUNTS)
    assert boot.stored() == {}
    assert {n: len(store.partitions) for n, store in done.manifest.stores.items()} == {
        "standing": 3, "customers": 2, "sold": 8,
    }  # fmt: skip


@pytest.mark.slow
def test_records_are_ordered_by_offset_across_files(boot: Boot, tmp_path: Path) -> None:
    size = 6000
    rows = [
        {"topic": "words", "partition": 0, "offset": n, "timestamp": n, "key": b"a", "value": b"a",
         "headers": None}
        for n in range(2 * size)
    ]  # fmt: skip
    for name, some in (("b", rows[:size]), ("a", rows[size:])):
        pq.write_table(pa.Table.from_pylist(some, RECORDS), tmp_path / f"{name}.parquet")
    history = {"words": f"{tmp_path}/*.parquet"}
    done = boot("tests.spark.apps:frail", history, partitions={"words": 2})
    assert done.manifest.positions["words"][0].next == 2 * size
    assert [rows[0][1] for rows in boot.stored().values()] == [str(2 * size).encode()]
