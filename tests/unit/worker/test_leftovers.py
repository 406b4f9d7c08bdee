"""worker/leftovers.py and users' code that does not end: the worker ends in time without it."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from streamsx.worker.leftovers import end_leftovers
from tests.unit.conftest import app_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamsx import App, Stream
    from tests.unit.conftest import VirtualCluster, WorkerHarness

LIMIT_S = 6.0
CLOSING_S = 1.5
"""What leaving and closing take beside that."""


def words(app: App) -> Any:
    return app.topic("words", value_type=str, value_serializer="raw")


async def stubborn() -> None:
    """Run for ever, however often it is cancelled."""
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(100)


def own_task(app: App) -> None:
    @app.task
    async def forever() -> None:
        await stubborn()


def own_timer(app: App) -> None:
    @app.timer(interval=0.5)
    async def tick() -> None:
        await stubborn()


def body_elsewhere(app: App) -> None:
    @app.agent(words(app), name="waits")
    async def waits(stream: Stream[Any]) -> None:
        async for _ in stream:
            await stubborn()


def body_at_its_stream(app: App) -> None:
    @app.agent(words(app), name="waits")
    async def waits(stream: Stream[Any]) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                async for _ in stream:
                    pass


def listener(app: App) -> None:
    @app.on_revoked
    async def given_back(_: object) -> None:
        await stubborn()


def task_of_a_body(app: App) -> None:
    @app.agent(words(app), name="waits")
    async def waits(stream: Stream[Any]) -> None:
        async for _ in stream:
            kept.append(asyncio.create_task(stubborn(), name="a task of its own"))

    kept: list[asyncio.Task[None]] = []


def counting(bench: VirtualCluster, more: Callable[[App], None]) -> WorkerHarness:
    """Return a worker that counts words beside users' code of some kind."""
    app = app_of(shutdown_timeout=LIMIT_S, commit_interval=0.2, revoke_timeout=1.0)
    counts = app.Table("counts", default=int, key_type=str, value_type=int)

    @app.agent(words(app), name="count")
    async def count(stream: Stream[str]) -> None:
        async for word in stream:
            counts[word] += 1

    more(app)
    return bench.station(app, by_hand=False)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (own_task, "forever"), (own_timer, "tick"), (body_elsewhere, "agent waits of task 0_0"),
        (listener, "on_revoked"), (task_of_a_body, "a task of its own"),
    ],
)  # fmt: skip
def test_code_swallowing_cancellation_is_reported_and_left_behind(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture, kind: Callable[[App], None], name: str
) -> None:
    station = counting(bench, kind)
    bench.until(lambda: station.begun and station.made.reports.restored.is_set())
    bench.feed(0, "a", "b")
    bench.run(2.0)
    told_at = bench.scheduler.now
    station.process.signal(signal.SIGTERM)
    bench.until(lambda: station.left_behind, LIMIT_S + CLOSING_S)
    assert bench.scheduler.now > told_at + 1
    (left,) = station.left_behind
    assert name in left
    assert f" at {__file__}:" in left
    assert f"Left behind: {left}. It was cancelled and still runs" in caplog.text
    assert [event for _, event, _ in station.events if event in ("leaving", "left")] == [
        "leaving", "left",
    ]  # fmt: skip
    assert bench.counted() == {"a": 1, "b": 1}


def test_body_swallowing_cancellation_at_the_stream_delays_nothing(bench: VirtualCluster) -> None:
    """It leaves the stream in a way that `except CancelledError` does not catch."""
    station = counting(bench, body_at_its_stream)
    bench.feed(0, "a")
    bench.until(lambda: station.begun and station.made.reports.restored.is_set())
    bench.run(2.0)
    station.process.signal(signal.SIGTERM)
    bench.until(lambda: not station.process.alive, CLOSING_S)
    assert (station.main.result, station.left_behind) == (0, [])


def test_second_signal_waits_five_seconds_only(bench: VirtualCluster) -> None:
    station = counting(bench, own_task)
    bench.until(lambda: station.begun and station.made.reports.restored.is_set())
    bench.run(1.0)
    station.process.signal(signal.SIGTERM)
    bench.run(0.1)
    station.process.signal(signal.SIGTERM)
    bench.until(lambda: station.left_behind, 5.0 + 0.5)


def test_cancelled_code_with_cleanup_is_waited_for(bench: VirtualCluster) -> None:
    ended: list[float] = []

    def last_words(app: App) -> None:
        @app.task
        async def saves() -> None:
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(3)
                ended.append(bench.scheduler.now)

    station = counting(bench, last_words)
    bench.until(lambda: station.begun and station.made.reports.restored.is_set())
    bench.run(1.0)
    station.process.signal(signal.SIGTERM)
    bench.until(lambda: not station.process.alive, LIMIT_S)
    assert (len(ended), station.main.result, station.left_behind) == (1, 0, [])


def test_leftover_tasks_at_one_place_are_reported_in_one_line() -> None:
    async def five() -> list[str]:
        tasks = [asyncio.create_task(until_told(), name=f"n{number}") for number in range(5)]
        await asyncio.sleep(0)
        left = await end_leftovers(set(), 0.01)
        told.set()
        await asyncio.gather(*tasks)
        return left

    async def until_told() -> None:
        while not told.is_set():
            with suppress(asyncio.CancelledError):
                await told.wait()

    told = asyncio.Event()
    (left,) = asyncio.run(five())
    assert left.startswith(f"n0, n1, n2 and 2 more at {__file__}:")
