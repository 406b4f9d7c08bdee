"""Other ways to send and to use tables than `await topic.send()` in a body: threads, tasks."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from streamsx import App
from streamsx.errors import StreamsxError, WrongThread
from streamsx.model import TopicPartition
from streamsx.processing.inbox import RecordMetadata
from streamsx.testing import TestDriver

Drive = Callable[..., TestDriver]
Use = Callable[[App], Any]


def deleted(app: App) -> None:
    del app.tables["t"]["seen"]


def put(app: App) -> None:
    app.tables["t"]["k"] = 1


USES: dict[str, Use] = {
    "send": lambda app: app.topics["out"].send(value=1),
    "send to a partition": lambda app: app.topics["out"].send(value=1, partition=0),
    "send soon": lambda app: app.topics["out"].send_soon(value=1),
    "app.send": lambda app: app.send("out", value=1),
    "a look": lambda app: app.tables["t"]["seen"],
    "get": lambda app: app.tables["t"].get("seen"),
    "put": put,
    "del": deleted,
    "in": lambda app: "seen" in app.tables["t"],
    "len": lambda app: len(app.tables["t"]),
    "iteration": lambda app: list(app.tables["t"].items()),
    "pop": lambda app: app.tables["t"].pop("seen", None),
    "setdefault": lambda app: app.tables["t"].setdefault("new", 1),
    "clear": lambda app: app.tables["t"].clear(),
}


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def waits_at_work(app: App, use: Use, pool: ThreadPoolExecutor) -> BaseException | None:
    """Run `use` in the pool while the body's thread stands still; return its exception."""
    return pool.submit(use, app).exception()


def in_a_thread(app: App, wait: Callable[[Use], Awaitable[Any]]) -> None:
    out, table = app.topic("out", partitions=1), app.Table("t", default=int)

    @app.agent("words", name="a", tables=[table])
    async def body(stream: Any) -> None:
        async for word in stream:
            table["seen"] += 1
            await out.send(value="own")
            await wait(USES[word])


@pytest.mark.parametrize("use", USES)
def test_use_from_another_thread_is_refused_during_a_body(
    app: App, drive: Drive, pool: ThreadPoolExecutor, use: str
) -> None:
    errors: list[BaseException | None] = []

    async def wait(use: Use) -> None:
        errors.append(waits_at_work(app, use, pool))

    in_a_thread(app, wait)
    driver = drive(app, partitions={"words": 1})
    driver.pipe("words", [use])
    assert [type(error) for error in errors] == [WrongThread]
    assert str(errors[0]).startswith(
        ("used from another thread: topic out,", "used from another thread: table t,")
    )
    assert [each.value for each in driver.read("out")] == ["own"]
    assert driver.table("t") == {"seen": 1}


@pytest.mark.parametrize("use", USES)
def test_thread_awaited_by_a_body_is_refused_and_fails_the_record(
    app: App, drive: Drive, use: str
) -> None:
    """`to_thread` copies the context of the body; an executor does not."""
    in_a_thread(app, lambda use: asyncio.to_thread(use, app))
    driver = drive(app, partitions={"words": 1}, raises=False)
    driver.pipe("words", [use, use])
    assert [type(each.error) for each in driver.failures] == [WrongThread, WrongThread]
    assert [each.value for each in driver.read("out")] == ["own"], "left before the first failure"
    assert driver.table("t") == {}


def in_a_timer(app: App, job: Callable[[], Awaitable[Any]]) -> None:
    app.topic("out", partitions=1)
    table = app.Table("t", default=int)

    @app.agent("words", name="a", tables=[table])
    async def body(stream: Any) -> None:
        async for word in stream:
            table[word] += 1

    @app.timer(1.0)
    async def tick() -> None:
        await job()


@pytest.mark.parametrize("use", USES)
def test_thread_of_a_timer_is_refused(app: App, drive: Drive, use: str) -> None:
    async def job() -> None:
        await asyncio.get_running_loop().run_in_executor(None, USES[use], app)

    in_a_timer(app, job)
    driver = drive(app, partitions={"words": 1})
    with pytest.raises(WrongThread, match="app shop"):
        driver.advance(1.0)
    assert driver.read("out") == []


def test_bound_send_kept_by_a_thread_works_after_the_turn_of_the_body(
    app: App, drive: Drive, pool: ThreadPoolExecutor
) -> None:
    """The bound `send` was kept by a thread: it has to check again which task is current."""
    kept: list[Any] = []
    out = app.topic("out", partitions=1)

    @app.agent("words", name="a")
    async def body(stream: Any) -> None:
        async for _ in stream:
            await out.send(value="first")
            kept.append(out.send)

    driver = drive(app, partitions={"words": 1})
    driver.pipe("words", ["w"])
    assert kept[0](value="by the test's own thread").done()
    assert len(driver.read("out")) == 2


# -- tasks of asyncio


async def waited(sent: Any) -> Any:
    done, pending = await asyncio.wait([sent])
    assert not pending
    return done.pop().result()


async def grouped(sent: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        made = group.create_task(sent)
    return made.result()


async def completed(sent: Any) -> Any:
    return await next(iter(asyncio.as_completed([sent])))


async def gathered(sent: Any) -> Any:
    return (await asyncio.gather(sent))[0]


async def plainly(sent: Any) -> Any:
    return await sent


WAYS: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "await": plainly,
    "ensure_future": asyncio.ensure_future,
    "create_task": lambda sent: asyncio.get_running_loop().create_task(sent, name="sends"),
    "asyncio.create_task": asyncio.create_task,
    "wait_for": lambda sent: asyncio.wait_for(sent, 5),
    "gather": gathered,
    "wait": waited,
    "as_completed": completed,
    "shield": asyncio.shield,
    "TaskGroup": grouped,
}


@pytest.mark.parametrize("within", ["agent", "timer"])
@pytest.mark.parametrize("way", WAYS)
def test_send_works_in_every_form_and_returns_record_metadata(
    app: App, drive: Drive, way: str, within: str
) -> None:
    """Each form is sent twice, because the second `send` of a body takes a faster path."""
    told: list[Any] = []
    out = app.topic("out", partitions=1)

    async def sends() -> None:
        told.append(await (await WAYS[way](out.send(value=len(told)))))

    @app.agent("words", name="a")
    async def body(stream: Any) -> None:
        async for _ in stream:
            await sends()

    @app.timer(1.0)
    async def tick() -> None:
        if within == "timer":
            await sends()

    driver = drive(app, partitions={"words": 1}, now=100.0)
    if within == "agent":
        driver.pipe("words", [("k", "w", 100.0)] * 2)
    else:
        driver.advance(2.0)
    times = [100_000, 100_000] if within == "agent" else [101_000, 102_000]
    tp = TopicPartition("out", 0)
    assert told == [RecordMetadata("out", 0, tp, n, at) for n, at in enumerate(times)]
    assert [each.value for each in driver.read("out")] == [0, 1]


def test_send_returns_a_done_future(app: App, drive: Drive) -> None:
    app.topic("out", partitions=1)
    driver = drive(app)
    sent = app.send("out", value=1)
    called: list[Any] = []
    sent.add_done_callback(called.append)
    assert called == [sent]
    assert (sent.done(), sent.cancelled(), sent.cancel(), sent.exception()) == (
        True, False, False, None,
    )  # fmt: skip
    assert sent.remove_done_callback(called.append) == 0
    assert len(driver.read("out")) == 1


def test_send_error_is_raised_before_anything_is_sent(app: App, drive: Drive) -> None:
    out = app.topic("out", partitions=1)
    errors: list[BaseException] = []

    @app.timer(1.0)
    async def tick() -> None:
        try:
            await asyncio.create_task(out.send(value=1, partition=9))  # type: ignore[arg-type]  # a future
        except StreamsxError as error:
            errors.append(error)

    driver = drive(app)
    driver.advance(1.0)
    assert "no such partition: out-9" in str(errors[0])
    assert driver.read("out") == []
