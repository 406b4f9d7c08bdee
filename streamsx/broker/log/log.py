"""One partition on disk: append, read, find by time, cut off at either end, recover.

A folder of segments with the same bytes that Kafka writes. Everything else (index, producers and
their transactions) is rebuilt from the headers of the batches at the start: there are no files that
could disagree. What clients may append is `appending`'s to say; what is to go, and when, is
`cleaner`'s.

A flush that fails takes the log out of service: the system gives up what it could not write and
calls it written, so that the next flush would succeed without it. The log is to be opened anew,
which begins at a note of how far it had been flushed: with `sync` nobody was told of more, and it
goes; else all of it is written once more.
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
"""Is told of so many bytes that readers see more."""
Timed = tuple[int, int]
"""Offset and timestamp."""
DurableEnd = tuple[int, int]
"""The end of a log at some time, and the bytes appended until then."""
START, UNFLUSHED, COMPACTED, MERGED = "start", "unflushed", "compacted", "merged"
"""Notes beside the segments: the first offset there is; behind which offset a flush failed, and
before which readers had been shown the log; up to which offset it was compacted, and when (ms);
where the files begin that stand in the one before them now, and are to go.
"""

logger = logging.getLogger(__name__)


class Log:
    """Offsets from `start` to before `end`; readers see those before `high_watermark`, or before
    `last_stable_offset` if they read what is committed.

    `waiters` (whether they do) are called once more when it closes.
    """

    def __init__(
        self, folder: Path, descriptors: Descriptors, *, segment_bytes: int, clean: bool, sync: bool
    ) -> None:
        """Opens or creates. After a crash (not `clean`) the last segment is verified and cut. With
        `sync` readers see only what was flushed. Raises OSError.
        """
        self.folder, self.segment_bytes, self.sync = folder, segment_bytes, sync
        self.failed = self.closed = False
        """Nobody is served from it: a flush failed, or its folder may be another's by now."""
        self.waiters: dict[Appended, bool] = {}
        self.producers = ProducerState()
        self._appended_bytes = self._flushed_bytes = 0  # since it was opened, and what was found
        self._told_bytes = [0, 0]  # to waiters, which do not and which do
        self._descriptors = descriptors
        folder.mkdir(exist_ok=True)
        for left in (*folder.glob("*.tmp"), *folder.glob(f"*{MADE}")):
            left.unlink()
        bases = sorted(int(path.stem) for path in folder.glob(SEGMENTS))
        self.segments = [Segment(folder, base, descriptors) for base in bases]
        unflushed, told = (*read_note(self.folder, UNFLUSHED), None, None)[:2]
        numbers = iter(read_note(self.folder, COMPACTED))
        self.compacted = list(zip(numbers, numbers, strict=False))
        """Up to which offset, and when (ms), as far as `cleaning` wants to know."""
        trusted = clean and unflushed is None
        limit = sys.maxsize if told is None else told
        while len(self.segments) > 1 and self.segments[-1].base > limit:
            self.segments.pop().delete()  # what begins there stays, empty: before it may be holes
        merged = set(read_note(self.folder, MERGED))
        for segment in tuple(self.segments):
            self._recover(segment, merged, limit, verify=not trusted)
        remove_note(folder, MERGED)  # nobody is to go by it once they are gone
        if self.segments and not trusted:
            flush_left(self.segments[-1], noted=unflushed is not None)
        self.start = max((0, *read_note(folder, START), *(s.base for s in self.segments[:1])))
        if not self.segments or self.end < self.start:  # deleted, and what follows was not flushed
            for segment in self.segments:
                segment.delete()
            self.segments = [Segment(folder, self.start, descriptors)]
        self._drop_below_start()
        if unflushed is not None:
            self._write_again(unflushed)
        self.flushed, self._flushed_bytes = self.mark()
        self._tell()

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.segments[-1].next

    @property
    def high_watermark(self) -> int:
        """Where readers stop."""
        return self.flushed if self.sync else self.end

    @property
    def last_stable_offset(self) -> int:
        """Before it every transaction has ended (KIP-98), in a marker that readers may see."""
        begun, end = self.producers.first_unstable, self.high_watermark
        return end if begun is None else max(self.start, min(begun.first, end))

    def readable_to(self, *, committed: bool) -> int:
        """Where these readers stop."""
        return self.last_stable_offset if committed else self.high_watermark

    def append(self, batch: memoryview, header: Header) -> int:
        """Appends a batch, whoever it is of, in place: it is changed. Gives the offset of its first
        record. Raises OSError, and then nothing changed.
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
                segment.delete()  # or what still fits into the last one would stand behind it
            raise
        if segment is not self.segments[-1]:
            self.segments.append(segment)
        self.producers.note(header, commits(header, batch), self._appended_bytes)
        self._appended_bytes += len(batch)
        self._tell()
        return header.base_offset

    def read(self, offset: int, most: int, *, committed: bool = False) -> bytes:
        """Batches from the one that holds this offset on: the first whole, the last perhaps cut;
        about as many bytes as asked for. Nothing where these readers stop.
        """
        limit = self.readable_to(committed=committed)
        if offset >= limit:
            return b""
        index = bisect_right(self.segments, offset, key=lambda segment: segment.next)
        segment = next((each for each in self.segments[index:] if each.size), None)
        if segment is None:  # all that there was is damaged
            return b""
        at = segment.locate(offset)
        end = segment.locate(limit) if limit < segment.next else segment.size
        return segment.read(at, most, end) if at < end else b""  # a hole, up to where they stop

    def aborted(self, offset: int, data: bytes) -> list[tuple[int, int]]:
        """(producer id, first offset) of what was aborted and reaches into what was read there."""
        return self.producers.aborted_within(offset, data)

    def at_time(
        self, timestamp: int, looked: Expansions | None = None, *, committed: bool = False
    ) -> Timed | None:
        """Offset and timestamp of the first record this old or younger, markers too; of a batch
        that is too much to look into that of the batch. Raises CorruptRecord.
        """
        limit, looked = self.readable_to(committed=committed), looked or Expansions()
        for segment in self.segments:
            for position in segment.since(timestamp):
                data = segment.read(position, 0, segment.size)
                for offset, time in times(data, self.start, looked):
                    if time >= timestamp:
                        return (offset, time) if offset < limit else None
        return None

    def newest(self, looked: Expansions | None = None, *, committed: bool = False) -> Timed | None:
        """Offset and timestamp of the youngest record."""
        youngest = max(segment.newest for segment in self.segments)
        return self.at_time(youngest, looked, committed=committed)

    def delete_before(self, offset: int) -> None:
        """Makes `start` this offset, if it is not behind it already. Raises OSError."""
        if offset <= self.start:
            return
        write_note(self.folder, START, [offset])
        self.start = offset
        self._drop_below_start()

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(segment.size for segment in self.segments)

    def roll(self) -> None:
        """Nothing is appended any more to the last file. Raises OSError."""
        if self.segments[-1].size:
            segment = self._next_segment()
            try:
                segment.create()  # "what is closed is compacted": the last file may have no holes
            except OSError:
                segment.delete()
                raise
            self.segments.append(segment)

    def put(self, made: CompactedFile) -> bool:
        """One file in place of some, if they are all there; whether they were. Raises OSError.

        It takes the place of the first of them, in one step; the others go behind it, the oldest
        first: "the process ends between": what is left of them is a tail, in which nothing stands
        that something later has overwritten.
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
            self.fail()  # "the folder cannot be flushed": memory is of the files that were there
            raise
        return True

    def note_compacted(self) -> None:
        """Remembers `compacted`. Raises OSError."""
        write_note(self.folder, COMPACTED, chain.from_iterable(self.compacted))

    def mark(self) -> DurableEnd:
        """What a flush that begins now will have reached when it ends."""
        return self.end, self._appended_bytes

    def flush(self) -> None:
        """To the disk, from any thread. Raises OSError."""
        if not self.closed:
            self.segments[-1].flush()

    def fail(self) -> None:
        """A flush did not succeed: out of service, until it is opened anew."""
        self.failed = True
        with suppress(OSError):  # the disk is not well; `note_failure` is asked again
            if not self.closed:
                self.note_failure()
        self._dismiss()

    def note_failure(self) -> None:
        """For whoever opens it: what is to be trusted, and what readers saw. Raises OSError."""
        write_note(self.folder, UNFLUSHED, [self.flushed, self.high_watermark])

    def flushed_to(self, mark: DurableEnd) -> None:
        """A flush that began here has ended: too late if the log failed, or a later one ended."""
        if self.failed or mark < (self.flushed, self._flushed_bytes):
            return
        self.flushed, self._flushed_bytes = mark
        self._tell()

    def close(self) -> None:
        """Lets go of the files; who waits for more has waited enough."""
        self.closed = True
        for segment in self.segments:
            self._descriptors.close(segment.path)
        self._dismiss()

    def _tell(self) -> None:
        """Who waits is told of what it sees more than before."""
        self.producers.settle(self.high_watermark)
        visible = self._flushed_bytes if self.sync else self._appended_bytes
        begun = self.producers.first_unstable
        told, stable = self._told_bytes, min(visible, begun.position) if begun else visible
        self._told_bytes = [visible, stable]
        for wake, committed in tuple(self.waiters.items()):
            if more := self._told_bytes[committed] - told[committed]:
                wake(more)

    def _dismiss(self) -> None:
        for wake in tuple(self.waiters):
            wake(sys.maxsize)

    def _next_segment(self) -> Segment:
        try:
            self.segments[-1].flush()  # so that only the last one can be torn
        except OSError:
            self.fail()
            raise
        return Segment(self.folder, self.end, self._descriptors)

    def _write_again(self, offset: int) -> None:
        for segment in self.segments:
            if segment.size and segment.next > offset:
                segment.rewrite()
        remove_note(self.folder, UNFLUSHED)
        logger.warning("log_opened_anew folder=%s flushed=%d end=%d", self.folder, offset, self.end)

    def _recover(self, segment: Segment, merged: set[int], limit: int, *, verify: bool) -> None:
        """Reads the headers. From the first batch on that is not whole the last file is cut, the
        rest of another one is left as it is, for no reader.
        """
        index = self.segments.index(segment)
        before, later = self.segments[:index], self.segments[index + 1 :]
        if before and segment.base in merged and segment.base < before[-1].next:
            self.segments.remove(segment)  # "the process ends amid `put`"
            segment.delete()
            return
        last, ends = not later, (each.base for each in later if each.base not in merged)
        end = next(ends, limit)
        self._note_batches(segment, end, last=last, check=last and verify)
        lost = segment.path.stat().st_size - segment.size
        if lost and last:
            os.truncate(segment.path, segment.size)
            logger.warning("log_cut file=%s at=%d bytes=%d", segment.path, segment.size, lost)
        elif lost:
            segment.damaged = True
            self._note_producers_behind(segment, end)
            logger.error("log_damaged file=%s at=%d bytes=%d", segment.path, segment.size, lost)

    def _note_batches(self, segment: Segment, end: int, *, last: bool, check: bool) -> None:
        """Up to the first that is none, or not where it was put: the last file has no holes."""
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
        """What was committed there would be found open, and aborted, and then compacted away."""
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
    """The numbers of a note beside the segments; none where it is not there. Raises OSError."""
    path = folder / name
    try:
        return [int(number) for number in path.read_bytes().split()] if path.exists() else []
    except ValueError:
        raise OSError(errno.EIO, "damaged: not the numbers of a note", str(path)) from None


def write_note(folder: Path, name: str, numbers: Iterable[int]) -> None:
    """All of it or nothing, also after a power cut. Raises OSError."""
    made = folder / f"{name}.tmp"
    with made.open("w") as file:
        file.write(" ".join(map(str, numbers)))
        file.flush()
        os.fsync(file.fileno())
    made.rename(folder / name)
    sync_folder(folder)


def remove_note(folder: Path, name: str) -> None:
    """If it is there: what was done by it is on the disk before it is gone. Raises OSError."""
    if (folder / name).exists():
        sync_folder(folder)
        (folder / name).unlink()
        sync_folder(folder)


def flush_left(segment: Segment, *, noted: bool) -> None:
    """What a killed broker left to the system, which tells of a failure only once: the next start
    is to know of it. Raises OSError.
    """
    try:
        segment.flush()
    except OSError:
        if not noted:
            with suppress(OSError):
                write_note(segment.path.parent, UNFLUSHED, [segment.base, segment.next])
        raise


def times(data: bytes, start: int, looked: Expansions) -> Iterable[Timed]:
    """Offset and timestamp of each record from this offset on, in the first batch."""
    _, _, header = next(scan(data, check=False))
    if header.control:
        return [(header.base_offset, header.max_timestamp)] if header.base_offset >= start else []
    if (batch := looked.columns(header, data, start)) is None:
        return [(max(start, header.base_offset), header.max_timestamp)]
    return zip(batch.offsets, batch.timestamps, strict=True)
