"""Flows: each case on which Kafka Streams and this project's rules agree."""

import random
from pathlib import Path

import pytest

from streamsx.processing import compile as compiling
from streamsx.processing import task as running
from streamsx.testing import TestDriver
from tests.flows.cases import Case, app_of, by_key, cases, expected, run
from tests.flows.life import Life, rows_made

BUDGET_BYTES = 2000

CASES = cases()


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
