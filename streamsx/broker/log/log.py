"""Log of one partition on disk: append, read, search by time, truncate at either end, recover.

A log is a folder of segments with the same bytes that Kafka writes. The index, the producer state
and the transactions are rebuilt from the batch headers at the start, so no file can disagree with
the segments. Not here: which batches clients may append (`appending`), which data is removed, and
when (`cleaner`).

A failed flush takes the log out of service: the operating system drops the pages that it could not
write and marks them clean, so the next flush would succeed without them. The log must be reopened.
Reopening starts from a note that holds the offset up to which the log was flushed. With `sync` no
client was shown a record behind that offset, so the rest is removed; without `sync` all of the rest
is written once more.
"""

import errno
import logging
import os
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path

from streamsx.broker.log.compaction import MADE, CompactedFile, batches, behind
from streamsx.broker.log.expanding import Expansions
from streamsx.broker.log.producer_state import ProducerState
from streamsx.broker.log.segment import LEADER_EPOCH, SEGMENTS, Descriptors, Segment, placed
from streamsx.errors import CorruptRecord
from streamsx.protocol.record_batch import Header, commits, place, scan
from streamsx.state.disk import sync_folder

Appended = Callable[[int], None]
"""Callback with the number of bytes that became visible to readers."""
Timed = tuple[int, int]
"""Offset and timestamp."""
DurableEnd = tuple[int, int]
"""End of a log at one time, and the number of bytes appended until then."""
START = "start"
"""Note beside the segments: the first offset of the log."""
UNFLUSHED = "unflushed"
"""Note after a failed flush: the offset up to which the log was flushed, and the offset up to which
readers had seen the log.
"""
COMPACTED = "compacted"
"""Note of compactions: pairs of the offset up to which the log was compacted, and the time (ms)."""
MERGED = "merged"
"""Note of a merge: base offsets of the files whose data moved into the file before them. These
files are to be deleted.
"""

logger = logging.getLogger(__name__)
CUT = (
    "File %s was cut at byte %d: its last %d bytes are of a batch that was not written as a whole; "
    "no action needed."
)
DAMAGED = (
    "File %s is damaged from byte %d on: %d bytes are read no more. Their records are lost, unless "
    "the file is repaired from a copy."
)
WRITTEN_AGAIN = (
    "The log in %s was opened again after a failed flush: records from offset %d on were written "
    "again, up to %d; no action needed."
)


class Log:
    """Log of one partition: the offsets from `start` to before `end`.

    Readers see offsets before `high_watermark`, or before `last_stable_offset` if they read
    committed records only. `waiters` maps each callback to whether its reader reads committed
    records only; every callback is called once more when the log closes.
    """

    def __init__(
        self, folder: Path, descriptors: Descriptors, *, segment_bytes: int, clean: bool, sync: bool
    ) -> None:
        """Open the log, or create it.

        After a crash (not `clean`) the last segment is verified and truncated. With `sync` readers
        see flushed records only.

        Raises:
            OSError: The disk refused.
        """
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.sync = sync
        self.failed = self.closed = False
        """Set when a flush failed, or when the folder may belong to another log by now. No request
        is served from such a log.
        """
        self.waiters: dict[Appended, bool] = {}
        self.producers = ProducerState()
        self._appended_bytes = self._flushed_bytes = 0  # bytes found at the start count too
        # Bytes announced to waiters: to those that read everything, to those that read committed.
        self._announced_bytes = [0, 0]
        self._descriptors = descriptors
        folder.mkdir(exist_ok=True)
        for left in (*folder.glob("*.tmp"), *folder.glob(f"*{MADE}")):
            left.unlink()
        bases = sorted(int(path.stem) for path in folder.glob(SEGMENTS))
        self.segments = [Segment(folder, base, descriptors) for base in bases]
        unflushed, seen = (*read_note(self.folder, UNFLUSHED), None, None)[:2]
        numbers = iter(read_note(self.folder, COMPACTED))
        self.compacted = list(zip(numbers, numbers, strict=False))
        """Pairs of the offset up to which the log was compacted, and the time (ms), as many as
        `cleaning` needs.
        """
        trusted = clean and unflushed is None
        limit = sys.maxsize if seen is None else seen
        while len(self.segments) > 1 and self.segments[-1].base > limit:
            # A segment that begins exactly at the limit stays, empty: the offsets before the limit
            # may be a hole.
            self.segments.pop().delete()
        merged = set(read_note(self.folder, MERGED))
        for segment in tuple(self.segments):
            self._recover(segment, merged, limit, verify=not trusted)
        remove_note(folder, MERGED)  # the merged files are gone, so the note is stale
        if self.segments and not trusted:
            flush_left(self.segments[-1], noted=unflushed is not None)
        self.start = max((0, *read_note(folder, START), *(s.base for s in self.segments[:1])))
        # `end < start`: records up to `start` were deleted, and those behind were not flushed.
        if not self.segments or self.end < self.start:
            for segment in self.segments:
                segment.delete()
            self.segments = [Segment(folder, self.start, descriptors)]
        self._drop_below_start()
        if unflushed is not None:
            self._write_again(unflushed)
        self.flushed, self._flushed_bytes = self.mark()
        self._wake_readers()

    @property
    def end(self) -> int:
        """Return the offset of the next record."""
        return self.segments[-1].next

    @property
    def high_watermark(self) -> int:
        """Return the offset before which readers may read."""
        return self.flushed if self.sync else self.end

    @property
    def last_stable_offset(self) -> int:
        """Return the offset before which every transaction has ended (KIP-98).

        The marker that ended a transaction must be visible to readers too.
        """
        begun = self.producers.first_unstable
        end = self.high_watermark
        return end if begun is None else max(self.start, min(begun.first, end))

    def readable_to(self, *, committed: bool) -> int:
        """Return the offset before which readers of this isolation level may read."""
        return self.last_stable_offset if committed else self.high_watermark

    def append(self, batch: memoryview, header: Header) -> int:
        """Append a batch of any origin, and set its offsets in place: `batch` is changed.

        Returns:
            The offset of the first record of the batch.

        Raises:
            OSError: The disk refused. The log is unchanged.
        """
        segment = self.segments[-1]
        if segment.size and segment.size + len(batch) > self.segment_bytes:
            segment = self._next_segment()
        place(batch, segment.next, LEADER_EPOCH)
        header = header._replace(base_offset=segment.next)
        try:
            segment.append(batch, header)
        except OSError:
            if segment is not self.segments[-1]:
                # An empty new segment must go: a smaller batch may still fit into the last segment
                # and would then stand behind the base offset of the new one.
                segment.delete()
            raise
        if segment is not self.segments[-1]:
            self.segments.append(segment)
        self.producers.note(header, commits(header, batch), self._appended_bytes)
        self._appended_bytes += len(batch)
        self._wake_readers()
        return header.base_offset

    def read(self, offset: int, most: int, *, committed: bool = False) -> bytes:
        """Read about `most` bytes of batches, from the batch that contains `offset` on.

        The first batch is complete, the last may be cut short.

        Returns:
            The bytes; empty if readers of this isolation level may not read that far.
        """
        limit = self.readable_to(committed=committed)
        if offset >= limit:
            return b""
        index = bisect_right(self.segments, offset, key=lambda segment: segment.next)
        segment = next((each for each in self.segments[index:] if each.size), None)
        if segment is None:  # all segments from there on are damaged
            return b""
        at = segment.locate(offset)
        end = segment.locate(limit) if limit < segment.next else segment.size
        return segment.read(at, most, end) if at < end else b""  # a hole up to the limit

    def aborted(self, offset: int, data: bytes) -> list[tuple[int, int]]:
        """Return (producer id, first offset) of the aborted transactions that overlap `data`.

        `data` are the bytes that were read at `offset`.
        """
        return self.producers.aborted_within(offset, data)

    def at_time(
        self, timestamp: int, looked: Expansions | None = None, *, committed: bool = False
    ) -> Timed | None:
        """Return offset and timestamp of the first record with this timestamp or a later one.

        Markers count as records. A batch that is too large to expand answers with the offset and
        the timestamp of the batch.

        Returns:
            None if there is no such record before the limit of these readers.

        Raises:
            CorruptRecord: A batch is damaged.
        """
        limit = self.readable_to(committed=committed)
        looked = looked or Expansions()
        for segment in self.segments:
            for position in segment.since(timestamp):
                data = segment.read(position, 0, segment.size)
                for offset, time in times(data, self.start, looked):
                    if time >= timestamp:
                        return (offset, time) if offset < limit else None
        return None

    def newest(self, looked: Expansions | None = None, *, committed: bool = False) -> Timed | None:
        """Return offset and timestamp of the record with the largest timestamp."""
        youngest = max(segment.newest for segment in self.segments)
        return self.at_time(youngest, looked, committed=committed)

    def delete_before(self, offset: int) -> None:
        """Raise `start` to this offset; do nothing if `start` is not smaller.

        Raises:
            OSError: The disk refused.
        """
        if offset <= self.start:
            return
        write_note(self.folder, START, [offset])
        self.start = offset
        self._drop_below_start()

    @property
    def size(self) -> int:
        """Return the size of all segments in bytes."""
        return sum(segment.size for segment in self.segments)

    def roll(self) -> None:
        """Close the last segment for appends and begin a new one, unless the last segment is empty.

        Raises:
            OSError: The disk refused.
        """
        if self.segments[-1].size:
            segment = self._next_segment()
            try:
                # The file must exist now: the segment before it may be compacted, and at recovery
                # the last file may have no holes.
                segment.create()
            except OSError:
                segment.delete()
                raise
            self.segments.append(segment)

    def put(self, made: CompactedFile) -> bool:
        """Replace segments by one compacted file, if all of them still exist.

        The compacted file takes the place of the first of them by one rename; the others are
        deleted afterwards, the oldest first. If the process ends in between, the files that remain
        are a tail: no record in them was overwritten by a record of a file that is gone already.

        Returns:
            Whether the segments were replaced.

        Raises:
            OSError: The disk refused.
        """
        found = [segment for segment in self.segments[:-1] if segment.base in made.bases]
        if tuple(segment.base for segment in found) != made.bases:
            return False
        if len(found) > 1:
            write_note(self.folder, MERGED, made.bases[1:])
        self._descriptors.close(found[0].path)
        with ExitStack() as failed:
            failed.callback((self.folder / MERGED).unlink, missing_ok=True)
            made.path.rename(found[0].path)
            failed.pop_all()
        try:
            sync_folder(self.folder)
            index = self.segments.index(found[0])
            self.segments[index : index + len(found)] = [made.segment]
            self.producers.forget_aborted(found[-1].next)
            for old in found[1:]:
                old.delete()
        except OSError:
            # If the folder cannot be flushed, the state in memory may describe the old files.
            self.fail()
            raise
        return True

    def note_compacted(self) -> None:
        """Write the note of compactions from `compacted`.

        Raises:
            OSError: The disk refused.
        """
        write_note(self.folder, COMPACTED, chain.from_iterable(self.compacted))

    def mark(self) -> DurableEnd:
        """Return the end up to which a flush that begins now will have flushed."""
        return self.end, self._appended_bytes

    def flush(self) -> None:
        """Flush the last segment to the disk; callable from any thread.

        Raises:
            OSError: The disk refused.
        """
        if not self.closed:
            self.segments[-1].flush()

    def fail(self) -> None:
        """Take the log out of service after a failed flush; reopening restores service."""
        self.failed = True
        with suppress(OSError):  # the disk is failing; `note_failure` is called again later
            if not self.closed:
                self.note_failure()
        self._wake_all()

    def note_failure(self) -> None:
        """Write down for the next start which offsets are flushed and which offsets readers saw.

        Raises:
            OSError: The disk refused.
        """
        write_note(self.folder, UNFLUSHED, [self.flushed, self.high_watermark])

    def flushed_to(self, mark: DurableEnd) -> None:
        """Record that a flush which began at `mark` has ended.

        The call has no effect if the log failed, or if a later flush ended before.
        """
        if self.failed or mark < (self.flushed, self._flushed_bytes):
            return
        self.flushed, self._flushed_bytes = mark
        self._wake_readers()

    def close(self) -> None:
        """Close the files and wake all waiting readers."""
        self.closed = True
        for segment in self.segments:
            self._descriptors.close(segment.path)
        self._wake_all()

    def _wake_readers(self) -> None:
        """Wake waiting readers with the number of bytes that became visible to them."""
        self.producers.settle(self.high_watermark)
        visible = self._flushed_bytes if self.sync else self._appended_bytes
        begun = self.producers.first_unstable
        before = self._announced_bytes
        stable = min(visible, begun.position) if begun else visible
        self._announced_bytes = [visible, stable]
        for wake, committed in tuple(self.waiters.items()):
            if more := self._announced_bytes[committed] - before[committed]:
                wake(more)

    def _wake_all(self) -> None:
        for wake in tuple(self.waiters):
            wake(sys.maxsize)

    def _next_segment(self) -> Segment:
        try:
            self.segments[-1].flush()  # so that only the last segment can be torn
        except OSError:
            self.fail()
            raise
        return Segment(self.folder, self.end, self._descriptors)

    def _write_again(self, offset: int) -> None:
        for segment in self.segments:
            if segment.size and segment.next > offset:
                segment.rewrite()
        remove_note(self.folder, UNFLUSHED)
        logger.warning(WRITTEN_AGAIN, self.folder, offset, self.end)

    def _recover(self, segment: Segment, merged: set[int], limit: int, *, verify: bool) -> None:
        """Read the batch headers of a segment and rebuild index and producer state.

        The last file is truncated at the first batch that is not complete. Any other file keeps its
        damaged rest, which no reader gets.
        """
        index = self.segments.index(segment)
        before = self.segments[:index]
        later = self.segments[index + 1 :]
        if before and segment.base in merged and segment.base < before[-1].next:
            self.segments.remove(segment)  # the process ended in the middle of `put`
            segment.delete()
            return
        last = not later
        ends = (each.base for each in later if each.base not in merged)
        end = next(ends, limit)
        self._note_batches(segment, end, last=last, check=last and verify)
        lost = segment.path.stat().st_size - segment.size
        if lost and last:
            os.truncate(segment.path, segment.size)
            logger.warning(CUT, segment.path, segment.size, lost)
        elif lost:
            segment.damaged = True
            self._note_producers_behind(segment, end)
            logger.error(DAMAGED, segment.path, segment.size, lost)

    def _note_batches(self, segment: Segment, end: int, *, last: bool, check: bool) -> None:
        """Note the batches of a segment, up to the first one that is damaged or misplaced.

        A gap between two offsets is an error in the last file: only compaction makes gaps, and the
        last file is never compacted.
        """
        with suppress(CorruptRecord):
            for header, batch in batches(segment.path, check=check):
                hole = header.base_offset > segment.next
                if not placed(header, segment.next, end) or (last and hole):
                    break
                self.producers.note(header, commits(header, batch), self._appended_bytes)
                self._appended_bytes += len(batch)
                segment.note(len(batch), header)
        self.producers.settle(segment.next)

    def _note_producers_behind(self, segment: Segment, end: int) -> None:
        """Note the producers of the sound batches behind the damage.

        Without their markers, transactions that were committed there would be found open, then
        aborted, and then compacted away.
        """
        with suppress(CorruptRecord):
            for header, batch in behind(segment.path, segment.size):
                if placed(header, segment.next, end):
                    self.producers.note(header, commits(header, batch), self._appended_bytes)
        self.producers.forget_open(segment.next)

    def _drop_below_start(self) -> None:
        while len(self.segments) > 1 and self.segments[1].base <= self.start:
            self.segments.pop(0).delete()
        self.producers.forget_aborted(self.start)


def read_note(folder: Path, name: str) -> list[int]:
    """Return the numbers of a note beside the segments; none if the note does not exist.

    Raises:
        OSError: The note cannot be read, or is damaged.
    """
    path = folder / name
    try:
        return [int(number) for number in path.read_bytes().split()] if path.exists() else []
    except ValueError:
        raise OSError(errno.EIO, "damaged: not the numbers of a note", str(path)) from None


def write_note(folder: Path, name: str, numbers: Iterable[int]) -> None:
    """Write a note atomically: after a power cut the note is there completely or not at all.

    Raises:
        OSError: The disk refused.
    """
    made = folder / f"{name}.tmp"
    with made.open("w") as file:
        file.write(" ".join(map(str, numbers)))
        file.flush()
        os.fsync(file.fileno())
    made.rename(folder / name)
    sync_folder(folder)


def remove_note(folder: Path, name: str) -> None:
    """Remove a note if there is one, after flushing the folder: the changes that the note stands
    for reach the disk before the note is gone.

    Raises:
        OSError: The disk refused.
    """
    if (folder / name).exists():
        sync_folder(folder)
        (folder / name).unlink()
        sync_folder(folder)


def flush_left(segment: Segment, *, noted: bool) -> None:
    """Flush the pages that a killed broker left to the operating system.

    The system reports a failed write only once, so a failure is noted for the next start.

    Raises:
        OSError: The disk refused.
    """
    try:
        segment.flush()
    except OSError:
        if not noted:
            with suppress(OSError):
                write_note(segment.path.parent, UNFLUSHED, [segment.base, segment.next])
        raise


def times(data: bytes, start: int, looked: Expansions) -> Iterable[Timed]:
    """Return offset and timestamp of each record of the first batch, from offset `start` on."""
    _, _, header = next(scan(data, check=False))
    if header.control:
        return [(header.base_offset, header.max_timestamp)] if header.base_offset >= start else []
    if (batch := looked.columns(header, data, start)) is None:
        return [(max(start, header.base_offset), header.max_timestamp)]
    return zip(batch.offsets, batch.timestamps, strict=True)
