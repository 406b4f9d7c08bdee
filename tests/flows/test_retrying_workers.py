"""Records that are tried again, in whole workers over the embedded broker, in virtual time."""

from __future__ import annotations

import json
import signal
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

import streamsx
from streamsx import App
from streamsx.model import TopicPartition
from streamsx.protocol.partitioner import partition_of
from streamsx.protocol.record_batch import columns
from tests.flows.test_progress import PARTITIONS
from tests.flows.test_progress_workers import append
from tests.unit.conftest import HOST, PORT, READ_BYTES, VirtualCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

GUARANTEES = ["at_least_once", "exactly_once"]


def app_of(failing: Counter[str], backoff: str = "1s", **settings: Any) -> App:
    """Return an app that counts by key, and fails at some users as often as `failing` says.

    While "away" is above 0, its agent fails at all users, and also before its loop.
    """
    made = App(
        "again",
        topic_partitions=PARTITIONS,
        on_error=streamsx.retry(attempts=4, backoff=backoff),
        broker=f"{HOST}:{PORT}",
        session_timeout=10,
        memory_budget="32MiB",
        **settings,
    )
    counts: Any = made.Table("counts", default=int, partitions=PARTITIONS)
    source = made.topic("in")
    out = made.topic("out", partitions=1)

    def connected() -> None:
        if failing["away"]:
            raise ConnectionError("away")

    @made.agent(source, name="count", tables=[counts])
    async def count(stream: AsyncIterator[Any]) -> None:
        connected()
        async for raw, value in stream.items():  # type: ignore[attr-defined]
            counts[str(raw, "utf8")] += 1
            await out.send(value=value["user"])
            connected()
            if failing[value["user"]] > 0:
                failing[value["user"]] -= 1
                raise ConnectionError(value)

    def double(value: dict[str, str]) -> str:
        if failing[value["user"] + " in a flow"] > 0:
            failing[value["user"] + " in a flow"] -= 1
            raise ConnectionError(value)
        return value["user"] * 2

    made.flow(source).map_values(double).to(made.topic("doubles", partitions=1))
    return made


def committed(bench: VirtualCluster, topic: str, partition: int = 0) -> list[Any]:
    """Return keys and values of a topic, without those of aborted transactions."""
    if topic not in bench.broker.service.topics.by_name:
        return []
    log = bench.log(TopicPartition(topic, partition))
    found: list[Any] = []
    at = log.start
    while at < log.high_watermark:
        data = log.read(at, READ_BYTES)
        batch = columns(data, at, aborted=log.aborted(at, data))
        found += zip(batch.keys, batch.values, strict=True)
        at = batch.next_offset
    return found


def values(bench: VirtualCluster, topic: str) -> list[Any]:
    return [json.loads(value) for _, value in committed(bench, topic)]


def counted(bench: VirtualCluster) -> dict[str, int]:
    rows = [row for n in range(PARTITIONS) for row in committed(bench, "again-counts-changelog", n)]
    return {json.loads(key): json.loads(value) for key, value in rows}


def letters(bench: VirtualCluster) -> list[str]:
    rows = [row for n in range(PARTITIONS) for row in committed(bench, "again-dlq", n)]
    return sorted(json.loads(value)["user"] for _, value in rows)


RECORDS = [(f"k{n % 12}", {"user": f"u{n}"}, float(n)) for n in range(200)]
USERS = [value["user"] for _, value, _ in RECORDS]


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("kills", [False, True])
def test_records_that_fail_for_a_while_leave_one_effect(
    tmp_path: Path, guarantee: str, *, kills: bool
) -> None:
    failing = Counter({"u20": 3, "u41": 1, "u41 in a flow": 2, "u77 in a flow": 3, "u150": 2})
    failing["u199"] = 2 * kills + 3
    bench = VirtualCluster(tmp_path, {"in": PARTITIONS, "out": 1, "doubles": 1})
    try:
        first = bench.station(app_of(failing, processing_guarantee=guarantee), "w0", by_hand=False)
        append(bench, RECORDS[:100])
        bench.run(9)
        append(bench, RECORDS[100:])
        if kills:
            bench.until(lambda: failing["u199"] <= 3, 30)
            bench.run(0.1)
            first.process.kill()
            bench.station(app_of(failing, processing_guarantee=guarantee), "w1", by_hand=False)
        bench.until(lambda: {"u199"} <= set(values(bench, "out")), 90)
        bench.run(8)

        assert +failing == Counter()
        assert counted(bench) == Counter(key for key, _, _ in RECORDS)
        assert letters(bench) == []
        if guarantee == "exactly_once":
            assert sorted(values(bench, "out")) == sorted(USERS)
            assert sorted(values(bench, "doubles")) == sorted(user * 2 for user in USERS)
        elif not kills:
            twice = Counter(values(bench, "out")) - Counter(USERS)
            assert twice.total() <= PARTITIONS, "first tries alone may have left"
    finally:
        bench.close()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_last_try_is_followed_by_the_dead_letter(tmp_path: Path, guarantee: str) -> None:
    failing = Counter({"u20": 99, "u77 in a flow": 99})
    bench = VirtualCluster(tmp_path, {"in": PARTITIONS, "out": 1, "doubles": 1})
    try:
        made = app_of(failing, processing_guarantee=guarantee)
        station = bench.station(made, "w0", by_hand=False)
        append(bench, RECORDS)
        bench.until(lambda: letters(bench) == ["u20", "u77"], 60)
        bench.run(8)

        assert [failing["u20"], failing["u77 in a flow"]] == [95, 95], "four tries each"
        told = [each for each in station.told("failed") if each["operator"] == "count"]
        assert [(each["attempt"], each["action"]) for each in told] == [
            (1, "retry"), (2, "retry"), (3, "retry"), (4, "dlq"),
        ]  # fmt: skip
        times = [at for at, name, fields in station.events if fields in told and name == "failed"]
        waits = [round(later - at, 3) for at, later in pairwise(times)]
        assert waits[0] >= 0.8
        assert 1.6 <= waits[1] <= 2.6
        assert 3.2 <= waits[2] <= 5.2
        assert "u20" not in values(bench, "out") or guarantee == "at_least_once"
    finally:
        bench.close()


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("stops", [False, True])
def test_record_that_waits_holds_up_neither_other_tasks_nor_a_stop(
    tmp_path: Path, guarantee: str, *, stops: bool
) -> None:
    failing = Counter({"u20": 99})
    bench = VirtualCluster(tmp_path, {"in": PARTITIONS, "out": 1, "doubles": 1})
    ours = partition_of(b"k8", PARTITIONS)
    want = Counter(key for key, _, _ in RECORDS)
    others = {key for key in want if partition_of(key.encode(), PARTITIONS) != ours}
    try:
        made = app_of(failing, backoff="40s", processing_guarantee=guarantee)
        station = bench.station(made, "w0", by_hand=False)
        append(bench, RECORDS)
        bench.until(lambda: failing["u20"] < 99, 30)
        bench.run(25)  # longer than the session
        found = counted(bench)
        assert {key: found[key] for key in others} == {key: want[key] for key in others}
        assert found.get("k8", 0) <= 1
        assert station.process.alive
        assert not station.told("lost")
        failing.clear()
        began = bench.scheduler.now
        if stops:
            station.process.signal(signal.SIGTERM)
            bench.until(lambda: not station.process.alive, 5)
            bench.station(app_of(failing, processing_guarantee=guarantee), "w1", by_hand=False)
        bench.until(lambda: counted(bench) == want, 40)
        assert stops == (bench.scheduler.now - began < 5)
        assert letters(bench) == []
    finally:
        bench.close()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_bodies_that_connect_before_their_loops_survive_an_outage(
    tmp_path: Path, guarantee: str
) -> None:
    """Bodies restarted in the middle of the wait, could not connect, and ended the worker."""
    failing = Counter[str]()
    bench = VirtualCluster(tmp_path, {"in": PARTITIONS, "out": 1, "doubles": 1})
    try:
        made = app_of(failing, processing_guarantee=guarantee)
        station = bench.station(made, "w0", by_hand=False)
        append(bench, RECORDS[:100])
        bench.run(9)
        failing["away"] = 1
        append(bench, RECORDS[100:])
        bench.run(4)
        failing["away"] = 0
        bench.until(lambda: counted(bench) == Counter(key for key, _, _ in RECORDS), 60)
        bench.run(2)

        assert station.process.alive
        assert letters(bench) == []
        assert set(values(bench, "out")) == set(USERS)
        if guarantee == "exactly_once":
            assert sorted(values(bench, "out")) == sorted(USERS)
    finally:
        bench.close()
