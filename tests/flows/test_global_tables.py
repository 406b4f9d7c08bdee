"""Global tables: every task sees all partitions, by any key, without a repartition topic."""

from typing import Any

import pytest

from streamsx import App
from streamsx.errors import NameClash, TopologyError
from streamsx.testing import TestDriver

pytestmark = pytest.mark.usefixtures("rows")


@pytest.fixture
def app() -> App:
    return App("tables", topic_partitions=3, store="memory://")


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


def values(driver: TestDriver) -> list[Any]:
    return [record.value for record in driver.read("out")]


def test_each_partition_joins_all_rows_by_a_key_of_the_value(app: App) -> None:
    towns = app.global_table("towns")
    app.flow("orders").join(towns, pair, key=lambda order: order["town"]).to("out")
    with TestDriver(app, partitions={"towns": 2}) as driver:
        driver.pipe("towns", [(f"town{n}", n) for n in range(6)])
        orders = [(f"key{n}", {"town": f"town{n % 7}"}) for n in range(21)]
        driver.pipe("orders", orders[:10])
        driver.restart()
        driver.pipe("orders", orders[10:])
        found = {(each[0]["town"], each[1]) for each in values(driver)}
        assert found == {(f"town{n}", n) for n in range(6)}
        assert driver.table("towns") == {f"town{n}": n for n in range(6)}


def test_left_join_has_none_for_missing_deleted_and_null_keys(app: App) -> None:
    towns = app.global_table("towns")
    app.flow("orders").join(towns, pair, key=lambda town: town or None, kind="left").to("out")
    with TestDriver(app) as driver:
        driver.pipe("towns", [("rome", 1), ("oslo", 2), ("oslo", None), (None, 3)])
        driver.pipe("orders", [("a", town) for town in ("rome", "oslo", "bern", "")])
        driver.pipe("orders", [("a", None)])
        assert values(driver) == [["rome", 1], ["oslo", None], ["bern", None], ["", None]]


def test_inner_join_skips_null_keys_and_follows_changes(app: App) -> None:
    app.flow("orders").join(app.global_table("towns"), pair).to("out")
    with TestDriver(app) as driver:
        driver.pipe("orders", [("rome", 0), (None, 0)])
        for value in (1, 2, None, 3):
            driver.pipe("towns", [("rome", value)])
            driver.pipe("orders", [("rome", value)])
            driver.restart()
        assert values(driver) == [[1, 1], [2, 2], [3, 3]]


def test_row_that_cannot_be_decoded_fails_the_record_that_asks_for_it(app: App) -> None:
    app.flow("orders").join(app.global_table("towns", value_type=int), pair).to("out")
    with TestDriver(app, raises=False) as driver:
        driver._logs.to("towns")(b"rome", b"no number", 0, None)
        driver.pipe("orders", [("rome", 1)])
        assert "row cannot be read: store towns" in str(driver.failures[0].error)


def test_key_of_another_type_needs_a_function(app: App) -> None:
    numbers = app.global_table("numbers", key_type=int)
    with pytest.raises(
        TopologyError, match=r"key types differ \(.*test_global_tables\.py:\d+\).*key="
    ):
        app.flow("orders").join(numbers, pair)


def test_key_function_with_a_table_is_refused(app: App) -> None:
    with pytest.raises(TopologyError, match=r"key= with .*test_global_tables\.py:\d+"):
        app.flow("orders").join(app.table("towns"), pair, key=lambda order: order)


def test_time_of_a_join_with_a_global_table_is_refused(app: App) -> None:
    with pytest.raises(TopologyError, match=r"within=, grace=, idle= or on_late= with a table"):
        app.flow("orders").join(app.global_table("towns"), pair, within="5s")


def test_two_tables_of_one_name_are_refused(app: App) -> None:
    app.global_table("towns")
    with pytest.raises(NameClash, match=r"name used twice: table towns"):
        app.table("towns")
