"""A thread with an event loop of its own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

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
