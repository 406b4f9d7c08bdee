"""processing/reader.py: each reader of a topic has a position of its own."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from streamsx.errors import TaskStopped
from streamsx.processing.batch import Batch
from streamsx.processing.failure_policy import Failure
from streamsx.processing.inbox import RUNNING
from streamsx.processing.task import TaskMetadata
from streamsx.topology.nodes import AgentNode, Source, reader_name
from tests.support.codecs import coded
from tests.unit.processing.conftest import process
from tests.unit.processing.test_task import TEXT, batch, keyed

Benches = Callable[..., Any]
SLOW, FAST = reader_name("slow"), reader_name("fast")


class Seen:
    """Offsets that each agent has processed, and the stream times that it found."""

    def __init__(self) -> None:
        self.offsets: defaultdict[str, list[int]] = defaultdict(list)
        self.times: dict[tuple[str, int], int] = {}

    def agent(self, name: str, act: Callable[[str], Any] = lambda _: None) -> AgentNode:
        """Make an agent that notes each record for which `act` does not raise."""

        async def body(stream: AsyncIterator[Any]) -> None:
            async for word in stream:
                inbox = RUNNING.get().inbox
                assert inbox.batch is not None
                offset = inbox.batch.offsets[inbox.index]
                self.times[name, offset] = inbox.stream_time
                if (waits := act(word)) is not None:
                    await waits
                self.offsets[name].append(offset)

        return AgentNode(name, body)


def restart(made: Any) -> Any:
    """Commit, end the task, and continue with another one."""
    made.commit()
    made.task.close()
    made.turn()
    return made.again()


def bad(word: str) -> None:
    if word == "bad":
        raise ValueError(word)


def source_of(*agents: AgentNode) -> Source:
    return Source("words", TEXT, TEXT, agents=agents)


def test_reader_ahead_of_a_slow_reader_skips_records_already_done(bench: Benches) -> None:
    seen, gate = Seen(), asyncio.Event()
    slow = seen.agent("slow", lambda word: gate.wait() if word == "wait" else None)
    made = bench(source_of(seen.agent("fast"), slow), stores=())
    words = batch("words", ["a", "wait", "b", "c"])
    process(made.task, words)
    sealed = made.commit()
    assert (sealed.positions, sealed.readers) == ({"words": 1}, {"words": {FAST: 4}})

    process(restart(made), words)
    gate.set()
    made.turn()
    assert seen.offsets == {"fast": [0, 1, 2, 3], "slow": [0, 1, 2, 3]}
    sealed = made.commit()
    assert (sealed.positions, sealed.readers) == ({"words": 4}, {})


def test_failure_streak_of_one_reader_holds_no_other_reader(bench: Benches) -> None:
    seen = Seen()
    made = bench(source_of(seen.agent("fast"), seen.agent("slow", bad)), stores=())
    process(made.task, batch("words", ["a", "bad", "bad"]))
    sealed = made.commit()
    assert (sealed.positions, sealed.readers) == ({"words": 1}, {"words": {FAST: 3}})
    process(made.again(), batch("words", ["bad", "bad", "b"], first=1))
    assert seen.offsets == {"fast": [0, 1, 2, 3], "slow": [0, 3]}


@pytest.mark.parametrize("poison", ["x", "y"], ids=["agent", "branch"])
def test_abandoned_failure_streak_holds_nothing_and_is_not_counted(
    bench: Benches, poison: str
) -> None:
    def key_of(word: str) -> None:
        if word == "y":
            raise ValueError(word)

    def fails(word: str) -> None:
        if word == "x":
            raise ValueError(word)

    agents = (Seen().agent("fast"), Seen().agent("slow", fails))
    source = replace(source_of(*agents), branches=(keyed("loop", key_of, "by"),))
    made = bench(source, stores=(), consecutive_failures_max=3)
    assert not made.task.holds("words")
    process(made.task, batch("words", ["a", poison, poison]))
    assert (made.task.holds("words"), made.task.positions) == (True, {"words": 1})
    made.task.give_up("words")
    assert (made.task.holds("words"), made.task.positions) == (False, {"words": 3})
    process(made.task, batch("words", [poison, poison], first=3))
    assert made.task.positions == {"words": 3}
    with pytest.raises(TaskStopped):
        process(made.task, batch("words", [poison], first=5))
    assert not made.task.holds("words")


@pytest.mark.parametrize("order", ["af", "fa"], ids=["ahead of it", "behind it"])
def test_reader_stopping_the_task_leaves_the_other_reader_in_place(
    bench: Benches, order: str
) -> None:
    seen = Seen()
    agents = {"a": seen.agent("fast"), "f": seen.agent("slow", bad)}
    source = source_of(*(agents[each] for each in order))
    made = bench(source, stores=(), consecutive_failures_max=3)
    words = batch("words", ["a", "b", *["bad"] * 3, "c"])
    with pytest.raises(TaskStopped):
        process(made.task, words)
    assert made.commit().positions == {"words": 2 if order == "af" else 0}
    made.task.close()
    mended = made.plan = replace(made.plan, sources=(source_of(agents["a"], seen.agent("slow")),))
    assert mended.sources[0].readers == {FAST: "fast", SLOW: "slow"}
    process(made.again(), words)
    assert seen.offsets == {"fast": [0, 1, 2, 3, 4, 5], "slow": [0, 1, 2, 3, 4, 5]}


@pytest.mark.parametrize("seed", range(20))
def test_each_reader_does_each_record_once_over_any_cut_and_restart(
    bench: Benches, seed: int
) -> None:
    """Each reader fails on records of its own, sometimes on the last ones of the log."""
    rng, heard = random.Random(seed), list[Failure]()
    names = ["one", "two", "three", "four"]
    values = [
        " ".join(name for name in names if rng.random() < 0.3).encode() or b"-" for _ in range(60)
    ]

    def fails(name: str, word: str) -> None:
        if name in word.split():
            raise ValueError(name)

    seen = Seen()
    bodies = [seen.agent(name, partial(fails, name)) for name in names[2:]]
    branches = [keyed(name, partial(fails, name), f"by-{name}") for name in names[:2]]
    source = Source("words", TEXT, coded(TEXT.decode), tuple(branches), tuple(bodies))
    made = bench(source, stores=(), consecutive_failures_max=50, report=heard.append)
    offsets = sorted(rng.sample(range(200), len(values)))
    log = Batch("words", 0, values, values, offsets, offsets, None, 200)
    while made.task.taken["words"] < 200:
        made.task.offer(log)
        made.task.run(rng.randrange(1, 25), ["words"])
        if rng.random() < 0.5:
            restart(made)
    for name in names:
        sound = [n for n, value in zip(offsets, values, strict=True) if name.encode() not in value]
        sent = made.sent.timed[f"by-{name}"]
        assert (seen.offsets[name] or [at for _, at in sent]) == sound


def test_reader_finds_the_same_stream_time_after_a_restart(
    bench: Benches,
) -> None:
    times = [10, 50, 20, 90, 30, 60]
    words = batch("words", ["a", "bad", "bad", "b", "bad", "c"], timestamps=times)
    whole, cut = Seen(), Seen()
    made = bench(source_of(whole.agent("fast"), whole.agent("slow", bad)), stores=())
    process(made.task, words)
    again = bench(source_of(cut.agent("fast"), cut.agent("slow", bad)), stores=())
    for limit in (3, 3, 5):
        again.task.offer(words)
        again.task.run(limit, ["words"])
        restart(again)
    assert cut.times == whole.times
    assert (cut.offsets, again.task.stream_time) == (whole.offsets, 90)


def test_new_reader_begins_at_the_offset_and_removed_reader_holds_none(
    bench: Benches,
) -> None:
    seen = Seen()
    made = bench(source_of(seen.agent("fast"), seen.agent("slow", bad)), stores=())
    words = batch("words", ["a", "bad", "bad"])
    process(made.task, words)
    made.commit()
    made.plan = replace(made.plan, sources=(source_of(seen.agent("fast"), seen.agent("new")),))
    process(made.again(), words)
    assert seen.offsets == {"fast": [0, 1, 2], "slow": [0], "new": [1, 2]}
    sealed = made.commit()
    assert (sealed.positions, sealed.readers) == ({"words": 3}, {})


def ahead(bench: Benches, seen: Seen) -> Any:
    """Make a task at offset 5 of which one reader is at 8."""
    made = bench(source_of(seen.agent("fast"), seen.agent("slow")), stores=())
    made.metadata = TaskMetadata({"words": 5}, readers={"words": {FAST: 8, "gone": 9}})
    made.again()
    return made


def test_reader_ahead_stays_ahead_when_the_log_start_moves(bench: Benches) -> None:
    seen = Seen()
    made = ahead(bench, seen)
    made.task.reset("words", 7)
    assert made.commit().readers == {"words": {FAST: 8}}
    process(made.task, batch("words", ["x"] * 3, first=7))
    assert seen.offsets == {"fast": [8, 9], "slow": [7, 8, 9]}


def test_reader_ahead_starts_over_with_the_others_on_a_recreated_log(bench: Benches) -> None:
    seen = Seen()
    made = ahead(bench, seen)
    made.task.reset("words", 0)
    assert made.commit().readers == {}
    process(made.task, batch("words", ["x"] * 3))
    assert seen.offsets == {"fast": [0, 1, 2], "slow": [0, 1, 2]}


def test_record_in_progress_of_an_old_log_is_not_ahead_in_the_new_log(bench: Benches) -> None:
    seen, gate = Seen(), asyncio.Event()
    made = bench(source_of(seen.agent("fast"), seen.agent("slow", lambda _: gate.wait())))
    process(made.task, batch("words", ["x"] * 3, first=0, offsets=range(90, 93), next_offset=93))
    made.task.reset("words", 0)
    gate.set()
    made.turn()
    sealed = made.commit()
    assert (sealed.positions, sealed.readers) == ({"words": 0}, {})


def test_reader_ahead_skips_holes_and_empty_batches(bench: Benches) -> None:
    seen = Seen()
    made = ahead(bench, seen)
    process(made.task, batch("words", [], first=5, next_offset=6))
    process(made.task, batch("words", ["x"], first=6, next_offset=11))
    assert made.task.positions == {"words": 11}
    assert seen.offsets == {"slow": [6]}
    assert made.commit().readers == {}


def test_task_is_dirty_when_a_faster_reader_advances(bench: Benches) -> None:
    seen, gate = Seen(), asyncio.Event()
    slow = seen.agent("slow", lambda word: gate.wait() if word == "wait" else None)
    made = bench(source_of(seen.agent("fast"), slow), stores=())
    process(made.task, batch("words", ["wait", "b"]))
    assert made.task.dirty
    made.commit()
    assert not made.task.dirty
    made.task.uncommitted()
    assert made.task.dirty


def test_branch_ahead_skips_records_already_sent(bench: Benches) -> None:
    """One of two branches fails on the last record: the other one sends it once."""
    heard: list[Failure] = []
    source = Source(
        "orders",
        TEXT,
        coded(str),
        (keyed("one", lambda _: 1 // 0, "by-one"), keyed("two", str, "by-two")),
    )
    made = bench(source, stores=(), report=heard.append)
    orders = batch("orders", ["x", "y"])
    for _ in range(3):
        process(made.task, orders)
        restart(made)
    sealed = made.metadata
    assert Counter(made.sent.by_topic.keys()) == {"by-two": 1}
    assert len(made.sent.by_topic["by-two"]) == 2
    assert sealed.readers == {"orders": {reader_name("two"): 2}}
    assert [each.operator for each in heard] == ["one"] * 6


def test_branch_stopping_the_task_keeps_the_progress_of_other_branches(
    bench: Benches,
) -> None:
    source = Source(
        "orders",
        TEXT,
        coded(str),
        (
            keyed("a", str, "by-a"),
            keyed("b", lambda _: 1 // 0, "by-b"),
            keyed("c", str, "by-c"),
        ),
    )
    made = bench(source, stores=(), consecutive_failures_max=2)
    orders = batch("orders", ["x", "y", "z"])
    with pytest.raises(TaskStopped):
        process(made.task, orders)
    sealed = made.commit()
    positions = {reader_name("a"): 2, reader_name("c"): 1}
    assert (sealed.positions, sealed.readers) == ({"orders": 0}, {"orders": positions})
    made.plan = replace(made.plan, sources=(replace(source, branches=source.branches[::2]),))
    process(made.again(), orders)
    assert [len(made.sent.by_topic[topic]) for topic in ("by-a", "by-c")] == [3, 3]
