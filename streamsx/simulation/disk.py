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

from streamsx.state.api import ROW
from streamsx.state.disk import failed
from streamsx.state.memory import MemoryRows


class Disk:
    """Of one machine. `full`: nothing can be written; `refused`: something could not."""

    def __init__(self) -> None:
        self.full = self.refused = False
        self.stores: dict[Path, MemoryRows] = {}

    def open(self, path: Path, _layout: str) -> "DiskRows":
        path.mkdir(parents=True, exist_ok=True)
        return DiskRows(self, path, self.stores.setdefault(path, MemoryRows()))

    def rows(self, path: Path) -> dict[bytes, bytes]:
        """All of a store; empty if there is none."""
        found = self.stores.get(path)
        return {} if found is None else dict(found.scan(ROW, None))

    def position(self, path: Path) -> int:
        """The next changelog offset that is not in a store."""
        found = self.stores.get(path)
        return 0 if found is None else found.position() or 0

    def lose(self) -> None:
        """All of it."""
        self.stores.clear()
        self.full = False


class DiskRows:
    """The `Rows` protocol: what is written stays when it is closed."""

    def __init__(self, disk: Disk, path: Path, rows: MemoryRows) -> None:
        self._disk, self._path, self._rows = disk, path, rows
        self.get, self.scan = rows.get, rows.scan
        self.position, self.estimate = rows.position, rows.estimate

    def write(self, rows: Mapping[bytes, bytes | None], position: int | None) -> None:
        self._writable()
        self._rows.write(rows, position)

    def wipe(self) -> None:
        self._writable()
        self._rows.wipe()

    def set_aside(self, to: str) -> bool:
        self._writable()
        return self._rows.set_aside(to)

    def close(self) -> None:
        """Nothing is left to flush."""

    def _writable(self) -> None:
        if self._disk.full:
            self._disk.refused = True
            raise failed(self._path, os.strerror(errno.ENOSPC))
