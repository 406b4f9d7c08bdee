"""Groups of tables: old values leave their groups, new ones enter theirs."""

from typing import Any

import pytest

from streamsx import App
from streamsx.errors import TopologyError
from streamsx.operators.change import GroupChange, change_codec
from streamsx.serde.codec import table_codec
from streamsx.testing import TestDriver

pytestmark = pytest.mark.usefixtures("rows")
ROWS = [
    ("ann", {"team": "red", "n": 3}), ("bob", {"team": "red", "n": 4}),
    ("ann", {"team": "red", "n": 5}), ("bob", {"team": "blue", "n": 6}),
    ("ann", None), ("cid", {"team": None, "n": 9}), ("bob", {"team": "blue", "n": 1}),
]  # fmt: skip


@pytest.fixture
def app() -> App:
    return App("tables", topic_partitions=2, store="memory://")


def results(driver: TestDriver) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for record in driver.read("out"):
        found.setdefault(record.key.decode(), []).append(record.value)
    return found


def team(row: Any) -> Any:
    return row["team"]


def test_row_that_changes_leaves_its_group_and_enters_another(app: App) -> None:
    app.table("rows").group_by(team).sum(lambda row: row["n"], "sums", emit="update").to("out")
    with TestDriver(app) as driver:
        for row in ROWS:
            driver.pipe("rows", [row])
            driver.restart()
        assert results(driver) == {"red": [3, 7, 9, 5, 0], "blue": [6, 1]}
        assert driver.table("sums") == {"red": 0, "blue": 1}


def test_counts_equal_the_number_of_current_rows(app: App) -> None:
    app.table("rows").group_by(team, "teams").count("counts").to("out")
    with TestDriver(app) as driver:
        driver.pipe("rows", ROWS)
        assert driver.table("counts") == {"red": 0, "blue": 1}
        driver.pipe("rows", [(f"row{n}", {"team": f"team{n % 5}"}) for n in range(100)])
        driver.restart()
        driver.pipe("rows", [(f"row{n}", {"team": f"team{n % 3}"}) for n in range(100)])
        counted = driver.table("counts")
        assert {name: counted[name] for name in map("team{}".format, range(5))} == {
            "team0": 34, "team1": 33, "team2": 33, "team3": 0, "team4": 0,
        }  # fmt: skip


def test_aggregate_changed_in_place_takes_values_out(app: App) -> None:
    def put_in(_key: str, row: Any, found: list[int]) -> list[int]:
        found.append(row["n"])
        return found

    def take_out(_key: str, row: Any, found: list[int]) -> list[int]:
        found.remove(row["n"])
        return found

    groups = app.table("rows").group_by(team)
    lists = groups.aggregate(list, put_in, "lists", subtract=take_out, emit="update")
    lists.filter(lambda found: len(found) > 1).to("out")
    with TestDriver(app) as driver:
        for row in ROWS:
            driver.pipe("rows", [row])
            driver.restart()
        assert results(driver) == {"red": [[3, 4], [4, 5], None]}


def test_groups_of_a_filtered_aggregate_follow_its_changes(app: App) -> None:
    counts = app.flow("events").group_by_key().count("counts")
    by_parity = counts.filter(lambda n: n < 4).group_by(lambda n: "odd" if n % 2 else "even")
    by_parity.count("parities", emit="update").to("out")
    with TestDriver(app) as driver:
        for _ in range(4):
            driver.pipe("events", [("a", 1)])
            driver.restart()
        assert results(driver) == {"odd": [1, 0, 1, 0], "even": [1, 0]}


def test_group_key_of_another_type_fails_its_record(app: App) -> None:
    app.table("rows").group_by(lambda row: row["n"]).count("counts")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("rows", [("a", {"n": 1})])
        assert [type(failure.error) for failure in driver.failures] == [TypeError]


@pytest.mark.parametrize("call", ["min", "max", "reduce", "collect", "window"])
def test_aggregate_that_cannot_take_values_out_is_refused_with_the_line(
    app: App, call: str
) -> None:
    groups: Any = app.table("rows").group_by(team)
    with pytest.raises(TopologyError, match=rf"{call} of a table's.*test_table_groups\.py:\d+"):
        getattr(groups, call)(max, "largest")


def test_aggregate_without_subtract_is_refused_with_the_line(app: App) -> None:
    with pytest.raises(TopologyError, match=r"without subtract= \(.*test_table_groups\.py:\d+"):
        app.table("rows").group_by(team).aggregate(int, lambda _k, _v, n: n, "sums")


def test_group_without_a_name_is_refused_with_the_line(app: App) -> None:
    with pytest.raises(TopologyError, match=r"without a name: .*test_table_groups\.py:\d+"):
        app.table("rows").group_by(team).count("")


@pytest.mark.parametrize("kind", [None, str])
@pytest.mark.parametrize(("old", "new"), [("a", "b"), ("", None), (None, ""), ("a", "")])
def test_change_comes_back_from_its_bytes(kind: Any, old: Any, new: Any) -> None:
    codec = change_codec(table_codec(kind))
    data = codec.encode(GroupChange(old, new))
    assert codec.decode(data) == GroupChange(old, new)


def test_bytes_of_a_change_are_flags_length_and_both_values() -> None:
    codec = change_codec(table_codec(None))
    assert codec.encode(GroupChange(1, {"n": 2})) == b'\x03\x00\x00\x00\x011{"n":2}'
    assert codec.encode(GroupChange(None, 7)) == b"\x02\x00\x00\x00\x007"
    assert codec.encode(GroupChange(7, None)) == b"\x01\x00\x00\x00\x017"
