"""Records that a broker refuses for good: who suffers, and what people are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pytest

from streamsx.broker.api.served import answered
from streamsx.client.rejected_batch import RefusedRecord, Sender
from streamsx.clock import SystemClock
from streamsx.errors import RecordRefused
from streamsx.metrics import MetricRegistry
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import columns
from streamsx.protocol.wire import Api
from streamsx.state.api import ROW
from streamsx.tasks.produce_errors import OnProduceError, ProduceErrorsOutsideTasks
from tests.unit.conftest import app_of, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamsx import App, Stream
    from streamsx.broker.groups.coordinator_events import ReplyBody
    from streamsx.broker.net.client_connection import ServedRequest
    from streamsx.broker.service import Service
    from tests.unit.conftest import VirtualCluster, WorkerHarness

T0, T1 = TaskId(0, 0), TaskId(0, 1)
BAD = b"bad"
CHANGELOG = "t-counts-changelog"


def sending(**settings: Any) -> App:
    """Counts each word, and passes it on."""
    app = app_of(**settings)
    out = app.topic("out", partitions=1, value_type=str, value_serializer="raw")
    counts = app.Table("counts", default=int, key_type=str, value_type=int)

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def agent(stream: Stream[str]) -> None:
        async for word in stream:
            counts[word] += 1
            await out.send(key=word, value=word)

    return app


def refusing(
    code: ErrorCode, topic: str, bad: Callable[[bytes], bool]
) -> Callable[[Service, ServedRequest], ReplyBody | None]:
    """A broker that refuses batches of a topic with such a record, and names it."""

    def refusal(part: Any) -> ReplyBody | None:
        keys = columns(bytes(part.records), 0).keys
        named = [n for n, key in enumerate(keys) if key is not None and bad(key)]
        errors = [{"batch_index": n, "batch_index_error_message": "no"} for n in named]
        said = {"index": part.index, "error_code": code, "base_offset": -1}
        return {**said, "record_errors": errors} if named else None

    def answer(service: Service, call: ServedRequest) -> ReplyBody | None:
        refused = []
        if call.api is Api.PRODUCE:
            for asked in (each for each in call.body.topic_data if each.name == topic):
                told = {id(part): refusal(part) for part in asked.partition_data}
                parts = [found for found in told.values() if found is not None]
                refused.append({"name": topic, "partition_responses": parts})
                asked.partition_data = [p for p in asked.partition_data if told[id(p)] is None]
        body = answered(service, call)
        if body is not None and refused:
            body = {"responses": [*body["responses"], *refused]}
        return body

    return answer


def begun(bench: VirtualCluster, app: App) -> WorkerHarness:
    """A worker that runs two tasks."""
    bench.create("out", 1)
    station = bench.begun(app)
    station.hand.plan(T0, T1)
    bench.until(lambda: all("running" in station.states(task) for task in (T0, T1)))
    return station


def feed(bench: VirtualCluster) -> None:
    """One record is bad, of the first task."""
    bench.feed(0, "a")
    bench.until(lambda: bench.committed.get(words(0), (0,))[0] == 1)
    bench.feed(0, "b", "bad", "c")
    bench.feed(1, "x", "y")


def out(bench: VirtualCluster) -> list[bytes | None]:
    return [value for _, value in bench.read(TopicPartition("out", 0))]


def errors(station: WorkerHarness) -> list[str]:
    return [str(told["what"]) for told in station.told("error")]


def test_task_of_a_refused_record_stops_at_the_last_commit_alone(
    bench: VirtualCluster,
) -> None:
    station = begun(bench, sending())
    bench.answer = refusing(ErrorCode.INVALID_RECORD, "out", BAD.__eq__)
    feed(bench)
    bench.until(lambda: station.states(T0)[-1] == "stopped")
    bench.feed(1, "z")
    bench.until(lambda: bench.committed.get(words(1), (0,))[0] == 3)
    bench.run(5)
    assert bench.committed[words(0)][0] == 1
    (told,) = errors(station)
    assert told.startswith(
        "task stopped: 0_0: record refused: out-0, key b'bad', sent by task 0_0 at words-0 offset 1"
    )
    assert "INVALID_RECORD (no)" in told
    assert "start again, or set on_produce_error=log to pass over such records" in told
    assert "nothing behind its last commit (words-0 1) is committed" in told
    assert station.made.tasks.actives[T0].why == told
    assert set(out(bench)) == {b"a", b"b", b"c", b"x", b"y", b"z"}


def together(bench: VirtualCluster) -> WorkerHarness:
    """Begin a worker whose records leave with its seals: a bad one is refused, the rows are not."""
    bench.create("out", 1)
    station = bench.begun(sending(producer_linger=60.0))
    station.hand.plan(T0)
    bench.feed(0, "a")
    bench.until(lambda: bench.committed.get(words(0), (0,))[0] == 1)
    bench.answer = refusing(ErrorCode.INVALID_RECORD, "out", BAD.__eq__)
    return station


def test_work_of_a_stopped_task_is_counted_once_when_its_rows_have_left(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Each start counted it once more: its changelog had the rows, the group not the offsets."""
    caplog.set_level("INFO", "streamsx")
    station = together(bench)
    bench.feed(0, "b", "bad", "a")
    bench.until(lambda: station.states(T0)[-1] == "stopped")
    assert counted(bench) == {"a": 2, "b": 1, "bad": 1}
    assert "rows_uncommitted task=0_0 rows=3" in caplog.text
    bench.run(5)
    assert counted(bench) == stored(station) == {"a": 1}
    assert bench.committed[words(0)][0] == 1
    bench.answer = answered
    station.hand.revoke(T0)
    bench.until(station.hand.released, 5)
    bench.until(lambda: station.states(T0)[-1] == "closed")
    station.hand.plan(T0)
    bench.until(lambda: bench.committed[words(0)][0] == 4)
    bench.run(1)
    assert counted(bench) == stored(station) == {"a": 2, "b": 1, "bad": 1}


def test_rows_whose_offsets_are_on_their_way_are_not_put_back(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit may arrive, and nobody would do their work again."""
    caplog.set_level("INFO", "streamsx")
    station = together(bench)
    station.hand.holds = True
    bench.feed(0, "b")
    bench.run(1.5)
    assert counted(bench) == {"a": 1, "b": 1}
    bench.feed(0, "bad")
    bench.run(0.1)
    station.made.producer._sending.flush()
    bench.until(lambda: station.states(T0)[-1] == "stopped", 5)
    bench.run(5)
    assert "rows_uncommitted" not in caplog.text
    assert counted(bench) == {"a": 1, "b": 1}


def counted(bench: VirtualCluster) -> dict[str, int]:
    """Return the newest value of each key of the changelog."""
    newest = dict(bench.read(TopicPartition(CHANGELOG, 0)))
    return {orjson.loads(k): orjson.loads(v) for k, v in newest.items() if k and v is not None}


def stored(station: WorkerHarness) -> dict[str, int]:
    rows = station.stores["counts", 0].scan(ROW, None)
    return {orjson.loads(key[1:]): orjson.loads(value) for key, value in rows}


def test_refused_record_is_skipped_under_on_produce_error_log(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    station = begun(bench, sending(on_produce_error="log"))
    bench.answer = refusing(ErrorCode.INVALID_TIMESTAMP, "out", BAD.__eq__)
    feed(bench)
    bench.until(lambda: bench.committed.get(words(0), (0,))[0] == 4)
    assert errors(station) == []
    assert sorted(out(bench), key=str) == [b"a", b"b", b"c", b"x", b"y"]
    (line,) = [r.getMessage() for r in caplog.records if "record_refused" in r.getMessage()]
    assert "out-0, key b'bad', sent by task 0_0" in line
    assert line.endswith("it is passed over")


def test_refused_record_ends_the_worker_under_on_produce_error_stop(bench: VirtualCluster) -> None:
    station = begun(bench, sending(on_produce_error="stop"))
    bench.answer = refusing(ErrorCode.INVALID_RECORD, "out", BAD.__eq__)
    feed(bench)
    bench.until(lambda: errors(station))
    (told,) = errors(station)
    assert told.startswith("WorldError: record refused: out-0, key b'bad', sent by task 0_0 at ")
    bench.run(5)
    assert bench.committed[words(0)][0] == 1


@pytest.mark.parametrize("word", ["log", "stop_task"])
@pytest.mark.parametrize(
    ("code", "topic"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "out"),
        (ErrorCode.INVALID_RECORD, CHANGELOG),
    ],
    ids=["missing right", "row of a changelog"],
)
def test_unskippable_refused_record_stops_only_the_sending_task(
    bench: VirtualCluster, word: str, code: ErrorCode, topic: str
) -> None:
    station = begun(bench, sending(on_produce_error=word))
    bench.answer = refusing(code, topic, lambda key: BAD in key)
    bench.feed(0, "bad")
    bench.until(lambda: station.states(T0)[-1] == "stopped")
    bench.feed(1, "x")
    bench.until(lambda: bench.committed.get(words(1), (0,))[0] == 1)
    assert bench.committed.get(words(0), (0,))[0] == 0
    (told,) = errors(station)
    assert code.name in told
    assert f"record refused: {topic}-0" in told
    assert "on_produce_error" not in told


def test_revoked_task_is_released_when_a_record_is_refused(bench: VirtualCluster) -> None:
    """Whoever gets it meets the same record, and stops there."""
    station = begun(bench, sending())
    bench.answer = refusing(ErrorCode.INVALID_RECORD, "out", BAD.__eq__)
    station.hand.holds = True
    feed_without_commit(bench)
    station.hand.revoke(T0)
    bench.until(lambda: station.hand.released() == [1])
    assert bench.committed.get(words(0), (0,))[0] <= 1


def feed_without_commit(bench: VirtualCluster) -> None:
    bench.feed(0, "bad")
    bench.run(0.003)


def test_closed_task_is_dropped_by_the_producer_and_reopens_as_a_new_sender(
    bench: VirtualCluster,
) -> None:
    """Else a worker would keep the caches of tasks that it has given away."""
    station = begun(bench, sending())
    producer, old = station.made.producer, station.made.producer._senders[T0]
    station.hand.lose(T0)
    bench.until(lambda: station.states(T0)[-1] == "closed")
    assert (old.at_hand, producer.current(old)) == (None, False)
    station.hand.plan(T0, T1)
    bench.until(lambda: station.states(T0)[-1] == "running")
    assert producer.current(producer._senders[T0])
    assert not producer.current(old)


def test_refused_timer_records_are_logged_once_a_second_by_a_running_worker(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_of()
    topic = app.topic("out", partitions=1, value_serializer="raw")

    @app.timer(interval=0.1)
    async def tick() -> None:
        await topic.send(key=BAD, value=b"x")

    bench.answer = refusing(ErrorCode.INVALID_RECORD, "out", BAD.__eq__)
    station = bench.station(app)
    bench.run(5)
    assert station.process.alive
    lines = [r.getMessage() for r in caplog.records if "record_refused" in r.getMessage()]
    assert 2 <= len(lines) <= 6
    assert "sent outside of tasks: INVALID_RECORD (no)" in lines[-1]
    assert "more before it" in lines[-1]


@pytest.mark.parametrize("code", [ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE])
def test_awaiting_a_refused_record_raises_and_the_rest_of_the_batch_arrives(
    bench: VirtualCluster, code: ErrorCode
) -> None:
    """It gave a RecordMetadata, and what was lost seemed to be sent."""
    app = app_of()
    topic = app.topic("out", partitions=1, value_serializer="raw")
    became: list[tuple[bytes, object]] = []

    @app.timer(interval=1.0)
    async def tick() -> None:
        keys = [b"a", BAD, b"b", b"c", BAD, b"d"]
        sent = [await topic.send(key=key, value=key) for key in keys]
        for key, each in zip(keys, sent, strict=True):
            try:
                became.append((key, await each))
            except RecordRefused as error:
                became.append((key, str(error)))

    bench.answer = refusing(code, "out", BAD.__eq__)
    bench.station(app)
    bench.until(lambda: len(became) >= 6)
    assert [key for key, what in became[:6] if isinstance(what, str)] == [BAD, BAD]
    assert str(became[1][1]).startswith(f"record refused: out-0: {code.name}: ")
    bench.until(lambda: len(out(bench)) >= 4)
    assert out(bench)[:4] == [b"a", b"b", b"c", b"d"]


def test_each_record_of_a_refused_batch_is_counted() -> None:
    registry = MetricRegistry("")
    errors = ProduceErrorsOutsideTasks(
        OnProduceError.LOG, "ann", SystemClock(), lambda _error: None, registry
    )
    record = RefusedRecord(Sender(), None, b"k", 100, "no right to write")
    errors.refused(TopicPartition("out", 0), ErrorCode.TOPIC_AUTHORIZATION_FAILED, record)
    found = {sample.name: sample.value for sample in registry.samples()}
    assert found["refused_records_lost_total"] == 100
