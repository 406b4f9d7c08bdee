"""Committed rows in a dict, for tests and tables with `store="memory://"`, until closed."""

from collections.abc import Iterator, Mapping

from streamsx.state.api import POSITION, Rows, position_row


class MemoryRows(Rows):
    """Implementation of `Rows` without a disk: restored from the changelog at each start."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def scan(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        keys = (key for key in self._rows if key >= start and (stop is None or key < stop))
        yield from [(key, self._rows[key]) for key in sorted(keys)]

    def write(self, rows: Mapping[bytes, bytes | None], position: int | None) -> None:
        for key, value in rows.items():
            if value is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = value
        if position is not None:
            self._rows[POSITION] = position_row(position)

    def delete_range(self, start: bytes, stop: bytes) -> None:
        for key in [key for key in self._rows if start <= key < stop]:
            del self._rows[key]

    def estimate(self) -> int:
        return len(self._rows) - (POSITION in self._rows)

    def close(self) -> None:
        self._rows.clear()
