"""Compaction of a log: of each key what was written last stays. On closed files alone, in a thread.

Two passes: which record of each key is the newest, of what was written since the last compaction;
then all files are written anew without what is older. Offsets never change, so there are holes; a
batch that loses nothing is copied as it is. A tombstone stays for as long as readers may have to
hear of it. Records without a key stay.

What is made stands beside the files that it replaces: `Log.replace` puts it there. Aborted
transactions and markers are not here yet.
"""

import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from streamsx.kafka.batch import Header, rebuild, records, scan

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


class Made(NamedTuple):
    """One file in place of some, by the offsets at which they begin."""

    bases: tuple[int, ...]
    path: Path


def compact(job: CompactionJob) -> list[Made]:
    """What is to be replaced: nothing, where nothing can go. Raises OSError, CorruptRecord."""
    newest: dict[bytes, int] = {}
    for _, path in job.files:
        for header, batch in batches(path):
            if header.last_offset >= job.dirty_from:
                for record in records(header, batch):
                    newest[record.key] = record.offset
    made: list[Made] = []
    files = list(job.files)
    while files:
        made += rewritten(files, newest, job)
    return made


def rewritten(
    files: list[tuple[int, Path]], newest: dict[bytes, int], job: CompactionJob
) -> list[Made]:
    """Takes the first of the files, and as many more as fit into one with it."""
    bases, changed, size = list[int](), False, 0
    path = files[0][1].with_name(files[0][1].name + MADE)
    with path.open("wb") as out:
        while files and (not bases or size + files[0][1].stat().st_size <= job.segment_bytes):
            base, source = files.pop(0)
            changed |= copied(source, out, newest, job.forgotten_below)
            bases.append(base)
            size = out.tell()
        out.flush()
        os.fsync(out.fileno())
    if changed or len(bases) > 1:
        return [Made(tuple(bases), path)]
    path.unlink()
    return []


def copied(source: Path, out: BinaryIO, newest: dict[bytes, int], forgotten_below: int) -> bool:
    """Whether something stayed behind."""
    changed = False
    for header, batch in batches(source):
        found = list(records(header, batch))
        kept = [record for record in found if stays(record, newest, forgotten_below)]
        if len(kept) == len(found):
            out.write(batch)
            continue
        changed = True
        if kept:
            out.write(rebuild(header, kept))
    return changed


def stays(record: Any, newest: dict[bytes, int], forgotten_below: int) -> bool:
    """Of the same key there is none newer, and a tombstone is still to be heard of."""
    if record.key is None:
        return True
    if newest.get(record.key, -1) > record.offset:
        return False
    return record.value is not None or record.offset >= forgotten_below


def batches(path: Path) -> Iterator[tuple[Header, memoryview]]:
    """Of a file, which may be empty."""
    if not path.stat().st_size:
        return
    with ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        mapped = stack.enter_context(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        view = stack.enter_context(memoryview(mapped))
        for at, size, header in scan(view, check=False):
            with view[at : at + size] as batch:
                yield header, batch
