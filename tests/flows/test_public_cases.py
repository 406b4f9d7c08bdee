"""Flows: each case on which Kafka Streams and this project's rules agree."""

import random
from pathlib import Path

import pytest

from streamsx.processing import compile as compiling
from streamsx.processing import task as running
from streamsx.testing import TestDriver
from tests.flows.cases import OPERATORS, WINDOWS, Case, app_of, by_key, cases, expected, run
from tests.flows.life import Life, rows_made

BUDGET_BYTES = 2000

GROUPS = {
    "event-time",
    "stateless",
    "aggregate",
    "stream-table",
    "tumbling",
    "hopping",
    "session",
    "sliding",
    "deduplicate",
    "join-inner",
    "join-left",
    "join-outer",
    "table-table",
    "table-ops",
    "global",
    "foreign-key",
    "suppress",
}
MIXED = {"by-hand", "compose", "event-time"}
"""Groups with cases of many operators: those whose operators and windows exist are run."""
OPEN = {"compose/7-4", "event-time/7-2"}


def _runs(case: Case) -> bool:
    operators = {op["op"] for op in case["ops"]}
    windows = {op["window"]["kind"] for op in case["ops"] if "window" in op}
    mixed = case["group"] in MIXED and case["id"] not in OPEN
    known = operators <= OPERATORS.keys() and windows <= WINDOWS.keys()
    return case["group"] in GROUPS or (mixed and known)


CASES = [case for case in cases() if _runs(case)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case_gives_the_results_of_kafka_streams(case: Case) -> None:
    with TestDriver(app_of(case)) as driver:
        assert by_key(case, run(case, driver)) == expected(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case_gives_the_same_results_over_restarts(case: Case) -> None:
    with TestDriver(app_of(case)) as driver:
        assert by_key(case, run(case, driver, driver.restart)) == expected(case)


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case_gives_the_same_results_in_any_cut_with_a_small_cache(
    case: Case, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "SLICE_ROWS", 1)
    monkeypatch.setattr(running, "SLICE_ROWS", 1)
    draw = random.Random(case["id"])
    with rows_made(tmp_path if kind == "rocksdb" else None) as make:
        life = Life(app_of(case), draw, make, BUDGET_BYTES, often=0.1)
        assert by_key(case, life.step_by_step(case["inputs"])) == expected(case)
