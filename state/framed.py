"""Codecs of rows that hold times beside values: sessions, buffered records, rows with a time.

The row of a key with a time is the time, i64 big endian, and the encoded value: (time, value). A
value with a tag is 16 bytes and the encoded value: (tag, value).

Other rows are lists of entries, one behind the other. An entry is a header, big endian, and the
encoded value:

    session   i64 start, i64 end, u32 length of the value     -> [start, end, value]
    record    i64 time, u8 matched, u32 length of the value   -> [time, matched, value]

Entries are lists, so that a record changes its entry in place. A value of None has no bytes and
comes back as None.

Out of scope: the keys of these rows (`layout`), the meaning of their times.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from streamsx.serde.codec import Codec, Encode, Encoders, Quick
from streamsx.serde.roundtrip import LostPart, RoundTrip

SESSION: Final = struct.Struct(">qqI")
RECORD: Final = struct.Struct(">q?I")
TIME: Final = struct.Struct(">q")
TAG_BYTES: Final = 16
TAG: Final = struct.Struct(f">{TAG_BYTES}s")


def sessions_codec(values: Codec) -> Codec:
    """Return the codec of a key's sessions, ascending: lists of [start, end, value]."""
    return _framed(SESSION, values)


def entries_codec(values: Codec) -> Codec:
    """Return the codec of buffered records, as they came: lists of [time, matched, value]."""
    return _framed(RECORD, values)


def timed_codec(values: Codec) -> Codec:
    """Return the codec of values with a time in ms: pairs (time, value), never of None."""
    return _headed(TIME, values)


def tagged_codec(values: Codec) -> Codec:
    """Return the codec of values with a tag: pairs (tag, value), never of None."""
    return _headed(TAG, values)


def _headed(header: struct.Struct, values: Codec) -> Codec:
    """Return the codec of pairs: one field, and a value that is not None."""
    encoders = values.encoders
    decode = values.decode

    def write(row: tuple[Any, Any]) -> bytes:
        first, value = row
        return header.pack(first) + (encoders[type(value)](value) or b"")

    def read(data: bytes) -> tuple[Any, Any]:
        return header.unpack_from(data)[0], decode(data[header.size :])

    check = None if values.check is None else HeadedRoundTrip(values.check, header.size)
    return Codec(values.name, FramedEncoders(write), read, Quick(read), check)  # type: ignore[arg-type]


def second_times(raw: bytes) -> Iterator[int]:
    """Yield the ends of the sessions in a row, without decoding values."""
    at = 0
    while at < len(raw):
        _, end, length = SESSION.unpack_from(raw, at)
        yield end
        at += SESSION.size + length


def _framed(header: struct.Struct, values: Codec) -> Codec:
    frame = _framer(header, values.encoders)
    decode = _reader(header, values.decode)
    check = None if values.check is None else EntriesRoundTrip(values.check, values.encoders)
    return Codec(values.name, FramedEncoders(frame), decode, Quick(decode), check)


def _framer(header: struct.Struct, encoders: Encoders) -> Callable[[Any], bytes]:
    pack = header.pack

    def frame(entries: list[list[Any]]) -> bytes:
        parts = list[bytes]()
        for first, second, value in entries:
            raw = b"" if value is None else encoders[type(value)](value) or b""
            parts += (pack(first, second, len(raw)), raw)
        return b"".join(parts)

    return frame


def _reader(header: struct.Struct, decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
    unpack = header.unpack_from
    size = header.size

    def read(data: bytes) -> list[list[Any]]:
        entries = list[list[Any]]()
        at = 0
        while at < len(data):
            first, second, length = unpack(data, at)
            at += size + length
            entries.append([first, second, decode(data[at - length : at]) if length else None])
        return entries

    return read


class FramedEncoders(Encoders):
    """Encoders of lists of entries, whatever the type of the list."""

    def _choose(self, kind: type) -> Encode:
        return self._dumps

    def __init__(self, frame: Encode) -> None:
        super().__init__(None, frame)


class EntriesRoundTrip(RoundTrip):
    """Check of the values in entries, each as a value of its own."""

    def __init__(self, values: RoundTrip, encoders: Encoders) -> None:
        self._values = values
        self._encoders = encoders

    def all_come_back(self, values: Any, kinds: set[type], encoded: Any) -> bool:
        inner = [entry[2] for entries in values for entry in entries if entry[2] is not None]
        if self._values.kept.issuperset(map(type, inner)):
            return True
        raw = [self._encoders[type(value)](value) or b"" for value in inner]
        return self._values.first(inner, raw) is None

    def comes_back(self, value: Any, data: bytes) -> bool:
        return self.all_come_back([value], {list}, [data])

    def lost(self, value: Any) -> LostPart | None:
        found = (self._values.lost(entry[2]) for entry in value if entry[2] is not None)
        return next((part for part in found if part is not None), None)


class HeadedRoundTrip(RoundTrip):
    """Check of values in pairs, each as a value of its own."""

    def __init__(self, values: RoundTrip, header_bytes: int) -> None:
        self._values = values
        self._header_bytes = header_bytes

    def all_come_back(self, values: Any, kinds: set[type], encoded: Any) -> bool:
        raw = [data[self._header_bytes :] for data in encoded]
        return self._values.first([value for _, value in values], raw) is None

    def comes_back(self, value: Any, data: bytes) -> bool:
        return self._values.comes_back(value[1], data[self._header_bytes :])

    def lost(self, value: Any) -> LostPart | None:
        return self._values.lost(value[1])
