"""Storage interface below a store's cache: rows as bytes, and the keys of these rows.

Keys below the cache begin with a tag: META (the store's own rows: format, position), ROW or INDEX.
The tag is part of every key of `Rows`, so that worker, snapshots and other drivers see the same
bytes. Every implementation inherits from `Rows`, and `tests/unit/state/test_rows.py` holds all of
them to the interface. A checkpoint becomes a method too, once a caller needs one.

Out of scope: implementations (`memory`, `rocks`, `cache`), the bytes behind a tag (`layout`).
"""

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

META: Final = b"\x00"
ROW: Final = b"\x01"
INDEX: Final = b"\x02"
FORMAT: Final = META + b"format"
POSITION: Final = META + b"offset"
END: Final = b"\xff"
"""Upper bound of all keys."""


class Rows(Protocol):
    """Committed rows as bytes, in RocksDB or a dict. One owner; never two threads."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a whole key, tag included."""

    def scan(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield rows in ascending order from `start`, `stop` excluded."""

    def last(self, start: bytes, stop: bytes) -> bytes | None:
        """Return the greatest key from `start`, `stop` excluded; None without one."""
        last = None
        for key, _ in self.scan(start, stop):
            last = key
        return last

    def write(self, rows: Mapping[bytes, bytes | None], position: int | None) -> None:
        """Write rows and position in one atomic batch, keys ascending; None deletes."""

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Delete the keys from `start`, `stop` excluded, in one atomic batch."""

    def estimate(self) -> int:
        """Return a rough number of rows, which sizes a preload; 0 does not mean empty."""

    def set_aside(self, to: str) -> bool:
        """Empty the store like `wipe`, and move the old one to the folder `to`.

        Returns:
            False if the rows are on no disk, and were wiped.
        """
        self.wipe()
        return False

    def take(self, folder: str, old: str) -> bool:
        """Replace the store by that in `folder`, of the same layout, and move the old one to `old`.

        Returns:
            False if these rows are in no folder; then nothing was done.
        """
        return False

    def close(self) -> None:
        """Hand everything written to the disk; may take long."""

    def position(self) -> int | None:
        """Return the next changelog offset that is not in the rows; None if never written."""
        found = self.get(POSITION)
        return None if found is None else int.from_bytes(found, "big")

    def wipe(self) -> None:
        """Delete all rows and the position; keep the format."""
        self.delete_range(POSITION, END)


def position_row(position: int) -> bytes:
    """Return the value for POSITION: 8 bytes."""
    return position.to_bytes(8, "big")


def holds_rows(rows: Rows) -> bool:
    """Return whether a row exists; scans, as an estimate of 0 can hide rows behind tombstones."""
    return next(rows.scan(ROW, INDEX), None) is not None
