"""Record batches of any records, cut anywhere, damaged anywhere."""

import random
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from streamsx.errors import CorruptRecord
from streamsx.model import Headers
from streamsx.protocol import record_batch
from streamsx.protocol.compression import CODECS
from streamsx.protocol.record_batch import Builder, columns

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
        record_batch.place(closed, base + len(written), 0)
        written += records
        data += closed
    return data, written


@given(BATCHES, st.integers(0, 1 << 40), st.data())
def test_written_batches_are_read_from_any_offset(
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
def test_slice_cut_anywhere_reads_up_to_the_last_whole_batch(
    batches: list[tuple[list[Record], str]], draw: st.DataObject
) -> None:
    data, written = log(batches, 0)
    cut = draw.draw(st.integers(0, len(data) - 1))
    read = columns(data[:cut], 0)
    assert read.next_offset == len(read.keys) < len(written)


TURNS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["write", "commit", "abort", "plain"]))
)


def transactions(turns: list[tuple[int, str]]) -> tuple[bytes, list[tuple[int, int]], list[bytes]]:
    """Draw a log of several producers; return it, the aborted transactions and the committed
    records.
    """
    data, open_, aborted, kept = b"", dict[int, list[int]](), list[tuple[int, int]](), set[int]()
    for offset, (producer, what) in enumerate(turns):
        ends = what in ("commit", "abort") and producer in open_
        plain = what == "plain" or (what != "write" and not ends)
        builder = Builder(1 << 20, transactional=not plain)
        builder.append(1, None, b"%d" % offset)
        closed = builder.close(-1 if plain else producer, 0, 0)
        record_batch.place(closed, offset, 0)
        if ends:
            closed[22] |= record_batch.CONTROL
            struct.pack_into(">I", closed, 17, crc32c(memoryview(closed)[21:]))
            written = open_.pop(producer)
            if what == "abort":
                aborted.append((producer, written[0]))
            else:
                kept.update(written)
        elif plain:
            kept.add(offset)
        else:
            open_.setdefault(producer, []).append(offset)
        data += closed
    kept.update(offset for written in open_.values() for offset in written)
    return data, aborted, [b"%d" % offset for offset in sorted(kept)]


@given(TURNS, st.integers(1, 20), st.data())
def test_transactions_are_read_alike_wherever_the_log_is_cut(
    turns: list[tuple[int, str]], records_max: int, draw: st.DataObject
) -> None:
    data, aborted, kept = transactions(turns)
    cut = record_batch.pieces(
        data, 0, aborted=draw.draw(st.permutations(aborted)), records_max=records_max
    )
    pieces = list(cut)
    read = [columns(piece.data, piece.start, aborted=piece.aborted) for piece in pieces]
    assert [value for each in read for value in each.values] == kept
    assert [piece.start for piece in pieces] == list(range(0, len(turns), records_max))
    assert [each.next_offset for each in read] == [piece.next_offset for piece in pieces]


@given(BATCHES, st.data())
def test_flipped_bit_under_the_checksum_is_a_corrupt_record(
    batches: list[tuple[list[Record], str]], draw: st.DataObject
) -> None:
    data, _ = log(batches[:1], 7)
    damaged = bytearray(data)
    damaged[draw.draw(st.integers(16, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    with pytest.raises(CorruptRecord, match="record batch at offset 7: "):
        columns(damaged, 7)


def test_damage_with_a_valid_checksum_raises_only_corrupt_record() -> None:
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
