"""Costs of the pipeline on Spark compared with the same work without it, in one run, by turns."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rocksdict import Rdict

from streamsx.app.lookup import app_named
from streamsx.model import TopicPartition
from streamsx.protocol.record_batch import Builder
from streamsx.spark.bootstrap import bootstrap
from streamsx.spark.checkout import discard_all
from streamsx.spark.partitioner import partitions_of
from streamsx.spark.runner import run
from streamsx.spark.source import frame
from streamsx.state.api import FORMAT, INDEX, ROW
from streamsx.state.rocks import RocksMemory, RocksRows, options
from streamsx.state.snapshot import newest
from streamsx.state.snapshot_files import open_files
from streamsx.tools.cli.processes import OURS, Child
from tests.support.client import Client
from tests.support.cost import cpu_s, watched
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.workers import Workers
from tests.unit.spark.conftest import stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLOW = [pytest.mark.slow, pytest.mark.timeout(1200)]
pytestmark = [*SLOW, pytest.mark.spark, pytest.mark.xdist_group("spark")]
SCALE = float(os.environ.get("FIGURES_SCALE", "1"))
CHECKOUT = Path(__file__).parents[2]
APP, TOPIC, PARTITIONS = "tests.support.throughput.aggregate", "orders", 4
CHUNK, PER_BATCH = 250_000, 5_000
MEMORY_MB = 8 * 1.073741824e3
ROUNDS = 3
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

Spent = tuple[float, float]
"""Wall and CPU seconds."""


def scaled(number: int) -> int:
    return max(1000, int(number * SCALE))


def tell(text: str) -> None:
    print(f"\n    {text}", flush=True)  # noqa: T201  # figures are for people


def held(ratio: float, least: float, what: str) -> None:
    tell(f"{what}: {ratio:.2f}x; at least {least}x")
    assert SCALE < 1 or ratio >= least, what


# -- what there is to work on


def orders(total: int, keys: int) -> Iterator[tuple[list[bytes], list[bytes], int]]:
    """Keys and values, and the number of the first; the same each time. Amounts are whole: their
    sums are equal in any order.
    """
    rng = np.random.default_rng(3)
    for start in range(0, total, CHUNK):
        n = min(CHUNK, total - start)
        drawn = (rng.integers(0, limit, n).tolist() for limit in (keys, 9, 10_000))
        rows = list(zip(*drawn, strict=True))
        values = [b'{"user":"user-%07d","qty":%d,"price":%d,"status":"new"}' % row for row in rows]
        yield [b"user-%07d" % row[0] for row in rows], values, start


def fill(bootstrap: str, total: int, keys: int, folder: Path | None = None) -> None:
    """A topic of them, by their keys; and parquet files of the same. Each order has a time of its
    own.
    """
    client = Client(bootstrap)
    client.create(TOPIC, PARTITIONS, {"retention.ms": "-1"})  # their times are long ago
    for names, values, start in orders(total, keys):
        if folder:
            folder.mkdir(exist_ok=True)
            columns = {"key": names, "value": values, "timestamp": range(start, start + len(names))}
            pq.write_table(pa.table(columns), folder / f"{start:09}.parquet")
        places = np.asarray(partitions_of(pa.array(names, pa.binary()), PARTITIONS))
        for partition in range(PARTITIONS):
            mine = np.flatnonzero(places == partition).tolist()
            for at in range(0, len(mine), PER_BATCH):
                builder = Builder(8 << 20)
                for n in mine[at : at + PER_BATCH]:
                    assert builder.append(start + n, names[n], values[n])
                client.send_raw(TopicPartition(TOPIC, partition), builder.close())
    client.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A process of its own: what it costs counts for nobody."""
    with EmbeddedBroker(tmp_path / "broker") as embedded:
        yield embedded
    discard_all()
    shutil.rmtree(tmp_path, ignore_errors=True)


def spent(job: Callable[[], object], without: int | None) -> Spent:
    """Return the cost of this process and all below it, without a broker."""
    brokers = () if without is None else (without,)
    before, began = cpu_s(os.getpid(), brokers), time.perf_counter()
    job()
    return time.perf_counter() - began, cpu_s(os.getpid(), brokers) - before


def shown(some: list[Spent]) -> str:
    wall, cpu = (median(column) for column in zip(*some, strict=True))
    return f"{wall:.1f} s, {cpu:.1f} CPU-s"


class PlainRun(NamedTuple):
    """A worker that reads a topic to its end. `wall_s`: from when its tasks ran, `start_s`: before
    that; `cpu_s`: with its start.
    """

    start_s: float
    wall_s: float
    cpu_s: float
    state: Path


def plain(bootstrap: str, folder: Path, total: int) -> PlainRun:
    """Run a worker until all is committed."""
    client = Client(bootstrap)
    read = [TopicPartition(TOPIC, n) for n in range(PARTITIONS)]
    group = folder.name
    env = {"PYTHONPATH": str(CHECKOUT), "GROUP": group}
    with Workers(bootstrap, folder, app=APP, env=env) as workers:
        began = workers.now()
        workers.start("plain")
        runs = workers.until_event("task", to="running", count=PARTITIONS, timeout_s=60)["mono"]
        workers.until(
            lambda: sum(client.committed(group, read).values()) >= total, "all is read", 900
        )
        wall, cpu = workers.now() - runs, cpu_s(workers.pid("plain"))
        assert workers.stop("plain") == [0]
    client.close()
    return PlainRun(runs - began, wall, cpu, folder / "plain" / group / "stores" / "totals")


def state_of(run: PlainRun) -> dict[tuple[str, int], list[tuple[bytes, bytes]]]:
    """Return the state of a worker in the form in which `stored` returns that of a snapshot."""
    memory, found = RocksMemory(blocks_bytes=64 << 20, buffers_bytes=64 << 20), {}
    for partition in range(PARTITIONS):
        path = run.state / str(partition)
        read = Rdict(str(path), options(memory))
        layout = bytes(read[FORMAT] or b"").decode()
        read.close()
        rows = RocksRows(path, memory, layout)
        found["totals", partition] = list(rows.scan(ROW, INDEX))
        rows.close()
    return found


# -- figures


def test_figures_of_five_million_orders(broker: EmbeddedBroker, tmp_path: Path) -> None:
    total, keys = scaled(5_000_000), scaled(500_000)
    fill(broker.bootstrap, total, keys, tmp_path / "orders")
    out, log = tmp_path / "out", tmp_path / "bootstrap.log"
    command = [
        *OURS, "spark", "bootstrap", APP, "--json", "--no-publish", "--out", str(out),
        "--master", "local[2]", "--history", f"{TOPIC}={tmp_path}/orders/*.parquet",
        "--partitions", f"{TOPIC}={PARTITIONS}", "--scratch", str(tmp_path),
    ]  # fmt: skip
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    began = time.perf_counter()
    child = Child("bootstrap", log, command, env=env)
    with watched(child.pid) as peak:
        code = child.wait(900)
    wall = time.perf_counter() - began
    said = log.read_text()
    assert code == 0, said
    tell(f"progress:\n{said}")
    assert json.loads(said.splitlines()[-1])["records"] == total
    assert "stage 0" in said, "no progress"
    one = plain(broker.bootstrap, tmp_path / "workers", total)
    tell(
        f"{total} orders, {keys} keys: bootstrap {wall:.1f} s, {peak.cpu_s:.1f} CPU-s, at most "
        f"{peak.memory_mb:.0f} MB in all; a plain worker {one.start_s:.1f} + {one.wall_s:.1f} s, "
        f"{one.cpu_s:.1f} CPU-s; worker by bootstrap: wall "
        f"{(one.start_s + one.wall_s) / wall:.2f}x, CPU {one.cpu_s / peak.cpu_s:.2f}x"
    )
    theirs = state_of(one)
    assert stored(open_files(str(out)), str(tmp_path)) == theirs
    entries = sum(map(len, theirs.values()))
    assert entries == len({key for names, *_ in orders(total, keys) for key in names})
    tell(f"{entries} entries, all equal")
    assert peak.memory_mb <= MEMORY_MB


def test_figures_of_a_topic_without_a_shuffle(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path
) -> None:
    total, keys = scaled(5_000_000), scaled(500_000)  # a job costs more than a second, of any size
    fill(broker.bootstrap, total, keys)
    app_named(APP).override(bootstrap=broker.bootstrap)
    ours, theirs = list[Spent](), list[PlainRun]()
    for number in range(-1, ROUNDS):  # the first one is for the session to get warm
        out = str(tmp_path / f"out{number}")
        more: dict[str, Any] = {"publishes": False, "scratch": str(tmp_path)}
        boot = partial(bootstrap, spark, APP, out, {TOPIC: "kafka"}, **more)
        figure = spent(boot, broker.pid)
        if number < 0:
            continue
        ours.append(figure)
        theirs.append(plain(broker.bootstrap, tmp_path / f"workers{number}", total))
        assert stored(open_files(out), str(tmp_path)) == state_of(theirs[-1])
        shutil.rmtree(out)
    worker = shown([(each.wall_s, each.cpu_s) for each in theirs])
    tell(f"{total} records of a topic: bootstrap on local[2] {shown(ours)}; a worker {worker}")
    ratio = median(one.wall_s / wall for one, (wall, _) in zip(theirs, ours, strict=True))
    held(ratio, 1.3, "a plain process by a bootstrap of a topic, wall")


def test_figures_of_a_query_beside_transform_with_state(
    spark: "SparkSession", broker: EmbeddedBroker, tmp_path: Path
) -> None:
    pytest.importorskip(
        "google.protobuf", reason="Spark's own state needs it: pip install protobuf"
    )
    total, keys = scaled(500_000), scaled(50_000)
    fill(broker.bootstrap, total, keys)
    app_named(APP).override(bootstrap=broker.bootstrap)
    asked = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": TOPIC}
    asked |= {"tasks": f'[["{TOPIC}"]]', "maxOffsetsPerTrigger": str(each := total // 4)}
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDER)
    spark.conf.set("spark.sql.shuffle.partitions", str(PARTITIONS))

    def theirs(folder: str) -> None:
        read = frame(spark, asked, stream=True)
        writer = summed(read).writeStream.format("noop").outputMode("update")
        writer = writer.option("checkpointLocation", f"{folder}/theirs")
        writer.trigger(availableNow=True).start().awaitTermination()

    def ours(folder: str) -> None:
        more: dict[str, Any] = {"publishes": False, "scratch": str(tmp_path), "sink": "noop"}
        run(spark, APP, f"{folder}/ours", available_now=True, max_records=each, **more).wait()

    figures: dict[str, list[Spent]] = {"ours": [], "theirs": []}
    for number in range(-1, ROUNDS):
        folder = str(tmp_path / f"round{number}")
        took = {job.__name__: spent(partial(job, folder), broker.pid) for job in (ours, theirs)}
        for name in took if number >= 0 else ():
            figures[name].append(took[name])
        if number < 0:
            assert sums_of(spark, f"{folder}/theirs") == sums_of_ours(f"{folder}/ours", tmp_path)
            manifest = newest(open_files(f"{folder}/ours"))
            assert manifest is not None
            assert manifest.number == 3
    tell(f"{total} records, 4 batches: run {shown(figures['ours'])}; transformWithState "
         f"{shown(figures['theirs'])}")  # fmt: skip
    pairs = zip(figures["theirs"], figures["ours"], strict=True)
    walls, cpus = zip(*((t[0] / o[0], t[1] / o[1]) for t, o in pairs), strict=True)
    tell(f"wall {median(walls):.2f}x")
    held(median(cpus), 4, "transformWithState by a query, CPU")


def summed(rows: "DataFrame") -> "DataFrame":
    """Compute what the app computes, by Spark's own state."""
    import orjson
    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Totals(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.state = handle.getValueState("s", "n long, amount long, low long, high long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
            n, amount, low, high = self.state.get() or (0, 0, 1 << 60, -1)
            for row in rows:
                order = orjson.loads(bytes(row.value))
                price = order["price"]
                n, amount = n + 1, amount + price * order["qty"]
                low, high = min(low, price), max(high, price)
            self.state.update((n, amount, low, high))
            yield Row(key=bytes(key[0]), n=n, amount=amount, low=low, high=high)

        def close(self) -> None:
            pass

    told = "key binary, n long, amount long, low long, high long"
    return rows.groupBy("key").transformWithState(Totals(), told, "update", "none")


def sums_of(spark: "SparkSession", checkpoint: str) -> dict[bytes, list[int]]:
    read = spark.read.format("statestore").option("stateVarName", "s").load(checkpoint)
    return {bytes(row.key.key): [*row.value] for row in read.collect()}


def sums_of_ours(uri: str, scratch: Path) -> dict[bytes, list[int]]:
    found = stored(open_files(uri), str(scratch))
    rows = (row for some in found.values() for row in some)
    return {json.loads(key.removeprefix(ROW)).encode(): json.loads(value) for key, value in rows}
