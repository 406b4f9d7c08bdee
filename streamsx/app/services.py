"""What an app does beside its agents: tasks once, timers again and again. A worker starts them.

An exception is logged, with the name of what failed, and ends nothing but that call: a timer goes
on at its next tick. (In Faust it stops the worker. There a timer that fails once takes every
partition from a healthy worker, and the next one after it: the same code fails there too.)

A timer keeps its beat: the next tick is counted from when the last was due. Ticks that a slow call
has slept through are left out, never made up for.

Not here: who starts them, and when.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

log = logging.getLogger(__name__)


class Job(NamedTuple):
    """A user's function, to be run once, or every `interval_s` seconds when it is not None."""

    name: str
    fun: Callable[..., Coroutine[Any, Any, Any]]
    arguments: tuple[Any, ...]
    may_run: Callable[[], bool]
    interval_s: float | None

    async def run(self) -> None:
        """As long as the worker, or until it is done."""
        await (self._once() if self.interval_s is None else self._ticking())

    async def _once(self) -> None:
        if not self.may_run():
            return
        try:
            await self.fun(*self.arguments)
        except Exception:
            log.exception("service_failed name=%s", self.name)

    async def _ticking(self) -> None:
        assert self.interval_s, "a timer needs an interval"
        now = asyncio.get_running_loop().time
        due = now() + self.interval_s
        while True:
            await asyncio.sleep(due - now())
            await self._once()
            due = next_tick(due, self.interval_s, now())


def next_tick(due: float, interval_s: float, now: float) -> float:
    """The first tick after `due` that is not over yet."""
    return due + interval_s * max(1, (now - due) // interval_s + 1)
