"""Batches of any records, cut anywhere, damaged anywhere."""

import random
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from streamsx.errors import CorruptRecord
from streamsx.kafka import batch
from streamsx.kafka.batch import Builder, columns
from streamsx.kafka.compression import CODECS
from streamsx.model import Headers

BYTES = st.none() | st.binary(max_size=40)
HEADERS = st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=2)
RECORDS = st.lists(st.tuples(st.integers(0, 1 << 42), BYTES, BYTES, HEADERS), min_size=1)
BATCHES = st.lists(st.tuples(RECORDS, st.sampled_from(sorted(CODECS))), min_size=1, max_size=4)
Record = tuple[int, bytes | None, bytes | None, Headers]


def log(batches: list[tuple[list[Record], str]], base: int) -> tuple[bytes, list[Record]]:
    data = b""
    written: list[Record] = []
    for records, compression in batches:
        builder = Builder(1 << 20, compression=compression)
        for record in records:
            assert builder.append(*record)
        closed = builder.close()
        batch.place(closed, base + len(written), 0)
        written += records
        data += closed
    return data, written


@given(BATCHES, st.integers(0, 1 << 40), st.data())
def test_what_was_written_is_read_from_any_offset_on(
    batches: list[tuple[list[Record], str]], base: int, draw: st.DataObject
) -> None:
    data, written = log(batches, base)
    skip = draw.draw(st.integers(0, len(written)))

    read = columns(data, base + skip)

    wanted = written[skip:]
    headers = [headers for *_, headers in wanted]
    assert read.timestamps == [time for time, *_ in wanted]
    assert read.keys == [key for _, key, *_ in wanted]
    assert read.values == [value for _, _, value, _ in wanted]
    assert read.headers == (headers if any(headers) else None)
    assert list(read.offsets) == list(range(base + skip, base + len(written)))
    assert read.next_offset == base + len(written)


@given(BATCHES, st.data())
def test_a_slice_that_ends_anywhere_reads_up_to_its_last_whole_batch(
    batches: list[tuple[list[Record], str]], draw: st.DataObject
) -> None:
    data, written = log(batches, 0)
    cut = draw.draw(st.integers(0, len(data) - 1))
    read = columns(data[:cut], 0)
    assert read.next_offset == batch.end_offset(data[:cut], 0) == len(read.keys) < len(written)


@given(BATCHES, st.data())
def test_a_flipped_bit_where_the_checksum_looks_is_a_corrupt_record(
    batches: list[tuple[list[Record], str]], draw: st.DataObject
) -> None:
    data, _ = log(batches[:1], 7)
    damaged = bytearray(data)
    damaged[draw.draw(st.integers(16, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    with pytest.raises(CorruptRecord, match="record batch at offset 7: "):
        columns(damaged, 7)


def test_damage_that_the_checksum_covers_up_is_a_corrupt_record_and_nothing_else() -> None:
    rng, complaints = random.Random(4), set()
    records: list[Record] = [(5, b"key", b"value", [("h", b"x")])] * 5
    for compression in sorted(CODECS):
        data, _ = log([(records, compression)], 0)
        for _ in range(600 if compression == "none" else 8):  # 40 ms until it gives up expanding
            damaged = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                damaged[rng.randrange(57, len(data))] = rng.randrange(256)
            struct.pack_into(">I", damaged, 17, crc32c(memoryview(damaged)[21:]))
            try:
                columns(damaged, 0)
            except CorruptRecord as error:
                complaints.add(str(error).split(": ")[0])
    assert complaints == {"record batch at offset 0"}
