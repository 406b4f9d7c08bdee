"""tasks/handovers.py: durations of hand-overs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from streamsx.group import member_events as e
from streamsx.model import TaskId
from tests.unit.conftest import changelog, counting

if TYPE_CHECKING:
    from tests.unit.conftest import VirtualCluster, WorkerHarness

T0 = TaskId(0, 0)
MOMENT_S = 0.0002
"""What happens in one step of a loop."""


def near(bench: VirtualCluster) -> WorkerHarness:
    """Return a learner at the end of its changelog."""
    station = bench.begun(counting())
    bench.remember(changelog(0), 1)
    station.hand.plan(learners=[T0])
    bench.until(lambda: e.Ready() in station.hand.posted)
    bench.run(1.0)
    return station


def first(station: WorkerHarness, event: str, **fields: object) -> float:
    """Return the time of the first event with these fields."""
    return next(
        at for at, name, told in station.events if name == event and fields.items() <= told.items()
    )


def promoted(station: WorkerHarness, until: float) -> dict[str, object]:
    """Return the event of a hand-over that lasted until then, with a store at its end."""
    granted = first(station, "assigned", active=[str(T0)])
    ms = pytest.approx((until - granted) * 1000, abs=MOMENT_S * 1000)
    return {"task": str(T0), "lag": 0, "handover_ms": ms, "at": pytest.approx(until, abs=MOMENT_S)}


def test_promotion_lasts_until_the_first_record_and_is_reported_once(bench: VirtualCluster) -> None:
    station = near(bench)
    bench.feed(0, "a", "b")
    station.hand.plan(T0)
    bench.until(lambda: station.told("promoted"))
    bench.feed(0, "c")
    bench.run(3.0)
    assert station.told("promoted") == [promoted(station, first(station, "first_record"))]


def test_promotion_without_input_lasts_until_running(bench: VirtualCluster) -> None:
    station = near(bench)
    station.hand.plan(T0)
    bench.run(3.0)
    assert station.told("promoted") == [promoted(station, first(station, "task", to="running"))]
    bench.feed(0, "late")
    bench.run(1.0)
    assert len(station.told("promoted")) == 1


def test_new_or_lost_task_reports_no_promotion(bench: VirtualCluster) -> None:
    station = near(bench)
    station.hand.plan(T0)
    station.hand.lose(T0)
    bench.run(1.0)
    bench.feed(0, "a")
    station.hand.plan(T0)
    bench.until(lambda: station.told("first_record"))
    bench.run(3.0)
    assert station.told("promoted") == []
