"""A thread with an event loop, as a worker has one for its group."""

import asyncio
import threading

import pytest

from streamsx.membership.thread import system_thread


def test_it_runs_under_its_name_and_its_end_is_told() -> None:
    heard: list[str] = []

    async def main() -> None:
        heard.append(threading.current_thread().name)
        await asyncio.sleep(0)

    async def caller() -> None:
        over = system_thread("control", main)
        assert not over.done()
        await over
        heard.append(threading.current_thread().name)

    asyncio.run(caller())
    assert heard == ["control", "MainThread"]


@pytest.mark.parametrize("why", [ValueError("a bug"), asyncio.CancelledError()], ids=repr)
def test_what_ends_it_is_told(why: BaseException) -> None:
    async def main() -> None:
        raise why

    async def caller() -> BaseException | None:
        over = system_thread("control", main)
        await asyncio.wait([over])
        return over.exception()

    assert asyncio.run(caller()) is why


def test_nobody_need_wait_for_it() -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def main() -> None:
        begun.set()
        go_on.wait()

    async def caller() -> None:
        _ = system_thread("control", main)

    asyncio.run(caller())
    assert begun.wait(5)
    before = threading.active_count()
    go_on.set()
    while threading.active_count() == before:
        pass
