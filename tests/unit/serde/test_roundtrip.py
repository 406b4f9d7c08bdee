"""serde/roundtrip.py: values that a table accepts, and refusals with their path."""

import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import uuid
import zoneinfo
from typing import Any, Generic, NamedTuple, TypeVar

import faust
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsx.serde import roundtrip
from streamsx.serde.codec import table_codec
from streamsx.serde.roundtrip import all_same, difference


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Mood(str, enum.Enum):  # noqa: UP042  # both kinds are text to a codec
    GOOD = "good"


class Pair(NamedTuple):
    a: int
    b: str


class Order(faust.Record):
    user: str
    n: int = 1


class Tagged(faust.Record):
    tags: set[str]


class Holder(faust.Record):
    parts: list[dict[str, Any]]


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


@dataclasses.dataclass
class Line:
    start: Point
    at: datetime.datetime
    note: str = None  # type: ignore[assignment]  # as many write it


@dataclasses.dataclass
class Lines:
    all: list[Line]
    named: dict[str, Line]
    first: Line | None = None
    two: tuple[Line, int] = None  # type: ignore[assignment]


@dataclasses.dataclass
class Private:
    _x: int = 0


T = TypeVar("T")


@dataclasses.dataclass
class Box(Generic[T]):
    inside: T


class Leg(msgspec.Struct):
    origin: str
    minutes: int = 0


class Total(msgspec.Struct, array_like=True, tag=True):
    number: int
    amount: float


UTC = datetime.UTC
AT = datetime.datetime(2024, 1, 1, 12, 30, tzinfo=UTC)


def taken(kind: Any, value: Any) -> bool:
    """Return whether a table of that type accepts a value; an accepted value must come back."""
    made = table_codec(kind)
    check = made.check
    assert check is not None
    try:
        data = made.encode(value)
    except (TypeError, ValueError, OverflowError):
        assert check.lost(value) is not None, "refused without a reason"
        return False
    if check.first([value], [data or b""]) is not None:
        assert check.lost(value) is not None, "refused without a reason"
        return False
    assert data is not None
    assert difference(value, made.decode(data)) is None, "taken, and not given back"
    return True


@pytest.mark.parametrize(
    "value",
    [
        0, -1, 2**64 - 1, 1.5, -0.0, 1e300, "", "é\u2028", True, [], {}, [None, 1, "a"],
        {"a": {"b": [1, {"c": None}]}}, {"null": "null"}, {"text": "a null in it"},
        {"__faust": {"ns": "nobody"}}, Order("ann"), {f"k{n}": [n, str(n)] for n in range(100)},
    ],
)  # fmt: skip
def test_untyped_table_accepts_json_stable_values(value: Any) -> None:
    assert taken(None, value)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({7: 1}, "at [7], a key of type int comes back as text: declare it, app.Table("),
        ({7: 1}, "value_type=dict[int, int])"),
        ({"a": {"b": {7: 1}}}, "at ['a']['b'][7], a key of type int comes back as text: "),
        ({True: 1}, "at [True], a key of type bool"),
        ({None: 1}, "at [None], a key of type NoneType"),
        ({Mood.GOOD: 1}, "a key of type Mood"),
        ({1, 2}, "value_type=set[int])"),
        ((1, 2), "value_type=tuple[int, ...])"),
        ([1, (2,)], "at [1], (2,) of type tuple"),
        ({"a": [{"b": (1,)}]}, "at ['a'][0]['b'], (1,) of type tuple"),
        (Pair(1, "a"), "of type Pair"),
        (decimal.Decimal("1.5"), "value_type=Decimal)"),
        (AT, "value_type=datetime)"),
        (AT.date(), "value_type=date)"),
        (datetime.timedelta(1), "value_type=timedelta)"),
        (uuid.UUID(int=5), "value_type=UUID)"),
        ({"id": uuid.UUID(int=5)}, "at ['id'], UUID("),
        (Colour.RED, "value_type=Colour)"),
        (Level.LOW, "value_type=Level)"),
        ([Mood.GOOD], "at [0], "),
        (b"123", "value_type=bytes)"),
        (Point(1), "value_type=Point)"),
        (Leg("ULM"), "value_type=Leg)"),
        ({"o": Order("ann")}, "at ['o'], <Order"),
        (float("nan"), "a number that is not finite: JSON has none"),
        (float("inf"), "a number that is not finite"),
        ({"a": [1.0, None, float("nan")]}, "at ['a'][2], nan of type float, a number"),
        (collections.defaultdict(int, a=1), "comes back as a plain dict: put dict(...)"),
        (collections.Counter("aab"), "comes back as a plain dict: put dict(...)"),
        ({"c": collections.OrderedDict(a=1)}, "at ['c'], "),
        (2**70, "an int beyond 64 bits"),
        (object(), "has no form in JSON"),
    ],
)  # fmt: skip
def test_untyped_table_refuses_lossy_value_with_path_and_remedy(value: Any, where: str) -> None:
    assert not taken(None, value)
    check = table_codec(None).check
    assert check is not None
    assert where in str(check.lost(value))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dict[int, int], {7: 1}),
        (dict[uuid.UUID, list[int]], {uuid.UUID(int=1): [1]}),
        (set[str], {"a", "b"}),
        (frozenset[int], frozenset({1})),
        (tuple[int, ...], (1, 2)),
        (tuple[int, str], (1, "a")),
        (list[tuple[str, float]], [("a", 1.5)]),
        (decimal.Decimal, decimal.Decimal("1.10")),
        (int, 2**70),
        (dict[str, int], {"a": 2**70}),
        (float, 1.5),
        (bytes, b"\x00\xff"),
        (dict[str, bytes], {"a": b"\x00"}),
        (datetime.datetime, AT),
        (datetime.datetime, AT.replace(tzinfo=None)),
        (datetime.datetime, AT.astimezone(datetime.timezone(datetime.timedelta(hours=5)))),
        (datetime.date, AT.date()),
        (datetime.timedelta, datetime.timedelta(days=1, microseconds=3)),
        (uuid.UUID, uuid.UUID(int=5)),
        (Colour, Colour.RED),
        (Level, Level.LOW),
        (dict[Mood, int], {Mood.GOOD: 1}),
        (Pair, Pair(1, "a")),
        (Point, Point(1, 2.0)),
        (Line, Line(Point(1), AT)),
        (Line, Line(Point(1), AT, "noted")),
        (Lines, Lines([Line(Point(1), AT)], {"a": Line(Point(2), AT)})),
        (list[Line], [Line(Point(1), AT), Line(Point(2), AT, "noted")]),
        (Private, Private(3)),
        (Box[int], Box(3)),
        (Leg, Leg("ULM", 3)),
        (list[Leg], [Leg("ULM", 3)]),
        (Total, Total(1, 2.5)),
        (dict[int, Order], {1: Order("ann", 2)}),
        (Order, Order("ann", 2)),
        (int | None, 5),
        (dict[str, Any], {"a": [1, None, {"b": 2}]}),
        (bool, True),
        (str, "text"),
    ],
)
def test_typed_table_accepts_values_preserved_by_type(kind: Any, value: Any) -> None:
    assert taken(kind, value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dict[int, int], {"7": 1}),
        (dict[int, int], {7: 1.0}),
        (dict[int, int], {7: True}),
        (dict[int, int], collections.Counter([7])),
        (set[str], ["a"]),
        (set[str], frozenset({"a"})),
        (tuple[int, ...], [1]),
        (tuple[int, str], Pair(1, "a")),
        (list[int], [Level.LOW]),
        (dict[str, Any], {"a": (1,)}),
        (int, True),
        (int, "7"),
        (int, 1.5),
        (float, 5),
        (float, float("nan")),
        (list[float], [float("inf")]),
        (bytes, "text"),
        (decimal.Decimal, 1),
        (decimal.Decimal, decimal.Decimal("NaN")),
        (uuid.UUID, "00000000-0000-0000-0000-000000000005"),
        (datetime.datetime, AT.astimezone(zoneinfo.ZoneInfo("Europe/Berlin"))),
        (Point, Point("one")),  # type: ignore[arg-type]
        (Point, Point(1, 2)),
        (Point, {"x": 1}),
        (Box[int], Box("text")),
        (Line, Line(Point(1), "2024-01-01")),  # type: ignore[arg-type]
        (Leg, Leg(5)),  # type: ignore[arg-type]
        (Leg, Leg("a", float("nan"))),  # type: ignore[arg-type]
        (Total, Total(1, 2)),
        (Total, Total(1, float("inf"))),
        (Total, Total("a", 2.5)),  # type: ignore[arg-type]
        (Tagged, Tagged(tags={"a"})),
        (Order, {"user": "ann"}),
    ],
)
def test_typed_table_refuses_values_changed_by_type(kind: Any, value: Any) -> None:
    assert not taken(kind, value)


def test_first_lossy_value_of_slice_is_located() -> None:
    made = table_codec(None)
    assert made.check is not None
    values: list[Any] = [1, "a", {"b": 1}, 2.5, (1,), {"c": (1,)}]
    assert made.check.first(values, [made.encode(value) or b"" for value in values]) == 4


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
KEYS = st.text() | st.integers() | st.none() | st.booleans()
ANY = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner) | st.dictionaries(KEYS, inner) | st.tuples(inner) | st.frozensets(KEYS)
    ),
    max_leaves=12,
)


@given(ANY)
def test_untyped_table_never_accepts_a_lossy_value(value: Any) -> None:
    taken(None, value)


@given(ANY)
def test_typed_table_never_accepts_a_lossy_value(value: Any) -> None:
    for kind in (
        dict[int, int],
        list[float],
        tuple[str, ...],
        dict[str, Any],
        int,
        float,
        set[int],
    ):
        taken(kind, value)


@given(ANY, ANY)
def test_values_called_same_have_no_difference(put: Any, read: Any) -> None:
    for other in (read, copy.deepcopy(put), [put, read]):
        if all_same([put, other], [other, put]):
            assert difference(put, other) is None


@pytest.mark.parametrize(
    ("put", "read"),
    [
        ([1], [True]), ([1], [1.0]), ({"a": [1]}, {"a": [1.0]}), ({1: "a"}, {True: "a"}),
        ([(1,)], [[1]]), ({1, 2.0}, {1.0, 2}), ({1}, {True}), ([[1], []], [[], [1]]),
        ([{"a": 1, "b": {}}], [{"a": 1, "c": {}}]), ([Point(1)], [Point(2)]),
        ([Order("ann", 1)], [Order("ann", 2)]), ([Leg("a", 1)], [Leg("a", True)]),
        ([Mood.GOOD], ["good"]), ([AT], [AT.replace(hour=3)]), ([AT], [AT.replace(tzinfo=None)]),
        ([b"a"], [bytearray(b"a")]), ({"a": [None]}, {"a": []}),
        ([collections.Counter("a")], [{"a": 1}]),
    ],
)  # fmt: skip
def test_values_differing_deep_inside_are_not_the_same(put: Any, read: Any) -> None:
    assert not all_same([put], [read])
    assert difference(put, read) is not None


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (dict[str, list[int]], {f"k{i}": [i, i + 1] for i in range(50)}),
        (list[Point], [Point(1, 0.5), Point(2)]),
        (dict[str, Order], {"a": Order("ann"), "b": Order("bob", 2)}),
        (dict[str, tuple[int, str]], {"a": (1, "x"), "b": (2, "y")}),
        (dict[str, datetime.datetime], {"a": AT, "b": AT.replace(tzinfo=None)}),
        (dict[str, set[int]], {"a": {1, 2}, "b": set()}),
        (list[Mood], [Mood.GOOD]),
        (Holder, Holder([{"a": 1, "b": [1.5, None]}, {"c": {"d": "e"}}])),
        (Line, Line(Point(1), AT)),
    ],
)
def test_roundtrip_check_does_not_compare_parts(
    kind: Any, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of 100 KB with lists in it took 70 times as long as its encoding."""
    monkeypatch.setattr(roundtrip, "difference", None)
    made = table_codec(kind)
    assert made.check is not None
    values = [value, copy.deepcopy(value)]
    assert made.check.first(values, [made.encode(each) or b"" for each in values]) is None
    assert made.check.comes_back(value, made.encode(value) or b"")


@pytest.mark.parametrize("value", [Point(1, 0.5), Leg("ULM", 3), Total(1, 2.5), Order("ann")])
def test_class_of_leaves_is_checked_without_reading_it(
    value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading took a fifth of the CPU of an aggregate."""
    made = table_codec(type(value))
    assert made.check is not None
    monkeypatch.setattr(roundtrip, "all_same", None)
    assert made.check.first([value], [made.encode(value) or b""]) is None


def test_null_decodes_to_none_in_nested_dataclass() -> None:
    """`{"lines": [{"note": null}]}`, which is how it is written, failed each record."""
    line = b'{"start":{"x":1,"y":0.0},"at":"2024-01-01T12:30:00Z","note":null}'
    data = b'{"all":[%b],"named":{"a":%b},"first":%b,"two":[%b,7]}' % ((line,) * 4)
    read = table_codec(Lines).decode(data)
    one = Line(Point(1), AT)
    assert read == Lines([one], {"a": one}, one, (one, 7))


@pytest.mark.parametrize("data", [b'{"two":[%b,7,8]}', b'{"all":[%b,null]}', b'{"first":[%b]}'])
def test_null_does_not_hide_other_validation_errors(data: bytes) -> None:
    line = b'{"start":{"x":1},"at":"2024-01-01T12:30:00Z","note":null}'
    with pytest.raises(msgspec.ValidationError):
        table_codec(Lines).decode(b'{"all":[],"named":{},' + data[1:] % line)
