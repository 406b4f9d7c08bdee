"""Log compaction: keeps the newest record of each key. Works on closed files only, in a thread.

Compaction takes two passes. The first pass finds the newest record of each key among the records
that were written since the last compaction, or among as many of them as hold `KEYS_MAX` keys. The
second pass rewrites these files without the older records. Offsets never change, so holes appear; a
batch that loses nothing is copied unchanged. A tombstone stays as long as readers may need it.
Records without a key stay.

Records of aborted transactions are removed at once. A marker stays as long as a tombstone, and as
long as any batch of its transaction: without the marker, the transaction would be found open when
the log is read again. A producer may send its last batches again. At least their headers stay, as
long as the producer may still continue from them, or as long as an earlier batch of the producer
stays. A batch that was already unreadable when its client sent it is kept unchanged. A file whose
content is not what was written stays as it is, so that readers get the error.

The new files stand beside the files that they replace; `Log.put` puts them in place, in this order.
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
"""Default of Kafka's producer.id.expiration.ms."""
READ_BYTES = 1 << 20
"""Bytes per read of a file that is read from its beginning."""
MADE = ".made"
"""Suffix of a file that replaces another."""
KEY_BYTES = 32
"""Longest key that is kept itself. For a longer key a digest is kept, which is one byte longer, so
that it equals no other key: 11 KB of log may hold eight keys of 40 MiB.
"""
KEYS_MAX = 1 << 19
"""Limit of keys per compaction, apart from the rest of the last batch; 145 bytes each."""


class FileDamaged(CorruptRecord):
    """Damage in the file that begins at `base`: the content is not the one that was written."""

    def __init__(self, base: int, why: str) -> None:
        super().__init__(why)
        self.base = base


class CompactionJob(NamedTuple):
    """Compaction to carry out. `files` are in the order of the log and get no more appends."""

    files: tuple[Segment, ...]
    dirty_from: int
    """Offset from which on no record was compacted yet."""
    forgotten_below: int
    """Offset below which tombstones have been kept long enough."""
    segment_bytes: int
    now_ms: int
    tombstones_ms: int
    aborted: tuple[AbortedTransaction, ...] = ()
    """All aborted transactions that overlap these files."""


class CompactedFile(NamedTuple):
    """New file in place of the segments with these base offsets; `segment` is the segment
    it will be.
    """

    bases: tuple[int, ...]
    path: Path
    segment: Segment


class Compacted(NamedTuple):
    """Result of a compaction: the new files, and the offset up to which each key is there once
    then.
    """

    made: list[CompactedFile]
    until: int


@dataclass(slots=True)
class CompactionFilter:
    """Decision for each batch and record, in the order of the log, to keep or to remove."""

    job: CompactionJob
    newest: dict[bytes, int] = field(default_factory=dict)
    until: int = 0
    """Offset up to which `newest` is complete."""
    full: bool = False
    """Set when the table of keys is full: keys from `until` on are not in `newest`."""
    latest: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Base offsets of the last batches of each producer id, which the producer may send again.
    Holds as many producers as a log remembers; the one that wrote last is at the end.
    """
    begun: set[int] = field(default_factory=set)
    """Producer ids whose transaction keeps a batch; its marker must stay too."""
    staying: set[int] = field(default_factory=set)
    """Producer ids of which a batch stays, with or without records."""
    ended: dict[int, list[AbortedTransaction]] = field(default_factory=dict)
    """Aborted transactions by producer id."""

    def __post_init__(self) -> None:
        self.until = self.job.dirty_from
        for each in self.job.aborted:
            self.ended.setdefault(each.producer_id, []).append(each)

    def learn(self, file: Segment) -> None:
        """Learn the newest record of each key from one file.

        Raises:
            OSError: The disk refused.
            FileDamaged: The content of the file is not the one that was written.
        """
        found = 0
        start = file.base
        try:
            # Checksums are verified: a rebuilt batch would give damaged bytes a correct checksum.
            for header, batch in batches(file.path, check=True):
                if not placed(header, start, file.next):
                    raise CorruptRecord(f"a batch at {header.base_offset}, from {start} on")
                found += len(batch)
                start = header.last_offset + 1
                self._learn_batch(header, batch)
        except CorruptRecord as error:
            raise FileDamaged(file.base, f"{file.path}: {error}") from None
        if found != file.size:
            why = f"{found} bytes of whole batches, not {file.size}: it is shorter than it was"
            raise FileDamaged(file.base, f"{file.path}: {why}")

    def _learn_batch(self, header: Header, batch: memoryview) -> None:
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
        """Return whether the batch belongs to an aborted transaction."""
        its = self.ended.get(header.producer_id, ())
        at = header.base_offset
        index = bisect_right(its, at, key=attrgetter("last"))
        return header.transactional and index < len(its) and its[index].first <= at

    def of(self, header: Header, batch: memoryview) -> bytes | bytearray | memoryview:
        """Return the part of a batch that stays; the batch itself if all of it stays."""
        if header.control:
            begun = header.producer_id in self.begun
            self.begun.discard(header.producer_id)
            return batch if begun or header.base_offset >= self.job.forgotten_below else b""
        left = b"" if self.aborted(header) else self._remaining(header, batch)
        if not left and not self._keeps_sequences(header):
            return b""
        self.staying.add(header.producer_id)
        if header.transactional:
            self.begun.add(header.producer_id)
        return left or emptied(header)

    def _remaining(self, header: Header, batch: memoryview) -> bytes | bytearray | memoryview:
        """Return the records that stay. A batch damaged before it was written stays whole."""
        try:
            kept = [record for record in records_within(header, batch) if self._stays(record)]
            if len(kept) == header.records:
                return batch
            return rebuild(header, kept) if kept else b""
        except DAMAGES:
            return batch

    def _keeps_sequences(self, header: Header) -> bool:
        """Return whether the header must stay for a producer that may continue from these
        sequences.

        Without this batch, an earlier batch would be taken for the producer's last.
        """
        alive = header.max_timestamp > self.job.now_ms - PRODUCER_EXPIRY_MS
        known = alive or header.producer_id in self.staying
        return known and header.base_offset in self.latest.get(header.producer_id, ())

    def _stays(self, record: Any) -> bool:
        """Return whether no newer record has the same key, and a tombstone is still needed."""
        if record.key is None:
            return True
        if self.newest.get(remembered(record.key), -1) > record.offset:
            return False
        return record.value is not None or record.offset >= self.job.forgotten_below


def remembered(key: bytes) -> bytes:
    """Return the form in which a key is kept: the key itself, or a digest of a long one."""
    return key if len(key) <= KEY_BYTES else blake2b(key, digest_size=KEY_BYTES + 1).digest()


def newest_of(header: Header, batch: memoryview) -> dict[bytes, int]:
    """Return the last offset of each key in a batch.

    Returns:
        An empty dict for a batch that was damaged before it was written, since no reader can read
            the records.
    """
    try:
        found = records_within(header, batch)
        return {remembered(each.key): each.offset for each in found if each.key is not None}
    except DAMAGES:
        return {}


def compact(job: CompactionJob) -> Compacted:
    """Compact the files of a job.

    Returns:
        The new files; none if no record can be removed.

    Raises:
        OSError: The disk refused.
        FileDamaged: The content of a file is not the one that was written.
    """
    sieve = CompactionFilter(job)
    files = list[Segment]()
    made = list[CompactedFile]()
    for file in job.files:
        sieve.learn(file)
        files.append(file)
        if sieve.full:
            break
    until = sieve.until if sieve.full else files[-1].next
    with ExitStack() as failed:  # on a full disk, the other logs need the space of these files
        for file in files:
            failed.callback(beside(file.path).unlink, missing_ok=True)
        while files:
            made += rewritten(files, sieve)
        failed.pop_all()
    return Compacted(made, until)


def beside(path: Path) -> Path:
    """Return the path of the new file that is to replace this file, and perhaps some files behind
    it.
    """
    return path.with_name(path.name + MADE)


def rewritten(files: list[Segment], sieve: CompactionFilter) -> list[CompactedFile]:
    """Rewrite the first of the files, together with as many more as fit into one segment.

    The files are taken off the list. The new file gets the modification time of the last of them,
    which is the age of records without a timestamp.
    """
    bases = list[int]()
    changed = False
    age_ns = 0
    path = beside(files[0].path)
    segment = files[0].anew()
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
    """Copy the records of a file that stay; return whether any record was left out."""
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
    """Yield the batches of a file, from position `at` on.

    The file is read, not mapped: on a sector that cannot be read, a mapping would end the broker
    with SIGBUS, at each start again.

    Raises:
        OSError: The disk refused.
        CorruptRecord: The next bytes are no batch.
    """
    most = READ_BYTES
    with path.open("rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        while data := read_at(file, most, at):
            whole = 0
            for start, size, header in scan(data, check=check):
                whole = start + size
                yield header, memoryview(data)[start:whole]
            at += whole
            most = READ_BYTES if whole else batch_bytes(data)
            if not whole and not len(data) < most <= end - at:
                return  # the batch is cut short, or its length is damaged: allocate no memory


def behind(path: Path, at: int) -> Generator[tuple[Header, memoryview]]:
    """Yield the sound batches behind a damaged one, as far as their lengths are right."""
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
    """Return the size in bytes of the batch that begins with `data`."""
    if len(data) < LENGTH_END:
        return HEADER_BYTES
    return LENGTH_END + int.from_bytes(data[LENGTH_END - 4 : LENGTH_END], signed=True)


def read_at(file: FileIO, most: int, at: int) -> bytes:
    """Return up to `most` bytes from position `at` on, fewer at the end of the file.

    Raises:
        OSError: The disk refused; the error names the file.
    """
    try:
        return os.pread(file.fileno(), most, at)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file.name)) from error
