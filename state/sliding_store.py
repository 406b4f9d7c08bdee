"""Store of sliding windows: one row per key, a list of [start, end, value], ascending.

A window is [end - size, end], both inclusive. A row also has an entry [time, time + size, None] for
each time at which the key had a record. A record at `at` makes the window that ends at its time,
the one that begins behind its time, and the one that begins behind the record before, each if it
holds a record. The new window has the records of an older one, so its value begins with that of the
older one, and no record is read again (`SlidingStore.begun`).

Older windows may have closed by then. So an entry stays in its row for two sizes after it has
closed, and late records change it there, without a result. Index rows and hints are those of
sessions (`session_store`).
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, Final

from streamsx.state.api import INDEX, ROW, Rows
from streamsx.state.layout import StoreNode
from streamsx.state.session_store import START, Entry, SessionStore

KEPT_SIZES: Final = 2
"""Sizes for which an entry stays in its row after it has closed."""
FROZEN: Final = (int, float, str, bytes, bool)


class SlidingStore(SessionStore):
    """Store of sliding windows by encoded key."""

    def __init__(self, node: StoreNode, rows: Rows, budget_bytes: int) -> None:
        super().__init__(node, rows, budget_bytes)
        self.keeps = self.stays + KEPT_SIZES * self.size
        """Time in ms from the end of an entry until nothing needs the entry."""
        self._kept = deque[tuple[int, bytes]]()
        """Ends and keys of entries that have closed and stay."""

    # -- the record path

    def begun(self, entries: Sequence[Entry], at: int) -> list[Entry]:
        """Return the new windows that a record makes, with the values of the other records.

        A window without another record has the value None. To be called before the record changes
        any window.
        """
        times = [entry[0] for entry in entries if entry[2] is None]
        place = bisect_left(times, at)
        if place < len(times) and times[place] == at:
            return []
        values = {entry[0]: entry[2] for entry in entries if entry[2] is not None}
        size = self.size
        made = list[Entry]()
        before = times[place - 1] if place else None
        start = max(0, at - size)
        if start not in values:
            first = bisect_left(times, start)
            ahead = times[first - 1] if first else None
            newest = before if first < place else None
            made.append([start, start + size, self._value(values, newest, ahead)])
        first_behind = before is not None and before + 1 not in (*values, start)
        if before is not None and first_behind and at <= before + 1 + size:
            made.append([before + 1, before + 1 + size, None])
        behind = bisect_left(times, at + 2 + size) - 1
        if behind >= place and at + 1 not in values:
            value = self._value(values, times[behind], before)
            made.append([at + 1, at + 1 + size, value])
        return made

    def _value(self, values: dict[int, Any], newest: int | None, ahead: int | None) -> Any:
        """Return the value of the records up to `newest` that are later than `ahead`."""
        if newest is None:
            return None
        start = max(0, newest - self.size)
        value = values[start if ahead is None or start > ahead else ahead + 1]
        return value if isinstance(value, FROZEN) else deepcopy(value)

    def put_record(
        self, key: bytes, entries: Sequence[Entry], made: list[Entry], at: int, now: int
    ) -> None:
        """Put new windows and the time of a record into the row of a key.

        A window that has closed by stream time `now` gets no hint: with one it would give a result
        at the next closing, if no commit comes before.
        """
        if made:
            mark: Entry = [at, at + self.size, None]
            self.hot[key] = sorted([*entries, *made, mark], key=START)
            if not entries:
                self._fresh.add(key)
            for _, end, _ in (*made, mark):
                if end + self.stays >= now:
                    self._hint(key, end)
                else:
                    self._kept.append((end, key))
                    self.due = min(self.due, end + self.keeps + 1)
        else:
            self.hot[key] = entries

    # -- expiry

    def all_closed(self, newest: int) -> int:
        return super().all_closed(newest + self.size)  # a window may begin before a record

    def close(self, now: int, limit: int) -> Iterator[list[tuple[int, int, bytes, Any]]]:
        yield from super().close(now, limit)
        bound = self.closed - self.keeps
        steps = 0
        while self._kept and self._kept[0][0] < bound:
            _, key = self._kept.popleft()
            entries = self.get(key) or ()
            self._end_session(key, [each for each in entries if each[1] >= bound])
            steps += 1
            if not steps % limit:
                yield []
        self._ended_now()

    def _closed_at(self, at: int, key: bytes) -> list[tuple[int, int, bytes, Any]]:
        near = self._near
        if near and near[0] == (at, key):
            return []
        entries = self.get(key) or ()
        later = [entry[1] for entry in entries if entry[1] > at]
        if later:
            self._hint(key, min(later))
        ending = [entry for entry in entries if entry[1] == at]
        if ending:
            self._kept.append((at, key))
        results = at + self.stays >= self._given
        return [
            (start, end, key, value)
            for start, end, value in ending
            if results and value is not None
        ]

    def _staying(self, entries: Sequence[Entry]) -> list[Entry]:
        return [each for each in entries if each[1] + self.keeps >= self._given]

    def _ended_now(self) -> None:
        super()._ended_now()
        if self._kept:
            self.due = min(self.due, self._kept[0][0] + self.keeps + 1)

    def _deletable(self, cursor: int) -> int:
        return super()._deletable(max(0, cursor - KEPT_SIZES * self.size))

    def _forget_expiry(self) -> None:
        super()._forget_expiry()
        self._kept = deque()

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield ((key, start, end), value) of the open windows, by key and start."""
        for row, entries in self.scan(ROW, INDEX):
            for start, end, value in entries:
                if value is not None and end + self.stays >= self.closed:
                    yield (self.decode_key(self.key_of(row)), start, end), value
