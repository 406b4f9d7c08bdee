"""Stores by stream time against plain dicts: any cut of commits, restarts, restores and kills."""

import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamsx.state.api import Rows
from streamsx.state.layout import SESSION, WINDOW
from streamsx.state.memory import MemoryRows
from streamsx.state.rocks import RocksMemory, RocksRows
from tests.support.timed import (
    Counting,
    Joining,
    Life,
    Operator,
    Sessions,
    SessionsWithTheirCommit,
    WindowsWithTheirCommit,
    inputs,
)

SEEDS = 24
LIVES = 200
"""Most lives until a fault must have shown: of 200, 73 show it with windows, 3 with sessions."""
RECORDS = 250
MEMORY = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=8 << 20)


def counting(draw: random.Random, *, final: bool = True) -> Operator:
    size = draw.choice([50, 100, 1000])
    hop = draw.choice([size, size // 2, size // 5])
    return Counting(size, hop, draw.choice([0, 30, 300]), draw.randrange(1, 20), final)


def updating(draw: random.Random) -> Operator:
    return counting(draw, final=False)


def sessions(draw: random.Random) -> Operator:
    return Sessions(draw.choice([20, 60]), draw.choice([0, 50]), draw.randrange(1, 20))


def joining(draw: random.Random) -> Operator:
    before, after = draw.choice([(20, 20), (100, 100), (0, 50), (70, 20)])
    outer = draw.choice(["", "l", "lr"])
    return Joining(before, after, draw.choice([0, 50]), draw.randrange(1, 20), outer)


OPERATORS: dict[str, Callable[[random.Random], Operator]] = {
    "final": counting, "update": updating, "session": sessions, "join": joining,
}  # fmt: skip


@pytest.fixture
def rocks() -> Iterator[Callable[[str], Rows]]:
    made: list[RocksRows] = []
    with tempfile.TemporaryDirectory() as folder:

        def make(name: str) -> Rows:
            rows = RocksRows(Path(folder) / f"{name}-{len(made)}", MEMORY, "{}")
            made.append(rows)
            return rows

        yield make
        for rows in made:
            rows.close()


def lived(
    name: str, seed: int, rows: Callable[[str], Rows], crash: float, **planted: Any
) -> tuple[Life, list[Any]]:
    """Run one life, and return it with the results of the model."""
    draw = random.Random(f"{name} {seed}")
    operator = OPERATORS[name](draw)
    budget = draw.choice([2000, 1 << 20])
    life = Life(operator, rows, budget, draw, **planted)
    records = inputs(draw, RECORDS)
    life.run(records, crash)
    return life, operator.model(records)


def judge(name: str, life: Life, want: list[Any]) -> None:
    """Compare results: the same in order, or after a kill none that is lost or too small."""
    if not life.kills:
        assert life.out == want
    elif name == "join":
        assert {each for each in want if each[0] == "b"} <= set(life.out)
    elif name == "session":
        judge_sessions(life.out, want, once=life.kills == 1)
    else:
        last = {tuple(bounds): count for *bounds, count in life.out}
        for *bounds, count in want:
            assert last.get(tuple(bounds), 0) >= count, (bounds, count)


def judge_sessions(out: list[Any], want: list[Any], *, once: bool) -> None:
    """Check sessions: repeated records may join sessions to one. After `once` a kill none is
    split.
    """
    told = {tuple(bounds) for *bounds, _ in want}
    for start, end, key, count in want:
        around = [n for s, e, k, n in out if s <= start and e >= end and k == key]
        assert max(around, default=0) >= count, (start, end, key, count)
        for s, e, k, _ in out if once else ():
            split = start <= s and e <= end and k == key and (s, e, k) not in told
            assert not split, (start, end, key, s, e)


@pytest.mark.parametrize("crash", [0, 0.02])
@pytest.mark.parametrize("name", OPERATORS)
def test_any_life_gives_the_results_of_plain_dicts(name: str, crash: float) -> None:
    for seed in range(SEEDS):
        life, want = lived(name, seed, lambda _: MemoryRows(), crash)
        judge(name, life, want)


@pytest.mark.parametrize("name", OPERATORS)
def test_rows_in_rocksdb_give_the_results_of_plain_dicts(
    name: str, rocks: Callable[[str], Rows]
) -> None:
    for seed in range(3):
        life, want = lived(name, seed, rocks, 0.02)
        judge(name, life, want)


def finds_fault(name: str, crash: str, **planted: Any) -> bool:
    """Return whether a fault shows in the results of a life."""
    for seed in range(LIVES):
        life, want = lived(name, seed, lambda _: MemoryRows(), 0.01, crashes=[crash], **planted)
        try:
            judge(name, life, want)
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize(
    ("name", "kind", "fault"),
    [("final", WINDOW, WindowsWithTheirCommit), ("session", SESSION, SessionsWithTheirCommit)],
)
def test_rows_deleted_with_the_commit_that_closes_them_are_found(
    name: str, kind: str, fault: Any
) -> None:
    assert finds_fault(name, "kill", planted={kind: fault})


@pytest.mark.parametrize("name", ["final", "session", "join"])
def test_closed_position_that_is_not_resumed_is_found(name: str) -> None:
    assert finds_fault(name, "restart", forgets=True)
