"""A thread with an event loop of its own, as its owner sees it; a simulation has another kind."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

JOIN_S = 5.0

Main = Callable[[], Coroutine[Any, Any, None]]


class LoopThread(Protocol):
    """Runs a coroutine on a loop of its own, from `start` to the coroutine's end."""

    @property
    def alive(self) -> bool: ...

    def start(self) -> None: ...

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """On that loop, from any thread, in order, and not before the coroutine first waits for
        something; dropped before `start` and after the end.
        """

    async def ended(self) -> None:
        """Wait for the end, 5 s at most; it may never have begun."""


Threads = Callable[[str, Main], LoopThread]
"""Makes a thread of a name; nothing of it runs yet."""


class SystemThread:
    """The machine's."""

    def __init__(self, name: str, main: Main) -> None:
        self._main = main
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hears = threading.Event()
        """Whoever calls before that would not be heard."""

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()
        self._hears.wait()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # it is over
                self._loop.call_soon_threadsafe(function, *arguments)

    async def ended(self) -> None:
        if self.alive:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._thread.join, JOIN_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._begin())
        finally:
            self._hears.set()

    async def _begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._hears.set()
        await self._main()
