"""Texts beside committed offsets: those of version one, those with a table, those of Spark.

Both are in brokers for as long as groups have offsets; a release reads what any before it wrote.
"""

import pytest

from streamsx.protocol.commit_metadata import OffsetMetadata

AT = 1_700_000_000_000
ID = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
READERS = {"1a2b3c4d": 10, "00ff00ff": 3}
VERSION_ONE = {
    "AQAAAYvP5WgA": OffsetMetadata(AT),
    "Af//////////": OffsetMetadata(),
    "AQAAAAAAAAAA": OffsetMetadata(0),
    "spark AQAAAYvP5WgA s3://bucket/a b": OffsetMetadata(AT, spark="s3://bucket/a b"),
}
WITH_A_TABLE = {
    'AQAAAYvP5WgA {"i":"0f1e2d3c4b5a69788796a5b4c3d2e1f0"}': OffsetMetadata(AT, topic_id=ID),
    'AQAAAYvP5WgA {"r":{"00ff00ff":3,"1a2b3c4d":10}}': OffsetMetadata(AT, READERS),
    'AQAAAYvP5WgA {"i":"0f1e2d3c4b5a69788796a5b4c3d2e1f0","r":{"00ff00ff":3,"1a2b3c4d":10}}': (
        OffsetMetadata(AT, READERS, ID)
    ),
    'AQAAAYvP5WgA {"r":{"00ff00ff":3,"1a2b3c4d":10},"w":1700000001}': (
        OffsetMetadata(AT, READERS, committed_s=1_700_000_001)
    ),
    'AQAAAYvP5WgA {"l":{"1a2b3c4d":3},"w":1700000001}': (
        OffsetMetadata(AT, committed_s=1_700_000_001, late={"1a2b3c4d": 3})
    ),
    'spark AQAAAYvP5WgA{"r":{"00ff00ff":3,"1a2b3c4d":10}} s3://bucket/a b': (
        OffsetMetadata(AT, READERS, spark="s3://bucket/a b")
    ),
}
ALL = VERSION_ONE | WITH_A_TABLE


@pytest.mark.parametrize("text", VERSION_ONE)
def test_commit_metadata_of_version_one_is_read(text: str) -> None:
    assert OffsetMetadata.decode(text) == VERSION_ONE[text]


@pytest.mark.parametrize("text", WITH_A_TABLE)
def test_commit_metadata_with_a_table_is_read(text: str) -> None:
    assert OffsetMetadata.decode(text) == WITH_A_TABLE[text]


@pytest.mark.parametrize("text", ALL)
def test_commit_metadata_is_written_as_this_text(text: str) -> None:
    assert ALL[text].encode() == text


def test_table_that_names_its_version_is_read_as_one_without() -> None:
    read = OffsetMetadata.decode('AQAAAYvP5WgA {"r":{"1a2b3c4d":10},"v":1}')
    assert read == OffsetMetadata(AT, {"1a2b3c4d": 10})


def test_table_of_a_later_version_is_known_and_left_unread() -> None:
    read = OffsetMetadata.decode('AQAAAYvP5WgA {"r":{"1a2b3c4d":10},"v":2}')
    assert read == OffsetMetadata(AT, newer=2)
