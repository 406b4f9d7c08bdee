"""Stores as tables on Spark: compacted, rescaled, queried, copied; against a plain replay."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from streamsx.app.lookup import app_named
from streamsx.errors import IncompatibleStore, NotFound, StreamsxError, TopicGone
from streamsx.model import TopicPartition
from streamsx.protocol.partitioner import partition_of
from streamsx.spark.checkout import discard_all
from streamsx.state.snapshot import Position
from streamsx.testing import Broker
from streamsx.tools import spark as command
from tests.support.client import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]
SHOP, WORDS = "streamsx.examples.shop", "streamsx.examples.wordcount"
LOGS = {name: f"shop-{name}-changelog" for name in ("standing", "customers", "sold")}
REPARTITION = "shop-streamsx.examples.shop.sell-shop-changes-product-repartition"
VALUES: dict[str, dict[str, object]] = {
    "standing": {"customer": "ann", "product": "tea", "price": 5, "pieces": 1},
    "customers": {"orders": 1, "cents": 5},
}
LAST = {"standing": "at", "customers": "last"}
Replayed = dict[str, dict[tuple[int, str], Any]]


@pytest.fixture(scope="module")
def shop() -> Iterator[tuple[str, Replayed]]:
    """Six partitions, one of them empty and one emptied; and what a replay of them gives."""
    from streamsx.examples.shop import app
    from streamsx.spark.plan import stages

    draw, before = Random(7), app.conf.bootstrap
    found = stages(app.topology(), {}, 6)[0].counts
    with Broker(topics=dict.fromkeys(found, 6) | {"orders-12": 12}) as broker:
        app.override(bootstrap=broker.bootstrap)
        client = Client(broker.bootstrap)
        replayed: Replayed = {name: {} for name in LOGS}
        logs: dict[TopicPartition, list[tuple[bytes | None, bytes | None]]] = {}
        for at in range(3000):
            key = f"k{draw.randrange(400)}"
            partition = partition_of(key.encode(), 6)
            if partition == 5:
                continue
            for name, log in LOGS.items():
                value = VALUES[name] | {LAST[name]: at} if name in VALUES else at
                gone = partition == 4 or draw.random() < 0.2
                records = logs.setdefault(TopicPartition(log, partition), [])
                records.append((orjson.dumps(key), orjson.dumps(value)))
                replayed[name][partition, key] = value
                if gone:
                    records.append((orjson.dumps(key), None))
                    del replayed[name][partition, key]
        for tp, records in logs.items():
            client.send(tp, records)
        client.close()
        yield broker.bootstrap, replayed
    app.override(bootstrap=before)
    discard_all()


def table(frame: Any) -> dict[tuple[int, str], Any]:
    rows = frame.collect()
    found = {(row.partition, row.key): json.loads(row.value) for row in rows}
    assert len(found) == len(rows)
    return found


def told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """Return the JSON result of the command."""
    monkeypatch.setattr(sys, "argv", ["streamsx spark", *words, "--json"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    said = capsys.readouterr()
    assert not ended.value.code, said.err
    return json.loads(said.out.splitlines()[-1])


def test_compacted_rescaled_and_live_state_equal_a_replay(
    spark: "SparkSession",
    shop: tuple[str, Replayed],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from streamsx.spark.compact import compact
    from streamsx.spark.rescale import rescale
    from streamsx.spark.state import state

    bootstrap, replayed = shop
    uri, other = str(tmp_path / "state"), str(tmp_path / "twelve")
    made = told(capsys, monkeypatch, "compact", SHOP, "--out", uri)
    assert made.pop("seconds") > 0
    assert made.pop("bytes") > 0
    rows = sum(map(len, replayed.values()))
    assert made == {"uri": uri, "number": 0, "tasks": 18, "rows": rows}
    for name, expected in replayed.items():
        assert table(state(SHOP, name, path=uri, spark=spark)) == expected
        assert table(state(SHOP, name, bootstrap=bootstrap, spark=spark)) == expected

    places = {"orders": {n: Position(0) for n in range(6)}}
    compact(SHOP, uri, brokers=bootstrap, positions=places)
    words = "rescale", SHOP, "--state", uri, "--out", other, "--partitions"
    counts = dict.fromkeys(("orders", "shop-changes", REPARTITION), 12)
    cut = told(capsys, monkeypatch, *words, *(f"{t}={n}" for t, n in counts.items()))
    assert (cut["tasks"], cut["rows"], len(cut["procedure"])) == (36, rows, 2)
    for name, expected in replayed.items():
        found = table(state(SHOP, name, path=other, spark=spark))
        assert found == {
            (partition_of(key.encode(), 12), key): value for (_, key), value in expected.items()
        }
    with pytest.raises(StreamsxError, match="already"):
        rescale(SHOP, uri, other, counts, spark=spark)


@pytest.mark.slow
def test_store_is_queried_by_columns_by_sql_and_as_bytes(
    spark: "SparkSession",
    shop: tuple[str, Replayed],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from streamsx.spark.state import state

    bootstrap, replayed = shop
    cents = sum(value["cents"] for value in replayed["customers"].values())
    frame = state(SHOP, "customers", bootstrap=bootstrap, value="cents long", spark=spark)
    assert frame.selectExpr("sum(value.cents)").collect()[0][0] == cents
    raw = spark.read.format("streamsx-state").options(app=SHOP, store="sold", raw="true")
    raw = raw.option("kafka.bootstrap.servers", bootstrap)
    keys = {bytes(row.key) for row in raw.load().collect()}
    assert keys == {orjson.dumps(key) for _, key in replayed["sold"]}
    live = "state", SHOP, "--store", "sold", "--live"
    query = "select partition, count(*) n from sold group by partition order by partition"
    rows = told(capsys, monkeypatch, *live, "--sql", query)["rows"]
    numbers = [partition for partition, _ in replayed["sold"]]
    assert rows == [{"partition": n, "n": numbers.count(n)} for n in range(4)]
    out = tmp_path / "sold.parquet"
    monkeypatch.chdir(tmp_path)  # where executors are not
    monkeypatch.setattr("streamsx.spark.session.is_local", lambda _: False)
    told(capsys, monkeypatch, *live, "--out", out.name)
    assert spark.read.parquet(str(out)).count() == len(numbers)
    with pytest.raises(AssertionError, match=r"executor .* cannot see /proc.*: use a shared mount"):
        told(capsys, monkeypatch, *live, "--out", "/proc/self/cwd/other")  # of each its own
    assert [*tmp_path.glob("other*")] == []
    assert told(capsys, monkeypatch, "compact", SHOP, "--out", "here")["rows"] >= len(numbers)
    found = told(capsys, monkeypatch, *live[:-1], "--state", "here", "--sql", query)
    assert found["rows"] == rows
    for words, said in (
        ((*live, "--sql", "select nothing from sold"), "[UNRESOLVED_COLUMN"),
        ((*live, "--out", str(out)), "is there already"),
        (("state", SHOP, "--store", "none", "--live"), "app shop has standing, customers, sold"),
        (("state", SHOP, "--store", "sold", "--state", str(tmp_path)), "found none: make one"),
        (("state", SHOP, "--store", "sold", "--state", ""), "argument --state: nothing is given"),
    ):
        with pytest.raises(AssertionError, match="error: ") as refused:
            told(capsys, monkeypatch, *words)
        *_, line = str(refused.value).rpartition("error: ")  # behind what PySpark logs of its own
        assert said in line
        assert "Traceback" not in line


def test_text_keys_are_read_as_written(spark: "SparkSession", tmp_path: Path) -> None:
    from streamsx.spark.compact import compact
    from streamsx.spark.state import state

    node, uri = app_named(WORDS).tables["counts"].node(), str(tmp_path / "state")
    words = {"tea": 3, "Käse": 2, 'a "b"\n': 1, "": 7, "5": 5, "null": 1}
    topics = {"wordcount-lines": 2, "wordcount-words": 2, node.changelog: 2}
    with Broker(topics=topics) as broker:
        client = Client(broker.bootstrap)
        for word, count in words.items():
            tp = TopicPartition(node.changelog, partition_of(word.encode(), 2))
            client.send(tp, [(node.keys.encode(word), node.values.encode(count))])
        client.close()
        compact(WORDS, uri, brokers=broker.bootstrap, spark=spark)
        expected = {(partition_of(word.encode(), 2), word): n for word, n in words.items()}
        assert table(state(WORDS, "counts", bootstrap=broker.bootstrap, spark=spark)) == expected
    assert table(state(WORDS, "counts", path=uri, spark=spark)) == expected
    discard_all()


def test_streamsx_error_in_a_spark_task_is_raised_unchanged(spark: "SparkSession") -> None:
    from streamsx.spark.stored import of_each

    def work(number: int) -> float:
        if number == 3:
            raise NotFound("no such number: 3")
        return 1 / number

    assert of_each(spark, work, [1, 2]) == [1, 0.5]
    with pytest.raises(NotFound, match="no such number: 3"):
        of_each(spark, work, [2, 3])
    with pytest.raises(Exception, match="ZeroDivisionError: division by zero"):
        of_each(spark, work, [1, 0])


@pytest.mark.slow
def test_records_behind_a_snapshot_are_copied_once_by_key(
    spark: "SparkSession", shop: tuple[str, Replayed], tmp_path: Path
) -> None:
    from streamsx.spark.compact import compact
    from streamsx.spark.rescale import copy

    bootstrap, _ = shop
    client, uri = Client(bootstrap), str(tmp_path / "state")

    def send(first: int, last: int) -> None:
        for n in range(first, last):
            key = b"o%d" % n
            client.send(TopicPartition("orders", partition_of(key, 6)), [(key, b"%d" % n)])

    send(0, 30)
    ends = client.ends([TopicPartition("orders", n) for n in range(6)])
    at = {tp.partition: Position(end) for tp, end in ends.items() if end}
    compact(SHOP, uri, brokers=bootstrap, positions={"orders": at})
    assert copy(SHOP, uri, "orders", "orders-12", spark, brokers=bootstrap)[0] == 0
    send(30, 50)
    assert copy(SHOP, uri, "orders", "orders-12", spark, brokers=bootstrap)[0] == 20
    assert copy(SHOP, uri, "orders", "orders-12", spark, brokers=bootstrap)[0] == 0
    send(50, 55)
    count, reached = copy(SHOP, uri, "orders", "orders-12", spark, brokers=bootstrap)
    assert (count, sum(reached.values())) == (5, 55)
    old = {r.key: r for tp in ends for r in client.read(tp)}
    for partition in range(12):
        for record in client.read(TopicPartition("orders-12", partition)):
            assert record.key is not None
            assert partition_of(record.key, 12) == partition
            was = old.pop(record.key)
            assert (record.value, record.timestamp) == (was.value, was.timestamp)
    assert set(old) == {b"o%d" % n for n in range(30)}
    client.close()
    with pytest.raises(IncompatibleStore, match=r"without positions: .* expected some of clicks"):
        copy(SHOP, uri, "clicks", "orders-12", spark, brokers=bootstrap)
    with pytest.raises(NotFound, match="no such topic: nowhere"):
        copy(SHOP, uri, "orders", "nowhere", spark, brokers=bootstrap)
    compact(SHOP, uri, brokers=bootstrap, positions={"orders": {**at, 0: Position(10**6)}})
    with pytest.raises(TopicGone, match="orders-0: offsets 1000000 to"):
        copy(SHOP, uri, "orders", "orders-12", spark, brokers=bootstrap)
