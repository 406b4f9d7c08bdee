"""engine/promotions.py: how long hand-overs took, and which of them there were."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamsx.clock import SystemClock
from streamsx.engine.journal import Journal
from streamsx.engine.promotions import Promotions
from streamsx.model import TaskId

A, B = TaskId(0, 0), TaskId(1, 0)


class Told:
    def __init__(self, path: Path) -> None:
        self._path, self.journal = path, Journal("w1", SystemClock(), path)
        self.promotions = Promotions(self.journal)

    @property
    def promoted(self) -> list[tuple[str, int, float]]:
        """Task, lag, milliseconds; in order."""
        events = [json.loads(line) for line in self._path.read_text().splitlines()]
        return [(e["task"], e["lag"], e["handover_ms"]) for e in events]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    told = Told(tmp_path / "events.jsonl")
    yield told
    told.journal.close()


def test_a_promotion_lasts_until_the_first_record_and_is_told_once(told: Told) -> None:
    told.promotions.begin(A, lag=7, now=10.0)
    told.promotions.running(A, now=10.5)
    assert told.promoted == []
    told.promotions.done(A, at=11.25)
    told.promotions.done(A, at=12.0)
    assert told.promoted == [("0_0", 7, 1250.0)]


def test_one_that_finds_no_input_lasted_until_it_ran(told: Told) -> None:
    for task in (A, B):
        told.promotions.begin(task, lag=0, now=10.0)
        told.promotions.running(task, now=10.5)
    told.promotions.idle([A, B], lambda task: task == A)
    assert told.promoted == [("0_0", 0, 500.0)]
    told.promotions.done(B, at=13.0)
    assert told.promoted[1:] == [("1_0", 0, 3000.0)]


def test_what_was_never_promoted_or_was_taken_away_is_not_told(told: Told) -> None:
    told.promotions.running(A, now=1.0)
    told.promotions.begin(B, lag=0, now=1.0)
    told.promotions.drop(B)
    told.promotions.done(A, at=2.0)
    told.promotions.done(B, at=2.0)
    assert told.promoted == []
