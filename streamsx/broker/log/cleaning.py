"""What of a log is to go: files of old records, files beyond a size, records that were overwritten.

As Kafka has it, but that a log is compacted up to its last stable offset: its last file is closed
for it, so that a small log is no longer than a few times its keys. When the cleaner comes is its
own to say.
"""

from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate, takewhile

from streamsx.broker.log.compaction import Compacted, CompactionJob
from streamsx.broker.log.log import Log
from streamsx.broker.log.segment import Segment

DIRTY_BYTES_MAX = 256 << 20
"""At once, of what was never compacted."""
TIMES = 16
"""A tombstone stays for at most a 16th longer than it has to: so many times are remembered."""


def roll_long(log: Log, span_ms: int) -> None:
    """Closes the last file if its records are further apart, however old they are: "records of
    years ago are written": each would be old enough for a file of its own. Raises OSError.
    """
    last = log.segments[-1]
    if 0 <= last.oldest < last.newest - span_ms:
        log.roll()


def delete_older(log: Log, timestamp: int) -> None:
    """Files of which all is older, from the first one on. Raises OSError."""
    delete_while(log, lambda each: youngest(each) < timestamp)


def delete_beyond(log: Log, size: int) -> None:
    """Files from the first one on, while so many bytes stay without it. Raises OSError."""
    left = log.size

    def beyond(segment: Segment) -> bool:
        nonlocal left
        left -= segment.size
        return left >= size

    delete_while(log, beyond)


def delete_while(log: Log, goes: Callable[[Segment], bool]) -> None:
    """Files from the first one on, of what readers could see; the last one too. Raises OSError."""
    full = log.segments if log.segments[-1].size else log.segments[:-1]
    shown = takewhile(lambda each: each.next <= log.high_watermark, full)
    if old := list(takewhile(goes, shown)):
        if old[-1] is log.segments[-1]:
            log.roll()
        log.delete_before(log.segments[len(old)].base)


def youngest(segment: Segment) -> int:
    """The time of its youngest record; where none has one, of the file, as Kafka does."""
    return segment.newest if segment.newest >= 0 else int(segment.path.stat().st_mtime * 1000)


def compacted_to(log: Log) -> int:
    """Each key is there once below this offset."""
    return log.compacted[-1][0] if log.compacted else 0


def dirty(log: Log) -> list[Segment]:
    """Files that were never compacted."""
    limit = compacted_to(log)
    return [segment for segment in log.segments if segment.next > limit and segment.size]


def compaction(log: Log, now_ms: int, *, lag_ms: int, tombstones_ms: int) -> CompactionJob | None:
    """What there is to do: of records that are no younger than the lag, and of tombstones that were
    compacted so long ago. None if there is nothing. Raises OSError.
    """
    youngest_ms, dirty_from, stable = now_ms - lag_ms, compacted_to(log), log.last_stable_offset

    def settled(segment: Segment) -> bool:
        return old(segment) and segment.next <= stable and not segment.damaged

    def old(segment: Segment) -> bool:  # "the clock of a producer is wrong": without a lag, any is
        return not segment.size or not lag_ms or youngest(segment) <= youngest_ms

    last = log.segments[-1]
    if last.size and old(last) and all(map(settled, log.segments[:-1])):
        log.roll()  # but not behind what may stay as it is for ever: "a file is damaged"
    closed = list(takewhile(settled, log.segments[:-1]))
    clean = sum(segment.base < dirty_from for segment in closed)
    sizes = list(accumulate(segment.size for segment in closed[clean:]))
    closed = closed[: clean + max(1, bisect_right(sizes, DIRTY_BYTES_MAX))]
    if not closed or log.segments[len(closed)].base <= dirty_from:
        return None
    heard = [offset for offset, at in log.compacted if at <= now_ms - tombstones_ms]
    return CompactionJob(
        tuple(closed), dirty_from, max(heard, default=0), log.segment_bytes, now_ms, tombstones_ms,
        tuple(log.producers.aborted),
    )  # fmt: skip


def leave_alone(log: Log, base: int) -> None:
    """The file that begins there is damaged: it is not compacted, nor what stands behind it."""
    for segment in log.segments:
        segment.damaged |= segment.base == base


def put(log: Log, job: CompactionJob, done: Compacted) -> None:
    """What compaction has made takes its place. Raises OSError.

    All of it, or nothing behind the first that finds no place: "a file was deleted meanwhile": a
    marker that is gone from a later one still ends what an earlier one holds.
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
        times.pop()  # tombstones below it count from now on
    old = [each for each in times if each[1] <= job.now_ms - job.tombstones_ms]
    log.compacted = [*times[max(len(old) - 1, 0) :], (done.until, job.now_ms)]
    log.note_compacted()
