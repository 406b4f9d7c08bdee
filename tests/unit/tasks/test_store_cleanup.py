"""Stores of a real worker that none of its tasks uses any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from streamsx.assignor.model import CopyRole
from streamsx.errors import DiskFailed
from streamsx.group import member_events as e
from streamsx.model import TaskId
from streamsx.state.directory import StateDirectory
from tests.unit.conftest import counting, words

if TYPE_CHECKING:
    import pytest

    from tests.unit.conftest import VirtualCluster, WorkerHarness

T0 = TaskId(0, 0)


def closed(bench: VirtualCluster, station: WorkerHarness) -> None:
    station.hand.revoke(T0)
    bench.until(lambda: station.states(T0)[-1] == "closed")


def test_unused_store_is_kept_for_the_cleanup_delay(bench: VirtualCluster) -> None:
    station = bench.begun(counting(state_cleanup_delay=150))
    folder = bench.folder / "w1" / "t" / "stores" / "counts" / "0"
    bench.feed(0, "a")
    station.hand.plan(T0)
    bench.until(lambda: words(0) in bench.committed)
    closed(bench, station)
    bench.run(3)
    copy = station.made.session.builder.report.copies[T0]
    assert (copy.role, copy.lag) == (CopyRole.DORMANT, 0)
    bench.run(145)
    assert folder.is_dir()
    bench.run(120)
    assert not folder.exists()
    assert T0 not in station.made.session.builder.report.copies


def test_store_reused_within_the_cleanup_delay_starts_a_new_delay(bench: VirtualCluster) -> None:
    """Its delay starts again when it is given up again."""
    app = counting(state_cleanup_delay=150)
    station = bench.begun(app)
    folder = bench.folder / "w1" / "t" / "stores" / "counts" / "0"
    station.hand.plan(T0)
    bench.until(lambda: station.states(T0)[-1:] == ["running"])
    closed(bench, station)
    bench.run(130)
    station.hand.plan(T0)
    bench.until(lambda: station.states(T0)[-1] == "running")
    bench.run(100)
    assert folder.is_dir()
    closed(bench, station)
    bench.run(140)
    assert folder.is_dir()
    bench.run(120)
    assert not folder.exists()


def test_disk_failure_on_cleanup_stops_the_worker_in_order(
    bench: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker ended at once, and left the group without a commit."""

    def full(*_: object) -> NoReturn:
        raise DiskFailed("disk full")

    station = bench.begun(counting())
    bench.feed(0, "a")
    station.hand.plan(T0)
    bench.until(lambda: words(0) in bench.committed)
    closed(bench, station)
    monkeypatch.setattr(StateDirectory, "discard", full)
    bench.until(lambda: any(isinstance(said, e.Stop) for said in station.hand.posted), 700)
    assert [told["where"] for told in station.told("error")] == ["worker"]
    assert station.process.alive
