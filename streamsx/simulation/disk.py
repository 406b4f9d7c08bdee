"""Disks of simulated machines: rows in memory, which a killed process leaves behind.

A write is on the disk when the call returns, as RocksDB's log is after SIGKILL. A disk may be full
or slow. The event loop makes disks slow: flushes run in an executor.

Not here: data in the page cache that is lost with the power; the files of a state directory, which
are real ones in a folder of their own.
"""

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from streamsx.state.disk import failed
from streamsx.state.memory import MemoryRows


class Disk:
    """Disk of one machine. `full`: writes fail; `refused`: a write has failed."""

    def __init__(self) -> None:
        self.full = self.refused = False
        self.stores: dict[Path, DiskRows] = {}

    def open(self, path: Path, _layout: str) -> "DiskRows":
        path.mkdir(parents=True, exist_ok=True)
        return self.stores.setdefault(path, DiskRows(self, path))

    def lose(self) -> None:
        """Lose all stores."""
        self.stores.clear()
        self.full = False


class DiskRows(MemoryRows):
    """Rows of a store that stay on the disk after the store is closed."""

    def __init__(self, disk: Disk, path: Path) -> None:
        super().__init__()
        self._disk = disk
        self._path = path

    def write(self, rows: Mapping[bytes, bytes | None], position: int | None) -> None:
        self._writable()
        super().write(rows, position)

    def delete_range(self, start: bytes, stop: bytes) -> None:
        self._writable()
        super().delete_range(start, stop)

    def close(self) -> None:
        """Do nothing: there is nothing to flush."""

    def _writable(self) -> None:
        if self._disk.full:
            self._disk.refused = True
            raise failed(self._path, os.strerror(errno.ENOSPC))
