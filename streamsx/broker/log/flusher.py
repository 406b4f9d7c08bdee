"""Brings logs to the disk: each second by default, or before a produce request is answered.

A killed process loses nothing either way; this is about the machine losing its power. Flushes run
in a thread, one after the other, and each takes everything along that was appended meanwhile. A log
whose flush fails is out of service until it can be opened anew, which is tried again and again.
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
    """One per broker. Needs a running loop. `reopen`: tries to open anew what has failed, and says
    whether something is still left.
    """

    def __init__(self, meta: MetadataStore, reopen: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._meta, self._reopen = meta, reopen
        meta.written = self._arm
        self._dirty: dict[Log, None] = {}
        self._waiting: list[SyncEnded] = []
        self._flushing: asyncio.Future[dict[Log | MetadataStore, OSError]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reopening: asyncio.TimerHandle | None = None
        self._due = False
        """The time to open anew has come, amid a flush: that one's failures are of the logs as they
        were, and the system tells of each only once."""

    def appended(self, log: Log) -> None:
        """It is to be flushed within the interval."""
        self._dirty[log] = None
        self._arm()

    def when_flushed(self, done: SyncEnded) -> None:
        """Calls back once all that was appended before is on the disk, if no log `failed`."""
        self._waiting.append(done)
        self._flush()

    def heal(self) -> None:
        """Some log has failed, or the metadata."""
        if self._reopening is None:
            self._reopening = self._loop.call_later(REOPEN_S, self._open_anew)

    async def close(self) -> None:
        """Waits for the flush that is under way, and for the next one if somebody waits for that;
        what was appended since is the caller's.
        """
        self._due = False
        self._stop_timers()
        while self._flushing is not None:
            await asyncio.wait([self._flushing])
        self._stop_timers()  # it may have failed

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
        waiting, self._waiting = self._waiting, []
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
            logger.error("flush_failed error=%r", str(error))
            self.heal()
        for log, mark in marks:
            if (error := failures.get(log)) is None:
                log.flushed_to(mark)
                continue
            logger.error("flush_failed folder=%s error=%r", log.folder, str(error))
            log.fail()
            self.heal()
        for done in waiting:
            done()
        if self._due:
            self._open_anew()
        if self._waiting:
            self._flush()


def flush_all(logs: list[Log], meta: MetadataStore) -> dict[Log | MetadataStore, OSError]:
    """In a thread. Which failed, and why; a log that was deleted meanwhile has not."""
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
