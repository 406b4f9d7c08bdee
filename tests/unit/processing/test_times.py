"""Stream time: each record finds the same time, whatever the cuts of batches.

The same holds for commits: a task that continues from one finds every record as it was.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

import orjson
import pytest

from streamsx.operators.forward import forward
from streamsx.operators.operator import chain
from streamsx.operators.rekey import rekey
from streamsx.processing.batch import Batch, StreamTimes
from streamsx.processing.inbox import RUNNING
from streamsx.state.layout import StoreNode
from streamsx.topology.nodes import AgentNode, Branch, Source
from tests.support.codecs import coded
from tests.unit.processing.conftest import process

Benches = Callable[..., Any]
Log = list[tuple[bytes, int]]
"""Values and timestamps of one topic."""
SEEN: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)
"""Agent -> topic and offset of a record -> the stream time that it found."""


def decode(raw: bytes | None) -> Any:
    return str(raw or b"", "utf8")


TEXT = coded(decode)


def encode(value: Any) -> bytes:
    return orjson.dumps(value)


def store(name: str) -> StoreNode:
    codec = coded(orjson.loads, encode)
    return StoreNode(name, f"app-{name}-changelog", codec, codec)


def agent(name: str) -> AgentNode:
    """Agent that keeps the stream time of each word, and sends it on; "boom" fails."""

    async def body(stream: AsyncIterator[Any]) -> None:
        async for word in stream:
            running = RUNNING.get()
            inbox = running.inbox
            assert inbox.batch is not None
            place = (inbox.batch.topic, inbox.batch.offsets[inbox.index])
            SEEN[name][place] = inbox.stream_time
            if word == "boom":
                raise ValueError(word)
            kept = running.stores[name]
            kept.put(word, [*(kept.get(word) or []), inbox.stream_time])
            running.to(f"of-{name}")(word.encode(), b"", inbox.batch.timestamps[inbox.index], None)

    return AgentNode(name, body)


def branch(name: str, place: int) -> Branch:
    return Branch(name, chain(rekey(lambda word: word[place], str.encode), forward(name)))


TWO = (
    Source(
        "one",
        TEXT,
        TEXT,
        (branch("x", 0), branch("y", 1)),
        (agent("a"), agent("b")),
    ),
    Source("two", TEXT, TEXT, agents=(agent("c"),)),
)
STORES = tuple(map(store, "abc"))


def drawn(draw: random.Random, records: int) -> Log:
    """Draw times mostly in order; some are late, some far ahead."""
    words = ["w", "wa", "wb", "xa", "boom", "boom"]
    late = [0] * 8 + [-50, 200]
    return [
        (draw.choice(words).encode(), max(0, 10 * n + draw.choice(late))) for n in range(records)
    ]


def batches(log: Log, topic: str, draw: random.Random) -> Iterator[Batch]:
    at = 0
    while at < len(log):
        values, times = zip(*log[at : at + draw.choice([1, 2, 30])], strict=True)
        n = at + len(values)
        yield Batch(topic, 0, values, values, times, range(at, n), None, n)
        at = n


def cut(bench: Benches, sources: Iterable[Source], logs: dict[str, Log], seed: int) -> Any:
    """Run all records through one task, cut by `seed`; it may be rebuilt after a commit."""
    SEEN.clear()
    draw = random.Random(seed)
    made = bench(*sources, stores=STORES, consecutive_failures_max=None)
    waiting = [each for topic, log in logs.items() for each in batches(log, topic, draw)]
    for each in waiting:
        made.task.offer(each)
    while made.task.run(draw.choice([1, 3, 50]), logs):
        if draw.random() < 0.2:
            made.commit(draw.randrange(1, 5))
    made.commit()
    rows = {name: dict(below.scan(b"", None)) for name, below in made.rows.items()}
    return {name: dict(of) for name, of in SEEN.items()}, rows, dict(made.sent.timed)


@pytest.mark.parametrize("seed", range(25))
def test_stream_times_sends_and_stores_do_not_depend_on_batch_cuts(
    bench: Benches, seed: int
) -> None:
    draw = random.Random(seed)
    logs = {"one": drawn(draw, 60), "two": drawn(draw, 40)}
    sources = TWO if seed % 2 else TWO[:1]
    logs = {source.topic: logs[source.topic] for source in sources}
    first, *others = (cut(bench, sources, logs, draw.randrange(1 << 30)) for _ in range(4))
    assert all(other == first for other in others)
    if not seed % 2:
        expected = list(accumulate((at for _, at in logs["one"]), max))
        assert [first[0]["a"]["one", n] for n in range(60)] == expected


@pytest.mark.parametrize("seed", range(15))
def test_reread_record_finds_the_same_stream_time(bench: Benches, seed: int) -> None:
    """Also with uncommitted failures: at each commit the task is thrown away."""
    draw, log = random.Random(seed), drawn(random.Random(seed), 80)
    SEEN.clear()
    made = bench(TWO[0], stores=STORES, consecutive_failures_max=60)
    expected = list(accumulate((at for _, at in log), max))
    while made.task.positions["one"] < len(log):
        position = made.task.positions["one"]
        for each in batches(log, "one", draw):
            made.task.offer(each)
        made.task.run(draw.randrange(1, 20), {"one"})
        found = {n: at for of in SEEN.values() for (_, n), at in of.items()}
        assert found == {n: expected[n] for n in found}
        sealed = made.commit()
        done = sealed.positions["one"]
        assert sealed.stream_time == max([-1, *expected[:done][-1:]])
        if draw.random() < 0.5:
            made.again()
        if done <= position:  # a streak: only more records end it
            log += [(b"wa", log[-1][1])] * 20
            expected += [expected[-1]] * 20


@pytest.mark.parametrize("cuts", [True, False])
def test_stream_time_of_a_mid_chunk_commit_matches_the_positions(
    bench: Benches, *, cuts: bool
) -> None:
    gates: list[asyncio.Future[None]] = []

    async def waits(stream: AsyncIterator[Any]) -> None:
        async for word in stream:
            if word == "wait":
                gates.append(asyncio.get_running_loop().create_future())
                await gates[-1]
            RUNNING.get().stores["a"].put(word, 1)

    made = bench(
        Source("one", TEXT, TEXT, agents=(AgentNode("a", waits),)),
        stores=STORES[:1],
    )
    values = [b"x", b"wait", b"y"]
    process(made.task, Batch("one", 0, values, values, [50, 40, 90], range(3), None, 3))
    sealed = made.commit()
    assert (made.task.stream_time, sealed.stream_time, sealed.positions) == (90, 50, {"one": 1})
    assert made.sent.row_times == [50]
    if cuts:
        made.task.cut()
    gates[0].set_result(None)
    made.turn()
    sealed = made.commit()
    assert (sealed.stream_time, sealed.positions["one"]) == ((50, 2) if cuts else (90, 3))


@pytest.mark.parametrize("source", ["body", "branch"])
def test_failure_streak_holds_the_stream_time_before_the_first_failure(
    bench: Benches, source: str
) -> None:
    parts: dict[str, Any] = {"agents": (agent("a"),)}
    if source == "branch":
        parts = {"branches": (branch("x", 5), branch("y", 0))}
    made = bench(Source("one", TEXT, TEXT, **parts), stores=STORES)
    for offset, word in enumerate([b"xxxxxx", b"boom", b"boom", b"xxxxxx"]):
        row = ([word], [word], [10 + 10 * offset], [offset])
        process(made.task, Batch("one", 0, *row, None, offset + 1))
        sealed = made.commit()
        held = offset in {1, 2}
        expected = (1, 10) if held else (offset + 1, 10 + 10 * offset)
        assert (sealed.positions["one"], sealed.stream_time) == expected


def test_commit_over_several_topics_returns_to_the_first_held_record(
    bench: Benches,
) -> None:
    made = bench(*TWO, stores=STORES)

    def offer(topic: str, value: bytes, offset: int, at: int) -> None:
        one = ([value], [value], [at], [offset])
        made.task.offer(Batch(topic, 0, *one, None, offset + 1))

    offer("one", b"wa", 0, 10)
    offer("two", b"boom", 0, 20)
    offer("one", b"wa", 1, 30)
    made.task.run(10, {"one", "two"})
    sealed = made.commit()
    assert (sealed.positions, sealed.stream_time) == ({"one": 2, "two": 0}, 10)
    offer("two", b"w", 1, 25)
    made.task.run(10, {"one", "two"})
    sealed = made.commit()
    assert (sealed.positions, sealed.stream_time) == ({"one": 2, "two": 2}, 30)


def test_stream_times_are_not_computed_unless_requested(bench: Benches) -> None:
    async def lazy(stream: AsyncIterator[Any]) -> None:
        async for _ in stream:
            pass

    made = bench(Source("one", TEXT, TEXT, agents=(AgentNode("a", lazy),)), stores=())
    process(made.task, Batch("one", 0, [b""] * 9, [b""] * 9, range(9), range(9), None, 9))
    made.commit()
    assert "_running" not in vars(made.task._newest["one"])


def test_stream_times_of_part_of_a_batch_with_holes() -> None:
    raws = [b""] * 5
    batch = Batch("one", 0, raws, raws, [99, 5, 3, 8, 99], [10, 12, 13, 17, 20], None, 30)
    times = StreamTimes(batch, 1, 4, 4)
    assert [times.at(index) for index in (1, 2, 3)] == [5, 5, 8]
    assert [times.below(offset) for offset in (10, 12, 13, 14, 17, 18, 30)] == [4, 4, 5, 5, 5, 8, 8]
    assert times.behind == 8
    assert StreamTimes(batch, 1, 1, 4).behind == StreamTimes(batch, 1, 1, 4).below(30) == 4
