"""Record batches of version 2: scan, read into columns, build, patch.

Raw bytes become columns: one list of keys, one of values and so on per fetched slice of a log,
never an object per record. aiokafka's compiled parser and builder handle the bytes of single
records, `crc32c` the checksums. Formats older than magic 2 are refused. Not here: how a log treats
batches and which of them may be read, except that aborted transactions are left out.
"""

import struct
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from aiokafka.errors import CorruptRecordException  # type: ignore[import-untyped]  # has no types
from aiokafka.record.default_records import (  # type: ignore[import-untyped]  # has no types
    DefaultRecord,
    DefaultRecordBatch,
    DefaultRecordBatchBuilder,
)
from crc32c import crc32c

from streamsx.errors import CorruptRecord
from streamsx.model import Buffer, Headers
from streamsx.protocol.compression import CODECS, NotExpandable, expand

MAGIC = 2
HEADER_BYTES = 61
LENGTH_END = 12
"""Position behind the length field. The length counts the bytes behind that field: neither the
field itself nor the base offset before it.
"""
CHECKED_FROM = 21
"""Position from which on the checksum covers the batch, beginning with the attributes: a broker may
set the fields before it.
"""
LAST_OFFSET_DELTA_AT = 23
MAX_TIMESTAMP_AT = 35
PRODUCER_AT = 43

MARKER_KEY_AT = HEADER_BYTES + 5
"""Position of a marker's key: one byte each of record length, attributes, two deltas, and key
length are in front.
"""

CODEC = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
TRANSACTION = TRANSACTIONAL | CONTROL

NO_TIMESTAMP = -1

NO_HEADERS: Headers = []

_header = struct.Struct(">qiibIhiqqqhii")
_base_offset = struct.Struct(">q")
_leader_epoch = struct.Struct(">i")
_crc = struct.Struct(">I")
_producer = struct.Struct(">qhi")
_attributes = struct.Struct(">h")
_max_timestamp = struct.Struct(">q")
_last_offset_delta = struct.Struct(">i")
_marker_key = struct.Struct(">hh")
"""Key of a marker: version, and whether the marker commits."""
_marker_value = struct.Struct(">hi")
"""Value of a marker: version, and the epoch of the coordinator, which never changes."""


class Header(NamedTuple):
    """Header of a batch: its first 61 bytes."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int

    @property
    def last_offset(self) -> int:
        """Return the last offset of the batch as written; compaction may have removed that
        record.
        """
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """Return the number of the compression codec, a value of compression.CODECS."""
        return self.attributes & CODEC

    @property
    def first_timestamp(self) -> int:
        """Return the timestamp of the first record, in ms."""
        appended = self.attributes & LOG_APPEND_TIME
        return self.max_timestamp if appended else self.base_timestamp

    @property
    def transactional(self) -> bool:
        """Return whether the batch belongs to a transaction: its records count once that
        is committed.
        """
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def control(self) -> bool:
        """Return whether the broker wrote the batch to end a transaction; it holds no user
        record.
        """
        return bool(self.attributes & CONTROL)


ParseBatch = Callable[[Header, memoryview], Iterable[Any]]
"""Parser from a complete batch to its records: objects with the attributes of aiokafka's
records.
"""


class Columns(NamedTuple):
    """Records of one partition in the order of their offsets. All columns have one length."""

    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: list[int]
    """Milliseconds since 1970, or NO_TIMESTAMP."""
    offsets: Sequence[int]
    """Offsets; a range if no offset is missing."""
    headers: list[Headers] | None
    """Headers; None if no record has any."""
    next_offset: int
    """Offset at which to continue reading: behind the last batch, even if that had no
    visible records.
    """


def scan(data: Buffer, *, check: bool) -> Generator[tuple[int, int, Header]]:
    """Yield (position, size, header) of each complete batch; stop at a last batch that is cut
    short.

    Takes 0.4 us per batch; with `check` 0.7 us, and 0.05 ns per byte.

    Raises:
        CorruptRecord: A batch is not of version 2, or, with `check`, its checksum is wrong. The
            error names the offset.
    """
    view = memoryview(data)
    at = 0
    end = len(data)
    unpack = _header.unpack_from
    make = Header._make
    while at + HEADER_BYTES <= end:
        header = make(unpack(view, at))
        size = header.length + LENGTH_END
        if header.magic != MAGIC or size < HEADER_BYTES:
            raise CorruptRecord(
                f"record batch at offset {header.base_offset}: magic {header.magic},"
                f" {size} bytes: not a batch of version 2"
            )
        if at + size > end:
            return
        if check and crc32c(view[at + CHECKED_FROM : at + size]) != header.crc:
            raise CorruptRecord(
                f"record batch at offset {header.base_offset}: its checksum is not {header.crc:#x}:"
                " damaged in the log or on the way"
            )
        yield at, size, header
        at += size


# Of the 300 ns per record in `columns`, 280 are aiokafka's parser and the appends. One pass that
# appends is 10 % faster than comprehensions over a list of records: aiokafka recycles a record that
# is dropped at once.
def columns(
    data: Buffer,
    start: int,
    *,
    aborted: Iterable[tuple[int, int]] = (),
    check: bool = True,
    slowly: ParseBatch | None = None,
) -> Columns:
    """Return the records from offset `start` on, in a slice of a log as a fetch returns it.

    Takes 300 ns per record in batches of 100 and more, 500 in batches of 10, 2 us for a single
    record (values of 100 bytes, checksum included).

    Args:
        aborted: (producer id, first offset) of aborted transactions, as in the response to a
            read_committed fetch; their records are left out.
        slowly: Reads the records of a batch in place of aiokafka's parser, each with its offset.

    Raises:
        CorruptRecord: A batch is damaged. The error names the offset.
    """
    view = memoryview(data)
    visible = _Visible(aborted)
    next_offset = start
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    times: list[int | None] = []
    offsets: list[Sequence[int]] = []
    headers: dict[int, Headers] = {}
    add_key = keys.append
    add_value = values.append
    add_time = times.append
    for at, size, header in scan(view, check=check):
        base = header.base_offset
        next_offset = header.last_offset + 1
        if header.attributes & TRANSACTION and not visible.keeps(header):
            continue
        try:
            found = (slowly or records)(header, view[at : at + size])
            if base >= start and header.records == next_offset - base and slowly is None:
                offsets.append(range(base, next_offset))
            else:  # the batch holds earlier records too, or compaction left holes
                found = [record for record in found if record.offset >= start]
                offsets.append([record.offset for record in found])
            for record in found:
                add_key(record.key)
                add_value(record.value)
                add_time(record.timestamp)
                if record.headers:
                    headers[len(keys) - 1] = record.headers
        except DAMAGES as error:
            raise _damaged(header, error) from None
    return Columns(
        keys,
        values,
        _known(times),
        _joined(offsets, len(keys)),
        [headers.get(i, []) for i in range(len(keys))] if headers else None,
        max(start, next_offset),
    )


class Piece(NamedTuple):
    """Complete batches of one partition in memory of their own, as `columns` takes them."""

    data: bytes
    start: int
    """First offset wanted; the first batch may begin before that offset."""
    next_offset: int
    aborted: tuple[tuple[int, int], ...]
    """Aborted transactions that overlap this piece, including those from an earlier piece."""


def pieces(
    data: Buffer, start: int, *, aborted: Iterable[tuple[int, int]] = (), records_max: int
) -> Iterator[Piece]:
    """Cut a slice of a log; each piece ends with the batch that gives it `records_max` or more.

    `aborted` describes the whole slice and would be wrong for a part. Example: a producer aborts a
    transaction, then commits ten thousand records, and the cut falls between. No marker in the
    second piece ends the aborted transaction, so all records that the producer committed there
    would be left out.

    Raises:
        CorruptRecord: A batch is not of version 2; raised after the last sound piece. Checksums are
            checked by `columns`.
    """
    view = memoryview(data)
    visible = _Visible(aborted)
    begin = 0
    end = 0
    records = 0
    next_offset = start
    damage = None
    try:
        for at, size, header in scan(view, check=False):
            if records >= records_max:
                yield Piece(bytes(view[begin:at]), start, next_offset, visible.reached())
                start = next_offset
                begin = at
                records = 0
            if header.attributes & TRANSACTION:
                visible.keeps(header)
            next_offset = header.base_offset + header.last_offset_delta + 1
            records += header.records
            end = at + size
    except CorruptRecord as error:
        damage = error
    if end > begin:
        yield Piece(bytes(view[begin:end]), start, next_offset, visible.reached())
    if damage is not None:
        raise damage


DAMAGES = (CorruptRecordException, UnicodeDecodeError, OverflowError, NotExpandable)
"""Errors from reading the records of a batch although its checksum is right."""


def _damaged(header: Header, error: Exception) -> CorruptRecord:
    return CorruptRecord(
        f"record batch at offset {header.base_offset}: {error}: damaged before it was written"
    )


def _known(times: list[int | None]) -> list[int]:
    """Replace None by NO_TIMESTAMP: aiokafka returns None there.

    Usually there is none, and `all` is a quick check.
    """
    if all(times):
        return times  # type: ignore[return-value]  # no None, as just checked
    return [NO_TIMESTAMP if time is None else time for time in times]


def _joined(parts: list[Sequence[int]], count: int) -> Sequence[int]:
    """Return a range if no offset is missing, which two ends and the count show: offsets only ever
    rise.
    """
    filled = [part for part in parts if part]
    if filled and filled[-1][-1] - filled[0][0] == count - 1:
        return range(filled[0][0], filled[-1][-1] + 1)
    return list(chain.from_iterable(filled))


class _Visible:
    """Filter of the batches that a reader of committed records sees (KIP-98).

    An aborted transaction spans from its first offset to the next marker of its producer. That
    marker is the one that aborted the transaction, because a producer has one transaction at a
    time.
    """

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._coming = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        self._open: dict[int, int] = {}
        """First offset by producer id, of aborted transactions that have begun and not ended."""
        self._reached: list[tuple[int, int]] = []

    def keeps(self, header: Header) -> bool:
        while self._coming and self._coming[-1][1] <= header.last_offset:
            self._reached.append(self._coming.pop())
            self._open.update(self._reached[-1:])
        if header.control:
            self._open.pop(header.producer_id, None)
            return False
        return header.producer_id not in self._open

    def reached(self) -> tuple[tuple[int, int], ...]:
        """Return the aborted transactions that were open at any time since the last call."""
        reached = tuple(self._reached)
        self._reached = list(self._open.items())
        return reached


def records(header: Header, batch: memoryview) -> DefaultRecordBatch:
    """Parse one complete batch with aiokafka's parser.

    Returns:
        An iterator of records with `offset`, `timestamp`, `key`, `value` and `headers`.

    Raises:
        CorruptRecordException: aiokafka's error for a damaged batch.
        NotExpandable: The batch cannot be expanded.
    """
    return DefaultRecordBatch(expanded(header, batch))


def expanded(header: Header, batch: memoryview) -> memoryview:
    """Return the batch without compression.

    Raises:
        NotExpandable: The batch cannot be expanded.
    """
    if not header.codec:
        return batch
    plain = expand(header.codec, batch[HEADER_BYTES:], HEADER_BYTES)
    plain[:HEADER_BYTES] = batch[:HEADER_BYTES]
    _attributes.pack_into(plain, CHECKED_FROM, header.attributes & ~CODEC)
    return plain


def records_within(header: Header, batch: memoryview) -> Iterator[DefaultRecord]:
    """Yield records as `records` does, and check that their offsets are within the batch.

    Callers rely on the offsets: a record beyond its batch would be newer than all that follow.

    Raises:
        DAMAGES: The batch is damaged.
    """
    for record in records(header, batch):
        if not header.base_offset <= record.offset <= header.last_offset:
            raise CorruptRecordException(f"a record at offset {record.offset}")
        yield record


def place(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write base offset and leader epoch into a batch, in place; the checksum stays valid."""
    _base_offset.pack_into(batch, 0, base_offset)
    _leader_epoch.pack_into(batch, LENGTH_END, leader_epoch)


def rebuild(header: Header, kept: Sequence[DefaultRecord]) -> bytearray:
    """Build a batch from some records of another batch, with their offsets and contents,
    for a log.
    """
    builder = DefaultRecordBatchBuilder(
        MAGIC, header.codec, header.transactional, header.producer_id, header.producer_epoch,
        header.base_sequence, sys.maxsize,
    )  # fmt: skip
    for each in kept:
        time = NO_TIMESTAMP if each.timestamp is None else each.timestamp
        builder.append(each.offset - header.base_offset, time, each.key, each.value, each.headers)
    batch: bytearray = builder.build()
    place(batch, header.base_offset, header.leader_epoch)
    (attributes,) = _attributes.unpack_from(batch, CHECKED_FROM)
    times = header.attributes & LOG_APPEND_TIME  # the records already have the append time
    _attributes.pack_into(batch, CHECKED_FROM, attributes | times)
    _last_offset_delta.pack_into(batch, LAST_OFFSET_DELTA_AT, header.last_offset_delta)
    _seal(batch)
    return batch


def emptied(header: Header) -> bytearray:
    """Build the remains of a batch that lost all its records, for a log: its producer and its
    sequences.
    """
    left = {"length": HEADER_BYTES - LENGTH_END, "records": 0}
    batch = bytearray(HEADER_BYTES)
    _header.pack_into(batch, 0, *header._replace(attributes=header.attributes & ~CODEC, **left))
    _seal(batch)
    return batch


def marker(producer_id: int, epoch: int, timestamp: int, *, commit: bool) -> bytearray:
    """Build the control batch that ends a transaction (KIP-98)."""
    builder = Builder(HEADER_BYTES, transactional=True)
    builder.append(timestamp, _marker_key.pack(0, commit), _marker_value.pack(0, 0))
    batch = builder.close(producer_id, epoch)
    _attributes.pack_into(batch, CHECKED_FROM, TRANSACTION)
    _seal(batch)
    return batch


def commits(header: Header, batch: Buffer) -> bool | None:
    """Return whether a marker commits; None for a batch of records.

    Raises:
        CorruptRecord: The marker is too short.
    """
    if not header.control:
        return None
    try:
        return bool(_marker_key.unpack_from(batch, MARKER_KEY_AT)[1])
    except struct.error as error:
        raise _damaged(header, error) from None


def stamp(batch: bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Give a closed batch another producer id, epoch and sequence, in place (KIP-360)."""
    _producer.pack_into(batch, PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    _seal(batch)


def restamp(batch: memoryview, header: Header, newest: int, *, appended: bool) -> Header:
    """Set the largest timestamp of a batch, in ms, in place; return the resulting header.

    With `appended` that is the timestamp of each record (LogAppendTime), whatever the records
    contain.
    """
    set_to = LOG_APPEND_TIME if appended else 0
    attributes = header.attributes & ~LOG_APPEND_TIME | set_to
    _attributes.pack_into(batch, CHECKED_FROM, attributes)
    _max_timestamp.pack_into(batch, MAX_TIMESTAMP_AT, newest)
    _seal(batch)
    return header._replace(attributes=attributes, max_timestamp=newest)


def _seal(batch: bytearray | memoryview) -> None:
    _crc.pack_into(batch, CHECKED_FROM - _crc.size, crc32c(memoryview(batch)[CHECKED_FROM:]))


class Builder:
    """Open batch. Producer and sequence are set when the batch is closed.

    `limit` bounds the uncompressed bytes: a record that no longer fits is not appended. The first
    record always fits, so a record over the topic's limit shows as a `size` over the limit.
    """

    __slots__ = ("_batch", "add", "count")

    def __init__(self, limit: int, *, compression: str = "none", transactional: bool = False):
        self._batch = DefaultRecordBatchBuilder(
            MAGIC, CODECS[compression], transactional, -1, -1, -1, limit
        )
        self.add: Callable[..., object | None] = self._batch.append
        """Append for the record path, where the call of `append` would be a third of the time.
        Takes `count`, timestamp, key, value and headers. Returns None if the record no longer fits;
        otherwise the caller adds one to `count`. 90 ns.
        """
        self.count = 0

    @property
    def size(self) -> int:
        """Return the uncompressed bytes so far, header included."""
        size: int = self._batch.size()
        return size

    def append(
        self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers = NO_HEADERS
    ) -> bool:
        """Append a record; return whether the record still fitted. Takes 130 ns for 100 bytes.

        A batch that begins without a time (-1) takes only records without a time: aiokafka gives
        records ahead of the first time that very time.
        """
        if not self.count and timestamp == NO_TIMESTAMP:
            self.add = self._add_without_time
        if self.add(self.count, timestamp, key, value, headers) is None:
            return False
        self.count += 1
        return True

    def _add_without_time(self, count: int, timestamp: int, *record: Any) -> object | None:
        if timestamp != NO_TIMESTAMP:
            return None
        added: object | None = self._batch.append(count, timestamp, *record)
        return added

    def extend(
        self,
        timestamp: int,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        first: int = 0,
    ) -> int:
        """Append rows from index `first` on. Takes 100 ns per row of 100 bytes.

        Returns:
            The index of the row that no longer fitted, or the number of rows.
        """
        append = self.add
        offset = self.count
        for row in range(first, len(keys)):
            if append(offset, timestamp, keys[row], values[row], NO_HEADERS) is None:
                break
            offset += 1
        first += offset - self.count
        self.count = offset
        return first

    def close(
        self, producer_id: int = -1, producer_epoch: int = -1, base_sequence: int = -1
    ) -> bytearray:
        """Return the finished batch; no append may follow. Takes 60 ns per record of 100 bytes."""
        self._batch.set_producer_state(producer_id, producer_epoch, base_sequence)
        batch: bytearray = self._batch.build()
        return batch


class BatchFormat(NamedTuple):
    """Format of the batches of one producer."""

    compression: str = "none"
    transactional: bool = False

    def builder(self, limit: int) -> Builder:
        """Return an open batch of at most `limit` bytes."""
        return Builder(limit, compression=self.compression, transactional=self.transactional)
