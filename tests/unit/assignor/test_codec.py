"""Numbers, task lists, and unknown fields in user data."""

import pytest

from streamsx.assignor.codec import (
    Reader,
    Unreadable,
    number,
    numeric,
    read_fields,
    read_lags,
    tasks,
    text,
    textual,
    write_fields,
)
from streamsx.assignor.model import MemberMetadata
from streamsx.model import TaskId

FIELDS = (numeric(3, "capacity", 1), textual(14, "instance", None))


@pytest.mark.parametrize(
    ("value", "data"),
    [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**63 - 1, "ff" * 8 + "7f")],
)
def test_numbers_are_leb128(value: int, data: str) -> None:
    assert number(value).hex() == data
    assert Reader(bytes.fromhex(data)).number() == value


def test_number_above_63_bits_is_refused() -> None:
    with pytest.raises(Unreadable, match="63 bits"):
        Reader(number(2**63)).number()


def test_text_is_length_prefixed() -> None:
    assert text("né").hex() == "036ec3a9"


def test_task_lists_encode_gaps_and_lags() -> None:
    lags = {TaskId(3, 2): None, TaskId(3, 0): 5, TaskId(1, 300): 0}

    data = tasks(lags, lags)

    assert data.hex(" ") == "02 01 01 ac 02 01 03 02 00 06 01 00"
    assert read_lags(Reader(data), lags=True) == lags


def test_fields_are_ascending_and_absent_ones_take_no_bytes() -> None:
    full = MemberMetadata("", instance="a", capacity=2)

    assert write_fields(MemberMetadata(""), FIELDS).hex(" ") == "01 01"
    assert write_fields(full, FIELDS).hex(" ") == "01 01 03 01 02 0e 01 61"


def test_unknown_fields_are_skipped() -> None:
    data = bytes.fromhex("09 01  01 00  03 01 02  b2 06 03 aa bb cc")

    assert read_fields(data, FIELDS) == {"capacity": 2, "instance": None}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("", "ends early"),
        ("01", "ends early"),
        ("0202", "needs a reader of 2"),
        ("010103", "ends early"),
        ("01010302", "ends early"),
        ("0101030180", "ends early"),
        ("010103020101", "longer than it says"),
        ("01010e01ff", "tag 14"),
    ],
)
def test_damaged_bytes_raise_unreadable_with_the_reason(data: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        read_fields(bytes.fromhex(data), FIELDS)
