"""Records that a broker refuses for good: their task, and the log lines."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import pytest

from streamsx.broker.api.served import answered
from streamsx.client.rejected_batch import RefusedRecord, Sender
from streamsx.clock import SystemClock
from streamsx.errors import RecordRefused
from streamsx.journal import Journal
from streamsx.metrics import MetricRegistry
from streamsx.model import Headers, TaskId, TopicPartition
from streamsx.processing.failure_policy import FailedRecord, Failure
from streamsx.processing.inbox import Outbox
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import columns
from streamsx.protocol.wire import Api
from streamsx.state.api import ROW
from streamsx.tasks.produce_errors import ProduceErrorsOutsideTasks
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
    """Return an app that counts each word, and sends it on."""
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
    """Make the broker refuse batches of a topic with such a record, and name it."""

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
    """Start a worker that runs two tasks."""
    bench.create("out", 1)
    station = bench.begun(app)
    station.hand.plan(T0, T1)
    bench.until(lambda: all("running" in station.states(task) for task in (T0, T1)))
    return station


def feed(bench: VirtualCluster) -> None:
    """Append records of which one is bad, of the first task."""
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
    assert "start again, or set on_produce_error=log to skip such records" in told
    assert "records after its last commit (words-0 1) are not committed" in told
    assert station.made.tasks.actives[T0].why == told
    assert set(out(bench)) == {b"a", b"b", b"c", b"x", b"y", b"z"}


def together(bench: VirtualCluster) -> WorkerHarness:
    """Start a worker whose records leave with its seals: a bad one is refused, the rows are not."""
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
    """Each start counted it once more: the changelog had the rows, the group not the offsets."""
    caplog.set_level("DEBUG", "streamsx")
    station = together(bench)
    bench.feed(0, "b", "bad", "a")
    bench.until(lambda: station.states(T0)[-1] == "stopped")
    assert counted(bench) == {"a": 2, "b": 1, "bad": 1}
    assert "Task 0_0 puts back 3 uncommitted rows" in caplog.text
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
    """The commit may arrive, and then no worker would do the work again."""
    caplog.set_level("DEBUG", "streamsx")
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
    assert "uncommitted rows" not in caplog.text
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
    (line,) = refusals(caplog)
    assert "out-0, key b'bad', sent by task 0_0" in line
    assert line.endswith("it is skipped.")
    (refused,) = station.told("refused")
    assert refused == {
        "task": "0_0", "topic": "out", "partition": 0, "operator": refused["operator"],
        "error": "INVALID_TIMESTAMP", "action": "log", "records": 1,
    }  # fmt: skip


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
    """The next owner meets the same record, and stops there."""
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
    """A worker would keep the caches of tasks that it has given away."""
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
    lines = refusals(caplog)
    assert 2 <= len(lines) <= 6
    assert "sent outside of tasks: INVALID_RECORD (no)" in lines[-1]
    assert "more before it" in lines[-1]


@pytest.mark.parametrize("code", [ErrorCode.INVALID_RECORD, ErrorCode.MESSAGE_TOO_LARGE])
def test_awaiting_a_refused_record_raises_and_the_rest_of_the_batch_arrives(
    bench: VirtualCluster, code: ErrorCode
) -> None:
    """It returned a RecordMetadata, so a lost record seemed to be sent."""
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


class Outside(Outbox):
    """Outbox without a task: without permission no dead letter is left."""


@pytest.mark.parametrize("choice", ["log", lambda _failure: "stop"])
def test_each_record_of_a_refused_batch_is_counted(choice: Any) -> None:
    registry = MetricRegistry("")
    errors = ProduceErrorsOutsideTasks(
        choice, "ann", SystemClock(), lambda _error: None, registry,
        dead_letters="t-dlq", outbox=Outside, journal=Journal("w", SystemClock()),
    )  # fmt: skip
    record = RefusedRecord(Sender(), None, b"k", 100, "no right to write")
    errors.refused(TopicPartition("out", 0), ErrorCode.TOPIC_AUTHORIZATION_FAILED, record)
    found = {sample.name: sample.value for sample in registry.samples()}
    assert found["refused_records_lost_total"] == 100


DEAD_LETTERS = "t-dlq"


class Letter(NamedTuple):
    """Dead letter, with its headers by name."""

    record: FailedRecord
    headers: dict[str, str]


def letters(bench: VirtualCluster) -> list[Letter]:
    """Return all dead letters that are in the log."""
    found: list[Letter] = []
    for partition in range(len(bench.broker.service.topics.by_name[DEAD_LETTERS].logs)):
        log = bench.log(TopicPartition(DEAD_LETTERS, partition))
        at = log.start
        while at < log.high_watermark:
            rows = columns(log.read(at, 1 << 20), at)
            headers = rows.headers or []
            for record in zip(rows.keys, rows.values, rows.timestamps, headers, strict=True):
                found.append(Letter(FailedRecord(*record), texts(record[3])))
            at = rows.next_offset
    return found


def texts(headers: Headers) -> dict[str, str]:
    return {key: (value or b"").decode() for key, value in headers}


def refusals(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in caplog.messages if line.startswith("Record refused: ")]


def passed_over(station: WorkerHarness) -> float:
    """Return how many records were refused and skipped, kept or not."""
    samples = station.metrics.samples()
    return sum(each.value for each in samples if "refused_records_passed_over" in each.name)


def passed_on(bench: VirtualCluster) -> bool:
    """Return whether the first task has committed past all records of `feed`."""
    return bench.committed.get(words(0), (0,))[0] == 4


def test_refused_record_is_kept_as_a_dead_letter_and_the_others_arrive(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    station = begun(bench, sending(on_produce_error="dlq"))
    bench.answer = refusing(ErrorCode.INVALID_RECORD, "out", BAD.__eq__)
    feed(bench)
    bench.until(lambda: passed_on(bench))
    assert errors(station) == []
    assert sorted(out(bench), key=str) == [b"a", b"b", b"c", b"x", b"y"]
    (letter,) = letters(bench)
    assert (letter.record.key, letter.record.value) == (BAD, BAD)
    assert letter.record.timestamp > 0
    told = letter.headers
    assert told.pop("__streams.errors.message").startswith(
        "record refused: out-0, key b'bad', sent by task 0_0 at words-0 offset 1"
    )
    assert told.pop("__streamsx.operator").endswith(".agent")
    assert told == {
        "__streams.errors.exception": "INVALID_RECORD",
        "__streams.errors.topic": "out",
        "__streams.errors.partition": "0",
        "__streamsx.task": "0_0",
    }
    (line,) = refusals(caplog)
    assert line.endswith(f"kept in {DEAD_LETTERS}.")
    assert passed_over(station) == 1


def test_commit_waits_for_the_dead_letter_of_a_record_that_was_sealed(
    bench: VirtualCluster,
) -> None:
    """The letter is sent when the commit is on its way: a kill then must not lose it."""
    bench.create("out", 1)
    station = bench.begun(sending(on_produce_error="dlq", producer_linger=60.0))
    station.hand.plan(T0)
    bench.feed(0, "a")
    bench.until(lambda: bench.committed.get(words(0), (0,))[0] == 1)
    refused = refusing(ErrorCode.INVALID_RECORD, "out", BAD.__eq__)
    stuck = [True]

    def answer(service: Service, call: ServedRequest) -> ReplyBody | None:
        if call.api is Api.PRODUCE and stuck[0]:
            asked = {topic.name for topic in call.body.topic_data}
            if DEAD_LETTERS in asked:
                return None
        return refused(service, call)

    bench.answer = answer
    bench.feed(0, "b", "bad", "c")
    bench.until(lambda: b"c" in out(bench))
    bench.run(5)
    assert bench.committed[words(0)][0] == 1
    assert letters(bench) == []
    stuck[0] = False
    bench.until(lambda: passed_on(bench))
    assert [letter.record.key for letter in letters(bench)] == [BAD]


def test_dead_letter_is_in_the_transaction_of_its_records(bench: VirtualCluster) -> None:
    """It is sent while the commit waits for the records, when no other batch leaves any more."""
    bench.create("out", 1)
    refused = refusing(ErrorCode.INVALID_RECORD, "out", BAD.__eq__)
    ends: list[tuple[bool, int]] = []

    def answer(service: Service, call: ServedRequest) -> ReplyBody | None:
        if call.api is Api.END_TXN:
            ends.append((b"c" in out(bench), len(letters(bench))))
        return refused(service, call)

    bench.answer = answer
    app = sending(on_produce_error="dlq", producer_linger=60.0, processing_guarantee="exactly_once")
    station = bench.station(app, by_hand=False)
    bench.feed(0, "b", "bad", "c")
    bench.until(lambda: (True, 1) in ends)
    bench.run(3)
    assert (True, 0) not in ends
    assert len(letters(bench)) == 1
    assert station.told("aborted") == []


def passing_on(name: str, word: str) -> str:
    if word == "poison":
        raise ValueError(word)
    return f"{name} {word}"


def two_agents(**settings: Any) -> App:
    """Return an app with two agents that send words to one topic; the first has its own
    reaction.
    """
    app = app_of(**settings)
    out = app.topic("out", partitions=1, value_type=str, value_serializer="raw")
    words = app.topic("words", value_type=str, value_serializer="raw")
    seen = app.Table("seen", default=int, key_type=str, value_type=int)

    @app.agent(words, name="own", on_produce_error="dlq")
    async def own(stream: Stream[str]) -> None:
        async for word in stream:
            seen[word] += 1
            await out.send(key=word, value=passing_on("own", word))

    @app.agent(words, name="usual")
    async def usual(stream: Stream[str]) -> None:
        async for word in stream:
            await out.send(key=word, value=passing_on("usual", word))

    return app


def two_flows(**settings: Any) -> App:
    """Return the same as flows, whose records go through one loop."""
    app = app_of(**settings)
    out = app.topic("out", partitions=1, value_type=str, value_serializer="raw")
    words = app.topic("words", value_type=str, value_serializer="raw")
    for name, reaction in (("own", "dlq"), ("usual", None)):
        flow = app.flow(words, on_produce_error=reaction)
        flow.rekey(str).map_values(partial(passing_on, name)).to(out)
    return app


@pytest.mark.parametrize("made", [two_agents, two_flows])
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("first", ["a", "poison"], ids=["", "careful"])
def test_reaction_of_an_agent_or_flow_is_that_of_its_records_alone(
    bench: VirtualCluster, made: Callable[..., App], guarantee: str, first: str
) -> None:  # fmt: skip
    """Also in a task that runs record by record after a failure. A refusal aborts no
    transaction.
    """
    bench.create("out", 1)
    bench.answer = refusing(ErrorCode.INVALID_RECORD, "out", BAD.__eq__)
    bench.feed(0, first, "b", "bad", "c")
    app = made(on_produce_error="log", processing_guarantee=guarantee)
    station = bench.station(app, by_hand=False)
    bench.until(lambda: sum(b" c" in (value or b"") for value in out(bench)) >= 2)
    bench.run(3)
    assert errors(station) == []
    (letter,) = letters(bench)
    assert letter.record.value == b"own bad"
    assert letter.headers["__streamsx.operator"] in {"own", "flow of words to out"}
    done = {first, "b", "c"} - {"poison"}
    sent = {value.decode() for value in out(bench) if value}
    assert sent == {f"{name} {word}" for name in ("own", "usual") for word in done}
    assert passed_over(station) == 2
    assert len(station.told("aborted")) == (guarantee == "exactly_once" and first == "poison")


def with_reaction(reaction: object, **settings: Any) -> App:
    app = app_of(**settings)
    out = app.topic("out", partitions=1, value_type=str, value_serializer="raw")
    words = app.topic("words", value_type=str, value_serializer="raw")
    given: Any = reaction
    app.flow(words, on_produce_error=given).rekey(str).to(out)
    return app


def test_function_chooses_by_the_failure_of_the_output(bench: VirtualCluster) -> None:
    asked: list[Failure] = []

    def choose(failure: Failure) -> str | None:
        asked.append(failure)
        return None if failure.record and failure.record.key == BAD else "log"

    station = begun(bench, with_reaction(choose, on_produce_error="dlq"))
    bench.answer = refusing(ErrorCode.INVALID_RECORD, "out", {BAD, b"b"}.__contains__)
    feed(bench)
    bench.until(lambda: passed_on(bench))
    assert errors(station) == []
    assert [letter.record.key for letter in letters(bench)] == [BAD]
    failure = asked[-1]
    assert (failure.task, failure.topic, failure.partition, failure.offset) == (T0, "out", 0, -1)
    assert failure.operator == "flow of words to out"
    assert isinstance(failure.error, RecordRefused)
    assert failure.record is not None
    assert failure.record.value == BAD


@pytest.mark.parametrize("own", [None, lambda _failure: None])
def test_function_of_the_app_chooses_for_readers_that_do_not(
    bench: VirtualCluster, own: Any
) -> None:
    def choose(failure: Failure) -> str | None:
        return "dlq" if failure.record and failure.record.key == BAD else None

    station = begun(bench, with_reaction(own, on_produce_error=choose))
    bench.answer = refusing(ErrorCode.INVALID_RECORD, "out", {BAD, b"x"}.__contains__)
    feed(bench)
    bench.until(lambda: passed_on(bench) and station.states(T1)[-1] == "stopped")
    assert [letter.record.key for letter in letters(bench)] == [BAD]
    assert station.states(T0)[-1] == "running"


def test_function_of_the_app_is_not_asked_about_a_row_of_a_changelog(
    bench: VirtualCluster,
) -> None:
    asked: list[Failure] = []
    given: Any = asked.append
    station = begun(bench, sending(on_produce_error=given))
    bench.answer = refusing(ErrorCode.INVALID_RECORD, CHANGELOG, lambda key: BAD in key)
    feed(bench)
    bench.until(lambda: station.states(T0)[-1] == "stopped")
    assert asked == []


@pytest.mark.parametrize("answer", ["ZeroDivisionError", "retry", 3])
def test_function_that_fails_stops_the_task_of_the_refused_record(
    bench: VirtualCluster, answer: object
) -> None:
    def choose(_failure: Failure) -> Any:
        return 1 // 0 if answer == "ZeroDivisionError" else answer

    station = begun(bench, with_reaction(choose, on_produce_error="log"))
    bench.answer = refusing(ErrorCode.INVALID_RECORD, "out", BAD.__eq__)
    feed(bench)
    bench.until(lambda: station.states(T0)[-1] == "stopped")
    assert bench.committed[words(0)][0] == 1
    (told,) = errors(station)
    assert "(its on_produce_error failed: " in told


def test_function_of_the_app_that_fails_stops_the_task(bench: VirtualCluster) -> None:
    station = begun(bench, with_reaction(None, on_produce_error=lambda _failure: "retry"))
    bench.answer = refusing(ErrorCode.INVALID_RECORD, "out", BAD.__eq__)
    feed(bench)
    bench.until(lambda: station.states(T0)[-1] == "stopped")
    (told,) = errors(station)
    assert "(its on_produce_error failed: ValueError: " in told


@pytest.mark.parametrize(("word", "kind"), [("stop", "WorldError"), ("stop_app", "AppStopped")])
def test_own_word_ends_the_worker(bench: VirtualCluster, word: str, kind: str) -> None:
    station = begun(bench, with_reaction(word, on_produce_error="log"))
    bench.answer = refusing(ErrorCode.INVALID_RECORD, "out", BAD.__eq__)
    feed(bench)
    bench.until(lambda: errors(station))
    assert errors(station)[0].startswith(f"{kind}: record refused: out-0, key b'bad'")
    assert bench.committed[words(0)][0] == 1


@pytest.mark.parametrize("usual", ["dlq", "stop_task"])
def test_refused_dead_letter_stops_the_task(bench: VirtualCluster, usual: str) -> None:
    """It would be refused as a dead letter again, for ever."""
    station = begun(bench, with_reaction("dlq", on_produce_error=usual))
    to_out = refusing(ErrorCode.INVALID_RECORD, "out", BAD.__eq__)
    to_letters = refusing(ErrorCode.INVALID_RECORD, DEAD_LETTERS, BAD.__eq__)

    def answer(service: Service, call: ServedRequest) -> ReplyBody | None:
        asked = call.api is Api.PRODUCE and {topic.name for topic in call.body.topic_data}
        return (to_letters if asked and DEAD_LETTERS in asked else to_out)(service, call)

    bench.answer = answer
    feed(bench)
    bench.until(lambda: station.states(T0)[-1] == "stopped")
    assert bench.committed[words(0)][0] == 1
    (told,) = errors(station)
    assert f"record refused: {DEAD_LETTERS}-" in told
    assert letters(bench) == []


def test_output_for_which_the_dead_letter_topic_has_no_room_is_logged_and_lost(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It fits nowhere, so its task would stop at it for ever."""
    service = bench.broker.service
    limit = {"max.message.bytes": "500"}
    named = service.fresh_id().bytes
    bench.at_broker(lambda: service.topics.create(DEAD_LETTERS, named, 1, limit))
    begun(bench, with_reaction(None, on_produce_error="dlq"))
    bad = b"x" * 300
    bench.answer = refusing(ErrorCode.MESSAGE_TOO_LARGE, "out", bad.__eq__)
    bench.feed(0, "a", bad.decode(), "c")
    bench.until(lambda: bench.committed.get(words(0), (0,))[0] == 3)
    assert out(bench) == [b"a", b"c"]
    assert letters(bench) == []
    (line,) = refusals(caplog)
    assert f"not in {DEAD_LETTERS}: record too large: {DEAD_LETTERS}: " in line
    assert line.endswith("it is lost.")


def test_refused_record_of_a_timer_is_a_dead_letter_without_a_task(bench: VirtualCluster) -> None:
    app = app_of(on_produce_error="dlq")
    topic = app.topic("out", partitions=1, value_serializer="raw")

    @app.timer(interval=1.0)
    async def tick() -> None:
        await topic.send(key=BAD, value=b"x", headers={"h": b"1"})

    bench.answer = refusing(ErrorCode.INVALID_RECORD, "out", BAD.__eq__)
    station = bench.station(app)
    bench.until(lambda: station.process.alive and DEAD_LETTERS in topics_of(bench))
    bench.until(lambda: letters(bench))
    letter = letters(bench)[0]
    assert (letter.record.key, letter.record.value) == (BAD, b"x")
    assert letter.headers["h"] == "1"
    assert letter.headers["__streams.errors.exception"] == "INVALID_RECORD"
    assert not {"__streamsx.task", "__streamsx.operator"} & letter.headers.keys()


def topics_of(bench: VirtualCluster) -> set[str]:
    return set(bench.broker.service.topics.by_name)


def test_task_that_began_anew_is_asked_again(bench: VirtualCluster) -> None:
    """A refusal of the closed task leaves no dead letter: the new one sends the record again."""
    station = begun(bench, with_reaction("dlq"))
    handler = station.made.produce_errors
    old = station.made.producer._senders[T0].part("flow of words to out", "dlq")
    station.hand.lose(T0)
    bench.until(lambda: station.states(T0)[-1] == "closed")
    station.hand.plan(T0, T1)
    bench.until(lambda: station.states(T0)[-1] == "running")
    record = RefusedRecord(old, None, BAD, 1, "no", [0], FailedRecord(BAD, BAD, 1, None))
    handler.refused(TopicPartition("out", 0), ErrorCode.INVALID_RECORD, record)
    bench.run(1)
    assert letters(bench) == []
    assert "record refused: out-0" in errors(station)[0]
