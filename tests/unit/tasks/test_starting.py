"""Workers with state whose group has lost its offsets."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from streamsx.broker.api.served import answered
from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from tests.unit.conftest import app_of, counting

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamsx import App, Stream
    from streamsx.broker.groups.coordinator_events import ReplyBody
    from streamsx.broker.net.client_connection import ServedRequest
    from streamsx.broker.service import Service
    from tests.unit.conftest import VirtualCluster, WorkerHarness


def grouping(**settings: object) -> App:
    """Return an app: a task without state forwards `words`, another one counts them."""
    app = app_of(**settings)
    counts = app.Table("counts", default=int, key_type=str, value_type=int)

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def count(stream: Stream[str]) -> None:
        async for word in stream.group_by(lambda word: word, name="word", partitions=3):
            counts[word] += 1

    return app


def start(
    bench: VirtualCluster, app: App, old: WorkerHarness | None = None, name: str = "w1"
) -> WorkerHarness:
    stores = None if old is None else old.stores
    station = bench.station(app, name, by_hand=False, stores=stores)
    bench.until(lambda: station.begun)
    return station


def stop(bench: VirtualCluster, station: WorkerHarness) -> None:
    station.process.signal(signal.SIGTERM)
    bench.until(lambda: not station.process.alive, 30)


def forget(bench: VirtualCluster, topic: str | None = None) -> None:
    """Delete all offsets of the group, as a broker does a week after the last worker; or those of a
    topic, as it does when the topic is deleted.
    """
    machine = bench.broker.service.groups.machine
    assert machine is not None
    committed = machine.groups["t"].committed
    for of in [of for of in committed if topic in (None, of[0])]:
        del committed[of]


def counted_once(bench: VirtualCluster, make: Callable[..., App]) -> WorkerHarness:
    """Run a worker until it has counted five words, and end it."""
    station = start(bench, make())
    bench.feed(0, *"abcde")
    bench.until(lambda: bench.counted().total() == 5)
    bench.run(2)
    stop(bench, station)
    return station


def stopped(station: WorkerHarness) -> list[str]:
    return [str(told["what"]) for told in station.told("error") if "gone" in str(told["what"])]


@pytest.mark.parametrize("make", [counting, grouping])
def test_stateful_task_with_lost_offsets_stops(
    bench: VirtualCluster, make: Callable[..., App]
) -> None:
    old = counted_once(bench, make)
    forget(bench)
    bench.feed(0, "f")
    station = start(bench, make(), old)
    bench.until(lambda: stopped(station), 20)
    bench.run(5)
    assert bench.counted() == dict.fromkeys("abcde", 1)
    assert "committed offsets are gone" in stopped(station)[0]
    assert "set on_lost_offsets to earliest or latest" in stopped(station)[0]
    stop(bench, station)
    again = start(bench, make(), old)
    bench.until(lambda: stopped(again), 20)
    stop(bench, again)


@pytest.mark.parametrize("make", [counting, grouping])
@pytest.mark.parametrize(("choice", "twice"), [("earliest", 2), ("latest", 1)])
def test_task_with_lost_offsets_begins_by_on_lost_offsets(
    bench: VirtualCluster, make: Callable[..., App], choice: str, twice: int
) -> None:
    old = counted_once(bench, make)
    forget(bench)
    station = start(bench, make(on_lost_offsets=choice), old)
    bench.until(lambda: len(station.made.tasks.actives) >= 3)
    bench.run(3)
    bench.feed(0, "f")
    bench.until(lambda: bench.counted()["f"] == 1, 20)
    bench.run(2)
    found = bench.counted()
    assert found.pop("f") == 1
    if make is counting or choice == "latest":
        assert found == dict.fromkeys("abcde", twice)
    else:  # what its topic still holds of the first time comes on top
        assert min(found.values()) >= twice
    stop(bench, station)


@pytest.mark.parametrize("make", [counting, grouping])
def test_task_with_lost_offsets_stops_in_a_new_state_directory_too(
    bench: VirtualCluster, make: Callable[..., App]
) -> None:
    """Its store comes from the changelog, which is as good as one on the disk."""
    counted_once(bench, make)
    forget(bench)
    station = start(bench, make(), name="w2")
    bench.until(lambda: stopped(station), 20)
    assert bench.counted() == dict.fromkeys("abcde", 1)
    stop(bench, station)


@pytest.mark.parametrize("make", [counting, grouping])
def test_topic_recreated_while_down_is_read_although_offsets_are_gone(
    bench: VirtualCluster, make: Callable[..., App]
) -> None:
    """Brokers delete the offsets of a topic with the topic; the state directory has its id."""
    old = counted_once(bench, make)
    bench.delete("words")
    forget(bench, "words")
    bench.create("words", 3)
    bench.feed(0, "new", "new")
    station = start(bench, make(), old)
    bench.until(lambda: bench.counted()["new"] == 2, 20)
    assert bench.counted() == {**dict.fromkeys("abcde", 1), "new": 2}
    stop(bench, station)


def test_repartition_topic_deleted_while_down_is_recreated_and_read(bench: VirtualCluster) -> None:
    old = counted_once(bench, grouping)
    (topic,) = grouping().topology().own
    bench.delete(topic)
    forget(bench, topic)
    bench.feed(0, "new", "new")
    station = start(bench, grouping(), old)
    bench.until(lambda: bench.counted()["new"] == 2, 20)
    assert bench.counted() == {**dict.fromkeys("abcde", 1), "new": 2}
    stop(bench, station)


def test_app_switched_to_another_topic_keeps_state(bench: VirtualCluster) -> None:
    """The group has offsets of the old topic: none is gone."""
    old = counted_once(bench, counting)
    bench.create("others", 3)
    bench.append(TopicPartition("others", 0), [(None, b"a")])
    app = app_of()
    counts = app.Table("counts", default=int, key_type=str, value_type=int)

    @app.agent(app.topic("others", value_type=str, value_serializer="raw"))
    async def count(stream: Stream[str]) -> None:
        async for word in stream:
            counts[word] += 1

    station = start(bench, app, old)
    bench.until(lambda: bench.counted()["a"] == 2, 20)
    assert not stopped(station)
    stop(bench, station)


def test_task_with_an_added_source_reads_the_source_from_the_start(bench: VirtualCluster) -> None:
    old = counted_once(bench, counting)
    bench.create("others", 3)
    bench.append(TopicPartition("others", 0), [(None, b"a")])
    app = app_of()
    counts = app.Table("counts", default=int, key_type=str, value_type=int)

    @app.agent(app.topic("others", "words", value_type=str, value_serializer="raw"))
    async def count(stream: Stream[str]) -> None:
        async for word in stream:
            counts[word] += 1

    station = start(bench, app, old)
    bench.until(lambda: bench.counted()["a"] == 2, 20)
    assert bench.counted() == {**dict.fromkeys("bcde", 1), "a": 2}
    stop(bench, station)


@pytest.mark.parametrize("make", [counting, grouping])
def test_first_start_beside_stateful_workers_stops_no_task(
    bench: VirtualCluster, make: Callable[..., App]
) -> None:
    first = start(bench, make())
    bench.feed(0, *"abcde")
    bench.until(lambda: bench.counted().total() == 5)
    second = start(bench, make(), name="w2")
    bench.feed(1, "f")
    bench.until(lambda: bench.counted()["f"] == 1)
    bench.run(5)
    assert not stopped(first)
    assert not stopped(second)
    stop(bench, first)
    stop(bench, second)


def test_worker_waits_for_the_coordinator_before_declaring_offsets_lost(
    bench: VirtualCluster,
) -> None:
    """An error is no answer: the worker has to know whether the group has other offsets."""
    old = counted_once(bench, counting)
    forget(bench)
    until = bench.scheduler.now + 4

    def loading(service: Service, call: ServedRequest) -> ReplyBody | None:
        every = call.api is Api.OFFSET_FETCH and call.body.topics is None
        if every and bench.scheduler.now < until:
            return {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "topics": []}
        return answered(service, call)

    bench.answer = loading
    station = start(bench, counting(), old)
    bench.until(lambda: stopped(station), 20)
    assert bench.scheduler.now >= until
    stop(bench, station)
