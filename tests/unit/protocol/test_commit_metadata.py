"""protocol/commit_metadata.py: bytes beside each offset, which every release has to read."""

import base64
import struct

import pytest

from streamsx.protocol.commit_metadata import TEXT_BYTES_MAX, OffsetMetadata

AT = 1_700_000_000_000
HEADER = "AQAAAYvP5WgA"
ID = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
READERS = {"1a2b3c4d": 10, "00ff00ff": 3}
GOLDEN = {
    HEADER: OffsetMetadata(AT),
    "Af//////////": OffsetMetadata(),
    HEADER + ' {"r":{"00ff00ff":3,"1a2b3c4d":10}}': OffsetMetadata(AT, READERS),
    HEADER + ' {"i":"0f1e2d3c4b5a69788796a5b4c3d2e1f0","r":{"00ff00ff":3,"1a2b3c4d":10}}': (
        OffsetMetadata(AT, READERS, ID)
    ),
    HEADER + ' {"t":{"0000002a":[1000,0,null,-1,7]}}': (
        OffsetMetadata(AT, told={"0000002a": [1000, None, -1, 1007]})
    ),
    HEADER + ' {"i":"0f1e2d3c4b5a69788796a5b4c3d2e1f0","w":1700000000}': (
        OffsetMetadata(AT, topic_id=ID, committed_s=AT // 1000)
    ),
    f"spark {HEADER} file:///a b": OffsetMetadata(AT, spark="file:///a b"),
    f'spark {HEADER}{{"r":{{"00ff00ff":3,"1a2b3c4d":10}}}} s3://bucket/a b': (
        OffsetMetadata(AT, READERS, spark="s3://bucket/a b")
    ),
}


@pytest.mark.parametrize("text", GOLDEN)
def test_offset_metadata_golden_texts_encode_and_decode(text: str) -> None:
    assert GOLDEN[text].encode() == text
    assert OffsetMetadata.decode(text) == GOLDEN[text]


def read_by_version_one(text: str) -> tuple[int, str | None]:
    """Read as the first release did: return stream time and Spark's place."""
    place = text.split(" ", 2)[2] if text.startswith("spark ") else None
    word = text.removeprefix("spark ").partition(" ")[0]
    try:
        version, found = struct.unpack(">Bq", base64.b64decode(word, validate=True))
    except (ValueError, struct.error):
        return -1, place
    return (found if version == 1 else -1), place


@pytest.mark.parametrize("text", GOLDEN)
def test_version_one_release_reads_stream_time_and_spark_place(text: str) -> None:
    stream_time, place = read_by_version_one(text)
    made = GOLDEN[text]
    assert place == made.spark
    assert stream_time == (-1 if made.spark and made.readers else made.stream_time)


@pytest.mark.parametrize("text", ["", "no base64", "AgAAAYvP5WgA", "AQAA", "x {}", "spark ", "ä"])
def test_foreign_metadata_text_decodes_to_nothing(text: str) -> None:
    assert not any(OffsetMetadata.decode(text)._replace(stream_time=0))
    assert OffsetMetadata.decode(text).stream_time == -1


@pytest.mark.parametrize(
    "table",
    [
        '{"later":[1],"r":{"1a2b3c4d":10}}',
        '{"i":7,"r":{"1a2b3c4d":10,"0":"x","1":-1,"2":0,"3":true}}',
        '{"i":"short","r":{"1a2b3c4d":10},"v":1}',
    ],
)
def test_unknown_metadata_keys_and_entries_are_skipped(table: str) -> None:
    assert OffsetMetadata.decode(f"{HEADER} {table}") == OffsetMetadata(AT, {"1a2b3c4d": 10})


@pytest.mark.parametrize("table", ["{", "[]", "7", "word", '{"r":[]}'])
def test_invalid_reader_table_leaves_stream_time(table: str) -> None:
    assert OffsetMetadata.decode(f"{HEADER} {table}") == OffsetMetadata(AT)


def test_newer_table_version_is_reported_and_not_read() -> None:
    text = HEADER + ' {"r":{"1a2b3c4d":10},"v":2}'
    assert OffsetMetadata.decode(text) == OffsetMetadata(AT, newer=2)
    assert OffsetMetadata.decode(HEADER + ' {"v":"x"}').newer == -1


def test_full_table_drops_least_advanced_readers_only_as_needed() -> None:
    full = OffsetMetadata(AT, {f"{n:08x}": 1 + n * 7 for n in range(400)}, ID)
    fitted, dropped = full.fitted()
    assert len(fitted.encode()) <= TEXT_BYTES_MAX < len(fitted.encode()) + len('"00000000":1234,')
    assert fitted.readers.keys() | dropped.keys() == full.readers.keys()
    assert max(dropped.values()) < min(fitted.readers.values())
    assert fitted.topic_id == ID
    assert fitted.fitted() == (fitted, {})


def test_times_of_writers_are_left_out_of_a_full_text() -> None:
    told = {"0000002a": [AT + n * 1_000_000 for n in range(1000)]}
    made, dropped = OffsetMetadata(AT, READERS, told=told).fitted()
    assert (made.told, made.readers, dropped) == ({}, {}, READERS)
    few = OffsetMetadata(AT, READERS, told={"0000002a": [AT] * 1000})
    assert few.fitted() == (few, {})
    assert len(few.encode()) < TEXT_BYTES_MAX


def test_values_for_people_are_dropped_first_from_a_full_text() -> None:
    full = OffsetMetadata(AT, {f"{n:08x}": 1000 + n for n in range(252)}, ID)
    room = TEXT_BYTES_MAX - len(full.encode())
    assert 0 <= room < len(',"w":1700000000')
    assert full._replace(committed_s=AT // 1000).fitted() == (full, {})
    assert full._replace(late={"1a2b3c4d": 3}).fitted() == (full, {})


@pytest.mark.parametrize("value", ["-1", "0", '"now"', "1.5", "true", "null"])
def test_invalid_time_of_the_commit_is_skipped(value: str) -> None:
    assert OffsetMetadata.decode(f'{HEADER} {{"w":{value}}}') == OffsetMetadata(AT)


@pytest.mark.parametrize("table", ['{"t":7}', '{"t":{"a":[]}}', '{"t":{"a":["x"]}}', '{"t":[1]}'])
def test_invalid_times_of_writers_are_skipped(table: str) -> None:
    assert OffsetMetadata.decode(f"{HEADER} {table}") == OffsetMetadata(AT)
