"""Aggregates that a user's function changes in place: no other part of the program holds that
object.
"""

from collections.abc import Callable
from typing import Any

import pytest

from streamsx import App, hopping
from streamsx.testing import TestDriver

Row = dict[str, int]
ONES = [("k", {"n": 1}, 10), ("k", {"n": 1}, 10), ("k", {"n": 1}, 20)]


def add(total: Row, value: Row) -> Row:
    total["n"] += value["n"]
    return total


def newest(total: Row, value: Row) -> Row:
    """Change the aggregate, or take the value of the record in its place."""
    return value if value["n"] > total["n"] else add(total, value)


def add_price(_key: Any, price: int, total: Row) -> Row:
    total["n"] += price
    return total


def made_app() -> App:
    return App("x", topic_partitions=1, store="memory://")


def counted(driver: TestDriver, topic: str) -> list[int]:
    return [record.value["n"] for record in driver.read(topic)]


@pytest.mark.parametrize("fun", [add, newest])
@pytest.mark.parametrize("emit", ["update", "commit"])
def test_reduce_in_place_changes_only_the_aggregate_of_its_own_window(
    fun: Callable[[Row, Row], Row], emit: str
) -> None:
    app = made_app()
    groups = app.flow("o").group_by_key()
    hops = groups.window(hopping("3s", "1s", grace=0))
    hops.reduce(fun, "r", emit="final").to("hops")
    groups.reduce(fun, "r1", emit=emit).to("one")
    groups.reduce(fun, "r2", emit=emit).to("two")

    with TestDriver(app, commit=emit == "commit") as driver:
        driver.pipe("o", ONES)

        assert counted(driver, "hops") == [2, 2, 2]
        assert (
            counted(driver, "one")
            == counted(driver, "two")
            == ([3] if emit == "commit" else [1, 2, 3])
        )


def to_a_table(totals: Any, _app: App) -> Any:
    return totals.to_flow().to_table("t")


def join_a_table(totals: Any, app: App) -> Any:
    return totals.join(app.table("u"), lambda x, _y: {"n": x["n"]}, kind="left", name="j")


def map_and_keep(totals: Any, _app: App) -> Any:
    return totals.map_values(lambda total: total).to_flow().to_table("t")


@pytest.mark.parametrize("emit", ["update", "commit"])
@pytest.mark.parametrize("keep", [to_a_table, join_a_table, map_and_keep])
def test_aggregate_in_place_with_a_table_behind_it_keeps_old_values_apart(
    keep: Callable[[Any, App], Any], emit: str
) -> None:
    app = made_app()
    groups = app.flow("o").group_by_key()
    totals = groups.aggregate(lambda: {"n": 0}, add_price, "agg", emit=emit)
    rows = keep(totals, app)
    rows.group_by(lambda _row: "g").sum(lambda row: row["n"], "s", emit="update").to("out")

    with TestDriver(app, commit=emit == "commit") as driver:
        for price in (1, 1, 1):
            driver.pipe("o", [("k", price, 1)])

        assert [record.value for record in driver.read("out")] == [1, 2, 3]


def test_aggregate_in_place_with_a_join_behind_it_keeps_each_result() -> None:
    app = made_app()
    groups = app.flow("o").group_by_key()
    totals = groups.aggregate(lambda: {"n": 0}, add_price, "agg", emit="update").to_flow()
    totals.join(app.flow("c"), lambda x, _y: x["n"], within="1m", name="j").to("out")

    with TestDriver(app, commit=False) as driver:
        driver.pipe("o", [("k", 1, 1), ("k", 1, 2), ("k", 1, 3)])
        driver.pipe("c", [("k", "C", 3)])

        assert [record.value for record in driver.read("out")] == [1, 2, 3]
