"""Kafka's default partitioner for a whole Arrow column of keys; `protocol.partitioner` for one key.

The hash advances word by word over the whole column, not key by key. Not here: records without a
key.
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
    """Return the partition of each key, from 0 to `partitions` - 1. No key may be null."""
    return ((murmur2(keys) & POSITIVE) % np.uint32(partitions)).astype(np.int32)


def murmur2(keys: pa.BinaryArray) -> U32:
    """Return the murmur2 hash of each key. The array may be a slice of another array."""
    assert not keys.null_count, "no key, no partition"
    _, ends, held = keys.buffers()
    rows = slice(keys.offset, keys.offset + len(keys) + 1)
    ends = np.frombuffer(ends, np.int32)[rows].astype(np.int64) if len(keys) else np.zeros(1, int)
    start = ends[:-1]
    length = np.diff(ends)
    # An incomplete last word is read as a whole word, with any bytes that follow the key; `mask`
    # removes them. Four zero bytes follow the last key, so that its last word can be read too.
    held = np.frombuffer(held, np.uint8)[: ends[-1]] if held else np.empty(0, np.uint8)
    octets = np.concatenate([held, np.zeros(4, np.uint8)])
    word_at = np.ndarray((len(octets) - 3,), "<u4", octets, strides=(1,))  # a word at each byte
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
