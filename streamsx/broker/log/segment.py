"""Segment file of a partition's log: raw batches, with a sparse index over them in memory.

A segment file is named after its first offset. File descriptors are opened on demand and their
number is limited, so 2,000 partitions do not take 2,000 descriptors. Not here: which batches may be
appended, and which bytes are torn (`log`).
"""

import errno
import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from streamsx.protocol.record_batch import HEADER_BYTES, LENGTH_END, Header
from streamsx.state.disk import sync_folder

DESCRIPTORS_MAX = 256
"""Limit of open segment files: together with the largest number of connections, it stays below the
1,024 descriptors that a process usually has.
"""
INDEX_INTERVAL_BYTES = 4096
SEGMENTS = "[0-9]" * 20 + ".log"
"""Glob pattern of segment files; it does not match copies that a user put beside them."""
LEADER_EPOCH = 0
"""Only epoch: a single broker leads every partition for ever."""
REWRITTEN_BYTES = 1 << 20
"""Bytes per write when a segment is written again."""

_head = struct.Struct(">qi11xi8xq")
"""Fields of a batch header: base offset, length, last offset delta, largest timestamp."""


class Descriptors:
    """Cache of open file descriptors of all segments of a broker; the least recently used is closed
    first.
    """

    def __init__(self, limit: int = DESCRIPTORS_MAX) -> None:
        self._limit = limit
        self._open: OrderedDict[Path, int] = OrderedDict()

    def of(self, path: Path) -> int:
        """Return an open descriptor of this file; create the file if there is none."""
        if (fd := self._open.get(path)) is not None:
            self._open.move_to_end(path)
            return fd
        while len(self._open) >= self._limit:
            os.close(self._open.popitem(last=False)[1])
        fd = self._open[path] = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        return fd

    def close(self, path: Path) -> None:
        """Close the descriptor of this file, if one is open."""
        if (fd := self._open.pop(path, None)) is not None:
            os.close(fd)


class Segment:
    """Segment of complete batches, from offset `base` to before offset `next`, in a file of `size`
    bytes.
    """

    def __init__(self, folder: Path, base: int, descriptors: Descriptors) -> None:
        self.base = self.next = base
        self.path = folder / f"{base:020d}.log"
        self.size = 0
        self.damaged = False
        """Set if the file has bytes behind `size` that are no batches, or if a batch within is
        damaged.
        """
        self.oldest = self.newest = -1  # timestamp of the first batch, largest timestamp; ms
        self._descriptors = descriptors
        self._entered = False  # whether the folder entry of the file was flushed to the disk
        # The index has one entry per INDEX_INTERVAL_BYTES: first offset of a batch, position of the
        # batch, and the largest timestamp up to and including the batch.
        self._offsets = array("q")
        self._positions = array("q")
        self._newest = array("q")
        self._indexed_to = 0

    @property
    def fd(self) -> int:
        """Return an open descriptor, valid until the next descriptor is requested."""
        return self._descriptors.of(self.path)

    def anew(self) -> "Segment":
        """Return a segment of the same file with an empty index."""
        return Segment(self.path.parent, self.base, self._descriptors)

    def create(self) -> None:
        """Create the empty file.

        Raises:
            OSError: The disk refused.
        """
        self._descriptors.of(self.path)
        self.flush()

    def append(self, batch: memoryview, header: Header) -> None:
        """Write a batch whose offsets are set, completely or not at all.

        Raises:
            OSError: The disk refused. The file is unchanged.
        """
        try:
            if os.pwrite(self.fd, batch, self.size) != len(batch):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self.fd, self.size)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self.note(len(batch), header)

    def note(self, size: int, header: Header) -> None:
        """Add the next batch of the file, of `size` bytes, to the index."""
        if self.oldest < 0:
            self.oldest = header.first_timestamp
        if header.records:  # an emptied batch keeps the timestamp of a record that is gone
            self.newest = max(self.newest, header.max_timestamp)
        if self.size >= self._indexed_to:
            self._offsets.append(header.base_offset)
            self._positions.append(self.size)
            self._newest.append(self.newest)
            self._indexed_to = self.size + INDEX_INTERVAL_BYTES
        self.size += size
        self.next = header.last_offset + 1

    def locate(self, offset: int) -> int:
        """Return the position of the batch that contains this offset, or of the next batch behind
        it.
        """
        index = bisect_right(self._offsets, offset) - 1
        start = self._positions[index] if index >= 0 else 0
        if index >= 0 and self._offsets[index] == offset:
            return start  # the usual case: readers go on at the beginning of a batch
        batches = self._batches(start)
        return next((at for at, last, _ in batches if last >= offset), self.size)

    def since(self, timestamp: int) -> Iterator[int]:
        """Yield the positions of the batches that hold a record of this timestamp or later."""
        if self.size and self.newest >= timestamp:
            index = max(bisect_left(self._newest, timestamp) - 1, 0)
            for position, _, newest in self._batches(self._positions[index]):
                if newest >= timestamp:
                    yield position

    def read(self, position: int, most: int, end: int) -> bytes:
        """Read complete batches; the last may be cut short, the first never.

        Raises:
            OSError: The disk refused, or the file is not the one that was written.
        """
        found = os.pread(self.fd, min(max(most, HEADER_BYTES), end - position), position)
        first = self._head(found)[1] + LENGTH_END
        if first > end - position:
            raise self._changed(f"a batch of {first} bytes where there are {end - position}")
        found = found if first <= len(found) else os.pread(self.fd, first, position)
        if first > len(found):
            raise self._changed("the file is shorter than it was")
        return found

    def flush(self) -> None:
        """Flush the file to the disk, from any thread, with a descriptor of its own.

        Raises:
            OSError: The disk refused.
        """
        fd = os.open(self.path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)
        if not self._entered:
            sync_folder(self.path.parent)
            self._entered = True

    def rewrite(self) -> None:
        """Write the same bytes once more and flush them.

        After a failed flush the operating system takes the pages for written, and no later flush
        would write them.

        Raises:
            OSError: The disk refused.
        """
        for at in range(0, self.size, REWRITTEN_BYTES):
            found = os.pread(self.fd, min(REWRITTEN_BYTES, self.size - at), at)
            if os.pwrite(self.fd, found, at) != len(found):
                raise OSError(f"{self.path}: not all was written again")
        self.flush()

    def delete(self) -> None:
        """Close and remove the file."""
        self._descriptors.close(self.path)
        self.path.unlink(missing_ok=True)

    def _batches(self, position: int) -> Iterator[tuple[int, int, int]]:
        """Yield (position, last offset, largest timestamp) of each batch from this position on."""
        chunk = b""
        start = position
        while position < self.size:
            if position + _head.size > start + len(chunk):
                chunk = os.pread(self.fd, INDEX_INTERVAL_BYTES * 2, position)
                start = position
            base, length, last_delta, newest = self._head(chunk, position - start)
            yield position, base + last_delta, newest
            position += length + LENGTH_END

    def _head(self, data: bytes, at: int = 0) -> tuple[int, int, int, int]:
        try:
            found = base, length, *_ = _head.unpack_from(data, at)
        except struct.error:
            raise self._changed("the file is shorter than it was") from None
        if length + LENGTH_END < HEADER_BYTES:  # a loop that steps by this length would not end
            raise self._changed(f"a batch of {length + LENGTH_END} bytes at offset {base}")
        return found

    def _changed(self, what: str) -> OSError:
        """Return the error for a file that another process or the disk has changed."""
        return OSError(errno.EIO, what, str(self.path))


def placed(header: Header, start: int, end: int) -> bool:
    """Return whether a batch lies between these offsets and bears the epoch that this broker
    writes.

    The checksum does not cover the first 16 bytes, and a flipped bit there would move all that
    follows.
    """
    ours = header.leader_epoch == LEADER_EPOCH
    return ours and start <= header.base_offset <= header.last_offset < end
