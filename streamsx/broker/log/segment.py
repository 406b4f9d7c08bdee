"""One file of a partition's log: raw batches, and in memory a sparse index over them.

The file is named after its first offset. Descriptors are opened when they are needed, and only so
many are kept: 2,000 partitions are not 2,000 descriptors. What may be appended, and what is
torn, is the log's to say.
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
"""With as many connections as there may be, below the 1,024 that a process usually has."""
INDEX_INTERVAL_BYTES = 4096
SEGMENTS = "[0-9]" * 20 + ".log"
"""How their files are called; a copy that somebody has put beside them is none."""
LEADER_EPOCH = 0
"""There is one broker, and it leads for ever."""
REWRITTEN_BYTES = 1 << 20
"""At once, of what is written again."""

_head = struct.Struct(">qi11xi8xq")
"""Of a batch: base offset, length, last offset delta, largest timestamp."""


class Descriptors:
    """Of all segments of a broker; the one that was not used for longest is closed first."""

    def __init__(self, limit: int = DESCRIPTORS_MAX) -> None:
        self._limit = limit
        self._open: OrderedDict[Path, int] = OrderedDict()

    def of(self, path: Path) -> int:
        """The descriptor of this file, which is created if it is not there."""
        if (fd := self._open.get(path)) is not None:
            self._open.move_to_end(path)
            return fd
        while len(self._open) >= self._limit:
            os.close(self._open.popitem(last=False)[1])
        fd = self._open[path] = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        return fd

    def close(self, path: Path) -> None:
        """The file is used no more, for now."""
        if (fd := self._open.pop(path, None)) is not None:
            os.close(fd)


class Segment:
    """Whole batches from offset `base` to before offset `next`; a file of `size` bytes."""

    def __init__(self, folder: Path, base: int, descriptors: Descriptors) -> None:
        self.base = self.next = base
        self.path = folder / f"{base:020d}.log"
        self.size = 0
        self.damaged = False
        """It has more bytes than that, which are no batches, or was found to be damaged within."""
        self.oldest = self.newest = -1  # the first timestamp that there is, the largest; ms
        self._descriptors = descriptors
        self._entered = False  # its folder is known to name it after a power cut
        # One entry per INDEX_INTERVAL_BYTES: first offset of a batch, where it stands, and the
        # largest timestamp up to and with it.
        self._offsets, self._positions, self._newest = array("q"), array("q"), array("q")
        self._indexed_to = 0

    @property
    def fd(self) -> int:
        """An open descriptor, good until the next one is asked for."""
        return self._descriptors.of(self.path)

    def anew(self) -> "Segment":
        """Of the same file, in which nothing was found yet."""
        return Segment(self.path.parent, self.base, self._descriptors)

    def create(self) -> None:
        """The file is there, without a byte. Raises OSError."""
        self._descriptors.of(self.path)
        self.flush()

    def append(self, batch: memoryview, header: Header) -> None:
        """Writes a batch that bears its place, whole or not at all. Raises OSError."""
        try:
            if os.pwrite(self.fd, batch, self.size) != len(batch):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self.fd, self.size)
            raise OSError(error.errno, error.strerror, str(self.path)) from error
        self.note(len(batch), header)

    def note(self, size: int, header: Header) -> None:
        """The next batch of the file, of `size` bytes, was written or found."""
        if self.oldest < 0:
            self.oldest = header.first_timestamp
        if header.records:  # or compaction has emptied it, of its youngest record too
            self.newest = max(self.newest, header.max_timestamp)
        if self.size >= self._indexed_to:
            self._offsets.append(header.base_offset)
            self._positions.append(self.size)
            self._newest.append(self.newest)
            self._indexed_to = self.size + INDEX_INTERVAL_BYTES
        self.size += size
        self.next = header.last_offset + 1

    def locate(self, offset: int) -> int:
        """Where the batch stands that holds this offset, or else the first one behind it."""
        index = bisect_right(self._offsets, offset) - 1
        start = self._positions[index] if index >= 0 else 0
        if index >= 0 and self._offsets[index] == offset:
            return start  # as most readers ask, who go on behind a batch
        batches = self._batches(start)
        return next((at for at, last, _ in batches if last >= offset), self.size)

    def since(self, timestamp: int) -> Iterator[int]:
        """Where the batches stand that hold a record this old or younger."""
        if self.size and self.newest >= timestamp:
            index = max(bisect_left(self._newest, timestamp) - 1, 0)
            for position, _, newest in self._batches(self._positions[index]):
                if newest >= timestamp:
                    yield position

    def read(self, position: int, most: int, end: int) -> bytes:
        """Bytes of whole batches, the last one perhaps cut, the first never. Raises OSError."""
        found = os.pread(self.fd, min(max(most, HEADER_BYTES), end - position), position)
        first = self._head(found)[1] + LENGTH_END
        if first > end - position:
            raise self._changed(f"a batch of {first} bytes where there are {end - position}")
        found = found if first <= len(found) else os.pread(self.fd, first, position)
        if first > len(found):
            raise self._changed("the file is shorter than it was")
        return found

    def flush(self) -> None:
        """To the disk; from any thread, with a descriptor of its own. Raises OSError."""
        fd = os.open(self.path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)
        if not self._entered:
            sync_folder(self.path.parent)
            self._entered = True

    def rewrite(self) -> None:
        """The same bytes once more: a flush that failed has left pages that the system takes for
        written, and no later flush would write those. Raises OSError.
        """
        for at in range(0, self.size, REWRITTEN_BYTES):
            found = os.pread(self.fd, min(REWRITTEN_BYTES, self.size - at), at)
            if os.pwrite(self.fd, found, at) != len(found):
                raise OSError(f"{self.path}: not all was written again")
        self.flush()

    def delete(self) -> None:
        """Closes it and removes the file."""
        self._descriptors.close(self.path)
        self.path.unlink(missing_ok=True)

    def _batches(self, position: int) -> Iterator[tuple[int, int, int]]:
        """(position, last offset, largest timestamp) of each batch from there on."""
        chunk, start = b"", position
        while position < self.size:
            if position + _head.size > start + len(chunk):
                chunk, start = os.pread(self.fd, INDEX_INTERVAL_BYTES * 2, position), position
            base, length, last_delta, newest = self._head(chunk, position - start)
            yield position, base + last_delta, newest
            position += length + LENGTH_END

    def _head(self, data: bytes, at: int = 0) -> tuple[int, int, int, int]:
        try:
            found = base, length, *_ = _head.unpack_from(data, at)
        except struct.error:
            raise self._changed("the file is shorter than it was") from None
        if length + LENGTH_END < HEADER_BYTES:  # who goes on by it comes nowhere
            raise self._changed(f"a batch of {length + LENGTH_END} bytes at offset {base}")
        return found

    def _changed(self, what: str) -> OSError:
        """By somebody else, or by its disk."""
        return OSError(errno.EIO, what, str(self.path))


def placed(header: Header, start: int, end: int) -> bool:
    """Whether a batch is between these offsets, as the broker has written it there: the checksum
    does not cover the first 16 bytes, and a flipped bit would move all that follows.
    """
    ours = header.leader_epoch == LEADER_EPOCH
    return ours and start <= header.base_offset <= header.last_offset < end
