"""Stores of a real worker: damaged, locked and slow ones, and leftovers on the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from streamsx.assignor.model import CopyRole
from streamsx.errors import StoreCorrupt, StoreLocked
from streamsx.model import TaskId
from streamsx.state.memory import MemoryRows
from tests.unit.conftest import ROWS_PER_BATCH, changelog, counting, words

if TYPE_CHECKING:
    import pytest

    from tests.unit.conftest import VirtualCluster, WorkerHarness

T0, T1 = TaskId(0, 0), TaskId(0, 1)


def counted_once(bench: VirtualCluster) -> WorkerHarness:
    """Run a worker until it has committed one word of the first task."""
    station = bench.begun(counting())
    bench.feed(0, "a")
    station.hand.plan(T0)
    bench.until(lambda: words(0) in bench.committed)
    bench.run(0.1)
    return station


def closed(bench: VirtualCluster, station: WorkerHarness, task: TaskId) -> None:
    station.hand.revoke(task)
    bench.until(lambda: station.states(task)[-1] == "closed")


def test_damaged_store_is_moved_away_and_restored(bench: VirtualCluster) -> None:
    station = counted_once(bench)
    closed(bench, station, T0)
    station.refusals = [StoreCorrupt("store damaged: here")]
    station.hand.plan(T0)
    bench.until(lambda: station.states(T0)[-1] == "running")
    (told,) = station.told("error")
    assert "store damaged: here: moved to" in str(told["what"])
    assert "store counts of task 0_0" in str(told["where"])
    assert [path.parent.name for path in bench.folder.glob("w1/t/trash/*")] == ["trash"]


def test_briefly_locked_store_is_waited_for(bench: VirtualCluster) -> None:
    station = bench.begun(counting())
    station.refusals = [StoreLocked("store in use")] * 8
    began = bench.scheduler.now
    station.hand.plan(T0)
    bench.until(lambda: station.states(T0)[-1:] == ["running"])
    assert 2.0 <= bench.scheduler.now - began < 2.5


def test_permanently_locked_store_ends_the_worker(bench: VirtualCluster) -> None:
    station = bench.begun(counting())
    station.refusals = [StoreLocked("store in use")] * 1000
    began = bench.scheduler.now
    station.hand.plan(T0)
    bench.until(lambda: station.told("error"))
    assert 5.0 <= bench.scheduler.now - began < 5.5
    assert "store in use" in str(station.told("error"))


def test_store_failing_to_close_is_given_up_and_reported(bench: VirtualCluster) -> None:
    station = counted_once(bench)
    bench.scheduler.disk_s = 1e9
    began = bench.scheduler.now
    closed(bench, station, T0)
    assert 30 <= bench.scheduler.now - began < 31
    (told,) = station.told("error")
    assert "not closed after 30 s" in str(told["what"])
    assert told["where"] == "store counts of task 0_0"


def test_store_of_an_earlier_process_counts_as_a_copy(bench: VirtualCluster) -> None:
    first = counted_once(bench)
    first.process.kill()
    bench.remember(changelog(0), 1)
    (bench.folder / "w1" / "t" / "stores" / "of another version" / "0").mkdir(parents=True)
    second = bench.station(counting(), "w1", stores=first.stores)
    bench.until(lambda: second.hand.alive)
    bench.run(0.1)
    (copy,) = second.made.session.builder.report.copies.items()
    assert copy[0] == T0
    assert (copy[1].role, copy[1].lag) == (CopyRole.DORMANT, ROWS_PER_BATCH)


def test_damaged_store_of_an_earlier_process_is_moved_away(bench: VirtualCluster) -> None:
    first = counted_once(bench)
    first.process.kill()
    second = bench.station(counting(), "w1", stores=first.stores)
    second.refusals = [StoreCorrupt("store damaged: here")]
    bench.until(lambda: second.hand.alive)
    bench.run(0.1)
    assert second.told("error") == [
        {"what": "store damaged: here: moved away", "where": "store counts-0"}
    ]
    assert second.made.session.builder.report.copies == {}


def test_sound_store_beside_a_damaged_one_counts_as_a_copy(bench: VirtualCluster) -> None:
    """Otherwise another worker restores it, from the first record on."""
    first = counted_once(bench)
    bench.feed(1, "b")
    first.hand.plan(T0, T1)
    bench.until(lambda: words(1) in bench.committed)
    bench.run(0.1)
    first.process.kill()
    second = bench.station(counting(), "w1", stores=first.stores)
    second.refusals = [StoreCorrupt("store damaged: here")]
    bench.until(lambda: second.hand.alive)
    bench.run(0.1)
    assert [told["where"] for told in second.told("error")] == ["store counts-0"]
    (copy,) = second.made.session.builder.report.copies.items()
    assert (copy[0], copy[1].role, copy[1].lag) == (T1, CopyRole.DORMANT, 0)


def test_store_with_an_unreadable_position_is_moved_away(
    bench: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker did not start."""

    def damaged(_: MemoryRows) -> NoReturn:
        raise StoreCorrupt("store damaged: here")

    first = counted_once(bench)
    first.process.kill()
    monkeypatch.setattr(MemoryRows, "position", damaged)
    second = bench.station(counting(), "w1", stores=first.stores)
    bench.until(lambda: second.hand.alive)
    assert [told["where"] for told in second.told("error")] == ["store counts-0"]
    assert not (bench.folder / "w1" / "t" / "stores" / "counts" / "0").exists()


def test_table_in_memory_is_restored_each_time(bench: VirtualCluster) -> None:
    station = bench.begun(counting(store="memory://"))
    end = bench.remember(changelog(0), 1)
    for number in (1, 2):
        station.hand.plan(T0)
        bench.until(lambda: station.states(T0)[-1:] == ["running"])
        store = station.made.tasks.actives[T0].task.stores["counts"]
        assert sum(1 for _ in store.items()) == end
        station.hand.revoke(T0, number=number)
        bench.until(lambda: station.states(T0)[-1] == "closed")
    assert station.states(T0).count("restoring") == 2
    bench.run(3)
    assert station.made.session.builder.report.copies[T0].lag == end
    assert not (bench.folder / "w1" / "t" / "stores").exists()
