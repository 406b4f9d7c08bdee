"""Compaction of a log: of each key what was written last stays. On closed files alone, in a thread.

Two passes: which record of each key is the newest, of what was written since the last compaction,
or of as much of it as holds `KEYS_MAX` keys; then these files are written anew without what is
older. Offsets never change, so there are holes; a batch that loses nothing is copied as it is. A
tombstone stays for as long as readers may have to hear of it. Records without a key stay.

Records of aborted transactions go at once. A marker stays as long as a tombstone, and as long as
something of its transaction: without it, that would be found open when the log is read again. Of a
producer's last batches, which it may send again, at least the headers stay, as long as the producer
may go on from them, or something earlier of it stays. A batch that nobody can read, as it came from
its client, stays as it is. A file that is not what was written is left as it is, for readers to be
told.

What is made stands beside the files that it replaces: `Log.put` puts it there, in this order.
"""

import os
from bisect import bisect_right
from collections.abc import Generator
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from io import FileIO
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from streamsx.broker.log.producer_state import BATCHES_KEPT, PRODUCERS_MAX, AbortedTransaction
from streamsx.broker.log.segment import Segment, placed
from streamsx.errors import CorruptRecord
from streamsx.protocol.record_batch import (
    DAMAGES,
    HEADER_BYTES,
    LENGTH_END,
    Header,
    emptied,
    rebuild,
    records_within,
    scan,
)

PRODUCER_EXPIRY_MS = 24 * 60 * 60 * 1000
"""As Kafka's producer.id.expiration.ms."""
READ_BYTES = 1 << 20
"""At once, of a file that is read from its beginning."""
MADE = ".made"
"""The end of the name of what replaces a file."""
KEY_BYTES = 32
"""Of a longer key a digest is kept, which is a byte longer, so that it is no other's key: "eleven
kilobytes hold eight keys of 40 MiB".
"""
KEYS_MAX = 1 << 19
"""Learned at once, and those of one batch more; 145 bytes each."""


class FileDamaged(CorruptRecord):
    """Of the file that begins at `base`: it is not what was written."""

    def __init__(self, base: int, why: str) -> None:
        super().__init__(why)
        self.base = base


class CompactionJob(NamedTuple):
    """`files` in their order: nothing is appended to them any more."""

    files: tuple[Segment, ...]
    dirty_from: int
    """From this offset on nothing was compacted yet."""
    forgotten_below: int
    """Tombstones have been there for long enough."""
    segment_bytes: int
    now_ms: int
    tombstones_ms: int
    aborted: tuple[AbortedTransaction, ...] = ()
    """All that reach into these files."""


class CompactedFile(NamedTuple):
    """One file in place of some, by the offsets at which they begin; `segment` when it is there."""

    bases: tuple[int, ...]
    path: Path
    segment: Segment


class Compacted(NamedTuple):
    """What is to be replaced, and up to which offset each key is there once then."""

    made: list[CompactedFile]
    until: int


@dataclass(slots=True)
class CompactionFilter:
    """What stays, asked in the order of the log."""

    job: CompactionJob
    newest: dict[bytes, int] = field(default_factory=dict)
    until: int = 0
    """Of what was written before it."""
    full: bool = False
    """There are more keys, from there on."""
    latest: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Where the last batches of each producer id begin, which it may send again; of as many as a
    log remembers, the one that wrote last at the end.
    """
    begun: set[int] = field(default_factory=set)
    """Producer ids of whose transaction something stays, until its marker."""
    staying: set[int] = field(default_factory=set)
    """Producer ids of which something stays, records or not."""
    ended: dict[int, list[AbortedTransaction]] = field(default_factory=dict)
    """The aborted ones of each producer id."""

    def __post_init__(self) -> None:
        self.until = self.job.dirty_from
        for each in self.job.aborted:
            self.ended.setdefault(each.producer_id, []).append(each)

    def learn(self, file: Segment) -> None:
        """Which of its records are the newest so far. Raises OSError, FileDamaged."""
        found, start = 0, file.base
        try:
            for header, batch in batches(file.path, check=True):  # or damage gets a right checksum
                if not placed(header, start, file.next):
                    raise CorruptRecord(f"a batch at {header.base_offset}, from {start} on")
                found, start = found + len(batch), header.last_offset + 1
                self._hear(header, batch)
        except CorruptRecord as error:
            raise FileDamaged(file.base, f"{file.path}: {error}") from None
        if found != file.size:
            why = f"{found} bytes of whole batches, not {file.size}: it is shorter than it was"
            raise FileDamaged(file.base, f"{file.path}: {why}")

    def _hear(self, header: Header, batch: memoryview) -> None:
        if header.control:
            return
        if (producer_id := header.producer_id) >= 0:
            last = (*self.latest.pop(producer_id, ()), header.base_offset)
            self.latest[producer_id] = last[-BATCHES_KEPT:]
            if len(self.latest) > PRODUCERS_MAX:
                del self.latest[next(iter(self.latest))]
        self.full |= len(self.newest) >= KEYS_MAX
        if header.last_offset >= self.until and not (self.full or self.aborted(header)):
            self.newest |= newest_of(header, batch)
            self.until = header.last_offset + 1

    def aborted(self, header: Header) -> bool:
        """Its records were never to be read."""
        its, at = self.ended.get(header.producer_id, ()), header.base_offset
        index = bisect_right(its, at, key=attrgetter("last"))
        return header.transactional and index < len(its) and its[index].first <= at

    def of(self, header: Header, batch: memoryview) -> bytes | bytearray | memoryview:
        """What of a batch stays: itself, if that is all."""
        if header.control:
            begun = header.producer_id in self.begun
            self.begun.discard(header.producer_id)
            return batch if begun or header.base_offset >= self.job.forgotten_below else b""
        left = b"" if self.aborted(header) else self._left(header, batch)
        if not left and not self._last_word(header):
            return b""
        self.staying.add(header.producer_id)
        if header.transactional:
            self.begun.add(header.producer_id)
        return left or emptied(header)

    def _left(self, header: Header, batch: memoryview) -> bytes | bytearray | memoryview:
        """The records that stay; all of a batch that was damaged before it was written."""
        try:
            kept = [record for record in records_within(header, batch) if self._stays(record)]
            if len(kept) == header.records:
                return batch
            return rebuild(header, kept) if kept else b""
        except DAMAGES:
            return batch

    def _last_word(self, header: Header) -> bool:
        """Of a producer that may still be there, and goes on from these sequences: without it, an
        earlier batch would be taken for the last.
        """
        alive = header.max_timestamp > self.job.now_ms - PRODUCER_EXPIRY_MS
        known = alive or header.producer_id in self.staying
        return known and header.base_offset in self.latest.get(header.producer_id, ())

    def _stays(self, record: Any) -> bool:
        """Of the same key there is none newer, and a tombstone is still to be heard of."""
        if record.key is None:
            return True
        if self.newest.get(remembered(record.key), -1) > record.offset:
            return False
        return record.value is not None or record.offset >= self.job.forgotten_below


def remembered(key: bytes) -> bytes:
    """By what a key is remembered."""
    return key if len(key) <= KEY_BYTES else blake2b(key, digest_size=KEY_BYTES + 1).digest()


def newest_of(header: Header, batch: memoryview) -> dict[bytes, int]:
    """Where each of its keys stands last; nothing of a batch that was damaged before it was
    written, for nobody reads what stands in it.
    """
    try:
        found = records_within(header, batch)
        return {remembered(each.key): each.offset for each in found if each.key is not None}
    except DAMAGES:
        return {}


def compact(job: CompactionJob) -> Compacted:
    """Made is nothing, where nothing can go. Raises OSError, FileDamaged."""
    sieve, files, made = CompactionFilter(job), list[Segment](), list[CompactedFile]()
    for file in job.files:
        sieve.learn(file)
        files.append(file)
        if sieve.full:
            break
    until = sieve.until if sieve.full else files[-1].next
    with ExitStack() as failed:  # "the disk is full": everybody else needs the room
        for file in files:
            failed.callback(beside(file.path).unlink, missing_ok=True)
        while files:
            made += rewritten(files, sieve)
        failed.pop_all()
    return Compacted(made, until)


def beside(path: Path) -> Path:
    """Where stands what is to replace this file and perhaps some behind it."""
    return path.with_name(path.name + MADE)


def rewritten(files: list[Segment], sieve: CompactionFilter) -> list[CompactedFile]:
    """Takes the first of the files, and as many more as fit into one with it. It is as old as the
    last of them: that is the age of records without a time.
    """
    bases, changed, age_ns = list[int](), False, 0
    path, segment = beside(files[0].path), files[0].anew()
    with path.open("wb") as out:
        while files and (not bases or segment.size + files[0].size <= sieve.job.segment_bytes):
            source = files.pop(0)
            changed |= copied(source.path, out, sieve, segment)
            bases.append(source.base)
            age_ns = source.path.stat().st_mtime_ns
        out.flush()
        os.utime(out.fileno(), ns=(age_ns, age_ns))
        os.fsync(out.fileno())
    if changed or len(bases) > 1:
        return [CompactedFile(tuple(bases), path, segment)]
    path.unlink()
    return []


def copied(source: Path, out: BinaryIO, sieve: CompactionFilter, segment: Segment) -> bool:
    """Whether something stayed behind."""
    changed = False
    for header, batch in batches(source):
        left = sieve.of(header, batch)
        changed |= left is not batch
        out.write(left)
        for _, size, now in scan(left, check=False):
            segment.note(size, now)
    return changed


def batches(
    path: Path, at: int = 0, *, check: bool = False
) -> Generator[tuple[Header, memoryview]]:
    """Of a file, from this byte on. Raises OSError, and CorruptRecord at the first that is none.

    Read, not mapped: "a sector cannot be read": SIGBUS would end the broker, at each start again.
    """
    most = READ_BYTES
    with path.open("rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        while data := read_at(file, most, at):
            whole = 0
            for start, size, header in scan(data, check=check):
                whole = start + size
                yield header, memoryview(data)[start:whole]
            at, most = at + whole, READ_BYTES if whole else batch_bytes(data)
            if not whole and not len(data) < most <= end - at:
                return  # it is cut short, or its length is damaged: no memory for that


def behind(path: Path, at: int) -> Generator[tuple[Header, memoryview]]:
    """The sound batches behind one that is damaged, as far as the lengths of those are right."""
    damaged = True
    while damaged:
        with path.open("rb", buffering=0) as file:
            size = batch_bytes(read_at(file, HEADER_BYTES, at))
        at += size
        damaged = False
        try:
            for header, batch in batches(path, at, check=True) if size >= HEADER_BYTES else ():
                yield header, batch
                at += len(batch)
        except CorruptRecord:
            damaged = True


def batch_bytes(data: bytes) -> int:
    """How many bytes the batch has that begins with these."""
    if len(data) < LENGTH_END:
        return HEADER_BYTES
    return LENGTH_END + int.from_bytes(data[LENGTH_END - 4 : LENGTH_END], signed=True)


def read_at(file: FileIO, most: int, at: int) -> bytes:
    """As many bytes from there on, or those up to the end. Raises OSError, with the file's name."""
    try:
        return os.pread(file.fileno(), most, at)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file.name)) from error
