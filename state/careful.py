"""Changed rows of a store whose task runs record by record, so that one record can be undone.

`Careful` stands in for `hot` of a store. It knows which rows the record at hand has set, or was
given. `encode` and `keep` end a record that succeeded, `undo` one that failed. A bad value fails
its record at the end. After a seal that has refused a value, `CarefulSearch` takes the place: it
encodes each value when it is set too, so that the bad one raises there.

Between two records a value that can be changed in place lies here as bytes alone, and each record
that asks gets an object of its own. So a record that changes its object in place and fails has
changed nothing else: neither the row, nor another row that was set to the same object.

Not here: the limits of a record (`streamsx.processing.careful`), rows that are not changed (they go
back with `CachedStore.renew`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from streamsx.errors import ValueRefused

if TYPE_CHECKING:
    from streamsx.state.cache import CachedStore

SAME_FOR_EVER: Final = frozenset({int, float, bool, str, bytes})
"""Types of values that nobody can change in place."""


class Encoded(tuple[bytes]):
    """Value of a row, as its codec has written it: a tuple is made without a frame of Python."""

    __slots__ = ()


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

    `gone` is the marker of a deleted row.
    """

    def __init__(self, store: "CachedStore", gone: object) -> None:
        super().__init__()
        self.store = store
        self._gone = gone
        self._before: dict[Any, Any] = {}
        """What each row that the record has set or was given was before; ABSENT for a clean row."""
        self._set: dict[Any, bytes] = {}
        """Rows that the record has set; with the bytes of the value, if it was encoded then."""
        self._encoded = False
        """Whether what the record has set was encoded at its end."""
        self.notes: list[Any] = []
        """What the store has noted aside of its rows for the record."""
        self._sealing = False

    def get(self, key: Any, default: Any = None) -> Any:
        value = _get(self, key)
        before = self._before
        if key not in before and not self._sealing:
            if not before:
                self.store.touched.append(self)
            before[key] = ABSENT if value is None else value
        if type(value) is Encoded:
            value = self.store.decode(value[0])
            if not self._sealing:
                _put(self, key, value)
        return default if value is None else value

    def __getitem__(self, key: Any) -> Any:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        if key not in self._before:
            self._remember(key, _get(self, key, ABSENT))
        self._set[key] = b""
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
            self.store.touched.append(self)
        self._before[key] = before

    # -- the end of a record

    def encode(self, encoded: Callable[[Any, Any], bytes | None] | None = None) -> None:
        """Encode what the record has set, as it is now. The record can still be undone.

        Raises:
            ValueRefused: a seal could not take a value.
        """
        encoded = encoded or self.store.check
        changed = self._set
        for key, before in self._before.items():
            value = _get(self, key)
            if value is None or value is self._gone:
                continue
            if key not in changed:
                _put(self, key, before)  # a change in place that was not put back
            elif (raw := encoded(key, value)) is not None and type(value) not in SAME_FOR_EVER:
                _put(self, key, Encoded((raw,)))
        self._encoded = True

    def keep(self) -> None:
        """Keep what the record has set.

        Without `encode` ahead, a value that a seal could not take stays an object, which the seal
        will refuse.
        """
        if not self._encoded:
            Careful.encode(self, self._encoded_or_none)
        self._forget()

    def _encoded_or_none(self, key: Any, value: Any) -> bytes | None:
        try:
            return self.store.check(key, value)
        except ValueRefused:
            return None

    def undo(self) -> list[Any]:
        """Set all rows back to what they were before the record; return the keys of all of them."""
        touched = list(self._before)
        for key, before in self._before.items():
            if before is ABSENT:
                super().pop(key, None)
                self.store.renew(key)
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
        self._encoded = False
        if self.notes:
            self.notes = []

    # -- a seal

    def set_aside(self) -> None:
        """Give objects of their own to readers from now on, because a seal encodes the rows."""
        self._forget()
        self._sealing = True

    def opened(self, part: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Return rows with objects for their bytes."""
        decode = self.store.decode
        return [(key, decode(value[0]) if type(value) is Encoded else value) for key, value in part]


def checked_bytes(part: list[tuple[Any, Any]]) -> list[bytes] | None:
    """Return the bytes of rows, all of which were encoded and checked at their record's end."""
    found = [value[0] for _, value in part if type(value) is Encoded]
    return found if len(found) == len(part) else None


class CarefulSearch(Careful):
    """Variant that encodes each value at its set too, so that a bad value raises there.

    A rejected value may be an object that is there already, changed in place. So its key goes back
    to the value that was set before. Otherwise: a record puts a set into the dict of its key and is
    skipped; the next record of that key finds the set in the dict and is rejected too, and so on.
    """

    def __setitem__(self, key: Any, value: Any) -> None:
        self._note(key)
        raw = b""
        if value is not self._gone:
            try:
                raw = self.store.check(key, value)
            except ValueRefused:
                self._back(key)
                raise
        self._set[key] = raw
        _put(self, key, value)

    def encode(self, encoded: Callable[[Any, Any], bytes | None] | None = None) -> None:
        """Leave a value that was changed behind its set to `keep`, and to the seal."""

    def _back(self, key: Any) -> None:
        """Go back to the value that was set before the one that was rejected."""
        value = _get(self, key)
        if value is None:
            self.store.renew(key)
        elif key not in self._set:
            _put(self, key, self._before[key])
        elif value is not self._gone and type(value) not in SAME_FOR_EVER:
            _put(self, key, self.store.decode(self._set[key]))
