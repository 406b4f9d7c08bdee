"""Background cleaner: deletes old log data by time and by size, and compacts logs by key.

The cleaner looks at all logs periodically and applies `cleanup.policy`, `retention.ms`,
`retention.bytes` and `segment.ms`. A log is compacted if enough was appended since its last
compaction (`min.cleanable.dirty.ratio`, `max.compaction.lag.ms`). Logs are compacted one after the
other, in a thread. Not here: how a log is truncated (`log`), how compaction rewrites files
(`compaction`).
"""

import asyncio
import logging
from collections.abc import Callable

from streamsx.broker.configs import listed
from streamsx.broker.log.cleaning import (
    compaction,
    delete_beyond,
    delete_older,
    dirty,
    leave_alone,
    put,
    roll_long,
)
from streamsx.broker.log.compaction import Compacted, CompactionJob, FileDamaged, compact
from streamsx.broker.log.flusher import Flusher
from streamsx.broker.log.log import Log
from streamsx.broker.options import Options
from streamsx.broker.topics import StoredTopic, TopicStore
from streamsx.clock import Clock
from streamsx.errors import CorruptRecord

logger = logging.getLogger(__name__)


class Cleaner:
    """Periodic cleaner of all logs, one per broker. Requires a running event loop."""

    def __init__(
        self, topics: TopicStore, flusher: Flusher, clock: Clock, options: Options
    ) -> None:
        self._topics = topics
        self._flusher = flusher
        self._clock = clock
        self._interval_s = options.cleaner_interval_s
        self._bytes_min = options.compacted_bytes_min
        self._loop = asyncio.get_running_loop()
        self._compacting: asyncio.Future[Compacted] | None = None
        self._queue: list[tuple[StoredTopic, Log]] = []
        self._more = False
        self._timer = self._loop.call_later(self._interval_s, self._tick)

    async def close(self) -> None:
        """Stop, and wait until the compaction in the thread has ended and the new files
        are in place.
        """
        self.stop()
        if self._compacting is not None:
            await asyncio.wait([self._compacting])

    def stop(self) -> None:
        """Stop looking at logs."""
        self._timer.cancel()
        self._queue.clear()

    def look(self) -> None:
        """Look at all logs now."""
        for topic, _, log in self._topics.logs():
            if not log.failed and "delete" in listed(topic.config("cleanup.policy")):
                self._guarded(self._expire, topic, log)
        if self._compacting is None:
            self._queue = [(topic, log) for topic, _, log in self._topics.logs()]
            self._compact_next()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._tick)
        self.look()

    def _guarded(
        self, act: Callable[[StoredTopic, Log], object], topic: StoredTopic, log: Log
    ) -> None:
        """Run `act` on one log; log its error, so that the disk of one log does not keep the others
        waiting.
        """
        try:
            act(topic, log)
        except (OSError, CorruptRecord) as error:
            logger.error("Cleaning of %s failed: %s. It is tried again later.", log.folder, error)
            if log.failed:
                self._flusher.heal()

    def _expire(self, topic: StoredTopic, log: Log) -> None:
        now_ms = self._now_ms()
        roll_long(log, int(topic.config("segment.ms")))
        kept_ms = int(topic.config("retention.ms"))
        kept_bytes = int(topic.config("retention.bytes"))
        before = log.start
        if kept_ms >= 0:
            delete_older(log, now_ms - kept_ms)
        if kept_bytes >= 0:
            delete_beyond(log, kept_bytes)
        if log.start > before:
            logger.info(
                "Deleted old records of %s: it begins at offset %d now.", log.folder, log.start
            )

    def _compact_next(self) -> None:
        """Compact the next log that is due: each log once per look, one at a time."""
        while self._queue and self._compacting is None:
            topic, log = self._queue.pop()
            compacted = "compact" in listed(topic.config("cleanup.policy"))
            if compacted and not (log.failed or log.closed):  # a deleted log is closed
                self._guarded(self._begin, topic, log)
        if self._more and self._compacting is None and not self._timer.cancelled():
            self._more = False
            self.look()  # at all logs again, so that one busy log does not keep others waiting

    def _begin(self, topic: StoredTopic, log: Log) -> None:
        now_ms = self._now_ms()
        kept_open = (int(topic.config(name)) for name in ("segment.ms", "max.compaction.lag.ms"))
        roll_long(log, min(kept_open))  # an open segment never gets as old as compaction requires
        if not due(topic, log, now_ms, self._bytes_min):
            return
        job = compaction(
            log,
            now_ms,
            lag_ms=int(topic.config("min.compaction.lag.ms")),
            tombstones_ms=int(topic.config("delete.retention.ms")),
        )
        if job is not None:
            self._compacting = self._loop.run_in_executor(None, compact, job)
            self._compacting.add_done_callback(lambda made: self._compacted(topic, log, job, made))

    def _compacted(
        self,
        topic: StoredTopic,
        log: Log,
        job: CompactionJob,
        compacting: asyncio.Future[Compacted],
    ) -> None:
        self._compacting = None

        def take(*_: object) -> None:
            try:
                done = compacting.result()
                before = log.size
            except FileDamaged as error:
                leave_alone(log, error.base)  # so that later looks neither read nor report it again
                raise
            try:
                if log.failed or log.closed:
                    return
                put(log, job, done)
            finally:  # remove the files that were not put in place because the disk refused
                for one in done.made:
                    one.path.unlink(missing_ok=True)
            # The compaction stopped early when its table of keys was full.
            self._more |= done.until < job.files[-1].next
            message = "Compacted %s: %d bytes, %d before."
            logger.info(message, log.folder, log.size, before)

        try:
            self._guarded(take, topic, log)
        finally:
            self._compact_next()

    def _now_ms(self) -> int:
        return int(self._clock.wall() * 1000)


def due(topic: StoredTopic, log: Log, now_ms: int, bytes_min: int) -> bool:
    """Return whether enough was appended since the last compaction to make another worthwhile."""
    files = dirty(log)
    size = sum(each.size for each in files)
    oldest = min((each.oldest for each in files if each.oldest >= 0), default=-1)
    much = size >= float(topic.config("min.cleanable.dirty.ratio")) * log.size
    late = 0 <= oldest <= now_ms - int(topic.config("max.compaction.lag.ms"))
    return late or (much and size >= bytes_min)
