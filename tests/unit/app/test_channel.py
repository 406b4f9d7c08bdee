"""app/channel.py: sending inside and outside of a task, and the settings of created topics."""

import gc
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from streamsx import App
from streamsx.errors import UsageError
from streamsx.testing import TestDriver
from streamsx.topology.internal_topics import BROKER_DEFAULT, TopicKind

Drive = Callable[..., TestDriver]


def test_sent_record_has_the_timestamp_of_the_current_record(app: App, drive: Drive) -> None:
    out = app.topic("out", key_type=str, partitions=1)
    headers: dict[str, bytes | str | None] = {"a": "1", "b": b"2"}

    @app.agent("words")
    async def body(stream: Any) -> None:
        async for word in stream:
            await out.send(key=word, value={"w": word})
            await out.send(value=word, timestamp=9.5, headers=headers)

    driver = drive(app)
    driver.pipe("words", [(None, "a", 7.25)])
    first, second = driver.read("out")
    assert (first.key, first.value, first.timestamp, first.headers) == ("a", {"w": "a"}, 7.25, {})
    assert (second.key, second.timestamp) == (None, 9.5)
    assert second.headers == {"a": b"1", "b": b"2"}


def test_record_without_timestamp_passes_none_to_sent_records(app: App, drive: Drive) -> None:
    out = app.topic("out", partitions=1)

    @app.agent("words")
    async def body(stream: Any) -> None:
        async for word in stream:
            await out.send(value=word)
            await out.send(value=word, partition=0)

    driver = drive(app)
    driver.pipe("words", [(None, "a", -0.001)])
    assert [each.timestamp for each in driver.read("out")] == [-0.001, -0.001]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (
            {"headers": {"h": 5}},
            "TypeError: header refused: topic out: 'h' is a int: give its name",
        ),
        ({"headers": [(5, b"v")]}, "TypeError: header refused: topic out: 5 is a bytes"),
        ({"timestamp": -5.0}, "RecordRefused: record refused: topic out: its timestamp is -5.0"),
        ({"timestamp": float("nan")}, "RecordRefused: record refused: topic out: its timestamp is"),
        ({"timestamp": 1.7e18}, "RecordRefused: record refused: topic out: its timestamp is 1.7e"),
    ],
    ids=["header value", "header name", "before 1970", "no number", "nanoseconds"],
)
def test_record_no_topic_accepts_fails_and_the_next_is_sent(
    app: App, drive: Drive, how: Any, says: str
) -> None:
    out = app.topic("out", partitions=1)

    @app.agent("words")
    async def body(stream: Any) -> None:
        async for word in stream:
            more = how if word == "bad" else {"timestamp": -0.001, "headers": [("h", None)]}
            await out.send(value=word, **more)

    driver = drive(app, raises=False)
    driver.pipe("words", [(None, "bad"), (None, "good")])
    assert [each.value for each in driver.read("out")] == ["good"]
    (failure,) = driver.failures
    assert f"{type(failure.error).__name__}: {failure.error}".startswith(says)


def test_send_to_a_given_partition(app: App, drive: Drive) -> None:
    out = app.topic("out", partitions=4)

    @app.agent("words")
    async def body(stream: Any) -> None:
        async for word in stream:
            await out.send(value=word, partition=3)

    driver = drive(app)
    driver.pipe("words", ["a"])
    assert out.send(value="b", partition=2).done()
    assert [(each.partition, each.value) for each in driver.read("out")] == [(2, "b"), (3, "a")]


def test_send_with_serializers_for_one_record(app: App, drive: Drive) -> None:
    out = app.topic("out", partitions=1)
    driver = drive(app)
    kinds: Any = {"key_serializer": "json", "value_serializer": "raw"}
    assert out.send(key={"k": 1}, value="plain", **kinds).done()
    assert out.send(key=None, value=None, key_serializer="json").done()
    log = [
        (row.key, row.value)
        for row in driver.read(app.topic("out", value_type=bytes, value_serializer="raw"))
    ]
    assert log == [(b'{"k":1}', b"plain"), (None, b"null")]


def test_send_outside_a_task_uses_the_current_time(app: App, drive: Drive) -> None:
    out = app.topic("out")
    driver = drive(app, now=50.0)
    driver.advance("2s")
    assert out.send_soon(value=1).done()
    assert app.send("out", "k", 2).done()
    assert app.send(out, value=3, timestamp=1).done()
    assert sorted((each.value, each.timestamp) for each in driver.read(out)) == [
        (1, 52.0), (2, 52.0), (3, 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize("at", [0.0, 1.001, 4.35, 1_700_000_000.255, 1_700_000_000.999])
def test_timestamp_is_kept_to_the_millisecond(app: App, drive: Drive, at: float) -> None:
    app.topic("out")
    driver = drive(app)
    driver.pipe("out", [(None, 1, at)])
    assert app.send("out", timestamp=at).done()
    assert [each.timestamp for each in driver.read("out")] == [at, at]


def test_send_without_a_running_app_is_an_error(app: App) -> None:
    with pytest.raises(UsageError, match="not running: app shop: start a worker"):
        assert app.topic("out").send(value=1).done()


def test_send_to_several_topics_is_an_error(app: App, drive: Drive) -> None:
    drive(app)
    with pytest.raises(ValueError, match="not one topic: a,b"):
        assert app.topic("a", "b").send(value=1).done()


def test_unserializable_value_fails_the_current_record(app: App, drive: Drive) -> None:
    out = app.topic("out", value_serializer="raw")

    @app.agent("words")
    async def body(stream: Any) -> None:
        async for _ in stream:
            await out.send(value=object())

    driver = drive(app, raises=False)
    driver.pipe("words", ["a"])
    assert "not text or bytes: object" in str(driver.failures[0].error)


def test_topic_options_become_topic_config(app: App) -> None:
    topic = app.topic(
        "t", partitions=4, replicas=3, retention=timedelta(hours=1), compacting=True, deleting=True,
        config={"segment.bytes": 1024}, acks=False, internal=True, maxsize=5,
    )  # fmt: skip
    (spec,) = topic.specs(TopicKind.SOURCE)
    assert (spec.partitions, spec.replication) == (4, 3)
    assert spec.config == {
        "cleanup.policy": "compact,delete", "retention.ms": "3600000", "segment.bytes": "1024",
    }  # fmt: skip
    assert next(iter(app.topic("plain").specs(TopicKind.OUTPUT))).config == {}


def test_replication_factor_is_left_to_the_cluster_unless_set() -> None:
    ours, set_for_all = App("shop"), App("shop", topic_replication_factor=2)
    assert next(iter(ours.topic("t").specs(TopicKind.REPARTITION))).replication == BROKER_DEFAULT
    assert ours.Table("totals").spec().replication == BROKER_DEFAULT
    assert next(iter(set_for_all.topic("t").specs(TopicKind.SOURCE))).replication == 2
    assert set_for_all.Table("totals").spec().replication == 2


def test_app_serializers_are_the_default_of_topics() -> None:
    app = App("shop", key_serializer="json", value_serializer="raw")
    topic = app.topic("t")
    assert (topic.key_codec.name, topic.value_codec.name) == ("json", "raw")


def test_topic_declare_need_not_be_awaited(app: App) -> None:
    for declared in (app.topic("t").declare(), app.topic("t").maybe_declare()):
        with pytest.raises(StopIteration):
            declared.send(None)


def test_topic_object_made_for_each_record_is_not_kept(app: App, drive: Drive) -> None:
    """It was kept with all that a body had looked up, and each wake went through all of them."""
    words = app.topic("words", value_type=str, value_serializer="raw")
    app.topic("echoed")
    made: list[weakref.ref[Any]] = []

    @app.agent(words)
    async def echo(stream: Any) -> None:
        async for word in stream:
            echoed = app.topic("echoed", value_type=str)
            made.append(weakref.ref(echoed))
            await echoed.send(value=word)

    driver = drive(app)
    driver.pipe("words", ["a"] * 1000)
    gc.collect()
    assert sum(topic() is not None for topic in made) < 200
    assert len(driver.read("echoed")) == 1000
