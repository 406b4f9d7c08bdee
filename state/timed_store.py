"""Expiry of rows by stream time, over the cached path of every store.

Windows, sessions and join buffers close when stream time passes them. A closed row stays for one
more commit. The deletion of a row in the commit that sends its result would lose the result: "a
final result is sent and its row deleted; the deletion is acknowledged, the result is not, the
worker is killed", and the next owner would begin the window anew, with the records that are read
again. So rows that close before one seal are deleted by the next one: a tombstone in the changelog
for each, and after its commit the rows themselves. A row that opens and closes between two seals is
never written.

`closed` is the stream time up to which a store has closed. It belongs into the metadata of a
commit, under the store's name. The next owner passes it to `resume`: rows that had closed by then
are deleted, and give no second result.

Nothing about expiry is remembered beyond a commit. After `resume` and after an abort the first
closing reads the rows from the earliest on, and finds again what has closed and is still there.

Out of scope: when stream time moves, the meaning of a value (`streamsx.operators`).
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from streamsx.state.api import Rows
from streamsx.state.cache import CachedStore, Changes
from streamsx.state.layout import StoreNode, time_bytes
from streamsx.state.sizes import ENCODED_BYTES


def _same(key: Any) -> Any:
    return key


def _joined(rows: dict[bytes, None], more: dict[bytes, None]) -> dict[bytes, None]:
    """Return the rows of both, which belong to the caller from now on.

    Mostly there are none yet: copying a million took 100 ms in one turn.
    """
    if not rows:
        return more
    rows.update(more)
    return rows


class TimedStore(CachedStore):
    """Cached store whose rows expire. Cache keys are the keys of rows without their tag.

    A kind of store adds the way to find what has closed: it walks over its rows in the order in
    which they close, moves `_cursor` on, and puts each closed row that is stored into `_ended`.
    """

    tag: bytes
    """Tag of the rows that lie by time."""

    def __init__(self, node: StoreNode, rows: Rows, budget_bytes: int) -> None:
        super().__init__(node, rows, budget_bytes)
        assert node.timing is not None, node
        self.size = node.timing.size
        self.stays = node.timing.stays
        self.key_type = bytes
        self.encode_key = _same
        self._key_encoders = {bytes: _same}
        self.due = -1
        """Nothing closes before stream time gets there, in ms."""
        self.closed = -1
        """Stream time up to which everything has closed that could, in ms; -1: nothing."""
        self._given = -1
        """`closed` as of the last commit: results up to there have been sent."""
        self._cursor = 0
        """Time in ms; rows and sessions by time before it have closed."""
        self._ended: dict[bytes, None] = {}
        """Stored rows that have closed since the last seal began."""
        self._sealed_ended: dict[bytes, None] = {}
        """Those that closed before a seal whose commit is under way."""
        self._owed: dict[bytes, None] = {}
        """Those that closed before the last commit; the next seal deletes them."""
        self._dropping: Iterator[bytes] | None = None
        """Rows that the seal under way deletes."""
        self._sealed_closed = -1
        self._sealed_cursor = 0
        self._dropped = self._position_owed = False
        """Rows are deleted by the commit under way; by the last one, whose position is not written.
        """
        self._owed_to = self._sealed_to = self._deletable_to = self._deleted_to = 0
        """Ends of the ranges of rows by time to delete: with the next seal, sealed, committed, and
        done."""
        self._closing = False

    def cache_key(self, key: Any) -> Any:
        """Refuse any other key than a row's bytes: a key alone has no value here."""
        if type(key) is not bytes:
            raise TypeError(
                f"key without a time: table {self.name}, key {key!r}: use the table that "
                "tumbling() or hopping() returned"
            )
        return key

    own_key = cache_key

    def resume(self, closed: int) -> None:
        """Go on where the committed metadata say that the store has closed; -1 without any."""
        assert not self.hot, f"{self.name}: resumed after its first record"
        self._given = closed
        self._forget_expiry()

    def committed_view(self) -> CachedStore:
        view = super().committed_view()
        assert isinstance(view, TimedStore), self.name
        view.resume(self._given)
        return view

    def all_closed(self, newest: int) -> int:
        """Return the stream time that closes all records of up to `newest`, in ms."""
        return newest + self.stays + 1

    def close(self, now: int, limit: int) -> Iterator[list[Any]]:
        """Yield the results of what has closed by `now`, in slices of at most `limit`, each once.

        Finish the iterator before the next record and before a seal. An empty slice is a pause.
        """
        raise NotImplementedError

    def drop(self, now: int, limit: int) -> Iterator[None]:
        """Expire what has closed by `now` without results; yields after each slice."""
        for _ in self.close(now, limit):
            yield

    def keys(self) -> Iterator[Any]:
        """Return the keys of `items`."""
        return (key for key, _ in self.items())

    def count(self) -> int:
        return sum(1 for _ in self.items())

    def _begin_closing(self, now: int) -> None:
        assert not self._closing, f"{self.name}: closed to {now} before it had closed what was due"
        self._closing = True
        self.closed = max(self.closed, now)

    def _ended_now(self) -> None:
        """Note that all has closed that could; a kind of store sets `due` as well."""
        self._closing = False

    def _forget_expiry(self) -> None:
        """Set expiry back to the last commit; what has closed is found again in the rows."""
        self.closed = self._sealed_closed = self._given
        self.due = -1
        self._cursor = self._sealed_cursor = 0
        self._ended = {}
        self._sealed_ended = {}
        self._owed = {}
        self._owed_to = self._sealed_to = 0
        self._dropping = None
        self._dropped = False
        self._closing = False

    # -- the commit cycle

    @property
    def dirty(self) -> bool:
        return bool(self.hot or self._ended or self._owed)

    @property
    def dirty_bytes(self) -> int:
        ended = len(self._ended) + len(self._sealed_ended) + len(self._owed)
        return super().dirty_bytes + ENCODED_BYTES * ended

    def seal(self, limit: int) -> Changes:
        """Delete what closed before the last seal, then encode as every store does."""
        assert not self._closing, f"{self.name}: sealed before it had closed what was due"
        if self._left is None and self._dropping is None:
            self._begin_seal()
        while self._dropping is not None:
            if not (rows := list(islice(self._dropping, limit))):
                self._dropping = None
            elif (part := self._drop_rows(rows)).keys:
                return part
        return super().seal(limit)

    def _begin_seal(self) -> None:
        self._sealed_closed = self.closed
        self._sealed_cursor = self._deletable(self._cursor)
        self._sealed_ended = _joined(self._sealed_ended, self._ended)
        self._ended = {}
        self._dropping = iter(self._owed)
        self._dropped = self._dropped or bool(self._owed)
        self._owed = {}
        self._sealed_to = self._owed_to

    def _deletable(self, cursor: int) -> int:
        """Return the time in ms before which rows by time are not needed once all is deleted."""
        return cursor

    def _drop_rows(self, rows: list[bytes]) -> Changes:
        """Return the tombstones of rows; the rows go with `delete_range` after the commit."""
        return Changes(self.changelog_keys(rows), [None] * len(rows))

    def adopt(self, end: int | None) -> None:
        super().adopt(end)
        self._given = self._sealed_closed
        self._owed = _joined(self._owed, self._sealed_ended)
        self._sealed_ended = {}
        self._owed_to = self._sealed_cursor
        self._deletable_to = max(self._deletable_to, self._sealed_to)
        self._position_owed = self._dropped
        self._dropped = False

    def write_some(self, limit: int) -> bool:
        if self._deleted_to < self._deletable_to:
            start = self.tag + time_bytes(self._deleted_to)
            self.rows.delete_range(start, self.tag + time_bytes(self._deletable_to))
            self._deleted_to = self._deletable_to
        if self._position_owed and not self.pending and self._end is not None:
            self.rows.write({}, self._end)
            self._end = None
        self._position_owed = False
        done = super().write_some(limit)
        if done and not self.sealed:
            self._written()
        return done

    def _written(self) -> None:
        """Note that all sealed rows are below."""

    def aborted(self) -> None:
        super().aborted()
        self.complete = False  # expired rows left the cache, and are there again
        self._forget_warm()
        self._forget_expiry()

    def _cached_key(self, row: bytes) -> bytes:
        return row[1:]
