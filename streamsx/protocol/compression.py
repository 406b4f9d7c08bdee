"""Decompression with a limit on memory.

A batch of 3 kB can hold 100 MB of zeros. aiokafka's functions return any amount of output; the
functions here write into a buffer that grows up to a limit. Not here: compression (aiokafka's batch
builder).
"""

import struct
from collections.abc import Callable

from cramjam import DecompressionError, gzip, lz4, snappy, zstd

from streamsx.errors import DataError

EXPANDED_BYTES_MAX = 64 << 20
EXPANDED_BYTES_MIN = 64 << 10
GROWTH = 8
"""Growth factor: the first buffer is 8 times the compressed bytes, and each next one is 8 times
larger. JSON shrinks 4-6 times. One buffer of 64 MiB would be simplest, but Python fills the buffer
with zeros: 30 ms per batch.
"""

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Codec names of Kafka, and their numbers in the attributes of a batch."""

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
    """Error for compressed bytes that are damaged, of an unknown codec, or too large when
    expanded.
    """


def expand(codec: int, payload: memoryview, head: int) -> memoryview:
    """Decompress a payload, leaving `head` bytes in front for the caller to fill.

    Raises:
        NotExpandable: The bytes are damaged, or expand to more than EXPANDED_BYTES_MAX.
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
    """Decompress snappy; each block begins with its decompressed length."""
    blocks = _xerial_blocks(payload) if payload[: len(XERIAL)] == XERIAL else [payload]
    size = sum(snappy.decompress_raw_len(block) for block in blocks)
    if size > EXPANDED_BYTES_MAX:
        raise DecompressionError(f"{size} bytes")
    out = memoryview(bytearray(head + size))
    at = head
    for block in blocks:
        at += snappy.decompress_raw_into(block, out[at:])
    return out[:at]


def _xerial_blocks(payload: memoryview) -> list[memoryview]:
    """Split the framing of the Java library: a header, then blocks with their length in front."""
    blocks = []
    at = XERIAL_HEADER_BYTES
    while at < len(payload):
        (length,) = _block_length.unpack_from(payload, at)
        if not 0 < length <= len(payload) - at - _block_length.size:
            raise DecompressionError(f"a block of {length} bytes at {at} of {len(payload)}")
        at += _block_length.size + length
        blocks.append(payload[at - length : at])
    return blocks
