"""Store of sessions: one row per key, a list of [start, end, value], ascending. Ends are inclusive.

A generated loop handles a record with plain list operations while a key has one open session:

    sessions = get(key)                       # hot.get; hot, get and load are bound per chunk
    if sessions is None:
        sessions = load(key) or ()
    if len(sessions) == 1:
        entry = sessions[0]
        joins = entry[0] - gap <= at <= entry[1] + gap and entry[1] + stays >= now
    else:
        joins = False
    if joins:                                 # the session goes on
        entry[2] = ...
        if at > entry[1]: entry[1] = at
        elif at < entry[0]: entry[0] = at
        hot[key] = sessions
    elif at + stays < now and not store.near(sessions, at, now):
        counts.late += 1
    else:                                     # a new session, or several that become one
        merged = store.near(sessions, at, now)
        start = min(at, merged[0][0]) if merged else at
        end = max([at, *(each[1] for each in merged)])
        store.replace(key, sessions, merged, [start, end, ...])

`gap` is the size of the store's timing. A session has closed at `end + stays < now`; `stays` is the
gap and the grace. A closed session stays in the list until the commit after, and merges no more. So
an open session may reach over it, and ends are not ascending. A record that extends a session costs
20-110 ns of CPU beyond a count on a dict, one that begins a session 2,200 ns (`python -m
tests.support.windows`).

Rows lie by key, so an index finds what closes. Each open session has a hint: its key at a time not
after its end. A hint that is too early costs one look at the row, and is made anew. So a session
that goes on needs no change of its hint. Hints of rows that are not stored are in `_far`, those of
stored rows in index rows below (`layout:StoreNode.indexed`), and those of the next times to come in
`_near`, a heap. Hints move to the heap when stream time comes to within one width of them, a part
of the gap. A store that is opened reads no more hints than that.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from operator import itemgetter
from typing import Any, Final

from streamsx.state.api import INDEX, ROW, Rows
from streamsx.state.cache import Changes
from streamsx.state.framed import second_times
from streamsx.state.layout import TIME_BYTES, StoreNode, index_width, time_bytes
from streamsx.state.sizes import ENCODED_BYTES
from streamsx.state.timed_store import TimedStore

Entry = list[Any]
"""Start, end, both in ms and inclusive, and value."""
Times = dict[int, set[bytes]]
"""Keys by hint: a time in ms, rounded down to the width of the index."""
START: Final = itemgetter(0)
HINT_AT: Final = 1 + TIME_BYTES
"""Place of the key in an index row."""


class SessionStore(TimedStore):
    """Store of sessions by encoded key. Values in `hot` are lists of sessions, never GONE."""

    tag = INDEX

    def __init__(self, node: StoreNode, rows: Rows, budget_bytes: int) -> None:
        super().__init__(node, rows, budget_bytes)
        self._width = index_width(node)
        self._near: list[tuple[int, bytes]] = []
        """Heap of the hints before the horizon."""
        self._horizon = 0
        """Time in ms, a multiple of the width; all hints before it are in the heap."""
        self._far: Times = {}
        """Hints at or after the horizon, made since the last seal."""
        self._unwritten: Times = {}
        """The same of the seal before, until their index rows are below."""
        self._fresh: set[bytes] = set()
        """Keys whose rows were not there when their first session since the last seal began."""

    # -- the record path

    def near(self, sessions: Sequence[Entry], at: int, now: int) -> list[Entry]:
        """Return the open sessions that a record at this time joins, ascending."""
        gap, stays = self.size, self.stays
        return [
            entry
            for entry in sessions
            if entry[0] - gap <= at <= entry[1] + gap and entry[1] + stays >= now
        ]

    def replace(
        self, key: bytes, sessions: Sequence[Entry], merged: Sequence[Entry], entry: Entry
    ) -> None:
        """Put a session in the place of those that have become one with it; possibly of none."""
        if sessions:
            left = [each for each in sessions if not any(each is gone for gone in merged)]
            left.append(entry)
            left.sort(key=START)
            self.hot[key] = left
        else:
            self.hot[key] = [entry]
            self._fresh.add(key)
        self._hint(key, entry[1])

    def _hint(self, key: bytes, at: int) -> None:
        if at < self._horizon:
            heappush(self._near, (at, key))
            self.due = min(self.due, at + self.stays + 1)
        else:
            self._far.setdefault(at - at % self._width, set()).add(key)

    # -- expiry

    def close(self, now: int, limit: int) -> Iterator[list[tuple[int, int, bytes, Any]]]:
        """Yield (start, end, key, value) of closed sessions, in slices; by end, then key."""
        self._begin_closing(now)
        bound = self.closed - self.stays  # sessions that end before it have closed
        if bound > self._cursor:
            yield from self._approach(bound, limit)
            part = list[tuple[int, int, bytes, Any]]()
            steps = 0
            while self._near and self._near[0][0] < bound:
                part += self._closed_at(*heappop(self._near))
                steps += 1
                if steps == limit:
                    yield part
                    part = []
                    steps = 0
            if part:
                yield part
            self._cursor = bound
        self._ended_now()

    def _approach(self, bound: int, limit: int) -> Iterator[list[Any]]:
        """Move the horizon beyond a time, and the hints before it to the heap."""
        horizon = bound - bound % self._width + self._width
        if horizon <= self._horizon:
            return
        scan = self._scan_below(INDEX + time_bytes(self._horizon), INDEX + time_bytes(horizon))
        self._horizon = horizon
        for hints in (self._far, self._unwritten):
            for at in [at for at in hints if at < horizon]:
                for key in hints.pop(at):
                    heappush(self._near, (at, key))
        while part := scan.part(limit):
            for row, _ in part:
                at = int.from_bytes(row[1:HINT_AT], "big")
                heappush(self._near, (at, row[HINT_AT:]))
            yield []

    def _closed_at(self, at: int, key: bytes) -> list[tuple[int, int, bytes, Any]]:
        """Return the session of a key that ends at the time of a hint, if its result is to come.

        Sessions of the key that end later get a hint at their ends. Equal hints leave the heap one
        after the other, and only the last one counts.
        """
        near = self._near
        if near and near[0] == (at, key):
            return []
        found = list[tuple[int, int, bytes, Any]]()
        sessions = self.get(key) or ()
        for start, end, value in sessions:
            if end > at:
                self._hint(key, end)
            elif end == at:
                self._end_session(key, [each for each in sessions if each[1] > at])
                if end + self.stays >= self._given:
                    found.append((start, end, key, value))
        return found

    def _end_session(self, key: bytes, left: list[Entry]) -> None:
        """Take a session out of a row that is not stored; else the row changes a commit later."""
        if key not in self._fresh:
            self._ended[key] = None
        elif left:
            self.hot[key] = left
        else:
            self.hot.pop(key, None)  # undone with its record, it is not there
            self._fresh.discard(key)

    def _ended_now(self) -> None:
        super()._ended_now()
        first = self._near[0][0] if self._near else self._horizon
        self.due = first + self.stays + 1

    def _forget_expiry(self) -> None:
        super()._forget_expiry()
        self._near = []
        self._horizon = 0
        self._far = {}
        self._fresh = set()
        self._unwritten = {}
        for row, raw in self.pending.items():
            for end in second_times(raw or b""):
                self._unwritten.setdefault(end - end % self._width, set()).add(row[1:])

    # -- the commit cycle

    def _deletable(self, cursor: int) -> int:
        return cursor - cursor % self._width  # index rows have times that are rounded down

    def _drop_rows(self, rows: list[bytes]) -> Changes:
        """Take closed sessions out of rows, and return the tombstones of rows without any other.

        Rows with other sessions are encoded with all changed rows.
        """
        gone = list[bytes]()
        for key in rows:
            left = self._staying(self.get(key) or ())
            if left:
                self.hot[key] = left
            else:
                self._forget_row(key)
                gone.append(key)
        self.sealed.update((ROW + key, None) for key in gone)
        self._encoded_bytes += len(gone) * ENCODED_BYTES
        return Changes(self.changelog_keys(gone), [None] * len(gone))

    def _staying(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries of a row that have not closed by the last commit."""
        return [each for each in entries if each[1] + self.stays >= self._given]

    def _forget_row(self, key: bytes) -> None:
        if self._below is not None:
            self._touched.add(key)  # a preload must not bring the row back
        for layer in (self.hot, self.young, self.old):
            layer.pop(key, None)

    def _set_aside(self) -> None:
        super()._set_aside()
        for at, keys in self._far.items():
            self._unwritten.setdefault(at, set()).update(keys)
        self._far = {}
        self._fresh = set()

    def _written(self) -> None:
        self._unwritten = {}

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield ((key, start, end), value) of the open sessions, by key and start."""
        for row, sessions in self.scan(ROW, INDEX):
            for start, end, value in sessions:
                if end + self.stays >= self.closed:
                    yield (self.decode_key(self.key_of(row)), start, end), value
