"""Records of one topic and partition as columns. Built once per fetch, never per record."""

from collections.abc import Sequence
from typing import NamedTuple

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

    def following(self, index: int) -> int:
        """The position when the first `index` records are done."""
        return self.offsets[index] if index < len(self.offsets) else self.next_offset


class Chunk(NamedTuple):
    """Records `start` to `stop` of a batch; nothing is copied."""

    batch: Batch
    start: int
    stop: int
