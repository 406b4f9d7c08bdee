"""Processes: threads, memory and sockets that freeze and die together; a thread is an event loop.

Only the waiting differs from asyncio's own loop. A real loop sleeps in its selector. The scheduler
calls this one when something is due: a socket that is ready, a timer, or a call from another
thread. Such a call is in the queue at once and wakes the loop late, as a write to the loop's pipe
would.
"""

import asyncio
from asyncio.selector_events import BaseSelectorEventLoop
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from heapq import heappop
from math import inf
from selectors import BaseSelector, SelectorKey
from typing import TYPE_CHECKING, Any, Final

from streamsx.simulation.scheduler import Killed, SimClock

if TYPE_CHECKING:
    from streamsx.simulation.network import Network, SimSocket

TURN_S: Final = 40e-6
"""Mean CPU time of a turn, in seconds: a loop that never sleeps moves the time on."""
LIVELOCK_TURNS: Final = 12_000
"""Turns of one loop in one virtual second, half of which then goes into waking up alone."""
UNWIND_TURNS: Final = 100

ProcessMain = Callable[[], Coroutine[Any, Any, Any]]


class SimTask(asyncio.Task[Any]):
    """Task that sets order by birth, not by address: a task group cancels in that order."""

    def __init__(self, coroutine: Any, *, loop: "SimThread", **options: Any) -> None:
        self.number: int = next(loop.process.scheduler.numbers)
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self.number


class SimSelector(BaseSelector):
    """Selector over the simulated sockets of a thread; calls `woken` when one may be ready."""

    def __init__(self, net: "Network", woken: Callable[[], None]) -> None:
        self._net = net
        self._woken = woken
        self._keys: dict[Any, SelectorKey] = {}
        self._maybe: dict[int, None] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        key = self._keys[fileobj] = SelectorKey(fileobj, fileobj, events, data)
        self._net.sockets[fileobj].watcher = self
        self.look_at(fileobj)
        return key

    def unregister(self, fileobj: Any) -> SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> dict[Any, SelectorKey]:
        return self._keys

    def look_at(self, number: int) -> None:
        self._maybe[number] = None
        if self.select():
            self._woken()

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        found = []
        for number in tuple(self._maybe):
            key = self._keys.get(number)
            sock = self._net.sockets.get(number)
            if key and sock and (events := sock.ready() & key.events):
                found.append((key, events))
            else:
                del self._maybe[number]
        return found


class SimThread(BaseSelectorEventLoop):
    """Thread of a process, which is also an event loop; `name` is PROCESS/THREAD.

    `result` or `error`: the outcome of the thread's coroutine.
    """

    # Attributes of asyncio's own loop.
    _closed: bool
    _ready: deque[asyncio.Handle]
    _run_once: Callable[[], None]
    _scheduled: list[asyncio.TimerHandle]
    _timer_cancelled_count: int
    _transports: dict[int, asyncio.Transport]

    def __init__(self, process: "Process", name: str, main: ProcessMain) -> None:
        self.process = process
        self.scheduler = process.scheduler
        self.net = process.net
        self.name = f"{process.name}/{name}"
        self.number = next(self.scheduler.numbers)
        self.signals: dict[int, Callable[[], object]] = {}
        self._rng = self.scheduler.stream(f"thread/{self.name}/{process.life}")
        self._wakes_at = inf
        """Time of the next look at ready sockets and calls."""
        self._busy_until = 0.0
        self._armed = inf
        """Time of the scheduler's next call; any other call that is still on the heap is stale."""
        self._in_turn = self._ending = False
        self._turns = self._second = 0
        self._on_disk: dict[Future[Any], tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        """Calls that were given to an executor and are not done."""
        self._sockets = SimSelector(self.net, self.wake)
        super().__init__(self._sockets)
        self.set_debug(False)
        self.set_task_factory(lambda loop, job, **options: SimTask(job, loop=loop, **options))
        self.result: Any = None
        self.error: BaseException | None = None
        self._over: Future[Any] = Future()
        self._over.set_running_or_notify_cancel()  # a waiter that is cancelled cancels nothing
        self.task = self.create_task(main(), name=name)
        self.task.add_done_callback(self._done)
        self.wake()

    # -- overrides of asyncio

    def time(self) -> float:
        return self.process.clock.now()

    def _make_self_pipe(self) -> None:
        """Make no pipe: `_write_to_self` needs none."""

    def _write_to_self(self) -> None:
        """Wake the thread after a random delay."""
        if self.scheduler.running is not self:
            self.wake(self._rng.expovariate(1 / self.scheduler.hop_s))

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        self._check_closed()
        done: Future[Any] = Future()
        took = self._rng.expovariate(1 / self.scheduler.disk_s)
        self._on_disk[done] = func, args
        self.scheduler.after(took, self._execute, done)
        return asyncio.wrap_future(done, loop=self)

    def _execute(self, done: "Future[Any]") -> None:
        if self._closed or done not in self._on_disk:
            return
        if self.process.frozen:
            self.scheduler.at(self.process.frozen_until, self._execute, done)
            return
        func, args = self._on_disk.pop(done)
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(func(*args))
            except Exception as error:
                done.set_exception(error)

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Any, *args: Any
    ) -> None:
        self.signals[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self.signals.pop(sig, None) is not None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Report a violation for an error that asyncio would log and forget."""
        if self.process.alive:
            what = f"{self.name}: {context.get('message')}: {context.get('exception')!r}"
            self.scheduler.violate("exception in a callback", what)
            self.scheduler.say(self.name, what)

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(2, 1, 6, "", (host, port))]

    async def create_server(  # type: ignore[override]
        self, factory: Any, host: str, port: int, **options: Any
    ) -> asyncio.AbstractServer:
        sock: Any = self.net.listening(self.process, host, port)
        return await super().create_server(factory, sock=sock, **options)

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: str, port: int, *, ssl: Any = None, **_: Any
    ) -> Any:
        assert ssl is None, "no TLS in the simulation"
        sock: Any = self.net.socket(self.process, host, port)
        try:
            await self.sock_connect(sock, (host, port))
            return await super().create_connection(factory, sock=sock)
        except BaseException:
            sock.close()
            raise

    # -- calls from the scheduler, the process and the network

    def wake(self, late_s: float = 0.0) -> None:
        """Run a turn, now or `late_s` seconds from now: there is something to do."""
        self._wakes_at = min(self._wakes_at, self.scheduler.now + late_s)
        self._arm(self._wakes_at)

    def hold(self, seconds: float) -> None:
        """Do not run this thread for so many seconds; others run."""
        self._busy_until = max(self._busy_until, self.scheduler.now + seconds)

    def catch_up(self) -> None:
        """Limit the pending disk calls to the current mean time: the disk may be faster now.

        Seed 62207, without this: a worker starts 4 s before everything heals; its first look at
        the disk draws 38 s; the worker joins 34 s after the heal, too late to be at rest at the
        end.
        """
        for done in self._on_disk:
            self.scheduler.after(self.scheduler.disk_s, self._execute, done)

    @property
    def alive(self) -> bool:
        return not self._closed

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self.call_soon_threadsafe(function, *arguments)

    def end(self) -> "asyncio.Future[Any]":
        """Return a future on the caller's loop that is done when this thread ends or fails."""
        return asyncio.wrap_future(self._over)

    def _done(self, main: asyncio.Task[Any]) -> None:
        """Cancel the tasks that are left, as `asyncio.run` does; the loop closes after that."""
        self.error = asyncio.CancelledError() if main.cancelled() else main.exception()
        self.result = None if self.error else main.result()
        self._ending = True
        for task in self._left():
            task.cancel()

    def close(self) -> None:
        """Close the loop: nothing runs on this thread any more."""
        self._closed = True

    def unwind(self) -> None:
        """End the tasks after the run, so that the garbage collector finds none half done."""
        self._closed = False
        running = self.scheduler.running
        left: list[SimTask] = []
        self.scheduler.running = None
        asyncio._set_running_loop(self)
        try:
            for transport in tuple(self._transports.values()):
                transport.abort()
            for _ in range(UNWIND_TURNS):
                left = self._left()
                if not left and not self._ready:
                    break
                for task in left:
                    task.cancel()
                with suppress(Killed):  # a task group keeps it as the outcome of its body
                    self._run_once()
        finally:
            asyncio._set_running_loop(None)
            self.scheduler.running = running
            self._closed = True
            for task in left:
                task._log_destroy_pending = False  # type: ignore[attr-defined]

    def _left(self) -> list[SimTask]:
        tasks = [task for task in asyncio.all_tasks(self) if isinstance(task, SimTask)]
        return sorted(tasks, key=lambda task: task.number)

    def _check_closed(self) -> None:
        """Raise RuntimeError if the loop is closed, unless the process was killed.

        A killed process runs no more, but frames on the way out of the last turn still
        call. If these calls were refused, tasks would be left behind that cannot be ended.
        """
        if self._closed and not self.process.killed:
            raise RuntimeError("Event loop is closed")

    # -- turns

    def _due(self) -> float:
        timers = self._scheduled
        while timers and timers[0].cancelled():
            heappop(timers)._scheduled = False  # type: ignore[attr-defined]
            self._timer_cancelled_count -= 1
        at = min(self._wakes_at, timers[0].when() if timers else inf)
        return max(at, self._busy_until, self.process.frozen_until) if at < inf else inf

    def _arm(self, at: float) -> None:
        """Have the scheduler call at that time; during a turn, the end of the turn does so."""
        if at < self._armed and not self._in_turn:
            self._armed = at = max(at, self._busy_until, self.process.frozen_until)
            self.scheduler.at(at, self._called, at)

    def _called(self, armed: float) -> None:
        if armed != self._armed or self._closed:
            return
        self._armed = inf
        if self._due() <= self.scheduler.now:
            self._turn()
        if not self._closed:
            self._arm(self._due())

    def _turn(self) -> None:
        scheduler = self.scheduler
        self._in_turn = True
        self._wakes_at = inf
        scheduler.running = self
        asyncio._set_running_loop(self)
        try:
            self._run_once()
        except Killed:
            return
        finally:
            self._in_turn = False
            scheduler.running = None
            asyncio._set_running_loop(None)
        self._after()

    def _after(self) -> None:
        scheduler = self.scheduler
        if self._ready or self._sockets.select():
            self._wakes_at = 0.0
        self._busy_until = max(self._busy_until, scheduler.now + self._rng.random() * 2 * TURN_S)
        scheduler.note(self, len(self._ready))
        second = int(scheduler.now)
        self._turns = self._turns + 1 if second == self._second else 0
        self._second = second
        if self._turns > LIVELOCK_TURNS:
            scheduler.violate("livelock", f"{self.name}: {self._turns} turns in one second")
        if self._ending and not self._ready and not self._left():
            self.close()
            self._over.set_exception(self.error)  # None if the coroutine returned
            self.process.thread_over(self)


class Process:
    """Process on `host`, a machine of the network, which ends with its main thread.

    The main thread is the first one that was started. A process that was killed never runs again.
    Resources that the kernel would take back from a killed process are released by the callbacks in
    `on_kill`.
    """

    def __init__(self, net: "Network", name: str, *, host: str | None = None) -> None:
        self.net = net
        self.scheduler = net.scheduler
        self.name = name
        self.host = host or name
        lives = [other for other in self.scheduler.processes if other.name == name]
        self.life = len(lives) + 1
        """Number of this process among those of the same name, from 1."""
        self.clock = SimClock(self.scheduler)
        self.alive = True
        self.killed = False
        self.frozen_until = 0.0
        self.threads: list[SimThread] = []
        self.sockets: dict[int, SimSocket] = {}
        """Open sockets, by number."""
        self.on_kill: list[Callable[[], None]] = []
        net.boot(self.host)
        self.scheduler.processes.append(self)

    def begin(self, name: str, main: ProcessMain) -> "asyncio.Future[None]":
        """Start a thread, as a worker starts its control thread.

        Returns:
            A future on the caller's loop that is done when the thread ends.
        """
        return self.start(main, name).end()

    def start(self, main: ProcessMain, name: str = "main") -> SimThread:
        """Start a thread; the first one is the main thread."""
        self.threads.append(SimThread(self, name, main))
        return self.threads[-1]

    @property
    def main(self) -> SimThread:
        return self.threads[0]

    @property
    def frozen(self) -> bool:
        return self.frozen_until > self.scheduler.now

    def freeze(self, seconds: float) -> None:
        """Stop the process for so many seconds, as SIGSTOP: no thread runs, the kernel goes on."""
        self.frozen_until = max(self.frozen_until, self.scheduler.now + seconds)

    def kill(self, *, power: bool = False) -> None:
        """Kill the process, as SIGKILL: no thread runs any more, and the kernel closes the sockets.

        With `power` the machine is off: no kernel closes the sockets, and the machine does not
        answer until a process starts there.
        """
        if self.alive:
            self.killed = True
            self._gone(power=power)
            for undo in self.on_kill:
                undo()

    def signal(self, number: int) -> None:
        """Call the handler of a signal; without a handler, kill the process."""
        if handler := self.main.signals.get(number):
            self.main.call_soon_threadsafe(handler)
        else:
            self.kill()

    def thread_over(self, thread: SimThread) -> None:
        """End the process if the thread that has ended is the main one."""
        if thread is self.main:
            self._gone(power=False)

    def _gone(self, *, power: bool) -> None:
        self.alive = False
        for thread in self.threads:
            thread.close()
        if power:
            self.net.switch_off(self)
        for sock in tuple(self.sockets.values()):
            sock.vanish() if power else sock.close()
