"""Store of windows: one row per window and key, which closes when stream time has passed it.

A generated loop handles a record with plain dict operations:

    start = at - at % size
    if start + stays <= now:                  # per window, as one record may be in several
        counts.late += 1
    else:
        if start != current:                  # pack a start once for a run of records
            current, prefix = start, pack(start)
        row = prefix + key
        value = get(row)                      # hot.get; hot, get and load are bound per chunk
        if value is None:
            value = load(row)                 # None: the window has no row for this key
        hot[row] = ...                        # only after get or load; GONE deletes

`pack` is `layout:time_bytes`. A row in `hot` costs 50-140 ns of CPU beyond a count by key on a
dict, a new row 500-650 ns (`python -m tests.support.windows`).

A window closes at `now >= start + stays`; `stays` is its size and its grace. Windows close in the
order of their starts, and keys of one window in the order of their bytes.

Rows that are not stored yet are found by their starts (`_fresh`), stored rows by a scan of the rows
below, which lie by start. A window newer than every stored one needs no look below.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from heapq import heapify, heappop
from itertools import chain, islice, repeat
from typing import Any

from streamsx.state.api import INDEX, ROW, Rows
from streamsx.state.cache import GONE, CachedStore
from streamsx.state.layout import TIME_BYTES, StoreNode, time_bytes
from streamsx.state.timed_store import TimedStore

Starts = dict[bytes, set[bytes]]
"""Rows by the first bytes that they share: the packed start."""
SORTED_ROWS = 16_384
"""So many rows are sorted at once: 4 ms."""
UNREAD_SLICES = 10
"""Rows that expire unread are taken in slices of so many times the limit: 0.8 ms for 5,000."""

FoundRow = tuple[bytes, bytes | None]
"""Row that expires, and its bytes below: b"" if those are out of date, None if it is not stored."""


class RowsByTime(TimedStore):
    """Cached store whose rows begin with a time: windows, and buckets of joined records.

    A row expires `row_stays` ms after its time.
    """

    tag = ROW

    def __init__(self, node: StoreNode, rows: Rows, budget_bytes: int, row_stays: int) -> None:
        super().__init__(node, rows, budget_bytes)
        self.row_stays = row_stays
        self._fresh: Starts = {}
        """Rows that were not there when they were looked for since the last seal."""
        self._unwritten: Starts = {}
        """The same rows of the seal before, until they are below."""
        newest = rows.last(ROW, INDEX)
        self._top = b"" if newest is None else newest[1 : TIME_BYTES + 1]
        """Packed time of the newest stored row."""
        self._writes = 0
        """Number of slices written below, which show that a scan is out of date."""

    def load(self, key: bytes) -> Any:
        """Return the value of a row that is not in `hot`; None if absent."""
        start = key[:TIME_BYTES]
        if start <= self._top:
            value = CachedStore.load(self, key)
            if value is not None:
                return value
        fresh = self._fresh.get(start)
        if fresh is None:
            fresh = self._fresh[start] = set()
        fresh.add(key)
        return None

    def peek(self, key: bytes) -> Any:
        """Return what `load` returns, for a row that will not be put unless it is there."""
        return CachedStore.load(self, key) if key[:TIME_BYTES] <= self._top else None

    # -- expiry

    def drop(self, now: int, limit: int) -> Iterator[None]:
        self._begin_closing(now)
        yield from self._expire_unread(limit)
        self._ended_now()

    def _expire_unread(self, limit: int) -> Iterator[None]:
        """Expire rows without their values, in any order and in slices: 150 ns a row.

        Row by row it took 870 ns.
        """
        stop = self.closed - self.row_stays + 1
        if stop <= self._cursor:
            return
        low, high = time_bytes(self._cursor), time_bytes(stop)
        ahead, on_the_way = self._rows_ahead(low, high)
        rows = iter(ahead)
        while part := list(islice(rows, UNREAD_SLICES * limit)):
            _pop_all(self.hot, part)
            self._note_ended(on_the_way.intersection(part))
            yield
        for stored in self._slices_below(low, high, limit):
            part = [row[1:] for row, _ in stored]
            _pop_all(self.hot, part)
            self._note_ended(part)
            yield
        self._cursor = stop

    def _note_ended(self, rows: Collection[bytes]) -> None:
        """Note rows that are stored and have expired."""
        self._ended.update(dict.fromkeys(rows))
        _pop_all(self.young, rows)
        _pop_all(self.old, rows)

    def _expire(self, limit: int) -> Iterator[list[tuple[bytes, Any]]]:
        """Expire rows, and yield them with their values in slices, ascending."""
        stop = self.closed - self.row_stays + 1
        if stop <= self._cursor:
            return
        low, high = time_bytes(self._cursor), time_bytes(stop)
        ahead, on_the_way = self._rows_ahead(low, high)
        if low > self._top and not on_the_way:
            yield from self._expire_unsealed(ahead, limit)
        else:
            rows = _walk(ahead, on_the_way, self._stored(low, high, limit))
            while part := list(islice(rows, limit)):
                yield [(row, self._expired(row, raw)) for row, raw in part]
        self._cursor = stop

    def _expire_unsealed(self, ahead: list[bytes], limit: int) -> Iterator[list[tuple[bytes, Any]]]:
        """Expire rows of which none was sealed: they are in `hot` alone.

        A close takes 1.0 us a row; by way of the stored rows it took 2.3.
        """
        rows = _ascending(ahead)
        while part := list(islice(rows, limit)):
            values = map(self.hot.pop, part, repeat(None))
            yield [
                (row, None if value is GONE else value)
                for row, value in zip(part, values, strict=True)
            ]

    def _walk(self, low: bytes, high: bytes, limit: int) -> Iterator[FoundRow]:
        """Yield the rows from `low`, `high` excluded, ascending."""
        return _walk(*self._rows_ahead(low, high), self._stored(low, high, limit))

    def _rows_ahead(self, low: bytes, high: bytes) -> tuple[list[bytes], set[bytes]]:
        """Return the rows of a range that may not be below, and which of them are on their way."""
        unwritten = _within(self._unwritten, low, high)
        on_the_way = {row for row in unwritten if self._is_unwritten(row)}
        fresh = _within(self._fresh, low, high)
        return [*(on_the_way.union(fresh) if on_the_way else fresh)], on_the_way

    def _is_unwritten(self, row: bytes) -> bool:
        """Return whether a row is on the way below."""
        tagged = ROW + row
        return row in self.sealing or tagged in self.sealed or tagged in self.pending

    def _stored(self, low: bytes, high: bytes, limit: int) -> Iterator[FoundRow]:
        """Yield the rows below, ascending."""
        writes = self._writes
        for part in self._slices_below(low, high, limit):
            for row, raw in part:
                newer = row in self.pending or row in self.sealed or writes != self._writes
                yield row[1:], b"" if newer else raw

    def _slices_below(
        self, low: bytes, high: bytes, limit: int
    ) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the rows below with their tags, ascending, in slices."""
        if low > self._top:
            return
        scan = self._scan_below(ROW + low, ROW + high)
        while part := scan.part(limit):
            yield part

    def _expired(self, row: bytes, raw: bytes | None) -> Any:
        """Take a row out of the cache and return its value; None if there is none."""
        value = self.hot.pop(row, None)
        if raw is not None:
            if value is None:
                value = self._stored_value(row, raw)
            self._ended[row] = None
            self.young.pop(row, None)
            self.old.pop(row, None)
        return None if value is GONE else value

    def _stored_value(self, row: bytes, raw: bytes) -> Any:
        for layer in (self.sealing, self.young, self.old):
            if (value := layer.get(row)) is not None:
                return value
        return self._decoded(ROW + row, raw) if raw else CachedStore.load(self, row)

    def _ended_now(self) -> None:
        super()._ended_now()
        stop = time_bytes(self._cursor)
        for start in [start for start in self._fresh if start < stop]:
            del self._fresh[start]

    def _forget_expiry(self) -> None:
        super()._forget_expiry()
        self._fresh = {}
        self._unwritten = {}
        self._note_unwritten(row[1:] for row in self.pending)

    def _note_unwritten(self, rows: Iterable[bytes]) -> None:
        for row in rows:
            self._unwritten.setdefault(row[:TIME_BYTES], set()).add(row)

    # -- the commit cycle

    def _set_aside(self) -> None:
        super()._set_aside()
        self._top = max(self._top, max(self._fresh, default=b""))
        for start, rows in self._fresh.items():
            self._unwritten.setdefault(start, set()).update(rows)
        self._fresh = {}
        for row in self.hot:  # of a record whose body waits
            self._fresh.setdefault(row[:TIME_BYTES], set()).add(row)

    def write_some(self, limit: int) -> bool:
        self._writes += 1
        return super().write_some(limit)

    def _written(self) -> None:
        self._unwritten = {}


def _within(starts: Starts, low: bytes, high: bytes) -> Iterator[bytes]:
    """Return the rows of a range, in any order."""
    return chain.from_iterable(rows for start, rows in starts.items() if low <= start < high)


def _walk(
    ahead: list[bytes], on_the_way: set[bytes], stored: Iterator[FoundRow]
) -> Iterator[FoundRow]:
    """Yield rows that may not be below and stored rows, ascending, each once."""
    rows = _ascending(ahead)
    row = next(rows, None)
    below = next(stored, None)
    while row is not None or below is not None:
        if below is None or (row is not None and row < below[0]):
            assert row is not None
            yield row, b"" if row in on_the_way else None
            row = next(rows, None)
        else:
            if row == below[0]:
                row = next(rows, None)
            yield below
            below = next(stored, None)


def _ascending(rows: list[bytes]) -> Iterator[bytes]:
    """Yield rows ascending, and take the list apart.

    A heap is ordered while it is emptied, 450 ns a row instead of 230: a sort of 43,000 rows blocks
    the loop for 16 ms.
    """
    if len(rows) <= SORTED_ROWS:
        rows.sort()
        yield from rows
        return
    heapify(rows)
    while rows:
        yield heappop(rows)


def _pop_all(rows: dict[Any, Any], keys: Iterable[bytes]) -> None:
    """Take keys out of a dict if they are there."""
    deque(map(rows.pop, keys, repeat(None)), maxlen=0)


class WindowStore(RowsByTime):
    """Store of tumbling and hopping windows: value by start, in ms, and encoded key."""

    def __init__(self, node: StoreNode, rows: Rows, budget_bytes: int) -> None:
        assert node.timing is not None, node
        super().__init__(node, rows, budget_bytes, node.timing.stays)
        self.step = node.timing.step

    def fetch(self, key: bytes, start: int) -> Any:
        """Return the value of a key in the window from `start`; None if absent or closed."""
        if start + self.stays <= self.closed:
            return None
        row = time_bytes(start) + key
        value = self.hot.get(row)
        if value is None:
            return self.load(row)
        return None if value is GONE else value

    def put_window(self, key: bytes, start: int, value: Any) -> None:
        """Set the value of a key in the open window from `start`; None deletes."""
        assert start + self.stays > self.closed, f"{self.name}: window from {start} has closed"
        row = time_bytes(start) + key
        if row not in self.hot:
            self.load(row)
        self.hot[row] = GONE if value is None else value

    def all_closed(self, newest: int) -> int:
        return newest - newest % self.step + self.stays

    def close(self, now: int, limit: int) -> Iterator[list[tuple[int, bytes, Any]]]:
        """Yield (start, key, value) of windows that have closed by `now`, in slices, ascending."""
        first = time_bytes(max(0, self._given - self.stays + 1))
        self._begin_closing(now)
        for part in self._expire(limit):
            yield [
                (int.from_bytes(row[:TIME_BYTES], "big"), row[TIME_BYTES:], value)
                for row, value in part
                if value is not None and row >= first
            ]
        self._ended_now()

    def _ended_now(self) -> None:
        super()._ended_now()
        self.due = -(-self._cursor // self.step) * self.step + self.stays

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield ((key, start), value) of the open windows, by start and key."""
        first = max(0, self.closed - self.stays + 1)
        for row, value in self.scan(ROW + time_bytes(first), INDEX):
            start = int.from_bytes(row[1 : TIME_BYTES + 1], "big")
            yield (self.decode_key(self.key_of(row)), start), value
