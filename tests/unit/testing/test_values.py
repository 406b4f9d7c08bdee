"""Values, keys, tombstones and numbers that tables and topics return, through a driver."""

import collections
import dataclasses
import datetime
import json
import random
import uuid
from collections.abc import Callable
from typing import Any

import faust
import msgspec
import pydantic
import pytest

from streamsx import App
from streamsx.errors import TopologyError, ValueRefused
from streamsx.testing import TestDriver

Drive = Callable[..., TestDriver]


class User(faust.Record):
    name: str


class Base(faust.Record, allow_blessed_key=True):
    kind: str


class Circle(Base, allow_blessed_key=True):
    r: int


class Group(Base, allow_blessed_key=True):
    first: Circle | None = None
    rest: list[Circle] | None = None


@dataclasses.dataclass
class Point:
    x: int


@dataclasses.dataclass
class Line:
    start: Point
    at: datetime.datetime


@dataclasses.dataclass
class Own:
    x: int

    def __init__(self, x: int) -> None:
        self.x = x * 10


class Leg(msgspec.Struct):
    x: int


class Parcel(pydantic.BaseModel):
    x: int
    sent: datetime.datetime | None = None


AT = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
def drive() -> Any:
    drivers: list[TestDriver] = []

    def made(app: App, **options: Any) -> TestDriver:
        drivers.append(TestDriver(app, **options))
        return drivers[-1]

    yield made
    for driver in drivers:
        driver.close()


def counting(**options: Any) -> App:
    """Return an app with a histogram whose keys are ints."""
    app = App("shop", topic_partitions=1)
    table: Any = app.Table("hist", default=dict, **options)

    @app.agent("in")
    async def count(stream: Any) -> None:
        async for n in stream:
            found = table["u"]
            found[n] = found.get(n, 0) + 1
            table["u"] = found

    return app


def putting(value: Any, **options: Any) -> App:
    app = App("shop", topic_partitions=1)
    table = app.Table("t", **options)

    @app.agent("in")
    async def put(stream: Any) -> None:
        async for key in stream:
            table[key] = value

    return app


def hearing(heard: list[Any], **options: Any) -> App:
    """Return an agent that keeps the values of its typed topic."""
    app = App("shop", topic_partitions=1)
    topic = app.topic("in", **options)

    @app.agent(topic)
    async def hear(stream: Any) -> None:
        async for value in stream:
            heard.append(value)

    return app


def send(driver: TestDriver, *values: bytes | None) -> None:
    """Write bytes as they are, and run."""
    write = driver.to("in", 0)
    for value in values:
        write(None, value, driver.now_ms(), None)
    driver.pipe("in", [])


def test_counts_by_int_survive_a_restart_with_a_type(drive: Drive) -> None:
    driver = drive(counting(value_type=dict[int, int]))
    for _ in range(3):
        driver.pipe("in", [7, 7])
        driver.restart()
    assert driver.table("hist") == {"u": {7: 6}}


def test_untyped_counts_by_int_fail_at_the_line_of_the_put(drive: Drive) -> None:
    says = r"store hist, key 'u', type dict: at \[7\], a key of type int .*dict\[int, int\]"
    with pytest.raises(ValueRefused, match=says) as caught:
        drive(counting()).pipe("in", [7])
    assert "count" in [frame.name for frame in caught.traceback]


def test_refused_value_fails_only_one_record(drive: Drive) -> None:
    app = App("shop", topic_partitions=1)
    table = app.Table("t")

    @app.agent("in")
    async def put(stream: Any) -> None:
        async for n in stream:
            table[f"k{n}"] = n if n % 2 else (n,)

    driver = drive(app, raises=False)
    driver.pipe("in", range(6))
    assert driver.table("t") == {"k1": 1, "k3": 3, "k5": 5}
    assert [failure.offset for failure in driver.failures] == [0, 2, 4]
    driver.restart()
    assert driver.table("t") == {"k1": 1, "k3": 3, "k5": 5}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (set[str], {"a"}),
        (tuple[int, ...], (1, 2)),
        (datetime.datetime, AT),
        (uuid.UUID, uuid.UUID(int=1)),
        (Line, Line(Point(1), AT)),
        (Leg, Leg(1)),
        (Parcel, Parcel(x=1, sent=AT)),
        (dict[int, Parcel], {1: Parcel(x=1)}),
        (dict[int, Leg], {1: Leg(2)}),
    ],
)
def test_typed_value_is_the_same_after_a_restart(drive: Drive, kind: Any, value: Any) -> None:
    driver = drive(putting(value, value_type=kind))
    driver.pipe("in", ["a"])
    driver.restart()
    assert driver.table("t") == {"a": value}


def test_dataclass_changed_by_a_custom_init_is_refused(drive: Drive) -> None:
    with pytest.raises(ValueRefused, match=r"key 'a', type Own: at .x, 10 .* comes back as 100"):
        drive(putting(Own(1), value_type=Own)).pipe("in", ["a"])


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (uuid.UUID, [uuid.UUID(int=1), uuid.UUID(int=2)]),
        (tuple[int, str], [(1, "a"), (2, "b")]),
        (datetime.date, [AT.date()]),
        (bool, [True, False]),
    ],
)
def test_typed_keys_are_the_same_after_a_restart(drive: Drive, kind: Any, keys: list[Any]) -> None:
    app = App("shop", topic_partitions=1)
    table = app.Table("t", default=int, key_type=kind)

    @app.agent("in")
    async def put(stream: Any) -> None:
        async for _ in stream:
            for key in keys:
                table[key] += 1

    driver = drive(app)
    for _ in range(2):
        driver.pipe("in", [0])
        driver.restart()
    assert driver.table("t") == dict.fromkeys(keys, 2)


@pytest.mark.parametrize("key", [float("nan"), AT, uuid.UUID(int=1), [1], {"a": 1}, {1}])
@pytest.mark.parametrize("first", ["text", 1, ("a", 1)])
def test_key_that_decodes_to_another_key_is_refused(drive: Drive, first: Any, key: Any) -> None:
    app = App("shop", topic_partitions=1)
    table = app.Table("t", default=int)

    @app.agent("in")
    async def put(stream: Any) -> None:
        async for bad in stream:
            table[first] = 1
            if bad:
                table[key] += 1

    driver = drive(app, raises=False)
    driver.pipe("in", [0, 1])
    assert driver.table("t") == {first: 1}
    assert "key would change: table t, key " in str(driver.failures[0].error)


def test_dict_type_with_keys_not_in_json_ends_the_start() -> None:
    app = counting(value_type=dict[tuple[int, int], int])
    with pytest.raises(TopologyError, match="a dict in JSON has text or numbers as keys"):
        app.topology()


def test_key_that_decodes_to_another_key_deletes_nothing(drive: Drive) -> None:
    app = App("shop", topic_partitions=1)
    table = app.Table("t", default=int)

    @app.agent("in")
    async def put(stream: Any) -> None:
        async for n in stream:
            if n:
                table[None] = n
            else:
                table.pop(float("nan"))

    driver = drive(app, raises=False)
    driver.pipe("in", [5, 0])
    assert driver.table("t") == {None: 5}
    assert "key nan of type float: it is read back as None" in str(driver.failures[0].error)


@pytest.mark.parametrize("make", ["topic", "Table"])
def test_unknown_type_ends_the_start_with_file_and_line(make: str) -> None:
    app = counting()
    if make == "topic":
        app.topic("typed", value_type=collections.deque)
    else:
        app.Table("typed", value_type=dict[str, collections.Counter[str]])
    says = r"typed: unknown type: .* \(.*test_values.py:\d+\)"
    with pytest.raises(TopologyError, match=says):
        app.topology()


# -- records without a value


@pytest.mark.parametrize("kind", [User, Point, Own, Leg, Parcel, int, dict[int, int]])
def test_tombstones_of_a_typed_topic_are_skipped(drive: Drive, kind: Any) -> None:
    heard: list[Any] = []
    driver = drive(hearing(heard, value_type=kind))
    good = b"5" if kind is int else b'{"5":5}' if kind == dict[int, int] else b'{"x":5,"name":"n"}'
    send(driver, good, *[None] * 12, *[b"null"] * 12, b" null ", good)
    assert (len(heard), driver.failures) == (2, [])
    assert None not in heard


@pytest.mark.parametrize("kind", [User, Point, Own, Leg, int, dict[int, int]])
def test_tombstones_are_none_with_allow_empty(drive: Drive, kind: Any) -> None:
    heard: list[Any] = []
    driver = drive(hearing(heard, value_type=kind, allow_empty=True))
    send(driver, None, b"null")
    assert (heard, driver.failures) == ([None, None], [])


@pytest.mark.parametrize("kind", [Point | None, dict[int, int] | None])
def test_tombstones_are_none_where_the_type_allows_none(drive: Drive, kind: Any) -> None:
    heard: list[Any] = []
    driver = drive(hearing(heard, value_type=kind))
    send(driver, None, b"null")
    assert heard == [None, None]


def test_tombstones_do_not_interrupt_consecutive_failures(drive: Drive) -> None:
    heard: list[Any] = []
    driver = drive(hearing(heard, value_type=Point), raises=False)
    with pytest.raises(Exception, match="10 records in a row failed"):
        send(driver, *[b"{}", None] * 10)


def test_tombstones_of_an_untyped_topic_are_none_with_keys(drive: Drive) -> None:
    heard: list[Any] = []
    app = App("shop", topic_partitions=1)

    @app.agent(app.topic("in", key_type=str))
    async def hear(stream: Any) -> None:
        async for key, value in stream.items():
            heard.append((key, value))

    driver = drive(app)
    write = driver.to("in", 0)
    for key, value in ((b"a", None), (b"a", b"1"), (None, None), (b"b", b"null")):
        write(key, value, driver.now_ms(), None)
    driver.pipe("in", [])
    assert heard == [("a", None), ("a", 1), (None, None), ("b", None)]


def test_record_subtypes_on_one_topic_keep_their_types(drive: Drive) -> None:
    app = App("shop", topic_partitions=1)
    table = app.Table("t", value_type=Base)

    @app.agent(app.topic("in", value_type=Base))
    async def keep(stream: Any) -> None:
        async for record in stream:
            table[type(record).__name__] = record

    sent = {
        "Circle": Circle(kind="c", r=1),
        "Group": Group(kind="g", first=Circle(kind="c", r=2), rest=[Circle(kind="c", r=3)]),
        "Base": Base(kind="plain"),
    }
    driver = drive(app)
    driver.pipe("in", list(sent.values()))
    driver.restart()
    found = driver.table("t")
    assert found == sent
    assert {name: type(value).__name__ for name, value in found.items()} == {n: n for n in sent}
    assert type(found["Group"].rest[0]) is Circle


def sweep(table: Any, model: dict[str, int], n: int) -> None:
    """Delete while iterating: by keys, by items, or all."""
    if n % 5 == 0:
        for key in table.keys():  # noqa: SIM118  # no dict: what is walked is being changed
            if model[key] % 3 == 0:
                del table[key], model[key]
    elif n % 5 == 1:
        for key, value in table.items():
            if value % 4 == 0:
                assert table.pop(key) == model.pop(key)
    elif n % 50 == 2:
        table.clear()
        model.clear()


def test_table_changed_while_iterated_equals_a_dict(drive: Drive) -> None:
    app, seen = App("shop", topic_partitions=1), random.Random(7)
    table, model = app.Table("t", default=int), dict[str, int]()

    @app.agent("in")
    async def walk(stream: Any) -> None:
        async for n in stream:
            for key in (f"k{seen.randrange(40)}" for _ in range(5)):
                table[key] += 1
                model[key] = model.get(key, 0) + 1
            sweep(table, model, n)
            assert dict(table.items()) == model
            assert (len(table), sorted(table)) == (len(model), sorted(model))

    driver = drive(app)
    for start in range(0, 200, 25):
        driver.pipe("in", range(start, start + 25))
    assert driver.table("t") == model


def test_tombstones_are_skipped_by_a_group_by(drive: Drive) -> None:
    heard: list[Any] = []
    app = App("shop", topic_partitions=1)

    @app.agent(app.topic("in", value_type=Point))
    async def group(stream: Any) -> None:
        async for point in stream.group_by(lambda point: str(point.x), name="x"):
            heard.append(point)

    driver = drive(app)
    send(driver, *[None] * 12, b'{"x":1}')
    assert (heard, driver.failures) == ([Point(1)], [])


def test_missing_key_of_a_record_fails_the_record(drive: Drive) -> None:
    app = App("shop", topic_partitions=1)
    topic = app.topic("in", key_type=User, key_serializer="json")

    @app.agent(topic)
    async def hear(stream: Any) -> None:
        async for _ in stream.items():
            raise AssertionError("there is no such key")

    driver = drive(app, raises=False)
    send(driver, b"1")
    assert "key of a record: no value: a User was expected" in str(driver.failures[0].error)


# -- numbers and fields


@pytest.mark.parametrize("kind", [Point, Own, Leg, Parcel, User])
def test_unknown_fields_of_a_typed_record_are_ignored(drive: Drive, kind: Any) -> None:
    heard: list[Any] = []
    driver = drive(hearing(heard, value_type=kind))
    send(driver, b'{"x":1,"name":"n","added":[1]}')
    assert (len(heard), driver.failures) == (1, [])


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 2**70, 10**300])
def test_large_int_stays_an_int_and_can_be_sent_on(drive: Drive, number: int) -> None:
    app = App("shop", topic_partitions=1)
    out = app.topic("out")

    @app.agent("in")
    async def forward(stream: Any) -> None:
        async for value in stream:
            assert type(value["n"]) is int
            await out.send(value=value)

    driver = drive(app)
    send(driver, b'{"n":%d}' % number)
    (record,) = driver.read("out")
    assert record.value == {"n": number}


@pytest.mark.parametrize("bad", [b"NaN", b"[Infinity]", b'{"a":-Infinity}', b"1e999"])
def test_number_not_in_json_fails_only_one_record(drive: Drive, bad: bytes) -> None:
    heard: list[Any] = []
    driver = drive(hearing(heard), raises=False)
    send(driver, b"1", bad, b"2")
    assert (heard, [failure.offset for failure in driver.failures]) == ([1, 2], [1])


def test_message_of_a_typed_topic_has_that_type(drive: Drive) -> None:
    heard: list[Any] = []
    driver = drive(hearing(heard, value_type=dict[int, set[str]]))
    driver.pipe("in", [{1: {"a"}}])
    assert heard == [{1: {"a"}}]
    (record,) = driver.read("in")
    assert record.value == {1: {"a"}}


@pytest.mark.parametrize(
    ("kind", "key", "raw"),
    [
        (uuid.UUID, uuid.UUID(int=1), b"00000000-0000-0000-0000-000000000001"),
        (datetime.date, AT.date(), b"2024-01-01"),
        (tuple[int, str], (1, "a"), b'[1,"a"]'),
        (Point, Point(1), b'{"x":1}'),
    ],
)
def test_topic_key_is_text_or_json_by_type(drive: Drive, kind: Any, key: Any, raw: bytes) -> None:
    heard: list[Any] = []
    app = App("shop", topic_partitions=1)
    topic = app.topic("in", key_type=kind)

    @app.agent(topic)
    async def hear(stream: Any) -> None:
        async for event in stream.events():
            heard.append((event.key, event.message.key))

    drive(app).pipe("in", [(key, 1)])
    assert heard == [(key, raw)]


def test_stored_form_of_a_dataclass_is_unchanged(drive: Drive) -> None:
    driver = drive(putting(Line(Point(1), AT), value_type=Line))
    driver.pipe("in", ["a"])
    value = driver.store("t", 0).rows.get(b'\x01"a"')
    assert json.loads(value or b"") == {"start": {"x": 1}, "at": "2024-01-01T00:00:00Z"}
