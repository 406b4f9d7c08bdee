"""Committed rows in a dict, for tests and tables with `store="memory://"`, until closed."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from streamsx.state.api import POSITION, Rows, position_row


class MemoryRows(Rows):
    """Implementation of `Rows` without a disk: restored from the changelog at each start."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}
        self._order: list[bytes] = []
        """Keys at the last scan, ascending; some may be gone."""
        self._new: dict[bytes, None] = {}
        """Keys put since then that were absent."""

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def scan(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        yield from [(key, self._rows[key]) for key in self._between(start, stop)]

    def _between(self, start: bytes, stop: bytes | None) -> list[bytes]:
        """Return the keys of a range, ascending. A sort of keys in order with new ones is quick."""
        if self._new:
            kept = [key for key in self._order if key in self._rows and key not in self._new]
            self._order = sorted(kept + [key for key in self._new if key in self._rows])
            self._new = {}
        first = bisect_left(self._order, start)
        end = len(self._order) if stop is None else bisect_left(self._order, stop)
        return [key for key in self._order[first:end] if key in self._rows]

    def write(self, rows: Mapping[bytes, bytes | None], position: int | None) -> None:
        for key, value in rows.items():
            if value is None:
                self._rows.pop(key, None)
            else:
                if key not in self._rows:
                    self._new[key] = None
                self._rows[key] = value
        if position is not None:
            if POSITION not in self._rows:
                self._new[POSITION] = None
            self._rows[POSITION] = position_row(position)

    def delete_range(self, start: bytes, stop: bytes) -> None:
        for key in self._between(start, stop):
            del self._rows[key]

    def estimate(self) -> int:
        return len(self._rows) - (POSITION in self._rows)

    def close(self) -> None:
        self._rows.clear()
        self._order = []
        self._new = {}
