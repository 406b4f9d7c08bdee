"""Tables of flows: old and new values of changes, filters and maps of tables."""

from typing import Any

import pytest

from streamsx import App
from streamsx.app.window import session, tumbling
from streamsx.testing import TestDriver

pytestmark = pytest.mark.usefixtures("rows")


@pytest.fixture
def app() -> App:
    return App("tables", topic_partitions=2, store="memory://")


def results(driver: TestDriver, topic: str = "out") -> dict[Any, list[Any]]:
    """Return the values of each key of a topic."""
    found: dict[Any, list[Any]] = {}
    for record in driver.read(topic):
        key = None if record.key is None else record.key.decode()
        found.setdefault(key, []).append(record.value)
    return found


def appended(_key: Any, value: Any, values: list[Any]) -> list[Any]:
    """Change an aggregate in place, as users do."""
    values.append(value)
    return values


def test_row_that_leaves_a_filter_is_deleted_once(app: App) -> None:
    app.table("in").filter(lambda n: n > 5).to("out")
    with TestDriver(app) as driver:
        for n in (1, 2, 7, 8, 3, 4, None, None, 9, None):
            driver.pipe("in", [("a", n)])
            driver.restart()
        assert results(driver) == {"a": [7, 8, None, 9, None]}


def test_filtered_and_mapped_table_keeps_the_rows_of_each_partition(app: App) -> None:
    app.table("in").map_values(lambda n: n * 2).filter(lambda n: n > 5).to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", [(key, n) for n in (1, 3, 2, None) for key in "abcdef"])
        assert results(driver) == {key: [6, None] for key in "abcdef"}


def test_record_without_a_key_changes_no_table(app: App) -> None:
    app.table("in").filter(lambda n: n > 5).to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", [(None, 7), ("a", 7)])
        assert results(driver) == {"a": [7]}


@pytest.mark.parametrize("emit", ["update", "commit"])
def test_old_value_of_an_aggregate_changed_in_place_is_the_one_before(app: App, emit: str) -> None:
    lists = app.flow("in").group_by_key().aggregate(list, appended, "lists", emit=emit)
    lists.filter(lambda values: len(values) % 2).map_values(len).to("out")
    with TestDriver(app) as driver:
        for n in range(4):
            driver.pipe("in", [("a", n), ("b", n)])
            driver.restart()
        assert results(driver) == {key: [1, None, 3, None] for key in "ab"}


@pytest.mark.parametrize("window", [tumbling("10s"), session("10s")])
@pytest.mark.parametrize("emit", ["update", "commit"])
def test_window_that_leaves_a_filter_is_deleted(app: App, emit: str, window: Any) -> None:
    groups = app.flow("in").group_by_key().window(window)
    lists = groups.aggregate(
        list, appended, "lists", emit=emit, merge=lambda _key, one, two: one + two
    )
    lists.filter(lambda values: values[-1] != "no").map_values(len).to("out")
    with TestDriver(app) as driver:
        for value in ("yes", "no", "yes"):
            driver.pipe("in", [("a", value, 1.0)])
            driver.restart()
        ((_, values),) = results(driver).items()
        assert values == [1, None, 3]


def test_several_updates_between_commits_have_the_old_value_of_the_last_commit(app: App) -> None:
    counts = app.flow("in").group_by_key().count("counts")
    counts.filter(lambda n: n % 2).to("out")
    with TestDriver(app, commit=False) as driver:
        for _ in range(2):
            driver.pipe("in", [("a", 1), ("a", 1), ("a", 1)])
            driver.commit()
        assert results(driver) == {"a": [3, None]}


def test_final_windows_have_no_old_value(app: App) -> None:
    groups = app.flow("in").group_by_key().window(tumbling("10s", grace=0))
    groups.count("counts", emit="final").filter(lambda n: n == 2).to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", [("a", 1, 1.0), ("a", 1, 2.0), ("b", 1, 2.0), ("a", 1, 20.0)])
        driver.pipe("in", [("b", 1, 40.0), ("a", 1, 40.0), ("c", 1, 40.0)])
        assert results(driver) == {'["a",0,10000]': [2]}
