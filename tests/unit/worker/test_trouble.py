"""Whole workers whose topics grow and vanish, and whose disk fills up or has leftovers."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NoReturn

import pytest

from streamsx.errors import DiskFailed, PartitionCountChanged, StoreCorrupt
from streamsx.group import member_events as e
from streamsx.model import TaskId, TopicPartition
from tests.unit.conftest import KeptRows, app_of, counting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamsx import App, Stream
    from tests.unit.conftest import VirtualCluster, WorkerHarness


def copying() -> App:
    """Return an app with two topics in one sub-topology, without state."""
    app = app_of()
    out = app.topic("out", partitions=1, value_serializer="raw")

    @app.agent(app.topic("a", "b", value_type=bytes, value_serializer="raw"))
    async def copy(stream: Stream[bytes]) -> None:
        async for value in stream:
            await out.send(value=value)

    return app


def start(bench: VirtualCluster, app: App, name: str = "w1") -> WorkerHarness:
    return bench.station(app, name, by_hand=False)


def runs(station: WorkerHarness, tasks: int) -> bool:
    return station.begun and len(station.made.tasks.actives) == tasks


def send(bench: VirtualCluster, topic: str, *partitions: int) -> set[bytes]:
    """Send a record to each partition; return the values."""
    values = {partition: b"%s-%d" % (topic.encode(), partition) for partition in partitions}
    for partition, value in values.items():
        bench.append(TopicPartition(topic, partition), [(None, value)])
    return set(values.values())


def until_copied(bench: VirtualCluster, sent: set[bytes]) -> None:
    out = TopicPartition("out", 0)
    bench.until(lambda: bench.log(out).high_watermark >= len(sent), 20)
    assert sorted(value or b"" for _, value in bench.read(out)) == sorted(sent)


def rounds(station: WorkerHarness, since: float) -> int:
    return sum(at >= since and name == "rebalance_started" for at, name, _ in station.events)


def test_partitions_added_to_a_running_task_are_read(bench: VirtualCluster) -> None:
    """The member claimed b-2 and b-3, and no task read them."""
    bench.create("a", 4)
    bench.create("b", 2)
    station = start(bench, copying())
    bench.until(lambda: runs(station, 4))
    sent = send(bench, "a", 0, 1, 2, 3) | send(bench, "b", 0, 1)
    bench.grow("b", 4)
    sent |= send(bench, "b", 2, 3)
    until_copied(bench, sent)
    bench.until(lambda: runs(station, 4))
    assert station.made.tasks.actives[TaskId(0, 2)].sources == [
        TopicPartition("a", 2), TopicPartition("b", 2),
    ]  # fmt: skip


def test_worker_with_state_for_fewer_partitions_commits_and_ends(bench: VirtualCluster) -> None:
    first, second = start(bench, counting(), "w1"), start(bench, counting(), "w2")
    bench.until(lambda: runs(first, 2) or runs(second, 2))
    for partition in range(3):
        bench.feed(partition, "a")
    at = bench.scheduler.now
    bench.grow("words", 5)
    bench.until(lambda: not first.process.alive and not second.process.alive, 20)
    assert bench.scheduler.now - at < 12
    for station in (first, second):
        assert isinstance(station.main.error, PartitionCountChanged)
        assert station.told("left")
        assert not [task for task in station.told("task") if task["task"] in ("0_3", "0_4")]
    assert bench.counted() == {"a": 3}


def test_vanished_topic_causes_few_rounds_and_is_read_when_recreated(bench: VirtualCluster) -> None:
    bench.create("a", 2)
    bench.create("b", 2)
    station = start(bench, copying())
    bench.until(lambda: runs(station, 2))
    at = bench.scheduler.now
    bench.delete("b")
    bench.run(25)
    assert rounds(station, at) <= 2
    sent = send(bench, "a", 0, 1)
    until_copied(bench, sent)
    at = bench.scheduler.now
    bench.create("b", 2)
    sent |= send(bench, "b", 0, 1)
    until_copied(bench, sent)
    bench.run(6)
    assert rounds(station, at) <= 1


def test_worker_with_a_full_disk_leaves_and_committed_state_is_safe(bench: VirtualCluster) -> None:
    first, second = start(bench, counting(), "w1"), start(bench, counting(), "w2")
    bench.until(lambda: all(it.begun and it.made.tasks.actives for it in (first, second)))
    first.full = True
    at = bench.scheduler.now
    for partition in range(3):
        bench.feed(partition, "a", "b")
    bench.until(lambda: not first.process.alive, 20)
    assert isinstance(first.main.error, DiskFailed)
    assert (len(first.told("error")), len(first.told("left"))) == (1, 1)
    bench.until(lambda: runs(second, 3), 20)
    assert bench.scheduler.now - at < 20
    bench.run(3)
    assert bench.counted() == {"a": 3, "b": 3}


@pytest.mark.parametrize("asked", ["CachedStore.preload_some", "holds_rows"])
def test_worker_failing_to_read_ahead_from_a_store_leaves(
    bench: VirtualCluster, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    def damaged(*_: object) -> NoReturn:
        raise StoreCorrupt("store damaged: here")

    station = start(bench, counting())
    monkeypatch.setattr(f"streamsx.state.cache.{asked}", damaged)
    bench.until(lambda: not station.process.alive, 20)
    assert isinstance(station.main.error, StoreCorrupt)
    assert (len(station.told("error")), len(station.told("left"))) == (1, 1)


@pytest.mark.parametrize("asked", ["write", "close", "position"])
def test_worker_with_a_damaged_store_commits_other_tasks_and_ends(
    bench: VirtualCluster, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """A compaction has met a broken block: RocksDB takes no more writes."""

    def damaged(*_: object) -> NoReturn:
        raise StoreCorrupt("store damaged: here")

    station = start(bench, counting())
    bench.until(lambda: runs(station, 3) and all(station.states(TaskId(0, p)) for p in range(3)))
    for partition in range(3):
        bench.feed(partition, "a")
    bench.until(lambda: bench.counted() == {"a": 3})
    bench.run(3)
    monkeypatch.setattr(station.stores["counts", 0], asked, damaged)
    at = bench.scheduler.now
    for partition in range(3):
        bench.feed(partition, "b")
    bench.until(lambda: bench.counted()["b"] == 3)
    if asked != "write":
        station.process.signal(signal.SIGTERM)
    bench.until(lambda: not station.process.alive, 20)
    assert isinstance(station.main.error, StoreCorrupt)
    assert (len(station.told("error")), len(station.told("left"))) == (1, 1)
    assert bench.scheduler.now - at < 10


def test_closed_store_refused_by_a_full_disk_is_not_written_again(
    bench: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit of 0_0 is being written, that of 0_1 waits, and 0_1 is revoked: its closing finds
    the disk full. The cycle then wrote to closed rows, which ended the worker.
    """
    station = bench.begun(counting())
    station.hand.plan(TaskId(0, 0), TaskId(0, 1))
    bench.until(lambda: len(station.stores) == 2)
    station.hand.holds = True
    for first in range(8):
        bench.feed(0, *(f"{first}-{second}" for second in range(500)))
    bench.feed(1, "a")
    bench.until(lambda: [asked for asked in station.hand.posted if isinstance(asked, e.Commit)])
    full, closed = station.stores["counts", 1], list[object]()
    written = KeptRows.write

    def write(rows: KeptRows, part: Mapping[bytes, bytes | None], position: int | None) -> None:
        assert rows not in closed
        if rows is full:
            raise DiskFailed("disk full")
        written(rows, part, position)

    def close(rows: KeptRows) -> None:
        closed.append(rows)

    monkeypatch.setattr(KeptRows, "write", write)
    monkeypatch.setattr(KeptRows, "close", close)
    station.write_s = 0.05
    (asked,) = (asked for asked in station.hand.posted if isinstance(asked, e.Commit))
    station.hand.commit(asked)
    bench.run(0.1)
    station.hand.revoke(TaskId(0, 1))
    bench.until(lambda: station.position(0))
    bench.run(0.1)
    assert station.process.alive
    assert closed == [full]
    assert [told["where"] for told in station.told("error")] == ["worker"]


def test_worker_with_a_full_disk_during_restore_leaves(bench: VirtualCluster) -> None:
    station = bench.begun(counting())
    bench.remember(TopicPartition("t-counts-changelog", 0), 4)
    station.full = True
    station.hand.plan(TaskId(0, 0))
    bench.until(lambda: station.told("error"))
    (told,) = station.told("error")
    assert told["where"] == "worker"
    bench.until(lambda: station.states(TaskId(0, 0))[-1] == "closed")
    assert "running" not in station.states(TaskId(0, 0))


def test_trash_of_an_earlier_process_is_deleted(bench: VirtualCluster) -> None:
    """Killed while it cleaned up, the process left a store that no later one deleted."""
    trash = bench.folder / "w1" / "t" / "trash"
    (trash / "0123").mkdir(parents=True)
    (trash / "0123" / "000009.sst").touch()
    bench.begun(counting())
    assert not trash.exists()
