"""Flows: random pipelines give the results of plain Python, under any cuts, ends and crashes."""

import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamsx.processing import compile as compiling
from streamsx.processing import task as running
from streamsx.state.factory import STORES
from streamsx.state.layout import SESSION, WINDOW
from streamsx.state.memory import MemoryRows
from streamsx.testing import TestDriver
from tests.flows.cases import Case, Result, app_of, by_key, run
from tests.flows.life import CRASHES, ENDS, Life, MakeRows, lived, results_by_key, rows_made
from tests.flows.pipelines import LAST, drawn, drawn_for_kills, wanted
from tests.flows.reference import answer
from tests.support.timed import SessionsWithTheirCommit, WindowsWithTheirCommit

GATE = 300
SLOW = 5000
KILLED = 40
FAULTS = 200
"""Most lives until a planted fault must have shown."""
PARTS = 10
ROCKS_EACH = 19


@contextmanager
def rows_of(seed: int) -> Iterator[MakeRows]:
    """Make rows in memory, for some seeds in RocksDB."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) if seed % ROCKS_EACH == 1 else None
        with rows_made(folder) as make:
            yield make


def newest(case: Case, found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the part of the results that does not depend on the times of commits."""
    if any(each.get("emit") == "commit" for each in case["ops"]):
        return {key: values[-1:] for key, values in found.items()}
    return found


# -- any cut and any clean end


def hold(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Play a pipeline as tasks of their own, or through a driver, and compare with plain Python."""
    draw = random.Random(f"flows {seed}")
    case = drawn(draw)
    want = answer(case)
    with monkeypatch.context() as patch:
        rows = 1 if draw.random() < 0.3 else draw.choice([3, 500])
        patch.setattr(compiling, "SLICE_ROWS", rows)
        patch.setattr(running, "SLICE_ROWS", rows)
        if seed % 6 == 0:
            with TestDriver(app_of(case)) as driver:
                again = lambda: driver.restart() if draw.random() < 0.1 else None  # noqa: E731
                found = by_key(case, run(case, driver, again))
            assert newest(case, found) == newest(case, by_key(case, iter(wanted(want.results))))
            return
        with rows_of(seed) as make:
            life, results = lived(case, app_of(case), draw, make, ends=(*ENDS, "abort"))
        compare(case, results, wanted(want.results))
        assert not life.failures, life.failures[0]
        assert life.late == want.late


def compare(case: Case, results: list[Result], want: list[Result]) -> None:
    assert newest(case, results_by_key(results)) == newest(case, results_by_key(want)), case


@pytest.mark.parametrize("part", range(PARTS))
def test_random_pipelines_give_the_results_of_plain_python(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(part, GATE, PARTS):
        hold(seed, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_many_random_pipelines_give_the_results_of_plain_python(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(GATE + part, SLOW, PARTS):
        hold(seed, monkeypatch)


# -- kills between the changelogs and the offsets


def killed(
    last: str, seed: int, make: MakeRows, **how: Any
) -> tuple[Case, Life, list[Result], list[Result]]:
    draw = random.Random(f"kills {last} {seed}")
    case = drawn_for_kills(draw, last)
    life, found = lived(case, app_of(case), draw, make, **how)
    return case, life, found, wanted(answer(case).results)


def judge(case: Case, life: Life, found: list[Result], want: list[Result]) -> None:
    """Compare: equal without a kill; over kills no result is missing, and none is too low."""
    assert not life.failures, life.failures[0]
    kind = case["ops"][-1].get("window", {}).get("kind", "join")
    if not life.kills:
        compare(case, found, want)
    elif kind == "join":
        lost = _pairs(want) - _pairs(found)
        assert not lost, next(iter(lost))
    elif kind == "session":
        judge_sessions(found, want, once=life.kills == 1)
    else:
        judge_windows(case, life, found, want)


def _pairs(results: list[Result]) -> Counter[tuple[str, str, int]]:
    return Counter((each.key, repr(each.value), each.at_ms) for each in results)


def judge_windows(case: Case, life: Life, found: list[Result], want: list[Result]) -> None:
    """Check that each window has its last result, and that kills count at most their intervals
    twice.
    """
    last = {each.key: each.value for each in found}
    truth = {each.key: each.value for each in want}
    assert last.keys() == truth.keys(), last.keys() ^ truth.keys()
    low = {key: (last[key], value) for key, value in truth.items() if last[key] < value}
    assert not low, low
    window = case["ops"][-1]["window"]
    each_in = window["size"] // window.get("step", window["size"])
    surplus = sum(last.values()) - sum(truth.values())
    assert surplus <= life.repeated * each_in, (surplus, life.repeated)


def judge_sessions(found: list[Result], want: list[Result], *, once: bool) -> None:
    """Check that each session is in one that is as long and as high: repeated records may join
    more.

    After `once` a kill no session is split.
    """
    told = [(*bounds(each.key), each.value) for each in found]
    known = {bounds(each.key) for each in want}
    for each in want:
        key, start, end = bounds(each.key)
        around = [n for k, s, e, n in told if k == key and s <= start and e >= end]
        assert max(around, default=0) >= each.value, (each, around)
        for k, s, e, _ in told if once else ():
            split = start <= s and e <= end and k == key and (k, s, e) not in known
            assert not split, (each, s, e)


def bounds(key: str) -> tuple[str, int, int]:
    found = json.loads(key)
    return found["key"], found["start"], found["end"]


@pytest.mark.parametrize("last", LAST)
def test_a_kill_between_changelogs_and_offsets_loses_nothing(last: str) -> None:
    for seed in range(KILLED):
        with rows_of(seed) as make:
            judge(*killed(last, seed, make, ends=(*ENDS, *CRASHES), often=0.1))


@pytest.mark.slow
@pytest.mark.parametrize("last", LAST)
def test_many_kills_between_changelogs_and_offsets_lose_nothing(last: str) -> None:
    for seed in range(KILLED, 1000):
        with rows_of(seed) as make:
            judge(*killed(last, seed, make, ends=(*ENDS, *CRASHES), often=0.1))


# -- planted faults


def finds(last: str, **how: Any) -> bool:
    """Return whether a planted fault shows in the results of a life."""
    for seed in range(FAULTS):
        try:
            judge(*killed(last, seed, lambda _name: MemoryRows(), **how))
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize(
    ("last", "kind", "fault"),
    [
        ("tumbling", WINDOW, WindowsWithTheirCommit),
        ("hopping", WINDOW, WindowsWithTheirCommit),
        ("session", SESSION, SessionsWithTheirCommit),
    ],
)
def test_rows_deleted_with_the_commit_that_closes_them_are_found(
    last: str, kind: str, fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STORES, kind, fault)
    assert finds(last, ends=("kill",))


@pytest.mark.parametrize("last", LAST)
def test_life_that_forgets_closed_windows_is_found(last: str) -> None:
    assert finds(last, ends=ENDS, forgets=True)
