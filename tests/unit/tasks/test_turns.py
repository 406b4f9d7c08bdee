"""Shares of the data loop's turns. A real worker and broker in virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from streamsx import App, Stream
from streamsx.model import TaskId, TopicPartition
from streamsx.simulation.scheduler import SimClock
from streamsx.tasks.active_task import FIRST_RECORDS
from streamsx.worker.data_loop import BATCHES_WAITING_MAX, CHUNK_RECORDS_MAX, TURN_S, RestoreShare

if TYPE_CHECKING:
    from tests.unit.conftest import VirtualCluster, WorkerHarness

T0, T1, T2 = (TaskId(0, partition) for partition in range(3))
WORDS = 500


def app_of(bench: VirtualCluster, costs_s: dict[int, float], **settings: Any) -> App:
    """Return an app whose records hold the data loop for as long as their partition says."""
    app = App("t", broker="127.0.0.1:9092", topic_partitions=3, **settings)
    counts = app.Table("counts", default=int)

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def count(stream: Stream[str]) -> None:
        async for event in stream.events():
            if cost_s := costs_s.get(event.message.partition, 0.0):
                bench.scheduler.elapse(cost_s)
            counts[event.value] += 1

    return app


def begun(bench: VirtualCluster, app: App, *tasks: TaskId) -> WorkerHarness:
    station = bench.station(app)
    bench.until(lambda: station.hand.alive)
    station.hand.plan(*tasks)
    bench.until(lambda: all("running" in station.states(task) for task in tasks))
    return station


def feed(bench: VirtualCluster, partition: int, batches: int) -> None:
    for _ in range(batches):
        bench.append(TopicPartition("words", partition), [(None, b"word")] * WORDS)


def taken(station: WorkerHarness, task: TaskId) -> int:
    return station.made.tasks.actives[task].task.taken["words"]


def test_tasks_with_input_get_equal_time_at_any_record_cost(bench: VirtualCluster) -> None:
    station = begun(bench, app_of(bench, {0: 0.001, 1: 0.004}), T0, T1)
    feed(bench, 0, 12)
    feed(bench, 1, 4)
    bench.run(4.0)  # nobody has measured the first ones
    before = taken(station, T0), taken(station, T1)
    bench.run(4.0)
    spent = [0.001 * (taken(station, T0) - before[0]), 0.004 * (taken(station, T1) - before[1])]
    assert sum(spent) > 3
    assert spent[0] == pytest.approx(spent[1], rel=0.3)


def test_other_loop_work_waits_for_one_turn_at_most(bench: VirtualCluster) -> None:
    """Replies, timers and waiting bodies get a turn each 10 ms of records, of all tasks
    together.
    """
    ran: list[float] = []
    app = app_of(bench, dict.fromkeys(range(3), 0.001))
    clock = SimClock(bench.scheduler)

    @app.task
    async def looks() -> None:
        while True:
            ran.append(clock.now())
            await asyncio.sleep(0.001)

    station = begun(bench, app, T0, T1, T2)
    for partition in range(3):
        feed(bench, partition, 6)
    bench.until(lambda: all(taken(station, task) > 600 for task in (T0, T1, T2)))
    recent = ran[len(ran) // 2 :]
    waits = sorted(b - a for a, b in pairwise(recent))
    assert len(waits) > 30
    assert waits[len(waits) // 2] < 3 * TURN_S
    assert waits[-1] < 5 * TURN_S


def steps_of(
    bench: VirtualCluster, station: WorkerHarness, task: TaskId, records: int
) -> list[int]:
    """Return the numbers of records that it got at a time."""
    steps, seen = list[int](), 0

    def stepped() -> bool:
        nonlocal seen
        if (now := taken(station, task)) != seen:
            steps.append(now - seen)
            seen = now
        return seen == records

    bench.until(stepped)
    return steps


def test_slow_body_gets_one_record_at_a_time_once_measured(bench: VirtualCluster) -> None:
    """A body keeps its records until they are done, also when its task is revoked."""
    station = begun(bench, app_of(bench, {0: 0.02}), T0)
    feed(bench, 0, 2)
    first, *others = steps_of(bench, station, T0, 2 * WORDS)
    assert first == FIRST_RECORDS, "nobody has measured the first ones"
    assert set(others) == {1}


def test_cheap_body_gets_many_records_at_a_time_up_to_a_chunk(bench: VirtualCluster) -> None:
    station = begun(bench, app_of(bench, {}), T0)
    feed(bench, 0, 40)
    steps = steps_of(bench, station, T0, 40 * WORDS)
    assert WORDS <= max(steps) <= CHUNK_RECORDS_MAX


def test_task_with_a_waiting_body_is_handed_only_a_few_batches(
    bench: VirtualCluster,
) -> None:
    app = App("t", broker="127.0.0.1:9092", topic_partitions=3)

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def wait(stream: Stream[str]) -> None:
        async for _ in stream:
            await asyncio.sleep(1000)

    station = begun(bench, app, T0, T1)
    for _ in range(20):
        feed(bench, 0, 1)
        bench.run(0.3)
    task = station.made.tasks.actives[T0].task
    assert 0 < task.waiting("words") <= BATCHES_WAITING_MAX
    feed(bench, 1, 1)
    bench.until(lambda: taken(station, T1) > 0, 2)


@pytest.mark.parametrize("cost_s", [0.1, 1.0, 6.0])
def test_body_blocking_the_loop_does_not_keep_another_task_from_starting(
    bench: VirtualCluster, cost_s: float
) -> None:
    """The block is longer than a connection may take to open."""
    station = begun(bench, app_of(bench, {0: cost_s}), T0)
    feed(bench, 0, 2)
    bench.run(10 * cost_s)
    at = bench.scheduler.now
    station.hand.plan(T0, T1)
    bench.until(lambda: station.states(T1)[-1:] == ["running"], 100 * cost_s)
    assert bench.scheduler.now - at < 5 * cost_s


def test_duty_time_is_earned_with_input_and_saved_up_to_one_slice() -> None:
    duty = RestoreShare(0.010)
    assert duty.allowed(0.0, 0.5) == 0.0
    assert duty.allowed(0.008, 0.5) == 0.0, "less than half a slice is not worth it"
    assert duty.allowed(0.012, 0.5) == pytest.approx(0.006)
    duty.spent(0.004)
    assert duty.allowed(0.012, 0.5) == 0.0
    assert duty.allowed(5.0, 0.2) == 0.010
    duty.spent(0.030)
    assert duty.allowed(5.050, 0.2) == 0.0, "what was taken too much is paid back"
    assert duty.allowed(5.150, 0.2) == 0.010
