"""A thread with an event loop, as the session has one."""

import asyncio
import threading

from streamsx.membership.thread import SystemThread


class Recorder:
    """What a coroutine of a thread did, in order."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.over: asyncio.Event

    async def main(self) -> None:
        self.over = asyncio.Event()
        self.heard.append(f"began in {threading.current_thread().name}")
        await self.over.wait()
        self.heard.append("ended")

    def end(self) -> None:
        self.over.set()


def test_what_is_called_runs_there_after_the_first_step_and_in_order() -> None:
    told = Recorder()
    thread = SystemThread("control", told.main)
    thread.start()
    for word in ("one", "two"):
        thread.call(told.heard.append, word)
    thread.call(told.end)
    asyncio.run(thread.ended())

    assert told.heard == ["began in control", "one", "two", "ended"]
    assert not thread.alive


def test_nobody_hears_a_call_before_the_start_or_after_the_end() -> None:
    told = Recorder()
    thread = SystemThread("control", told.main)
    thread.call(told.heard.append, "early")
    asyncio.run(thread.ended())  # it has never begun
    thread.start()
    thread.call(told.end)
    asyncio.run(thread.ended())
    thread.call(told.heard.append, "late")

    assert told.heard == ["began in control", "ended"]


def test_whoever_starts_a_thread_that_ends_at_once_goes_on() -> None:
    async def nothing() -> None: ...

    thread = SystemThread("control", nothing)
    thread.start()
    asyncio.run(thread.ended())
    assert not thread.alive
