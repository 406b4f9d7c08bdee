"""Event loop of a driver: only the driver moves its time.

The loop runs the callbacks that are ready. If code waits for a socket or a thread, the loop really
waits for that. Then the loop stops, and shows when its next timer is due. So bodies may await
anything, a test that sleeps for an hour takes no time, and a driver that does not move time can see
the waiting code.

Not here: the bodies, and the moves of time.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from threading import get_ident
from typing import Any, Final, TypeVar

from streamsx.worker.host import take_sends_as_tasks

T = TypeVar("T")
INSTANT_S: Final = 1e-6
"""Timers within this many seconds are due: sums of floats are not exact."""


class _Selector(selectors.DefaultSelector):
    """Selector that stops the loop instead of sleeping."""

    loop: "DriverLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if self.loop.waits_outside(sockets=len(self.get_map()) - 1):  # one socket is the loop's own
            ready = super().select(self.loop.wait_s)
        if not ready:
            self.loop.idle(timeout)
        return ready


class DriverLoop(asyncio.SelectorEventLoop):
    """Event loop with virtual time.

    `wait_s`: the longest real wait for the next outside event, in seconds. `waits`: returns whether
    any code may be waiting for an outside event.
    """

    def __init__(self, wait_s: float, waits: Callable[[], bool]) -> None:
        self.now_s = 0.0
        self.due_s: float | None = None
        """Time of the next timer; None: no timer is armed."""
        self.wait_s = wait_s
        self._waits = waits
        self._threads = 0
        selector = _Selector()
        selector.loop = self
        self.thread: int | None = None
        """Id of the thread that runs the loop at present; None: the loop does not run."""
        super().__init__(selector)
        take_sends_as_tasks(self)

    def time(self) -> float:
        return self.now_s

    def idle(self, timeout_s: float | None) -> None:
        """Stop the loop, because no callback is ready and the next timer is due after `timeout_s`.

        A timer within `INSTANT_S` is reached by moving the time instead.
        """
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
        """Run a function in a thread, for which the loop really waits."""
        future = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._returned)
        return future

    def _returned(self, _: object) -> None:
        self._threads -= 1

    def run_ready(self) -> None:
        """Run until no callback can run without a move of time.

        The call is allowed within another running loop too, such as that of an async test.
        """
        outer = asyncio._get_running_loop()
        task = asyncio.current_task(outer) if outer is not None else None
        if outer is not None and task is not None:
            asyncio.tasks._leave_task(outer, task)
        asyncio._set_running_loop(None)
        before = self.thread
        self.thread = get_ident()
        try:
            self.run_forever()
        finally:
            self.thread = before
            asyncio._set_running_loop(outer)
            if outer is not None and task is not None:
                asyncio.tasks._enter_task(outer, task)

    def call(self, fun: Callable[[], T]) -> T:
        """Call a function within the loop and return its result."""

        async def called() -> T:
            return fun()

        return self._result(called())

    def _result(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = self.create_task(coroutine)
        self.run_ready()
        return task.result()

    def end(self) -> None:
        """Cancel the remaining tasks and close the loop."""
        for task in asyncio.all_tasks(self):
            task.cancel()
        self.run_ready()
        self._result(self.shutdown_asyncgens())
        self.close()
