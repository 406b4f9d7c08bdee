"""Sliding windows and `deduplicate`, compared with plain Python over all records of a key."""

import random
from collections import defaultdict
from typing import Any

import pytest

from streamsx import App
from streamsx.app.window import sliding
from streamsx.errors import TopologyError
from streamsx.testing import TestDriver

SIZE, GRACE = 10, 7
Input = list[tuple[str, int, int]]
"""Key, value and time in ms."""


def some_input(seed: int, count: int = 60) -> Input:
    rng = random.Random(seed)
    at = 0
    made = []
    for n in range(count):
        at += rng.choice((0, 0, 1, 2, 5, 12, 40)) if n % 9 else rng.choice((0, 90))
        made.append((rng.choice("ab"), n, max(0, at - rng.choice((0, 0, 0, 3, 9, 18, 26)))))
    return made


class Reference:
    """Windows of FLOWS 3.2, each computed anew from all records that were not late."""

    def __init__(self) -> None:
        self.now = -1
        self.seen: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self.had: defaultdict[str, set[int]] = defaultdict(set)

    def updates(self, key: str, value: int, at: int) -> list[tuple[int, list[int]]]:
        """Return the changed windows: starts and values, ascending."""
        self.now = max(self.now, at)
        if at + SIZE + GRACE < self.now:
            return []
        self.seen[key].append((at, value))
        times = {t for t, _ in self.seen[key]}
        starts = {max(0, t - SIZE) for t in times}
        starts |= {t + 1 for t in times if any(t < x <= t + 1 + SIZE for x in times)}
        had = self.had[key]
        changed = [s for s in starts | had if s <= at <= s + SIZE or s not in had]
        had |= starts
        return [
            (s, [v for t, v in self.seen[key] if s <= t <= s + SIZE])
            for s in sorted(changed)
            if s + SIZE + GRACE >= self.now
        ]


def app_of(emit: str, store: str = "memory://", **settings: Any) -> App:
    app = App("sliding", topic_partitions=1, store=store, **settings)
    groups = app.flow("in").group_by_key().window(sliding("10ms", grace="7ms"))
    groups.aggregate(list, lambda _k, v, so_far: [*so_far, v], "w", emit=emit).to("out")
    return app


def results(driver: TestDriver) -> list[Any]:
    return [(each.key, each.value) for each in driver.read("out")]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_sliding_windows_change_as_if_each_was_computed_anew(seed: int, *, restarts: bool) -> None:
    reference = Reference()
    wanted = []
    with TestDriver(app_of("update")) as driver:
        for key, value, at in some_input(seed):
            changed = reference.updates(key, value, at)
            wanted += [(f'["{key}",{s},{s + SIZE}]'.encode(), values) for s, values in changed]
            driver.pipe("in", [(key, value, at / 1000)])
            if restarts and value % 3 == seed % 3:
                driver.restart()
        assert results(driver) == wanted


@pytest.mark.parametrize("seed", range(25))
def test_final_of_a_sliding_window_is_the_newest_update(seed: int) -> None:
    last: dict[str, Any] = {}
    reference = Reference()
    for key, value, at in [*some_input(seed), ("c", 0, 10_000)]:
        for start, values in reference.updates(key, value, at):
            last[f'["{key}",{start},{start + SIZE}]'] = values
    with TestDriver(app_of("final")) as driver:
        for key, value, at in some_input(seed):
            driver.pipe("in", [(key, value, at / 1000)])
            if value % 4 == seed % 4:
                driver.restart()
        driver.pipe("in", [("c", 0, 10.0)])
        found = [(each.key.decode(), each.value) for each in driver.read("out")]
    assert dict(found) == {key: values for key, values in last.items() if '"c"' not in key}
    assert len(found) == len(dict(found))


def test_rows_of_closed_sliding_windows_are_deleted() -> None:
    with TestDriver(app_of("final")) as driver:
        for at in range(0, 10_000, 50):
            driver.pipe("in", [(f"k{at % 7}", at, at / 1000)])
        driver.pipe("in", [("last", 0, 20.0)])
        driver.pipe("in", [("last", 0, 20.0)])
        driver.pipe("in", [("last", 0, 20.0)])
        rows = list(driver.store("w", 0).rows.scan(b"", b"\xff"))
    assert {row[-4:] for row, _ in rows if row[-4:-3] == b"k"} == set()
    assert len(rows) <= 4


def test_aggregate_that_is_none_fails_its_record() -> None:
    app = App("sliding", topic_partitions=1, store="memory://")
    groups = app.flow("in").group_by_key().window(sliding("10ms"))
    groups.aggregate(int, lambda _k, _v, _n: None, "w", emit="update").to("out")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("in", [("a", 1, 0.005)])
        assert "return a value" in str(driver.failures[0].error)


def test_final_sliding_windows_need_a_grace() -> None:
    groups = App("sliding").flow("in").group_by_key().window(sliding("10ms"))
    with pytest.raises(TopologyError, match=r"without a grace .*test_sliding.py:\d+"):
        groups.count("w", emit="final")


# -- deduplicate


def passed(seed: int, *, restarts: bool) -> tuple[list[int], list[int], int]:
    """Return the values that passed, those that should, and the number of late records."""
    app = App("dedup", topic_partitions=1, store="memory://")
    app.flow("in").deduplicate(key=lambda v: v["id"], within="10ms", grace="7ms", name="d").to(
        "out"
    )
    now = -1
    wanted: list[int] = []
    known: defaultdict[Any, list[Any]] = defaultdict(list)
    with TestDriver(app) as driver:
        for id_, value, at in some_input(seed):
            now = max(now, at)
            times = [t for t in known[id_] if t + SIZE + GRACE >= now]
            if at + SIZE + GRACE >= now and not any(abs(t - at) <= SIZE for t in times):
                known[id_].append(at)
                wanted.append(value)
            driver.pipe("in", [(None, {"id": id_, "n": value}, at / 1000)])
            if restarts:
                driver.restart()
        return [each.value["n"] for each in driver.read("out")], wanted, now


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_first_record_of_an_id_passes_alone(seed: int, *, restarts: bool) -> None:
    found, wanted, _ = passed(seed, restarts=restarts)
    assert found == wanted


def test_ids_of_other_types_are_other_ids() -> None:
    app = App("dedup", topic_partitions=1, store="memory://")
    app.flow("in").deduplicate(key=lambda v: v, within="10s", name="d").to("out")
    with TestDriver(app) as driver:
        driver.pipe("in", [(None, each, 1.0) for each in (5, "5", [5], 5, "5", [5], None, None)])
        assert [each.value for each in driver.read("out")] == [5, "5", [5], None, None]


def test_deduplicate_without_a_name_is_refused() -> None:
    with pytest.raises(TopologyError, match=r"state without a name: .*test_sliding.py:\d+"):
        App("dedup").flow("in").deduplicate(key=str, within="10s", name="")
