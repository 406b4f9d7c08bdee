"""A thread with an event loop of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

Main = Callable[[], Coroutine[Any, Any, None]]

Threads = Callable[[str, Main], asyncio.Future[None]]
"""Runs a coroutine in a thread of that name, from now on; done, on the caller's loop, when it is
over or has failed. A simulation has threads of its own."""


def system_thread(name: str, main: Main) -> asyncio.Future[None]:
    """The machine's; it ends with the process, if not before."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        error: BaseException | None = None
        try:
            asyncio.run(main())
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(settle, over, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return over


def settle(over: asyncio.Future[None], error: BaseException | None) -> None:
    """As the coroutine has ended, unless nobody wants to know any more."""
    if over.done():
        return
    if error is None:
        over.set_result(None)
    else:
        over.set_exception(error)
