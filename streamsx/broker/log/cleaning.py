"""Selection of log data to remove: old segments, segments beyond a size, and overwritten records.

The rules are Kafka's, with one exception: a log is compacted up to its last stable offset. Its last
file is closed for that purpose, so a small log is at most a few times as long as its keys. Not
here: when the cleaner runs (`cleaner`).
"""

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, takewhile

from streamsx.broker.log.compaction import Compacted, CompactionJob
from streamsx.broker.log.log import Log
from streamsx.broker.log.segment import Segment

DIRTY_BYTES_MAX = 256 << 20
"""Largest number of bytes that one compaction takes from the part that was never compacted."""
TIMES = 16
"""Number of compaction times kept per log, so that a tombstone stays at most a 16th longer than
required.
"""


def roll_long(log: Log, span_ms: int) -> None:
    """Close the last file if the timestamps in the file span more than `span_ms`, however old they
    are.

    Records of years ago may be appended: each would be old enough for a file of its own.

    Raises:
        OSError: The disk refused.
    """
    last = log.segments[-1]
    if 0 <= last.oldest < last.newest - span_ms:
        log.roll()


def delete_older(log: Log, timestamp: int) -> None:
    """Delete files whose records are all older than `timestamp`, from the first file on.

    Raises:
        OSError: The disk refused.
    """
    delete_while(log, lambda each: youngest(each) < timestamp)


def delete_beyond(log: Log, size: int) -> None:
    """Delete files from the first one on, as long as at least `size` bytes remain.

    Raises:
        OSError: The disk refused.
    """
    left = log.size

    def beyond(segment: Segment) -> bool:
        nonlocal left
        left -= segment.size
        return left >= size

    delete_while(log, beyond)


def delete_while(log: Log, goes: Callable[[Segment], bool]) -> None:
    """Delete files from the first one on while `goes` is true; only files that readers could see
    entirely.

    The last file may be deleted too.

    Raises:
        OSError: The disk refused.
    """
    full = log.segments if log.segments[-1].size else log.segments[:-1]
    shown = takewhile(lambda each: each.next <= log.high_watermark, full)
    if old := list(takewhile(goes, shown)):
        if old[-1] is log.segments[-1]:
            log.roll()
        log.delete_before(log.segments[len(old)].base)


def youngest(segment: Segment) -> int:
    """Return the largest timestamp of a segment, in ms.

    If no record has a timestamp, return the modification time of the file, as Kafka does.
    """
    return segment.newest if segment.newest >= 0 else int(segment.path.stat().st_mtime * 1000)


def compacted_to(log: Log) -> int:
    """Return the offset below which each key is there once."""
    return log.compacted[-1][0] if log.compacted else 0


def dirty(log: Log) -> list[Segment]:
    """Return the files that were never compacted."""
    limit = compacted_to(log)
    return [segment for segment in log.segments if segment.next > limit and segment.size]


def compaction(log: Log, now_ms: int, *, lag_ms: int, tombstones_ms: int) -> CompactionJob | None:
    """Return the next compaction of a log.

    Files are compacted if their records are at least `lag_ms` old. Tombstones are removed if they
    were compacted at least `tombstones_ms` ago.

    Returns:
        None if there is nothing to compact.

    Raises:
        OSError: The disk refused.
    """
    youngest_ms = now_ms - lag_ms
    dirty_from = compacted_to(log)
    stable = log.last_stable_offset

    def settled(segment: Segment) -> bool:
        return old(segment) and segment.next <= stable and not segment.damaged

    # Without a lag every segment is old enough, even if a producer's clock runs ahead.
    def old(segment: Segment) -> bool:
        return not segment.size or not lag_ms or youngest(segment) <= youngest_ms

    last = log.segments[-1]
    if last.size and old(last) and all(map(settled, log.segments[:-1])):
        # No roll behind a damaged file, which may stay as it is for ever.
        log.roll()
    closed = list(takewhile(settled, log.segments[:-1]))
    clean = sum(segment.base < dirty_from for segment in closed)
    sizes = list(accumulate(segment.size for segment in closed[clean:]))
    closed = closed[: clean + max(1, bisect_right(sizes, DIRTY_BYTES_MAX))]
    if not closed or log.segments[len(closed)].base <= dirty_from:
        return None
    expired = [offset for offset, at in log.compacted if at <= now_ms - tombstones_ms]
    return CompactionJob(
        tuple(closed),
        dirty_from,
        max(expired, default=0),
        log.segment_bytes,
        now_ms,
        tombstones_ms,
        tuple(log.producers.aborted),
    )


def leave_alone(log: Log, base: int) -> None:
    """Mark the file that begins at `base` as damaged: compaction skips that file and all
    behind it.
    """
    for segment in log.segments:
        segment.damaged |= segment.base == base


def put(log: Log, job: CompactionJob, done: Compacted) -> None:
    """Put the files of a compaction in place and note the compaction.

    If one file does not find its place, none behind it is put in place either. Example: a segment
    is deleted meanwhile; a marker that a later file no longer holds still ends a transaction in an
    earlier file.

    Raises:
        OSError: The disk refused.
    """
    placed = True
    for one in done.made:
        placed = placed and log.put(one)
        if not placed:
            one.path.unlink()
    if not placed:
        return
    times = log.compacted
    if len(times) > 1 and job.now_ms - times[-2][1] < job.tombstones_ms / TIMES:
        times.pop()  # the retention of tombstones below that offset counts from now on
    old = [each for each in times if each[1] <= job.now_ms - job.tombstones_ms]
    log.compacted = [*times[max(len(old) - 1, 0) :], (done.until, job.now_ms)]
    log.note_compacted()
