"""What lies under the cache of a store: rows as bytes, and their keys.

Bytes below the cache begin with a tag: META (the store's own: format, position), ROW, INDEX. The
tag is part of every key of `Rows`, so that worker, snapshots and other drivers see the same
bytes. Whoever keeps rows inherits from `Rows`, and `tests/unit/state/test_rows.py` holds all of
them to it; a checkpoint is a method of it too, once somebody calls it.

Not here: implementations (`memory`, `rocks`, `cache`), what the bytes behind a tag are (`layout`).
"""

from collections.abc import Iterator, Mapping
from typing import Final, Protocol

META: Final = b"\x00"
ROW: Final = b"\x01"
INDEX: Final = b"\x02"
FORMAT: Final = META + b"format"
POSITION: Final = META + b"offset"
END: Final = b"\xff"
"""Behind every key."""


class Rows(Protocol):
    """Committed rows as bytes: RocksDB, or a dict. One owner; never two threads."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a whole key, tag included."""

    def scan(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Ascending from `start`, `stop` excluded."""

    def write(self, rows: Mapping[bytes, bytes | None], position: int | None) -> None:
        """In one atomic batch, keys ascending; None deletes. The position goes with the rows."""

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """From `start`, `stop` excluded; in one atomic batch."""

    def estimate(self) -> int:
        """How many rows, roughly: sizes a preload, and never means `empty`."""

    def set_aside(self, to: str) -> bool:
        """As `wipe`; but what was there lies in the folder `to` afterwards. False: it is on no
        disk, and was wiped.
        """
        self.wipe()
        return False

    def take(self, folder: str, old: str) -> bool:
        """The store in `folder`, of the same layout, instead of what was here, which lies in `old`
        afterwards. False: these rows are in no folder, and nothing was done.
        """
        return False

    def close(self) -> None:
        """Everything written is on its way to the disk; may take long."""

    def position(self) -> int | None:
        """Next changelog offset that is not in the rows; None when it was never written."""
        found = self.get(POSITION)
        return None if found is None else int.from_bytes(found, "big")

    def wipe(self) -> None:
        """No row and no position is left; the format is."""
        self.delete_range(POSITION, END)


def position_row(position: int) -> bytes:
    """The value at POSITION: 8 bytes."""
    return position.to_bytes(8, "big")


def holds_rows(rows: Rows) -> bool:
    """Looked for: an estimate of 0 can hide rows behind tombstones."""
    return next(rows.scan(ROW, INDEX), None) is not None
