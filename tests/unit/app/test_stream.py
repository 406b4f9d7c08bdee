"""app/stream.py: items, events, and the topics that a stream derives."""

from collections.abc import Callable
from typing import Any

import faust
import pytest

from streamsx import App, Event
from streamsx.app.stream import Message
from streamsx.errors import TaskFailed, TopologyError, UsageError
from streamsx.model import TopicPartition
from streamsx.testing import TestDriver

Drive = Callable[..., TestDriver]


class Address(faust.Record):
    city: str


class Order(faust.Record):
    user: str
    home: Address


async def reading(stream: Any) -> None:
    async for _ in stream:
        pass


def test_items_yield_keys_with_values(app: App, drive: Drive) -> None:
    heard: list[Any] = []

    @app.agent(app.topic("words", key_type=str))
    async def body(stream: Any) -> None:
        async for item in stream.items():
            heard.append(item)

    drive(app).pipe("words", [("k", 1), (None, 2)])
    assert sorted(heard, key=str) == [("k", 1), (None, 2)]


def test_undecodable_key_fails_the_record_as_a_decode_error(app: App, drive: Drive) -> None:
    heard: list[Any] = []

    @app.agent(app.topic("words", key_type=int, partitions=1))
    async def body(stream: Any) -> None:
        async for item in stream.items():
            heard.append(item)

    driver = drive(app, raises=False)
    driver.pipe("words", [("1", "a"), ("x", "b"), ("3", "c")])
    assert heard == [(1, "a"), (3, "c")]
    assert [(each.offset, each.decode) for each in driver.failures] == [(1, True)]


def test_events_carry_their_record(app: App, drive: Drive) -> None:
    heard: list[Event] = []

    @app.agent(app.topic("words", partitions=1))
    async def body(stream: Any) -> None:
        async for event in stream.events():
            heard.append(event)

    driver = drive(app)
    words = app.topics["words"]
    assert words.send(key="k", value={"a": 1}, timestamp=7.5, headers={"h": "1"}).done()
    driver.pipe("words", ["b"])
    event, other = heard
    assert (event.key, event.value, event.headers) == (b"k", {"a": 1}, {"h": b"1"})
    message = Message("words", 0, 0, 7.5, [("h", b"1")], b"k", b'{"a":1}')
    assert event.message == message
    assert message.tp == TopicPartition("words", 0)
    assert repr(event) == "<Event: k=b'k' v={'a': 1}>"
    assert (other.headers, other.message.offset) == ({}, 1)


def test_group_by_passes_bytes_and_headers_and_changes_the_key(app: App, drive: Drive) -> None:
    heard: list[Any] = []

    @app.agent(app.topic("orders", value_type=Order), name="a")
    async def body(stream: Any) -> None:
        async for event in stream.group_by(Order.home.city).events():
            heard.append((event.key, event.value.user, event.headers, event.message.value))

    driver = drive(app)
    raw = b'{"user":  "ann", "home": {"city": "Ulm"}}'
    assert app.topics["orders"].send(key="k", value=raw, headers=[("h", b"1")]).done()
    driver.advance(0)
    assert heard == [(b"Ulm", "ann", {"h": b"1"}, raw)]
    (record,) = driver.read("shop-a-orders-Address.city-repartition")
    assert (record.key, record.headers) == (b"Ulm", {"h": b"1"})


def test_group_by_key_error_is_reported_and_skipped(app: App, drive: Drive) -> None:
    heard: list[Any] = []

    @app.agent(app.topic("orders", partitions=1), name="a")
    async def body(stream: Any) -> None:
        async for order in stream.group_by(lambda order: order["user"], name="user"):
            heard.append(order)

    driver = drive(app, raises=False)
    driver.pipe("orders", [{"user": "ann"}, {}, {"user": "bob"}])
    assert sorted(each["user"] for each in heard) == ["ann", "bob"]
    assert [each.offset for each in driver.failures] == [1]


@pytest.mark.parametrize(
    ("user", "says"),
    [
        (None, "no key: agent a, topic orders: give each record one"),
        (True, "a bool as key: agent a, topic orders: it must be str, bytes or a number"),
        ({"a": 1}, "a dict as key: agent a, topic orders: it must be str, bytes or a number"),
    ],
)
def test_group_by_without_a_key_fails_the_record(
    user: object, says: str, app: App, drive: Drive
) -> None:
    """Without a key the record went to any partition, and several tasks counted one group."""

    @app.agent(app.topic("orders", partitions=1), name="a")
    async def body(stream: Any) -> None:
        async for _ in stream.group_by(lambda order: order["user"], name="user"):
            pass

    driver = drive(app, raises=False)
    driver.pipe("orders", [{"user": user}, {"user": 7}, {"user": 1.5}])
    assert [(each.offset, str(each.error)) for each in driver.failures] == [
        (0, f"group_by gave {says}")
    ]
    keys = [record.key for record in driver.read("shop-a-orders-user-repartition")]
    assert keys == [b"7", b"1.5"]


def test_stream_can_be_grouped_twice(app: App, drive: Drive) -> None:
    heard: list[Any] = []

    @app.agent("orders", name="a")
    async def body(stream: Any) -> None:
        by_two = stream.group_by(lambda o: o[0], name="one").group_by(lambda o: o[1], name="two")
        async for key, order in by_two.items():
            heard.append((key, order))

    drive(app).pipe("orders", [["x", "y"]])
    assert heard == [(b"y", ["x", "y"])]
    assert [each.topics[0] for each in app.topology().subtopologies] == [
        "orders", "shop-a-orders-one-repartition", "shop-a-orders-one-repartition-two-repartition",
    ]  # fmt: skip


def test_through_keeps_the_key(app: App, drive: Drive) -> None:
    heard: list[Any] = []

    @app.agent("orders", name="a")
    async def body(stream: Any) -> None:
        async for item in stream.through("copy").through(app.topic("again", partitions=5)).items():
            heard.append(item)

    driver = drive(app)
    driver.pipe("orders", [("k", 1)])
    assert heard == [(b"k", 1)]
    assert driver.read("copy")[0].value == 1
    kinds = {spec.name: (spec.kind.value, spec.partitions) for spec in driver.topology.topics}
    assert kinds == {"orders": ("source", None), "copy": ("source", None), "again": ("source", 5)}


def test_group_by_can_use_a_user_topic(app: App, drive: Drive) -> None:
    heard: list[Any] = []
    mine = app.topic("mine", key_serializer="json", key_type=int)

    @app.agent("orders", name="a")
    async def body(stream: Any) -> None:
        async for item in stream.group_by(lambda n: n + 1, name="n", topic=mine).items():
            heard.append(item)

    drive(app).pipe("orders", [1])
    assert heard == [(2, 1)]


def test_group_by_partitions_apply_to_the_repartition_topic(app: App) -> None:
    @app.agent("orders", name="a")
    async def body(stream: Any) -> None:
        async for _ in stream.group_by(str, name="n", partitions=3):
            pass

    specs = {spec.name: spec.partitions for spec in app.topology().topics}
    assert specs == {"shop-a-orders-n-repartition": 3, "orders": None}


async def async_key(value: Any) -> Any:
    return value


def test_agents_on_one_topic_derive_independently(app: App, drive: Drive) -> None:
    """Each agent has its own key, and a failure of one does not affect the other."""
    orders = app.topic("orders", partitions=1)
    heard: dict[str, list[Any]] = {"users": [], "archive": [], "plain": []}

    @app.agent(orders, name="a")
    async def users(stream: Any) -> None:
        async for key, order in stream.group_by(lambda o: o.pop("user"), name="user").items():
            heard["users"].append((key, order["n"]))

    @app.agent(orders, name="b")
    async def archive(stream: Any) -> None:
        async for key, order in stream.through(app.topic("archive", partitions=1)).items():
            heard["archive"].append((key, order["n"]))

    @app.agent(orders, name="c")
    async def plain(stream: Any) -> None:
        async for key, order in stream.items():
            heard["plain"].append((key, order["n"]))

    driver = drive(app, raises=False)
    driver.pipe("orders", [("k1", {"user": "ann", "n": 1}), ("k2", {"n": 2}), (None, {"n": 3})])
    as_they_came = [(b"k1", 1), (b"k2", 2), (None, 3)]
    assert heard == {"users": [(b"ann", 1)], "archive": as_they_came, "plain": as_they_came}
    assert [type(each.error) for each in driver.failures] == [KeyError, KeyError]


@pytest.mark.parametrize(
    ("key", "name", "says"), [(str, None, "give it a name"), (async_key, "n", "async function")]
)
def test_group_by_function_needs_a_name_and_must_be_sync(
    app: App, key: Any, name: str | None, says: str
) -> None:
    @app.agent("orders", name="a")
    async def body(stream: Any) -> None:
        async for _ in stream.group_by(key, name=name):
            pass

    with pytest.raises(TopologyError, match=says):
        app.topology()


def test_stream_derived_too_late_is_an_error(app: App, drive: Drive) -> None:
    @app.agent("orders", name="a")
    async def body(stream: Any) -> None:
        async for _ in stream:
            stream.group_by(str, name="late")

    driver = drive(app)
    with pytest.raises(
        UsageError, match="group_by or through too late: agent a, topic shop-a-orders-late"
    ):
        driver.pipe("orders", [1])


def test_policy_stop_stops_the_task(drive: Drive) -> None:
    app = App("shop", on_error="stop")

    @app.agent("orders")
    async def body(stream: Any) -> None:
        async for order in stream:
            raise ValueError(order)

    driver = drive(app)
    with pytest.raises(TaskFailed, match="its policy is stop"):
        driver.pipe("orders", [1])


def test_filter_passes_only_matching_values_to_the_body(app: App, drive: Drive) -> None:
    seen: list[Any] = []

    @app.agent(app.topic("words", key_type=str, partitions=1))
    async def body(stream: Any) -> None:
        async for key, value in stream.filter(lambda n: n % 2).filter(lambda n: n > 1).items():
            seen.append((key, value))

    driver = drive(app)
    driver.pipe("words", [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5), ("f", 6)])
    assert seen == [("c", 3), ("e", 5)]
    assert driver.failures == []


def test_filter_ahead_of_group_by_runs_before_the_topic_in_between(app: App, drive: Drive) -> None:
    seen: list[Any] = []

    @app.agent(app.topic("words", partitions=1))
    async def body(stream: Any) -> None:
        odd = stream.filter(lambda n: n % 2)
        async for key, value in odd.group_by(lambda n: n // 4, name="fourth").items():
            seen.append((key, value))

    driver = drive(app)
    driver.pipe("words", [1, 2, 3, 4, 5])
    assert sorted(seen) == [(b"0", 1), (b"0", 3), (b"1", 5)]
    operators = app.topology().subtopologies[0].sources[0].operators
    assert [each.kind for each in operators] == ["filter", "rekey", "forward"]


@pytest.mark.parametrize("records", [[0], [2, 0, 3], [0, 0, 5], [4, 0]])
def test_condition_that_raises_fails_its_record_alone(
    app: App, drive: Drive, records: list[int]
) -> None:
    seen: list[Any] = []

    @app.agent(app.topic("words", partitions=1))
    async def body(stream: Any) -> None:
        async for value in stream.filter(lambda n: 6 / n > 1.3):
            seen.append(value)

    driver = drive(app, raises=False)
    driver.pipe("words", records)
    driver.restart()
    driver.pipe("words", [1])
    assert seen == [n for n in records if n and 6 / n > 1.3] + [1]
    failed = [offset for offset, n in enumerate(records) if not n]
    found = dict.fromkeys((each.offset, each.decode) for each in driver.failures)
    assert list(found) == [(n, False) for n in failed], "told again where it is the last record"


def test_undecodable_value_ahead_of_a_filter_is_a_decode_error(app: App, drive: Drive) -> None:
    seen: list[Any] = []

    @app.agent(app.topic("words", value_type=int, partitions=1))
    async def body(stream: Any) -> None:
        async for value in stream.filter(bool):
            seen.append(value)

    driver = drive(app, raises=False)
    driver.pipe(app.topic("words", value_serializer="raw", partitions=1), [b"1", b"x", b"0", b"3"])
    assert seen == [1, 3]
    assert [(each.offset, each.decode) for each in driver.failures] == [(1, True)]


def test_another_loop_over_a_filtered_stream_goes_on_behind_the_first(
    app: App, drive: Drive
) -> None:
    seen: list[Any] = []

    @app.agent(app.topic("words", partitions=1))
    async def body(stream: Any) -> None:
        odd = stream.filter(lambda n: n % 2)
        async for value in odd:
            seen.append(("first", value))
            if value == 3:
                break
        async for value in odd:
            seen.append(("second", value))

    drive(app).pipe("words", [1, 2, 3, 4, 5, 6, 7])
    assert seen == [("first", 1), ("first", 3), ("second", 5), ("second", 7)]


async def slow(_value: Any) -> bool:
    return True


@pytest.mark.parametrize("condition", [slow, 3])
def test_filter_refuses_anything_but_a_plain_function(
    app: App, drive: Drive, condition: Any
) -> None:
    @app.agent(app.topic("words", partitions=1))
    async def body(stream: Any) -> None:
        async for _ in stream.filter(condition):
            pass

    with pytest.raises(TopologyError, match="give it a plain function of the value"):
        app.topology()
