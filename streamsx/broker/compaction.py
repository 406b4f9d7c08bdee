"""Compaction of a log: of each key what was written last stays. On closed files alone, in a thread.

Two passes: which record of each key is the newest, of what was written since the last compaction;
then all files are written anew without what is older. Offsets never change, so there are holes; a
batch that loses nothing is copied as it is. A tombstone stays for as long as readers may have to
hear of it. Records without a key stay.

Records of aborted transactions go at once. A marker stays as long as a tombstone, and as long as
something of its transaction: without it, that would be found open when the log is read again. Of a
producer's last batch at least the header stays, as long as the producer may go on from it, or
something earlier of it stays. A batch that nobody can read, as it came from its client, stays as it
is. A file that is not what was written is left as it is, for readers to be told.

What is made stands beside the files that it replaces: `Log.put` puts it there, in this order.
"""

import os
from bisect import bisect_right
from collections.abc import Generator
from dataclasses import dataclass, field
from hashlib import blake2b
from io import FileIO
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from streamsx.broker.producer_state import AbortedTransaction
from streamsx.errors import CorruptRecord
from streamsx.kafka.batch import (
    DAMAGES,
    HEADER_BYTES,
    LENGTH_END,
    Header,
    emptied,
    rebuild,
    records,
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


class FileDamaged(CorruptRecord):
    """Of the file that begins at `base`: it is not what was written."""

    def __init__(self, base: int, why: str) -> None:
        super().__init__(why)
        self.base = base


class ClosedFile(NamedTuple):
    """By the offset at which it begins; of so many bytes of whole batches."""

    base: int
    path: Path
    size: int


class CompactionJob(NamedTuple):
    """`files` in their order."""

    files: tuple[ClosedFile, ...]
    until: int
    dirty_from: int
    """From this offset on nothing was compacted yet."""
    forgotten_below: int
    """Tombstones have been there for long enough."""
    segment_bytes: int
    now_ms: int
    tombstones_ms: int
    aborted: tuple[AbortedTransaction, ...] = ()
    """All that reach into these files."""


class Made(NamedTuple):
    """One file in place of some, by the offsets at which they begin."""

    bases: tuple[int, ...]
    path: Path


@dataclass(slots=True)
class Sieve:
    """What stays, asked in the order of the log."""

    job: CompactionJob
    newest: dict[bytes, int] = field(default_factory=dict)
    latest: dict[int, int] = field(default_factory=dict)
    """Where the last batch of each producer id begins."""
    begun: set[int] = field(default_factory=set)
    """Producer ids of whose transaction something stays, until its marker."""
    staying: set[int] = field(default_factory=set)
    """Producer ids of which something stays, records or not."""
    ended: dict[int, list[AbortedTransaction]] = field(default_factory=dict)
    """The aborted ones of each producer id."""

    def __post_init__(self) -> None:
        for each in self.job.aborted:
            self.ended.setdefault(each.producer_id, []).append(each)

    def learn(self, file: ClosedFile) -> None:
        """Which of its records are the newest so far. Raises OSError, FileDamaged."""
        found, job = 0, self.job
        try:
            for header, batch in batches(file.path, check=True):  # or damage gets a right checksum
                found += len(batch)
                if header.control:
                    continue
                if header.producer_id >= 0:
                    self.latest[header.producer_id] = header.base_offset
                if header.last_offset >= job.dirty_from and not self.aborted(header):
                    self.newest |= newest_of(header, batch)
        except CorruptRecord as error:
            raise FileDamaged(file.base, f"{file.path}: {error}") from None
        if found != file.size:
            why = f"{found} bytes of whole batches, not {file.size}: it is shorter than it was"
            raise FileDamaged(file.base, f"{file.path}: {why}")

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
        kept = [] if self.aborted(header) else self._kept(header, batch)
        if not (kept or kept is None or self._last_word(header)):
            return b""
        self.staying.add(header.producer_id)
        if header.transactional:
            self.begun.add(header.producer_id)
        if kept is None or len(kept) == header.records:
            return batch
        return rebuild(header, kept) if kept else emptied(header)

    def _kept(self, header: Header, batch: memoryview) -> list[Any] | None:
        """Records; None of a batch that was damaged before it was written: all of it."""
        try:
            return [record for record in records(header, batch) if self._stays(record)]
        except DAMAGES:
            return None

    def _last_word(self, header: Header) -> bool:
        """Of a producer that may still be there, and goes on from these sequences: without it, an
        earlier batch would be taken for the last.
        """
        alive = header.max_timestamp > self.job.now_ms - PRODUCER_EXPIRY_MS
        known = alive or header.producer_id in self.staying
        return known and self.latest.get(header.producer_id) == header.base_offset

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
        found = records(header, batch)
        return {remembered(each.key): each.offset for each in found if each.key is not None}
    except DAMAGES:
        return {}


def compact(job: CompactionJob) -> list[Made]:
    """What is to be replaced: nothing, where nothing can go. Raises OSError, FileDamaged."""
    sieve = Sieve(job)
    for file in job.files:
        sieve.learn(file)
    made: list[Made] = []
    files = list(job.files)
    try:
        while files:
            made += rewritten(files, sieve)
    except OSError:
        for _, path, _ in job.files:  # "the disk is full": everybody else needs the room
            beside(path).unlink(missing_ok=True)
        raise
    return made


def beside(path: Path) -> Path:
    """Where stands what is to replace this file and perhaps some behind it."""
    return path.with_name(path.name + MADE)


def rewritten(files: list[ClosedFile], sieve: Sieve) -> list[Made]:
    """Takes the first of the files, and as many more as fit into one with it. It is as old as the
    last of them: that is the age of records without a time.
    """
    bases, changed, size, age_ns = list[int](), False, 0, 0
    path = beside(files[0].path)
    with path.open("wb") as out:
        while files and (not bases or size + files[0].size <= sieve.job.segment_bytes):
            source = files.pop(0)
            changed |= copied(source.path, out, sieve)
            bases.append(source.base)
            size, age_ns = out.tell(), source.path.stat().st_mtime_ns
        out.flush()
        os.utime(out.fileno(), ns=(age_ns, age_ns))
        os.fsync(out.fileno())
    if changed or len(bases) > 1:
        return [Made(tuple(bases), path)]
    path.unlink()
    return []


def copied(source: Path, out: BinaryIO, sieve: Sieve) -> bool:
    """Whether something stayed behind."""
    changed = False
    for header, batch in batches(source):
        left = sieve.of(header, batch)
        changed |= left is not batch
        out.write(left)
    return changed


def batches(path: Path, *, check: bool = False) -> Generator[tuple[Header, memoryview]]:
    """Of a file, which may be empty. Raises OSError, and CorruptRecord at the first that is none.

    Read, not mapped: "a sector cannot be read": SIGBUS would end the broker, at each start again.
    """
    at, most = 0, READ_BYTES
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
