"""Write-back cache over a task's store.

An entry passes through these layers:

hot      Changed since the last seal; the first look-up of every access. Callers on the record path
         may use the dict directly: `hot.get(key)`, then `load(key)`; `hot[key] = value`.
sealing  Set aside while the values are encoded, slice by slice; closed to new entries.
young    Clean decoded objects, sealed or loaded since the last turn of the generations.
old      The generation before; a turn drops this one. Two generations cost 148-169 ns an access
         where an exact LRU costs 261, for a quarter more misses. Both together stay within
         `budget_bytes`, by the memory of their objects (`sizes`), measured on some of them.
sealed   Encoded once, on the way to the changelog, not yet committed in Kafka.
pending  Committed in Kafka, not yet in the rows below.

Work on all dirty rows that takes more than a few ms is done slice by slice. 50,000 rows that were
encoded in slices, but then kept, sorted and reported at once, blocked the loop for 25-35 ms.

Callers may change a value in place and put it back. A warm object is therefore as new as its newest
change, which is why an abort drops all warm objects.

Cache keys are the table's own Python keys if they have the pinned type: the type of the table (str,
bytes, int), or else the type of the first key (str, int). Other keys become one-tuples of the
encoded bytes, because 1, 1.0 and True are one dict key and three keys of JSON. A row has one cache
key, whichever type its key is written as: a key of another type that reads back as the pinned type
has the cache key of the latter.

Out of scope: RocksDB (rows are passed in), topics, the time of a commit.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from streamsx.errors import DecodeFailed, ValueRefused, WorldError
from streamsx.model import RECORD_BYTES_MAX
from streamsx.serde.codec import encoded_all
from streamsx.state.api import INDEX, ROW, Rows, holds_rows
from streamsx.state.careful import Careful, CarefulSearch, OfRecord
from streamsx.state.layout import StoreNode
from streamsx.state.sizes import ENCODED_BYTES, ENTRY_BYTES, SLOT_BYTES, Learned, deep_bytes

FIRST_ENTRY_BYTES = 300
"""Estimated bytes of an entry before the first seal has measured one."""
SLICE_BYTES: Final = 1 << 20
"""Limit of a slice, by the average cost of an entry: 1,000 large ones would be too many."""
LARGE_BYTES: Final = 64 << 10
"""Encoded bytes of a large row, whose size is kept: samples would miss the few large ones."""
LOADS_SAMPLED: Final = 256
SEALS_SAMPLED: Final = 4
"""Sampling rates: one of so many loaded rows, and of so many sealed slices, is measured.

A row of 60 objects takes 20 us to measure, which is 80 ns for each loaded row and 20 for each
sealed row.
"""
FIRST_SAMPLED: Final = 8
"""Number of first loaded rows, and of first slices, of which each one is measured."""
CHANGES_SAMPLED: Final = 2
"""Number of newest changed rows that stand for all changes since the last measurement."""
COUNTED_AGAIN: Final = 256
"""Number of rows that stand for a generation when weighed: 5 ms at most, once in half a budget."""
STILL_FULL: Final = 0.75
"""Share of half the budget that a weighed young generation must have to become the old one."""
FIRST_SLICE_ROWS: Final = 32
"""Rows of a slice before any value has been measured."""
SORTED_ROWS: Final = 16_000
"""Rows to sort at once, in 2 ms.

RocksDB writes sorted runs of that length at 3/4 of the cost of short ones.
"""
SCAN_ROWS: Final = 256
KEY_SHOWN: Final = 100
"""Characters of a key in a message."""
KEY_TOLD: Final = 3 * KEY_SHOWN
PARTS: Final = frozenset({str, int, bool, type(None)})
"""Types of elements with which a tuple key is read back unchanged."""
UNHASHABLE: Final = frozenset({list, dict, set})
PINNED: Final = frozenset({str, bytes, int})
PINNED_BY_USE: Final = frozenset({str, int})
"""Types that the first key may pin, without bytes.

A codec that writes bytes unchanged writes b"1" and 1 alike, and reads 1 back.
"""


class Changes(NamedTuple):
    """Rows as they go to the changelog; None deletes."""

    keys: list[bytes]
    values: list[bytes | None]


class _Gone:
    """Marker of a key that was deleted since the last seal."""

    __slots__ = ()


GONE: Final = _Gone()


class NOTHING:
    """Pinned type of a store whose first key has a type that cannot be pinned: no key matches."""


class Scan:
    """Scan over the rows below, ascending, in parts.

    An open scan keeps the lock of the rows, so `end` can close it early.
    """

    def __init__(self, name: str, rows: Rows, start: bytes = ROW, stop: bytes = INDEX) -> None:
        self._name = name
        self._left: Iterator[tuple[bytes, bytes]] | None = rows.scan(start, stop)

    def part(self, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the next rows, at most `limit` of them; an empty list means the end.

        A part ends with the row that reaches SLICE_BYTES.
        """
        if self._left is None:
            raise WorldError(f"store moved while it was read: {self._name}: read it again")
        part = list[tuple[bytes, bytes]]()
        size = 0
        for row in islice(self._left, limit):
            part.append(row)
            size += len(row[1])
            if size >= SLICE_BYTES:
                break
        return part

    def end(self) -> None:
        self._left = None


def merged(
    below: Scan, encoded: Mapping[bytes, bytes | None], objects: Mapping[bytes, Any]
) -> Iterator[tuple[bytes, bytes | None, Any]]:
    """Yield the present rows in ascending order from three layers, of which the last is the newest.

    Each item is the key, the encoded value, and the object; if the encoded value is None, the
    object is the value.
    """
    changed = {row: (raw, GONE if raw is None else None) for row, raw in encoded.items()}
    changed.update((row, (None, value)) for row, value in objects.items())
    ahead = sorted((row for row, (_, value) in changed.items() if value is not GONE), reverse=True)
    while part := below.part(SCAN_ROWS):
        for row, raw in part:
            while ahead and ahead[-1] < row:
                first = ahead.pop()
                yield first, *changed[first]
            if row not in changed:
                yield row, raw, None
    yield from ((row, *changed[row]) for row in reversed(ahead))


class CachedStore:
    """Store of one task, over committed rows. One owner: the data loop.

    A key-value store as such; the stores of other kinds are made of it.

    The codecs of the node run once per key and commit. `budget_bytes` bounds the memory of the
    decoded objects that are kept.
    """

    def __init__(self, node: StoreNode, rows: Rows, budget_bytes: int) -> None:
        self._node = node
        self.name = node.name
        self.rows = rows
        self.budget_bytes = budget_bytes
        self.changelog_keys = node.changelog_keys
        self.key_of = node.key_of
        self.decode_key = node.keys.decode
        values = node.row_values
        self.decode = values.decode
        # A codec may encode None as None; no key or value is None here.
        self.encode_key: Callable[[Any], bytes] = node.keys.encode  # type: ignore[assignment]
        self.encode: Callable[[Any], bytes] = values.encode  # type: ignore[assignment]
        self.comes_back = values.check
        self._key_encoders: Mapping[type, Callable[[Any], bytes | None]] = node.keys.encoders
        self._encoders = values.encoders
        self._indexed = node.indexed
        self.key_type = node.key_type if node.key_type in PINNED else None
        self._declared = self.key_type is not None
        self._untyped = node.key_type is None
        self.hot: dict[Any, Any] = {}
        self.sealing: dict[Any, Any] = {}
        self.young: dict[Any, Any] = {}
        self.old: dict[Any, Any] = {}
        self.sealed: dict[bytes, bytes | None] = {}
        self.pending: dict[bytes, bytes | None] = {}
        self.complete = not holds_rows(rows)
        """The cache holds every row, so a miss needs no look-up below."""
        self.entry_bytes = FIRST_ENTRY_BYTES
        """Bytes of an encoded row in the last sealed slice; sizes the next slices."""
        self.row_bytes_max = RECORD_BYTES_MAX
        """Limit of a key with its value, set by the topic of the changelog."""
        self._learned = Learned()
        self._young_bytes = self._old_bytes = 0
        """Upper bounds in bytes: a row that is put again counts twice until the next weighing."""
        self._young_max = budget_bytes // 2
        """Bytes of the young generation at which the generations turn."""
        self._large: dict[Any, int] = {}
        """Memory of the large rows in the young generation."""
        self._loads = self._seals = 0
        self._hot_bytes = self._hot_measured = 0
        """Memory of changed rows, and the number of these rows at the last measurement."""
        self._sealing_bytes = self._encoded_bytes = 0
        self._checking = self._at_set = False
        self._key_sizes: dict[Any, int] = {}
        """Bytes of the keys whose values were checked since the last seal began."""
        self.record_open = False
        """Whether a seal leaves out what the record at hand has set, because its body waits."""
        self.touched: list[Careful] = []
        """Rows of all stores that a careful task's record has changed or read."""
        self._left: Iterator[tuple[Any, Any]] | None = None
        self._order: list[bytes] = []
        self._run: list[bytes] = []
        """Rows of `pending` that are not written yet; sorted, last first."""
        self._end: int | None = None
        self._scans: WeakSet[Scan] = WeakSet()
        self._below: Scan | None = None
        self._touched: set[Any] = set()
        self._lacks = False
        """A row was left out or dropped since the preload began."""

    # -- interface for operators and tables

    def cache_key(self, key: Any) -> Any:
        """Return the cache key: the key itself if it has the pinned type."""
        kind = type(key)
        if self.key_type is None:
            self.key_type = kind if kind in PINNED_BY_USE else NOTHING
        if kind is self.key_type:
            return key
        row = self.encode_key(key)
        if self.key_type is NOTHING:
            return (row,)
        pinned = self.decode_key(row)
        return pinned if type(pinned) is self.key_type else (row,)

    def own_key(self, key: Any) -> Any:
        """Return the cache key for a row that is put.

        Bytes are taken as the encoded bytes of a key.

        Raises:
            ValueRefused: the codec reads the key back as another one; two keys would share a
                row.
        """
        cached = self.cache_key(key)
        if type(key) is self.key_type or isinstance(key, bytes) or self._declared:
            return cached
        if self._untyped and type(key) is tuple and PARTS.issuperset(map(type, key)):
            return cached  # a put costs 1.1 us here, and 2.3 us when the key is read back
        read = self.decode_key(cached[0]) if type(cached) is tuple else cached
        if type(key) in UNHASHABLE or key != read:
            where = f"table {self.name}, key {key!r} of type {type(key).__name__}"
            raise ValueRefused(
                f"key would change: {where[:KEY_SHOWN]}: it is read back as {read!r}"[:KEY_TOLD]
                + ": put text or a number, or declare its type, app.Table(..., key_type=...)"
            )
        return cached

    def get(self, key: Any) -> Any:
        cached = self.cache_key(key)
        value = self.hot.get(cached)
        return self.load(cached) if value is None else None if value is GONE else value

    def put(self, key: Any, value: Any) -> None:
        self.hot[self.own_key(key)] = value

    def delete(self, key: Any) -> None:
        self.hot[self.own_key(key)] = GONE

    def load(self, key: Any) -> Any:
        """Return the value of a cache key that is not in `hot`; None if absent."""
        value = self.sealing.get(key)
        if value is None:
            value = self.young.get(key)
            if value is None:
                value = self.old.get(key)
                if value is None and not self.complete:
                    value = self._load_row(key)
        return None if value is GONE else value

    def _load_row(self, key: Any) -> Any:
        row = self._row_key(key)
        committed = self.pending if row in self.pending else self.rows
        raw = (self.sealed if row in self.sealed else committed).get(row)
        if raw is None:
            return None
        value = self._decoded(row, raw)
        self._warm(key, value, len(row) + len(raw))
        return value

    def _warm(self, key: Any, value: Any, encoded_bytes: int) -> None:
        """Keep a row that was read. Costs 0.2 us; decoding the row takes 1 to 6 us."""
        self.young[key] = value
        size = ENTRY_BYTES + int(encoded_bytes * self._learned.factor)
        self._young_bytes += size
        self._loads += 1
        if encoded_bytes >= LARGE_BYTES:
            self._large[key] = size
        if self._loads <= FIRST_SAMPLED or not self._loads % LOADS_SAMPLED:
            self._learned.sample(key, value, encoded_bytes)
        if self._young_bytes >= self._young_max:
            self._turn()

    def _decoded(self, row: bytes, raw: bytes) -> Any:
        """Decode a value.

        Raises:
            DecodeFailed: the codec rejects the row; the message names the row.
        """
        try:
            return self.decode(raw)
        except Exception as error:  # any codec's
            key = self.key_of(row)[:KEY_SHOWN]
            raise DecodeFailed(
                f"row cannot be read: store {self.name}, key {key!r}: {type(error).__name__}: "
                f"{error}: has the type of its values changed?"
            ) from error

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield all entries as of the first step, in the order of their encoded keys.

        Values are shared objects. The iterator holds the changes since the last commit, and a few
        rows.
        """
        for row, value in self.scan(ROW, INDEX):
            yield self.decode_key(self.key_of(row)), value

    def keys(self) -> Iterator[Any]:
        """Yield the keys of `items` without decoding values."""
        for row, _, _ in self._merged(ROW, INDEX):
            yield self.decode_key(self.key_of(row))

    def count(self) -> int:
        """Return the number of entries. Reads all rows and decodes none."""
        return sum(1 for _ in self._merged(ROW, INDEX))

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, Any]]:
        """Yield the rows from `start`, `stop` excluded, as of the first step: row and value.

        Rows are whole keys of `Rows`, in ascending order. All changes up to now are among them.
        """
        for row, raw, value in self._merged(start, stop):
            yield row, value if raw is None else self._decoded(row, raw)

    def _merged(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes | None, Any]]:
        layers = self.sealing, self.hot  # not encoded yet
        objects = {self._row_key(key): each[key] for each in layers for key in each}
        encoded = {**self.pending, **self.sealed}
        if (start, stop) != (ROW, INDEX):
            objects = {row: objects[row] for row in objects if start <= row < stop}
            encoded = {row: encoded[row] for row in encoded if start <= row < stop}
        return merged(self._scan_below(start, stop), encoded, objects)

    def _scan_below(self, start: bytes, stop: bytes) -> Scan:
        scan = Scan(self.name, self.rows, start, stop)
        self._scans.add(scan)
        return scan

    def _key_bytes(self, key: Any) -> bytes:
        return key[0] if type(key) is tuple else self.encode_key(key)

    def _row_key(self, key: Any) -> bytes:
        return ROW + self._key_bytes(key)

    def _cached_key(self, row: bytes) -> Any:
        """Return the cache key of a row below."""
        return self.cache_key(self.decode_key(self.key_of(row)))

    # -- the commit cycle

    @property
    def dirty(self) -> bool:
        """Return whether a row has changed since the last seal."""
        return bool(self.hot)

    @property
    def dirty_bytes(self) -> int:
        """Return the memory of rows that Kafka or the rows below still lack.

        Warm objects do not count.
        """
        self._measure_changes()
        return self._hot_bytes + self._sealing_bytes + self._encoded_bytes

    def _measure_changes(self) -> None:
        """Estimate the memory of rows that changed since the last look and are not encoded yet.

        The newest rows stand for all of them. Without this estimate, when 4,000 rows of 100 KB are
        put within a second, only the first seal afterwards would notice the 400 MB.
        """
        if (grown := len(self.hot) - self._hot_measured) < 0:  # rows expired before a seal
            self._hot_bytes = self._hot_bytes * len(self.hot) // self._hot_measured
            self._hot_measured = len(self.hot)
        elif grown:
            newest = dict(islice(reversed(self.hot.items()), min(grown, CHANGES_SAMPLED)))
            size = sum(map(deep_bytes, newest.values()))
            if isinstance(self.hot, Careful):
                size += self.hot.bytes_of(newest)
            self._hot_bytes += grown * (ENTRY_BYTES + size // len(newest))
            self._hot_measured += grown

    def _set_aside(self) -> None:
        """Begin a seal: move the hot rows to `sealing`, to be encoded from now on."""
        self._measure_changes()
        hot = self.hot
        own = self.take_out() if self.record_open else []
        if isinstance(hot, Careful):
            hot.set_aside()
        self.sealing = hot
        self.hot = self._new_hot()
        self.put_in(own)
        self._sealing_bytes = self._hot_bytes
        self._hot_bytes = 0
        self._hot_measured = 0

    def check_values(self, *, checking: bool, at_set: bool = True) -> None:
        """Set whether a bad value raises ValueRefused before it is sealed.

        It raises when it is put, or without `at_set` in `encode`. With `checking` the changes of
        one record can be kept or undone: `keep` belongs behind each record. The setting applies
        from the next seal on, or at once while nothing has changed.
        """
        self._checking = checking
        self._at_set = at_set
        if not self.hot:
            self.hot = self._new_hot()

    def _new_hot(self) -> dict[Any, Any]:
        self._key_sizes = {}
        if not self._checking:
            return {}
        return CarefulSearch(self, GONE) if self._at_set else Careful(self, GONE)

    def keep(self) -> None:
        """Keep what the record at hand has changed, where values are checked."""
        if isinstance(self.hot, Careful):
            self.hot.keep()

    def undo(self) -> list[Any]:
        """Undo what the record at hand has changed.

        Returns:
            The keys of all rows that the record has changed or was given.
        """
        return self.hot.undo() if isinstance(self.hot, Careful) else []

    def drop_clean(self) -> bool:
        """Drop all clean objects, one of which a record may have changed in place.

        Returns:
            False if rows have changed since the last seal; then nothing was dropped.
        """
        if self.dirty or self.sealing:
            return False
        self.complete = False
        self._forget_warm()
        self._lacks = True  # a preload may be under way
        return True

    def take_out(self) -> OfRecord:
        """Take out what the record at hand has set, while others have their turn."""
        return self.hot.take_out() if isinstance(self.hot, Careful) else []

    def put_in(self, own: OfRecord) -> None:
        """Go on with what `take_out` has returned."""
        if isinstance(self.hot, Careful):
            self.hot.put_in(own)

    def seal(self, limit: int) -> Changes:
        """Encode up to `limit` dirty values for the changelog; an empty result means the end.

        Raises:
            ValueRefused: a value cannot be sealed; then call `aborted`.
        """
        assert not self.pending, f"{self.name}: sealed before its last commit was written"
        if self._left is None:
            self._set_aside()
            self._left = iter(self.sealing.items())
        if not (part := list(islice(self._left, self._slice(limit)))):
            self._left = None
            self.sealing = {}
            self._sealing_bytes = 0
            return Changes([], [])
        checked: list[bytes] | None = None
        if isinstance(self.sealing, Careful):
            checked = self.sealing.encoded(part)
        objects = [value for _, value in part]
        kinds = set(map(type, objects))
        deletes = _Gone in kinds
        try:
            keys = self._encoded_keys([key for key, _ in part])
            values: Any = checked or self._encoded_values(objects, kinds)
        except Exception:  # any codec's
            self._check_each(part)
            raise
        size = sum(map(len, keys)) + sum(map(len, filter(None, values)))
        loses = checked is None and self._loses_one(objects, values, deletes=deletes)
        if size > self.row_bytes_max or loses:
            self._check_each(part)
        self.sealed.update(zip(map(ROW.__add__, keys), values, strict=True))
        self.entry_bytes = ENTRY_BYTES + size // len(part)
        self._encoded_bytes += len(part) * ENCODED_BYTES + size
        self._seals += 1
        if self._seals <= FIRST_SAMPLED or not self._seals % SEALS_SAMPLED:
            self._learned.sample(*part[-1], len(keys[-1]) + len(values[-1] or b""))
        self._cool(part, values, size, deletes=deletes)
        return Changes(self.changelog_keys(keys), values)

    def _encoded_keys(self, keys: list[Any]) -> list[bytes]:
        """Encode cache keys. Keys of one type share a look-up: 250 ns each instead of 390."""
        kinds = set(map(type, keys))
        if len(kinds) > 1 or tuple in kinds:
            return [self._key_bytes(key) for key in keys]
        return list(map(self._key_encoders[kinds.pop()], keys))  # type: ignore[arg-type]

    def _encoded_values(self, objects: list[Any], kinds: set[type]) -> list[bytes | None]:
        """Encode values, a deleted one to None. Values of one type share a look-up."""
        encode = self._encoders
        if len(kinds) > 1 or _Gone in kinds:
            return [None if v is GONE else encode[type(v)](v) for v in objects]
        (kind,) = kinds
        return encoded_all(encode[kind], objects)

    def _loses_one(self, objects: list[Any], encoded: list[bytes | None], *, deletes: bool) -> bool:
        """Return whether a value of a slice would be read back as another one."""
        if self.comes_back is None:
            return False
        if deletes:
            objects = [value for value in objects if value is not GONE]
            encoded = [row for row in encoded if row is not None]
        return self.comes_back.first(objects, encoded) is not None  # type: ignore[arg-type]

    def _slice(self, limit: int) -> int:
        unmeasured = self.entry_bytes == FIRST_ENTRY_BYTES
        most = FIRST_SLICE_ROWS if unmeasured else SLICE_BYTES // self.entry_bytes
        return max(1, min(limit, most))

    def _check_each(self, part: list[tuple[Any, Any]]) -> None:
        """Check the entries one by one, to find the bad one."""
        for key, value in (entry for entry in part if entry[1] is not GONE):
            self.check(key, value)

    def renew(self, key: Any) -> None:
        """Drop the warm object of a key, which may have been changed in place.

        A cache that is complete, or counts the rows that it reads ahead, reads the row again.
        """
        young = self.young.pop(key, None)
        old = self.old.pop(key, None)
        self._large.pop(key, None)
        counts = self.complete or self._below is not None
        if counts and (young is not None or old is not None):
            self._load_row(key)

    def check(self, key: Any, value: Any) -> bytes:
        """Return the encoded value.

        Raises:
            ValueRefused: a seal could not take the value.
        """
        try:
            encoded: bytes = self._encoders[type(value)](value)  # type: ignore[assignment]
            if (size := self._key_sizes.get(key)) is None:
                size = self._key_sizes[key] = len(self._key_bytes(key))
        except Exception as error:  # any codec's
            if lost := self._lost(value):
                raise self._refusal("does not come back", key, value, lost) from error
            why = f"{type(error).__name__}: {error}: put a value that its serializer can write"
            raise self._refusal("cannot be encoded", key, value, why) from error
        trip = self.comes_back
        if trip and type(value) not in trip.kept and not trip.comes_back(value, encoded):
            why = self._lost(value) or "it would be read back as another value: declare its type"
            raise self._refusal("does not come back", key, value, why)
        size += len(encoded)
        if size > (limit := self.row_bytes_max):
            why = f"{size} bytes with its key, the limit is {limit}: split it"
            raise self._refusal("too large", key, value, why)
        return encoded

    def _lost(self, value: Any) -> str:
        """Return the part of a value that its codec loses, with a remedy; empty: no part."""
        lost = self.comes_back and self.comes_back.lost(value)
        return str(lost or "")

    def _refusal(self, what: str, key: Any, value: Any, why: str) -> ValueRefused:
        """Return the error for a value that no seal can take."""
        shown = repr(key[0] if type(key) is tuple else key)[:KEY_SHOWN]
        where = f"store {self.name}, key {shown}, type {type(value).__name__}"
        return ValueRefused(f"value {what}: {where}: {why}")

    def _cool(
        self, part: list[tuple[Any, Any]], raw: list[bytes | None], size: int, *, deletes: bool
    ) -> None:
        """Keep the objects of a slice as clean ones; their encoded values have `size` bytes."""
        if self._below is not None:
            self._touched.update(key for key, _ in part)
        self.young.update(part)
        for key in [key for key, value in part if value is GONE] if deletes else ():
            del self.young[key]
            self.old.pop(key, None)
        self._young_bytes += self._learned.of(len(part), size)
        if self._large or (size >= LARGE_BYTES <= max(map(len, filter(None, raw)), default=0)):
            self._note_large(part, raw)
        if self._young_bytes >= self._young_max:
            self._turn()

    def _note_large(self, part: list[tuple[Any, Any]], raw: list[bytes | None]) -> None:
        for (key, _), encoded in zip(part, raw, strict=True):
            if encoded is not None and len(encoded) >= LARGE_BYTES:
                self._large[key] = self._learned.of(1, len(encoded))
            else:
                self._large.pop(key, None)

    def share(self, budget_bytes: int) -> None:
        """Set a smaller or larger budget; an idle store would keep its objects otherwise."""
        self.budget_bytes = budget_bytes
        self._young_max = min(budget_bytes // 2, budget_bytes - self._old_bytes)
        if self._young_bytes > self._young_max:
            self._turn()

    def _turn(self) -> None:
        """Drop the old generation when the young one has half of the budget, or both have all."""
        self._young_bytes = self._weigh()
        if self._young_bytes >= self.budget_bytes // 2 * STILL_FULL:
            self._drop_old()
            self.old = self.young
            self._old_bytes = self._young_bytes
            self._lacks = True
            self.young = {}
            self._young_bytes = 0
            self._large = {}
        if self._young_bytes + self._old_bytes > self.budget_bytes:
            self._drop_old()
        self._young_max = min(self.budget_bytes // 2, self.budget_bytes - self._old_bytes)

    def _drop_old(self) -> None:
        self.complete = self.complete and not self.old
        self.old = {}
        self._old_bytes = 0
        self._lacks = True

    def _weigh(self) -> int:
        """Estimate the memory of the young generation from some small rows and all large ones."""
        step = -(-len(self.young) // COUNTED_AGAIN) | 1
        some = [
            entry
            for entry in islice(self.young.items(), 0, None, step)
            if entry[0] not in self._large
        ]
        total = sum(self._large.values())
        if some:
            sizes = sum(sys.getsizeof(key) + deep_bytes(value) for key, value in some)
            others = len(self.young) - len(self._large)
            total += others * (SLOT_BYTES + sizes // len(some))
        return total

    def adopt(self, end: int | None) -> None:
        """Mark the sealed rows as committed in Kafka; `end`: next changelog position, if any."""
        assert not self.pending, f"{self.name}: committed before its last commit was written"
        self.pending = self.sealed
        self.sealed = {}
        self._end = end
        self._order = list(self.pending)
        self._run = []

    def write_some(self, limit: int) -> bool:
        """Write up to `limit` committed rows to the rows below; return True at the end.

        The position goes with the last of them.
        """
        if not self.pending:
            return True
        if not self._run:
            self._run = sorted(self._order[-SORTED_ROWS:], reverse=True)
            del self._order[-SORTED_ROWS:]
        run = self._run
        count = self._slice(limit)
        done = len(run) <= count and not self._order
        part = {key: self.pending[key] for key in reversed(run[-count:])}
        self.rows.write(self._indexed(part), self._end if done else None)
        # Only now: rows that a full disk rejected must not be missing below the written position.
        del run[-count:]
        if done:
            self.pending = {}
            self._end = None
            self._encoded_bytes = 0
        return done

    def aborted(self) -> None:
        """Restore the state of the last commit.

        Warm objects may have been changed in place, and are dropped.
        """
        self.stop_scans()
        if self.hot or self.sealing or self.sealed:
            self.complete = False
            self._forget_warm()
        self.hot = self._new_hot()
        self.sealing = {}
        self.sealed = {}
        self._left = None
        self._hot_bytes = self._hot_measured = self._sealing_bytes = 0
        if not self.pending:
            self._encoded_bytes = 0

    def committed_rows(self) -> dict[bytes, bytes | None]:
        """Return the committed value of each row that was sealed since the last commit."""
        assert not (self.sealed and self.pending), f"{self.name}: sealed over an unwritten commit"
        return {row: self.rows.get(row) for row in self.sealed}

    def committed_view(self) -> "CachedStore":
        """Return a store with the committed values alone. To be read at once, and not to be set."""
        view = type(self)(self._node, self.rows, 0)
        view.pending = self.pending
        view.complete = False
        view._scans = self._scans  # noqa: SLF001  # of its own class: they end with this store
        return view

    def put_back(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Set rows to earlier committed values. They count as sealed; the next commit writes them.

        For a store that has not been used yet.
        """
        self.sealed.update(rows)
        self.complete = False
        size = sum(map(len, rows)) + sum(map(len, filter(None, rows.values())))
        self._encoded_bytes += len(rows) * ENCODED_BYTES + size

    def _forget_warm(self) -> None:
        self._lacks = True  # a preload may have read some of them
        self.young = {}
        self.old = {}
        self._large = {}
        self._young_bytes = self._old_bytes = 0
        self._young_max = self.budget_bytes // 2

    # -- warming up

    def preload_some(self, limit: int) -> bool:
        """Load up to `limit` rows into the cache; return True when nothing is left to do.

        If all rows fit into half of the budget, all are loaded and the store is `complete`.
        Otherwise the preload stops as soon as the loaded rows show that, and other rows are read on
        demand. Keys that were sealed since the start are skipped, because the scan shows their old
        values.
        """
        if self._below is None:
            if self.complete:
                return True
            if self.sealed or self.pending:
                return False  # the rows below are out of date: wait for the commit
            self._below = Scan(self.name, self.rows)
            self._touched = set()
            self._lacks = False
        part = self._below.part(limit)
        for row, raw in part:
            self._preload_row(row, raw)
        if part and self._fits():
            return False
        self.complete = not (part or self._lacks)
        self._stop_preload()  # other scans go on: windows may be closing in slices
        return True

    def _fits(self) -> bool:
        """Estimate whether all rows below fit into half of the budget."""
        warm = len(self.young) + len(self.old)
        held = self._young_bytes + self._old_bytes
        most = max(held, self.rows.estimate() * held // max(1, warm))
        return most <= self.budget_bytes // 2

    def _preload_row(self, row: bytes, raw: bytes) -> None:
        """Load a row, unless its codec rejects it.

        A rejected row stays below, and raises when it is read.
        """
        try:
            key = self._cached_key(row)
            value = self.decode(raw)
        except Exception:  # any codec's
            self._lacks = True
            return
        if not (key in self._touched or key in self.sealing or key in self.young):
            self._warm(key, value, len(row) + len(raw))

    def stop_scans(self) -> None:
        """End all scans. Call before the rows are closed: an open scan keeps their lock."""
        for scan in list(self._scans):
            scan.end()
        self._stop_preload()

    def _stop_preload(self) -> None:
        self._below = None
        self._touched = set()
