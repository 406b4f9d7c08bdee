"""Event time after repartition topics: whole workers, the embedded broker, virtual time."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import pytest

from streamsx import App, tumbling
from streamsx.broker.log import appending
from streamsx.model import TopicPartition
from streamsx.protocol.partitioner import partition_of
from streamsx.protocol.record_batch import Builder
from tests.flows.test_progress import PARTITIONS, app_of, ends, ordered, wanted
from tests.unit.conftest import BATCH_BYTES, HOST, PORT, VirtualCluster

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Record = tuple[str, dict[str, str], float]


def append(bench: VirtualCluster, records: Iterable[Record], in_batch: int = 50) -> None:
    """Write records to the partitions of their keys, in the order of their times."""
    by_partition: dict[int, list[Record]] = {n: [] for n in range(PARTITIONS)}
    for record in records:
        by_partition[partition_of(record[0].encode(), PARTITIONS)].append(record)
    for partition, part in by_partition.items():
        log = bench.log(TopicPartition("in", partition))
        for start in range(0, len(part), in_batch):
            builder = Builder(BATCH_BYTES)
            for key, value, at in part[start : start + in_batch]:
                text = f'{{"user":"{value["user"]}"}}'
                assert builder.append(round(at * 1000), key.encode(), text.encode())
            batch = memoryview(builder.close())
            bench.at_broker(partial(appending.append, log, batch, BATCH_BYTES))


def app() -> App:
    return app_of(broker=f"{HOST}:{PORT}", session_timeout=10, memory_budget="32MiB")


def test_moved_tasks_keep_the_event_times_of_writers(tmp_path: Path) -> None:
    records = ordered(8, 2000)
    bench = VirtualCluster(tmp_path, {"in": PARTITIONS, "out": PARTITIONS})
    try:
        bench.station(app(), "w0", by_hand=False)
        for start in range(0, len(records), 200):
            append(bench, records[start : start + 200])
            bench.run(2)
            if start == 600:
                bench.station(app(), "w1", by_hand=False)
        append(bench, ends(40))
        expected = wanted(records)
        bench.until(lambda: finals(bench).total() >= expected.total(), 120)
        bench.run(5)
        assert finals(bench) == expected
    finally:
        bench.close()


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_idle_windows_close_in_workers(tmp_path: Path, guarantee: str) -> None:
    """Under exactly-once the message that input is idle needs a commit, though no task is dirty."""
    bench = VirtualCluster(tmp_path, {"in": PARTITIONS, "out": PARTITIONS})
    made = app_of(
        broker=f"{HOST}:{PORT}", session_timeout=10, memory_budget="32MiB", idle="5s",
        processing_guarantee=guarantee,
    )  # fmt: skip
    try:
        append(bench, [("k1", {"user": "a"}, 1.0), ("k1", {"user": "a"}, 99.0)])
        bench.station(made, "w0", by_hand=False)
        began = bench.scheduler.now
        bench.until(lambda: finals(bench).total() == 2, 60)
        assert bench.scheduler.now - began < 5 + 5 + 5  # start, the writers, the windows
    finally:
        bench.close()


def stopping() -> App:
    """Return an app whose task before the windows stops at a bad record."""
    made = App(
        "catch-up",
        topic_partitions=PARTITIONS,
        store="memory://",
        on_error="stop_task",
        broker=f"{HOST}:{PORT}",
        session_timeout=10,
        memory_budget="32MiB",
    )

    def user_of(value: dict[str, str]) -> str:
        if value["user"] == "bad":
            raise ValueError("bad")
        return value["user"]

    groups = made.flow("in").group_by(user_of)
    groups.window(tumbling("10s", grace=0, idle="5s")).count("counts", emit="final").to("out")
    return made


@pytest.mark.parametrize("idle_s", [0, 7])
def test_window_stays_open_while_a_task_ahead_of_it_has_stopped(
    tmp_path: Path, idle_s: float
) -> None:
    """A stopped task still has records to process: it is not idle, even if it was before."""
    bench = VirtualCluster(tmp_path, {"in": PARTITIONS, "out": PARTITIONS})
    try:
        station = bench.station(stopping(), "w0", by_hand=False)
        append(bench, [("k1", {"user": "a"}, 1.0)])
        bench.run(4 + idle_s)
        closed = finals(bench).total()
        append(bench, [("k2", {"user": "b"}, 100.0)])
        append(bench, [("k1", {"user": "bad"}, 100.0), ("k1", {"user": "b"}, 101.0)])
        bench.until(lambda: station.told("error"), 20)
        bench.run(15)  # the broker deletes records of 1970 after 30 s
        assert finals(bench).total() == closed == bool(idle_s)
    finally:
        bench.close()


def test_worker_warns_of_partitions_that_hold_the_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = VirtualCluster(tmp_path, {"in": PARTITIONS, "out": PARTITIONS})
    try:
        append(bench, [("k1", {"user": "a"}, 1.0), ("k1", {"user": "a"}, 99.0)])
        bench.station(app(), "w0", by_hand=False)
        bench.run(100)
        assert finals(bench).total() == 0
    finally:
        bench.close()
    found = [each.getMessage() for each in caplog.records if "stay open" in each.getMessage()]
    assert len(found) == 1
    assert "have never sent a time to catch-up-counts-repartition" in found[0]
    assert "idle=" in found[0]


def finals(bench: VirtualCluster) -> Counter[tuple[bytes, int]]:
    found = Counter[tuple[bytes, int]]()
    for partition in range(PARTITIONS):
        for key, value in bench.read(TopicPartition("out", partition)):
            if key is not None and value is not None and b"end" not in key:
                found[key, int(value)] += 1
    return found


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_workers_that_catch_up_lose_no_ordered_record(tmp_path: Path, workers: int) -> None:
    records = ordered(7, 3000)
    bench = VirtualCluster(tmp_path, {"in": PARTITIONS, "out": PARTITIONS})
    try:
        append(bench, [*records, *ends(40)])
        for n in range(workers):
            bench.station(app(), f"w{n}", by_hand=False)
        expected = wanted(records)
        bench.until(lambda: finals(bench).total() >= expected.total(), 120)
        bench.run(5)
        assert finals(bench) == expected
    finally:
        bench.close()
