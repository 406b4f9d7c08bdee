"""Record batches that none of our clients makes, each with the right checksum."""

import struct
from collections.abc import Iterable, Sequence

from crc32c import crc32c

OddHeader = tuple[bytes | None, bytes | None]
LATIN_1 = "grün".encode("latin-1")
"""A header name as clients in C or Go may write it: it is not UTF-8."""
NOW = 1_700_000_000_000


def varint(number: int) -> bytes:
    """Return a number as a zigzag varint."""
    raw, made = (number << 1) ^ (number >> 63), bytearray()
    while raw > 0x7F:
        made.append(raw & 0x7F | 0x80)
        raw >>= 7
    return bytes([*made, raw])


def with_length(data: bytes | None) -> bytes:
    """Return nullable bytes in the form of a record."""
    return varint(-1) if data is None else varint(len(data)) + data


def odd_record(
    delta: int, value: bytes | None = b"v", headers: Sequence[OddHeader] = (), *,
    key: bytes | None = None, time: int = 0, attributes: int = 0, headers_count: int | None = None,
    length: int | None = None, tail: bytes = b"",
) -> bytes:  # fmt: skip
    """Return one record at `delta` from the offset of its batch.

    `headers_count` and `length` may be wrong; `tail` follows the record and counts.
    """
    body = bytes([attributes]) + varint(time) + varint(delta)
    body += with_length(key) + with_length(value)
    body += varint(len(headers) if headers_count is None else headers_count)
    body += b"".join(with_length(part) for header in headers for part in header) + tail
    return varint(len(body) if length is None else length) + body


def odd_batch(
    records: Iterable[bytes], base: int = 0, *, attributes: int = 0, time: int = NOW,
    count: int | None = None, last: int | None = None, payload: bytes | None = None,
) -> bytes:  # fmt: skip
    """Return a batch of these records; `payload` stands in their place."""
    made = list(records)
    count = len(made) if count is None else count
    last = len(made) - 1 if last is None else last
    body = struct.pack(">hiqqqhii", attributes, last, time, time, -1, -1, -1, count)
    body += b"".join(made) if payload is None else payload
    return struct.pack(">qiibI", base, len(body) + 9, -1, 2, crc32c(body)) + body
