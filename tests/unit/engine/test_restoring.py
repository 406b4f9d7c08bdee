"""engine/restoring.py: what becomes of a task whose role changes while its stores are opened."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from streamsx.clock import SystemClock
from streamsx.engine.journal import Journal
from streamsx.engine.restoring import Restorer
from streamsx.errors import DiskFailed
from streamsx.kafka.admin import Bounds
from streamsx.lifecycle.reconcile import Restored
from streamsx.model import Role, TaskId, TopicPartition
from streamsx.state.api import ROW, holds_rows
from streamsx.state.directory import StateDirectory
from streamsx.state.memory import MemoryRows
from streamsx.state.rocks import RocksMemory, RocksRows
from streamsx.task.batch import Batch

TASK, CHANGELOG = TaskId(0, 2), TopicPartition("app-counts-changelog", 2)


class Reading:
    """A fetcher from which comes what it was given."""

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


def nowhere(_: str, __: int) -> str:
    raise AssertionError("nothing is to be set aside")


class Told:
    def __init__(self) -> None:
        self.done: list[tuple[Role, bool]] = []

        self.errors: list[Exception] = []

    def restored(self, now: Restored) -> None:
        self.done.append((now.role, now.done))

    def failed(self, _: TaskId, error: Exception) -> None:
        self.errors.append(error)


def restorer_of(reading: Any, told: Told, kept: Callable[[str, int], str] = nowhere) -> Restorer:
    clock = SystemClock()
    journal = Journal("w1", clock)
    return Restorer(clock, reading, journal, told.restored, told.failed, kept, limit=20)


def test_a_learner_made_active_before_its_first_ends_are_read_is_done_at_its_end() -> None:
    """It went on following for ever, and the task ran nowhere."""
    reading, told = Reading(), Told()
    restorer = restorer_of(reading, told)
    rows = MemoryRows()
    rows.write({b"a": b"1"}, 211)
    restorer.add(TASK, Role.LEARNER, "counts", CHANGELOG, rows)

    behind = restorer.ends(TASK, Role.ACTIVE, {CHANGELOG: Bounds(0, 211)})

    assert not behind
    assert told.done[-1] == (Role.ACTIVE, True)


class FullDisk(MemoryRows):
    def write(self, rows: Mapping[bytes, bytes | None], position: int | None) -> None:
        raise DiskFailed("disk full")


def test_a_restore_whose_disk_is_full_ends_and_writes_nothing_more() -> None:
    clock, reading, told = SystemClock(), Reading(), Told()
    restorer = restorer_of(reading, told)
    restorer.add(TASK, Role.ACTIVE, "counts", CHANGELOG, FullDisk())
    restorer.ends(TASK, Role.ACTIVE, {CHANGELOG: Bounds(0, 1000)})
    reading.batches = [batch_of(0, 600), batch_of(600, 1000)]

    restorer.slice(clock.now() + 10)
    restorer.slice(clock.now() + 10)

    assert [type(error) for error in told.errors] == [DiskFailed]
    assert (len(restorer), reading.reads, len(reading.batches)) == (0, {}, 1)


def test_a_store_that_its_changelog_no_longer_holds_is_kept_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic was deleted and made anew, or a broker lost its end: it was wiped, and the message
    said that there was nothing to do."""
    told, reading, directory = Told(), Reading(), StateDirectory(tmp_path, "app")
    memory = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=1 << 20)
    rows = RocksRows(directory.store("counts", 2), memory, "layout")
    rows.write({ROW + b"a": b"291"}, 291)
    restorer = restorer_of(reading, told, directory.kept)
    restorer.add(TASK, Role.ACTIVE, "counts", CHANGELOG, rows)

    assert restorer.ends(TASK, Role.ACTIVE, {CHANGELOG: Bounds(0, 6)})

    assert (rows.position(), holds_rows(rows), reading.reads) == (None, False, {CHANGELOG: 0})
    rows.write({}, 6)
    rows.close()
    (kept,) = (directory.path / "kept").iterdir()
    assert "the changelog ends at 6, the store says 291: the brokers have lost" in caplog.text
    assert f"what it held is kept in {kept}: remove that when" in caplog.text
    copy = RocksRows(kept, memory, "layout")
    assert (copy.get(ROW + b"a"), copy.position()) == (b"291", 291)
    copy.close()
    directory.release()
