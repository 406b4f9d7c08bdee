"""Behaviour that all implementations of `Rows` share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamsx.simulation.disk import Disk
from streamsx.spark.checkout import SnapshotRows, discard_all, scratch_folder
from streamsx.state.api import END, INDEX, META, POSITION, ROW, Rows, holds_rows
from streamsx.state.memory import MemoryRows
from streamsx.state.rocks import RocksMemory, RocksRows
from streamsx.state.snapshot_files import open_files

MEMORY = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=8 << 20)


def snapshot(path: Path) -> SnapshotRows:
    """Return rows over a file that holds only a deleted row."""
    place = open_files(str(path)), scratch_folder(str(path)), "store", 0
    first = SnapshotRows(*place, (), 0)
    first.write({ROW + b"below": b"1", ROW + b"a": b"old"}, None)
    first.spill(last=False)
    second = SnapshotRows(*place, first.chain, 1)
    second.write({ROW + b"below": None, ROW + b"a": None}, None)
    second.spill(last=False)
    return SnapshotRows(*place, second.chain, 2)


MAKERS: dict[str, Callable[[Path], Rows]] = {
    "rocks": lambda path: RocksRows(path, MEMORY, "layout"),
    "memory": lambda _: MemoryRows(),
    "disk": lambda path: Disk().open(path, "layout"),
    "snapshot": snapshot,
}
LASTING = ["rocks", "disk"]


@pytest.fixture(params=MAKERS)
def rows(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rows]:
    made = MAKERS[request.param](tmp_path / "store")
    yield made
    made.close()
    discard_all()


def keys(rows: Rows, start: bytes = ROW, stop: bytes | None = None) -> list[bytes]:
    return [key for key, _ in rows.scan(start, stop)]


def test_write_puts_deletes_and_moves_position_together(rows: Rows) -> None:
    assert (rows.get(ROW + b"a"), rows.position(), holds_rows(rows)) == (None, None, False)
    rows.write({ROW + b"a": b"1", ROW + b"b": b"2"}, 7)
    rows.write({ROW + b"a": None, ROW + b"b": b"", ROW + b"gone": None}, None)
    assert (rows.get(ROW + b"a"), rows.get(ROW + b"b"), rows.position()) == (None, b"", 7)
    rows.write({}, 9)
    assert (rows.position(), holds_rows(rows)) == (9, True)
    rows.write({ROW + b"b": None}, 0)
    assert (rows.position(), holds_rows(rows)) == (0, False)


def test_scan_is_ascending_and_excludes_stop(rows: Rows) -> None:
    rows.write({INDEX + b"x": b"", **{ROW + bytes([n]): b"%d" % n for n in (9, 0, 255, 3)}}, 1)
    assert keys(rows, ROW, INDEX) == [ROW + bytes([n]) for n in (0, 3, 9, 255)]
    assert keys(rows, ROW + b"\x01", ROW + b"\x09") == [ROW + b"\x03"]
    assert keys(rows, ROW + b"\x09") == [ROW + b"\x09", ROW + b"\xff", INDEX + b"x"]
    assert keys(rows, END) == keys(rows, ROW + b"\x04", ROW + b"\x04") == []


def test_scan_shows_rows_at_first_step(rows: Rows) -> None:
    rows.write({ROW + b"%03d" % n: b"old" for n in range(100)}, 1)
    scan = rows.scan(ROW, INDEX)
    seen = [next(scan)]
    rows.write({ROW + b"050": b"new", ROW + b"051": None, ROW + b"0505": b"new"}, 2)
    rows.delete_range(ROW + b"060", ROW + b"070")
    assert [*seen, *scan] == [(ROW + b"%03d" % n, b"old") for n in range(100)]
    del scan  # an open one would keep a lock
    assert len(keys(rows)) == 90


def test_delete_range_excludes_stop_and_keeps_later_writes(
    rows: Rows,
) -> None:
    rows.write({ROW + bytes([n]): b"x" for n in range(6)}, 7)
    rows.delete_range(ROW + b"\x01", ROW + b"\x04")
    assert keys(rows) == [ROW + bytes([n]) for n in (0, 4, 5)]
    rows.write({ROW + b"\x02": b"new"}, None)
    assert keys(rows) == [ROW + bytes([n]) for n in (0, 2, 4, 5)]
    rows.delete_range(ROW + b"\x04", ROW + b"\x04")
    assert (len(keys(rows)), rows.position()) == (4, 7)


def test_wipe_removes_rows_and_position_but_keeps_format(rows: Rows) -> None:
    rows.write({ROW + b"a": b"1", ROW + b"\xff" * 9: b"2", INDEX + b"a": b""}, 7)
    before = keys(rows, META, POSITION)
    rows.wipe()
    assert (rows.position(), keys(rows), holds_rows(rows)) == (None, [], False)
    assert keys(rows, META) == before
    rows.write({ROW + b"a": b"3"}, 1)
    assert (rows.get(ROW + b"a"), rows.position()) == (b"3", 1)


def test_rows_behind_many_tombstones_are_found(rows: Rows) -> None:
    """An estimate may be 0 there."""
    rows.write({ROW + b"z": b"1"}, 1)
    for n in range(50):
        rows.write({ROW + b"k%d" % n: b"1"}, None)
        rows.write({ROW + b"k%d" % n: None}, None)
    assert holds_rows(rows)
    assert rows.estimate() >= 0


def test_set_aside_store_is_empty_and_writable(rows: Rows, tmp_path: Path) -> None:
    rows.write({ROW + b"a": b"1"}, 7)
    kept = tmp_path / "kept" / "store"
    assert rows.set_aside(str(kept)) is kept.exists()
    assert (rows.position(), keys(rows)) == (None, [])
    rows.write({ROW + b"b": b"2"}, 1)
    assert (rows.get(ROW + b"b"), rows.position()) == (b"2", 1)


@pytest.mark.parametrize("kind", LASTING)
def test_rows_and_position_are_kept_across_reopen(kind: str, tmp_path: Path) -> None:
    disk = Disk()
    make = MAKERS["rocks"] if kind == "rocks" else lambda path: disk.open(path, "layout")
    rows = make(tmp_path / "store")
    rows.write({ROW + b"a": b"1", ROW + b"b": b"2"}, 7)
    rows.delete_range(ROW + b"a", ROW + b"b")
    rows.close()
    again = make(tmp_path / "store")
    assert (keys(again), again.get(ROW + b"b"), again.position()) == ([ROW + b"b"], b"2", 7)
    again.close()


def test_last_is_the_greatest_key_of_a_range(rows: Rows) -> None:
    assert rows.last(ROW, INDEX) is None
    rows.write({ROW + b"a": b"1", ROW + b"c": b"2", INDEX: b"", INDEX + b"x": b""}, 1)
    assert rows.last(ROW, INDEX) == ROW + b"c"
    assert rows.last(ROW, ROW + b"c") == ROW + b"a"
    assert rows.last(ROW + b"d", INDEX) is None


def test_reads_stay_quick_after_many_deleted_ranges(rows: Rows) -> None:
    """A range tombstone for each of them would make each read after a deletion slow."""
    for n in range(300):
        rows.write({ROW + b"%05d" % n: b"1"}, n)
        rows.delete_range(ROW, ROW + b"%05d" % n)
    assert keys(rows) == [ROW + b"00299"]
    rows.write({ROW + b"1%04d" % n: b"1" for n in range(3000)}, 1)
    rows.delete_range(ROW + b"1", ROW + b"12900")
    assert len(keys(rows)) == 101
