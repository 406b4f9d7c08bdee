"""Scheduler of all simulated threads, with one virtual time.

One heap holds all future events by time; a seed decides the rest. A turn is one iteration of a
thread's event loop. Time passes between turns, a little with each look at a clock, and in the
middle of a turn when `elapse` is called. Other threads run meanwhile, as they would beside a thread
that blocks.

Not here: the work of a thread in its turn, processes that die and freeze (`process`), the network.
"""

import asyncio
import contextvars
import hashlib
import random
import struct
import sys
import warnings
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from streamsx.simulation.process import Process, SimThread

TICK_S: Final = 2e-6
"""Mean seconds between two looks at a clock."""
DISK_S: Final = 0.004
WALL_0: Final = 1_700_000_000.0
"""Unix seconds at the virtual second 0."""


class Violation(AssertionError):
    """Error that an invariant was broken."""

    def __init__(self, seed: int, at: float, rule: str, what: str) -> None:
        super().__init__(f"seed {seed} at {at:.3f} s: {rule}: {what}")
        self.at = at
        self.rule = rule


class Killed(KeyboardInterrupt):
    """Exception that ends the turn of a process that was killed in the middle of the turn.

    A KeyboardInterrupt, because asyncio passes no other kind of exception through a callback.
    Frames on the way are unwound, but their actions have no effect: the process is dead before this
    is raised.
    """


class Scheduler:
    """Time, event heap and random numbers of the virtual world. `seed` names the run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0.0
        self.hop_s = 0.0005
        """Mean delay in seconds until a sleeping thread wakes up for a call of another thread."""
        self.disk_s = DISK_S
        """Mean seconds that a call in an executor takes."""
        self.preempt = 0.0
        """Share of the looks at a clock that let other threads run first."""
        self.processes: list[Process] = []
        self.running: SimThread | None = None
        """Thread that has its turn now."""
        self.violation: Violation | None = None
        self.turns = 0
        self.trace: list[tuple[float, str, str]] = []
        self.numbers = count(1)
        self._heap: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._ties = count()
        self._digest = hashlib.blake2b(digest_size=16)
        self._ticks = self.stream("ticks")
        self._pauses = self.stream("pauses")

    def stream(self, concern: str) -> random.Random:
        """Return the random numbers of one concern; other concerns draw independently."""
        return random.Random(f"{self.seed}/{concern}")

    @property
    def digest(self) -> str:
        """Return a digest of all turns and story lines so far; equal runs have equal digests."""
        return self._digest.hexdigest()

    # -- future events

    def at(self, when: float, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function at that time, in no thread: for kernel, network, faults and checks."""
        heappush(self._heap, (when, next(self._ties), function, arguments))

    def after(self, seconds: float, function: Callable[..., object], *arguments: Any) -> None:
        self.at(self.now + seconds, function, *arguments)

    def run_until(self, end: float, done: Callable[[], bool] = lambda: False) -> None:
        """Run events until that second, or until `done`, which is called after each event.

        Raises:
            Violation: An invariant was broken.
        """
        before = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._close_generator)
        try:
            self._run(end, done)
        finally:
            sys.set_asyncgen_hooks(*before)
        if self.violation is not None:
            raise self.violation

    def _run(self, end: float, done: Callable[[], bool]) -> None:
        heap = self._heap
        while self.violation is None and not done():
            if not heap or heap[0][0] > end:
                self.now = max(self.now, end)
                return
            at, _, function, arguments = heappop(heap)
            self.now = max(self.now, at)
            function(*arguments)

    def _close_generator(self, generator: Any) -> None:
        """Close a generator that was not read to its end, as asyncio's loop does."""
        if self.running is not None:
            self.running.call_soon(self.running.create_task, generator.aclose())

    def disk_takes(self, mean_s: float) -> None:
        """Set the mean time of disk calls; pending calls take no longer than that either."""
        self.disk_s = mean_s
        for process in self.processes:
            for thread in process.threads:
                thread.catch_up()

    # -- time, as a thread sees it

    def look(self) -> float:
        """Return the time; during a turn each look moves the time on a little."""
        if self.running is not None:
            self.now += self._ticks.random() * 2 * TICK_S
            if self.preempt and self._pauses.random() < self.preempt:
                self.elapse(self._pauses.expovariate(1 / self.hop_s))
        return self.now

    def elapse(self, seconds: float) -> None:
        """Let time pass within this turn: its thread computes, blocks, or is not scheduled."""
        loop = self.running
        end = self.now + seconds
        assert loop is not None, "in no turn: nothing would wait"
        task = _swap_task(loop, None)
        asyncio._set_running_loop(None)
        self.running = None
        try:
            while self.violation is None and self.now < end and loop.process.alive:
                contextvars.Context().run(self._run, end, lambda: not loop.process.alive)
                end = max(end, loop.process.frozen_until)
        finally:
            asyncio._set_running_loop(loop)
            self.running = loop
            _ = _swap_task(loop, task)
        if not loop.process.alive:
            raise Killed

    # -- the record of the run

    def note(self, loop: "SimThread", handles: int) -> None:
        """Add a finished turn to the digest."""
        self.turns += 1
        self._digest.update(struct.pack("<dII", self.now, loop.number, handles))

    def say(self, who: str, what: str) -> None:
        """Add a line to the story and to the digest."""
        self.trace.append((self.now, who, what))
        self._digest.update(f"{self.now!r} {who} {what}".encode())

    def violate(self, rule: str, what: str) -> None:
        """Report a violation; the first one ends the run."""
        if self.violation is None:
            self.violation = Violation(self.seed, self.now, rule, what)

    def close(self) -> None:
        """Cancel every thread at the end of the world, and ignore all effects.

        Otherwise the interpreter would complain of the coroutines of killed processes.
        """
        self._heap.clear()
        loops = [thread for process in self.processes for thread in process.threads]
        hook = sys.unraisablehook
        sys.unraisablehook = lambda _: None
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", RuntimeWarning
            )  # coroutines made too late and never awaited
            for process in self.processes:
                process.kill(power=True)
            for loop in loops:
                loop.unwind()
        sys.unraisablehook = hook


class SimClock:
    """`Clock` of every machine: all machines have the same time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.now = scheduler.look

    def wall(self) -> float:
        return WALL_0 + self.now()


def _swap_task(loop: "SimThread", task: Any) -> Any:
    """Swap the current task of a loop, so that other loops can run in the same OS thread.

    Python counts current tasks per thread from 3.12 on. To swap None for no task is a KeyError in
    3.12.1.
    """
    swap: Any = getattr(asyncio.tasks, "_swap_current_task", None)
    if swap is None or (task is None and asyncio.current_task(loop) is None):
        return None
    return swap(loop, task)
