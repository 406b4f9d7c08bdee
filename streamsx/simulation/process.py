"""Processes: threads, memory and sockets that freeze and die together."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from streamsx.simulation.loop import ThreadLoop
from streamsx.simulation.scheduler import SimClock

if TYPE_CHECKING:
    from streamsx.simulation.network import Net
    from streamsx.simulation.tcp import SimSocket

ProcessMain = Callable[[], Coroutine[Any, Any, Any]]


class Process:
    """On `host`, a machine of the network. It ends with the first of its threads that was started.

    A process that was killed never runs again; whoever holds something for it that the kernel would
    take back says so in `on_kill`.
    """

    def __init__(self, net: "Net", name: str, *, host: str | None = None) -> None:
        self.net, self.scheduler = net, net.scheduler
        self.name, self.host = name, host or name
        lives = [other for other in self.scheduler.processes if other.name == name]
        self.life = len(lives) + 1
        """How often there has been one of this name."""
        self.clock = SimClock(self.scheduler)
        self.alive, self.killed = True, False
        self.frozen_until = 0.0
        self.threads: list[SimThread] = []
        self.sockets: dict[int, SimSocket] = {}
        """Those that are open."""
        self.on_kill: list[Callable[[], None]] = []
        net.boot(self.host)
        self.scheduler.processes.append(self)

    def __repr__(self) -> str:
        return f"<Process {self.name}>"

    def begin(self, name: str, main: ProcessMain) -> "asyncio.Future[None]":
        """As a worker has its control thread begun; done, on the caller's loop, at its end."""
        return self.start(main, name).end()

    def start(self, main: ProcessMain, name: str = "main") -> "SimThread":
        """A thread; the first one is the main one."""
        thread = SimThread(self, name, main)
        self.threads.append(thread)
        return thread

    @property
    def main(self) -> "SimThread":
        return self.threads[0]

    @property
    def frozen(self) -> bool:
        return self.frozen_until > self.scheduler.now

    def freeze(self, seconds: float) -> None:
        """SIGSTOP for so long: no thread runs, the kernel goes on."""
        self.frozen_until = max(self.frozen_until, self.scheduler.now + seconds)

    def kill(self, *, power: bool = False) -> None:
        """SIGKILL: no thread runs any more, and the kernel closes the sockets. With `power` the
        machine is off: nobody does, until a process starts there.
        """
        if self.alive:
            self.killed = True
            self._gone(power=power)
            for undo in self.on_kill:
                undo()

    def signal(self, number: int) -> None:
        """Without a handler it kills."""
        if handler := self.main.loop.signals.get(number):
            self.main.loop.call_soon_threadsafe(handler)
        else:
            self.kill()

    def thread_over(self, thread: "SimThread") -> None:
        """All of its tasks have ended."""
        if thread is self.main:
            self._gone(power=False)

    def _gone(self, *, power: bool) -> None:
        self.alive = False
        for thread in self.threads:
            thread.loop.close()
        if power:
            self.net.switch_off(self)
        for sock in tuple(self.sockets.values()):
            sock.vanish() if power else sock.close()


class SimThread:
    """A thread of a simulated process. `result` or `error`: how its coroutine has ended."""

    def __init__(self, process: Process, name: str, main: ProcessMain) -> None:
        self.process = process
        self.loop = ThreadLoop(process, name, self._ended)
        self.result: Any = None
        self.error: BaseException | None = None
        self._over: Future[None] = Future()
        self.task = self.loop.create_task(main(), name=name)
        self.task.add_done_callback(self._done)
        self.loop.wake()

    @property
    def alive(self) -> bool:
        return not self.loop.is_closed()

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # it is over
            self.loop.call_soon_threadsafe(function, *arguments)

    def end(self) -> "asyncio.Future[None]":
        """Done, on the caller's loop, when it is over, or has failed."""
        return asyncio.wrap_future(self._over)

    def _done(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            self.error = asyncio.CancelledError()
        elif (error := task.exception()) is not None:
            self.error = error
        else:
            self.result = task.result()
        self.loop.end()

    def _ended(self) -> None:
        self.loop.close()
        if self._over.set_running_or_notify_cancel():
            if self.error is None:
                self._over.set_result(None)
            else:
                self._over.set_exception(self.error)
        self.process.thread_over(self)
