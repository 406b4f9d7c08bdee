"""Rows of metadata as bytes: read as written, with Kafka's part where Kafka looks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsx.broker.metadata_rows import (
    ClassicMemberValue,
    ConfigValue,
    ConsumerGroupKey,
    ConsumerGroupValue,
    ConsumerMemberKey,
    ConsumerMemberValue,
    CurrentKey,
    CurrentValue,
    GroupKey,
    GroupValue,
    Key,
    MemberValue,
    OffsetKey,
    OffsetValue,
    PlacesValue,
    ProtocolValue,
    TargetKey,
    TargetValue,
    TopicKey,
    TopicValue,
    Value,
    read_row,
    row_bytes,
)
from streamsx.errors import StoreCorrupt

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MAYBE = st.none() | TEXT
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TOPIC = st.from_regex(r"[a-z._-]{1,9}", fullmatch=True)
PROTOCOL = st.builds(ProtocolValue, TEXT, st.binary(max_size=9))
MEMBER = st.builds(
    MemberValue, TEXT, MAYBE, TEXT, TEXT, INT32, INT32, st.binary(max_size=9),
    st.binary(max_size=9), st.lists(PROTOCOL, max_size=3).map(tuple),
)  # fmt: skip
GROUP = st.builds(
    GroupValue, TEXT, INT32, MAYBE, MAYBE, INT64, st.lists(MEMBER, max_size=3).map(tuple),
    st.booleans(),
)  # fmt: skip
CONFIGS = st.lists(st.builds(ConfigValue, TOPIC, TEXT), max_size=3).map(tuple)
INT32S = st.lists(INT32, max_size=3).map(tuple)
PLACES = st.lists(
    st.builds(PlacesValue, st.binary(min_size=16, max_size=16), INT32S, st.none() | INT32S),
    max_size=3,
).map(tuple)
ROWS = st.one_of(
    st.tuples(st.builds(GroupKey, TEXT), GROUP),
    st.tuples(
        st.builds(OffsetKey, TEXT, TOPIC, st.integers(0, 9999)),
        st.builds(OffsetValue, INT64, INT32, TEXT, INT64),
    ),
    st.tuples(st.builds(ConsumerGroupKey, TEXT), st.builds(ConsumerGroupValue, INT32, INT32)),
    st.tuples(
        st.builds(ConsumerMemberKey, TEXT, TEXT),
        st.builds(
            ConsumerMemberValue,
            MAYBE,
            MAYBE,
            TEXT,
            TEXT,
            st.lists(TEXT, max_size=3).map(tuple),
            MAYBE,
            INT32,
            MAYBE,
            st.none()
            | st.builds(ClassicMemberValue, INT32, st.lists(PROTOCOL, max_size=3).map(tuple)),
        ),
    ),
    st.tuples(st.builds(TargetKey, TEXT, TEXT), st.builds(TargetValue, PLACES)),
    st.tuples(
        st.builds(CurrentKey, TEXT, TEXT),
        st.builds(CurrentValue, INT32, INT32, st.integers(0, 2), PLACES, PLACES),
    ),
    st.tuples(
        st.builds(TopicKey, TOPIC),
        st.builds(TopicValue, st.binary(min_size=16, max_size=16), INT32, CONFIGS),
    ),
)


@given(ROWS)
def test_row_read_as_written(row: tuple[Key, Value]) -> None:
    assert read_row(*row_bytes(*row)) == row


def test_group_written_as_kafka_version_4() -> None:
    protocols = (ProtocolValue("range", b"x"), ProtocolValue("sticky", b"y"))
    member = MemberValue("m", None, "c", "h", 1, 2, b"y", b"a", protocols)
    value = GroupValue("consumer", 3, "sticky", "m", 5, (member,), True)
    kafkas = (
        b"\0\x04\x09consumer\0\0\0\x03\x07sticky\x02m\0\0\0\0\0\0\0\x05"
        b"\x02\x02m\0\x02c\x02h\0\0\0\x01\0\0\0\x02\x02y\x02a"
    )  # fmt: skip
    assert row_bytes(GroupKey("g"), value)[1].startswith(kafkas)


def test_offset_written_as_kafka_version_3() -> None:
    assert row_bytes(OffsetKey("g", "t", 0), OffsetValue(1, -1, "note", 2))[1] == (
        b"\0\x03\0\0\0\0\0\0\0\x01\xff\xff\xff\xff\0\x04note\0\0\0\0\0\0\0\x02"
    )  # fmt: skip


@pytest.mark.parametrize("key", [b"", b"Z\0g", b"G\0\xff", b"O\0only", b"O\0g\0t\0x"])
def test_foreign_row_raises_store_corrupt(key: bytes) -> None:
    _, data = row_bytes(OffsetKey("g", "t", 0), OffsetValue(1, -1, "", 2))
    with pytest.raises(StoreCorrupt, match="written by another program"):
        read_row(key, data)


def test_topic_row_format_is_unchanged() -> None:
    """A directory outlives the broker that wrote it."""
    value = TopicValue(bytes(range(16)), 3, (ConfigValue("a", "b"),))
    key, data = row_bytes(TopicKey("t"), value)
    assert key == b"T\0t"
    assert data == b"\0\0" + bytes(range(16)) + b"\0\0\0\x03\x02\x02a\x02b\0\0"


def test_keys_of_different_kinds_are_distinct() -> None:
    """The keys have the same parts."""
    keys = [ConsumerMemberKey("g", "m"), TargetKey("g", "m"), CurrentKey("g", "m")]
    assert len({*keys, ConsumerGroupKey("g"), GroupKey("g")}) == 5


def test_partition_epochs_written_where_kafka_reads_them() -> None:
    """The bytes: version, epoch, epoch before, state, one topic with one partition, tag 0: one
    epoch.
    """
    places = (PlacesValue(b"i" * 16, (7,), (5,)),)
    _, data = row_bytes(CurrentKey("g", "m"), CurrentValue(6, 4, 1, places, ()))
    assert data == (
        b"\0\0" + b"\0\0\0\6" + b"\0\0\0\4" + b"\1"
        b"\2" + b"i" * 16 + b"\2\0\0\0\7" + b"\1\0\5\2\0\0\0\5" + b"\1\0"
    )
