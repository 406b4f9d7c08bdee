"""Suppress: at most one change of a key in a time, the newest one, by stream time."""

from typing import Any

import pytest

from streamsx import App
from streamsx.app.window import tumbling
from streamsx.errors import TopologyError
from streamsx.testing import TestDriver

pytestmark = pytest.mark.usefixtures("rows")


@pytest.fixture
def app() -> App:
    return App("tables", topic_partitions=2, store="memory://")


def results(driver: TestDriver) -> list[tuple[str, Any, float]]:
    """Return key, value and time in seconds of each record of `out`, partition by partition."""
    return [(each.key.decode(), each.value, each.timestamp) for each in driver.read("out")]


def test_newest_value_leaves_when_the_first_one_has_waited(app: App) -> None:
    app.table("in").suppress("5s").to("out")
    with TestDriver(app, partitions={"in": 1}) as driver:
        for key, value, at in [
            ("a", 1, 10.0), ("b", 1, 11.0), ("a", 2, 14.0), (None, 0, 14.0),
            ("a", 3, 15.0), ("a", 4, 15.5), ("b", None, 16.0), ("c", 1, 21.0),
        ]:  # fmt: skip
            driver.pipe("in", [(key, value, at)])
            driver.restart()
        assert results(driver) == [("a", 3, 15), ("b", None, 16), ("a", 4, 15.5)]


def test_each_partition_has_its_own_time(app: App) -> None:
    app.table("in").suppress("5s").to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", [("a", 1, 1.0)], partition=0)
        driver.pipe("in", [("b", 1, 9.0)], partition=1)
        driver.restart()
        assert results(driver) == []
        driver.pipe("in", [("c", 1, 6.0)], partition=0)
        assert results(driver) == [("a", 1, 1)]


def test_changes_that_are_due_together_leave_by_place_and_key(app: App) -> None:
    app.table("in").suppress("5s").map_values(lambda n: n * 2).to("out")
    with TestDriver(app, partitions={"in": 1, "out": 1}) as driver:
        driver.pipe("in", [("b", 1, 2.0), ("c", 1, 1.0), ("a", 1, 2.0), ("c", 2, 3.0)])
        driver.pipe("in", [("d", 1, 30.0)])
        assert results(driver) == [("c", 4, 3), ("a", 2, 2), ("b", 2, 2)]


def test_change_older_than_the_wait_leaves_at_once_unless_its_key_is_held(app: App) -> None:
    app.table("in").suppress("5s").to("out")
    with TestDriver(app, partitions={"in": 1}) as driver:
        driver.pipe("in", [("a", 1, 20.0), ("b", 1, 15.0), ("a", 2, 3.0)])
        driver.restart()
        driver.pipe("in", [("c", 1, 15.1), ("d", 1, 20.1), ("d", 1, 25.0)])
        assert results(driver) == [("b", 1, 15), ("c", 1, 15.1), ("a", 2, 3)]


def test_key_whose_change_left_is_held_again_once(app: App) -> None:
    """The change that left was the later one of two, and stays for one more commit."""
    app.table("in").suppress("5s").to("out")
    with TestDriver(app, partitions={"in": 1}, commit=False) as driver:
        driver.pipe("in", [("a", 1, 5.0), ("a", 2, 10.0), ("a", 3, 7.0), ("a", 4, 7.0)])
        driver.pipe("in", [("b", 1, 12.0)])
        assert results(driver) == [("a", 2, 10), ("a", 4, 7)]


def test_deletion_of_a_row_that_is_not_there_holds_nothing(app: App) -> None:
    app.table("in").suppress("5s").to("out")
    with TestDriver(app, partitions={"in": 1}) as driver:
        driver.pipe("in", [("a", None, 1.0), ("a", 1, 4.0), ("b", 1, 6.0), ("b", 1, 9.0)])
        assert results(driver) == [("a", 1, 4)]


def test_record_that_a_filter_drops_or_that_fails_moves_time(app: App) -> None:
    groups = app.flow("in").filter(lambda n: n < 10 and 1 / n).group_by_key()
    groups.count("counts", emit="update").suppress("5s").to("out")
    with TestDriver(app, partitions={"in": 1}, raises=False) as driver:
        driver.pipe("in", [("a", 1, 1.0), ("a", 1, 2.0)])
        driver.pipe("in", [("a", 0, 6.0)])
        assert results(driver) == [("a", 2, 2)]
        driver.pipe("in", [("b", 1, 7.0)])
        driver.pipe("in", [("a", 11, 12.0)])
        assert results(driver) == [("a", 2, 2), ("b", 1, 7)]


def test_many_changes_that_are_due_at_once_all_leave(app: App) -> None:
    app.table("in").suppress("5s").to("out")
    with TestDriver(app, partitions={"in": 1, "out": 1}) as driver:
        driver.pipe("in", [(f"key{n}", n, 1.0) for n in range(1700)])
        driver.pipe("in", [("other", 0, 6.0)])
        assert [value for _, value, _ in results(driver)] == sorted(range(1700), key=str)


def test_results_of_commits_wait_from_their_commit_on(app: App) -> None:
    app.flow("in").group_by_key().count("counts").suppress("5s").to("out")
    with TestDriver(app, partitions={"in": 1}) as driver:
        driver.pipe("in", [("a", 0, 1.0), ("a", 0, 2.0)])
        driver.restart()
        driver.pipe("in", [("b", 0, 6.9), ("a", 0, 6.9)])
        assert results(driver) == []
        driver.pipe("in", [("c", 0, 7.0)])
        assert results(driver) == [("a", 3, 6.9)]


def test_suppressed_table_is_kept_and_filtered(app: App) -> None:
    table = app.table("in").suppress("5s").to_flow().to_table("slow")
    table.filter(lambda n: n > 1).to("out")
    with TestDriver(app, partitions={"in": 1}) as driver:
        for n in (1, 2, 1, 3):
            driver.pipe("in", [("a", n, 10.0 * n), ("b", 0, 100.0 * n)])
        assert driver.table("slow") == {"a": 3, "b": 0}


@pytest.mark.parametrize("step", ["filter", "group_by"])
def test_step_that_needs_old_values_is_refused_with_the_line(app: App, step: str) -> None:
    table = app.table("in").suppress("5s").map_values(str)
    with pytest.raises(
        TopologyError, match=rf"{step} after suppress or sliding windows \(.*test_suppress\.py:\d+"
    ):
        getattr(table, step)(len)


def test_suppress_without_a_name_is_refused_with_the_line(app: App) -> None:
    with pytest.raises(TopologyError, match=r"without a name \(.*test_suppress\.py:\d+"):
        app.table("in").filter(len).suppress("5s")


def test_suppress_of_windows_is_refused_with_the_line(app: App) -> None:
    counts = app.flow("in").group_by_key().window(tumbling("5s")).count("counts")
    with pytest.raises(TopologyError, match=r"keys of windows \(.*test_suppress\.py:\d+"):
        counts.suppress("5s")


@pytest.mark.parametrize("wait", [0, "0.1ms"])
def test_wait_that_is_none_is_refused_with_the_line(app: App, wait: object) -> None:
    with pytest.raises(TopologyError, match=r"bad wait.*test_suppress\.py:\d+"):
        app.table("in").suppress(wait)


def test_change_without_a_time_goes_on_at_once(app: App) -> None:
    app.table("in").suppress("10s").to("out")
    with TestDriver(app) as driver:
        driver.to("in", 0)(b"a", b"1", -1, None)
        driver.advance(0)
        assert [each.value for each in driver.read("out")] == [1]


def test_record_without_a_time_is_no_repetition(app: App) -> None:
    app.flow("in").deduplicate(key=lambda value: value, within="10s", name="seen").to("out")
    with TestDriver(app) as driver:
        for _ in range(2):
            driver.to("in", 0)(b"a", b"1", -1, None)
        driver.advance(0)
        assert [each.value for each in driver.read("out")] == [1, 1]
