"""Columns of records of one topic and partition. Built once per fetch, never per record."""

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from streamsx.errors import DecodeFailed
from streamsx.model import Headers

if TYPE_CHECKING:
    from streamsx.processing.progress import TimeMark


class Batch(NamedTuple):
    """Records of one partition as columns of one length, in ascending order of offsets.

    Timestamps are in ms since 1970. `headers` is None when no record of the batch has any.
    `next_offset` is the position behind the batch, also past control records and the holes that
    compaction leaves.
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
    """Whether a DecodeFailed replaces the values of some records, which could not be read."""
    marks: Sequence["TimeMark"] = ()
    """Times that the writers of the topic tell, in order."""

    def error(self, index: int) -> DecodeFailed | None:
        """Return the reason why a record could not be read; None for a readable record."""
        value: object = self.values[index] if self.unreadable else None
        return value if isinstance(value, DecodeFailed) else None

    def following(self, index: int) -> int:
        """Return the position at which the first `index` records are done."""
        return self.offsets[index] if index < len(self.offsets) else self.next_offset


class StreamTimes:
    """Stream time along a chunk, in ms.

    Stream time is the running maximum of the chunk's timestamps and of `before`, the maximum of
    all records that the task took earlier. The column is computed when first needed, in one piece:
    tasks that never ask for stream time pay nothing, and the result does not depend on the cuts
    between batches.
    """

    def __init__(self, batch: Batch, start: int, stop: int, before: int) -> None:
        self._offsets = batch.offsets
        self._start = start
        self._stop = stop
        self._stamps = batch.timestamps[start:stop]
        self._before = before

    @property
    def behind(self) -> int:
        """Return the stream time after the last record."""
        return max(self._before, max(self._stamps, default=-1))

    @cached_property
    def _running(self) -> list[int]:
        return list(accumulate(self._stamps, max, initial=self._before))

    def at(self, index: int) -> int:
        """Return the stream time including the record at this index of the batch."""
        return self._running[index - self._start + 1]

    def below(self, offset: int) -> int:
        """Return the stream time after all records below an offset."""
        index = bisect_left(self._offsets, offset, self._start, self._stop)
        return max(self._before, max(self._stamps[: index - self._start], default=-1))


class Chunk(NamedTuple):
    """Records `start` to `stop` of a batch, without a copy. Readers find stream time in `times`."""

    batch: Batch
    start: int
    stop: int
    times: StreamTimes | None = None

    @property
    def work(self) -> int:
        """Return the number of records, and of times that writers tell."""
        records = self.stop - self.start
        if not self.batch.marks:
            return records
        return records + sum(self.start <= mark.place <= self.stop for mark in self.batch.marks)
