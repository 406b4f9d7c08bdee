"""Compaction of a log: of each key what was written last stays. On closed files alone, in a thread.

Two passes: which record of each key is the newest, of what was written since the last compaction;
then all files are written anew without what is older. Offsets never change, so there are holes; a
batch that loses nothing is copied as it is. A tombstone stays for as long as readers may have to
hear of it. Records without a key stay.

Records of aborted transactions go at once. A marker stays as long as a tombstone, and as long as
something of its transaction: without it, that would be found open when the log is read again. Of a
producer's last batch at least the header stays, as long as the producer may go on from it, or
something earlier of it stays.

What is made stands beside the files that it replaces: `Log.put` puts it there, in this order.
"""

import mmap
import os
from bisect import bisect_right
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from streamsx.broker.producer_state import AbortedTransaction
from streamsx.errors import CorruptRecord
from streamsx.kafka.batch import Header, emptied, rebuild, records, scan

PRODUCER_EXPIRY_MS = 24 * 60 * 60 * 1000
"""As Kafka's producer.id.expiration.ms."""
MADE = ".made"
"""The end of the name of what replaces a file."""


class CompactionJob(NamedTuple):
    """`files` in their order, with the offsets at which they begin."""

    files: tuple[tuple[int, Path], ...]
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
        found = () if self.aborted(header) else records(header, batch)
        kept = [record for record in found if self._stays(record)]
        if not (kept or self._last_word(header)):
            return b""
        self.staying.add(header.producer_id)
        if header.transactional:
            self.begun.add(header.producer_id)
        if len(kept) == header.records:
            return batch
        return rebuild(header, kept) if kept else emptied(header)

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
        if self.newest.get(record.key, -1) > record.offset:
            return False
        return record.value is not None or record.offset >= self.job.forgotten_below


def compact(job: CompactionJob) -> list[Made]:
    """What is to be replaced: nothing, where nothing can go. Raises OSError, CorruptRecord."""
    sieve = Sieve(job)
    for _, path in job.files:
        for header, batch in batches(path):
            if header.control:
                continue
            if header.producer_id >= 0:
                sieve.latest[header.producer_id] = header.base_offset
            if header.last_offset >= job.dirty_from and not sieve.aborted(header):
                for record in records(header, batch):
                    sieve.newest[record.key] = record.offset
    made: list[Made] = []
    files = list(job.files)
    while files:
        made += rewritten(files, sieve)
    return made


def rewritten(files: list[tuple[int, Path]], sieve: Sieve) -> list[Made]:
    """Takes the first of the files, and as many more as fit into one with it."""
    bases, changed, size = list[int](), False, 0
    path = files[0][1].with_name(files[0][1].name + MADE)
    with path.open("wb") as out:
        while files and (not bases or size + files[0][1].stat().st_size <= sieve.job.segment_bytes):
            base, source = files.pop(0)
            changed |= copied(source, out, sieve)
            bases.append(base)
            size = out.tell()
        out.flush()
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
    """Of a file, which may be empty. Raises CorruptRecord at the first that is none."""
    if not path.stat().st_size:
        return
    damage = ""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        memoryview(mapped) as view,
        closing(scan(view, check=check)) as found,
    ):
        try:
            for at, size, header in found:
                with view[at : at + size] as batch:
                    yield header, batch
        except CorruptRecord as error:  # which holds the map open as long as it is about
            damage = str(error)
    if damage:
        raise CorruptRecord(damage)
