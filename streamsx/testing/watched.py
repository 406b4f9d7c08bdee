"""Detection of table values that were changed in place and not put back.

A table does not see such a change: after `totals[key].append(1)` the change lives as long as the
object is in the cache of its task, and no commit contains it. A body that does so passes a short
test, and loses data in a worker. This module compares each value that was handed out with its
committed bytes.

Not here: the moment of the check, and the driver's reaction.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from streamsx.errors import UsageError
from streamsx.state.cache import CachedStore

UNCHANGEABLE: Final = frozenset({bool, bytes, float, int, str})


class ValuesHandedOut:
    """Values handed out by the stores of one table. Stands in for the table's `default`."""

    def __init__(self, default: Callable[[], Any] | None) -> None:
        self.default = default
        self.missed: tuple[WatchedStore, Any] | None = None
        """Store and key for which the next default is made."""
        self._out: dict[tuple[WatchedStore, Any], dict[int, tuple[Any, bytes]]] = {}
        """Values handed out with their encoded bytes, by id, for each store and key.

        Several keys may share a value.
        """

    def __call__(self) -> Any:
        assert self.default is not None, "a default for a table without one"
        value = self.default()
        if self.missed is not None:
            store, key = self.missed
            self.note(store, key, value, store.written(value))
        self.missed = None
        return value

    def note(self, store: "WatchedStore", key: Any, value: Any, row: bytes | None) -> None:
        if row is not None and type(value) not in UNCHANGEABLE:
            self._out.setdefault((store, key), {})[id(value)] = value, row

    def undo(self, store: "WatchedStore", keys: Collection[Any] | None = None) -> None:
        """Forget the values of some keys, or of all, since the record that got them has failed."""
        if keys is None:
            keys = [key for each, key in self._out if each is store]
        for key in keys:
            self._out.pop((store, key), None)

    def forget(self) -> None:
        """Forget all values, since the table's stores are gone."""
        self._out = {}
        self.missed = None

    def changed(self) -> Iterator[UsageError]:
        """Yield an error for each value that was changed in place, and forget all values."""
        out = self._out
        self._out = {}
        for (store, key), values in out.items():
            for value, row in values.values():
                if store.lost(key, value, row):
                    yield store.error(key)


class WatchedStore(CachedStore):
    """Store of one partition of a table, which notes the values handed out.

    `watch` must be called once, before anything else.
    """

    def watch(self, handed: ValuesHandedOut, partition: int) -> None:
        self._table = handed
        self._partition = partition

    def load(self, key: Any) -> Any:
        value = super().load(key)
        if value is None:
            self._table.missed = self, key
        else:
            self._table.note(self, key, value, self.rows.get(self._row_key(key)))
        return value

    def undo(self) -> list[Any]:
        keys = super().undo()
        self._table.undo(self, keys)
        return keys

    def drop_clean(self) -> bool:
        dropped = super().drop_clean()
        if dropped:
            self._table.undo(self)
        return dropped

    def written(self, value: Any) -> bytes | None:
        """Return the encoded value; None if it cannot be encoded."""
        try:
            return self.encode(value)
        except Exception:  # a codec may raise anything
            return None

    def lost(self, key: Any, value: Any, row: bytes) -> bool:
        """Return whether a value was changed in place and not put back.

        A codec may write equal values as different bytes. If the bytes differ, the decoded values
        are compared too.
        """
        if key in self.hot or self.written(value) == row:
            return False
        return bool(self.decode(row) != value)

    def error(self, key: Any) -> UsageError:
        name = repr(key if type(key) is not tuple else self.decode_key(key[0]))
        return UsageError(
            f"changed in place and not put back: table {self.name}, key {name}, partition "
            f"{self._partition}: the change is not stored: put it back, {self.name}[key] = value"
        )
