"""Cuts what a connection receives into frames: 4 bytes of length, then so many bytes. Pure.

Small frames are cut from one scratch buffer; a large one is received straight into a buffer of its
own, which is then the caller's: a reader's records lie in it, and a broker changes in place what it
carries and writes it to disk from there. At a broker that buffer is pages of the kernel, which are
taken when something comes into them and given back with the frame: a length alone, of which nothing
follows, costs its sender nothing and would cost us all of it.
"""

from collections.abc import Callable, Iterator
from mmap import MAP_PRIVATE, mmap
from struct import Struct

from streamsx.protocol.compiler import Malformed

SCRATCH_BYTES = 64 << 10
LARGE_BYTES = 16 << 10
"""A frame of this size is not waited for in the scratch buffer."""
BELIEVED_BYTES = 128 << 10
"""A larger one is not believed: its memory is taken as it comes."""

Frame = bytearray | memoryview
"""Memory that can be read and written, of its size."""

_length = Struct(">i")
_key = Struct(">h")


class Frames:
    """Give the caller `buffer()`, and then say with `received` how much came into it."""

    def __init__(
        self, least: int, most: int, *, believed: int = BELIEVED_BYTES,
        of_api: Callable[[int], int] | None = None,
    ) -> None:  # fmt: skip
        """`least`, `most`: bytes that a frame may have; `believed`: those for which memory is
        taken at once; `of_api`: how many a large request of this key may have, where frames are
        requests.
        """
        self._least, self._most, self._believed = least, most, believed
        self._of_api = of_api or (lambda _: most)
        self._scratch = bytearray()  # "512 are accepted at once, 412 of them too many": 32 MiB
        self._large: Frame | None = None
        self._filled = self._size = 0

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty."""
        if not self._scratch:
            self._scratch = bytearray(SCRATCH_BYTES)
        return memoryview(self._scratch if self._large is None else self._large)[self._filled :]

    @property
    def held(self) -> int:
        """Bytes taken for the large frame that is being received, if one is."""
        if self._large is None:
            return 0
        return len(self._large) if isinstance(self._large, bytearray) else self._filled

    def received(self, count: int) -> Iterator[Frame]:
        """The frames that are whole now: take all of them. Raises Malformed for a length that
        cannot be, behind the frames that came before it.
        """
        self._filled += count
        if self._large is None:
            yield from self._cut()
        elif self._filled == self._size:
            frame, self._large, self._filled = self._large, None, 0
            yield frame

    def forget(self) -> None:
        """Nothing more comes: lets go of what has."""
        self._large, self._filled = None, 0

    def _cut(self) -> Iterator[Frame]:
        scratch, start, end = self._scratch, 0, self._filled
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
                self._large, self._size = self._room(size), size
                self._filled = end - body
                self._large[: self._filled] = scratch[body:end]
                return
        scratch[: end - start] = scratch[start:end]
        self._filled = end - start

    def _room(self, size: int) -> Frame:
        believed = size <= self._believed
        return bytearray(size) if believed else memoryview(mmap(-1, size, flags=MAP_PRIVATE))
