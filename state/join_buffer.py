"""Buffer of one side of a join of streams: rows by bucket and key, each a list of records.

A row holds [time, matched, value] of each record, as they came. A bucket (`size`) is at least half
of the time in which records match, so a record looks for its matches in at most three rows of the
other side. A generated loop does it with plain operations; `stays` is the other side's:

    low, high = at - before, at + after
    found = []
    for start in range(max(0, low - low % size), high + 1, size):
        row = pack(start) + key
        entries = get(row)                    # hot.get; hot, get and peek are bound per chunk
        if entries is None:
            entries = peek(row) or ()
        for entry in entries:
            if low <= entry[0] <= high and entry[0] + stays >= now:
                found.append(entry)
                if not entry[1]:              # left and outer joins alone
                    entry[1] = True
                    hot[row] = entries
    if len(found) > 1:
        found.sort(key=itemgetter(0))         # by time, then as they came

The record then goes into the buffer of its own side:

    row = pack(at - at % size) + key
    entries = get(row)
    if entries is None:
        entries = load(row) or []
    if len(entries) >= ENTRIES_MAX:
        raise store.full(key)
    entries.append([at, matched, value])
    hot[row] = entries
    if at < store.horizon and not matched:    # left and outer joins alone
        store.note(at, key, len(entries) - 1)

`pack` is `layout:time_bytes`. A record has closed at `time + stays < now`; `stays` is how far its
matches may be behind it, and the grace. A look into three empty rows costs 1,700 ns of CPU, a new
row with its record 900 ns (`python -m tests.support.windows`).

`close` yields the closed records without a match, for left and outer joins; inner joins call
`drop`. Rows expire by bucket, in both. Records that will close next are in a heap. They get there
when stream time reaches their bucket, and no look at another bucket is needed until then.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Final

from streamsx.errors import ValueRefused
from streamsx.state.api import INDEX, ROW, Rows
from streamsx.state.cache import KEY_SHOWN
from streamsx.state.careful import Careful
from streamsx.state.layout import TIME_BYTES, StoreNode, time_bytes
from streamsx.state.window_store import RowsByTime

ENTRIES_MAX: Final = 10_000
"""Records of one key in one bucket: each look-up passes over them, and each commit writes them."""


class JoinBuffer(RowsByTime):
    """Store of the records of one side, by bucket and encoded key."""

    def __init__(self, node: StoreNode, rows: Rows, budget_bytes: int) -> None:
        assert node.timing is not None, node
        super().__init__(node, rows, budget_bytes, node.timing.size + node.timing.stays)
        self.horizon = 0
        """Time in ms, a multiple of the bucket; records before it without a match are in the heap.
        """
        self._near: list[tuple[int, bytes, int]] = []
        """Heap of time, key and place in the row."""

    def note(self, at: int, key: bytes, place: int) -> None:
        """Note a record without a match before the horizon; `place`: index in its row."""
        heappush(self._near, (at, key, place))
        self.due = min(self.due, at + self.stays + 1)
        if self._checking and isinstance(self.hot, Careful):
            self.hot.notes.append((at, key, place))

    def undo(self) -> list[Any]:
        """Undo the record, and its notes: another record may get the place in the row."""
        if isinstance(self.hot, Careful) and self.hot.notes:
            for each in self.hot.notes:
                self._near.remove(each)
            heapify(self._near)
        return super().undo()

    def full(self, key: bytes) -> ValueRefused:
        """Return the error for a record that its row has no room for."""
        return ValueRefused(
            f"too many records of one key: join buffer {self.name}, key {key[:KEY_SHOWN]!r}: "
            f"{ENTRIES_MAX} within {self.size} ms: join within less time, or by another key"
        )

    def close(self, now: int, limit: int) -> Iterator[list[tuple[int, bytes, Any]]]:
        """Yield (time, key, value) of closed records without a match, in slices; by time, then key.

        A slice has at most `limit` records.
        """
        self._begin_closing(now)
        bound = self.closed - self.stays  # records before it have closed
        yield from self._approach(bound, limit)
        part = list[tuple[int, bytes, Any]]()
        while self._near and self._near[0][0] < bound:
            at, key, place = heappop(self._near)
            _, matched, value = self._entries(time_bytes(at - at % self.size) + key, b"")[place]
            if not matched:
                part.append((at, key, value))
                if len(part) == limit:
                    yield part
                    part = []
        if part:
            yield part
        for _ in self._expire_unread(limit):
            yield []
        self._ended_now()
        first = self._near[0][0] if self._near else self.horizon
        self.due = min(self.due, first + self.stays + 1)

    def _approach(self, bound: int, limit: int) -> Iterator[list[Any]]:
        """Move the horizon beyond a time, and the records before it to the heap."""
        horizon = bound - bound % self.size + self.size
        if horizon <= self.horizon:
            return
        low = time_bytes(self.horizon)
        self.horizon = horizon
        first = self._given - self.stays
        for steps, (row, raw) in enumerate(self._walk(low, time_bytes(horizon), limit), 1):
            for place, (at, matched, _) in enumerate(self._entries(row, raw)):
                if not matched and at >= first:
                    heappush(self._near, (at, row[TIME_BYTES:], place))
            if not steps % limit:
                yield []

    def _entries(self, row: bytes, raw: bytes | None) -> list[list[Any]]:
        """Return the records of a row, which a walk has found."""
        entries = self.hot.get(row)
        if entries is None and raw is not None:
            entries = self._stored_value(row, raw)
        return entries or []

    def _ended_now(self) -> None:
        super()._ended_now()
        self.due = -(-self._cursor // self.size) * self.size + self.row_stays

    def _forget_expiry(self) -> None:
        super()._forget_expiry()
        self.horizon = 0
        self._near = []

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield ((key, time), value) of the records that have not closed, by bucket and key."""
        first = self.closed - self.stays
        for row, entries in self.scan(ROW + time_bytes(max(0, first - self.size)), INDEX):
            key = self.decode_key(self.key_of(row))
            for at, _, value in entries:
                if at >= first:
                    yield (key, at), value
