"""processing/careful.py: a failed record is undone alone, with its outputs."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest

from streamsx import App
from streamsx.errors import RecordRefused, RecordTooLarge, TaskStopped, ValueRefused
from streamsx.processing.batch import Batch
from streamsx.processing.careful import CALM_RECORDS, Care, HeldOutbox
from streamsx.processing.failure_policy import Failure, FailureAction
from streamsx.processing.inbox import DONE, RUNNING, Outbox, SentRecord, UnroutedRecord
from streamsx.processing.merge import TURNS_MAX
from streamsx.processing.rerun import RecordUndone, Rerun
from streamsx.processing.task import Task
from streamsx.processing.waiting import WaitingResults
from streamsx.state.cache import CachedStore
from streamsx.state.layout import StoreNode
from streamsx.state.memory import MemoryRows
from streamsx.testing import TestDriver
from streamsx.topology.nodes import AgentNode, OnFailure, Source
from tests.support.codecs import coded
from tests.unit.processing.conftest import Sent, TaskHarness, process

Benches = Callable[..., TaskHarness]


def text(raw: bytes | None) -> Any:
    return None if raw is None else str(raw, "utf8")


def odd(raw: bytes | None) -> Any:
    if raw == b"odd":
        raise ValueError(raw)
    return text(raw)


TEXT = coded(text)
ODD = coded(odd)
JSON = coded(orjson.loads, orjson.dumps)


def at_work(*words: str, first: int = 0) -> Batch:
    raw = [word.encode() for word in words]
    offsets = range(first, first + len(raw))
    return Batch("words", 0, raw, raw, offsets, offsets, None, offsets.stop)


def do(word: str) -> None:
    """Count a word as a nested value, change a second row, and send the word."""
    running = RUNNING.get()
    counts = running.stores["counts"]
    value = counts.get(word.strip("!")) or {"n": [0]}
    value["n"][0] += 1
    counts.put(word.strip("!"), value)
    counts.put("last", word)
    running.to("out")(None, word.encode(), 0, None)
    if "!" in word:
        raise ValueError(word)


async def count(stream: AsyncIterator[Any]) -> None:
    async for word in stream:
        do(word)
        await DONE


WORDS = Source("words", TEXT, TEXT, agents=(AgentNode("count", count),))


def out(made: TaskHarness) -> list[str]:
    return [str(value, "utf8") for _, value in made.sent.by_topic["out"] if value is not None]


def careful(task: Task) -> bool:
    return task.care is not None


def goes_back(made: TaskHarness, batch: Batch) -> Rerun:
    """Process a batch up to the first failure, and go back to the last commit."""
    with pytest.raises(RecordUndone):
        process(made.task, batch)
    rerun = made.task.rerun(made.task.ended)  # type: ignore[arg-type]
    made.task.aborted()
    return rerun


def test_first_failure_goes_back_and_is_told_by_the_careful_run_alone(bench: Benches) -> None:
    heard: list[Failure] = []
    made = bench(WORDS, report=heard.append, undoes=True)
    batch = at_work("a", "a!", "b")
    rerun = goes_back(made, batch)
    assert (heard, out(made)) == ([], ["a", "a!"])
    process(made.again(rerun), batch)
    assert [failure.offset for failure in heard] == [1]
    assert out(made) == ["a", "a!", "b"], "a has left already; a! has failed"
    assert made.counts() == {"a": {"n": [1]}, "b": {"n": [1]}, "last": "b"}
    made.commit()
    rows = [*made.sent.by_topic["app-counts-changelog"]]
    assert {key: orjson.loads(value or b"") for key, value in rows} == {
        b'"a"': {"n": [1]}, b'"b"': {"n": [1]}, b'"last"': "b",
    }  # fmt: skip


def test_record_that_succeeds_in_the_careful_run_is_done(bench: Benches) -> None:
    tries: list[str] = []

    async def flaky(stream: AsyncIterator[Any]) -> None:
        async for word in stream:
            tries.append(word)
            do("a!" if len(tries) == 2 else word)

    heard: list[Failure] = []
    source = Source("words", TEXT, TEXT, agents=(AgentNode("flaky", flaky),))
    made = bench(source, report=heard.append, undoes=True)
    batch = at_work("a", "b", "c")
    process(made.again(goes_back(made, batch)), batch)
    assert heard == []
    assert out(made) == ["a", "a!", "b", "c"]
    assert made.counts()["last"] == "c"


def test_failure_where_no_row_has_changed_needs_no_going_back(bench: Benches) -> None:
    async def touch(stream: AsyncIterator[Any]) -> None:
        async for word in stream:
            value = RUNNING.get().stores["counts"].get("a")
            if value is not None:
                value["n"][0] += 1
            if word == "bad":
                raise ValueError
            do(word)

    heard: list[Failure] = []
    source = Source("words", TEXT, TEXT, agents=(AgentNode("touch", touch),))
    made = bench(source, report=heard.append, undoes=True)
    process(made.task, at_work("a"))
    made.commit()
    process(made.task, at_work("bad", first=1))
    assert len(heard) == 1
    assert made.counts()["a"] == {"n": [1]}


def test_failure_of_a_task_without_stores_needs_no_going_back(bench: Benches) -> None:
    async def fail(stream: AsyncIterator[Any]) -> None:
        async for word in stream:
            RUNNING.get().to("out")(None, word.encode(), 0, None)
            raise ValueError(word)

    heard: list[Failure] = []
    source = Source("words", TEXT, TEXT, agents=(AgentNode("fail", fail),))
    made = bench(source, stores=(), report=heard.append, undoes=True)
    process(made.task, at_work("a", "b"))
    assert (len(heard), out(made)) == (2, ["a", "b"])


@pytest.mark.parametrize("action", ["log", "dlq", "stop_task"])
def test_reaction_of_an_agent_counts_and_is_obeyed_once(bench: Benches, action: str) -> None:
    heard: list[Failure] = []
    agent = AgentNode("count", count, OnFailure(lambda _: action))
    source = Source("words", TEXT, TEXT, agents=(agent,))
    made = bench(source, report=heard.append, undoes=True, dead_letters="dead")
    batch = at_work("a", "a!", "b")
    again = made.again(goes_back(made, batch))
    if action == "stop_task":
        with pytest.raises(TaskStopped):
            process(again, batch)
        assert made.counts() == {"a": {"n": [1]}, "last": "a"}
        assert made.commit().positions == {"words": 1}
    else:
        process(again, batch)
        assert made.counts() == {"a": {"n": [1]}, "b": {"n": [1]}, "last": "b"}
    assert len(heard) == 1
    assert len(made.sent.by_topic["dead"]) == (action == "dlq")


def test_stop_ends_the_worker_at_once(bench: Benches) -> None:
    made = bench(WORDS, on_error=FailureAction.STOP, undoes=True)
    with pytest.raises(Exception, match="its policy is stop"):
        process(made.task, at_work("a!"))


def test_row_of_failures_stops_the_careful_task_at_its_first_record(bench: Benches) -> None:
    made = bench(WORDS, undoes=True, consecutive_failures_max=3)
    batch = at_work("a", "a!", "b!", "c!", "d")
    again = made.again(goes_back(made, batch))
    with pytest.raises(TaskStopped, match="3 records in a row failed"):
        process(again, batch)
    assert made.commit().positions == {"words": 1}
    assert made.counts() == {"a": {"n": [1]}, "last": "a"}


def test_task_in_a_transaction_commits_all_ahead_of_the_record_at_which_it_stops(
    bench: Benches,
) -> None:
    made = bench(WORDS, on_error=FailureAction.STOP_TASK, undoes=True, whole=True)
    batch = at_work("a", "b", "c!", "d")
    again = made.again(goes_back(made, batch))
    with pytest.raises(TaskStopped, match="records from 2 on are not committed"):
        process(again, batch)
    assert again.sealable
    assert made.commit().positions == {"words": 2}
    assert made.counts() == {"a": {"n": [1]}, "b": {"n": [1]}, "last": "b"}


def test_row_in_a_transaction_stops_at_its_last_record_if_the_others_are_dead_letters(
    bench: Benches,
) -> None:
    made = bench(
        WORDS, on_error=FailureAction.DLQ, undoes=True, whole=True, dead_letters="dead",
        consecutive_failures_max=3,
    )  # fmt: skip
    batch = at_work("a", "x!", "y!", "z!", "d")
    again = made.again(goes_back(made, batch))
    made.sent.by_topic["dead"].clear()
    with pytest.raises(TaskStopped, match="records from 3 on are not committed"):
        process(again, batch)
    assert made.commit().positions == {"words": 3}
    assert [value for _, value in made.sent.by_topic["dead"]] == [b"x!", b"y!"]


def test_task_in_a_transaction_that_is_not_careful_has_nothing_to_commit_where_it_stops(
    bench: Benches,
) -> None:
    """Another body may be in the middle of a record."""

    source = Source("words", TEXT, ODD, agents=(AgentNode("count", count),))
    made = bench(source, on_decode_error=FailureAction.STOP_TASK, undoes=True, whole=True)
    with pytest.raises(TaskStopped, match="records from 0 on are not committed"):
        process(made.task, at_work("a", "b", "odd", "d"))
    assert not made.task.sealable
    with pytest.raises(TaskStopped, match="offset 2 failed"):
        made.task.seal(10)


def test_task_that_ends_at_its_first_record_keeps_a_transaction_from_its_commit(
    bench: Benches,
) -> None:
    async def send(stream: AsyncIterator[Any]) -> None:
        async for word in stream:
            RUNNING.get().to("out")(None, word.encode(), 0, None)
            raise ValueError(word)

    source = Source("words", TEXT, TEXT, agents=(AgentNode("send", send),))
    made = bench(source, undoes=True, whole=True)
    made.commit()
    before = made.task.dirty
    with pytest.raises(RecordUndone):
        process(made.task, at_work("a"))
    assert (before, made.task.dirty) == (False, True)
    with pytest.raises(RecordUndone):
        made.task.seal(10)


def test_body_that_goes_on_behind_the_end_of_its_task_leaves_nothing(bench: Benches) -> None:
    async def count_all(stream: AsyncIterator[Any]) -> None:
        try:
            async for word in stream:
                do(word)
        except Exception:
            do("more")
            raise

    source = Source("words", TEXT, ODD, agents=(AgentNode("count", count_all),))
    made = bench(source, on_decode_error=FailureAction.STOP_TASK, undoes=True, whole=True)
    rerun = goes_back(made, at_work("a!"))
    again = made.again(rerun)
    with pytest.raises(TaskStopped):
        process(again, at_work("a", "odd"))
    again.close()
    made.commit()
    assert not again.dirty, "else each interval seals the stopped task again"
    rows = [*made.sent.by_topic["app-counts-changelog"]]
    assert {key: orjson.loads(value or b"") for key, value in rows} == {
        b'"a"': {"n": [1]}, b'"last"': "a",
    }  # fmt: skip


def test_failure_told_before_going_back_is_not_told_again(bench: Benches) -> None:
    heard: list[Failure] = []

    async def late(stream: AsyncIterator[Any]) -> None:
        async for word in stream:
            if word == "bad":
                raise ValueError(word)
            do(word)

    source = Source("words", TEXT, TEXT, agents=(AgentNode("late", late),))
    made = bench(source, report=heard.append, undoes=True)
    batch = at_work("bad", "a", "bad", "b")
    process(made.again(goes_back(made, batch)), batch)
    assert [failure.offset for failure in heard] == [0, 2]


def test_agents_of_one_topic_do_not_undo_each_other(bench: Benches) -> None:
    """The first agent waits in the middle of its record, and the second one could continue."""
    wait: list[asyncio.Future[None]] = []

    async def slow(stream: AsyncIterator[Any]) -> None:
        async for word in stream:
            counts = RUNNING.get().stores["counts"]
            counts.put("slow", word)
            if word == "b":
                wait.append(asyncio.get_running_loop().create_future())
                await wait[-1]
                raise ValueError(word)

    async def quick(stream: AsyncIterator[Any]) -> None:
        async for word in stream:
            RUNNING.get().stores["counts"].put("quick", word)

    heard: list[Failure] = []
    agents = AgentNode("slow", slow), AgentNode("quick", quick)
    made = bench(Source("words", TEXT, TEXT, agents=agents), report=heard.append, undoes=True)
    batch = at_work("a", "b", "c")
    process(made.task, batch)
    wait[0].set_result(None)
    made.turn()
    rerun = goes_back(made, at_work("d", first=3))
    again = made.again(rerun)
    process(again, batch)
    assert made.counts() == {"slow": "b"}, "the second agent waits for its turn"
    sealed = made.commit()
    assert made.counts() == {"slow": "b"}
    assert sealed.positions == {"words": 0}
    ((_, row),) = made.rows["counts"].scan(b"\x01", None)
    assert row == b'"a"', "b is not done"
    wait[1].set_result(None)
    made.turn()
    again.run(10, ["words"])
    assert made.counts() == {"slow": "c", "quick": "c"}
    assert [(failure.operator, failure.offset) for failure in heard] == [("slow", 1)]


def rows_and_reads() -> tuple[Source, Source]:
    """Return a topic of rows, one of which fails, and a topic whose records read the newest row."""

    async def change(stream: AsyncIterator[Any]) -> None:
        async for row in stream:
            RUNNING.get().stores["counts"].put("row", row)
            if "!" in row:
                raise ValueError(row)

    async def look(stream: AsyncIterator[Any]) -> None:
        async for word in stream:
            row = RUNNING.get().stores["counts"].get("row")
            RUNNING.get().stores["counts"].put("looked", str(row))
            RUNNING.get().to("out")(None, f"{word} {row}".encode(), 0, None)

    rows = Source("rows", TEXT, TEXT, agents=(AgentNode("change", change),))
    return rows, Source("words", TEXT, TEXT, agents=(AgentNode("look", look),))


def at_times(topic: str, times: list[int], *words: str) -> Batch:
    raw = [word.encode() for word in words]
    offsets = range(len(raw))
    return Batch(topic, 0, raw, raw, times, offsets, None, len(raw))


def test_output_that_has_left_is_that_of_the_careful_run(bench: Benches) -> None:
    """A row that is earlier in time than a record but arrives after it has to arrive after it
    again.
    """
    made = bench(*rows_and_reads(), undoes=True)
    words = at_times("words", [10], "a")
    rows = at_times("rows", [4, 5], "1!", "2")
    process(made.task, words)
    assert out(made) == ["a None"]
    again = made.again(goes_back(made, rows))
    again.offer(words)
    process(again, rows)
    again.run(10, ["rows", "words"])
    assert out(made) == ["a None"]
    assert made.counts() == {"looked": "None", "row": "2"}


def test_outputs_leave_again_where_the_order_is_not_kept(bench: Benches) -> None:
    made = bench(*rows_and_reads(), undoes=True)
    words = at_times("words", [10], "a")
    rows = at_times("rows", [4, 5], "1!", "2")
    process(made.task, words)
    made.task._merge.turns.extend([("rows", 0)] * TURNS_MAX)
    again = made.again(goes_back(made, rows))
    again.offer(words)
    process(again, rows)
    again.run(10, ["rows", "words"])
    assert out(made) == ["a None", "a 2"]
    assert made.counts() == {"looked": "2", "row": "2"}


def test_result_that_waits_leaves_at_a_commit_in_the_middle(bench: Benches) -> None:
    """The first run had no commit there, so the result has not left."""

    def newest(_old: int, new: int) -> int:
        if new == 13:
            raise ValueError(new)
        return new

    app = App("x")
    app.flow("words").group_by_key().reduce(newest, "newest", emit="commit").to("out")
    (plan,) = app.topology().subtopologies
    made = bench(*plan.sources, stores=plan.stores, undoes=True)
    keys = [b"k", b"l", b"k"]
    batch = at_work("1", "2", "13")._replace(keys=keys)
    again = made.again(goes_back(made, batch))
    again.offer(batch)
    again.run(1, ["words"])
    made.commit()
    assert made.sent.by_topic["out"] == [(b"k", b"1")]
    again.run(2, ["words"])
    made.commit()
    assert made.sent.by_topic["out"] == [(b"k", b"1"), (b"l", b"2")]


def test_care_ends_behind_many_records_without_a_failure(bench: Benches) -> None:
    made = bench(WORDS, undoes=True)
    batch = at_work("a", "a!", "b")
    again = made.again(goes_back(made, batch))
    process(again, batch)
    made.commit()
    assert careful(again)
    process(again, at_work(*["c"] * CALM_RECORDS, first=3))
    assert careful(again), "a commit ends it"
    made.commit()
    assert not careful(again)
    at = CALM_RECORDS + 3
    process(again, at_work("d", first=at))
    assert out(made)[-1] == "d"
    with pytest.raises(RecordUndone):
        process(again, at_work("d!", first=at + 1))


def test_sender_that_a_body_keeps_sends_during_the_care_and_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sender of a careful body is another one: kept, it would hold outputs for ever."""
    monkeypatch.setattr("streamsx.processing.task.CALM_RECORDS", 4)
    app = App("a", topic_partitions=1, processing_guarantee="exactly_once")
    out = app.topic("out")
    counts = app.Table("counts", default=int)
    kept: list[Any] = []

    @app.agent(app.topic("in"))
    async def body(stream: Any) -> None:
        async for word in stream:
            counts[word] += 1
            await out.send(value="first")
            kept.append(out.send)
            await kept[len(kept) // 2](key=word, value=word)
            if word == "bad":
                raise ValueError(word)

    with TestDriver(app, raises=False) as driver:
        words = ["a", "b", "bad", *"cdefghij"]
        for word in words:
            driver.pipe("in", [word])
        good = [word for word in words if word != "bad"]
        assert [each.value for each in driver.read("out")] == [
            each for word in good for each in ("first", word)
        ]


def test_seal_refuses_changes_of_a_failed_record(bench: Benches) -> None:
    """The body of a revoked task fails after its await, and no code runs the task any more."""
    wait: list[asyncio.Future[None]] = []

    async def slow(stream: AsyncIterator[Any]) -> None:
        async for word in stream:
            RUNNING.get().stores["counts"].put("slow", word)
            wait.append(asyncio.get_running_loop().create_future())
            await wait[-1]
            raise ValueError(word)

    source = Source("words", TEXT, TEXT, agents=(AgentNode("slow", slow),))
    made = bench(source, undoes=True)
    process(made.task, at_work("a"))
    made.task.cut()
    wait[0].set_result(None)
    made.turn()
    with pytest.raises(ValueRefused):
        made.task.seal(10)


def test_output_that_its_topic_refuses_fails_its_record_at_the_end(bench: Benches) -> None:
    heard: list[Failure] = []
    made = bench(WORDS, report=heard.append, undoes=True)
    to = made.sent.to

    def small(topic: str, partition: int | None = None) -> Any:
        send = to(topic, partition)

        def checked(key: Any, value: Any, *more: Any) -> None:
            if value == b"large":
                raise RecordTooLarge("too large")
            send(key, value, *more)

        return checked

    made.sent.to = small  # type: ignore[method-assign]
    made.task = made.again(Rerun({"words": 9}, careful=True))
    process(made.task, at_work("a", "large", "b"))
    assert [(f.offset, type(f.error)) for f in heard] == [(1, RecordTooLarge)]
    assert made.counts() == {"a": {"n": [1]}, "b": {"n": [1]}, "last": "b"}


def test_value_that_cannot_be_encoded_fails_its_record_at_the_end(bench: Benches) -> None:
    async def odd(stream: AsyncIterator[Any]) -> None:
        async for word in stream:
            do(word)
            if word == "odd":
                RUNNING.get().stores["counts"].put("last", object())

    heard: list[Failure] = []
    source = Source("words", TEXT, TEXT, agents=(AgentNode("odd", odd),))
    made = bench(source, report=heard.append, undoes=True)
    again = made.again(Rerun({"words": 9}, careful=True, lasts=True))
    process(again, at_work("a", "odd", "b"))
    assert [(f.offset, type(f.error)) for f in heard] == [(1, ValueRefused)]
    assert out(made) == ["a", "b"]
    assert made.counts() == {"a": {"n": [1]}, "b": {"n": [1]}, "last": "b"}


def test_value_set_outside_of_records_is_searched_for_before_the_task_stops(
    bench: Benches,
) -> None:
    made = bench(WORDS, undoes=True)
    again = made.again(Rerun({"words": 9}, careful=True, lasts=True))
    process(again, at_work("a"))
    again.stores["counts"].put("odd", object())
    process(again, at_work("b", first=1))
    with pytest.raises(ValueRefused) as refused:
        made.commit()
    made.task.aborted()
    process(made.again(again.rerun(refused.value)), at_work("a", "b"))
    made.commit()
    assert made.counts() == {"a": {"n": [1]}, "b": {"n": [1]}, "last": "b"}


def test_body_that_waits_for_kafka_lets_its_outputs_leave() -> None:
    sent = Sent()
    held = HeldOutbox(sent)
    held.to("out")(None, b"a", 0, None)
    done = held.last_sent("out", 0)
    assert sent.by_topic == {}
    with pytest.raises(StopIteration):
        done.result().__await__().send(None)
    held.drop()
    assert sent.by_topic == {"out": [(None, b"a")]}


def test_wait_for_an_output_of_a_failed_record_lets_none_of_the_next_record_leave() -> None:
    sent = Sent()
    held = HeldOutbox(sent)
    held.to("out")(None, b"a", 0, None)
    done = held.last_sent("out", 0)
    held.drop()
    held.to("out")(None, b"b", 0, None)
    with pytest.raises(RecordRefused, match="its source record failed"):
        done.result().__await__().send(None)
    assert sent.by_topic == {}


def test_body_that_waits_for_kafka_lets_nothing_leave_in_a_transaction() -> None:
    """The acknowledgement means nothing there: the record may fail after it."""
    sent = Sent()
    held = HeldOutbox(sent, whole=True)
    held.to("out")(None, b"a", 0, None)
    with pytest.raises(StopIteration):
        held.last_sent("out", 0).result().__await__().send(None)
    held.drop()
    assert sent.by_topic == {}


class Strict(Sent):
    """An outbox whose topics refuse one value."""

    def check(self, topic: str, partition: int | None = None) -> Any:
        def small(_: Any, value: Any, *__: Any) -> None:
            if value == b"large":
                raise RecordTooLarge("too large")

        return small


def test_outputs_of_a_record_leave_all_or_none() -> None:
    """A topic refuses the second output: the first one must not leave."""

    sent = Strict()
    held = HeldOutbox(sent)
    for value in (b"a", b"large"):
        held.to("out")(None, value, 0, None)
    with pytest.raises(RecordTooLarge):
        held.release()
    assert sent.by_topic == {}


def careful_stores(count: int) -> list[CachedStore]:
    """Return stores of JSON whose task is careful."""
    nodes = [StoreNode(f"s{n}", f"app-s{n}", JSON, JSON, str) for n in range(count)]
    stores = [CachedStore(node, MemoryRows(), 1 << 20) for node in nodes]
    for store in stores:
        store.check_values(checking=True, at_set=False)
    return stores


def test_record_that_fails_changes_no_row_of_another_store_with_its_object() -> None:
    """One record puts an object into two tables; the next one gets it from one of them."""
    accounts, newest = careful_stores(2)
    care = Care([accounts, newest], {}, Sent(), {})
    value = {"n": [1]}
    accounts.put("ann", value)
    newest.put("de", value)
    care.end()
    accounts.get("ann")["n"].append(2)
    care.undo()
    assert (accounts.get("ann"), newest.get("de")) == ({"n": [1]}, {"n": [1]})


@pytest.mark.parametrize("shares", ["branches", "results"])
def test_object_outside_of_the_store_is_not_the_one_of_its_row(shares: str) -> None:
    """The value of a record goes into a row, and into another branch, or waits for a commit.

    That branch, or a later record of the row, changes it and fails.
    """
    (store,) = careful_stores(1)
    waiting = WaitingResults()
    pending: dict[int, Any] = {1: waiting} if shares == "results" else {}
    care = Care([store], pending, Sent(), {}, shares=shares == "branches")
    value = {"n": [1]}
    store.put("ann", value)
    waiting["ann"] = value
    care.end()
    if shares == "branches":
        value["n"].append(2)
    else:
        store.get("ann")["n"].append(2)
    care.undo()
    assert store.get("ann") == {"n": [1]}
    assert shares == "branches" or waiting == {"ann": {"n": [1]}}


def test_row_that_was_only_given_is_as_before_for_the_next_record() -> None:
    (store,) = careful_stores(1)
    care = Care([store], {}, Sent(), {})
    store.put("ann", {"n": [1]})
    care.end()
    store.get("ann")["n"].append(2)
    care.end()
    assert store.get("ann") == {"n": [1]}


def late(value: bytes) -> UnroutedRecord:
    return UnroutedRecord("late", None, SentRecord(None, value, 0, None))


def test_output_to_a_topic_found_behind_its_record_is_none_of_the_next_record() -> None:
    """A sends and ends, B begins, the topic is found, B fails. B keeps its own outputs apart."""
    sent = Sent()
    care = Care([], {}, sent, {})
    record = late(b"a")
    care.begin(muted=False)
    _ = care.outbox.send_unrouted(record)
    care.end()
    care.begin(muted=True)
    assert sent.by_topic == {}
    assert record.found() is not None
    care.undo()
    assert sent.by_topic == {"late": [(None, b"a")]}


def test_output_to_a_topic_found_within_its_record_leaves_with_it() -> None:
    sent = Sent()
    care = Care([], {}, sent, {})
    record = late(b"a")
    care.begin(muted=False)
    _ = care.outbox.send_unrouted(record)
    assert record.found() is None
    assert sent.by_topic == {}
    care.end()
    assert sent.by_topic == {"late": [(None, b"a")]}


@pytest.mark.parametrize("first", ["found", "undone"])
def test_output_of_a_failed_record_to_a_late_topic_is_dropped(first: str) -> None:
    sent = Sent()
    care = Care([], {}, sent, {})
    record = late(b"a")
    care.begin(muted=False)
    _ = care.outbox.send_unrouted(record)
    if first == "found":
        _ = record.found()
    care.undo()
    care.begin(muted=False)
    if first == "undone":
        _ = record.found()
    care.end()
    assert sent.by_topic == {}


def test_late_output_of_a_reader_with_a_reaction_leaves_by_its_own_outbox() -> None:
    own = Sent()

    class Parted(Sent):
        def of_reader(self, operator: str, reaction: Any) -> Outbox:
            return own

    held = HeldOutbox(Parted())
    record = late(b"a")
    _ = held.of_reader("count", "dlq").send_unrouted(record)
    held.release()
    _ = record.found()
    assert own.by_topic == {"late": [(None, b"a")]}


def test_output_to_a_late_topic_that_has_left_before_is_not_sent_again() -> None:
    sent = Sent()
    care = Care([], {}, sent, {})
    record = late(b"a")
    care.begin(muted=True)
    _ = care.outbox.send_unrouted(record)
    care.end()
    _ = record.found()
    assert sent.by_topic == {}


def test_output_to_a_late_topic_stays_with_its_record_over_a_seal() -> None:
    """A body waits in the middle of its record, and results leave at the seal."""
    sent = Sent()
    care = Care([], {}, sent, {})
    record = late(b"a")
    care.begin(muted=False)
    _ = care.outbox.send_unrouted(record)

    def result() -> None:
        care.begin(muted=False)
        care.outbox.to("out")(None, b"r", 0, None)
        care.end()

    care.interrupt(result, waits=True)
    _ = record.found()
    assert sent.by_topic == {"out": [(None, b"r")]}
    care.undo()
    assert sent.by_topic == {"out": [(None, b"r")]}


@pytest.mark.parametrize("whole", [False, True])
def test_body_that_waits_for_kafka_lets_a_late_output_leave_outside_of_transactions(
    *, whole: bool
) -> None:
    sent = Sent()
    held = HeldOutbox(sent, whole=whole)
    record = late(b"a")
    done = held.send_unrouted(record)
    _ = record.found()
    with pytest.raises(StopIteration):
        done.result().__await__().send(None)
    held.drop()
    assert sent.by_topic == ({} if whole else {"late": [(None, b"a")]})


def test_outputs_of_a_record_leave_all_or_none_with_a_late_one() -> None:
    sent = Strict()
    held = HeldOutbox(sent)
    held.to("out")(None, b"a", 0, None)
    record = late(b"large")
    _ = held.send_unrouted(record)
    _ = record.found()
    with pytest.raises(RecordTooLarge):
        held.release()
    assert sent.by_topic == {}


def test_closed_body_of_a_careful_task_is_silenced_as_that_of_another() -> None:
    below = Sent()
    below.closes = True
    held = HeldOutbox(below)
    assert held.closes
    assert held.of_reader("agent", "log").closes
    assert not HeldOutbox(Sent()).closes
