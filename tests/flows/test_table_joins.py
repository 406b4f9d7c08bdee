"""Joins of tables by key: kinds, times, deletions, restarts."""

from typing import Any

import pytest

from streamsx import App
from streamsx.errors import TopologyError
from streamsx.testing import TestDriver

pytestmark = pytest.mark.usefixtures("rows")


@pytest.fixture
def app() -> App:
    return App("tables", topic_partitions=2, store="memory://")


def pair(left: Any, right: Any) -> list[Any]:
    return [left, right]


def results(driver: TestDriver, key: str = "a") -> list[tuple[Any, float]]:
    """Return values and times in seconds of a key of the topic `out`."""
    wanted = key.encode()
    return [(each.value, each.timestamp) for each in driver.read("out") if each.key == wanted]


CHANGES = [
    ("left", "l1", 10.0), ("right", "r1", 5.0), ("left", "l2", 7.0), ("left", None, 8.0),
    ("right", None, 9.0), ("right", "r2", 3.0), ("left", "l3", 1.0), ("right", None, 2.0),
]  # fmt: skip
EXPECTED = {
    "inner": [(["l1", "r1"], 10), (["l2", "r1"], 7), (None, 8), (["l3", "r2"], 3), (None, 2)],
    "left": [
        (["l1", None], 10), (["l1", "r1"], 10), (["l2", "r1"], 7), (None, 8),
        (["l3", "r2"], 3), (["l3", None], 2),
    ],
    "outer": [
        (["l1", None], 10), (["l1", "r1"], 10), (["l2", "r1"], 7), ([None, "r1"], 8), (None, 9),
        ([None, "r2"], 3), (["l3", "r2"], 3), (["l3", None], 2),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", ["inner", "left", "outer"])
def test_each_change_joins_the_newest_value_of_the_other_table(app: App, kind: str) -> None:
    app.table("left").join(app.table("right"), pair, kind=kind, name="pairs").to("out")
    with TestDriver(app) as driver:
        for side, value, at in CHANGES:
            driver.pipe(side, [("a", value, at), ("b", value, at), ("c", value, at)])
            driver.restart()
        for key in "abc":
            assert results(driver, key) == EXPECTED[kind]


def test_deletion_of_a_row_that_is_not_there_gives_nothing(app: App) -> None:
    app.table("left").join(app.table("right"), pair, kind="outer", name="pairs").to("out")
    with TestDriver(app) as driver:
        driver.pipe("left", [("a", "l", 1.0), (None, "l", 1.0)])
        driver.pipe("right", [("a", None, 2.0), ("b", None, 2.0)])
        assert results(driver) == [(["l", None], 1)]


def test_old_value_of_a_join_is_the_row_before(app: App) -> None:
    joined = app.table("left").join(app.table("right"), max, kind="inner", name="largest")
    joined.filter(lambda n: n > 5).to("out")
    with TestDriver(app) as driver:
        for side, value in (("left", 1), ("right", 7), ("left", 3), ("right", 2), ("left", 9)):
            driver.pipe(side, [("a", value, 1.0)])
            driver.restart()
        assert [value for value, _ in results(driver)] == [7, 7, None, 9]


def test_aggregates_and_joins_are_joined(app: App) -> None:
    counts = app.flow("events").group_by_key().count("counts")
    names = app.table("names").join(app.table("towns"), pair, name="homes")
    counts.join(names, pair, kind="left", name="both").to("out")
    with TestDriver(app) as driver:
        driver.pipe("events", [("a", 1, 1.0)])
        driver.pipe("names", [("a", "ann", 2.0)])
        driver.pipe("towns", [("a", "rome", 1.0)])
        driver.pipe("events", [("a", 1, 3.0)])
        driver.pipe("towns", [("a", None, 4.0)])
        assert results(driver) == [
            ([1, None], 1), ([1, ["ann", "rome"]], 2), ([2, ["ann", "rome"]], 3), ([2, None], 4),
        ]  # fmt: skip


def test_table_joined_with_itself_has_both_values(app: App) -> None:
    table = app.table("left")
    table.join(table, pair, name="twice").to("out")
    with TestDriver(app) as driver:
        driver.pipe("left", [("a", 1, 1.0), ("a", 2, 2.0), ("a", None, 3.0)])
        values = [value for value, _ in results(driver)]
        assert values[0] == [1, 1]
        assert values[-2:] == [[2, 2], None]


@pytest.mark.parametrize(
    ("how", "word"),
    [({}, "give the join a name="), ({"kind": "right", "name": "x"}, "bad kind of join")],
)
def test_join_that_cannot_be_is_refused_with_the_line(
    app: App, how: dict[str, Any], word: str
) -> None:
    with pytest.raises(TopologyError, match=word) as refused:
        app.table("left").join(app.table("right"), pair, **how)
    assert "test_table_joins.py:" in str(refused.value)


def test_join_of_keys_of_other_types_is_refused(app: App) -> None:
    other = app.table("right", key_type=int)
    with pytest.raises(TopologyError, match=r"key types differ \(.*test_table_joins\.py"):
        app.table("left").join(other, pair, name="pairs")


def test_join_with_a_flow_is_refused(app: App) -> None:
    with pytest.raises(TypeError, match="not a table"):
        app.table("left").join(app.flow("right"), pair, name="pairs")  # type: ignore[arg-type]
