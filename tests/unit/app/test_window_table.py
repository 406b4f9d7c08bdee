"""app/window_table.py against Faust's own tables, and against plain Python where windows expire."""

import operator
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faust
import pytest
from faust.streams import _current_event  # Faust's own context of the event at hand
from faust.types import Message

from streamsx import App
from streamsx.errors import NotSupported, TopologyError
from streamsx.testing import TestDriver

BASE = 1_700_000_000
Use = Callable[[Any], Any]


class FaustEvent:
    """Current event of Faust's table."""

    def __init__(self, at: float) -> None:
        self.message = Message("words", 0, 0, at, 0, {}, b"", b"", None)
        self.value: Any = None


class FaustTable:
    """Table of Faust without a broker. `log` has the changelog's records by their bytes."""

    def __init__(self, size: int, step: int) -> None:
        app = faust.App("theirs", broker="kafka://nowhere", store="memory://")
        self.table: Any = app.Table("views", default=int)
        vars(self.table)["on_key_set"] = self._set
        self.log: dict[bytes, Any] = {}
        self.windows: Any = (
            self.table.tumbling(size) if size == step else self.table.hopping(size, step)
        )

    def _set(self, key: Any, value: Any) -> None:
        self.log[faust.serializers.codecs.dumps("json", key)] = value

    def at(self, at: float, use: Use) -> Any:
        """Return the result of a body for a record of this time."""
        event = FaustEvent(at)
        self.table._partition_latest_timestamp[0] = max(
            at,
            self.table._partition_latest_timestamp[0],
        )
        token = _current_event.set(lambda: event)  # type: ignore[arg-type]
        try:
            return use(self.windows)
        finally:
            _current_event.reset(token)


def add(key: str, amount: int) -> Use:
    def use(windows: Any) -> None:
        windows[key] += amount

    return use


def put(key: str, amount: int) -> Use:
    return lambda windows: operator.setitem(windows, key, amount)


USES: list[Callable[[str, int], Use]] = [
    add, add, put,
    lambda key, _: lambda windows: windows[key].current(),
    lambda key, _: lambda windows: windows[key].value(),
    lambda key, _: lambda windows: windows[key].now(),
    lambda key, n: lambda windows: windows[key].delta(n),
    lambda key, _: lambda windows: windows.relative_to_now()[key].value(),
    lambda key, _: lambda windows: windows[key].delta(3),
]  # fmt: skip


def late_records(driver: TestDriver) -> int:
    """Return the number of late records that the driver's tasks have counted."""
    return sum(task.counts["views"].late for task in driver._tasks.values() if task.counts)


@pytest.mark.parametrize("seed", range(12))
def test_windowed_tables_behave_as_in_faust(seed: int) -> None:
    draw = random.Random(seed)
    size, step = draw.choice([(10, 10), (10, 5), (9, 3)])
    theirs = FaustTable(size, step)
    app = App("ours", topic_partitions=1, store="memory://")
    words = app.topic("words", key_type=str)
    views = app.Table("views", default=int)
    windows = views.tumbling(size) if size == step else views.hopping(size, step)
    uses: list[Use] = []
    found: list[Any] = []

    @app.agent(words, name="use")
    async def body(stream: Any) -> None:
        async for _ in stream:
            found.append(uses[len(found)](windows))

    expected = []
    at = BASE
    records = []
    for _ in range(120):
        at += draw.randrange(0, 3)
        when = float(at - draw.choice([0, 0, 0, draw.randrange(30)]))
        uses.append(draw.choice(USES)(f"w{draw.randrange(4)}", draw.randrange(1, 20)))
        expected.append(theirs.at(when, uses[-1]))
        records.append(("k", 1, when))
    with TestDriver(app) as driver:
        driver.pipe("words", records)
        assert found == expected
        log = {row.key: row.value for row in rows(driver, "ours-views-changelog")}
        assert log == theirs.log


def rows(driver: TestDriver, changelog: str) -> Any:
    app = driver._app
    topic = app.topics.get(changelog) or app.topic(changelog, key_type=bytes)
    return driver.read(topic)


def test_windows_of_a_faust_app_are_taken_over() -> None:
    theirs = FaustTable(10, 5)
    for n in range(40):
        theirs.at(float(BASE + n), add(f"w{n % 3}", n))
    app = App("ours", topic_partitions=1, store="memory://")
    views = app.Table("views", default=int)
    views.hopping(10, 5)
    node = views.node()
    keys = node.local_keys(list(theirs.log))
    assert node.changelog_keys([key[1:] for key in keys if key]) == list(theirs.log)


@pytest.mark.parametrize("seed", range(20))
def test_expired_windows_are_told_once_in_any_cut_and_over_restarts(seed: int) -> None:
    draw = random.Random(seed)
    size, step = draw.choice([(10, 10), (10, 5), (9, 3)])
    expires = draw.choice([0, 15, 40])
    app = App("ours", topic_partitions=1, store="memory://")
    words = app.topic("words", key_type=str)
    closed: list[Any] = []
    table = app.Table(
        "views", default=int, key_type=str, on_window_close=lambda *told: closed.append(told)
    )
    views = table.tumbling(size, expires) if size == step else table.hopping(size, step, expires)

    @app.agent(words, name="count")
    async def count(stream: Any) -> None:
        async for event in stream.events():
            views[event.key] += 1

    want: defaultdict[Any, int] = defaultdict(int)
    late = now = 0
    records = []
    at = float(BASE)
    for _ in range(200):
        at += draw.random() * 3
        when = at - draw.choice([0, 0, 0, draw.random() * 60])
        word = f"w{draw.randrange(4)}"
        records.append((word, 1, when))
        ms = round(when * 1000)
        now = max(now, ms)
        for start in range((ms // 1000 - size) // step * step + step, ms // 1000 + 1, step):
            if (start + size + expires) * 1000 <= now:
                late += 1
            else:
                want[word, start] += 1
    found = 0
    with TestDriver(app) as driver:
        while records:
            n = draw.randrange(1, 40)
            driver.pipe("words", records[:n])
            del records[:n]
            if draw.random() < 0.4:
                found += late_records(driver)
                driver.restart()
        found += late_records(driver)
        assert found == late
        driver.pipe("words", [("x", 1, BASE + 100_000)])
        driver.commit()
        driver.commit()
        assert {key for key, _ in driver.table("views")} == {"x"}
        told = [((key, int(begin)), value) for (key, (begin, _)), value in closed]
        assert len(told) == len(dict(told))
        assert dict(told) == want
        starts = [start for (_, start), _ in told]
        assert starts == sorted(starts)
        (_, (begin, end)), _ = closed[0]
        assert end == begin + size - 0.1


def test_function_that_fails_on_a_window_fails_the_record_and_no_other_window() -> None:
    app = App("ours", topic_partitions=1, store="memory://")
    told = []

    def close(key: Any, value: Any) -> None:
        told.append(key[0])
        if key[0] == "a":
            raise ValueError("no")

    views = app.Table("views", default=int, on_window_close=close).tumbling(10, expires=0)

    @app.agent(app.topic("words", key_type=str), name="count")
    async def count(stream: Any) -> None:
        async for event in stream.events():
            views[event.key] += 1

    with TestDriver(app, raises=False) as driver:
        driver.pipe("words", [("a", 1, BASE), ("b", 1, BASE), ("c", 1, BASE + 20)])
        assert told == ["a", "b"]
        assert [str(each.error) for each in driver.failures] == ["no"]


def test_key_index_keeps_keys_to_iterate() -> None:
    app = App("ours", topic_partitions=1, store="memory://")
    views = app.Table("views", default=int, key_type=str).hopping(10, 5, key_index=True)
    found: list[Any] = []

    @app.agent(app.topic("words", key_type=str), name="count")
    async def count(stream: Any) -> None:
        async for event in stream.events():
            views[event.key] += 1
            if event.key == "end":
                found.extend((sorted(views.keys()), sorted(views.items().delta(10)), len(views)))
                found.append(sorted(views.values().current()))
                found.append("a" in views)
                del views["end"]
                found.append(sorted(views))

    with TestDriver(app) as driver:
        driver.pipe(
            "words", [("a", 1, BASE), ("a", 1, BASE), ("b", 1, BASE), ("end", 1, BASE + 10)]
        )
        assert driver.table("views-key_index") == {"a": 1, "b": 1}
    keys = ["a", "b", "end"]
    assert found == [keys, [("a", 2), ("b", 1), ("end", 0)], 3, [0, 0, 1], False, ["a", "b"]]


def test_windows_go_by_a_field_of_the_value() -> None:
    app = App("ours", topic_partitions=1, store="memory://")
    views = app.Table("views", default=int).tumbling(10).relative_to_field(lambda v: v["at"])

    @app.agent(app.topic("words"), name="count")
    async def count(stream: Any) -> None:
        async for _ in stream:
            views["k"] += 1

    with TestDriver(app) as driver:
        values = [{"at": BASE + 5}, {"at": BASE + 15}, {"at": "2023-11-14T22:13:26+00:00"}]
        driver.pipe("words", [(None, value, 1.0) for value in values])
        assert driver.table("views") == {("k", BASE * 1000): 2, ("k", BASE * 1000 + 10_000): 1}
        with pytest.raises(RuntimeError, match=r"no current record: table views"):
            views["k"].value()
        driver.advance(0)
        assert views["k"].now() == 1 or views["k"].now() == 2


def test_relative_to_stream_goes_back_to_the_timestamps_of_records() -> None:
    app = App("ours", topic_partitions=1, store="memory://")
    views = app.Table("views", default=int).tumbling(10).relative_to_now().relative_to_stream()

    @app.agent(app.topic("words"), name="count")
    async def count(stream: Any) -> None:
        async for _ in stream:
            views["k"] += 1

    with TestDriver(app) as driver:
        driver.pipe("words", [("k", 1, BASE + 15), ("k", 1, BASE + 5)])
        assert driver.table("views") == {("k", BASE * 1000): 1, ("k", BASE * 1000 + 10_000): 1}


def test_wrong_uses_are_refused_with_file_and_line() -> None:
    app = App("ours")
    table = app.Table("views")
    here = Path(__file__).name
    with pytest.raises(ValueError, match=rf"bad window: size 5, step 10.*{here}"):
        table.hopping(5, 10)
    table.tumbling(10)
    with pytest.raises(TopologyError, match=rf"two windows for one table: views .*{here}"):
        table.tumbling(20)

    async def close(key: Any, value: Any) -> None: ...

    with pytest.raises(TypeError, match=rf"not a plain function: table other .*{here}"):
        app.Table("other", on_window_close=close)
    with pytest.raises(NotImplementedError, match="make it with key_index=True"):
        list(table.tumbling(10).keys())
    with pytest.raises(NotSupported, match=r"use table.tumbling"):
        app.Table("third", window=object())
