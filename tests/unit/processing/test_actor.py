"""processing/actor.py: bodies in asyncio tasks, which get their input within a turn."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from streamsx.errors import TaskFailed, UsageError
from streamsx.processing.batch import Batch
from streamsx.topology.nodes import AgentNode, Source
from tests.support.codecs import coded
from tests.unit.processing.conftest import process

Benches = Callable[..., Any]
Body = Callable[[AsyncIterator[Any]], Any]


def batch(*words: str, first: int = 0) -> Batch:
    raw, offsets = [word.encode() for word in words], range(first, first + len(words))
    return Batch("words", 0, raw, raw, offsets, offsets, None, offsets.stop)


def source(*bodies: Body) -> Source:
    agents = tuple(AgentNode(body.__name__, body) for body in bodies)
    return Source("words", coded(bytes.decode), coded(bytes.decode), agents=agents)


def test_chunk_is_processed_within_one_turn(bench: Benches) -> None:
    seen: list[str] = []

    async def body(stream: AsyncIterator[str]) -> None:
        async for word in stream:
            seen.append(word)

    made = bench(source(body))
    assert process(made.task, batch("a", "b")) == 2
    assert (seen, made.task.busy, made.task.positions) == (["a", "b"], False, {"words": 2})
    assert made.asked == [False], "the first time only, when it had just begun"


def test_two_agents_on_one_topic_alternate_by_chunks(bench: Benches) -> None:
    seen: list[str] = []

    async def one(stream: AsyncIterator[str]) -> None:
        async for word in stream:
            seen.append(f"1{word}")

    async def two(stream: AsyncIterator[str]) -> None:
        async for word in stream:
            seen.append(f"2{word}")

    made = bench(source(one, two))
    made.task.offer(batch("a", "b", "c", "d"))
    assert (made.task.run(2), made.task.run(2)) == (2, 2)
    assert seen == ["1a", "1b", "2a", "2b", "1c", "1d", "2c", "2d"]


def test_agent_body_sees_a_current_asyncio_task_for_itself(bench: Benches) -> None:
    seen: list[asyncio.Task[Any] | None] = []

    async def body(stream: AsyncIterator[str]) -> None:
        seen.append(asyncio.current_task())
        async for _ in stream:
            seen.append(asyncio.current_task())

    made = bench(source(body))

    async def turn() -> None:
        process(made.task, batch("a"))
        seen.append(asyncio.current_task())

    made.loop.run_until = made.loop.create_task(turn())
    made.turn()
    assert seen[0] is seen[1]
    assert seen[0] is not None
    assert seen[0].get_name() == "agent body of task 1_0"
    assert seen[2] is made.loop.run_until, "whose turn it is has its own again"


def test_agent_awaiting_a_foreign_future_keeps_only_one_task_busy(bench: Benches) -> None:
    async def sleepy(stream: AsyncIterator[str]) -> None:
        async for _ in stream:
            await asyncio.sleep(5)

    made = bench(source(sleepy))
    process(made.task, batch("a", "b"))
    assert (made.task.busy, made.task.positions) == (True, {"words": 0})
    made.asked.clear()
    for done in (1, 2):
        made.loop.now_s += 5
        made.turn()
        assert made.task.positions == {"words": done}
    assert (made.task.busy, made.asked) == (False, [False]), "it tells when it is through"


def test_timeouts_work_within_a_record_and_around_the_loop(bench: Benches) -> None:
    ends: list[str] = []

    async def body(stream: AsyncIterator[str]) -> None:
        try:
            async with asyncio.timeout(60):
                async for word in stream:
                    try:
                        async with asyncio.timeout(1):
                            await asyncio.sleep(2 if word == "slow" else 0)
                    except TimeoutError:
                        ends.append(word)
        except TimeoutError:
            ends.append("idle")
        async for word in stream:
            ends.append(word)

    made = bench(source(body))
    process(made.task, batch("quick", "slow"))
    made.turn()
    made.loop.now_s = 1.0
    made.turn()
    assert (ends, made.task.positions) == (["slow"], {"words": 2})
    made.loop.now_s = 60.0
    made.turn()
    process(made.task, batch("again", first=2))
    assert (ends, made.task.positions) == (["slow", "idle", "again"], {"words": 3})


def test_asyncio_task_group_works_within_a_record(bench: Benches) -> None:
    seen: list[str] = []

    async def look(word: str) -> None:
        await asyncio.sleep(1)
        seen.append(word)

    async def body(stream: AsyncIterator[str]) -> None:
        async for word in stream:
            async with asyncio.TaskGroup() as group:
                group.create_task(look(word))
                group.create_task(look(word.upper()))

    made = bench(source(body))
    process(made.task, batch("a"))
    made.turn()
    made.loop.now_s = 1.0
    made.turn()
    assert (seen, made.task.busy, made.task.positions) == (["a", "A"], False, {"words": 1})


def test_stream_can_be_read_from_another_asyncio_task(bench: Benches) -> None:
    """`asyncio.wait_for` does so before Python 3.12."""
    seen: list[str] = []

    async def body(stream: AsyncIterator[str]) -> None:
        records = aiter(stream)
        while True:
            seen.append(await asyncio.create_task(anext(records)))  # type: ignore[arg-type]

    made = bench(source(body))
    made.turn()
    process(made.task, batch("a", "b"))
    while made.task.busy:
        made.turn()
    assert (seen, made.task.positions) == (["a", "b"], {"words": 2})


def test_cancellation_racing_with_new_input_cancels_once(bench: Benches) -> None:
    """A waiting body is cancelled, and input comes before the cancellation reaches it. The
    cancelled wait must end once, and the next one must not.
    """
    seen: list[str] = []
    tasks: list[asyncio.Task[Any]] = []

    async def body(stream: AsyncIterator[str]) -> None:
        tasks.append(asyncio.current_task())  # type: ignore[arg-type]
        while True:
            try:
                async for word in stream:
                    seen.append(word)
            except asyncio.CancelledError:
                seen.append("cancelled")
                tasks[0].uncancel()

    made = bench(source(body))
    tasks[0].cancel()
    process(made.task, batch("a"))
    made.turn()
    process(made.task, batch("b", first=1))
    made.turn()
    assert seen == ["cancelled", "a", "b"]


def test_cancelled_reader_ends_and_the_agent_body_goes_on(bench: Benches) -> None:
    """The body waits for input before the reader notices: the body was cancelled instead."""
    seen: list[str] = []
    readers: list[asyncio.Task[Any]] = []

    async def body(stream: AsyncIterator[str]) -> None:
        readers.append(asyncio.ensure_future(anext(stream.__aiter__())))
        await asyncio.wait(readers, timeout=1)
        readers[0].cancel()
        async for word in stream:
            seen.append(word)

    made = bench(source(body))
    made.loop.now_s = 1.0
    made.turn()
    process(made.task, batch("a", "b"))
    made.turn()
    assert (seen, made.task.positions, readers[0].cancelled()) == (["a", "b"], {"words": 2}, True)


def test_second_concurrent_reader_of_a_stream_is_refused(bench: Benches) -> None:
    """The first reader would have waited for ever."""

    async def read(stream: AsyncIterator[str]) -> None:
        async for _ in stream:
            pass

    async def body(stream: AsyncIterator[str]) -> None:
        await asyncio.gather(read(stream), read(stream))

    made = bench(source(body))
    made.turn()
    with pytest.raises(UsageError, match="two asyncio tasks read one stream"):
        process(made.task, batch("a"))


def test_failed_agent_body_is_restarted_in_the_same_turn(bench: Benches) -> None:
    began: list[asyncio.Task[Any] | None] = []
    seen: list[str] = []

    async def body(stream: AsyncIterator[str]) -> None:
        began.append(asyncio.current_task())
        async for word in stream:
            if word == "bad":
                raise ValueError(word)
            seen.append(word)

    made = bench(source(body))
    process(made.task, batch("a", "bad", "b", "bad", "c"))
    assert (seen, made.task.positions, made.task.busy) == (["a", "b", "c"], {"words": 5}, False)
    assert (len(began), len(set(began))) == (3, 1)


def test_agent_that_cancels_itself_ends_the_task(bench: Benches) -> None:
    async def body(stream: AsyncIterator[str]) -> None:
        async for _ in stream:
            raise asyncio.CancelledError

    with pytest.raises(TaskFailed, match="agent ended: body: it cancelled itself"):
        process(bench(source(body)).task, batch("a"))


def test_closing_a_task_ends_agent_bodies_where_they_wait(bench: Benches) -> None:
    ended: list[str] = []

    def named(name: str, seconds: float) -> Body:
        async def body(stream: AsyncIterator[str]) -> None:
            try:
                async for _ in stream:
                    await asyncio.sleep(seconds)
            finally:
                ended.append(name)

        return body

    made = bench(source(named("waits for input", 0), named("waits for another", 60)))
    process(made.task, batch("a"))
    made.turn()
    made.task.close()
    made.turn()
    assert ended == ["waits for input", "waits for another"]


def test_internal_fault_reaches_the_loop_exception_handler(bench: Benches) -> None:
    async def body(stream: AsyncIterator[str]) -> None:
        async for _ in stream:
            raise ValueError

    def report(_: object) -> None:
        raise RuntimeError("report failed")

    met: list[dict[str, Any]] = []
    made = bench(source(body), report=report)
    made.loop.set_exception_handler(lambda _, context: met.append(context))
    process(made.task, batch("a"))
    made.turn()
    assert [str(context["exception"]) for context in met] == ["report failed"]


def test_function_for_errors_is_awaited_before_the_record_counts_as_failed(bench: Benches) -> None:
    reports: list[Any] = []

    async def body(stream: AsyncIterator[str]) -> None:
        async for word in stream:
            if word == "bad":
                raise ValueError(word)

    async def raised(_error: Exception) -> None:
        await asyncio.sleep(5)

    agent = AgentNode("body", body, raised=raised)
    words = Source("words", coded(bytes.decode), coded(bytes.decode), agents=(agent,))
    made = bench(words, report=reports.append)
    process(made.task, batch("a", "bad", "b"))
    assert (made.task.busy, made.task.positions, reports) == (True, {"words": 1}, [])
    made.loop.now_s = 5.0
    made.turn()
    assert (made.task.busy, made.task.positions, len(reports)) == (False, {"words": 3}, 1)


def test_task_closes_while_a_function_for_errors_waits(bench: Benches) -> None:
    async def body(stream: AsyncIterator[str]) -> None:
        async for word in stream:
            raise ValueError(word)

    async def raised(_error: Exception) -> None:
        await asyncio.sleep(5)

    agent = AgentNode("body", body, raised=raised)
    words = Source("words", coded(bytes.decode), coded(bytes.decode), agents=(agent,))
    made = bench(words)
    process(made.task, batch("a"))
    made.task.close()
    made.turn()
    assert made.task.positions == {"words": 0}


def test_function_for_errors_that_cancels_itself_leaves_a_note(bench: Benches) -> None:
    reports: list[Any] = []

    async def body(stream: AsyncIterator[str]) -> None:
        async for word in stream:
            raise ValueError(word)

    async def raised(_error: Exception) -> None:
        raise asyncio.CancelledError

    agent = AgentNode("body", body, raised=raised)
    words = Source("words", coded(bytes.decode), coded(bytes.decode), agents=(agent,))
    made = bench(words, report=reports.append)
    process(made.task, batch("a"))
    assert [each.error.__notes__ for each in reports] == [["its on_error cancelled itself"]]
