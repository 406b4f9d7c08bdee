"""Record batches: read as columns, as written; damage is named by its offset."""

import struct
from collections.abc import Callable

import pytest
from aiokafka.codec import (  # type: ignore[import-untyped]  # has no types
    gzip_encode,
    lz4_encode,
    snappy_encode,
    zstd_encode,
)
from aiokafka.record.default_records import (  # type: ignore[import-untyped]  # has no types
    DefaultRecordBatchBuilder,
)
from crc32c import crc32c

from streamsx.errors import CorruptRecord
from streamsx.protocol import record_batch
from streamsx.protocol.compression import EXPANDED_BYTES_MAX
from streamsx.protocol.record_batch import Builder, Piece, columns, scan

NOW = 1_700_000_000_000
LIMIT = 1 << 20
ABORTS, COMMITS = 0, 1


def at(base_offset: int, closed: bytearray) -> bytearray:
    record_batch.place(closed, base_offset, 0)
    return closed


def numbers(base: int, count: int, compression: str = "none") -> bytearray:
    """Return a batch of `count` records from offset `base` on, each with its offset as key and
    value.
    """
    builder = Builder(LIMIT, compression=compression)
    for i in range(base, base + count):
        assert builder.append(NOW + i, b"k%d" % i, b"v%d" % i)
    return at(base, builder.close())


def resealed(data: bytearray) -> bytearray:
    """Return the batch with the checksum that fits, as if it had been written so."""
    struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))
    return data


def transactional(base: int, producer: int, value: bytes) -> bytearray:
    builder = Builder(LIMIT, transactional=True)
    builder.append(NOW, None, value)
    return at(base, builder.close(producer, 0, 0))


def marker(base: int, producer: int, kind: int) -> bytearray:
    builder = Builder(LIMIT, transactional=True)
    builder.append(NOW, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
    data = builder.close(producer, 0, -1)
    data[22] |= record_batch.CONTROL
    return at(base, resealed(data))


def test_records_read_as_columns() -> None:
    read = columns(numbers(10, 3) + numbers(13, 2), 10)

    assert read.keys == [b"k10", b"k11", b"k12", b"k13", b"k14"]
    assert read.values == [b"v10", b"v11", b"v12", b"v13", b"v14"]
    assert read.timestamps == [NOW + i for i in range(10, 15)]
    assert read.offsets == range(10, 15)
    assert read.headers is None
    assert read.next_offset == 15


def test_empty_data_read_as_empty_columns() -> None:
    assert columns(b"", 7) == ([], [], [], [], None, 7)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_read_like_plain_batches(compression: str) -> None:
    data = numbers(0, 500, compression)
    assert (len(data) < len(numbers(0, 500))) == (compression != "none")
    assert columns(data, 0) == columns(numbers(0, 500), 0)


def test_snappy_without_java_framing_is_read() -> None:
    plain = numbers(0, 50)
    data = plain[:61] + bytearray(snappy_encode(plain[61:], xerial_compatible=False))
    data[22] |= 2
    struct.pack_into(">i", data, 8, len(data) - 12)
    assert columns(resealed(data), 0) == columns(plain, 0)


def test_records_below_requested_offset_are_dropped() -> None:
    read = columns(numbers(10, 5) + numbers(15, 1), 13)
    assert (read.keys, read.offsets) == ([b"k13", b"k14", b"k15"], range(13, 16))


def test_batch_ending_below_requested_offset_returns_nothing() -> None:
    assert columns(numbers(0, 5), 9) == ([], [], [], [], None, 9)


def test_compaction_gaps_appear_in_offsets() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, LIMIT)
    for delta in (0, 3, 4):
        builder.append(delta, NOW, b"k", b"v", [])
    data = at(100, builder.build())

    read = columns(data + numbers(107, 2), 100)
    assert read.offsets == [100, 103, 104, 107, 108]
    assert read.next_offset == 109


def test_missing_batch_leaves_gap_in_offsets() -> None:
    assert columns(numbers(0, 2) + numbers(5, 1), 0).offsets == [0, 1, 5]


def test_batch_emptied_by_compaction_advances_position() -> None:
    data = at(50, Builder(LIMIT).close())
    struct.pack_into(">i", data, 23, 9)
    read = columns(resealed(data), 50)
    assert (read.keys, read.next_offset) == ([], 60)


def test_truncated_last_batch_left_for_next_fetch() -> None:
    whole, cut = numbers(0, 3), numbers(3, 3)[:-1]
    assert columns(whole + cut, 0).next_offset == 3
    assert columns(whole + cut[:11], 0).next_offset == 3
    assert columns(cut, 3).next_offset == 3


def test_headers_column_present_only_if_a_record_has_headers() -> None:
    builder = Builder(LIMIT)
    builder.append(NOW, b"a", None)
    builder.append(NOW, b"b", None, [("trace", b"1"), ("null", None)])
    read = columns(builder.close() + numbers(2, 1), 0)
    assert read.headers == [[], [("trace", b"1"), ("null", None)], []]


def test_null_keys_null_values_and_unknown_timestamps_are_read() -> None:
    unknown, zero = Builder(LIMIT), Builder(LIMIT)
    unknown.append(record_batch.NO_TIMESTAMP, None, None)
    zero.append(0, None, b"")
    read = columns(unknown.close() + at(1, zero.close()), 0)
    assert (read.keys, read.values, read.timestamps) == ([None, None], [None, b""], [-1, 0])


def test_highly_compressed_batch_is_expanded() -> None:
    builder = Builder(1 << 24, compression="zstd")
    builder.append(NOW, b"k", bytes(10_000_000))
    data = builder.close()
    assert len(data) < 100_000
    assert columns(data, 0).values == [bytes(10_000_000)]


def test_log_append_time_overrides_record_timestamps() -> None:
    data = numbers(0, 2)
    data[22] |= record_batch.LOG_APPEND_TIME
    struct.pack_into(">q", data, 35, NOW + 99)
    assert columns(resealed(data), 0).timestamps == [NOW + 99] * 2


def test_wrong_checksum_error_names_offset() -> None:
    data = numbers(0, 3) + numbers(3, 3)
    data[-2] ^= 1
    with pytest.raises(CorruptRecord, match="record batch at offset 3: its checksum is not 0x"):
        columns(data, 0)
    assert columns(data, 0, check=False).values[-1] == b"v4"


@pytest.mark.parametrize(("position", "byte"), [(16, 1), (11, 0)])
def test_unknown_batch_version_error_names_offset(position: int, byte: int) -> None:
    data = numbers(3, 3)
    data[8:11] = bytes(3)
    data[position] = byte
    with pytest.raises(CorruptRecord, match=r"at offset 3: .* not a batch of version 2"):
        list(scan(data, check=False))


def test_inconsistent_records_error_names_offset() -> None:
    data = numbers(3, 3)
    data[60] = 2
    with pytest.raises(CorruptRecord, match=r"at offset 3: .* unconsumed bytes"):
        columns(resealed(data), 3)


@pytest.mark.parametrize(
    ("codec", "encode"), [(1, gzip_encode), (2, snappy_encode), (3, lz4_encode), (4, zstd_encode)]
)
def test_batch_expanding_beyond_limit_raises_corrupt_record(
    codec: int, encode: Callable[[bytes], bytes]
) -> None:
    data = numbers(8, 1)[:61] + bytearray(encode(bytes(EXPANDED_BYTES_MAX + 1)))
    data[22] |= codec
    struct.pack_into(">i", data, 8, len(data) - 12)
    with pytest.raises(CorruptRecord, match="at offset 8: neither sound nor within 64 MiB"):
        columns(resealed(data), 8)


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 5])
def test_decompression_failure_names_offset(codec: int) -> None:
    data = numbers(8, 1)
    data[22] |= codec
    with pytest.raises(CorruptRecord, match="record batch at offset 8: "):
        columns(resealed(data), 8)


def test_records_of_aborted_transaction_are_left_out() -> None:
    data = (
        transactional(0, 7, b"aborted")
        + transactional(1, 8, b"committed")
        + marker(2, 7, ABORTS)
        + transactional(3, 7, b"the next one")
        + marker(4, 8, COMMITS)
        + numbers(5, 1)
        + marker(6, 7, COMMITS)
    )
    read = columns(data, 0, aborted=[(7, 0)])
    assert read.values == [b"committed", b"the next one", b"v5"]
    assert (read.offsets, read.next_offset) == ([1, 3, 5], 7)
    assert len(columns(data, 0).values) == 4


def test_two_aborted_transactions_of_one_producer_are_separate_ranges() -> None:
    data = (
        transactional(0, 7, b"one")
        + marker(1, 7, ABORTS)
        + transactional(2, 7, b"good")
        + marker(3, 7, COMMITS)
        + transactional(4, 7, b"two")
        + marker(5, 7, ABORTS)
    )
    assert columns(data, 0, aborted=[(7, 4), (7, 0)]).values == [b"good"]


def test_fetch_inside_aborted_transaction_leaves_records_out() -> None:
    data = transactional(5, 7, b"late") + marker(6, 7, ABORTS)
    assert columns(data, 5, aborted=[(7, 2)]) == ([], [], [], [], None, 7)


def test_scan_yields_position_size_and_header() -> None:
    first, second = numbers(0, 3), transactional(3, 9, b"x")
    record_batch.place(second, 3, 4)
    (at_0, size_0, head_0), (at_1, size_1, head_1) = scan(first + second, check=True)
    assert (at_0, size_0, at_1, size_1) == (0, len(first), len(first), len(second))
    assert (head_0.last_offset, head_0.records, head_0.max_timestamp) == (2, 3, NOW + 2)
    assert (head_0.transactional, head_0.control, head_0.codec) == (False, False, 0)
    assert (head_1.transactional, head_1.leader_epoch, head_1.producer_id) == (True, 4, 9)


def test_placing_batch_keeps_checksum() -> None:
    data = numbers(0, 1)
    record_batch.place(data, 1 << 40, 17)
    ((_, _, header),) = scan(data, check=True)
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 17)


def test_closed_batch_stamped_for_another_producer() -> None:
    data = Builder(LIMIT).close(1, 2, 3)
    record_batch.stamp(data, 10, 20, 30)
    ((_, _, header),) = scan(data, check=True)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (10, 20, 30)


def test_builder_refuses_record_beyond_limit() -> None:
    builder = Builder(200)
    fitted = [builder.append(NOW, b"k", bytes(40)) for _ in range(5)]
    assert fitted == [True, True, False, False, False]
    assert (builder.count, len(columns(builder.close(), 0).keys)) == (2, 2)


def test_builder_accepts_first_record_of_any_size() -> None:
    builder = Builder(100)
    assert builder.append(NOW, None, bytes(500))
    assert builder.size > 500


def test_rows_split_over_batches() -> None:
    keys, values = [b"%d" % i for i in range(100)], [bytes(50)] * 100
    row, batches = 0, []
    while row < len(keys):
        builder = Builder(1000)
        row = builder.extend(NOW, keys, values, row)
        batches.append(builder.close())
    assert len(batches) > 5
    assert [key for each in batches for key in columns(each, 0).keys] == keys
    assert all(len(each) <= 1000 for each in batches)


def told(
    data: bytearray, aborted: list[tuple[int, int]], records_max: int
) -> list[list[bytes | None]]:
    """Return the values of each piece, as a read_committed reader gets them."""
    cut = record_batch.pieces(data, 0, aborted=aborted, records_max=records_max)
    return [columns(piece.data, piece.start, aborted=piece.aborted).values for piece in cut]


def test_piece_ends_with_batch_reaching_record_limit() -> None:
    data = numbers(0, 3) + numbers(3, 1) + numbers(4, 1) + numbers(9, 4) + numbers(13, 2)[:-1]
    first, second = record_batch.pieces(data, 1, records_max=4)
    assert first == Piece(bytes(numbers(0, 3) + numbers(3, 1)), 1, 4, ())
    assert second == Piece(bytes(numbers(4, 1) + numbers(9, 4)), 4, 13, ())


def test_piece_copies_data_and_releases_frame() -> None:
    frame = memoryview(numbers(0, 3) + bytes(1000))
    (piece,) = record_batch.pieces(frame[: len(numbers(0, 3))], 0, records_max=10)
    assert type(piece.data) is bytes


def test_incomplete_batch_gives_no_piece() -> None:
    assert list(record_batch.pieces(numbers(0, 3)[:-1], 0, records_max=1)) == []


def test_invalid_batch_raises_after_last_sound_piece() -> None:
    second = numbers(3, 3)
    second[16] = 1
    cut = record_batch.pieces(numbers(0, 3) + second, 0, records_max=10)
    assert next(cut) == Piece(bytes(numbers(0, 3)), 0, 3, ())
    with pytest.raises(CorruptRecord, match="at offset 3: magic 1"):
        next(cut)


def test_abort_in_earlier_piece_does_not_hide_next_transaction() -> None:
    """With the list of the whole slice no marker ended it there, and the committed one was lost."""
    data = (
        transactional(0, 7, b"aborted")
        + marker(1, 7, ABORTS)
        + transactional(2, 7, b"one")
        + transactional(3, 7, b"two")
        + marker(4, 7, COMMITS)
    )
    assert told(data, [(7, 0)], 2) == [[], [b"one", b"two"], []]


def test_aborted_transaction_spanning_pieces_left_out_up_to_marker() -> None:
    data = (
        transactional(0, 7, b"one")
        + transactional(1, 8, b"kept")
        + transactional(2, 7, b"two")
        + marker(3, 7, ABORTS)
        + transactional(4, 7, b"good")
        + marker(5, 8, COMMITS)
        + marker(6, 7, COMMITS)
    )
    assert told(data, [(7, 0)], 1) == [[], [b"kept"], [], [], [b"good"], [], []]
    assert told(data, [(7, 0)], 2) == [[b"kept"], [], [b"good"], []]
    assert told(data, [(7, 0)], 9) == [[b"kept", b"good"]]


def test_piece_lists_aborted_transactions_beginning_or_open_in_range() -> None:
    data = (
        transactional(0, 7, b"one")
        + marker(1, 7, ABORTS)
        + transactional(2, 7, b"good")
        + marker(3, 7, COMMITS)
        + transactional(4, 7, b"two")
        + transactional(5, 8, b"three")
        + marker(6, 7, ABORTS)
        + marker(7, 8, ABORTS)
    )
    aborted = [(8, 5), (7, 4), (7, 0)]
    (whole,) = record_batch.pieces(data, 0, aborted=aborted, records_max=100)
    assert whole.aborted == ((7, 0), (7, 4), (8, 5))
    cut = record_batch.pieces(data, 0, aborted=aborted, records_max=5)
    assert [piece.aborted for piece in cut] == [((7, 0), (7, 4)), ((7, 4), (8, 5))]


def test_rebuilt_batch_keeps_append_time() -> None:
    made = Builder(1 << 20)
    made.append(1000, b"a", b"1")
    made.append(2000, b"b", b"2")
    whole = memoryview(made.close())
    (*_, header), *_ = scan(whole, check=True)
    stamped = record_batch.restamp(whole, header, 9000, appended=True)
    kept = list(record_batch.records(stamped, whole))[1:]
    rebuilt = record_batch.rebuild(stamped, kept)
    (*_, found), *_ = scan(rebuilt, check=True)
    assert (found.attributes, found.max_timestamp) == (stamped.attributes, 9000)
    assert found.first_timestamp == 9000
    assert columns(rebuilt, 0).timestamps == [9000]


def test_batch_that_begins_without_a_time_takes_only_records_without_a_time() -> None:
    """aiokafka would give the records before the first time that very time."""
    builder = Builder(LIMIT)
    assert [builder.append(at_ms, None, b"v") for at_ms in (-1, -1, 5, -1)] == [
        True, True, False, True,
    ]  # fmt: skip
    assert columns(builder.close(), 0).timestamps == [-1, -1, -1]
    builder = Builder(LIMIT)
    assert [builder.append(at_ms, None, b"v") for at_ms in (5, -1, 7)] == [True] * 3
    assert columns(builder.close(), 0).timestamps == [5, -1, 7]
