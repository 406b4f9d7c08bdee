"""Finds values of tables that were changed in place and not put back.

A table does not see such a change: `totals[key].append(1)` is there as long as the object is in
the cache of its task, and in no commit. A body that does so is right in a short test, and forgets
in a worker. Here each value that was handed out is compared with what is committed of it.

Not here: who asks, and what a driver does with the answer.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from streamsx.errors import UsageError
from streamsx.state.cache import CachedStore

UNCHANGEABLE: Final = frozenset({bool, bytes, float, int, str})


class ValuesHandedOut:
    """What the stores of one table have handed out. Stands in for the table's `default`."""

    def __init__(self, default: Callable[[], Any] | None) -> None:
        self.default = default
        self.missed: tuple[WatchedStore, Any] | None = None
        """Whose default is made next."""
        self._out: dict[tuple[int, Any, int], tuple[WatchedStore, Any, Any, bytes]] = {}
        """By id of the store, key and id of the value, which several keys may have: those three,
        and what it was written as."""

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
            self._out[id(store), key, id(value)] = store, key, value, row

    def forget(self) -> None:
        """Its stores are gone."""
        self._out, self.missed = {}, None

    def changed(self) -> Iterator[UsageError]:
        """One for each value that was changed in place since it was handed out; asked once."""
        out, self._out = self._out, {}
        for store, key, value, row in out.values():
            if store.lost(key, value, row):
                yield store.error(key)


class WatchedStore(CachedStore):
    """One partition of a table; `watch` is called once, before anything else."""

    def watch(self, handed: ValuesHandedOut, partition: int) -> None:
        self._table, self._partition = handed, partition

    def load(self, key: Any) -> Any:
        value = super().load(key)
        if value is None:
            self._table.missed = self, key
        else:
            self._table.note(self, key, value, self.rows.get(self._row_key(key)))
        return value

    def written(self, value: Any) -> bytes | None:
        """None for what cannot be written."""
        try:
            return self.encode(value)
        except Exception:  # any codec's
            return None

    def lost(self, key: Any, value: Any, row: bytes) -> bool:
        """Nobody has put it, and it is not what it was: neither its bytes nor, where bytes differ
        from one writing to the next, what they say.
        """
        if key in self.hot or self.written(value) == row:
            return False
        return bool(self.decode(row) != value)

    def error(self, key: Any) -> UsageError:
        name = repr(key if type(key) is not tuple else self.decode_key(key[0]))
        return UsageError(
            f"changed in place and not put back: table {self.name}, key {name}, partition "
            f"{self._partition}: no commit sees the change: put it back, {self.name}[key] = value"
        )
