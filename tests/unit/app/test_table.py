"""app/table.py: a dict inside of a task, refusals outside."""

import re
from collections.abc import Callable
from typing import Any

import faust
import pytest

from streamsx import App, Table
from streamsx.errors import SettingError, TableNotInTask, TaskStopped, TopologyError
from streamsx.testing import TestDriver

Drive = Callable[..., TestDriver]
Inside = Callable[..., Any]


class Point(faust.Record):
    x: int


@pytest.fixture
def inside(app: App, drive: Drive) -> Inside:
    """Run functions of a table in an agent, each on a record of its own; return their results."""
    drivers: dict[int, TestDriver] = {}

    def run(table: Table[Any, Any], *steps: Callable[[Any], Any]) -> list[Any]:
        results: list[Any] = []
        if not drivers:

            @app.agent("steps", name="a", tables=[table])
            async def body(stream: Any) -> None:
                async for n in stream:
                    results.append(current[n](table))

            drivers[0] = drive(app, partitions={"steps": 1})
        current = steps
        body_results = results
        drivers[0].pipe("steps", range(len(steps)))
        assert drivers[0].failures == []
        return body_results

    return run


def test_nested_tuple_key_is_returned_unchanged(app: App, drive: Drive) -> None:
    table, key = app.Table("t"), ("a", ("b", ("c", (1,))))

    @app.agent("words")
    async def body(stream: Any) -> None:
        async for _ in stream:
            table[key] = 1

    driver = drive(app)
    driver.pipe("words", ["w"])
    assert driver.table("t") == {key: 1}


def test_key_queries_decode_no_value(
    app: App, drive: Drive, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = app.Table("t", value_type=Point)

    @app.agent("words")
    async def body(stream: Any) -> None:
        async for word in stream:
            table[word] = Point(1)

    driver = drive(app, partitions={"words": 1})
    assert not table
    driver.pipe("words", ["b", "a", "c"])
    monkeypatch.setattr(driver.store("t", 0), "decode", None)
    assert (bool(table), len(table), list(table)) == (True, 3, ["a", "b", "c"])


def test_table_behaves_as_a_dict(app: App, inside: Inside) -> None:
    def story(table: Any) -> Any:
        table["a"] = 1
        table["b"] = 2
        table["a"] += 5
        assert ("a" in table, "c" in table, len(table)) == (True, False, 2)
        assert (table.pop("b"), table.pop("b", 7)) == (2, 7)
        assert (table.setdefault("d", 4), table.setdefault("d", 5)) == (4, 4)
        table.update({"e": 5}, f=6)
        del table["d"]
        assert (table.get("a"), table.get("zz", 9)) == (6, 9)
        assert list(table) == list(table.keys()) == ["a", "e", "f"]
        assert (list(table.values()), dict(table.items())) == ([6, 5, 6], {"a": 6, "e": 5, "f": 6})
        assert ("a", 6) in table.items()
        with pytest.raises(KeyError):
            table["nope"]
        with pytest.raises(KeyError):
            del table["nope"]
        with pytest.raises(KeyError):
            table.pop("nope")
        table.clear()
        return len(table)

    assert inside(app.Table("t"), story) == [0]


def test_default_is_not_stored_on_read(app: App, inside: Inside) -> None:
    def story(table: Any) -> Any:
        assert (table["a"], table.get("a"), "a" in table) == (0, 0, False)
        assert table.pop("a", None) is None
        table["a"] += 1
        return dict(table)

    assert inside(app.Table("t", default=int), story) == [{"a": 1}]


def test_setting_none_deletes_the_key(app: App, inside: Inside) -> None:
    def story(table: Any) -> Any:
        table["a"] = 1
        table["a"] = None
        return "a" in table, table.get("a"), len(table)

    assert inside(app.Table("t"), story) == [(False, None, 0)]


@pytest.mark.parametrize("key", ["a", b"a", b"1", 1, 1.5, True, None, ("a", (1, 2)), b'"a"'])
def test_keys_of_every_type_survive_a_restart(app: App, drive: Drive, key: Any) -> None:
    table = app.Table("t", default=int)

    @app.agent("steps")
    async def body(stream: Any) -> None:
        async for _ in stream:
            table[key] += 1

    driver = drive(app, partitions={"steps": 1})
    for _ in range(3):
        driver.pipe("steps", [0])
        driver.restart()
    (value,) = driver.table("t").values()
    assert value == 3


def test_equal_key_bytes_share_one_row(app: App, inside: Inside) -> None:
    def story(table: Any) -> Any:
        table["1"] = "text"
        table[b'"1"'] = "the same, as bytes"
        table[1] = "number"
        table[b"1"] = "the same number, as bytes"
        return table["1"], table[1], len(table)

    table = app.Table("t")
    expected = ("the same, as bytes", "the same number, as bytes", 2)
    assert inside(table, story) == [expected]


def test_record_values_survive_a_restart(app: App, drive: Drive) -> None:
    table = app.Table("t", value_type=Point)

    @app.agent("steps")
    async def body(stream: Any) -> None:
        async for n in stream:
            table["a"] = Point(n)

    driver = drive(app, partitions={"steps": 1})
    driver.pipe("steps", [5])
    driver.restart()
    assert driver.table("t") == {"a": Point(5)}
    (record,) = driver.read("shop-t-changelog")
    assert record.value == Point(5)
    assert record.key == b'"a"'


# -- outside of an agent


def test_table_read_outside_tasks_shows_the_running_tasks(app: App, drive: Drive) -> None:
    table = app.Table("t", default=int)

    @app.agent("words")
    async def body(stream: Any) -> None:
        async for word in stream:
            table[word] += 1

    assert (table["a"], len(table), dict(table)) == (0, 0, {})
    drive(app, partitions={"words": 4}).pipe("words", [(w, w) for w in "abcabca"])
    assert (table["a"], table["b"], table["zz"]) == (3, 2, 0)
    assert dict(table.items()) == {"a": 3, "b": 2, "c": 2}
    assert ("a" in table, len(table), sorted(table.values())) == (True, 3, [2, 2, 3])


@pytest.mark.parametrize(
    "write",
    [
        lambda table: table.__setitem__("a", 1),
        lambda table: table.pop("a"),
        lambda table: table.__delitem__("a"),
        lambda table: table.clear(),
        lambda table: table.update(a=1),
    ],
)
def test_table_write_outside_an_agent_is_refused(app: App, drive: Drive, write: Any) -> None:
    table = app.Table("t", default=int)

    @app.agent("words")
    async def body(stream: Any) -> None:
        async for word in stream:
            table[word] += 1

    drive(app).pipe("words", [("a", "a")])
    with pytest.raises(TypeError, match="written outside of an agent: table t"):
        write(table)


@pytest.mark.parametrize(
    "touch",
    [lambda table: table["a"], lambda table: table.__setitem__("a", 1), len],
)
def test_table_not_in_the_task_is_an_error_with_a_remedy(
    app: App, drive: Drive, touch: Any
) -> None:
    hidden = app.Table("hidden", default=int)

    @app.agent("words", tables=[])
    async def body(stream: Any) -> None:
        async for _ in stream:
            touch(hidden)

    driver = drive(app)
    with pytest.raises(TableNotInTask) as told:
        driver.pipe("words", ["a"])
    assert str(told.value).startswith("table not in this task: hidden, task 0_")
    assert "@app.agent(..., tables=[...])" in str(told.value)


def test_table_of_another_agent_names_its_agents_and_the_line(app: App, drive: Drive) -> None:
    bills = app.Table("bills", default=int)
    counts = app.Table("counts", default=int)

    @app.agent("bills", name="biller")
    async def bill(stream: Any) -> None:
        async for each in stream:
            bills[each] += 1

    @app.agent("words", tables=[counts])
    async def body(stream: Any) -> None:
        async for each in stream:
            counts[each] += 1
            bills[each] += 1

    driver = drive(app)
    line = rf"{re.escape(__file__)}:\d+"
    says = rf"bills, task 1_\d \({line}\): it belongs to biller, and the app was not seen to use it"
    with pytest.raises(TableNotInTask, match=says) as told:
        driver.pipe("words", ["a"])
    assert isinstance(told.value, TaskStopped)
    assert driver.table("counts") == {}, "nothing stays of a record that stops its task"


# -- what it becomes


def test_changelog_has_the_config_of_the_table(app: App) -> None:
    table = app.Table("t", partitions=3, extra_topic_configs={"segment.bytes": 1024})

    @app.agent("words", tables=[table])
    async def body(stream: Any) -> None:
        async for _ in stream:
            pass

    (spec,) = [spec for spec in app.topology().topics if spec.name == "shop-t-changelog"]
    assert spec.partitions == 3
    assert spec.config == {"cleanup.policy": "compact", "segment.bytes": "1024"}


def test_table_store_can_be_in_memory(app: App) -> None:
    assert app.Table("a").node().persistent
    assert not app.Table("b", store="memory://").node().persistent
    with pytest.raises(SettingError, match="unknown store: nope://: table c"):
        app.Table("c", store="nope://").node()


def test_table_codecs_follow_key_and_value_types(app: App) -> None:
    node = app.Table("a", key_type=bytes, value_type=Point).node()
    assert (node.keys.name, node.values.name, node.key_type) == ("raw", "json", bytes)
    assert app.Table("b").node().key_type is None


def test_two_tables_of_one_name_are_an_error(app: App) -> None:
    app.Table("t")
    with pytest.raises(TopologyError, match="table t, app shop"):
        app.Table("t")


def test_tables_compare_by_identity(app: App) -> None:
    one, two = app.Table("one"), app.Table("two")
    assert one != two
    assert {one, two, one} == {one, two}
