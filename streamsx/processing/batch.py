"""Records of one topic and partition as columns. Built once per fetch, never per record."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from streamsx.errors import DecodeFailed
from streamsx.model import Headers


class Batch(NamedTuple):
    """Offsets ascend; all columns have one length; timestamps in ms since 1970.

    `headers` is None when no record of the batch has any. `next_offset` is the position behind the
    batch: also past control records and compaction holes.
    """

    topic: str
    partition: int
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Sequence[int]
    offsets: Sequence[int]
    headers: Sequence[Headers] | None
    next_offset: int
    unreadable: bool = False
    """A DecodeFailed stands in the place of some values: those records could not be read."""

    def error(self, index: int) -> DecodeFailed | None:
        """Return why a record could not be read; None for one that was."""
        value: object = self.values[index] if self.unreadable else None
        return value if isinstance(value, DecodeFailed) else None

    def following(self, index: int) -> int:
        """The position when the first `index` records are done."""
        return self.offsets[index] if index < len(self.offsets) else self.next_offset


class StreamTimes:
    """Stream time along a chunk: the running maximum of its timestamps, and of all that its task
    had taken `before`. Made when somebody asks, in one piece: so it costs nobody else anything,
    and is the same wherever batches are cut.
    """

    def __init__(self, batch: Batch, start: int, stop: int, before: int) -> None:
        self._offsets, self._start, self._stop = batch.offsets, start, stop
        self._stamps, self._before = batch.timestamps[start:stop], before

    @property
    def behind(self) -> int:
        """The last record."""
        return max(self._before, max(self._stamps, default=-1))

    @cached_property
    def _running(self) -> list[int]:
        return list(accumulate(self._stamps, max, initial=self._before))

    def at(self, index: int) -> int:
        """With the record of this index of the batch."""
        return self._running[index - self._start + 1]

    def below(self, offset: int) -> int:
        """With the records that are below an offset."""
        index = bisect_left(self._offsets, offset, self._start, self._stop)
        return self._running[index - self._start]


class Chunk(NamedTuple):
    """Records `start` to `stop` of a batch; nothing is copied. Whoever reads it has its `times`."""

    batch: Batch
    start: int
    stop: int
    times: StreamTimes | None = None
