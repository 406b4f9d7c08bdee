"""Steps after results that come late, and keys or types that do not fit: refused, with the
remedy.
"""

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from streamsx import App, tumbling
from streamsx.app.flow import Flow
from streamsx.errors import TopologyError
from streamsx.testing import TestDriver

HERE = r"test_late_results\.py:\d+"


@pytest.fixture
def app() -> App:
    return App("x", topic_partitions=1, store="memory://")


def joined(flow: Flow, kind: str) -> Flow:
    other = flow.place.app.flow("other")
    return flow.join(other, lambda a, _b: a, within="5s", grace="60s", kind=kind, name=f"j-{kind}")


def windows(flow: Flow, grace: str = "0s") -> object:
    return flow.group_by_key().window(tumbling("10s", grace=grace)).count("w", emit="final")


LATE: dict[str, Callable[[Flow], object]] = {
    "at commits": lambda flow: windows(flow.group_by_key().count("n").to_flow()),
    r"at commits \(": lambda flow: windows(
        flow.group_by_key().count("n").to_flow().group_by_key().count("m", emit="update").to_flow()
    ),
    "up to 30000 ms behind": lambda flow: windows(
        flow.to_table("t").suppress("30s", name="s").to_flow()
    ),
    "up to 65000 ms behind": lambda flow: windows(joined(flow, "left"), grace="64s"),
    "join closes before": lambda flow: joined(
        flow.to_table("t").suppress("90s", name="s").to_flow(), "inner"
    ),
    "deduplicate closes before": lambda flow: joined(flow, "outer").deduplicate(
        key=str, within="1s", name="d"
    ),
}


@pytest.mark.parametrize(("what", "made"), LATE.items(), ids=LATE)
def test_step_that_closes_before_its_records_come_is_refused(
    app: App, what: str, made: Callable[[Flow], object]
) -> None:
    with pytest.raises(TopologyError, match=rf"{HERE}.*{what}|{what}.*{HERE}"):
        made(app.flow("in"))


def test_window_with_the_grace_of_the_remedy_counts_all(app: App) -> None:
    updates = app.flow("in").group_by_key().count("n", emit="update").to_flow()
    held = updates.to_table("t").suppress("30s", name="s").to_flow()
    held.to("held")
    groups = held.group_by_key().window(tumbling("10s", grace="30s"))
    groups.count("w", emit="final").to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", [("k", 1, second) for second in range(300)])
        driver.pipe("in", [("k", 1, 10_000)])
        given_on = [record for record in driver.read("held") if record.timestamp < 10_000]
        assert sum(record.value for record in driver.read("out")) == len(given_on) > 5


def test_window_behind_results_at_commits_and_a_topic_in_between_counts_all(app: App) -> None:
    counts = app.flow("in").group_by_key().count("n").to_flow()
    counts.group_by(lambda _n: "all").window(tumbling("10s", grace=0)).count("w").to("out")
    with TestDriver(app, commit=False) as driver:
        for second in range(0, 50, 5):
            driver.pipe("in", [(f"k{n}", 1, second + n) for n in range(5)])
            driver.commit()
        driver.commit()
        newest = {record.key: record.value for record in driver.read("out")}
        assert sum(newest.values()) == 50


MISFITS: dict[str, Callable[[App], object]] = {
    "key types differ": lambda app: app.flow("a", key_type=int).join(
        app.flow("b"), lambda a, _b: a, within=1, name="j"
    ),
    r"key types differ \(.*\): give both": lambda app: app.flow("a", key_type=int).join(
        app.table("b"), lambda a, _b: a
    ),
    "through with keys of windows": lambda app: (
        app.flow("a").group_by_key().window(tumbling(1)).count("n").to_flow().through("b")
    ),
    "repartition with keys of windows": lambda app: (
        app.flow("a").group_by_key().window(tumbling(1)).count("n").to_flow().repartition("b")
    ),
    "skips deletions": lambda app: app.flow(app.topic("a", value_type=int)).to_table("t"),
    "bad limit: 0": lambda app: app.flow("a").group_by_key().collect("c", limit=0),
}


@pytest.mark.parametrize(("what", "made"), MISFITS.items(), ids=MISFITS)
def test_keys_and_types_that_do_not_fit_are_refused(
    app: App, what: str, made: Callable[[App], object]
) -> None:
    with pytest.raises(TopologyError, match=what) as refused:
        made(app)
    assert "test_late_results.py" in str(refused.value)


@pytest.mark.parametrize("windowed", [False, True])
def test_aggregate_of_none_fails_its_record_alone(app: App, *, windowed: bool) -> None:
    groups: Any = app.flow("in").group_by_key()
    if windowed:
        groups = groups.window(tumbling("1h"))
    groups.aggregate(
        list, lambda _key, value, so_far: [*so_far, value] if value != "b" else None, "n",
        emit="update",
    ).to("out")  # fmt: skip
    with TestDriver(app, commit=False, raises=False) as driver:
        driver.pipe("in", [("k", word, 1) for word in "abc"])
        assert [record.value for record in driver.read("out")] == [["a"], ["a", "c"]]
        assert "return a value" in str(driver.failures[0].error)


def test_aggregate_that_returns_the_record_keeps_a_copy(app: App) -> None:
    def add(_key: Any, value: dict[str, int], so_far: dict[str, int] | None) -> dict[str, int]:
        if so_far is None:
            return value
        so_far["n"] += value["n"]
        return so_far

    groups = app.flow("in").group_by_key()
    groups.aggregate(lambda: None, add, "one", emit="update").to("one")
    groups.aggregate(lambda: None, add, "two", emit="update").to("two")
    with TestDriver(app, commit=False) as driver:
        driver.pipe("in", [("k", {"n": 1}, n) for n in range(3)])
        for topic in ("one", "two"):
            assert [record.value["n"] for record in driver.read(topic)] == [1, 2, 3]


@pytest.mark.parametrize("step", ["sum", "max"])
def test_decimals_are_summed_and_compared_with_their_type(app: App, step: str) -> None:
    groups = app.flow("in", value_type=Decimal).group_by_key()
    made = getattr(groups, step)(lambda value: value, "n", value_type=Decimal, emit="update")
    made.to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", [("k", Decimal("1.5"), 1), ("k", Decimal("2.5"), 2)])
        assert driver.table("n") == {"k": Decimal("4.0" if step == "sum" else "2.5")}


def test_merge_keeps_a_type_that_is_equal(app: App) -> None:
    flows = [app.flow(name, value_type=list[int]) for name in "ab"]
    assert flows[0].merge(flows[1]).place.shape.value_type == list[int]


def test_time_without_a_zone_is_in_utc_and_a_deletion_keeps_its_own(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    flow = app.flow("in", timestamp=datetime.fromisoformat)
    flow.to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", [("k", "1970-01-02T00:00:00", 5), ("k", None, 7)])
        assert [record.timestamp for record in driver.read("out")] == [86_400.0, 7.0]
