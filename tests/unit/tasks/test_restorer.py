"""tasks/restorer.py: tasks whose role changes while their stores open."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from streamsx.client.admin import Bounds
from streamsx.clock import SystemClock
from streamsx.errors import DiskFailed
from streamsx.journal import Journal
from streamsx.model import Role, TaskId, TopicPartition
from streamsx.processing.batch import Batch
from streamsx.serde.codec import table_codec, table_key_codec
from streamsx.state.api import ROW, Rows, holds_rows
from streamsx.state.directory import StateDirectory
from streamsx.state.layout import StoreNode
from streamsx.state.memory import MemoryRows
from streamsx.state.rocks import RocksMemory, RocksRows
from streamsx.tasks.restorer import Restorer
from streamsx.tasks.state_machine import TaskEvent
from streamsx.tasks.task_registry import Happened

TASK, CHANGELOG = TaskId(0, 2), TopicPartition("app-counts-changelog", 2)
COUNTS = StoreNode("counts", CHANGELOG.topic, table_key_codec(str), table_codec(int))


class Reading:
    """Fetcher that returns the records it was given."""

    def __init__(self) -> None:
        self.reads: dict[TopicPartition, int] = {}
        self.batches: list[Batch] = []

    def take(self, _: TopicPartition) -> Batch | None:
        return self.batches.pop(0) if self.batches else None

    def add(self, tp: TopicPartition, offset: int) -> None:
        self.reads[tp] = offset

    def end(self, _: TopicPartition) -> int:
        return -1

    def remove(self, tp: TopicPartition) -> None:
        self.reads.pop(tp, None)


def batch_of(start: int, stop: int) -> Batch:
    offsets = range(start, stop)
    keys = [b"%d" % n for n in offsets]
    times = [0] * len(offsets)
    return Batch(CHANGELOG.topic, CHANGELOG.partition, keys, keys, times, offsets, None, stop)


class Told:
    def __init__(self) -> None:
        self.done: list[tuple[Role | None, bool]] = []

        self.errors: list[Exception] = []

    def restored(self, now: Happened) -> None:
        self.done.append((now.role, now.event is TaskEvent.REACHED_END))

    def failed(self, _: TaskId, error: Exception) -> None:
        self.errors.append(error)


def restorer_of(reading: Any, told: Told, directory: StateDirectory) -> Restorer:
    clock = SystemClock()
    return Restorer(
        fetcher=reading,
        lag_max=20,
        kept=directory.kept,
        restored=told.restored,
        failed=told.failed,
        journal=Journal("a", clock),
        clock=clock,
    )


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[StateDirectory]:
    directory = StateDirectory(tmp_path, "app")
    yield directory
    directory.release()


def ends(restorer: Restorer, role: Role, rows: Rows, end: int) -> bool:
    bounds = {CHANGELOG: Bounds(0, end)}
    return restorer.ends(TASK, role, [COUNTS], {"counts": CHANGELOG}, {"counts": rows}, bounds)


def test_learner_promoted_before_ends_are_read_is_done_at_the_end(
    directory: StateDirectory,
) -> None:
    """The task kept following for ever, and ran nowhere."""
    reading, told = Reading(), Told()
    restorer = restorer_of(reading, told, directory)
    rows = MemoryRows()
    rows.write({b"a": b"1"}, 211)

    assert not ends(restorer, Role.ACTIVE, rows, 211)

    assert told.done[-1] == (Role.ACTIVE, True)


def test_promoted_learner_restores_up_to_the_newly_read_end(
    directory: StateDirectory,
) -> None:
    reading, told = Reading(), Told()
    restorer = restorer_of(reading, told, directory)
    rows = MemoryRows()
    rows.write({}, 0)
    assert not ends(restorer, Role.LEARNER, rows, 20)

    assert ends(restorer, Role.ACTIVE, rows, 30)
    reading.batches = [batch_of(0, 30)]
    restorer.slice(SystemClock().now() + 10)

    assert (told.done[0], told.done[-1]) == ((Role.LEARNER, True), (Role.ACTIVE, True))
    assert rows.position() == 30


def test_learner_with_a_truncated_changelog_is_no_longer_near(directory: StateDirectory) -> None:
    """Its old lag was still reported, with an empty store."""
    reading, told = Reading(), Told()
    restorer = restorer_of(reading, told, directory)
    rows = MemoryRows()
    rows.write({b"a": b"1"}, 100)
    assert not ends(restorer, Role.LEARNER, rows, 100)

    restorer.out_of_range(CHANGELOG, Bounds(500, 1000))

    assert told.done == [(Role.LEARNER, True), (Role.LEARNER, False)]
    assert restorer.lag(TASK) == 500


class FullDisk(MemoryRows):
    def write(self, rows: Mapping[bytes, bytes | None], position: int | None) -> None:
        raise DiskFailed("disk full")

    def set_aside(self, to: str) -> bool:
        raise DiskFailed("disk full")


def test_changelog_truncated_while_the_disk_is_full_ends_the_task(
    directory: StateDirectory,
) -> None:
    """The full disk ended the worker at once, before the other tasks had committed."""
    reading, told = Reading(), Told()
    restorer = restorer_of(reading, told, directory)
    ends(restorer, Role.LEARNER, FullDisk(), 1000)

    restorer.out_of_range(CHANGELOG, Bounds(500, 1000))

    assert [type(error) for error in told.errors] == [DiskFailed]
    assert (len(restorer), reading.reads) == (0, {})


def test_restore_on_a_full_disk_ends_and_writes_nothing_more(
    directory: StateDirectory,
) -> None:
    clock, reading, told = SystemClock(), Reading(), Told()
    restorer = restorer_of(reading, told, directory)
    ends(restorer, Role.ACTIVE, FullDisk(), 1000)
    reading.batches = [batch_of(0, 600), batch_of(600, 1000)]

    restorer.slice(clock.now() + 10)
    restorer.slice(clock.now() + 10)

    assert [type(error) for error in told.errors] == [DiskFailed]
    assert (len(restorer), reading.reads, len(reading.batches)) == (0, {}, 1)


def test_store_ahead_of_the_changelog_is_kept_aside(
    directory: StateDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic was deleted and created again, or a broker lost its end: the store was deleted, and
    the message said that no action was needed.
    """
    told, reading = Told(), Reading()
    restorer = restorer_of(reading, told, directory)
    memory = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=1 << 20)
    rows = RocksRows(directory.store("counts", 2), memory, "layout")
    rows.write({ROW + b"a": b"291"}, 291)

    assert ends(restorer, Role.ACTIVE, rows, 6)

    assert (rows.position(), holds_rows(rows), reading.reads) == (None, False, {CHANGELOG: 0})
    rows.write({}, 6)
    rows.close()
    (kept,) = (directory.path / "kept").iterdir()
    assert "the changelog ends at 6, the store is at 291: the brokers have lost" in caplog.text
    assert f"the old store is kept in {kept}: delete it if" in caplog.text
    copy = RocksRows(kept, memory, "layout")
    assert (copy.get(ROW + b"a"), copy.position()) == (b"291", 291)
    copy.close()
    directory.release()
