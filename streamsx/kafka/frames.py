"""Cuts what a connection receives into frames: 4 bytes of length, then so many bytes. Pure.

Small frames are cut from one scratch buffer; a large one is received straight into a buffer of its
own, which is then the caller's: a reader's records lie in it, and a broker changes in place what it
carries and writes it to disk from there. At a broker that buffer grows with what has come: a length
alone, of which nothing follows, costs its sender nothing and would cost us all of it.
"""

from collections.abc import Iterator
from struct import Struct

from streamsx.kafka.compiler import Malformed

SCRATCH_BYTES = 64 << 10
LARGE_BYTES = 16 << 10
"""A frame of this size is not waited for in the scratch buffer."""
FIRST_BYTES = 1 << 20
"""Of a large frame that is not believed: taken at once, and twice as many whenever they are full.
"""

_length = Struct(">i")


class Frames:
    """Give the caller `buffer()`, and then say with `received` how much came into it."""

    __slots__ = ("_filled", "_first", "_large", "_least", "_most", "_scratch", "_size")

    def __init__(self, least: int, most: int, *, first: int = FIRST_BYTES) -> None:
        """`least`, `most`: bytes that a frame may have; `first`: of a large one, taken at once."""
        self._least, self._most, self._first = least, most, first
        self._scratch = bytearray(SCRATCH_BYTES)
        self._large: bytearray | None = None
        self._filled = self._size = 0

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return memoryview(self._scratch if self._large is None else self._large)[self._filled :]

    @property
    def held(self) -> int:
        """Bytes taken for the large frame that is being received, if one is."""
        return 0 if self._large is None else len(self._large)

    def received(self, count: int) -> Iterator[bytearray]:
        """The frames that are whole now: take all of them. Raises Malformed for a length that
        cannot be, behind the frames that came before it.
        """
        self._filled += count
        if self._large is None:
            yield from self._cut()
        elif self._filled == self._size:
            frame, self._large, self._filled = self._large, None, 0
            yield frame
        elif self._filled == len(self._large):
            more = min(self._filled, self._size - self._filled)
            self._large = self._large + bytes(more)  # not in place: the transport still holds it

    def _cut(self) -> Iterator[bytearray]:
        scratch, start, end = self._scratch, 0, self._filled
        while end - start >= _length.size:
            (size,) = _length.unpack_from(scratch, start)
            if not self._least <= size <= self._most:
                raise Malformed(f"a frame of {size} bytes: {self._least} to {self._most} can be")
            body = start + _length.size
            if end - body >= size:
                yield scratch[body : body + size]
                start = body + size
            elif size >= LARGE_BYTES:
                self._large, self._size = bytearray(min(size, self._first)), size
                self._filled = end - body
                self._large[: self._filled] = scratch[body:end]
                return
            else:
                break
        scratch[: end - start] = scratch[start:end]
        self._filled = end - start
