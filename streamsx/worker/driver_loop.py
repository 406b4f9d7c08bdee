"""The event loop of a driver that calls it: its time is moved by the driver, and by nothing else.

What is ready runs; then, if somebody waits for a socket or a thread, the loop really waits for
that; then it stops, and says when its next timer is due. So bodies may await what they like, a test
that sleeps for an hour takes no time, and a driver that moves no time sees who waits for it.

Not here: whose bodies they are, who moves the time.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from threading import get_ident
from typing import Any, Final, TypeVar

from streamsx.worker.host import take_sends_as_tasks

T = TypeVar("T")
INSTANT_S: Final = 1e-6
"""Timers this near are due: sums of floats are not exact."""


class _Selector(selectors.DefaultSelector):
    """Where a loop would sleep."""

    loop: "DriverLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self.loop.waits_outside(sockets=len(self.get_map()) - 1):  # one is the loop's own
            ready = super().select(self.loop.wait_s)
        if not ready:
            self.loop.idle(timeout)
        return ready


class DriverLoop(asyncio.SelectorEventLoop):
    """`wait_s`: how long, in real seconds, it waits for the next thing from outside; `waits`:
    whether anybody may be waiting for it.
    """

    def __init__(self, wait_s: float, waits: Callable[[], bool]) -> None:
        self.now_s = 0.0
        self.due_s: float | None = None
        """When the next timer is due; None: there is none."""
        self.wait_s, self._waits, self._threads = wait_s, waits, 0
        selector = _Selector()
        selector.loop = self
        self.thread: int | None = None
        """The id of the thread that runs it just now."""
        super().__init__(selector)
        take_sends_as_tasks(self)

    def time(self) -> float:
        return self.now_s

    def idle(self, timeout_s: float | None) -> None:
        """Nothing is ready, and the next timer is due after `timeout_s`."""
        self.due_s = None if timeout_s is None else self.now_s + timeout_s
        if timeout_s is not None and timeout_s <= INSTANT_S:
            self.now_s += timeout_s
        else:
            self.stop()

    def waits_outside(self, sockets: int) -> bool:
        return self._threads > 0 or (sockets > 0 and self._waits())

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Any, *args: Any
    ) -> Any:
        """In a thread, for which the loop really waits."""
        future = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._returned)
        return future

    def _returned(self, _: object) -> None:
        self._threads -= 1

    def run_ready(self) -> None:
        """Until nothing can go on without time. Within another loop too: that of an async test."""
        outer = asyncio._get_running_loop()
        task = asyncio.current_task(outer) if outer is not None else None
        if outer is not None and task is not None:
            asyncio.tasks._leave_task(outer, task)
        asyncio._set_running_loop(None)
        before, self.thread = self.thread, get_ident()
        try:
            self.run_forever()
        finally:
            self.thread = before
            asyncio._set_running_loop(outer)
            if outer is not None and task is not None:
                asyncio.tasks._enter_task(outer, task)

    def call(self, fun: Callable[[], T]) -> T:
        """What a function returns that wants to be called within a loop."""

        async def called() -> T:
            return fun()

        return self._result(called())

    def _result(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = self.create_task(coroutine)
        self.run_ready()
        return task.result()

    def end(self) -> None:
        """Cancel what is left, and close."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.run_ready()
        self._result(self.shutdown_asyncgens())
        self.close()
