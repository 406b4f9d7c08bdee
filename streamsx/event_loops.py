"""Event loops in which nothing of ours fails unheard, and a thread that has one of its own.

What a task raises is heard by whoever awaits it. What a callback raises (a timer, a message from
another thread, the end of a task, bytes that arrive) asyncio logs, and goes on: "the control
thread's timer finds its member in a state that it does not know; heartbeats are sent no more; the
thread lives on". Here it ends what the loop runs, with that error.

Callbacks that users' code or a library has begun are theirs: logged, as asyncio does it.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from traceback import walk_tb
from typing import Any, TypeVar

T = TypeVar("T")
OURS = __name__.split(".")[0]


def run(main: Coroutine[Any, Any, T], *, serves: bool = False) -> T:
    """`asyncio.run`, `guarded`."""
    return asyncio.run(guarded(main, serves=serves))


async def guarded(main: Coroutine[Any, Any, T], *, serves: bool = False) -> T:
    """What it returns or raises; it is cancelled by the first error of ours that no task hears,
    which is raised then. The traceback is logged at once.

    `serves`: what a client has sent ends its connection, as asyncio has it, and no more.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    before = loop.get_exception_handler()
    unheard: list[BaseException] = []

    def heard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        spared = serves and "protocol" in context
        if is_ours(context) and not spared and not unheard:
            unheard.append(context["exception"])
            task.cancel()

    loop.set_exception_handler(heard)
    try:
        return await main
    finally:
        loop.set_exception_handler(before)
        if unheard:
            task.uncancel()
            raise unheard[0] from None


async def wait(event: asyncio.Event, timeout_s: float | None) -> None:
    """Until it is set, or the time is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def is_ours(context: dict[str, Any]) -> bool:
    """Whether asyncio has called code of this package, by what its exception handler is told.

    Not an answer that nobody wanted any more, and nothing that says no more than a message.
    """
    error, future = context.get("exception"), context.get("future")
    if error is None or (future is not None and not isinstance(future, asyncio.Task)):
        return False
    called = (
        frame.f_globals["__name__"].split(".")[0] for frame, _ in walk_tb(error.__traceback__)
    )
    first = next((package for package in called if package != "asyncio"), None)
    return first == OURS if first else "handle" in context


Main = Callable[[], Coroutine[Any, Any, None]]

Threads = Callable[[str, Main], asyncio.Future[None]]
"""Runs a coroutine in a thread of that name, from now on; done, on the caller's loop, when it is
over or has failed. A simulation has threads of its own."""


def system_thread(name: str, main: Main) -> asyncio.Future[None]:
    """The machine's; it ends with the process, if not before."""
    over: Future[None] = Future()
    over.set_running_or_notify_cancel()  # who waits no more cancels nothing

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            over.set_exception(error)
        else:
            over.set_result(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(over)
