"""Codec of user data: numbers, texts, task lists, and the tagged fields that hold them.

The layout is `u8 version, u8 min_reader`, then fields: `varint tag, varint length, bytes`, in
ascending order of tags, with empty values left out. Varints are unsigned LEB128. Readers skip
unknown tags. A tag is never used again for another meaning. A change of meaning that a reader must
know raises `min_reader`, so no member probes versions, whichever version leads. The tags themselves
are listed in `wire`.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from streamsx.errors import DataError
from streamsx.model import TaskId
from streamsx.protocol.compiler import put_varint

FORMAT = 1
VARINT_BYTES_MAX = 9  # 63 bits


class Unreadable(DataError):
    """User data that are damaged, or too new for this version."""


class Reader:
    """Sequential reader of user data; raises Unreadable when bytes are missing."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise Unreadable(f"user data ends early: byte {len(self._data)}: {count} more needed")
        self._at += count
        return found

    def number(self) -> int:
        value = 0
        for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise Unreadable(f"user data has a number without end: byte {self._at}: 63 bits at most")

    def text(self) -> str:
        return self.take(self.number()).decode()

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)


def number(value: int) -> bytes:
    assert value >= 0, f"varints are unsigned: {value}"
    out = bytearray()
    put_varint(out, value)
    return bytes(out)


def text(value: str) -> bytes:
    data = value.encode()
    return number(len(data)) + data


def tasks(ids: Iterable[TaskId], lags: Mapping[TaskId, int | None] | None = None) -> bytes:
    """Encode tasks by sub-topology: number, count, then for each task the gap to the previous one.

    With `lags` each gap is followed by lag + 1, or 0 for an unknown lag.
    """
    groups = [(sub, list(group)) for sub, group in groupby(sorted(ids), lambda t: t.subtopology)]
    out = bytearray(number(len(groups)))
    for subtopology, group in groups:
        out += number(subtopology) + number(len(group))
        previous = -1
        for task in group:
            out += number(task.partition - previous - 1)
            previous = task.partition
            if lags is not None:
                lag = lags[task]
                out += number(0 if lag is None else lag + 1)
    return bytes(out)


def read_lags(reader: Reader, *, lags: bool) -> dict[TaskId, int | None]:
    found: dict[TaskId, int | None] = {}
    for _ in range(reader.number()):
        subtopology = reader.number()
        count = reader.number()
        partition = -1
        for _ in range(count):
            partition += reader.number() + 1
            lag = reader.number() if lags else 0
            found[TaskId(subtopology, partition)] = lag - 1 if lag else None
    return found


def read_tasks(reader: Reader) -> frozenset[TaskId]:
    return frozenset(read_lags(reader, lags=False))


class TagField(NamedTuple):
    """One tag: name of a value, the value when the tag is absent, writer and reader."""

    tag: int
    name: str
    absent: Any
    write: Callable[[Any], bytes]
    read: Callable[[Reader], Any]


def numeric(tag: int, name: str, absent: int | None = 0) -> TagField:
    return TagField(tag, name, absent, number, Reader.number)


def textual(tag: int, name: str, absent: str | None) -> TagField:
    return TagField(tag, name, absent, str.encode, lambda reader: reader.rest().decode())


def listing(tag: int, name: str) -> TagField:
    return TagField(tag, name, frozenset(), tasks, read_tasks)


def write_fields(data: object, fields: Iterable[TagField], **derived: int | str | None) -> bytes:
    out = bytearray((FORMAT, FORMAT))
    for field in fields:
        value = derived[field.name] if field.name in derived else getattr(data, field.name)
        if value != field.absent:
            body = field.write(value)
            out += number(field.tag) + number(len(body)) + body
    return bytes(out)


def read_fields(data: bytes, fields: Iterable[TagField]) -> dict[str, Any]:
    by_tag = {field.tag: field for field in fields}
    values = {field.name: field.absent for field in fields}
    reader = Reader(data)
    version, min_reader = reader.take(2)
    if min_reader > FORMAT:
        raise Unreadable(f"user data of format {version}: needs a reader of {min_reader}: update")
    while reader.more:
        tag = reader.number()
        body = Reader(reader.take(reader.number()))
        if tag not in by_tag:
            continue
        try:
            values[by_tag[tag].name] = by_tag[tag].read(body)
        except (ValueError, struct.error) as error:
            raise Unreadable(f"user data is damaged: tag {tag}: {error}") from error
        if body.more:
            raise Unreadable(f"user data is damaged: tag {tag}: longer than it says")
    return values
