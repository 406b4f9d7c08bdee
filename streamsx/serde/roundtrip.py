"""Checks that a codec gives a value back unchanged: JSON makes `{"7": 1}` of `{7: 1}`.

A table without a type holds only what JSON has, and the shape of a value decides: dicts with text
as keys, lists, text, finite numbers, booleans and None, all exactly of these types. With a type,
the written value is read again and compared, part by part and type by type, unless the value's own
type is sufficient.

A check takes a slice of values and their bytes at once. The cost added to the sealing of a row, by
`python -m tests.support.sealing` on a machine with a load of 12 on two cores: a count 0-10 %,
a flat dict of 100 bytes 0.6 us to 1.3, one of 100 KB 0.13 ms to 0.12, one of 100 KB with 2,500
lists in it 0.7 ms to 0.2 (reading it again costs 0.9), a Record, dataclass or Struct of leaves
0.5 us to 1-2.2.

Not here: codecs, tables, the consequence of a refusal.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain, compress, repeat
from operator import attrgetter, is_
from types import NoneType
from typing import Any, Final, NamedTuple

from streamsx.serde.record import BLESSED, is_model

LEAVES: Final[frozenset[type]] = frozenset({str, int, float, bool, NoneType})
"""Leaves of JSON; a float that is not finite is written as null."""
EXACT: Final[frozenset[type]] = LEAVES - {float}
PLAIN: Final = LEAVES | {dict, list}
BY_VALUE: Final = LEAVES | {bytes}
"""Types whose equal values are the same, like those of `VALUES`, except for times with zones."""
VALUES: Final = ("datetime", "decimal", "uuid")
"""Modules of further types that are compared by value."""
NULL: Final = b"null"
OFFSETS: Final = "datetime"
"""Module of zones that are a fixed offset, as in text: a named zone has another one in summer."""
SMALL: Final = 1 << 10
"""Encoded bytes of a value that is checked part by part: a large one is faster level by level."""
SHOWN: Final = 60
"""Number of characters of a value shown in a message."""
NOT_FINITE: Final = "a number that is not finite: JSON has none: put None, or leave it out"


class LostPart(NamedTuple):
    """Part of a value that is lost. `path` is the expression for the part, '' for the whole."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"at {self.path}, {self.why}" if self.path else self.why


class RoundTrip:
    """Check of values against their bytes. `kept` are the types whose every value comes back."""

    kept: frozenset[type] = frozenset()
    floats: frozenset[type] = frozenset()
    """Set `{float}` if each finite float comes back, else empty."""
    quick: Callable[[Any], bytes | None] | None = None
    """Function that writes a value, and returns None if it may not come back."""

    def first(self, values: Sequence[Any], encoded: Sequence[bytes]) -> int | None:
        """Return the index of the first value that does not come back; None if all come back."""
        kinds = set(map(type, values))
        if kinds <= self.kept or (kinds <= self.kept | self.floats and NULL not in encoded):
            return None
        if self.all_come_back(values, kinds, encoded):
            return None
        for index, (value, data) in enumerate(zip(values, encoded, strict=True)):
            if not self.comes_back(value, data):
                return index
        return None

    def all_come_back(
        self, values: Sequence[Any], kinds: set[type], encoded: Sequence[bytes]
    ) -> bool:
        """Return whether a check of all values at once proves that they come back."""
        return False

    def comes_back(self, value: Any, data: bytes) -> bool:
        """Return whether reading `data` gives the value, equal and of the same types."""
        raise NotImplementedError

    def lost(self, value: Any) -> LostPart | None:
        """Return the part of a value that does not come back, or cannot be written."""
        raise NotImplementedError


class PlainRoundTrip(RoundTrip):
    """Check for a table without a type, or of text: the shape of a value is sufficient.

    Keys of dicts are text, and other types do not occur, because the encoder refuses them.
    """

    kept = EXACT
    floats = frozenset({float})

    def __init__(
        self,
        decode: Callable[[Any], Any],
        quick: Callable[[Any], bytes | None] | None = None,
    ) -> None:
        self._decode = decode
        self.quick = quick

    def all_come_back(
        self, values: Sequence[Any], kinds: set[type], encoded: Sequence[bytes]
    ) -> bool:
        return not _any_blessed(values, kinds) and _are_plain(values, kinds, encoded)

    def comes_back(self, value: Any, data: bytes) -> bool:
        kind = type(value)
        if BLESSED in value if kind is dict else is_model(kind):
            read = self._decode(data)
            return all_same([value], [read]) or difference(value, read) is None
        if len(data) < SMALL and _is_exact(value):
            return True
        return _are_plain([value], {kind}, [data])

    def lost(self, value: Any) -> LostPart | None:
        return not_plain(value, "")


class RereadRoundTrip(RoundTrip):
    """Check for a table with a type, by reading again. `kind` is the type's name for people."""

    def __init__(
        self,
        kind: str,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
        kept: frozenset[type] = frozenset(),
        floats: frozenset[type] = frozenset(),
    ) -> None:
        self._kind = kind
        self._encode = encode
        self._decode = decode
        self.kept = kept
        self.floats = floats

    def all_come_back(
        self, values: Sequence[Any], kinds: set[type], encoded: Sequence[bytes]
    ) -> bool:
        try:
            read = list(map(self._decode, encoded))
        except Exception:  # raised by any codec
            return False
        return all_same([*values], read)

    def comes_back(self, value: Any, data: bytes) -> bool:
        if type(value) in self.kept:
            return True
        try:
            read = self._decode(data)
        except Exception:  # raised by any codec
            return False
        return all_same([value], [read]) or difference(value, read) is None

    def lost(self, value: Any) -> LostPart | None:
        try:
            read = self._decode(self._encode(value))
        except Exception as error:  # raised by any codec
            return LostPart(
                "", f"{shown(value)} is no {self._kind}: {type(error).__name__}: {error}"
            )
        found = difference(value, read)
        remedy = f"put what a {self._kind} gives back, or declare another value_type"
        return found and LostPart(found.path, f"{found.why}: {remedy}")


class FieldsRoundTrip(RereadRoundTrip):
    """Check for a class by its fields, each of which takes a leaf of JSON unchanged.

    `fields` returns the values of an object's fields. `allowed` are the types of each field; None
    allows any leaf.
    """

    def __init__(
        self,
        kind: type,
        encode: Callable[[Any], Any],
        decode: Callable[[Any], Any],
        fields: Callable[[Any], Any],
        allowed: Sequence[frozenset[type]] | None,
    ) -> None:
        super().__init__(kind.__name__, encode, decode)
        self._type = kind
        self._fields = fields
        self._allowed = allowed

    def all_come_back(
        self, values: Sequence[Any], kinds: set[type], encoded: Sequence[bytes]
    ) -> bool:
        return self._are_leaves(values, kinds, encoded) or super().all_come_back(
            values, kinds, encoded
        )

    def _are_leaves(
        self, values: Sequence[Any], kinds: set[type], encoded: Sequence[bytes]
    ) -> bool:
        """Return whether the types of all fields prove that values come back."""
        if kinds != {self._type} or NULL in b"".join(encoded):
            return False
        try:
            rows = list(map(self._fields, values))
        except (AttributeError, KeyError):  # a field was deleted
            return False
        if self._allowed is None:
            return LEAVES.issuperset(map(type, chain.from_iterable(rows)))
        columns = zip(zip(*rows, strict=True), self._allowed, strict=True)
        return all(allowed.issuperset(map(type, column)) for column, allowed in columns)


class TypeRoundTrip(RoundTrip):
    """Check for a codec that gives one type back unchanged, such as bytes."""

    def __init__(self, *kept: type) -> None:
        self.kept = frozenset(kept)

    def comes_back(self, value: Any, data: bytes) -> bool:
        return type(value) in self.kept

    def lost(self, value: Any) -> LostPart | None:
        if type(value) in self.kept:
            return None
        names = " or ".join(sorted(kind.__name__ for kind in self.kept))
        return LostPart(
            "", f"{shown(value)} is no {names}: put that, or declare another value_type"
        )


# -- by shape


def _any_blessed(values: Sequence[Any], kinds: set[type]) -> bool:
    """Return whether a dict names its model, and so would be read as that model."""
    dicts = _of_type(dict, values, kinds)
    return any(map(dict.__contains__, dicts, repeat(BLESSED)))


def _is_exact(value: Any) -> bool:
    """Return whether one small value holds only what JSON has, and no floats.

    A step of Python per part: checking a dict in a dict takes 1.1 us, with `_are_plain` 3.9.
    """
    parts = [value]
    for part in parts:  # which grow meanwhile
        kind = type(part)
        if kind is dict:
            parts += part.values()
        elif kind is list:
            parts += part
        elif kind not in EXACT:
            return False
    return True


def _are_plain(values: Iterable[Any], kinds: set[type], encoded: Sequence[bytes]) -> bool:
    """Return whether values hold only what JSON has; `kinds` are their types.

    All values are checked at once, level by level: some steps of Python per level, none per leaf.
    """
    while kinds <= PLAIN:
        doubtful = float in kinds and NULL in b"".join(encoded)
        if doubtful and not all(map(math.isfinite, _of_type(float, values, kinds))):
            return False
        if kinds <= LEAVES:
            return True
        values = _Parts(_of_type(dict, values, kinds), _of_type(list, values, kinds))
        kinds = set(map(type, values))
    return False


class _Parts:
    """Iterable over the parts of some containers, which may be iterated repeatedly."""

    def __init__(self, dicts: Sequence[dict[Any, Any]], lists: Sequence[list[Any]]) -> None:
        self._dicts = dicts
        self._lists = lists

    def __iter__(self) -> Iterator[Any]:
        of_dicts = chain.from_iterable(map(dict.values, self._dicts))
        return chain(of_dicts, chain.from_iterable(self._lists)) if self._lists else of_dicts


def _of_type(kind: type, values: Iterable[Any], kinds: set[type]) -> Sequence[Any]:
    """Return the values of one type; `kinds` are the types of all values."""
    if kind not in kinds:
        return ()
    if len(kinds) == 1 and isinstance(values, list):
        return values
    return [value for value in values if type(value) is kind]


def not_plain(value: Any, path: str) -> LostPart | None:
    """Find the first part of a value that JSON does not give back unchanged."""
    kind = type(value)
    if kind is float and not math.isfinite(value):
        return LostPart(path, f"{shown(value)}, {NOT_FINITE}")
    if kind is dict:
        return _of_dict(value, path)
    if kind is list:
        parts = (not_plain(part, f"{path}[{index}]") for index, part in enumerate(value))
        return next((found for found in parts if found), None)
    if kind is int and not -(2**63) <= value < 2**64:
        return LostPart(
            path, f"{shown(value)}, an int beyond 64 bits: declare value_type, or put text"
        )
    if kind in EXACT or kind is float or (is_model(kind) and not path):
        return None
    return LostPart(path, f"{shown(value)} {remedy_for(value, path)}")


def _of_dict(value: dict[Any, Any], path: str) -> LostPart | None:
    for key, part in value.items():
        if type(key) is not str:
            why = f"a key of type {type(key).__name__} comes back as text"
            return LostPart(f"{path}[{key!r}]", f"{why}: {declare(value, path)}")
        if found := not_plain(part, f"{path}[{key!r}]"):
            return found
    return None


def remedy_for(value: Any, path: str) -> str:
    """Return the advice for a part that JSON does not have."""
    bases = [base for base in (dict, list, str, int, float) if isinstance(value, base)]
    if bases and not isinstance(value, Enum):
        base = bases[0].__name__
        return f"comes back as a plain {base}: put {base}(...)"
    return f"has no form in JSON that comes back: {declare(value, path)}"


def declare(value: Any, path: str) -> str:
    """Return the advice to declare the type that a table would need."""
    if path:
        return "declare the type of the whole value, app.Table(..., value_type=...)"
    return (
        f"declare it, app.Table(..., value_type={annotation(value)}), or value_type= of the flow's "
        "step"
    )


def annotation(value: Any, depth: int = 3) -> str:
    """Guess the annotation for a value's type from the value's first parts."""
    kind = type(value)
    if not depth or kind not in (dict, list, set, frozenset, tuple) or not value:
        return kind.__qualname__
    first = next(iter(value))
    inside = annotation(first, depth - 1)
    if kind is dict:
        return f"dict[{inside}, {annotation(value[first], depth - 1)}]"
    return f"{kind.__name__}[{inside}{', ...' if kind is tuple else ''}]"


def shown(value: Any) -> str:
    """Return a value's text and its type, cut to a line."""
    text = repr(value).replace("\n", " ")
    return f"{text[:SHOWN]}{'...' if len(text) > SHOWN else ''} of type {type(value).__name__}"


# -- by value


def all_same(put: list[Any], read: list[Any]) -> bool:
    """Return whether values are equal, and of the same types, part by part; False in doubt.

    All values are compared at once, level by level: `difference` takes three times as long or more.
    """
    while True:
        kinds = list(map(type, put))
        if kinds != list(map(type, read)):
            return False
        different = set(kinds)
        if different <= BY_VALUE:
            return put == read
        leaves = list(map(BY_VALUE.__contains__, kinds))
        if list(compress(put, leaves)) != list(compress(read, leaves)):
            return False
        below: tuple[list[Any], list[Any]] = [], []
        for kind in different - BY_VALUE:
            chosen = list(map(is_, kinds, repeat(kind)))
            sides = list(compress(put, chosen)), list(compress(read, chosen))
            if not _parts_of(kind, sides, below):
                return False
        put, read = below


def _parts_of(
    kind: type, sides: tuple[list[Any], list[Any]], below: tuple[list[Any], list[Any]]
) -> bool:
    """Append the parts of values of one type to `below`; return whether the parts are enough."""
    put, read = sides
    if kind.__module__ in VALUES:
        zones = {type(getattr(each, "tzinfo", None)) for each in chain(put, read)}
        fixed = all(zone is NoneType or zone.__module__ == OFFSETS for zone in zones)
        return fixed and put == read
    if kind in (set, frozenset):
        kinds = set(map(type, chain(*put, *read)))
        return len(kinds) <= 1 and kinds <= BY_VALUE and put == read
    if issubclass(kind, Enum):
        return put == read
    if kind is dict or issubclass(kind, list | tuple):
        return _parts_of_containers(kind, sides, below)
    names = _fields(put[0])
    if names is None:
        return False
    try:
        for values, parts in zip(sides, below, strict=True):
            parts.extend(chain.from_iterable(map(attrgetter(name), values) for name in names))
    except AttributeError:  # a field was deleted
        return False
    return True


def _parts_of_containers(
    kind: type, sides: tuple[list[Any], list[Any]], below: tuple[list[Any], list[Any]]
) -> bool:
    put, read = sides
    if list(map(len, put)) != list(map(len, read)):
        return False
    for values, parts in zip(sides, below, strict=True):
        parts.extend(chain.from_iterable(values))
        if kind is dict:
            parts.extend(chain.from_iterable(map(dict.values, values)))
    return True


def difference(put: Any, read: Any, path: str = "") -> LostPart | None:
    """Find the first part in which two values differ, or their types do."""
    kind = type(put)
    if kind is not type(read):
        return LostPart(path, f"{shown(put)} comes back as {shown(read)}")
    if kind in LEAVES:
        return None if put is read or put == read else _unequal(put, read, path)
    if kind is dict:
        return _of_dicts(put, read, path)
    if issubclass(kind, list | tuple):
        return _of_sequences(put, read, path)
    if issubclass(kind, set | frozenset):
        return _of_sets(put, read, path)
    return _of_objects(put, read, path)


def _unequal(put: Any, read: Any, path: str) -> LostPart:
    return LostPart(path, f"{shown(put)} comes back as {shown(read)}")


def _of_dicts(put: dict[Any, Any], read: dict[Any, Any], path: str) -> LostPart | None:
    if len(put) != len(read):
        return LostPart(path, f"{len(put)} keys come back as {len(read)}")
    kinds = [*map(type, put), *map(type, put.values())]
    same = LEAVES.issuperset(kinds) and put == read
    if same and kinds == [*map(type, read), *map(type, read.values())]:
        return None
    for (key, part), (its_key, its_part) in zip(put.items(), read.items(), strict=True):
        if difference(key, its_key) is not None:
            return LostPart(
                f"{path}[{key!r}]", f"the key {shown(key)} comes back as {shown(its_key)}"
            )
        if (lost := difference(part, its_part, f"{path}[{key!r}]")) is not None:
            return lost
    return None


def _of_sequences(put: Sequence[Any], read: Sequence[Any], path: str) -> LostPart | None:
    if len(put) != len(read):
        return LostPart(path, f"{len(put)} parts come back as {len(read)}")
    kinds = list(map(type, put))
    if LEAVES.issuperset(kinds) and kinds == list(map(type, read)) and put == read:
        return None
    for index, (part, given) in enumerate(zip(put, read, strict=True)):
        if (lost := difference(part, given, f"{path}[{index}]")) is not None:
            return lost
    return None


def _of_sets(put: Any, read: Any, path: str) -> LostPart | None:
    if put != read:
        return _unequal(put, read, path)
    given = {part: part for part in read}
    found = (difference(part, given[part], path) for part in put)
    return next((lost for lost in found if lost is not None), None)


def _of_objects(put: Any, read: Any, path: str) -> LostPart | None:
    """Compare objects with fields field by field, and others by value."""
    zone = getattr(put, "tzinfo", None)
    named = zone is not None and type(zone).__module__ != OFFSETS
    if named and type(zone) is not type(read.tzinfo):
        return LostPart(path, f"the zone {zone!r} comes back as {read.tzinfo!r}")
    names = _fields(put)
    if names is None:
        return None if put == read else _unequal(put, read, path)
    for name in names:
        parts = getattr(put, name, None), getattr(read, name, None)
        if (lost := difference(*parts, f"{path}.{name}")) is not None:
            return lost
    return None


def _fields(value: Any) -> Sequence[str] | None:
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if is_model(kind):
        return list(value.asdict())
    names: Sequence[str] | None = getattr(kind, "__struct_fields__", None)
    names = getattr(kind, "__pydantic_fields__", None) if names is None else names
    return None if names is None else list(names)
