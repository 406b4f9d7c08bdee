"""Topics that are first named by a record: looked up, created, refused, waited for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from streamsx.broker.api.served import answered
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from streamsx.tasks.open_records import RECORD_PATIENCE_S
from tests.unit.conftest import app_of, changelog, words

if TYPE_CHECKING:
    from streamsx import App
    from streamsx.broker.groups.coordinator_events import ReplyBody
    from streamsx.broker.net.client_connection import ServedRequest
    from streamsx.broker.service import Service
    from tests.unit.conftest import VirtualCluster

TASKS = TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)


def routing(*, awaits: bool = True, **settings: Any) -> App:
    """Return an app that counts each word, and sends it to a topic of its name, unless it is
    `stay`.
    """
    app = app_of(**settings)
    counts = app.Table("counts", default=int, key_type=str, value_type=int)

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def route(stream: Any) -> None:
        async for word in stream:
            counts[word] += 1
            if word == "stay":
                continue
            if word == "poison":
                raise ValueError(word)
            sent = app.topic(f"to-{word}", partitions=1, value_serializer="raw").send(value=word)
            if awaits:
                await sent

    return app


def values(bench: VirtualCluster, topic: str) -> list[bytes | None]:
    return [value for _, value in bench.read(TopicPartition(topic, 0))]


def committed(bench: VirtualCluster) -> int:
    return bench.committed.get(words(0), (-1, ""))[0]


def with_all_topics(bench: VirtualCluster) -> None:
    """Create the changelog, for an app that may create no topics."""
    topics = bench.broker.service.topics
    kept = {"cleanup.policy": "compact"}
    bench.at_broker(lambda: topics.create(changelog(0).topic, bytes(range(16)), 3, kept))
    bench.run(0.01)


class Withheld:
    """Broker whose Metadata answers leave one topic out until `shown`."""

    def __init__(self, topic: str) -> None:
        self.topic, self.shown, self.asked = topic, False, 0

    def __call__(self, service: Service, call: ServedRequest) -> ReplyBody | None:
        names = [each.name for each in call.body.topics or ()] if call.api is Api.METADATA else []
        if self.shown or names != [self.topic]:
            return answered(service, call)
        self.asked += 1
        call.connection.close("it says nothing")
        return None


@pytest.mark.parametrize("awaits", [True, False])
def test_existing_topic_is_found_and_each_record_arrives_once(
    bench: VirtualCluster, awaits: bool
) -> None:
    bench.create("to-a", 1)
    station = bench.begun(routing(awaits=awaits))
    station.hand.plan(*TASKS)
    bench.feed(0, "a", "a", "stay", "a")
    bench.until(lambda: committed(bench) == 4)
    assert values(bench, "to-a") == [b"a"] * 3
    assert bench.counted() == {"a": 3, "stay": 1}


def test_missing_topic_is_created_as_the_app_configures(bench: VirtualCluster) -> None:
    station = bench.begun(routing())
    station.hand.plan(*TASKS)
    bench.feed(0, "a", "b", "a")
    bench.until(lambda: committed(bench) == 3)
    assert (values(bench, "to-a"), values(bench, "to-b")) == ([b"a"] * 2, [b"b"])
    assert len(bench.broker.service.topics.by_name["to-a"].logs) == 1


@pytest.mark.parametrize(
    ("word", "why"),
    [
        (
            "gone",
            "unknown topic: to-gone: it does not exist, and the app may not create it: create",
        ),
        ("with a blank", "not a name of a topic: 'to-with a blank'"),
    ],
)
def test_unavailable_topic_fails_the_sending_record(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture, word: str, why: str
) -> None:
    bench.create("to-a", 1)
    with_all_topics(bench)
    station = bench.begun(routing(topic_allow_declare=False))
    station.hand.plan(*TASKS)
    bench.feed(0, "a", word, "a")
    bench.until(lambda: committed(bench) == 3)
    assert station.process.alive
    assert values(bench, "to-a") == [b"a"] * 2
    assert why in caplog.text


@pytest.mark.parametrize("awaits", [True, False])
def test_record_waiting_for_a_topic_is_uncommitted_and_delays_no_other_task(
    bench: VirtualCluster, awaits: bool
) -> None:
    """Whether its body awaits it or not; the next chunk waits with it."""
    bench.create("to-a", 1)
    bench.answer = withheld = Withheld("to-a")
    station = bench.begun(routing(awaits=awaits))
    station.hand.plan(*TASKS)
    bench.feed(0, "stay", "a")
    bench.until(lambda: withheld.asked)
    bench.feed(0, "stay")
    bench.feed(1, "stay", "stay")
    bench.run(3)
    assert committed(bench) == -1, "a commit would have what the waiting record has counted"
    assert bench.committed[words(1)][0] == 2
    bench.run(RECORD_PATIENCE_S)
    assert committed(bench) == 1
    assert values(bench, "to-a") == []
    withheld.shown = True
    bench.until(lambda: committed(bench) == 3)
    assert values(bench, "to-a") == [b"a"]
    assert bench.counted() == {"a": 1, "stay": 4}


def test_failure_after_a_waiting_record_does_not_commit_the_waiting_one(
    bench: VirtualCluster,
) -> None:
    """Failed records in a row hold the position too, at the first of them."""
    bench.create("to-a", 1)
    bench.answer = withheld = Withheld("to-a")
    station = bench.begun(routing(awaits=False))
    station.hand.plan(*TASKS)
    bench.feed(0, "stay", "a", "stay", "poison")
    bench.until(lambda: withheld.asked)
    bench.run(8)
    assert committed(bench) == 1
    withheld.shown = True
    bench.until(lambda: committed(bench) == 4)
    assert values(bench, "to-a") == [b"a"]


def test_record_waiting_for_a_topic_is_processed_again_after_a_kill(bench: VirtualCluster) -> None:
    """The send is not awaited, and the record is not lost."""
    bench.create("to-a", 1)
    bench.answer = withheld = Withheld("to-a")
    station = bench.begun(routing(awaits=False))
    station.hand.plan(*TASKS)
    bench.feed(0, "a")
    bench.until(lambda: withheld.asked)
    bench.run(3)
    station.process.kill()
    withheld.shown = True
    bench.begun(routing(awaits=False), "w2").hand.plan(*TASKS)
    bench.until(lambda: committed(bench) == 1)
    assert values(bench, "to-a") == [b"a"]


def test_send_failure_without_await_is_logged(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with_all_topics(bench)
    station = bench.begun(routing(awaits=False, topic_allow_declare=False))
    station.hand.plan(*TASKS)
    bench.feed(0, "gone")
    bench.until(lambda: committed(bench) == 1)
    assert "A record was not sent: unknown topic: to-gone" in caplog.text


@pytest.mark.parametrize("form", ["wait", "gather", "create_task", "metadata", "time-out"])
def test_send_waiting_for_a_topic_can_be_awaited_in_every_form(
    bench: VirtualCluster, form: str
) -> None:
    app, told = app_of(), list[Any]()
    bench.answer = withheld = Withheld("late")

    @app.task
    async def once() -> None:
        sent = app.topic("late", partitions=1, value_serializer="raw").send(value=b"x")
        assert not sent.done()
        if form == "time-out":
            try:
                await asyncio.wait_for(sent, 0.5)
            except TimeoutError:
                told.append("given up")
            return
        if form == "wait":
            (done,), _ = await asyncio.wait([sent])  # type: ignore[type-var]  # a future
            delivery = done.result()
        elif form == "gather":
            (delivery,) = await asyncio.gather(sent)
        elif form == "create_task":
            delivery = await asyncio.create_task(sent)  # type: ignore[arg-type]  # a future
        else:
            delivery = await sent
        told.append((await delivery)[:2])

    station = bench.station(app)
    bench.until(lambda: withheld.asked)
    bench.run(1)
    withheld.shown = True
    bench.until(lambda: told)
    bench.run(1)
    assert station.process.alive
    if form == "time-out":
        assert told == ["given up"]
        assert values(bench, "late") == []
    else:
        assert told == [("late", 0)]
        assert values(bench, "late") == [b"x"]


def test_send_that_is_cancelled_at_once_holds_its_task_no_longer(bench: VirtualCluster) -> None:
    """The asyncio task that waits for the topic has not started then."""
    app = app_of()
    bench.answer = Withheld("late")

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def route(stream: Any) -> None:
        async for word in stream:
            if word == "a":
                app.topic("late", partitions=1).send_soon(value=word).cancel()

    station = bench.begun(app)
    station.hand.plan(*TASKS)
    bench.feed(0, "a", "stay")
    bench.until(lambda: committed(bench) == 2)


def test_topic_creation_delayed_by_the_controller_is_waited_for(bench: VirtualCluster) -> None:
    """Its record failed after 30 s, and the next one was read."""
    until_s = bench.scheduler.now + 150
    asked: list[Api] = []

    def answer(service: Service, call: ServedRequest) -> ReplyBody | None:
        asked.append(call.api)
        if call.api is not Api.CREATE_TOPICS or bench.scheduler.now > until_s:
            return answered(service, call)
        names = [topic.name for topic in call.body.topics if topic.name == "to-a"]
        told = [{"name": name, "error_code": ErrorCode.NOT_CONTROLLER} for name in names]
        return {"topics": told} if names else answered(service, call)

    bench.answer = answer
    station = bench.begun(routing())
    station.hand.plan(*TASKS)
    bench.feed(0, "a", "stay")
    bench.run(140)
    assert committed(bench) <= 0, "nothing of it is passed over"
    bench.until(lambda: committed(bench) == 2, 60)
    assert values(bench, "to-a") == [b"a"]
    assert asked.count(Api.METADATA) < 150 * 20, "there is a pause between two questions"


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("bad", ["a", "b"])
def test_output_of_a_careful_task_to_a_late_topic_ends_as_its_own_source_record(
    bench: VirtualCluster, guarantee: str, bad: str
) -> None:
    """Record a sends it, and its topic is found while the body waits in record b."""
    app = app_of(processing_guarantee=guarantee)
    counts = app.Table("counts", default=int, key_type=str, value_type=int)
    bench.answer = withheld = Withheld("to-a")
    release = asyncio.Event()

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def route(stream: Any) -> None:
        async for word in stream:
            counts[word] += 1
            if word == "a":
                _ = app.topic("to-a", partitions=1, value_serializer="raw").send_soon(value=word)
            if word == "b":
                await release.wait()
            if word in {bad, "poison"}:
                raise ValueError(word)

    bench.create("to-a", 1)
    station = bench.station(app, by_hand=False)
    bench.feed(0, "poison", "stay", "a", "b", "stay")
    bench.until(lambda: withheld.asked)
    bench.run(1)
    withheld.shown = True
    bench.run(2)
    release.set()
    bench.until(lambda: len(station.told("failed")) == 2)
    bench.run(5)
    assert values(bench, "to-a") == [b"a"] * (bad == "b")
    assert bench.counted() == {"stay": 2, ({"a", "b"} - {bad}).pop(): 1}
