"""Event loops in which no error of streamsx stays unnoticed, and a thread with an event loop.

An error in a task reaches the code that awaits the task. An error in a callback (a timer, a message
from another thread, the end of a task, arriving bytes) is only logged by asyncio, and the loop goes
on. The race: the control thread's timer finds its member in a state that does not know the event;
no heartbeat is sent any more; the thread lives on. Under `guarded` such an error ends the main
coroutine and is raised.

Errors in callbacks that users' code or a library has started are only logged, as asyncio does.
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
    """Run a coroutine with `asyncio.run`, `guarded`."""
    return asyncio.run(guarded(main, serves=serves))


async def guarded(main: Coroutine[Any, Any, T], *, serves: bool = False) -> T:
    """Await `main` and return its result.

    The first error of streamsx in a callback cancels `main` and is raised then; its traceback is
    logged at once. `serves`: an error in the protocol of a client's connection ends only that
    connection, as asyncio does.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
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
    """Wait until the event is set, or until the time is over."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def is_ours(context: dict[str, Any]) -> bool:
    """Return whether asyncio called code of this package, by the context of its exception handler.

    The answer is False for a future whose result was not awaited any more, and for a context with
    only a message.
    """
    error = context.get("exception")
    future = context.get("future")
    if error is None or (future is not None and not isinstance(future, asyncio.Task)):
        return False
    called = (
        frame.f_globals["__name__"].split(".")[0] for frame, _ in walk_tb(error.__traceback__)
    )
    first = next((package for package in called if package != "asyncio"), None)
    return first == OURS if first else "handle" in context


Main = Callable[[], Coroutine[Any, Any, None]]

Threads = Callable[[str, Main], asyncio.Future[None]]
"""Function that runs a coroutine in a new thread of a given name. The future, on the caller's loop,
is done when the coroutine is over or has failed. A simulation has threads of its own."""


def system_thread(name: str, main: Main) -> asyncio.Future[None]:
    """Run a coroutine in a thread of the machine, which ends with the process at the latest."""
    over: Future[None] = Future()
    over.set_running_or_notify_cancel()  # a cancelled waiter does not cancel the thread

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            over.set_exception(error)
        else:
            over.set_result(None)

    threading.Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(over)
