"""Keeps logs as short as their topics want them: by time, by size, to the newest of each key.

From time to time it looks at all of them (`cleanup.policy`, `retention.ms`, `retention.bytes`,
`segment.ms`), and has those compacted of which enough has come since the last time
(`min.cleanable.dirty.ratio`, `max.compaction.lag.ms`), one after the other, in a thread. How a log
is cut is the log's, what compaction does to files is `compaction`'s.
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
    """One per broker. Needs a running loop."""

    def __init__(
        self, topics: TopicStore, flusher: Flusher, clock: Clock, options: Options
    ) -> None:
        self._topics, self._flusher, self._clock = topics, flusher, clock
        self._interval_s = options.cleaner_interval_s
        self._bytes_min = options.compacted_bytes_min
        self._loop = asyncio.get_running_loop()
        self._compacting: asyncio.Future[Compacted] | None = None
        self._left: list[tuple[StoredTopic, Log]] = []
        self._more = False
        self._timer = self._loop.call_later(self._interval_s, self._tick)

    async def close(self) -> None:
        """Waits for what its thread is doing, which takes its place; nothing else begins."""
        self.stop()
        if self._compacting is not None:
            await asyncio.wait([self._compacting])

    def stop(self) -> None:
        """It does not look again."""
        self._timer.cancel()
        self._left.clear()

    def look(self) -> None:
        """At all logs, now."""
        for topic, _, log in self._topics.logs():
            if not log.failed and "delete" in listed(topic.config("cleanup.policy")):
                self._guarded(self._expire, topic, log)
        if self._compacting is None:
            self._left = [(topic, log) for topic, _, log in self._topics.logs()]
            self._compact_next()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(self._interval_s, self._tick)
        self.look()

    def _guarded(
        self, act: Callable[[StoredTopic, Log], object], topic: StoredTopic, log: Log
    ) -> None:
        """What one disk refuses keeps nobody else from it."""
        try:
            act(topic, log)
        except (OSError, CorruptRecord) as error:
            logger.error("cleaning_failed folder=%s error=%r", log.folder, str(error))
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
            logger.info("log_expired folder=%s start=%d", log.folder, log.start)

    def _compact_next(self) -> None:
        """Each once a look, one at a time."""
        while self._left and self._compacting is None:
            topic, log = self._left.pop()
            compacted = "compact" in listed(topic.config("cleanup.policy"))
            if compacted and not (log.failed or log.closed):  # or deleted, while it waited
                self._guarded(self._begin, topic, log)
        if self._more and self._compacting is None and not self._timer.cancelled():
            self._more = False
            self.look()  # at all of them again: one that is written to keeps no other waiting

    def _begin(self, topic: StoredTopic, log: Log) -> None:
        now_ms = self._now_ms()
        kept_open = (int(topic.config(name)) for name in ("segment.ms", "max.compaction.lag.ms"))
        roll_long(log, min(kept_open))  # or it is never as old as it has to be
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
            self._compacting.add_done_callback(lambda made: self._made(topic, log, job, made))

    def _made(
        self,
        topic: StoredTopic,
        log: Log,
        job: CompactionJob,
        compacting: asyncio.Future[Compacted],
    ) -> None:
        self._compacting = None

        def take(*_: object) -> None:
            try:
                done, before = compacting.result(), log.size
            except FileDamaged as error:
                leave_alone(log, error.base)  # "at each look": it is read once, and told of once
                raise
            try:
                if log.failed or log.closed:
                    return
                put(log, job, done)
            finally:  # what has found no place, since its disk refused it
                for one in done.made:
                    one.path.unlink(missing_ok=True)
            self._more |= done.until < job.files[-1].next  # there are keys that were not learned
            told = "log_compacted folder=%s bytes=%d before=%d"
            logger.info(told, log.folder, log.size, before)

        try:
            self._guarded(take, topic, log)
        finally:
            self._compact_next()

    def _now_ms(self) -> int:
        return int(self._clock.wall() * 1000)


def due(topic: StoredTopic, log: Log, now_ms: int, bytes_min: int) -> bool:
    """Whether so much has come since the last compaction that another is worth its while."""
    files = dirty(log)
    size = sum(each.size for each in files)
    oldest = min((each.oldest for each in files if each.oldest >= 0), default=-1)
    much = size >= float(topic.config("min.cleanable.dirty.ratio")) * log.size
    late = 0 <= oldest <= now_ms - int(topic.config("max.compaction.lag.ms"))
    return late or (much and size >= bytes_min)
