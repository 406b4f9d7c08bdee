"""Brings logs to the disk: each second by default, or before a produce request is answered.

A killed process loses nothing either way; this is about the machine losing its power. Flushes run
in a thread, one after the other, and each takes everything along that was appended meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from streamsx.broker.log import DurableEnd, Log

INTERVAL_S = 1.0

logger = logging.getLogger(__name__)

SyncEnded = Callable[[bool], None]


class Flusher:
    """One per broker. Needs a running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._dirty: dict[Log, None] = {}
        self._waiting: list[SyncEnded] = []
        self._flushing: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def appended(self, log: Log) -> None:
        """It is to be flushed within the interval."""
        self._dirty[log] = None
        if self._timer is None:
            self._timer = self._loop.call_later(INTERVAL_S, self._flush)

    def when_flushed(self, done: SyncEnded) -> None:
        """Calls back once all that was appended before is on the disk; False if that failed."""
        self._waiting.append(done)
        self._flush()

    async def close(self) -> None:
        """Waits for the flush that is under way; what was appended since is the caller's."""
        if self._timer is not None:
            self._timer.cancel()
        if self._flushing is not None:
            await asyncio.wait([self._flushing])

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flushing is not None:
            return
        marks = [(log, log.mark()) for log in self._dirty]
        waiting, self._waiting = self._waiting, []
        self._dirty.clear()
        self._flushing = self._loop.run_in_executor(None, flush_all, [log for log, _ in marks])
        self._flushing.add_done_callback(partial(self._flushed, marks, waiting))

    def _flushed(
        self,
        marks: list[tuple[Log, DurableEnd]],
        waiting: list[SyncEnded],
        flushing: asyncio.Future[None],
    ) -> None:
        self._flushing = None
        error = flushing.exception()
        for log, mark in marks:
            if error is None:
                log.flushed_to(mark)
            else:
                self.appended(log)
        if error is not None:
            logger.error("flush_failed error=%r", str(error))
        for done in waiting:
            done(error is None)
        if self._waiting:
            self._flush()


def flush_all(logs: list[Log]) -> None:
    """In a thread. Raises OSError; a log that was deleted meanwhile is none of its reasons."""
    for log in logs:
        with suppress(FileNotFoundError):
            log.flush()
