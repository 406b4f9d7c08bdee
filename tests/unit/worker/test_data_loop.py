"""The data loop of a real worker: lengths of turns, order of tasks, reports meanwhile."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from streamsx import App, sliding
from streamsx.model import TaskId
from streamsx.tasks import crash_points
from streamsx.tasks.active_task import FIRST_RECORDS
from tests.unit.conftest import HOST, PORT, VirtualCluster, app_of, changelog, counting, words

if TYPE_CHECKING:
    from pathlib import Path

    from streamsx import Stream

T0_MS = 1_690_000_000_000
HOUR_MS = 3_600_000
T0, T1, T2 = TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)


def taking(
    bench: VirtualCluster, record_s: float, heard: list[tuple[float, int]] | None = None
) -> App:
    """Return an app whose records hold the data loop for so long; it notes times and partitions."""
    app = app_of()
    scheduler = bench.scheduler

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def take(stream: Stream[str]) -> None:
        async for event in stream.events():
            scheduler.elapse(record_s)
            if heard is not None:
                heard.append((scheduler.now, event.message.partition))

    return app


def test_turn_is_planned_from_the_record_cost_of_a_task(bench: VirtualCluster) -> None:
    station = bench.begun(taking(bench, 0.002))
    station.hand.plan(T0)
    for _ in range(20):
        bench.feed(0, *["w"] * 10)
        bench.run(0.1)
    bench.until(lambda: bench.committed.get(words(0), (0, ""))[0] == 200)
    assert station.made.tasks.actives[T0].cost_s == pytest.approx(0.002, rel=0.1)


def test_tasks_take_turns_with_short_waits(bench: VirtualCluster) -> None:
    heard: list[tuple[float, int]] = []
    station = bench.begun(taking(bench, 0.001, heard))
    for partition in range(3):
        bench.feed(partition, *["w"] * 300)
    station.hand.plan(T0, T1, T2)
    bench.until(lambda: len(heard) == 900)
    for partition in range(3):
        times = [at for at, of in heard[100:] if of == partition]
        waits = [late - early for early, late in itertools.pairwise(times)]
        assert max(waits) < 0.05


def test_no_chunk_begins_when_little_of_a_turn_is_left(bench: VirtualCluster) -> None:
    """Two chunks of 12 records take 9.6 of 10 ms; a third one would have a single record."""
    heard: list[tuple[float, int]] = []
    station = bench.begun(taking(bench, 0.0004, heard))
    for partition in range(3):
        bench.feed(partition, *["w"] * 600)
    station.hand.plan(T0, T1, T2)
    bench.until(lambda: len(heard) == 1800)
    chunks = [len(list(some)) for _, some in itertools.groupby(heard[600:1500], lambda h: h[1])]
    assert min(chunks[1:-1]) >= 5


def test_no_task_that_tells_its_time_waits_forever_for_tasks_behind_it(tmp_path: Path) -> None:
    """A turn runs one task of 24: a record takes 9 ms. Each task is 3 h ahead of the last."""
    count = 24
    heard = Counter[int]()
    app = App("t", topic_partitions=count, broker=f"{HOST}:{PORT}", memory_budget="256MiB")
    bench = VirtualCluster(tmp_path, {"words": count})

    def key_of(word: str) -> str:
        bench.scheduler.elapse(0.009)
        heard[int(word)] += 1
        return word

    words_flow = app.flow(app.topic("words", value_type=str, value_serializer="raw"))
    words_flow.group_by(key_of).window(sliding("1h", grace="5m")).count("hourly")
    station = bench.begun(app)
    for partition in range(count):
        bench.feed(partition, *[f"{partition}"] * 60, at_ms=T0_MS + partition * 3 * HOUR_MS)
    (first,) = (plan for plan in station.topology.subtopologies if plan.tells)
    station.hand.plan(*(TaskId(first.number, partition) for partition in range(count)))
    bench.run(6)
    assert min(heard[partition] for partition in range(count)) > FIRST_RECORDS, heard
    bench.close()


def test_table_of_another_agent_stops_one_task_and_no_other(bench: VirtualCluster) -> None:
    """The search of the body does not find the table."""
    app = counting()
    bills = app.Table("bills", default=int, key_type=str, value_type=int)
    reached = {"by name": lambda: getattr(app, "tab" + "les")["bills"]}

    @app.agent("bills")
    async def bill(stream: Stream[str]) -> None:
        async for word in stream:
            bills[word] += 1

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"), tables=["counts"])
    async def strays(stream: Stream[str]) -> None:
        async for word in stream:
            if word == "stray":
                reached["by name"]()["w"] += 1

    station = bench.begun(app)
    number = next(each.number for each in station.topology.subtopologies if "words" in each.topics)
    first, second = TaskId(number, 0), TaskId(number, 1)
    bench.feed(0, "w", "stray", "w")
    bench.feed(1, "w")
    station.hand.plan(first, second)
    bench.until(lambda: station.states(first)[-1:] == ["stopped"])
    bench.feed(1, "w")
    bench.until(lambda: bench.committed.get(words(1), (0, ""))[0] == 2)
    why = station.made.tasks.actives[first].why
    assert why.startswith(f"table not in this task: bills, task {first} ({__file__}:")
    assert bench.committed[words(0)][0] == 1


def test_turns_follow_each_other_while_work_is_left(bench: VirtualCluster) -> None:
    """No new input arrives, and no other work waits."""
    station = bench.begun(counting())
    bench.feed(0, *["w"] * 20_000)
    station.hand.plan(T0)
    bench.until(lambda: station.told("first_record"))
    began = bench.scheduler.now
    bench.until(lambda: station.made.tasks.actives[T0].task.taken["words"] == 20_000)
    assert bench.scheduler.now - began < 0.2


def test_idle_loop_sleeps(bench: VirtualCluster) -> None:
    station = bench.begun(counting(fetch_max_wait=5, commit_interval=10))
    station.hand.plan(T0)
    bench.run(10)
    turns = bench.scheduler.turns
    bench.run(60)
    assert (bench.scheduler.turns - turns) / 60 < 30


def test_worker_with_tasks_reports_processed_records_and_idle_one_nothing(
    bench: VirtualCluster,
) -> None:
    station = bench.begun(counting())
    bench.run(70)
    assert station.told("processed") == []
    bench.feed(0, "a", "b", "c")
    station.hand.plan(T0)
    bench.run(40)
    assert [(each["records"], each["lag"]) for each in station.told("processed")] == [(3, 0)]


def test_one_fetched_batch_at_a_time_waits_in_the_task(bench: VirtualCluster) -> None:
    """As columns they take twice the room."""
    app = app_of()
    seen: list[int] = []

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def take(stream: Stream[str]) -> None:
        async for _ in stream:
            seen.append(station.made.tasks.actives[T0].task.waiting("words"))

    station = bench.begun(app)
    for _ in range(5):
        bench.feed(0, *["w"] * 2500)
    station.hand.plan(T0)
    bench.until(lambda: len(seen) == 12_500)
    assert max(seen) == 1


def test_long_restore_reports_progress(bench: VirtualCluster) -> None:
    station = bench.begun(counting())
    station.write_s = 0.05
    end = bench.remember(changelog(0), 40)
    station.hand.plan(T0)
    bench.until(lambda: "running" in station.states(T0))
    told = [(each["restored"], each["end"]) for each in station.told("restore_progress")]
    assert len(told) >= 4
    assert told == sorted(told)
    assert told[-1] == (end, end)


def test_worker_passes_every_fault_point(
    bench: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, None] = {}
    monkeypatch.setattr(crash_points, "point", seen.setdefault)
    station = bench.begun(counting())
    bench.remember(changelog(0), 1)
    bench.feed(0, *(f"w{number}" for number in range(2500)))
    station.hand.plan(T0)
    bench.until(lambda: words(0) in bench.committed)
    bench.run(1)
    station.hand.revoke(T0)
    bench.until(lambda: station.states(T0)[-1] == "closed")
    station.stores["counts", 0].write({}, 10**9)  # not of this changelog
    station.hand.plan(T0)
    bench.until(lambda: station.states(T0)[-1] == "running")
    points = re.findall(r"^\| (\w+) ", crash_points.__doc__ or "", re.MULTILINE)[1:]
    exact = "after_txn_offsets", "during_end"  # simulation/test_exactly_once passes these
    elsewhere = "during_snapshot", "before_manifest", "after_manifest"  # snapshots and Spark have
    assert sorted([*seen, *exact, *elsewhere]) == sorted(points)


def test_record_awaiting_external_work_delays_no_other_task(
    bench: VirtualCluster,
) -> None:
    app = app_of()
    waits: list[Any] = []
    heard: list[int] = []

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def take(stream: Stream[str]) -> None:
        async for event in stream.events():
            if event.value == "wait":
                waits.append(asyncio.get_running_loop().create_future())
                await waits[-1]
            heard.append(event.message.partition)

    station = bench.begun(app)
    bench.feed(0, "wait", "w")
    bench.feed(1, "w", "w")
    station.hand.plan(T0, T1)
    bench.until(lambda: words(1) in bench.committed)
    assert heard == [1, 1]
    waits[0].get_loop().call_soon(waits[0].set_result, None)
    bench.until(lambda: heard == [1, 1, 0, 0], 1)
    bench.until(lambda: bench.committed.get(words(0), (0, ""))[0] == 2, 3)  # nothing comes behind
