"""Rows as bytes: what is written is read, Kafka's part of it lies where Kafka looks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsx.broker.records import (
    GroupKey,
    GroupValue,
    Key,
    MemberValue,
    OffsetKey,
    OffsetValue,
    TopicKey,
    TopicValue,
    Value,
    key_bytes,
    read_row,
    value_bytes,
)
from streamsx.errors import StoreCorrupt

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MAYBE = st.none() | TEXT
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TOPIC = st.from_regex(r"[a-z._-]{1,9}", fullmatch=True)
MEMBER = st.builds(
    MemberValue, TEXT, MAYBE, TEXT, TEXT, INT32, INT32,
    st.lists(st.tuples(TEXT, st.binary(max_size=9)), max_size=3).map(tuple), st.binary(max_size=9),
)  # fmt: skip
GROUP = st.builds(
    GroupValue, TEXT, INT32, MAYBE, MAYBE, INT64, st.booleans(),
    st.lists(MEMBER, max_size=3).map(tuple),
)  # fmt: skip
ROWS = st.one_of(
    st.tuples(st.builds(GroupKey, TEXT), GROUP),
    st.tuples(
        st.builds(OffsetKey, TEXT, TOPIC, st.integers(0, 9999)),
        st.builds(OffsetValue, INT64, INT32, TEXT, INT64),
    ),
    st.tuples(
        st.builds(TopicKey, TOPIC),
        st.builds(
            TopicValue, st.binary(min_size=16, max_size=16), INT32,
            st.dictionaries(TOPIC, TEXT, max_size=3),
        ),
    ),
)  # fmt: skip


@given(ROWS)
def test_a_row_is_read_as_it_was_written(row: tuple[Key, Value]) -> None:
    assert read_row(key_bytes(row[0]), value_bytes(row[1])) == row


def test_a_group_is_written_as_kafka_writes_version_4() -> None:
    member = MemberValue("m", None, "c", "h", 1, 2, (("range", b"x"), ("sticky", b"y")), b"a")
    value = GroupValue("consumer", 3, "sticky", "m", 5, True, (member,))
    kafkas = (
        b"\0\x04\x09consumer\0\0\0\x03\x07sticky\x02m\0\0\0\0\0\0\0\x05"
        b"\x02\x02m\0\x02c\x02h\0\0\0\x01\0\0\0\x02\x02y\x02a"
    )  # fmt: skip
    assert value_bytes(value).startswith(kafkas)


def test_an_offset_is_written_as_kafka_writes_version_3() -> None:
    assert value_bytes(OffsetValue(1, -1, "note", 2)) == (
        b"\0\x03\0\0\0\0\0\0\0\x01\xff\xff\xff\xff\0\x04note\0\0\0\0\0\0\0\x02"
    )  # fmt: skip


@pytest.mark.parametrize("key", [b"", b"Z\0g", b"G\0\xff", b"O\0only", b"O\0g\0t\0x"])
def test_a_row_that_is_not_ours_is_corrupt(key: bytes) -> None:
    data = value_bytes(OffsetValue(1, -1, "", 2))
    with pytest.raises(StoreCorrupt, match="not ours"):
        read_row(key, data)
