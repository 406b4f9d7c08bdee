"""The disks of simulated machines: rows in memory, which a killed process leaves behind.

A write is on the disk when it returns, as RocksDB's log is after SIGKILL. A disk may be full, and
may be slow (that is the loop's to say: whoever flushes does so in an executor).

Not here: what power loss takes from the page cache; the files of a state directory, which are real
ones in a folder of their own.
"""

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from streamsx.state.disk import failed
from streamsx.state.memory import MemoryRows


class Disk:
    """Of one machine. `full`: nothing can be written; `refused`: something could not."""

    def __init__(self) -> None:
        self.full = self.refused = False
        self.stores: dict[Path, DiskRows] = {}

    def open(self, path: Path, _layout: str) -> "DiskRows":
        path.mkdir(parents=True, exist_ok=True)
        return self.stores.setdefault(path, DiskRows(self, path))

    def lose(self) -> None:
        """All of it."""
        self.stores.clear()
        self.full = False


class DiskRows(MemoryRows):
    """What is written stays when it is closed."""

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
        """Nothing is left to flush."""

    def _writable(self) -> None:
        if self._disk.full:
            self._disk.refused = True
            raise failed(self._path, os.strerror(errno.ENOSPC))
