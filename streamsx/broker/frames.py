"""Cuts what a connection receives into frames: 4 bytes of length, then so many bytes. Pure.

Small frames are cut from one scratch buffer; a large one is received straight into a buffer of its
own, which is then the caller's: what it carries is changed in place and written to disk from there.
That buffer grows with what has come: a length alone, of which nothing follows, costs its sender
nothing and would cost us all of it.
"""

from struct import Struct

from streamsx.kafka.compiler import Malformed

SCRATCH_BYTES = 64 << 10
LARGE_BYTES = 16 << 10
"""A frame of this size is not waited for in the scratch buffer."""
FIRST_BYTES = 1 << 20
"""Taken for a large frame at once; twice as many whenever they are full."""
FRAME_BYTES_MIN = 8
"""Nothing shorter holds the head of a request."""

_length = Struct(">i")


class Frames:
    """Give the caller `buffer()`, and then say with `received` how much came into it."""

    __slots__ = ("_filled", "_large", "_most", "_scratch", "_size")

    def __init__(self, frame_bytes_max: int) -> None:
        self._most = frame_bytes_max
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

    def received(self, count: int) -> list[bytearray]:
        """The frames that are whole now. Raises Malformed for a length that cannot be."""
        self._filled += count
        if self._large is None:
            return self._cut()
        if self._filled < len(self._large):
            return []
        if self._filled < self._size:
            more = min(self._filled, self._size - self._filled)
            self._large = self._large + bytes(more)  # not in place: the transport still holds it
            return []
        frame, self._large, self._filled = self._large, None, 0
        return [frame]

    def _cut(self) -> list[bytearray]:
        frames, scratch, start, end = [], self._scratch, 0, self._filled
        while end - start >= _length.size:
            (size,) = _length.unpack_from(scratch, start)
            if not FRAME_BYTES_MIN <= size <= self._most:
                raise Malformed(
                    f"a frame of {size} bytes: {FRAME_BYTES_MIN} to {self._most} can be"
                )
            body = start + _length.size
            if end - body >= size:
                frames.append(scratch[body : body + size])
                start = body + size
            elif size >= LARGE_BYTES:
                self._large, self._size = bytearray(min(size, FIRST_BYTES)), size
                self._filled = end - body
                self._large[: self._filled] = scratch[body:end]
                return frames
            else:
                break
        scratch[: end - start] = scratch[start:end]
        self._filled = end - start
        return frames
