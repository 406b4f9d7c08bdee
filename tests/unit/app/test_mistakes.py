"""Wrong declarations: refused where they are written, and not by the first record."""

from collections.abc import Callable
from typing import Any

import pytest

import streamsx
from streamsx import App
from streamsx.errors import TopologyError

Mistake = Callable[[Any], Any]


async def reading(stream: Any) -> None:
    async for _ in stream:
        pass


async def yielding(stream: Any) -> Any:
    async for each in stream:
        yield each


async def nothing() -> None:
    pass


async def two(_one: Any, _other: Any) -> None:
    pass


def plain() -> None:
    pass


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda app: app.agent(reading), "not a topic: <function reading"),
        (lambda app: app.agent(app.Table("t")), "not a topic: <Table: t>"),
        (lambda app: app.agent("a")(plain), "not an async function: <function plain"),
        (lambda app: app.agent("a")(nothing), "<function nothing .*: let it take its stream"),
        (lambda app: app.agent("a")(two), "<function two .*: let it take its stream"),
        (lambda app: app.agent("a", tables=app.Table("t"))(reading), "not a list: tables=<Table"),
        (lambda app: app.agent("a", tables="totals")(reading), "not a list: tables='totals'"),
        (lambda app: app.agent("a", sink=app.topic("b"))(yielding), "not a list: sink=<Topic: b>"),
        (lambda app: app.agent("a", sink=["b"])(yielding), "not a sink: 'b'"),
        (lambda app: app.task(plain), "not an async function: <function plain"),
        (lambda app: app.timer(1)(plain), "not an async function: <function plain"),
        (lambda app: app.timer(1)(two), "<function two .*: let it take the app, or nothing"),
        (lambda app: app.topic(), r"not names of topics: \(\)"),
        (lambda app: app.topic(["a", "b"]), "not names of topics: .*write app.topic"),
        (lambda app: app.Table("t", default=0), "bad default: default=0: table t"),
    ],
)
def test_wrong_argument_is_a_type_error(app: App, mistake: Mistake, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        mistake(app)


def test_decorated_sync_task_is_accepted(app: App) -> None:
    from functools import wraps

    @wraps(nothing)
    def decorated() -> Any:
        return nothing()

    app.task(decorated)
    assert [job.name for job in app.jobs] == [f"{__name__}.nothing"]


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda app: app.topic("a", partitions=0), "not a number of partitions: 0: topic a"),
        (lambda app: app.topic("a", partitions=-1), "not a number of partitions: -1: topic a"),
        (lambda app: app.topic("a", partitions="4"), "not a number of partitions: '4': topic a"),
        (lambda app: app.topic("a", replicas="3"), "not a number of replicas: '3': topic a"),
        (lambda app: app.topic("a", value_type=type), "topic a: unknown type: <class 'type'>"),
        (lambda app: app.topic("a", key_serializer="jsno"), "topic a: unknown serializer: 'jsno'"),
        (lambda app: app.Table("t", value_type=type), "table t: unknown type: <class 'type'>"),
    ],
)
def test_invalid_topic_is_an_error_naming_the_topic(app: App, mistake: Mistake, says: str) -> None:
    mistake(app)
    with pytest.raises(TopologyError, match=says):
        app.topology()


def through_itself(stream: Any) -> Any:
    return stream.through("a")


def twice_by_one_name(stream: Any) -> Any:
    stream.group_by(len, name="u")
    return stream.group_by(len, name="u")


def by_a_name(stream: Any) -> Any:
    return stream.group_by("user", name="user")


@pytest.mark.parametrize(
    ("derive", "says"),
    [
        (through_itself, "agent would feed itself: round: a, a: its records would go round"),
        (twice_by_one_name, "agent would feed itself: round: "),
        (by_a_name, "group_by 'user': agent round: give it a field of a Record, or a function"),
    ],
)
def test_stream_impossible_to_derive_is_refused(app: App, derive: Mistake, says: str) -> None:
    @app.agent("a", name="round")
    async def body(stream: Any) -> None:
        async for _ in derive(stream):
            pass

    with pytest.raises(TopologyError, match=says):
        app.topology()


def test_topic_named_twice_is_read_once(app: App) -> None:
    assert app.topic("a", "b", "a").topics == ("a", "b")


def test_group_by_topic_may_be_given_by_name(app: App) -> None:
    @app.agent("a")
    async def body(stream: Any) -> None:
        async for _ in stream.group_by(len, name="n", topic="mine"):
            pass

    assert [topic.name for topic in app.topology().topics] == ["a", "mine"]


def test_infinite_retention_becomes_retention_ms_minus_one(app: App) -> None:
    app.topic("kept", retention="infinite")
    (spec,) = app.topology().topics
    assert spec.config == {"retention.ms": "-1"}


def test_user_class_may_have_the_name_of_a_library_class() -> None:
    class App(streamsx.App):
        pass

    assert not hasattr(App("shop"), "no_such_thing")
