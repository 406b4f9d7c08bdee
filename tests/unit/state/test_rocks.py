"""state/rocks.py: one database with its locks and damages, and its state after a SIGKILL."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from streamsx.errors import DiskFailed, IncompatibleStore, StoreCorrupt, StoreLocked
from streamsx.state.api import ROW
from streamsx.state.rocks import RocksMemory, RocksRows

Opener = Callable[[], RocksRows]


@pytest.fixture(scope="module")
def memory() -> RocksMemory:
    return RocksMemory(blocks_bytes=1 << 20, buffers_bytes=8 << 20)


@pytest.fixture
def opened(tmp_path: Path, memory: RocksMemory) -> Opener:
    return lambda: RocksRows(tmp_path / "store", memory, "layout 1")


def test_rows_and_position_survive_reopen(opened: Opener) -> None:
    rows = opened()
    rows.write({ROW + b"a": b"1", ROW + b"b": b"2"}, 7)
    rows.write({ROW + b"a": None}, None)
    rows.close()

    again = opened()
    assert (again.get(ROW + b"a"), again.get(ROW + b"b"), again.position()) == (None, b"2", 7)
    again.close()


def test_scan_of_all_rows_has_no_position(opened: Opener) -> None:
    """KAFKA-20749: the position is a row of the same database."""
    rows = opened()
    rows.write({ROW + b"": b"0", ROW + b"\xff" * 9: b"1"}, 7)
    assert list(rows.scan(ROW, None)) == [(ROW + b"", b"0"), (ROW + b"\xff" * 9, b"1")]
    rows.close()


def test_store_open_elsewhere_is_locked(opened: Opener) -> None:
    rows = opened()
    with pytest.raises(StoreLocked, match="store in use"):
        opened()
    rows.close()


def test_store_of_other_layout_is_refused(
    opened: Opener, tmp_path: Path, memory: RocksMemory
) -> None:
    opened().close()
    with pytest.raises(IncompatibleStore, match=r"it has layout 1, this app needs layout 2"):
        RocksRows(tmp_path / "store", memory, "layout 2")
    opened().close()


def test_damaged_store_raises_store_corrupt(opened: Opener, tmp_path: Path) -> None:
    opened().close()
    for path in (tmp_path / "store").glob("MANIFEST-*"):
        path.write_bytes(b"rubbish" * 10)
    with pytest.raises(StoreCorrupt, match="store damaged"):
        opened()


def test_unreadable_row_raises_store_corrupt_and_bars_reopening(
    opened: Opener, tmp_path: Path
) -> None:
    """The file was sound when it was opened. Opened again it would fail at the same row."""
    rows = opened()
    rows.write({ROW + b"%04d" % n: b"%d" % n * 50 for n in range(1000)}, 7)
    rows.close()
    (path,) = (tmp_path / "store").glob("*.sst")
    data = path.read_bytes()
    path.write_bytes(data[:40_000] + b"?" * 9000 + data[49_000:])
    rows = opened()
    with pytest.raises(StoreCorrupt, match=f"store damaged: {tmp_path / 'store'}: "):
        _ = [rows.get(ROW + b"%04d" % n) for n in range(1000)]
    found: list[tuple[bytes, bytes]] = []
    with pytest.raises(StoreCorrupt, match=f"store damaged: {tmp_path / 'store'}: "):
        found.extend(rows.scan(ROW, None))
    assert 0 < len(found) < 1000, "up to there"
    rows.close()
    with pytest.raises(StoreCorrupt, match="a part of it could not be read"):
        opened()


def test_store_with_unreadable_layout_can_be_recreated_at_once(
    opened: Opener, tmp_path: Path
) -> None:
    """It stayed open, and so locked, for as long as the error was referenced."""
    rows = opened()
    rows.write({ROW + b"a": b"1"}, 7)
    rows.close()
    (file,) = (tmp_path / "store").glob("*.sst")
    data = file.read_bytes()
    file.write_bytes(b"!" * 20 + data[20:])
    with pytest.raises(StoreCorrupt) as held:
        opened()
    (tmp_path / "store").rename(tmp_path / "trash")
    again = opened()
    assert (again.position(), held.type) == (None, StoreCorrupt)
    again.close()


def test_failed_set_aside_raises_disk_failed(
    opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = opened()

    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    for asked in (lambda: rows.set_aside(str(tmp_path / "kept" / "1")), rows.position, rows.close):
        with pytest.raises(DiskFailed, match="disk full or broken"):
            asked()


def test_write_buffers_grow_with_store_size(tmp_path: Path) -> None:
    """Repeated writes of the same rows keep old values in the buffers; a large store, whose writes
    are all over it, would be compacted too often with small buffers.
    """
    memory = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=64 << 20)
    rows = RocksRows(tmp_path / "store", memory, "layout 1")
    value = b"v" * 100

    def peak(first: int, step: int) -> int:
        """Return the peak in bytes of the store that is written to, over 24 MB of rows.

        All together are as many as the disk is late with.
        """
        used = 0
        for turn in range(100):
            begin = first + turn * step
            rows.write({ROW + b"%08d" % n: value for n in range(begin, begin + 2000)}, turn)
            used = max(used, rows._db.property_int_value("rocksdb.cur-size-active-mem-table") or 0)
        return used

    assert 1 << 20 < peak(0, 0) < 3 << 20
    peak(0, 2000)
    assert peak(200_000, 2000) > 7 << 20
    rows.close()


WRITER = """
import sys
from pathlib import Path
from streamsx.state.api import ROW
from streamsx.state.rocks import RocksMemory, RocksRows

memory = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=8 << 20)
rows = RocksRows(Path(sys.argv[1]), memory, "layout 1")
for n in range(1, 1_000_000):
    rows.write({ROW + b"k%d" % (n % 100): b"%d" % n}, n)
    print(n, flush=True)
"""


def test_last_write_and_position_survive_sigkill(opened: Opener, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "store")], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        seen = 0
        while seen < 500:
            seen = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        last = [int(line) for line in writer.stdout.read().split() if line]
    rows = opened()
    position = rows.position()
    assert position is not None
    assert position >= max([seen, *last[:-1]])
    assert rows.get(ROW + b"k%d" % (position % 100)) == b"%d" % position
    rows.close()
