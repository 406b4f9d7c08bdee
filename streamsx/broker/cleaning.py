"""What of a log is to go: files of old records, files beyond a size, records that were overwritten.

As Kafka has it, but that a log is compacted up to its last stable offset: its last file is closed
for it, so that a small log is no longer than a few times its keys. When the cleaner comes is its
own to say.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate, takewhile

from streamsx.broker.compaction import CompactionJob, Made
from streamsx.broker.log import Log
from streamsx.broker.segment import Segment

DIRTY_BYTES_MAX = 256 << 20
"""At once, of what was never compacted: its keys are held in memory."""
TIMES = 16
"""A tombstone stays for at most a 16th longer than it has to: so many times are remembered."""


def roll_older(log: Log, timestamp: int) -> None:
    """Closes the last file if it has begun before. Raises OSError."""
    last = log.segments[-1]
    if last.size and 0 <= last.oldest < timestamp:
        log.roll()


def delete_older(log: Log, timestamp: int) -> None:
    """Files of which all is older, from the first one on. Raises OSError."""
    old = list(takewhile(lambda each: 0 <= each.newest < timestamp, log.segments))
    if len(old) == len(log.segments):
        log.roll()
    if old:
        log.delete_before(log.segments[len(old)].base)


def delete_beyond(log: Log, size: int) -> None:
    """Files from the first one on, while so many bytes stay without it. Raises OSError."""
    left = log.size
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        left -= segment.size
        if left < size:
            break
        log.delete_before(following.base)


def compacted_to(log: Log) -> int:
    """Each key is there once below this offset."""
    return log.compacted[-1][0] if log.compacted else 0


def dirty(log: Log) -> list[Segment]:
    """Files that were never compacted."""
    limit = compacted_to(log)
    return [segment for segment in log.segments if segment.base >= limit and segment.size]


def compaction(log: Log, now_ms: int, *, lag_ms: int, tombstones_ms: int) -> CompactionJob | None:
    """What there is to do: of records that are no younger than the lag, and of tombstones that were
    compacted so long ago. None if there is nothing. Raises OSError.
    """
    youngest_ms, dirty_from, stable = now_ms - lag_ms, compacted_to(log), log.last_stable_offset
    if log.segments[-1].newest <= youngest_ms:
        log.roll()

    def settled(segment: Segment) -> bool:
        old = segment.newest <= youngest_ms and segment.next <= stable
        return old and not segment.damaged

    closed = list(takewhile(settled, log.segments[:-1]))
    clean = sum(segment.base < dirty_from for segment in closed)
    sizes = list(accumulate(segment.size for segment in closed[clean:]))
    closed = closed[: clean + max(1, bisect_right(sizes, DIRTY_BYTES_MAX))]
    if not closed or log.segments[len(closed)].base <= dirty_from:
        return None
    heard = [offset for offset, at in log.compacted if at <= now_ms - tombstones_ms]
    return CompactionJob(
        tuple((segment.base, segment.path) for segment in closed),
        log.segments[len(closed)].base, dirty_from, max(heard, default=0),
        log.segment_bytes, now_ms, tombstones_ms,
        tuple(log.producers.aborted),
    )  # fmt: skip


def put(log: Log, job: CompactionJob, made: Iterable[Made]) -> None:
    """What compaction has made takes its place. Raises OSError.

    All of it, or nothing behind the first that finds no place: "a file was deleted meanwhile": a
    marker that is gone from a later one still ends what an earlier one holds.
    """
    placed = True
    for one in made:
        placed = placed and log.put(one)
        if not placed:
            one.path.unlink()
    if not placed:
        return
    times = log.compacted
    if len(times) > 1 and job.now_ms - times[-2][1] < job.tombstones_ms / TIMES:
        times.pop()  # tombstones below it count from now on
    old = [each for each in times if each[1] <= job.now_ms - job.tombstones_ms]
    log.compacted = [*times[max(len(old) - 1, 0) :], (job.until, job.now_ms)]
    log.note_compacted()
