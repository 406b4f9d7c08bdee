"""Whole workers in a real group, from start to end, in virtual time."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from streamsx.assignor.wire import read_join
from streamsx.broker.api.served import answered
from streamsx.errors import AppStopped, BrokerUnreachable, TaskFailed, TopologyError, WorldError
from streamsx.group import member_events as e
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.consumer_protocol import Subscription
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import scan
from streamsx.protocol.wire import Api
from tests.unit.conftest import app_of, changelog, counting

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamsx import App, Stream
    from streamsx.broker.groups.coordinator_events import ReplyBody
    from streamsx.broker.net.client_connection import ServedRequest
    from streamsx.broker.service import Service
    from tests.unit.conftest import VirtualCluster, WorkerHarness


def works(*stations: WorkerHarness, tasks: int = 3) -> bool:
    """Return whether they run so many tasks, and no rebalance is going on."""
    held = [
        (alive.state.value, task)
        for station in stations
        if station.begun
        for holdings in [station.made.registry]
        for task in holdings.tasks()
        for alive in [holdings.of(task)]
    ]
    return len(held) == tasks and {state for state, _ in held} == {"running"}


def start(bench: VirtualCluster, app: App, name: str = "w1") -> WorkerHarness:
    return bench.station(app, name, by_hand=False)


def test_worker_counts_all_records_and_leaves_cleanly(bench: VirtualCluster) -> None:
    station = start(bench, counting())
    for partition in range(3):
        bench.feed(partition, "a", "b", "a")
    bench.until(lambda: works(station))
    bench.run(0.5)
    station.process.signal(signal.SIGTERM)
    bench.until(lambda: not station.process.alive)
    assert station.main.result == 0
    assert bench.counted() == {"a": 6, "b": 3}
    assert [name for _, name, _ in station.events if name in ("leaving", "left")] == [
        "leaving", "left",
    ]  # fmt: skip
    assert not station.process.killed


def test_leaving_worker_hands_over_tasks_learned_by_others(bench: VirtualCluster) -> None:
    first = start(bench, counting(), "w1")
    bench.until(lambda: works(first))
    second = start(bench, counting(), "w2")
    bench.until(lambda: second.begun and second.told("learner_ready"))
    bench.until(lambda: works(first, second))
    assert second.made.tasks.actives
    for partition in range(3):
        bench.feed(partition, *["a"] * 100)
    first.process.signal(signal.SIGTERM)
    bench.until(lambda: not first.process.alive)
    bench.until(lambda: works(second))
    bench.run(2)
    assert first.main.result == 0
    assert bench.counted() == {"a": 300}


def test_killed_worker_is_replaced_after_the_session_timeout(bench: VirtualCluster) -> None:
    first, second = start(bench, counting(), "w1"), start(bench, counting(), "w2")
    bench.until(lambda: works(first, second))
    bench.feed(0, "a")
    bench.run(1)
    first.process.kill()
    at = bench.scheduler.now
    bench.feed(0, "a")
    bench.until(lambda: works(second))
    assert bench.scheduler.now - at < 15
    bench.run(2)
    assert bench.counted() == {"a": 2}


def test_policy_stop_ends_the_worker_and_other_tasks_commit(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    station = start(bench, counting(on_error="stop", commit_interval=60))
    bench.until(lambda: works(station))
    bench.feed(1, "a", "b")
    bench.run(0.5)
    bench.feed(0, "a", "poison", "b")
    bench.until(lambda: not station.process.alive)
    assert isinstance(station.main.error, TaskFailed)
    assert "offset 1" in str(station.main.error)
    shown = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert shown == [station.main.error.__cause__], "where in the code it failed"
    assert bench.counted() == {"a": 1, "b": 1}
    successor = start(bench, counting(), "w1")
    bench.until(lambda: works(successor))
    bench.run(2)
    assert bench.counted() == {"a": 2, "b": 2}


def test_policy_stop_app_ends_all_workers_with_the_reason(bench: VirtualCluster) -> None:
    def made() -> App:
        return counting(on_error="stop_app", commit_interval=60)

    stations = [start(bench, made(), name) for name in ("w1", "w2", "w3")]
    bench.until(lambda: works(*stations))
    bench.feed(1, "a", "b")
    bench.run(0.5)
    bench.feed(0, "a", "poison", "b")
    bench.until(lambda: not any(each.process.alive for each in stations), 20)
    errors = [each.main.error for each in stations]
    first = next(each for each in errors if isinstance(each, AppStopped))
    others = [each for each in errors if each is not first]
    assert "offset 1" in str(first)
    assert [type(each) for each in others] == [TaskFailed] * 2
    assert {str(each) for each in others} == {f"another worker has stopped the app: {first}"}
    assert bench.counted() == {"a": 1, "b": 1}
    successor = start(bench, counting(), "w4")
    bench.until(lambda: works(successor))
    bench.run(2)
    assert bench.counted() == {"a": 2, "b": 2}


def test_worker_that_sleeps_when_its_app_stops_ends_when_it_wakes_up(bench: VirtualCluster) -> None:
    first, second = (start(bench, counting(on_error="stop_app"), name) for name in ("w1", "w2"))
    bench.until(lambda: works(first, second))
    owner = next(each for each in (first, second) if TaskId(0, 0) in each.made.tasks.actives)
    other = second if owner is first else first
    bench.feed(0, "poison")
    bench.until(lambda: bool(owner.told("error")))
    other.process.freeze(3)
    bench.until(lambda: not (owner.process.alive or other.process.alive), 20)
    assert "has stopped the app" in str(other.main.error)


def test_app_without_agents_warns_at_its_start(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_of()

    @app.timer(interval=1.0)
    async def tick() -> None: ...

    bench.station(app)
    bench.run(2)
    (line,) = [line for line in caplog.messages if "no agents" in line]
    assert line.startswith("App t has no agents or flows: this worker reads no topic")


def test_policy_log_skips_failing_records(bench: VirtualCluster) -> None:
    station = start(bench, counting())
    bench.until(lambda: works(station))
    bench.feed(0, "a", "poison", "b")
    bench.run(2)
    assert bench.counted() == {"a": 1, "b": 1}


def test_second_signal_ends_the_worker_within_seconds_without_a_successor(
    bench: VirtualCluster,
) -> None:
    station = start(bench, counting(shutdown_timeout=600))
    learner = start(bench, counting(), "w2")
    bench.until(lambda: works(station, learner))
    learner.process.freeze(5)
    station.process.signal(signal.SIGTERM)
    bench.run(0.5)
    station.process.signal(signal.SIGTERM)
    bench.until(lambda: not station.process.alive, 10)
    assert station.main.error is None


def test_worker_with_infinite_shutdown_timeout_leaves_once_tasks_are_learned(
    bench: VirtualCluster,
) -> None:
    """`shutdown_timeout="infinite"`: SIGTERM ended the control thread with an OverflowError."""
    first = start(bench, counting(shutdown_timeout="infinite"))
    second = start(bench, counting(), "w2")
    bench.until(lambda: works(first, second))
    first.process.signal(signal.SIGTERM)
    bench.until(lambda: not first.process.alive)
    assert first.main.result == 0
    assert first.told("leaving") == [{"deadline": None}]


def test_worker_stopped_during_start_ends_at_once(bench: VirtualCluster) -> None:
    bench.process.freeze(20)
    station = start(bench, counting())
    bench.run(2)
    station.process.signal(signal.SIGTERM)
    bench.until(lambda: not station.process.alive, 5)
    assert station.main.result == 0


def test_worker_without_a_broker_ends_after_a_timeout_with_the_address(
    bench: VirtualCluster,
) -> None:
    station = start(bench, counting(broker="127.0.0.1:1"))
    bench.until(lambda: not station.process.alive, 40)
    assert bench.scheduler.now == pytest.approx(30, abs=1)
    assert isinstance(station.main.error, BrokerUnreachable)
    assert "127.0.0.1:1" in str(station.main.error)


def loading_until(
    bench: VirtualCluster, end: float
) -> Callable[[Service, ServedRequest], ReplyBody | None]:
    """Let the coordinator load its log until that second."""

    def answer(service: Service, call: ServedRequest) -> ReplyBody | None:
        if call.api is Api.OFFSET_FETCH and bench.scheduler.now < end:
            return {"error_code": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "topics": []}
        return answered(service, call)

    return answer


def grouping() -> App:
    app = app_of()

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def count(stream: Stream[str]) -> None:
        async for _ in stream.group_by(len, name="length"):
            pass

    return app


def test_starting_worker_waits_for_a_broker_still_loading(bench: VirtualCluster) -> None:
    """The worker ended after 10 s, but after 30 s where it found no broker."""
    bench.answer = loading_until(bench, 25)
    station = start(bench, grouping())
    bench.until(lambda: works(station, tasks=6))


def test_broker_never_done_loading_ends_the_worker_with_the_time_tried(
    bench: VirtualCluster,
) -> None:
    bench.answer = loading_until(bench, 1000)
    station = start(bench, grouping())
    bench.until(lambda: not station.process.alive)
    assert bench.scheduler.now == pytest.approx(30, abs=1)
    assert isinstance(station.main.error, WorldError)
    assert str(station.main.error) == (
        "COORDINATOR_LOAD_IN_PROGRESS: offsets of group t: tried for 30 s: try again when the "
        "brokers are up, or see their logs"
    )


def test_uncompacted_changelog_is_refused_with_a_remedy(bench: VirtualCluster) -> None:
    bench.at_broker(
        lambda: bench.broker.service.topics.create("t-counts-changelog", b"i" * 16, 3, {})
    )
    bench.run(0.1)
    station = start(bench, counting())
    bench.until(lambda: not station.process.alive)
    assert isinstance(station.main.error, TopologyError)
    assert "--add-config cleanup.policy=compact" in str(station.main.error)


def test_missing_source_topic_is_warned_of_but_app_made_topics_are_not(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A misspelled name created the topic, with the same line as any other, and it stayed empty."""
    app = app_of()
    told = app.topic("told", partitions=2)

    @app.agent(app.topic("wrods", partitions=2))
    async def read(stream: Stream[Any]) -> None:
        async for word in stream.group_by(lambda word: word, name="word"):
            await told.send(value=word)

    @app.agent(told)
    async def hear(stream: Stream[Any]) -> None:
        async for _ in stream:
            pass

    station = start(bench, app)
    bench.until(lambda: station.begun)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == 1
    assert warned[0].startswith(
        "Created topic wrods with 2 partitions: the app reads it, and it was not"
    )
    [started] = station.told("worker_started")
    assert (started["app"], started["instance"]) == ("t", "w1")
    assert started["broker"]
    assert started["guarantee"] == "at_least_once"
    assert str(started["directory"]).endswith("t")


def test_app_with_timers_only_needs_no_group(bench: VirtualCluster) -> None:
    app = app_of()
    ticks: list[float] = []

    @app.timer(interval=1.0)
    async def tick() -> None:
        ticks.append(bench.scheduler.now)

    station = start(bench, app)
    bench.run(5)
    station.process.signal(signal.SIGTERM)
    bench.until(lambda: not station.process.alive, 5)
    assert station.main.result == 0
    assert 3 <= len(ticks) <= 5


def test_app_tasks_start_when_the_first_tasks_are_restored(bench: VirtualCluster) -> None:
    app = counting()
    began: list[bool] = []

    @app.task
    async def once() -> None:
        began.append(works(station))

    station = start(bench, app)
    bench.until(lambda: began)
    assert began == [True]


def test_broker_silent_beyond_the_session_costs_no_task_for_good(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    station = start(bench, counting())
    bench.until(lambda: works(station))
    bench.process.freeze(25)
    bench.feed(0, "a")
    bench.run(26)
    bench.until(lambda: works(station))
    bench.until(lambda: bench.counted() == {"a": 1})
    assert station.process.alive
    warned = [line.getMessage() for line in caplog.records if line.name == "streamsx"]
    lines = (
        "A broker is out of reach", "Processing continues", "Processing is paused",
        "The group is in reach again", "The group is out of reach",
    )  # fmt: skip
    told = [begin for line in warned for begin in lines if line.startswith(begin)]
    assert sorted(told) == [*lines]


def test_work_before_losing_tasks_is_not_counted_twice(bench: VirtualCluster) -> None:
    """The worker is frozen beyond its session; the other one continues from the commit."""
    first, second = start(bench, counting(), "w1"), start(bench, counting(), "w2")
    bench.until(lambda: works(first, second))
    for partition in range(3):
        bench.feed(partition, *["a"] * 10)
    bench.run(3)
    first.process.freeze(30)
    for partition in range(3):
        bench.feed(partition, *["a"] * 10)
    bench.until(lambda: works(second))
    bench.run(40)
    bench.until(lambda: works(first, second))
    assert bench.counted() == {"a": 60}
    [lost] = [lost for lost in first.told("lost") if lost["tasks"]]
    assert lost["reason"] == "the group went on without this worker"


def test_end_of_the_control_thread_ends_the_worker(bench: VirtualCluster) -> None:
    station = start(bench, counting())
    bench.until(lambda: works(station))
    control = station.process.threads[1]
    assert control.task is not None
    control.call(control.task.cancel)
    bench.until(lambda: not station.process.alive)
    assert station.main.error is not None
    assert "thread of the group" in str(station.main.error)


def test_second_worker_on_one_directory_is_refused(bench: VirtualCluster) -> None:
    first = start(bench, counting(), "w1")
    bench.until(lambda: works(first))
    second = start(bench, counting(), "w1")
    bench.until(lambda: not second.process.alive)
    assert "state directory in use" in str(second.main.error)
    assert TaskId(0, 0) in first.made.tasks.actives


def test_restarted_worker_does_not_wait_for_the_old_session(
    bench: VirtualCluster,
) -> None:
    """It ends the membership of its predecessor, which it knows to be dead."""
    first = start(bench, counting(session_timeout=60, rebalance_timeout=60))
    bench.until(lambda: works(first))
    first.process.kill()
    began = bench.scheduler.now
    second = bench.station(
        counting(session_timeout=60, rebalance_timeout=60), by_hand=False, stores=first.stores
    )
    bench.until(lambda: works(second))
    assert bench.scheduler.now - began < 8


def test_only_repartition_topics_are_purged_after_commits(
    bench: VirtualCluster,
) -> None:
    app = app_of()
    counts = app.Table("counts", default=int, key_type=str, value_type=int)

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def count(stream: Stream[str]) -> None:
        async for word in stream.group_by(lambda word: word, name="word"):
            counts[word] += 1

    station = start(bench, app)
    bench.until(lambda: works(station, tasks=6))
    (topic,) = {spec.name for spec in station.topology.topics if "repartition" in spec.name}
    for partition in range(3):
        bench.feed(partition, "a", "b", "c")
    bench.run(5)
    logs = [bench.log(TopicPartition(topic, partition)) for partition in range(3)]
    assert sum(log.end for log in logs) == 9
    assert [log.start for log in logs] == [0, 0, 0]
    bench.run(35)
    assert [log.start for log in logs] == [log.end for log in logs]
    assert bench.log(TopicPartition("words", 0)).start == 0
    assert bench.counted() == {"a": 3, "b": 3, "c": 3}


def hosted(**settings: Any) -> Any:
    """Return an app with a task of its own, through which tests reach the worker."""
    app = counting(**settings)

    @app.task
    async def nothing() -> None: ...

    return app


def test_code_outside_tasks_reads_local_stores_and_may_send(bench: VirtualCluster) -> None:
    app = hosted()
    station = start(bench, app)
    bench.until(lambda: works(station))
    bench.feed(1, "a")
    bench.run(2)
    host = app.host
    assert {n: dict(store.items()) for n, store in host.stores("counts").items()} == {
        0: {}, 1: {"a": 1}, 2: {},
    }  # fmt: skip
    assert host.stores("nothing") == {}
    assert host.is_leader()
    assert host.now_ms() == pytest.approx(1000 * station.process.clock.wall(), abs=5)
    station.process.main.call(lambda: host.to("words", 2)(None, b"b", host.now_ms(), None))
    bench.until(lambda: bench.counted() == {"a": 1, "b": 1})
    assert bench.read(TopicPartition("words", 2)) == [(None, b"b")]


def test_too_many_unsent_records_outside_tasks_are_refused(bench: VirtualCluster) -> None:
    app = hosted(buffer_memory="64KiB")
    station = start(bench, app)
    bench.until(lambda: app.host)
    bench.process.freeze(5)
    refused: list[Exception] = []

    def send() -> None:
        to = app.host.to("words", 0)
        try:
            for _ in range(100):
                to(None, b"x" * 4096, 0, None)
        except BrokerUnreachable as error:
            refused.append(error)

    station.process.main.call(send)
    bench.run(1)
    assert "too many unsent records: words" in str(refused)


def test_worker_batches_carry_producer_id_and_sequence(bench: VirtualCluster) -> None:
    """Without them a batch that is sent again would be stored twice."""
    station = start(bench, counting())
    for _ in range(2):
        bench.feed(0, "a", "b")
        bench.until(lambda: works(station))
        bench.run(2)
    log = bench.log(changelog(0))
    found = [header for _, _, header in scan(log.read(0, 1 << 20), check=True)]
    assert [header.base_sequence for header in found] == [0, 2]
    (producer,) = {header.producer_id for header in found}
    assert producer >= 0


def test_worker_back_after_a_lost_session_continues(bench: VirtualCluster) -> None:
    """Its thread counts a loss as its data loop does, or no task would run any more."""
    station = start(bench, counting())
    bench.until(lambda: works(station))
    bench.net.lose("w1", 15)
    bench.until(lambda: station.told("lost"), 20)
    bench.feed(0, "a")
    bench.until(lambda: bench.counted() == {"a": 1}, 40)
    assert station.process.alive


def test_join_is_fresh_only_until_the_first_assignment(
    bench: VirtualCluster,
) -> None:
    """A mark ends when its instance joins fresh: later joins would end it each time."""
    said = list[bool]()

    def joins(service: Service, call: ServedRequest) -> ReplyBody | None:
        if call.api is Api.JOIN_GROUP and call.body.member_id:
            told = Subscription.read(call.body.protocols[0].metadata)
            said.append(read_join(told.user_data).fresh)
        return answered(service, call)

    bench.answer = joins
    station = start(bench, counting())
    bench.until(lambda: works(station))
    before = len(said)
    assert before
    assert all(said)
    station.made.session.post(e.Want("a new round"))
    bench.until(lambda: len(said) > before)
    assert said[before:] == [False]


def test_worker_without_a_group_ends_on_a_permanent_error(bench: VirtualCluster) -> None:
    """There is no member thread that could be asked to leave."""
    app = app_of(on_produce_error="stop")
    out = app.topic("out", partitions=1, value_serializer="raw")

    @app.task
    async def tell() -> None:
        await out.send(value=b"x")

    def refuses(service: Service, call: ServedRequest) -> ReplyBody | None:
        if call.api is not Api.PRODUCE:
            return answered(service, call)
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        parts = [{"index": 0, "error_code": code, "base_offset": -1}]
        return {"responses": [{"name": "out", "partition_responses": parts}]}

    bench.answer = refuses
    station = start(bench, app)
    bench.until(lambda: not station.process.alive)
    assert "TOPIC_AUTHORIZATION_FAILED" in str(station.main.error)
