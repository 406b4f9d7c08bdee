"""Decompression that cannot be made to fill the memory.

A batch of 3 kB can hold 100 MB of zeros. aiokafka's functions return whatever comes out; these
write into a buffer that grows up to a limit. Compressing is left to aiokafka's batch builder.
"""

import struct
from collections.abc import Callable

from cramjam import DecompressionError, gzip, lz4, snappy, zstd

from streamsx.errors import DataError

EXPANDED_BYTES_MAX = 64 << 20
EXPANDED_BYTES_MIN = 64 << 10
GROWTH = 8
"""The first buffer is 8 times the compressed bytes, as is each next one: JSON shrinks 4-6 times.
One buffer of 64 MiB would be simplest, but Python fills it with zeros: 30 ms per batch."""

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Kafka's names of them; their numbers in the attributes of a batch."""

Into = Callable[[memoryview, memoryview], int]
INTO: dict[int, Into] = {
    CODECS["gzip"]: gzip.decompress_into,
    CODECS["lz4"]: lz4.decompress_into,
    CODECS["zstd"]: zstd.decompress_into,
}

XERIAL = b"\x82SNAPPY\0"
XERIAL_HEADER_BYTES = 16
_block_length = struct.Struct(">i")


class NotExpandable(DataError):
    """Compressed bytes that are damaged, of an unknown codec, or too large once expanded."""


def expand(codec: int, payload: memoryview, head: int) -> memoryview:
    """The decompressed payload behind `head` bytes for the caller to fill.

    Raises NotExpandable, also when there would be more than EXPANDED_BYTES_MAX.
    """
    try:
        if codec == CODECS["snappy"]:
            return _expand_snappy(payload, head)
        return _expand(INTO[codec], payload, head)
    except KeyError:
        raise NotExpandable(f"compression codec {codec} is unknown") from None
    except (DecompressionError, struct.error) as error:
        limit = f"{EXPANDED_BYTES_MAX >> 20} MiB"
        raise NotExpandable(f"neither sound nor within {limit} once expanded: {error}") from None


def _expand(into: Into, payload: memoryview, head: int) -> memoryview:
    size = max(EXPANDED_BYTES_MIN, GROWTH * len(payload))
    while True:
        size = min(size, EXPANDED_BYTES_MAX)
        out = memoryview(bytearray(head + size))
        try:
            return out[: head + into(payload, out[head:])]
        except DecompressionError:
            if size == EXPANDED_BYTES_MAX:
                raise
        size *= GROWTH


def _expand_snappy(payload: memoryview, head: int) -> memoryview:
    """Each block says first how long it will be."""
    blocks = _xerial_blocks(payload) if payload[: len(XERIAL)] == XERIAL else [payload]
    size = sum(snappy.decompress_raw_len(block) for block in blocks)
    if size > EXPANDED_BYTES_MAX:
        raise DecompressionError(f"{size} bytes")
    out, at = memoryview(bytearray(head + size)), head
    for block in blocks:
        at += snappy.decompress_raw_into(block, out[at:])
    return out[:at]


def _xerial_blocks(payload: memoryview) -> list[memoryview]:
    """The framing of the Java library: a header, then blocks with their length in front."""
    blocks, at = [], XERIAL_HEADER_BYTES
    while at < len(payload):
        (length,) = _block_length.unpack_from(payload, at)
        if not 0 < length <= len(payload) - at - _block_length.size:
            raise DecompressionError(f"a block of {length} bytes at {at} of {len(payload)}")
        at += _block_length.size + length
        blocks.append(payload[at - length : at])
    return blocks
