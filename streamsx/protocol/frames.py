"""Framing of received bytes: 4 bytes of length, then as many bytes of content. Pure.

Small frames are cut from one scratch buffer. A large frame is received directly into a buffer of
its own, which then belongs to the caller: a reader's records are views of that buffer, and a broker
changes a request in place and writes it to disk from there. In a broker the buffer consists of
kernel pages, which are allocated when bytes arrive and freed with the frame. Otherwise a length
without content would cost its sender nothing and the broker the whole size.
"""

from collections.abc import Callable, Iterator
from mmap import MAP_PRIVATE, mmap
from struct import Struct

from streamsx.protocol.compiler import Malformed

SCRATCH_BYTES = 64 << 10
LARGE_BYTES = 16 << 10
"""Size from which on a frame is not collected in the scratch buffer."""
BELIEVED_BYTES = 128 << 10
"""Size up to which memory is allocated at once; a larger frame gets memory as its bytes arrive."""

Frame = bytearray | memoryview
"""Readable and writable memory with the size of one frame."""

_length = Struct(">i")
_key = Struct(">h")


class Frames:
    """Cutter of frames: the caller fills `buffer()`, and passes the number of bytes to
    `received`.
    """

    def __init__(
        self, least: int, most: int, *, believed: int = BELIEVED_BYTES,
        of_api: Callable[[int], int] | None = None,
    ) -> None:  # fmt: skip
        """Create an empty cutter.

        Args:
            least: Smallest size of a frame in bytes.
            most: Largest size of a frame in bytes.
            believed: Size up to which memory is allocated at once.
            of_api: Returns the largest size of a large request by API key; for frames that are
                requests.
        """
        self._least = least
        self._most = most
        self._believed = believed
        self._of_api = of_api or (lambda _: most)
        # Allocated with the first bytes: 512 connections may be accepted at once, 412 of them too
        # many, and their scratch buffers would take 32 MiB.
        self._scratch = bytearray()
        self._large: Frame | None = None
        self._filled = self._size = 0

    def buffer(self) -> memoryview:
        """Return the memory for the next bytes; never empty."""
        if not self._scratch:
            self._scratch = bytearray(SCRATCH_BYTES)
        return memoryview(self._scratch if self._large is None else self._large)[self._filled :]

    @property
    def held(self) -> int:
        """Return the bytes allocated for the large frame in progress, 0 if there is none."""
        if self._large is None:
            return 0
        return len(self._large) if isinstance(self._large, bytearray) else self._filled

    def received(self, count: int) -> Iterator[Frame]:
        """Yield the frames that are complete now; the caller must take all of them.

        Raises:
            Malformed: A length is out of range; raised after the frames before it.
        """
        self._filled += count
        if self._large is None:
            yield from self._cut()
        elif self._filled == self._size:
            frame = self._large
            self._large = None
            self._filled = 0
            yield frame

    def forget(self) -> None:
        """Drop the bytes of an incomplete frame."""
        self._large = None
        self._filled = 0

    def _cut(self) -> Iterator[Frame]:
        scratch = self._scratch
        start = 0
        end = self._filled
        while end - start >= _length.size:
            (size,) = _length.unpack_from(scratch, start)
            if not self._least <= size <= self._most:
                raise Malformed(f"a frame of {size} bytes: {self._least} to {self._most} can be")
            body = start + _length.size
            if end - body >= size:
                yield scratch[body : body + size]
                start = body + size
            elif size < LARGE_BYTES or end - body < _key.size:
                break
            else:
                (key,) = _key.unpack_from(scratch, body)
                if size > (most := self._of_api(key)):
                    raise Malformed(f"request {key} of {size} bytes: {most} can be")
                self._large = self._room(size)
                self._size = size
                self._filled = end - body
                self._large[: self._filled] = scratch[body:end]
                return
        scratch[: end - start] = scratch[start:end]
        self._filled = end - start

    def _room(self, size: int) -> Frame:
        believed = size <= self._believed
        return bytearray(size) if believed else memoryview(mmap(-1, size, flags=MAP_PRIVATE))
