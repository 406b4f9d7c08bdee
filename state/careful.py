"""Changed rows of a store whose task runs record by record, so that one record can be undone.

`Careful` stands in for `hot` of a store. It encodes each value when it is set, so that a bad value
raises there. It also knows which rows the record at hand has set, or was given. `keep` ends a
record that succeeded, `undo` one that failed.

Between two records a value that can be changed in place lies here as bytes alone, and each record
that asks gets an object of its own. So a record that changes its object in place and fails has
changed nothing else: neither the row, nor another row that was set to the same object.

Not here: the limits of a record (`streamsx.processing.careful`), rows that are not changed (they go
back with `CachedStore.renew`).
"""

from typing import TYPE_CHECKING, Any, Final

from streamsx.errors import ValueRefused

if TYPE_CHECKING:
    from streamsx.state.cache import CachedStore

SAME_FOR_EVER: Final = frozenset({int, float, bool, str, bytes})
"""Types of values that nobody can change in place."""


class Encoded:
    """Value of a row, as its codec has written it."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        self.raw = raw


OfRecord = list[tuple[Any, Any, bytes]]
"""Key, value and bytes of rows that one record has set."""


class _Absent:
    """Marker of a row that was not among the changed ones before the record."""

    __slots__ = ()


ABSENT: Final = _Absent()
_get: Final = dict.get
_put: Final = dict.__setitem__


class Careful(dict[Any, Any]):
    """Variant of `hot` whose changes since the last record can be undone.

    A rejected value may be an object that is there already, changed in place. So its key goes back
    to the value that was set before. Otherwise: a record puts a set into the dict of its key and is
    skipped; the next record of that key finds the set in the dict and is rejected too, and so on.

    `gone` is the marker of a deleted row.
    """

    def __init__(self, store: "CachedStore", gone: object) -> None:
        super().__init__()
        self._store = store
        self._gone = gone
        self._before: dict[Any, Any] = {}
        """What each row that the record has set or was given was before; ABSENT for a clean row."""
        self._set: dict[Any, bytes] = {}
        """Rows that the record has set, with the bytes of the value at its set."""
        self._sealing = False

    def get(self, key: Any, default: Any = None) -> Any:
        value = _get(self, key)
        if not self._sealing and key not in self._before:
            self._remember(key, ABSENT if value is None else value)
        if type(value) is Encoded:
            value = self._store.decode(value.raw)
            if not self._sealing:
                _put(self, key, value)
        return default if value is None else value

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        self._note(key)
        raw = b""
        if value is not self._gone:
            try:
                raw = self._store.check(key, value)
            except ValueRefused:
                self._back(key)
                raise
        self._set[key] = raw
        _put(self, key, value)

    def __delitem__(self, key: Any) -> None:
        self._note(key)
        super().__delitem__(key)

    def pop(self, key: Any, default: Any = None) -> Any:
        value = self.get(key, default)
        super().pop(key, None)
        return value

    def _note(self, key: Any) -> None:
        if key not in self._before:
            self._remember(key, _get(self, key, ABSENT))

    def _remember(self, key: Any, before: Any) -> None:
        if not self._before:
            self._store.touched.append(self._store)
        self._before[key] = before

    def _back(self, key: Any) -> None:
        """Go back to the value that was set before the one that was rejected."""
        value = _get(self, key)
        if value is None:
            self._store.renew(key)
        elif key not in self._set:
            _put(self, key, self._before[key])
        elif value is not self._gone and type(value) not in SAME_FOR_EVER:
            _put(self, key, self._store.decode(self._set[key]))

    # -- the end of a record

    def keep(self) -> None:
        """Keep what the record has set, as it is now.

        A value that cannot be encoded any more stays an object, which the seal will refuse.
        """
        for key, before in self._before.items():
            value = _get(self, key)
            if value is None or value is self._gone or type(value) in SAME_FOR_EVER:
                continue
            if key in self._set:
                self._encode(key, value)
            else:
                _put(self, key, before)  # a change in place that was not put back
        self._forget()

    def _encode(self, key: Any, value: Any) -> None:
        try:
            raw = self._store.encode(value)
        except Exception:  # any codec's
            return
        _put(self, key, Encoded(raw))

    def undo(self) -> list[Any]:
        """Set all rows back to what they were before the record; return the keys of all of them."""
        touched = list(self._before)
        for key, before in self._before.items():
            if before is ABSENT:
                super().pop(key, None)
                self._store.renew(key)
            else:
                _put(self, key, before)
        self._forget()
        return touched

    def take_out(self) -> OfRecord:
        """Take out what the record at hand has set so far, and return it with its bytes."""
        found = [(key, _get(self, key), raw) for key, raw in self._set.items()]
        self.undo()
        return [each for each in found if each[1] is not None]

    def put_in(self, own: OfRecord) -> None:
        """Go on with what `take_out` has returned."""
        for key, value, raw in own:
            self._note(key)
            self._set[key] = raw
            _put(self, key, value)

    def _forget(self) -> None:
        self._before = {}
        self._set = {}

    # -- a seal

    def set_aside(self) -> None:
        """Give objects of their own to readers from now on, because a seal encodes the rows."""
        self._forget()
        self._sealing = True

    def opened(self, part: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return rows with objects for their bytes."""
        decode = self._store.decode
        return [
            (key, decode(value.raw) if type(value) is Encoded else value) for key, value in part
        ]
