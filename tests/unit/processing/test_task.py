"""processing/task.py: a word count as a task, and records that fail."""

import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import pytest

from streamsx.errors import (
    DecodeFailed,
    DiskFailed,
    NotFound,
    TableNotInTask,
    TaskFailed,
    TaskStopped,
    UsageError,
    ValueRefused,
)
from streamsx.model import RECORD_BYTES_MAX
from streamsx.operators.forward import forward
from streamsx.operators.operator import chain
from streamsx.operators.rekey import rekey
from streamsx.processing.batch import Batch
from streamsx.processing.failure_policy import Failure, FailureAction
from streamsx.processing.inbox import DONE, RUNNING
from streamsx.processing.rerun import Rerun
from streamsx.processing.task import Task
from streamsx.serde.codec import codec
from streamsx.state.api import ROW
from streamsx.topology.nodes import AgentNode, Branch, Source
from tests.support.codecs import coded
from tests.unit.processing.conftest import process

Benches = Callable[..., Any]


def text(raw: bytes | None) -> Any:
    return None if raw is None else str(raw, "utf8")


async def count(stream: AsyncIterator[Any]) -> None:
    async for word in stream:
        if word == "boom":
            raise ValueError(word)
        counts = RUNNING.get().stores["counts"]
        counts.put(word, (counts.get(word) or 0) + 1)
        await DONE


async def split(stream: AsyncIterator[Any]) -> None:
    async for line in stream:
        running = RUNNING.get()
        inbox = running.inbox
        assert inbox.batch is not None
        for word in line.split():
            at_ms = inbox.batch.timestamps[inbox.index]
            running.to("words")(word.encode(), word.encode(), at_ms, None)


def keyed(agent: str, key_of: Callable[[Any], Any], topic: str) -> Branch:
    return Branch(agent, chain(rekey(key_of, orjson.dumps), forward(topic)))


TEXT = coded(text)
COUNT = Source("words", TEXT, TEXT, agents=(AgentNode("count", count),))
SPLIT = Source("lines", TEXT, TEXT, agents=(AgentNode("split", split),))
REKEY = Source(
    "orders",
    TEXT,
    coded(lambda raw: orjson.loads(raw or b"null")),
    (keyed("buy", lambda order: order["user"], "by-user"),),
)


def batch(topic: str, values: Sequence[str | bytes], first: int = 0, **more: Any) -> Batch:
    raw = [v.encode() if isinstance(v, str) else v for v in values]
    n = len(raw)
    made = Batch(
        topic, 0, raw, raw, range(first, first + n), range(first, first + n), None, first + n
    )
    return made._replace(**more)


def test_changelog_gets_one_record_per_key_and_commit(bench: Benches) -> None:
    made = bench(COUNT)
    process(made.task, batch("words", ["a", "b", "a"]))
    sealed = made.commit()

    assert (sealed.positions, sealed.stream_time, sealed.records) == ({"words": 3}, 2, 3)
    assert made.sent.by_topic == {"app-counts-changelog": [(b'"a"', b"2"), (b'"b"', b"1")]}
    assert dict(made.rows["counts"].scan(ROW, None)) == {b'\x01"a"': b"2", b'\x01"b"': b"1"}


def test_recreated_task_continues_from_the_last_commit(bench: Benches) -> None:
    made = bench(COUNT)
    process(made.task, batch("words", ["a", "b"]))
    made.commit()
    process(made.task, batch("words", ["a"], first=2))  # never committed

    process(made.again(), batch("words", ["a", "c"], first=2))
    assert made.counts() == {"a": 2, "b": 1, "c": 1}


def test_records_below_the_position_are_skipped(bench: Benches) -> None:
    made = bench(COUNT)
    process(made.task, batch("words", ["a", "b"]))
    process(made.task, batch("words", ["b", "c"], first=1))
    process(made.task, batch("words", ["a"]))
    assert made.counts() == {"a": 1, "b": 1, "c": 1}


def test_sent_record_carries_the_timestamp_of_the_current_record(bench: Benches) -> None:
    made = bench(SPLIT, stores=())
    process(made.task, batch("lines", ["a b", "c"], timestamps=[70, 80]))
    assert made.sent.by_topic["words"] == [(w, w) for w in (b"a", b"b", b"c")]
    assert made.sent.times == [70, 70, 80]


def test_a_batch_without_records_moves_the_position(bench: Benches) -> None:
    made = bench(COUNT)
    process(made.task, batch("words", [], next_offset=9))
    assert made.task.positions == {"words": 9}


def test_a_value_loop_rekeys_and_forwards_the_bytes_as_they_came(bench: Benches) -> None:
    made = bench(REKEY, stores=())
    orders = ['{"user": "ann",  "n": 1}', '{"user": "bob", "n": 2}']
    process(made.task, batch("orders", orders))
    expected = [(b'"ann"', orders[0].encode()), (b'"bob"', orders[1].encode())]
    assert made.sent.by_topic["by-user"] == expected


@pytest.mark.parametrize("cuts", range(20))
def test_any_cut_of_the_input_gives_the_same_stores_and_outputs(bench: Benches, cuts: int) -> None:
    draw = random.Random(cuts)
    words = [f"w{draw.randrange(9)}" if draw.random() < 0.95 else "boom" for _ in range(300)]
    made, at = bench(COUNT), 0
    while at < len(words):
        size = draw.randrange(1, 40)
        made.task.offer(batch("words", words[at : at + size], first=at))
        at += len(words[at : at + size])
        while made.task.run(draw.randrange(1, 30)):
            pass
        if draw.random() < 0.3:
            made.commit(draw.randrange(1, 5))
        if draw.random() < 0.1:
            made.commit()
            made.again()
    assert made.counts() == Counter(w for w in words if w != "boom")
    while words[-1] == "boom":  # one that nothing follows holds the position
        words.pop()
    assert made.task.positions == {"words": len(words)}


def test_failed_agent_continues_behind_the_record(bench: Benches) -> None:
    heard: list[Failure] = []
    made = bench(COUNT, report=heard.append)
    process(made.task, batch("words", ["a", "boom", "a"]))
    assert (made.counts(), len(heard)) == ({"a": 2}, 1)
    assert str(heard[0]) == ("record failed: words-0 offset 1, task 1_0, count: ValueError: boom")


@pytest.mark.parametrize("source", [COUNT, REKEY], ids=["agent", "loop"])
def test_a_record_that_cannot_be_decoded_is_skipped_and_reported(
    bench: Benches, source: Source
) -> None:
    heard: list[Failure] = []
    made = bench(source, report=heard.append)
    good = b'{"user": "ann"}'
    process(made.task, batch(source.topic, [good, b"\xff\xfe", good]))
    assert [(f.offset, f.decode) for f in heard] == [(1, True)]
    assert made.task.positions == {source.topic: 3}


def test_failed_loop_continues_behind_the_record(bench: Benches) -> None:
    heard: list[Failure] = []
    made = bench(REKEY, stores=(), report=heard.append)
    good = b'{"user": "ann"}'
    process(made.task, batch("orders", [b"{}", good, b"{}", b"{}", good]))
    assert [f.offset for f in heard] == [0, 2, 3]
    assert len(made.sent.by_topic["by-user"]) == 2


@pytest.mark.parametrize(
    ("source", "bad", "words"),
    [
        (COUNT, "boom", {"on_error": FailureAction.STOP}),
        (COUNT, b"\xff", {"on_decode_error": FailureAction.STOP}),
        (REKEY, "{}", {"on_error": FailureAction.STOP}),
        (REKEY, b"\xff", {"on_decode_error": FailureAction.STOP}),
    ],
)
def test_stop_policy_ends_the_task_before_the_failed_record(
    bench: Benches, source: Source, bad: str | bytes, words: dict[str, FailureAction]
) -> None:
    made = bench(source, **words)
    with pytest.raises(TaskFailed, match=f"{source.topic}-0 offset 1"):
        process(made.task, batch(source.topic, [b'{"user": "ann"}', bad]))
    with pytest.raises(TaskFailed):
        made.task.run(1)


@pytest.mark.parametrize(
    "action", [each for each in FailureAction if each.value not in ("dlq", "retry")]
)
def test_each_failure_is_noted_with_its_reaction(bench: Benches, action: FailureAction) -> None:
    noted: list[Failure] = []
    made = bench(COUNT, on_error=action, noted=noted.append)
    with suppress(TaskFailed, TaskStopped):
        process(made.task, batch("words", ["a", "boom", "b", "boom"]))
    stops = action is not FailureAction.LOG
    assert [each.offset for each in noted] == ([1] if stops else [1, 3])
    assert {each.action for each in noted} == {action}


@pytest.mark.parametrize(
    ("source", "good", "bad"),
    [
        (COUNT, "a", "boom"),
        (COUNT, "a", b"\xff"),
        (REKEY, '{"user": 1}', "{}"),
        (REKEY, '{"user": 1}', "x"),
    ],
    ids=["agent", "agent decodes", "loop", "loop decodes"],
)
def test_consecutive_failures_hold_the_position_and_then_stop_the_task(
    bench: Benches, source: Source, good: str, bad: str | bytes
) -> None:
    heard: list[Failure] = []
    made = bench(source, consecutive_failures_max=3, report=heard.append)
    task, topic = made.task, source.topic
    process(task, batch(topic, [good, bad, bad]))
    assert task.positions == {topic: 1}
    process(task, batch(topic, [good], first=3))
    assert task.positions == {topic: 4}
    process(task, batch(topic, [bad], first=4))
    with pytest.raises(TaskStopped) as told:
        process(task, batch(topic, [bad, bad, good], offsets=[7, 8, 9], next_offset=10))
    assert task.positions == {topic: 4}
    assert [failure.offset for failure in heard] == [1, 2, 4, 7, 8]
    where = f"task stopped: 1_0, {topic}-0 offset 4: 3 records in a row failed, the last one at 8"
    assert str(told.value).startswith(where)
    assert str(told.value).endswith(
        "fix the code and start the workers again, or raise consecutive_failures_max if they may "
        "be skipped"
    )
    with pytest.raises(TaskStopped):
        task.run(1)


def test_stopped_task_commits_work_before_the_failures(bench: Benches) -> None:
    made = bench(COUNT, consecutive_failures_max=2)
    with pytest.raises(TaskStopped):
        process(made.task, batch("words", ["a", "boom", "boom", "a"]))
    made.task.close()
    assert made.commit().positions == {"words": 1}
    assert made.counts() == {"a": 1}


def test_body_catching_the_stop_of_the_task_moves_no_position(bench: Benches) -> None:
    """Nothing from 1 on was committed but the body's last words; and then 5 was committed."""
    seen: list[str] = []

    async def catches(stream: AsyncIterator[str]) -> None:
        while True:
            try:
                async for word in stream:
                    seen.append(word)
            except Exception:  # as a body of a user's may
                seen.append("caught")

    def refuses(raw: bytes | None) -> str:
        if raw == b"boom":
            raise ValueError(raw)
        return (raw or b"").decode()

    source = Source("words", coded(refuses), coded(refuses), agents=(AgentNode("count", catches),))
    made = bench(source, consecutive_failures_max=1)
    with pytest.raises(TaskStopped, match="records from 1 on are not committed"):
        process(made.task, batch("words", ["a", "boom", "b", "boom", "c"]))
    made.task.close()
    assert seen == ["a", "caught", "b", "caught", "c"]
    assert made.commit().positions == {"words": 1}


def test_failures_without_a_limit_neither_hold_nor_stop_the_task(bench: Benches) -> None:
    heard: list[Failure] = []
    made = bench(COUNT, consecutive_failures_max=None, report=heard.append)
    process(made.task, batch("words", ["boom"] * 2000))
    assert (made.task.positions, len(heard)) == ({"words": 2000}, 2000)


def test_failing_agent_holds_the_position_of_a_shared_topic(bench: Benches) -> None:
    async def fails(stream: AsyncIterator[Any]) -> None:
        async for _ in stream:
            raise ValueError

    two = (AgentNode("count", count), AgentNode("fails", fails))
    made = bench(Source("words", TEXT, TEXT, agents=two))
    process(made.task, batch("words", ["a"]))
    process(made.task, batch("words", ["a"] * 3, first=1))
    assert (made.task.positions, made.counts()) == ({"words": 0}, {"a": 4})


def test_branches_on_one_topic_have_separate_keys_and_failures(bench: Benches) -> None:
    by_user = keyed("users", lambda order: order["user"], "by-user")
    by_item = keyed("items", lambda order: order["item"], "by-item")
    as_it_is = Branch("copy", forward("copies"))
    heard: list[Failure] = []
    source = replace(REKEY, branches=(by_user, by_item, as_it_is))
    made = bench(source, stores=(), consecutive_failures_max=3, report=heard.append)
    orders = [
        b'{"user": 1, "item": 2}', b'{"item": 4}', b'{"user": 5}', b"x", b'{"item": 6}',
    ]  # fmt: skip
    process(made.task, batch("orders", orders))
    assert {topic: [key for key, _ in rows] for topic, rows in made.sent.by_topic.items()} == {
        "by-user": [b"1", b"5"],
        "by-item": [b"2", b"4", b"6"],
        "copies": [orders[0], orders[1], orders[2], orders[4]],
    }
    assert [(f.offset, f.operator, f.decode) for f in heard] == [
        (1, "users", False), (2, "items", False),
        (3, "users", True), (3, "items", True), (3, "copy", True), (4, "users", False),
    ]  # fmt: skip
    assert made.task.positions == {"orders": 3}, "users: the first of its streak"
    with pytest.raises(TaskStopped, match=r"offset 3: 3 records in a row failed, .* 5, users"):
        process(made.task, batch("orders", [b'{"item": 7}'], first=5))


def test_truncated_log_holds_no_position(bench: Benches) -> None:
    made = bench(COUNT)
    process(made.task, batch("words", ["boom"]))
    made.task.reset("words", 9)
    assert made.task.positions == {"words": 9}


@pytest.mark.parametrize("error", [TableNotInTask("no table"), NotFound("no topic")])
@pytest.mark.parametrize("in_agent", [True, False], ids=["agent", "loop"])
def test_wiring_error_ends_the_worker_instead_of_failing_the_record(
    bench: Benches, error: Exception, in_agent: bool
) -> None:
    def touch(_: Any) -> None:
        raise error

    async def body(stream: AsyncIterator[Any]) -> None:
        async for word in stream:
            touch(word)

    heard: list[Failure] = []
    agent = Source("words", TEXT, TEXT, agents=(AgentNode("a", body),))
    loop = Source("words", TEXT, TEXT, (keyed("buy", touch, "by-user"),))
    made = bench(agent if in_agent else loop, report=heard.append)
    with pytest.raises(UsageError, match=r"no t.* \(.*, words-0 offset 0, task 1_0\)") as told:
        process(made.task, batch("words", ["a"]))
    assert told.value.exit_code == 2
    assert not heard
    assert made.task.positions == {"words": 0}


def test_batch_of_old_records_may_move_the_position(bench: Benches) -> None:
    made = bench(COUNT)
    process(made.task, batch("words", ["a", "b"]))
    process(made.task, batch("words", ["a", "b"], next_offset=7))
    assert (made.task.positions, made.counts()) == ({"words": 7}, {"a": 1, "b": 1})


def test_returning_agent_body_ends_the_task(bench: Benches) -> None:
    async def once(stream: AsyncIterator[Any]) -> None:
        await anext(aiter(stream))

    made = bench(Source("words", TEXT, TEXT, agents=(AgentNode("once", once),)))
    with pytest.raises(TaskFailed, match="agent ended: once"):
        process(made.task, batch("words", ["a", "b"]))


async def keep(stream: AsyncIterator[Any]) -> None:
    """Return each word as it is, but for those that no codec takes."""
    async for word in stream:
        counts = RUNNING.get().stores["counts"]
        kept: Any = {"object": [object()], "large": "x" * RECORD_BYTES_MAX}.get(word, [word])
        counts.put(word, kept)
        if word == "later":
            kept.append(object())
        await DONE


KEEP = Source("words", TEXT, TEXT, agents=(AgentNode("keep", keep),))


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("object", "value cannot be encoded: store counts, key 'object', type list: TypeError: "),
        ("large", "value too large: store counts, key 'large', type str: "),
    ],
)
def test_value_refused_by_a_commit_is_named_with_possible_offsets(
    bench: Benches, word: str, what: str
) -> None:
    made = bench(KEEP)
    process(made.task, batch("words", ["a"]))
    made.commit()
    process(made.task, batch("words", ["b", word, "c"], first=1))
    sent = len(made.sent.by_topic["app-counts-changelog"])
    with pytest.raises(ValueRefused) as told:
        made.commit(1)
    assert str(told.value).startswith(what)
    assert str(told.value).endswith("(task 1_0, set since words-0 1-3)")
    assert len(made.sent.by_topic["app-counts-changelog"]) == sent, "b must not be there alone"


def test_value_refused_by_a_commit_ends_the_worker_under_stop_policy(
    bench: Benches,
) -> None:
    made = bench(KEEP, on_error=FailureAction.STOP)
    process(made.task, batch("words", ["object"]))
    with pytest.raises(TaskFailed, match=r"value cannot be encoded: .*: its policy is stop"):
        made.commit()


def test_rerun_interval_finds_the_record_of_a_refused_value(bench: Benches) -> None:
    heard: list[Failure] = []
    made = bench(KEEP, report=heard.append)
    process(made.task, batch("words", ["a", "object", "b"]))
    with pytest.raises(ValueRefused) as refused:
        made.commit()
    again = made.again(made.task.rerun(refused.value))
    process(again, batch("words", ["a", "object", "b"]))
    assert [(f.offset, type(f.error)) for f in heard] == [(1, ValueRefused)]
    made.commit()
    assert made.counts() == {"a": ["a"], "b": ["b"]}
    process(again, batch("words", ["object"], first=3))
    assert len(heard) == 1, "the interval ended with a commit behind it"
    with pytest.raises(ValueRefused):
        made.commit()


def test_values_are_checked_until_the_slowest_reader_passes_the_interval(
    bench: Benches,
) -> None:
    heard: list[Failure] = []
    made = bench(KEEP, report=heard.append)
    again = made.again(Rerun({"words": 2}, careful=True))
    process(again, batch("words", ["a"]))
    made.commit()
    process(again, batch("words", ["object"], first=1))
    assert [failure.operator for failure in heard] == ["keep"]
    made.commit()
    process(again, batch("words", ["object"], first=2))
    assert len(heard) == 2, "the first of a streak holds the position"


def test_value_changed_in_place_after_set_stops_the_task(bench: Benches) -> None:
    made = bench(KEEP)
    process(made.task, batch("words", ["later"]))
    with pytest.raises(ValueRefused) as refused:
        made.commit()
    process(made.again(made.task.rerun(refused.value)), batch("words", ["later"]))
    with pytest.raises(TaskStopped, match=r"task stopped: value cannot be .*in place") as stopped:
        made.commit()
    rerun = made.task.rerun(stopped.value)
    assert (rerun.stop, rerun.until, rerun.rows) == (stopped.value, {}, {})


# Rows that have left for a changelog without a commit.


REFUSED = ValueRefused("no")


def left_behind(made: Any) -> Rerun:
    """Go back to the last commit, behind a seal that was never committed."""
    process(made.task, batch("words", ["a", "b"]))
    made.commit()
    return overtaken(made, "b", "c")


def overtaken(made: Any, *interval: str) -> Rerun:
    """Seal an interval and go back, and restore the rows that have left."""
    sent = len(made.sent.by_topic["app-counts-changelog"])
    process(made.task, batch("words", interval, first=2))
    while made.task.seal(1) is None:
        pass
    rerun: Rerun = made.task.rerun(REFUSED)
    made.task.aborted()
    left = made.sent.by_topic["app-counts-changelog"][sent:]
    made.rows["counts"].write({ROW + key: value for key, value in left}, None)
    return rerun


def test_rows_that_left_without_a_commit_are_put_back_before_the_interval_runs_again(
    bench: Benches,
) -> None:
    """They counted twice: a restore reads them, and the committed offsets are before them."""
    made = bench(COUNT)
    rerun = left_behind(made)
    process(made.again(rerun), batch("words", ["b", "c"], first=2))
    assert made.counts() == {"a": 1, "b": 2, "c": 1}
    sent = len(made.sent.by_topic["app-counts-changelog"])
    made.commit(1)
    put_back = [(b'"b"', b"1"), (b'"c"', None)]
    assert made.sent.by_topic["app-counts-changelog"][sent:] == [
        *put_back, (b'"b"', b"2"), (b'"c"', b"1"),
    ]  # fmt: skip
    assert dict(made.rows["counts"].scan(ROW, None)) == {
        ROW + b'"a"': b"1", ROW + b'"b"': b"2", ROW + b'"c"': b"1",
    }  # fmt: skip


def test_rows_are_put_back_without_any_record(bench: Benches) -> None:
    """A task that stops at its last commit has that commit's state, also after a restart."""
    made = bench(COUNT)
    task = made.again(left_behind(made))
    assert task.dirty
    assert made.counts() == {"a": 1, "b": 1}
    made.commit()
    assert not task.dirty
    assert dict(made.sent.by_topic["app-counts-changelog"]) == {
        b'"a"': b"1", b'"b"': b"1", b'"c"': None,
    }  # fmt: skip
    made.again()
    assert made.counts() == {"a": 1, "b": 1}


def test_rows_of_a_commit_that_arrived_after_all_are_not_put_back(bench: Benches) -> None:
    made = bench(COUNT)
    rerun = left_behind(made)
    made.metadata = made.metadata._replace(positions={"words": 4})
    assert not made.again(rerun).dirty
    assert made.counts() == {"a": 1, "b": 2, "c": 1}


def test_rows_to_put_back_outlive_a_second_way_back(bench: Benches) -> None:
    """Below them are the rows of the first run."""
    made = bench(COUNT)
    made.again(left_behind(made))
    again = overtaken(made, "b", "d")
    assert again.rows["counts"] == {ROW + b'"b"': b"1", ROW + b'"c"': None, ROW + b'"d"': None}
    made.again(again)
    assert made.counts() == {"a": 1, "b": 1}


def test_going_back_reads_no_rows_while_none_has_left(bench: Benches) -> None:
    made = bench(KEEP)
    process(made.task, batch("words", ["a", "b", "object"]))
    with pytest.raises(ValueRefused) as refused:
        made.commit(1)
    assert made.task.rerun(refused.value).rows == {}


def test_task_is_dirty_until_all_work_is_sealed(bench: Benches) -> None:
    made = bench(COUNT)
    assert not made.task.dirty
    process(made.task, batch("words", ["a"]))
    assert made.task.dirty
    made.commit()
    assert not made.task.dirty
    made.task.stores["counts"].put("a", 9)
    assert made.task.dirty, "a body that waits has changed it meanwhile"


def test_store_read_failure_is_not_blamed_on_the_record(bench: Benches) -> None:
    async def read(stream: AsyncIterator[Any]) -> None:
        async for _ in stream:
            raise DiskFailed("disk full")

    heard: list[Failure] = []
    source = Source("words", TEXT, TEXT, agents=(AgentNode("r", read),))
    made = bench(source, report=heard.append)
    with pytest.raises(DiskFailed):
        process(made.task, batch("words", ["a"]))
    assert (heard, made.task.positions) == ([], {"words": 0})


@pytest.mark.parametrize("error", [DiskFailed("disk full"), TableNotInTask("no table")])
def test_fatal_error_in_an_exception_group_is_not_blamed_on_the_record(
    bench: Benches, error: Exception
) -> None:
    async def read(stream: AsyncIterator[Any]) -> None:
        async for _ in stream:
            raise ExceptionGroup("two", [ValueError("mine"), ExceptionGroup("one", [error])])

    source = Source("words", TEXT, TEXT, agents=(AgentNode("r", read),))
    heard: list[Failure] = []
    made = bench(source, report=heard.append)
    with pytest.raises(type(error), match=str(error)):
        process(made.task, batch("words", ["a"]))
    assert (heard, made.task.positions) == ([], {"words": 0})


def test_aborted_task_keeps_stores_at_the_last_commit(bench: Benches) -> None:
    made = bench(COUNT)
    process(made.task, batch("words", ["a"]))
    made.commit()
    process(made.task, batch("words", ["a", "b"], first=1))
    made.task.aborted()
    assert made.counts() == {"a": 1}


def test_two_agents_on_one_topic_commit_the_shared_position(bench: Benches) -> None:
    async def lazy(stream: AsyncIterator[Any]) -> None:
        async for _ in stream:
            pass

    made = bench(
        Source(
            "words",
            TEXT,
            TEXT,
            agents=(AgentNode("count", count), AgentNode("l", lazy)),
        )
    )
    process(made.task, batch("words", ["a", "b"]))
    assert made.task.positions == {"words": 2}


def test_records_offered_twice_are_run_once(bench: Benches) -> None:
    made = bench(COUNT)
    for some in (batch("words", ["a", "b"]), batch("words", ["b", "c", "d"], first=1)):
        made.task.offer(some)
    made.task.offer(batch("words", ["d"], first=3))
    while made.task.run(10):
        pass
    assert made.counts() == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_ended_or_closed_task_is_not_busy(bench: Benches) -> None:
    made = bench(COUNT)
    plan, task = made.plan, made.task
    store, given = task.stores, (made.sent, made.start, made.policy, made.metadata)
    closed, ended = Task(plan, 0, store, *given), Task(plan, 0, store, *given)  # not begun yet
    assert [closed.busy, ended.busy] == [True, True]
    closed.close()
    ended.end(ValueError("no"), "here")
    assert [closed.busy, ended.busy] == [False, False]
    ended.close()


def test_task_seals_and_resumes_the_highest_timestamp_of_each_topic(
    bench: Benches,
) -> None:
    """Topic b is ahead at 9, and a record of time 1 comes late: it must still follow the records of
    a up to 9.
    """
    lines = Source("lines", TEXT, TEXT, agents=(AgentNode("lines", count),))
    made = bench(COUNT, lines)
    made.task.offer(batch("words", ["a"], timestamps=[9]))
    made.task.run(10, made.task.plan.topics)
    assert made.task.high == {"lines": -1, "words": 9}
    made.metadata = made.commit()._replace(high=made.task.high)
    made.again()
    made.task.offer(batch("words", ["late"], first=1, timestamps=[1]))
    made.task.offer(batch("lines", ["x", "y"], timestamps=[5, 9]))
    made.task.run(2, made.task.plan.topics)
    assert made.task.taken == {"lines": 2, "words": 1}
    assert bench(COUNT).task.high == {"words": -1}


# Records that could not be read.


def unread(topic: str, values: Sequence[str], *odd: int, first: int = 0) -> Batch:
    """Return a batch in which the records at these indices cannot be read."""
    made = batch(topic, values, first)
    raw = [DecodeFailed("odd") if at in odd else value for at, value in enumerate(made.values)]
    return made._replace(values=raw, unreadable=True)  # type: ignore[arg-type]  # as it comes


def test_unreadable_record_fails_alone_at_each_reader(bench: Benches) -> None:
    failures: list[Failure] = []
    made = bench(COUNT, report=failures.append)
    process(made.task, unread("words", ["a", "b", "a"], 1))
    assert made.counts() == {"a": 2}
    assert [(f.offset, f.decode, str(f.error)) for f in failures] == [(1, True, "odd")]
    assert made.task.positions == {"words": 3}


def test_branch_skips_an_unreadable_record(bench: Benches) -> None:
    failures: list[Failure] = []
    made = bench(REKEY, stores=(), report=failures.append)
    order = '{"user": "ann"}'
    process(made.task, unread("orders", [order] * 4, 1, 2))
    assert made.sent.by_topic["by-user"] == [(b'"ann"', order.encode())] * 2
    assert [(f.offset, f.decode) for f in failures] == [(1, True), (2, True)]
    assert made.task.positions == {"orders": 4}


def test_raw_values_and_items_skip_an_unreadable_record(bench: Benches) -> None:
    """A raw value is handed on without a codec, and the key of an item is decoded before its
    value.
    """
    seen: list[Any] = []

    async def values(stream: Any) -> None:
        async for value in stream:
            seen.append(value)

    async def items(stream: Any) -> None:
        async for item in stream.items():
            seen.append(item)

    raw = codec(None, "raw")
    source = Source("words", raw, raw, agents=(AgentNode("v", values), AgentNode("i", items)))
    failures: list[Failure] = []
    made = bench(source, stores=(), report=failures.append)
    process(made.task, unread("words", ["a", "b", "c"], 0, 2))
    assert seen == [b"b", (b"b", b"b")]
    assert [(f.operator, f.offset) for f in failures] == [("v", 0), ("v", 2), ("i", 0), ("i", 2)]


@pytest.mark.parametrize("source", [COUNT, REKEY])
def test_ten_consecutive_unreadable_records_stop_their_task(bench: Benches, source: Source) -> None:
    made = bench(source)
    with pytest.raises(TaskStopped, match="offset 2: 10 records in a row failed"):
        process(made.task, unread(source.topic, ['{"user": "a"}'] * 20, *range(2, 20)))
    assert made.task.positions == {source.topic: 2}


def test_unreadable_record_ends_the_worker_under_stop_policy(
    bench: Benches,
) -> None:
    made = bench(COUNT, on_decode_error=FailureAction.STOP)
    with pytest.raises(TaskFailed, match="record cannot be decoded: words-0 offset 1, task 1_0"):
        process(made.task, unread("words", ["a", "b", "a"], 1))
