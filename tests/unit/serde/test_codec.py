"""serde/codec.py: bytes that are written and read, also beyond Faust's codecs."""

import dataclasses
import datetime
import math
from collections import OrderedDict
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import faust
import msgspec
import pytest

from streamsx.errors import TopologyError
from streamsx.serde.codec import codec, plain_bytes, table_codec, topic_codec


class Order(faust.Record):
    user: str
    n: int = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Leg(msgspec.Struct):
    origin: str
    minutes: int = 0


@pytest.mark.parametrize(
    ("kind", "serializer", "value", "data"),
    [
        (None, "raw", "é", b"\xc3\xa9"),
        (None, "raw", None, None),
        (None, "json", None, b"null"),
        (None, "json", "a", b'"a"'),
        (str, "json", "a", b'"a"'),
        (str, "raw", "a", b"a"),
        (int, "json", 5, b"5"),
        (None, "json", {1: {2}}, b'{"1":[2]}'),
        (None, "json", datetime.date(2026, 11, 21), b'"2026-11-21"'),
        (None, "json", b"not json", b"not json"),
        (Order, "json", Order("ann"), b'{"user":"ann","n":1,"__faust":{"ns":"%s"}}'),
    ],
)
def test_codec_encodes_value_to_expected_bytes(
    kind: Any, serializer: str, value: Any, data: bytes | None
) -> None:
    if data is not None and b"%s" in data:
        data %= Order._options.namespace.encode()
    assert codec(kind, serializer).encode(value) == data


@pytest.mark.parametrize(
    ("kind", "serializer", "data", "value"),
    [
        (None, "raw", b"a", b"a"),
        (str, "raw", b"\xc3\xa9", "é"),
        (int, "raw", b"5", 5),
        (float, "raw", b"1.5", 1.5),
        (None, "json", b'{"a":[1]}', {"a": [1]}),
        (bytes, "json", b'"a"', b"a"),
        (None, "json", None, None),
        (Order, "json", b'{"user":"ann","__faust":{"ns":"gone"}}', Order("ann")),
        (Point, "json", b'{"x":1}', Point(1)),
        (Leg, "json", b'{"origin":"ULM","minutes":7}', Leg("ULM", 7)),
    ],
)
def test_codec_decodes_bytes_to_expected_value(
    kind: Any, serializer: str, data: bytes | None, value: Any
) -> None:
    assert codec(kind, serializer).decode(data) == value


def test_untyped_codec_decodes_dict_to_named_record() -> None:
    plain = codec(None, "json")
    assert plain.decode(codec(Order, "json").encode(Order("ann", 2))) == Order("ann", 2)
    assert plain.decode(b'{"__faust":{"ns":"gone"}}') == {"__faust": {"ns": "gone"}}


@pytest.mark.parametrize(("kind", "value"), [(int, 5), (float, 1.5)])
def test_numbers_can_be_raw_keys(kind: Any, value: float) -> None:
    raw = codec(kind, "raw")
    assert raw.decode(raw.encode(value)) == value


def test_non_raw_value_raises_type_error_with_remedy() -> None:
    with pytest.raises(TypeError, match="not text or bytes: dict: give the topic a serializer"):
        codec(None, "raw").encode({})


def test_dataclasses_and_structs_roundtrip_as_json() -> None:
    for kind, value in ((Point, Point(1, 2)), (Leg, Leg("ULM", 3))):
        assert codec(kind, "json").decode(codec(kind, "json").encode(value)) == value
        assert codec(None, "json").encode(value) == codec(kind, "json").encode(value)


def test_missing_value_is_none_unless_model_is_expected() -> None:
    assert topic_codec(Order, None, "json", empty=True).decode(None) is None
    with pytest.raises(ValueError, match="no value: a Order was expected"):
        topic_codec(Order, None, "json").decode(None)


def test_faust_serializer_is_known_by_name() -> None:
    both = codec(None, "pickle_restricted")
    assert both.decode(both.encode((1, "a"))) == (1, "a")
    assert both.name == "pickle_restricted"


@pytest.mark.parametrize(("kind", "serializer"), [(None, "nope"), (Leg, "raw"), (object, "json")])
def test_unknown_type_or_serializer_raises_topology_error(kind: Any, serializer: str) -> None:
    with pytest.raises(TopologyError, match="unknown"):
        codec(kind, serializer)


def test_model_serializer_overrides_topic_default() -> None:
    class Raw(faust.Record, serializer="binary"):
        a: str

    with pytest.raises(TypeError):
        codec(None, "json").encode(Raw("x"))  # base64 of a dict, as in Faust
    assert topic_codec(Raw, None, "json").name == "binary"


def test_table_codec_is_json_unless_type_is_bytes() -> None:
    assert [table_codec(kind).name for kind in (None, str, int, bytes)] == [*["json"] * 3, "raw"]


def test_equal_codecs_are_one_object() -> None:
    assert topic_codec(str, None, "json") is topic_codec(str, "json", "raw")
    assert topic_codec(str, None, "json") is not topic_codec(str, None, "raw")


def test_encoded_value_has_exact_size() -> None:
    assert codec(None, "json").encode("a" * 10) == b'"aaaaaaaaaa"'


class Color(str, Enum):  # noqa: UP042  # a text that is a member too
    RED = "red"


class Size(IntEnum):
    LARGE = 40


@pytest.mark.parametrize(
    "value",
    [
        {}, [], {"a": {"n": 40}}, [40.0, -0.0, 1e300, 2**63], {"(g)": "null", "f": 1.5},
        [None, True, 0.1], {"a": None, "b": [None, 0.5]}, [[[]], {"": {}}], ["\u20ac(", "g"],
    ],
)  # fmt: skip
def test_value_of_plain_json_is_written_as_a_table_does(value: Any) -> None:
    assert plain_bytes(value) == table_codec(None).encode(value)


@pytest.mark.parametrize(
    "value",
    [
        {"a": (1, 2)}, [()], [math.nan], {"a": [1.0, math.inf]}, {"a": Color.RED}, [Size.LARGE],
        {"id": UUID(int=0)}, {1: 2}, {"a": {1}}, {"a": b"b"}, [2**64], [datetime.date(2026, 1, 1)],
        OrderedDict(a=1), {"a": OrderedDict()}, {"__faust": {"ns": "x"}}, ["\ud800"], [Point(1)],
    ],
    ids=repr,
)  # fmt: skip
def test_value_that_may_not_come_back_is_not_written(value: Any) -> None:
    assert plain_bytes(value) is None
