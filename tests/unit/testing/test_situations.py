"""Situations that apps of other stream processors have met, in an agent: asyncio, processes, times.

tests/faults.md says which.
"""

import asyncio
import contextvars
import multiprocessing
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from streamsx import App
from streamsx.errors import TopologyError
from streamsx.testing import TestDriver

Drive = Callable[..., TestDriver]
Form = Callable[[], Awaitable[object]]


@pytest.fixture
def drive() -> Iterator[Drive]:
    made: list[TestDriver] = []

    def start(app: App, **options: Any) -> TestDriver:
        made.append(TestDriver(app, **options))
        return made[-1]

    yield start
    for driver in made:
        driver.close()


# -- what libraries need of asyncio


async def has_a_task() -> None:
    assert asyncio.current_task() is not None


async def ends_by_timeout() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await asyncio.sleep(5)


async def groups() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0.01))
        group.create_task(asyncio.sleep(0))


async def queues() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()
    queue.put_nowait(1)
    assert await queue.get() == 1


async def locks() -> None:
    lock = asyncio.Lock()
    async with lock:
        await asyncio.sleep(0)


FORMS: dict[str, Form] = {
    "current_task": has_a_task,
    "timeout": ends_by_timeout,
    "TaskGroup": groups,
    "Queue": queues,
    "Lock": locks,
}


@pytest.mark.parametrize("form", FORMS)
def test_body_may_await_any_asyncio_form_between_table_read_and_write(
    drive: Drive, form: str
) -> None:
    """Twice, so that a record comes behind one that waited."""
    app = App("shop")
    table = app.Table("t", default=int)

    @app.agent("words", name="a")
    async def body(stream: Any) -> None:
        async for word in stream:
            before = table[word]
            await FORMS[form]()
            table[word] = before + 1

    driver = drive(app, partitions={"words": 1})
    driver.pipe("words", ["w", "w"])
    driver.advance("1s")
    assert driver.table("t") == {"w": 2}


def test_context_variable_is_per_body_and_lasts_across_records(
    drive: Drive,
) -> None:
    app, kept = App("shop"), contextvars.ContextVar("kept", default=0)
    told: list[tuple[int, int]] = []

    @app.agent("words", name="a")
    async def body(stream: Any) -> None:
        async for n in stream:
            told.append((n, kept.get()))
            kept.set(n)

    driver = drive(app, partitions={"words": 2})
    for partition in (0, 1):
        driver.pipe("words", [1 + partition, 3 + partition], partition=partition)
    assert told == [(1, 0), (3, 1), (2, 0), (4, 2)]
    assert kept.get() == 0


def test_session_around_a_body_loop_is_closed_when_the_task_ends() -> None:
    app, told = App("shop"), list[str]()

    class Session:
        async def __aenter__(self) -> None:
            told.append("opened")

        async def __aexit__(self, *_: object) -> None:
            await asyncio.sleep(0)
            told.append("closed")

    @app.agent("words", name="a")
    async def body(stream: Any) -> None:
        async with Session():
            async for word in stream:
                told.append(word)

    with TestDriver(app, partitions={"words": 1}) as driver:
        driver.pipe("words", ["w"])
        assert told[-2:] == ["opened", "w"]
    assert told[-3:] == ["opened", "w", "closed"]
    assert told.count("closed") == 1


def test_body_can_use_a_process_pool(drive: Drive) -> None:
    app = App("shop")
    table = app.Table("t", default=int)
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(1, mp_context=context) as pool:

        @app.agent("words", name="a", tables=[table])
        async def body(stream: Any) -> None:
            async for n in stream:
                table["sum"] += await asyncio.get_running_loop().run_in_executor(pool, abs, n)

        driver = drive(app, partitions={"words": 1}, wait_s=30)
        driver.pipe("words", [-1, -2, -3])
        assert driver.table("t") == {"sum": 6}


def test_asyncio_tasks_of_a_body_write_the_table_also_after_the_record(
    drive: Drive,
) -> None:
    app, left = App("shop"), list[asyncio.Task[None]]()
    table, out = app.Table("t", default=int), app.topic("out", partitions=1)

    async def add(key: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        table[key] += 1
        await out.send(value=key)

    @app.agent("words", name="a", tables=[table])
    async def body(stream: Any) -> None:
        async for word in stream:
            await asyncio.gather(*(add(f"{word}{n}", 0.1) for n in range(3)))
            left.append(asyncio.create_task(add("later", 3)))

    driver = drive(app, partitions={"words": 1})
    driver.pipe("words", ["a", "b"])
    driver.advance("1s")
    six = ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert driver.table("t") == dict.fromkeys(six, 1)
    driver.advance("5s")
    assert driver.table("t") == {**dict.fromkeys(six, 1), "later": 2}
    assert sorted(each.value for each in driver.read("out")) == [*six, "later", "later"]


# -- how a body ends


def test_body_starting_a_second_loop_continues_behind_the_record(
    drive: Drive,
) -> None:
    app = App("shop")
    table = app.Table("t", default=int)

    @app.agent("words", name="a")
    async def body(stream: Any) -> None:
        while True:
            async for n in stream:
                table["n"] += n
                if n == 2:
                    break

    driver = drive(app, partitions={"words": 1})
    driver.pipe("words", [1, 2, 3, 2, 4])
    assert driver.table("t") == {"n": 12}


# -- apps beside each other


def test_two_apps_in_one_process_have_separate_tables_and_topics() -> None:
    drivers, tables = list[TestDriver](), list[Any]()

    def made(name: str) -> App:
        app = App(name)
        table = app.Table("t", default=int)
        tables.append(table)

        @app.agent("words", name="a")
        async def body(stream: Any) -> None:
            async for word in stream:
                table[word] += 1

        return app

    for name in ("one", "two"):
        drivers.append(TestDriver(made(name), partitions={"words": 1}))
    drivers[0].pipe("words", ["a"])
    drivers[1].pipe("words", ["b", "b"])
    assert [driver.table("t") for driver in drivers] == [{"a": 1}, {"b": 2}]
    assert [dict(table) for table in tables] == [{"a": 1}, {"b": 2}]
    for driver in drivers:
        driver.close()


def test_table_of_another_app_is_refused_by_name(drive: Drive) -> None:
    other = App("other").Table("theirs", default=int)
    app = App("shop")

    @app.agent("words", name="a")
    async def body(stream: Any) -> None:
        async for word in stream:
            other[word] += 1

    with pytest.raises(TopologyError, match="theirs"):
        drive(app, partitions={"words": 1}).pipe("words", ["w"])


# -- times

TIMES = (-0.001, 0.0, 1_700_000_000.0, 1_700_000_000.0 / 1000, 1.7e12, 253_402_300_800.0, -5.0)


def test_record_of_any_timestamp_passes_through_a_sink_and_a_group_by(drive: Drive) -> None:
    """None, seconds for milliseconds, microseconds, far ahead, before 1970."""
    app, told = App("shop"), list[Any]()
    out = app.topic("out", partitions=1)

    @app.agent("words", name="a", sink=[out])
    async def body(stream: Any) -> Any:
        async for event in stream.events():
            yield event.value

    @app.agent("words", name="g")
    async def grouped(stream: Any) -> None:
        async for event in stream.group_by(str, name="g").events():
            told.append((event.value, event.message.timestamp))

    driver = drive(app, partitions={"words": 1})
    driver.pipe("words", [(None, n, at) for n, at in enumerate(TIMES)])
    assert [each.value for each in driver.read("out")] == list(range(len(TIMES)))
    assert [each.timestamp for each in driver.read("out")] == list(TIMES)
    assert sorted(value for value, _ in told) == list(range(len(TIMES)))
