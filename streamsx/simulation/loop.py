"""asyncio's event loop for one simulated thread.

A turn is what asyncio does between two waits: what has arrived, then timers that are due, then all
callbacks that are ready by then. Another thread's call is in the queue at once and wakes this one
late, as a write to its pipe would.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Any, Final

from streamsx.simulation.scheduler import Killed

if TYPE_CHECKING:
    from streamsx.simulation.process import Process

TURN_S: Final = 40e-6
"""CPU time of a turn, at the mean: a loop that never sleeps moves the time on."""
LIVELOCK_TURNS: Final = 12_000
"""In one virtual second of one loop: it is busy for half of it with nothing but being woken."""
CANCELLED_MAX: Final = 100
UNWIND_TURNS: Final = 100


class SimTask(asyncio.Task[Any]):
    """In sets, tasks are ordered by birth, not by address: a task group cancels in that order."""

    def __init__(self, coroutine: Any, *, loop: "ThreadLoop", **options: Any) -> None:
        self.number: int = next(loop.process.scheduler.numbers)
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number


class ThreadLoop(asyncio.AbstractEventLoop):
    """Of one thread of a process; `name` is PROCESS/THREAD."""

    def __init__(self, process: "Process", name: str) -> None:
        self.process, self.scheduler, self.net = process, process.scheduler, process.net
        self.name = f"{process.name}/{name}"
        self.number = next(self.scheduler.numbers)
        self.closed = False
        self.signals: dict[int, Callable[[], object]] = {}
        self.last_words: list[Callable[[], object]] = []
        """What nobody was told because its process was killed; see `unwind`."""
        self._rng = self.scheduler.stream(f"thread/{self.name}/{process.life}")
        self._ready: deque[asyncio.Handle] = deque()
        self._ready_at = inf
        """When it looks at what is ready: at once, or when another thread's call wakes it."""
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._inbox: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._ties = count()
        self._cancelled = 0
        self._busy_until = 0.0
        self._armed = inf
        """When the scheduler calls next; anything else that it has is stale."""
        self._in_turn = self._ending = False
        self._turns = self._second = 0
        self._context = contextvars.Context()
        process.loops.append(self)

    def __repr__(self) -> str:
        return f"<ThreadLoop {self.name}>"

    # -- what asyncio wants of a loop

    def time(self) -> float:
        return self.process.clock.now()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.closed

    def is_closed(self) -> bool:
        return self.closed

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> SimTask:
        self._check_open()
        return SimTask(coro, loop=self, **options)

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        self._check_open()
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if self._ready_at:
            self._ready_at = 0.0
            self._arm(0.0)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """It is next in that thread's queue at once; when that thread wakes up is random."""
        self._check_open()
        if self.scheduler.running is self:
            return self.call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        wakes_at = self.scheduler.now + self._rng.expovariate(1 / self.scheduler.hop_s)
        if wakes_at < self._ready_at:
            self._ready_at = wakes_at
            self._arm(wakes_at)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        self._check_open()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._ties), timer))
        if self._timers[0][2] is timer:
            self._arm(when)
        return timer

    def _timer_handle_cancelled(self, _: asyncio.TimerHandle) -> None:
        """A time-out that did not come about: most of them."""
        self._cancelled += 1
        if self._cancelled > CANCELLED_MAX and self._cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapify(self._timers)
            self._cancelled = 0

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        self._check_open()
        future = self.create_future()
        took = self._rng.expovariate(1 / self.scheduler.disk_s)
        self.scheduler.after(took, self._execute, future, func, args)
        return future

    def _execute(self, future: "asyncio.Future[Any]", func: Any, args: tuple[Any, ...]) -> None:
        if not self.process.alive or self.closed or future.cancelled():
            return
        if self.process.frozen_until > self.scheduler.now:
            self.scheduler.at(self.process.frozen_until, self._execute, future, func, args)
            return
        try:
            result = func(*args)
        except Exception as error:
            self.post_at(self.scheduler.now, _settle, future, None, error)
        else:
            self.post_at(self.scheduler.now, _settle, future, result, None)

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Any, *args: Any
    ) -> None:
        self.signals[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self.signals.pop(sig, None) is not None

    def get_exception_handler(self) -> None: ...

    def set_exception_handler(self, handler: object) -> None:
        """It is not asked: what it would hear of ends the run."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Whatever asyncio would log and forget is a violation: nobody else hears of it."""
        if self.process.alive:
            what = f"{self.name}: {context.get('message')}: {context.get('exception')!r}"
            self.scheduler.violate("exception in a callback", what)
            self.scheduler.say(self.name, what)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(2, 1, 6, "", (host, port))]

    async def create_server(  # type: ignore[override]
        self, factory: Any, host: str, port: int, **_: Any
    ) -> asyncio.AbstractServer:
        return self.net.listen(self, factory, host, port)

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: str, port: int, *, ssl: Any = None, **_: Any
    ) -> Any:
        assert ssl is None, "no TLS in the simulation"
        return await self.net.connect(self, factory, host, port)

    # -- what the scheduler, the process and the network want

    def post_at(self, at: float, function: Callable[..., object], *arguments: Any) -> None:
        """From the kernel: something has arrived for this thread."""
        if not self.closed:
            heappush(self._inbox, (at, next(self._ties), function, arguments))
            self._arm(at)

    def hold(self, seconds: float) -> None:
        """This thread alone is not run for so long."""
        self._busy_until = max(self._busy_until, self.scheduler.now + seconds)

    def end(self) -> None:
        """Its coroutine is over: as `asyncio.run`, cancel what is left, and close after that."""
        self._ending = True
        for task in self._left():
            task.cancel()

    def close(self) -> None:
        """Nothing of it runs any more."""
        self.closed = True

    def unwind(self) -> None:
        """After everything: let its tasks end, so that nobody collects them half done."""
        self.closed, running = False, self.scheduler.running
        left: list[SimTask] = []
        self.scheduler.running = None
        asyncio._set_running_loop(self)
        try:
            for tell in self.last_words:
                tell()
            for _ in range(UNWIND_TURNS):
                if not (left := self._left()):
                    break
                for task in left:
                    task.cancel()
                self._ready.extend(entry[2] for entry in self._timers)
                self._timers.clear()
                for _ in range(len(self._ready)):
                    with suppress(Killed):  # kept by a task group, as how its body has ended
                        self._run(self._ready.popleft())
        finally:
            asyncio._set_running_loop(None)
            self.scheduler.running = running
            self.closed = True
            for task in left:
                task._log_destroy_pending = False  # type: ignore[attr-defined]

    def _left(self) -> list[SimTask]:
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)]
        return sorted(tasks, key=lambda task: task.number)

    def _check_open(self) -> None:
        """Of a killed process nothing runs any more, but frames on the way out of its last turn
        still call: refused, they would leave tasks behind that nobody can end.
        """
        if self.closed and not self.process.killed:
            raise RuntimeError("Event loop is closed")

    # -- turns

    def _due(self) -> float:
        at = self._ready_at
        while self._timers and self._timers[0][2].cancelled():
            heappop(self._timers)
            self._cancelled -= 1
        if self._timers:
            at = min(at, self._timers[0][0])
        if self._inbox:
            at = min(at, self._inbox[0][0])
        return max(at, self._busy_until, self.process.frozen_until) if at < inf else inf

    def _arm(self, at: float) -> None:
        """The scheduler calls then; in a turn, the turn's end sees to it."""
        if at < self._armed and not self._in_turn:
            self._armed = at = max(at, self._busy_until, self.process.frozen_until)
            self.scheduler.at(at, self._called, at)

    def _called(self, armed: float) -> None:
        if armed != self._armed or self.closed:
            return
        self._armed = inf
        if self._due() <= self.scheduler.now:
            self._turn()
        if not self.closed:
            self._arm(self._due())

    def _turn(self) -> None:
        scheduler, ready, now = self.scheduler, self._ready, self.scheduler.now
        self._in_turn, scheduler.running = True, self
        asyncio._set_running_loop(self)
        try:
            while self._inbox and self._inbox[0][0] <= now:
                _, _, function, arguments = heappop(self._inbox)
                ready.append(asyncio.Handle(function, arguments, self, self._context))
            while self._timers and self._timers[0][0] <= now:
                timer = heappop(self._timers)[2]
                if timer.cancelled():
                    self._cancelled -= 1
                else:
                    ready.append(timer)
            self._ready_at = inf
            todo = len(ready)
            for _ in range(todo):
                self._run(ready.popleft())
                if self.closed:
                    return
        except Killed:
            return
        finally:
            self._in_turn, scheduler.running = False, None
            asyncio._set_running_loop(None)
        self._after(todo)

    def _run(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            handle._run()

    def _after(self, handles: int) -> None:
        scheduler = self.scheduler
        if self._ready:
            self._ready_at = 0.0
        self._busy_until = max(self._busy_until, scheduler.now + self._rng.random() * 2 * TURN_S)
        scheduler.note(self, handles)
        second = int(scheduler.now)
        self._turns = self._turns + 1 if second == self._second else 0
        self._second = second
        if self._turns > LIVELOCK_TURNS:
            scheduler.violate("livelock", f"{self.name}: {self._turns} turns in one second")
        if self._ending and not self._ready and not self._left():
            self.process.loop_over(self)


def _settle(future: "asyncio.Future[Any]", result: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
