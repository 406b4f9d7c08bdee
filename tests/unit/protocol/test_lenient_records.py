"""protocol/lenient_records.py: odd data in a batch costs one record, and the others are read."""

import random
from collections.abc import Sequence

import cramjam
import pytest

from streamsx.errors import CorruptRecord, DecodeFailed
from streamsx.protocol.compression import CODECS
from streamsx.protocol.lenient_records import odd_records
from streamsx.protocol.record_batch import Builder, Columns, columns
from tests.support.odd_batches import LATIN_1, NOW, odd_batch, odd_record, varint

APPEND_TIME = 0x08


def read(data: bytes, start: int = 0) -> Columns:
    return columns(data, start, slowly=odd_records)


def told(found: Columns) -> Sequence[object]:
    """Return values, and the text of each error after its first colon."""
    values: list[object] = [*found.values]
    return [
        str(value).partition(": ")[2] if isinstance(value, DecodeFailed) else value
        for value in values
    ]


def test_non_utf8_header_name_read_with_replacement() -> None:
    odd = odd_record(1, headers=[(LATIN_1, b"1"), (b"b", None)])
    found = read(odd_batch([odd_record(0), odd, odd_record(2)]))
    assert told(found) == [b"v", b"v", b"v"]
    assert found.headers == [[], [("gr\ufffdn", b"1"), ("b", None)], []]
    assert (found.timestamps, list(found.offsets)) == ([NOW] * 3, [0, 1, 2])


ODD = {
    "a header without a name": odd_record(1, headers=[(None, b"1")]),
    "-1 headers": odd_record(1, headers_count=-1),
    "a number that does not end, at byte 7 of 7": odd_record(1, headers_count=3),
    "3 bytes too many in the record": odd_record(1, tail=b"xyz"),
    "100 bytes where 1 are left": varint(7) + b"\0\0" + varint(1) + varint(-1) + b"\xc8\x01v",
}


@pytest.mark.parametrize("why", ODD)
def test_unreadable_record_is_error_in_place(why: str) -> None:
    found = read(odd_batch([odd_record(0), ODD[why], odd_record(2)], base=40))
    assert told(found) == [b"v", why, b"v"]
    assert (list(found.offsets), found.next_offset) == ([40, 41, 42], 43)


def test_record_attributes_byte_is_ignored() -> None:
    data = odd_batch([odd_record(0, attributes=255)])
    with pytest.raises(CorruptRecord):
        columns(data, 0)
    assert told(read(data)) == [b"v"]


def test_wrong_record_length_ends_batch_not_log() -> None:
    long = odd_record(1, length=1 << 40)
    found = read(odd_batch([odd_record(0), long, odd_record(2)]) + odd_batch([odd_record(0)], 3))
    why = f"a record of {1 << 40} bytes where 15 are left (offsets 1 on, in one batch)"
    assert told(found) == [b"v", why, b"v"]
    assert (list(found.offsets), found.next_offset) == ([0, 2, 3], 4)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_batch_of_unknown_codec_is_one_error_at_last_offset(codec: int) -> None:
    data = odd_batch([odd_record(n) for n in range(5)], 10, attributes=codec)
    why = f"compression codec {codec} is unknown (offsets 10 on, in one batch)"
    assert (told(read(data, 12)), list(read(data, 12).offsets)) == ([why], [14])


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_undecodable_batch_with_valid_checksum_is_one_error(codec: str) -> None:
    data = odd_batch([odd_record(0)], attributes=CODECS[codec], payload=b"garbage!garbage")
    (why,) = told(read(data))
    assert isinstance(why, str)
    assert "neither sound nor within 64 MiB once expanded" in why


def test_batch_expanding_beyond_limit_is_one_error() -> None:
    payload = compressed("snappy", bytes(65 << 20))
    found = read(odd_batch([odd_record(0)], attributes=CODECS["snappy"], payload=payload))
    assert "not a record that can be read: neither sound nor within 64 MiB" in str(found.values[0])


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_odd_batch_is_read(codec: str) -> None:
    plain = odd_record(0, headers=[(LATIN_1, b"1")]) + odd_record(1)
    payload = compressed(codec, plain)
    found = read(odd_batch([b"", b""], attributes=CODECS[codec], payload=payload))
    assert (told(found), found.headers) == ([b"v", b"v"], [[("gr\ufffdn", b"1")], []])


def compressed(codec: str, data: bytes) -> bytes:
    if codec == "snappy":
        return bytes(cramjam.snappy.compress_raw(data))
    return bytes(getattr(cramjam, codec).compress(data))


def test_non_increasing_offsets_end_batch() -> None:
    for second in 0, 7, -3:
        found = read(odd_batch([odd_record(0), odd_record(second), odd_record(2)]))
        assert list(found.offsets) == [0, 2]
        assert isinstance(found.values[1], DecodeFailed)


def test_too_low_record_count_reports_remaining_bytes() -> None:
    found = read(odd_batch([odd_record(0), odd_record(1)], count=1, last=1))
    assert told(found) == [b"v", "8 bytes too many in the batch (offsets 1 on, in one batch)"]


def test_emptied_compressed_batch_advances_position() -> None:
    data = odd_batch([], attributes=CODECS["zstd"], count=0, last=8)
    assert (told(read(data)), read(data).next_offset) == ([], 9)


def test_wrong_checksum_raises_corrupt_record() -> None:
    data = bytearray(odd_batch([odd_record(0)]))
    data[-1] ^= 1
    with pytest.raises(CorruptRecord, match="its checksum is not"):
        read(bytes(data))


@pytest.mark.parametrize("attributes", [0, APPEND_TIME])
def test_tolerant_parser_agrees_with_fast_parser(attributes: int) -> None:
    draw = random.Random(attributes)
    for _ in range(200):
        time, at, records = draw.choice([-1, 0, NOW, (1 << 62) + 5]), -1, []
        for _ in range(draw.randrange(1, 6)):
            at += draw.randrange(1, 4)
            records.append(odd_record(
                at, draw.choice([None, b"", bytes(draw.randrange(200))]),
                [(draw.choice([b"", b"a", "é".encode()]), draw.choice([None, b"", b"x"]))
                 for _ in range(draw.randrange(3))],
                key=draw.choice([None, b"", b"k"]), time=draw.randrange(-9, 1 << 62),
            ))  # fmt: skip
        data = odd_batch(records, draw.randrange(9), attributes=attributes, time=time, last=at)
        start = draw.randrange(12)
        fast, slow = columns(data, start), read(data, start)
        assert fast._replace(offsets=list(fast.offsets)) == slow._replace(
            offsets=list(slow.offsets)
        )


def test_flipped_bits_with_valid_checksum_raise_nothing() -> None:
    """Fuzz: whatever a producer wrote, offsets rise within their batch and the log continues."""
    draw = random.Random(7)
    builder = Builder(1 << 20)
    for n in range(4):
        builder.append(NOW, b"k%d" % n, b"v%d" % n, [("h", b"1"), ("i", None)])
    sound = bytes(builder.close())[61:]
    for _ in range(1000):
        payload = bytearray(sound)
        for _ in range(draw.randrange(1, 4)):
            payload[draw.randrange(len(payload))] ^= 1 << draw.randrange(8)
        cut = draw.randrange(len(payload)) if draw.random() < 0.2 else len(payload)
        data = odd_batch([b""] * 4, payload=bytes(payload[:cut])) + odd_batch([odd_record(0)], 4)
        offsets = list(read(data).offsets)
        assert offsets == sorted(set(offsets))
        assert offsets[-1] == 4
