"""worker/driver_loop.py: waits of threads, and how far a loop runs by itself."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from streamsx.worker.driver_loop import DriverLoop


@pytest.fixture
def loop() -> Iterator[DriverLoop]:
    made = DriverLoop(5.0, lambda: False)
    yield made
    made.end()


def test_timer_is_reported_as_due_and_never_awaited(loop: DriverLoop) -> None:
    sleeper = loop.create_task(asyncio.sleep(3600))
    loop.run_ready()
    assert (loop.due_s, sleeper.done()) == (3600, False)
    loop.now_s = 3600
    loop.run_ready()
    assert (loop.due_s, sleeper.done()) == (None, True)


def test_thread_is_awaited_in_real_time(loop: DriverLoop) -> None:
    nobody_sets_it = threading.Event()
    work = loop.create_task(asyncio.to_thread(nobody_sets_it.wait, 0.05))
    loop.run_ready()
    assert work.done()


def test_driver_loop_runs_inside_another_loop(loop: DriverLoop) -> None:
    async def outer() -> tuple[bool, bool]:
        own = asyncio.get_running_loop()
        inside = loop.call(asyncio.get_running_loop)
        return inside is loop, asyncio.get_running_loop() is own

    assert asyncio.run(outer()) == (True, True)


def test_error_in_a_call_is_raised_to_the_caller(loop: DriverLoop) -> None:
    with pytest.raises(KeyError):
        loop.call(lambda: {"a": 1}["b"])
    assert loop.call(lambda: 1) == 1
