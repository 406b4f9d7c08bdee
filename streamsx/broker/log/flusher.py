"""Flushing of logs to the disk: once a second by default, or before a produce request is answered.

A killed process loses nothing either way; flushing protects against a power failure of the machine.
Flushes run in a thread, one after the other, and each flush takes along all that was appended
meanwhile. A log whose flush fails is out of service until it can be reopened, which is tried again
and again.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from streamsx.broker.log.log import DurableEnd, Log
from streamsx.broker.metadata_store import MetadataStore

INTERVAL_S = 1.0
REOPEN_S = 5.0

logger = logging.getLogger(__name__)

SyncEnded = Callable[[], None]


class Flusher:
    """Flusher of all logs and of the metadata, one per broker. Requires a running event loop.

    `reopen` tries to reopen the logs that failed, and returns whether some are still out of
    service.
    """

    def __init__(self, meta: MetadataStore, reopen: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._meta = meta
        self._reopen = reopen
        meta.written = self._arm
        self._dirty: dict[Log, None] = {}
        self._waiting: list[SyncEnded] = []
        self._flushing: asyncio.Future[dict[Log | MetadataStore, OSError]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reopening: asyncio.TimerHandle | None = None
        self._due = False
        """Set when the time to reopen comes during a flush. The failures of that flush concern the
        logs as they were before, and the operating system reports each failure only once.
        """

    def appended(self, log: Log) -> None:
        """Schedule a flush of this log within the interval."""
        self._dirty[log] = None
        self._arm()

    def when_flushed(self, done: SyncEnded) -> None:
        """Call `done` once all that was appended before has been flushed. Check `failed` of the
        logs then.
        """
        self._waiting.append(done)
        self._flush()

    def heal(self) -> None:
        """Schedule reopening, after a log or the metadata has failed."""
        if self._reopening is None:
            self._reopening = self._loop.call_later(REOPEN_S, self._open_anew)

    async def close(self) -> None:
        """Wait for the flush in progress, and for the next flush if callbacks are waiting.

        The caller flushes the data that was appended afterwards.
        """
        self._due = False
        self._stop_timers()
        while self._flushing is not None:
            await asyncio.wait([self._flushing])
        self._stop_timers()  # a flush that failed has started the timer of reopening

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._reopening):
            if timer is not None:
                timer.cancel()

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(INTERVAL_S, self._flush)

    def _open_anew(self) -> None:
        self._due = self._flushing is not None
        if self._due:
            return
        self._reopening = None
        if self._reopen():
            self.heal()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flushing is not None:
            return
        marks = [(log, log.mark()) for log in self._dirty if not log.failed]
        waiting = self._waiting
        self._waiting = []
        self._dirty.clear()
        logs = [log for log, _ in marks]
        self._flushing = self._loop.run_in_executor(None, flush_all, logs, self._meta)
        self._flushing.add_done_callback(partial(self._flushed, marks, waiting))

    def _flushed(
        self,
        marks: list[tuple[Log, DurableEnd]],
        waiting: list[SyncEnded],
        flushing: asyncio.Future[dict[Log | MetadataStore, OSError]],
    ) -> None:
        self._flushing = None
        failures = flushing.result()
        if error := failures.get(self._meta):
            logger.error(
                "A flush of the metadata to the disk failed: %s. It is tried again.", error
            )
            self.heal()
        for log, mark in marks:
            if (error := failures.get(log)) is None:
                log.flushed_to(mark)
                continue
            logger.error(
                "A flush of %s to the disk failed: %s. It is tried again.", log.folder, error
            )
            log.fail()
            self.heal()
        for done in waiting:
            done()
        if self._due:
            self._open_anew()
        if self._waiting:
            self._flush()


def flush_all(logs: list[Log], meta: MetadataStore) -> dict[Log | MetadataStore, OSError]:
    """Flush logs and metadata, in a thread.

    Returns:
        The errors of those that failed. A log that was deleted meanwhile has not failed.
    """
    failures: dict[Log | MetadataStore, OSError] = {}
    dirty: list[Log | MetadataStore] = [*logs, meta]
    for each in dirty:
        try:
            each.flush()
        except FileNotFoundError:
            pass
        except OSError as error:
            failures[each] = error
    return failures
