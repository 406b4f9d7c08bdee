"""Apps under exactly-once in a test driver: uncommitted records are never visible."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamsx.app.app import App
from streamsx.errors import TaskFailed, UsageError
from streamsx.testing import TestDriver

Drive = Callable[..., TestDriver]


@pytest.fixture
def drive() -> Iterator[Drive]:
    made: list[TestDriver] = []

    def start(app: App, **options: Any) -> TestDriver:
        made.append(TestDriver(app, **options))
        return made[-1]

    yield start
    for driver in made:
        driver.close()


async def nothing(_: int) -> None:
    """Do nothing after an output."""


def adding(
    behind: Callable[[int], Any] = nothing,
    *,
    table: bool = True,
    by_key: bool = False,
    guarantee: str = "exactly_once",
) -> App:
    """Return an app that sends the total of all amounts with each; `behind` follows."""
    app = App(
        "bank",
        topic_partitions=1,
        processing_guarantee=guarantee,
        on_error="dlq",
        store="memory://",
    )
    totals = app.Table("totals", default=int) if table else {"all": 0}
    out = app.topic("out")

    @app.agent(app.topic("in", value_type=int))
    async def add(amounts: Any) -> None:
        async for amount in amounts.group_by(lambda _: "all", name="all") if by_key else amounts:
            totals["all"] += amount
            await out.send(value=amount)
            await behind(amount)

    return app


async def odd_fails(amount: int) -> None:
    if amount % 2:
        raise ValueError(amount)


def values(driver: TestDriver, topic: str) -> list[Any]:
    return [each.value for each in driver.read(topic)]


@pytest.mark.parametrize("table", [True, False])
def test_outputs_of_a_failed_record_are_undone_with_it(drive: Drive, table: bool) -> None:
    driver = drive(adding(odd_fails, table=table), raises=False)
    driver.pipe("in", [1, 2, 3, 4])
    assert values(driver, "out") == [2, 4]
    assert values(driver, "bank-dlq") == [1, 3]
    assert [each.offset for each in driver.failures] == [0, 2]


def test_outputs_of_a_failed_record_stay_at_least_once(drive: Drive) -> None:
    driver = drive(adding(odd_fails, table=False, guarantee="at_least_once"), raises=False)
    driver.pipe("in", [1, 2, 3, 4])
    assert values(driver, "out") == [1, 2, 3, 4]


def test_outputs_are_read_once_committed(drive: Drive) -> None:
    driver = drive(adding(), commit=False)
    driver.pipe("in", [1, 2])
    assert values(driver, "out") == []
    assert values(driver, "in") == [1, 2], "the test itself has written them"
    driver.commit()
    assert values(driver, "out") == [1, 2]


def test_restart_drops_outputs_and_dead_letters_that_are_not_committed(drive: Drive) -> None:
    driver = drive(adding(odd_fails), commit=False, raises=False)
    driver.pipe("in", [2])
    driver.commit()
    driver.pipe("in", [3, 4])
    driver.restart()
    driver.restart()
    assert (values(driver, "out"), values(driver, "bank-dlq")) == ([2], [])
    driver.commit()
    assert (values(driver, "out"), values(driver, "bank-dlq")) == ([2, 4], [3])
    assert driver.table("totals") == {"all": 6}


def test_restart_drops_repartition_records_that_are_not_committed(drive: Drive) -> None:
    driver = drive(adding(by_key=True), commit=False)
    driver.pipe("in", [5])
    driver.commit()
    driver.pipe("in", [10])
    driver.restart()
    driver.commit()
    assert driver.table("totals") == {"all": 15}
    assert values(driver, "out") == [5, 10]


def test_restart_at_least_once_repeats_repartition_records(drive: Drive) -> None:
    driver = drive(adding(by_key=True, guarantee="at_least_once"), commit=False)
    driver.pipe("in", [5])
    driver.commit()
    driver.pipe("in", [10])
    driver.restart()
    driver.commit()
    assert driver.table("totals") == {"all": 25}


def test_half_of_a_record_is_not_committed(drive: Drive) -> None:
    driver = drive(adding(lambda _: asyncio.sleep(5)))
    driver.pipe("in", [1, 2])
    assert values(driver, "out") == []
    driver.restart()
    driver.advance("5s")
    assert values(driver, "out") == [1], "its record is done, and the next one at work"
    driver.restart()
    driver.advance("1m")
    assert values(driver, "out") == [1, 2]
    assert driver.table("totals") == {"all": 3}


def test_record_that_fails_behind_a_wait_leaves_no_output(drive: Drive) -> None:
    async def sleep_and_fail(amount: int) -> None:
        await asyncio.sleep(5)
        await odd_fails(amount)

    driver = drive(adding(sleep_and_fail), raises=False)
    driver.pipe("in", [1, 2, 3])
    for _ in range(3):
        driver.advance("5s")
        driver.commit()
    driver.restart()
    driver.advance("1m")
    assert (values(driver, "out"), values(driver, "bank-dlq")) == ([2], [1, 3])
    assert driver.table("totals") == {"all": 2}


def test_refused_value_ahead_of_a_waiting_body_commits_no_half_of_a_record(drive: Drive) -> None:
    app = App("bank", topic_partitions=1, processing_guarantee="exactly_once")
    table, out = app.Table("t"), app.topic("out")

    @app.agent(app.topic("in"))
    async def keep(stream: Any) -> None:
        async for value in stream:
            table[value] = value or 2**70
            await out.send(value=value)
            if runs := len(driver.failures):
                await asyncio.sleep(5 * runs)

    driver = drive(app, raises=False, commit=False)
    driver.pipe("in", [0, 1])
    driver.commit()
    assert values(driver, "out") == []
    driver.advance("5s")
    assert values(driver, "out") == [1]


def test_record_that_ends_the_worker_leaves_no_output(drive: Drive) -> None:
    app = App("bank", topic_partitions=1, processing_guarantee="exactly_once", on_error="stop")
    out = app.topic("out")

    @app.agent(app.topic("in"))
    async def fail(stream: Any) -> None:
        async for value in stream:
            await out.send(value=value)
            await asyncio.sleep(5)
            raise ValueError(value)

    driver = drive(app, raises=False)
    driver.pipe("in", [1])
    with pytest.raises(TaskFailed):
        driver.advance("10s")  # the record runs again by itself
    driver.commit()
    assert values(driver, "out") == []


def test_commit_beside_a_body_at_work_ends_with_more_input(drive: Drive) -> None:
    driver = drive(adding(lambda _: asyncio.sleep(5), by_key=True))
    driver.pipe("in", [1])
    driver.pipe("in", [2, 3])
    driver.advance("1m")
    assert values(driver, "out") == [1, 2, 3]
    assert driver.table("totals") == {"all": 6}


def test_timer_output_is_seen_at_once_and_survives_a_restart(drive: Drive) -> None:
    app = adding()
    ticks = app.topic("ticks")

    @app.timer(1.0)
    async def tick() -> None:
        await ticks.send(value="tick")

    driver = drive(app, commit=False)
    driver.advance("1s")
    driver.restart()
    assert values(driver, "ticks") == ["tick"]


def test_acknowledged_output_has_the_place_where_it_is_read_later(drive: Drive) -> None:
    app = App("bank", topic_partitions=1, processing_guarantee="exactly_once")
    places: list[tuple[str, int, int]] = []
    out = app.topic("out")

    @app.agent(app.topic("in"))
    async def pass_on(stream: Any) -> None:
        async for value in stream:
            sent = await (await out.send(value=value))
            places.append((sent.topic, sent.partition, sent.offset))

    driver = drive(app)
    driver.pipe("in", [1, 2])
    driver.pipe("in", [3])
    assert places == [("out", 0, 0), ("out", 0, 1), ("out", 0, 2)]
    assert [(each.value, each.offset) for each in driver.read("out")] == [(1, 0), (2, 1), (3, 2)]


def test_changed_value_is_reported_at_the_commit_behind_a_waiting_body(drive: Drive) -> None:
    app = App("bank", topic_partitions=1, processing_guarantee="exactly_once")
    lists: Any = app.Table("lists", default=list)

    @app.agent(app.topic("in"))
    async def keep(stream: Any) -> None:
        async for value in stream:
            await asyncio.sleep(5)
            if value:
                lists["all"].append(value)
            else:
                lists["all"] = ["first"]

    driver = drive(app)
    driver.pipe("in", [0, 1])
    driver.advance("5s")
    assert driver.table("lists") == {"all": ["first"]}
    with pytest.raises(UsageError, match="changed in place and not put back"):
        driver.advance("5s")


def test_agents_that_feed_each_other_by_commits_never_settle(
    drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamsx.testing.driver.ROUNDS_MAX", 20)
    app = App("bank", topic_partitions=1, processing_guarantee="exactly_once")
    again = app.topic("again")

    @app.agent(again)
    async def feed(stream: Any) -> None:
        async for value in stream:
            await again.send(value=value)

    with pytest.raises(UsageError, match="never settles"):
        drive(app).pipe("again", [1])


@pytest.mark.parametrize("cut", range(5))
def test_restart_at_any_place_leaves_no_trace(drive: Drive, cut: int) -> None:
    driver = drive(adding(odd_fails, by_key=True), commit=False, raises=False)
    for place, amount in enumerate([2, 3, 4, 5, 6]):
        driver.pipe("in", [amount])
        if place == cut:
            driver.restart()
        if place % 2:
            driver.commit()
    driver.commit()
    assert (values(driver, "out"), values(driver, "bank-dlq")) == ([2, 4, 6], [3, 5])
    assert driver.table("totals") == {"all": 12}
