"""Which partition each key of an Arrow column belongs to: `kafka.partitioner`, for all of them.

Word by word over the whole column, and not key by key. Not here: what has no key.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SEED: Final = np.uint32(0x9747B28C)
M: Final = np.uint32(0x5BD1E995)
POSITIVE: Final = np.uint32(0x7FFFFFFF)

U32 = npt.NDArray[np.uint32]


def partitions_of(keys: pa.BinaryArray, partitions: int) -> npt.NDArray[np.int32]:
    """0 to `partitions` - 1 for each key; null is none."""
    return ((murmur2(keys) & POSITIVE) % np.uint32(partitions)).astype(np.int32)


def murmur2(keys: pa.BinaryArray) -> U32:
    """Of each key; the array may be a slice of another one."""
    assert not keys.null_count, "no key, no partition"
    _, ends, held = keys.buffers()
    rows = slice(keys.offset, keys.offset + len(keys) + 1)
    ends = np.frombuffer(ends, np.int32)[rows].astype(np.int64) if len(keys) else np.zeros(1, int)
    start, length = ends[:-1], np.diff(ends)
    # A last word that is not whole is read to its end, whatever stands there, and so is its key.
    held = np.frombuffer(held, np.uint8)[: ends[-1]] if held else np.empty(0, np.uint8)
    octets = np.concatenate([held, np.zeros(4, np.uint8)])
    word_at = np.ndarray((len(octets) - 3,), "<u4", octets, strides=(1,))  # one at each byte
    h = SEED ^ length.astype(np.uint32)
    words = length >> 2
    with np.errstate(over="ignore"):
        for word in range(words.max(initial=0)):
            has = slice(None) if word < words.min() else np.flatnonzero(words > word)
            k = word_at[start[has] + 4 * word] * M
            h[has] = h[has] * M ^ (k ^ k >> np.uint32(24)) * M
        rest = (length & 3).astype(np.uint32)
        has = np.flatnonzero(rest)
        mask = (np.uint32(1) << rest[has] * np.uint32(8)) - np.uint32(1)
        tail = word_at[(start + 4 * words)[has]] & mask
        h[has] = (h[has] ^ tail) * M
        h = (h ^ h >> np.uint32(13)) * M
    return h ^ h >> np.uint32(15)
