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


class Handed:
    """Of one table: what its stores have handed out. Stands in for the table's `default`."""

    def __init__(self, default: Callable[[], Any] | None) -> None:
        self.default = default
        self.stores: list[WatchedStore] = []
        self.missed: tuple[WatchedStore, Any] | None = None
        """Whose default is made next."""
        self._made: list[tuple[WatchedStore, Any, Any, bytes]] = []
        """Defaults that nobody has put yet, and what they were written as."""

    def __call__(self) -> Any:
        assert self.default is not None, "a default for a table without one"
        value = self.default()
        if self.missed is not None and type(value) not in UNCHANGEABLE:
            store, key = self.missed
            before = store.written(value)
            if before is not None:
                self._made.append((store, key, value, before))
        self.missed = None
        return value

    def forget(self) -> None:
        """Its stores are gone."""
        self.stores, self._made, self.missed = [], [], None

    def changed(self) -> Iterator[UsageError]:
        """One for each value that was changed in place since it was handed out; asked once."""
        made, self._made = self._made, []
        for store, key, value, before in made:
            if key not in store.hot and store.written(value) != before:
                yield store.error(key)
        for store in self.stores:
            handed, store.handed = store.handed, {}
            yield from (store.error(key) for key, value in handed.items() if store.lost(key, value))


class WatchedStore(CachedStore):
    """One partition of a table; `watch` is called once, before anything else."""

    def watch(self, handed: Handed, partition: int) -> None:
        self.handed: dict[Any, Any] = {}
        self._table, self._partition = handed, partition
        handed.stores.append(self)

    def load(self, key: Any) -> Any:
        value = super().load(key)
        if value is None:
            self._table.missed = self, key
        elif type(value) not in UNCHANGEABLE:
            self.handed[key] = value
        return value

    def written(self, value: Any) -> bytes | None:
        """None for what cannot be written."""
        try:
            return self.encode(value)
        except Exception:  # any codec's
            return None

    def lost(self, key: Any, value: Any) -> bool:
        """Nobody has put it, and it is not what is committed: neither its bytes nor, where bytes
        differ from one writing to the next, what they say.
        """
        row = self.rows.get(self._row_key(key))
        if row is None or key in self.hot or self.written(value) == row:
            return False
        return bool(self.decode(row) != value)

    def error(self, key: Any) -> UsageError:
        name = repr(key if type(key) is not tuple else self.decode_key(key[0]))
        return UsageError(
            f"changed in place and not put back: table {self.name}, key {name}, partition "
            f"{self._partition}: no commit sees the change: put it back, {self.name}[key] = value"
        )
