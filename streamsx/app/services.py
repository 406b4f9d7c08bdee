"""Jobs of an app besides its agents: tasks run once, timers run repeatedly, started by a worker.

An exception is logged, with the name of the failed job, and ends only that call: a timer goes on at
its next tick. (In Faust an exception stops the worker. There a timer that fails once takes every
partition from a healthy worker, and then from the next one, because the same code fails there too.)

A timer keeps its beat: the next tick counts from the time at which the last one was due. Ticks
missed during a slow call are left out, never made up for.

Not here: the start of jobs.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

log = logging.getLogger(__name__)
TASK = ("task", "does not run it again")
TIMER = ("timer", "runs it again at its next tick")


class Job(NamedTuple):
    """User's function, to run once, or every `interval_s` seconds if that is not None."""

    name: str
    fun: Callable[..., Coroutine[Any, Any, Any]]
    arguments: tuple[Any, ...]
    may_run: Callable[[], bool]
    interval_s: float | None

    async def run(self) -> None:
        """Run the job until the job is done; a timer runs until its cancellation."""
        await (self._once() if self.interval_s is None else self._ticking())

    async def _once(self) -> None:
        if not self.may_run():
            return
        try:
            await self.fun(*self.arguments)
        except Exception:
            what, then = TASK if self.interval_s is None else TIMER
            log.exception("The %s %s failed. The worker goes on, and %s.", what, self.name, then)

    async def _ticking(self) -> None:
        assert self.interval_s, "a timer needs an interval"
        now = asyncio.get_running_loop().time
        due = now() + self.interval_s
        while True:
            await asyncio.sleep(due - now())
            await self._once()
            due = next_tick(due, self.interval_s, now())


def next_tick(due: float, interval_s: float, now: float) -> float:
    """Return the first tick after `due` that lies in the future. All times are in s."""
    return due + interval_s * max(1, (now - due) // interval_s + 1)
