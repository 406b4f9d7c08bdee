"""app/services.py: timers keep their interval, and a failure ends no other timer or task."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamsx import App
from streamsx.app.services import next_tick
from streamsx.testing import TestDriver
from tests.support.autojump_loop import AutojumpLoop

Drive = Callable[..., TestDriver]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = AutojumpLoop()
    yield made
    made.close()


def run_for(loop: asyncio.AbstractEventLoop, app: App, duration_s: float) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(each.run(), name=each.name) for each in app.jobs]
        await asyncio.sleep(duration_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    loop.run_until_complete(main())


def test_timer_ticks_after_each_interval(app: App, loop: Any) -> None:
    ticks: list[float] = []

    @app.timer("2s")
    async def tick() -> None:
        ticks.append(loop.time())

    run_for(loop, app, 7.0)
    assert ticks == [2.0, 4.0, 6.0]


def test_timer_skips_ticks_missed_by_a_slow_call(app: App, loop: Any) -> None:
    ticks: list[float] = []

    @app.timer(1.0)
    async def tick() -> None:
        ticks.append(loop.time())
        if len(ticks) == 1:
            await asyncio.sleep(3.5)

    run_for(loop, app, 7.5)
    assert ticks == [1.0, 5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("due", "now", "then"), [(1.0, 1.0, 2.0), (1.0, 1.9, 2.0), (1.0, 2.0, 3.0), (1.0, 0.5, 2.0)]
)
def test_next_tick_is_never_in_the_past(due: float, now: float, then: float) -> None:
    assert next_tick(due, 1.0, now) == then


def test_failing_timer_is_logged_and_ticks_again(
    app: App, loop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ticks: list[float] = []

    @app.timer(1.0, name="fragile")
    async def tick() -> None:
        ticks.append(loop.time())
        raise ValueError("no")

    with caplog.at_level(logging.ERROR):
        run_for(loop, app, 2.5)
    assert ticks == [1.0, 2.0]
    assert [record.getMessage() for record in caplog.records] == [
        "The timer fragile failed. The worker goes on, and runs it again at its next tick."
    ] * 2
    assert caplog.records[0].exc_info is not None


def test_task_runs_once_and_may_take_the_app(app: App, loop: Any) -> None:
    heard: list[Any] = []

    @app.task
    async def once() -> None:
        heard.append("once")

    @app.task()
    async def with_app(given: App) -> None:
        heard.append(given)

    run_for(loop, app, 1.0)
    assert heard == ["once", app]
    assert [each.name.rpartition(".")[2] for each in app.jobs] == ["once", "with_app"]


def test_failing_task_does_not_stop_a_timer(
    app: App, loop: Any, caplog: pytest.LogCaptureFixture
) -> None:
    ticks: list[float] = []

    @app.task
    async def fails() -> None:
        raise ValueError("no")

    @app.timer(1.0)
    async def tick() -> None:
        ticks.append(loop.time())

    run_for(loop, app, 1.5)
    assert ticks == [1.0]
    assert "test_services.fails" in caplog.text


def test_on_leader_timer_runs_on_the_leader_only(app: App, loop: Any, drive: Drive) -> None:
    ticks: list[str] = []

    @app.timer(1.0, on_leader=True)
    async def tick() -> None:
        ticks.append("leader")

    run_for(loop, app, 1.5)
    assert ticks == []
    drive(app).advance("1s")
    assert ticks == ["leader"]


@pytest.mark.parametrize("interval", [0, "infinite", "-1s", "soon"])
def test_invalid_timer_interval_is_refused(app: App, interval: object) -> None:
    with pytest.raises(ValueError, match=r"an interval|a duration is written"):
        app.timer(interval)


def test_driver_time_moves_from_tick_to_tick(app: App, drive: Drive) -> None:
    out = app.topic("out", partitions=1)

    @app.timer(3.0)
    async def slow() -> None:
        await out.send(value="slow")

    @app.timer(2.0)
    async def fast() -> None:
        await out.send(value="fast")

    driver = drive(app, now=0.0)
    driver.advance("3s")
    driver.advance("3s")
    assert [(each.value, each.timestamp) for each in driver.read("out")] == [
        ("fast", 2.0), ("slow", 3.0), ("fast", 4.0), ("slow", 6.0), ("fast", 6.0),
    ]  # fmt: skip


def test_driver_timer_may_sleep_through_ticks(app: App, drive: Drive) -> None:
    out = app.topic("out", partitions=1)

    @app.timer(1.0)
    async def sleeper() -> None:
        await asyncio.sleep(1.5)
        await out.send(value="awake")

    driver = drive(app, now=0.0)
    driver.advance("5.2s")
    assert [each.timestamp for each in driver.read("out")] == [2.5, 4.5]


def test_driver_task_runs_at_start_and_as_time_advances(app: App, drive: Drive) -> None:
    out = app.topic("out", partitions=1)

    @app.task
    async def feed() -> None:
        for n in range(3):
            await out.send(value=n)
            await asyncio.sleep(60)

    driver = drive(app)
    assert [each.value for each in driver.read("out")] == [0]
    driver.advance("1h")
    assert [each.value for each in driver.read("out")] == [0, 1, 2]


def test_driver_raises_a_failing_timer_each_time(app: App, drive: Drive) -> None:
    @app.timer(1.0)
    async def fails() -> None:
        raise ZeroDivisionError

    driver = drive(app)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            driver.advance("1s")
    driver.close()
    drive(app, raises=False).advance("1s")


def test_driver_start_failed_by_a_task_leaves_the_app_reusable(app: App) -> None:
    failing = [True]

    @app.task
    async def fails() -> None:
        if failing:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        TestDriver(app)
    failing.clear()
    with TestDriver(app):
        pass
