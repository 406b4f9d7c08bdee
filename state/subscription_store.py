"""Store of the subscriptions of a foreign-key join: rows of one foreign key lie together.

The row of a subscription is the length of the foreign key (u32, big endian), the foreign key, and
the left key. A change of the right table asks for all rows of one foreign key. Rows that are not
below yet are known by their foreign key, so that no look reads all changed rows.

    store.put_row(prefix, row, (time, tag))   # GONE instead of the pair deletes
    for left_key, time, tag in store.subscribers(prefix):
        ...
"""

from collections.abc import Container, Iterator
from heapq import merge
from operator import itemgetter
from typing import Any, Final

from streamsx.state.api import ROW, Rows
from streamsx.state.cache import SCAN_ROWS
from streamsx.state.keyed import KeyedStore
from streamsx.state.layout import StoreNode

LENGTH_BYTES: Final = 4
ROW_KEY: Final = itemgetter(0)
RowsByPrefix = dict[bytes, dict[bytes, None]]
"""RowsByPrefix rows by the prefix of their foreign key."""


def prefix_of(foreign_key: bytes) -> bytes:
    """Return the bytes that the rows of a foreign key begin with, and no other row."""
    return len(foreign_key).to_bytes(LENGTH_BYTES, "big") + foreign_key


class SubscriptionStore(KeyedStore):
    """Key-value store of rows with a time, which finds the rows of a prefix."""

    def __init__(self, node: StoreNode, rows: Rows, budget_bytes: int) -> None:
        super().__init__(node, rows, budget_bytes)
        self._changed: RowsByPrefix = {}
        """Rows that changed since the last seal."""
        self._unwritten: RowsByPrefix = {}
        """Rows of the seals before, until they are below."""

    def put_row(self, prefix: bytes, row: bytes, value: Any) -> None:
        """Set or delete a row, which begins with a prefix."""
        self.hot[row] = value
        self._changed.setdefault(prefix, {})[row] = None

    def subscribers(self, prefix: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield left key, time in ms and tag of each row of a prefix, by left key.

        The rows are those as of the first step.
        """
        ahead = {**self._unwritten.get(prefix, {}), **self._changed.get(prefix, {})}
        found = [(row, self.get(row)) for row in sorted(ahead)]
        changed = ((row, value) for row, value in found if value is not None)
        for row, value in merge(changed, self._below_of(prefix, ahead), key=ROW_KEY):
            yield row[len(prefix) :], *value

    def _below_of(self, prefix: bytes, ahead: Container[bytes]) -> Iterator[tuple[bytes, Any]]:
        """Yield the rows of a prefix below, without those that have changed since."""
        start = ROW + prefix
        scan = self._scan_below(start, after(start))
        while part := scan.part(SCAN_ROWS):
            for key, raw in part:
                if key[1:] not in ahead:
                    yield key[1:], self._decoded(key, raw)

    def _set_aside(self) -> None:
        super()._set_aside()
        for prefix, rows in self._changed.items():
            self._unwritten.setdefault(prefix, {}).update(rows)
        self._changed = {}

    def write_some(self, limit: int) -> bool:
        done = super().write_some(limit)
        if done and not self.sealed and not self.sealing:
            self._unwritten = {}
        return done

    def aborted(self) -> None:
        super().aborted()
        self._changed = {}
        self._unwritten = {}
        for row in self.pending:
            end = 1 + LENGTH_BYTES + int.from_bytes(row[1 : 1 + LENGTH_BYTES], "big")
            self._unwritten.setdefault(row[1:end], {})[row[1:]] = None


def after(prefix: bytes) -> bytes:
    """Return the first key behind all keys that begin with a prefix."""
    left = prefix.rstrip(b"\xff")
    return left[:-1] + bytes([left[-1] + 1])
