"""state/window_store.py, session_store.py, join_buffer.py: what closes, and what is written."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from streamsx.errors import ValueRefused
from streamsx.state.api import INDEX, ROW
from streamsx.state.factory import make_store
from streamsx.state.join_buffer import ENTRIES_MAX
from streamsx.state.layout import BUFFER, SESSION, WINDOW, Timing, time_bytes
from streamsx.state.memory import MemoryRows
from streamsx.state.window_store import SORTED_ROWS
from tests.support.timed import node_of

A = b'"a"'
B = b'"b"'


def windows(rows: MemoryRows, size: int = 10, grace: int = 0) -> Any:
    return make_store(node_of("w", WINDOW, Timing(size, size, size + grace)), rows, 1 << 20)


def sessions(rows: MemoryRows, gap: int = 10) -> Any:
    return make_store(node_of("s", SESSION, Timing(gap, 0, gap)), rows, 1 << 20)


def buffer(rows: MemoryRows, within: int = 10) -> Any:
    return make_store(node_of("b", BUFFER, Timing(within, 0, within)), rows, 1 << 20)


def sent(store: Any) -> list[tuple[bytes, bytes | None]]:
    """Seal, and return the changelog rows."""
    found: list[tuple[bytes, bytes | None]] = []
    while (part := store.seal(2)).keys:
        found += zip(part.keys, part.values, strict=True)
    return found


def committed(store: Any, end: int) -> list[tuple[bytes, bytes | None]]:
    found = sent(store)
    store.adopt(end)
    while not store.write_some(2):
        pass
    return found


def closed(store: Any, now: int, limit: int = 100) -> list[Any]:
    return list(chain.from_iterable(store.close(now, limit)))


class Counted(MemoryRows):
    writes = 0

    def write(self, rows: Any, position: int | None) -> None:
        Counted.writes += 1
        super().write(rows, position)


# -- windows


def test_window_closes_at_its_end_and_grace_once_by_start_then_key() -> None:
    store = windows(MemoryRows(), grace=5)
    for key, start in [(B, 0), (A, 10), (A, 0)]:
        store.put_window(key, start, start)
    assert closed(store, 14) == []
    assert store.due == 15
    assert closed(store, 25) == [(0, A, 0), (0, B, 0), (10, A, 10)]
    assert closed(store, 99) == []
    assert (store.closed, store.fetch(A, 0)) == (99, None)


def test_results_come_in_slices_and_a_seal_waits_for_the_last() -> None:
    store = windows(MemoryRows())
    for n in range(7):
        store.put_window(b"%d" % n, 0, n)
    slices = store.close(10, 3)
    assert next(slices) == [(0, b"0", 0), (0, b"1", 1), (0, b"2", 2)]
    with pytest.raises(AssertionError, match="sealed before it had closed what was due"):
        store.seal(1)
    assert [len(part) for part in slices] == [3, 1]
    assert store.seal(1).keys == []


def test_windows_that_close_in_slices_are_not_disturbed_by_the_end_of_a_preload() -> None:
    rows = MemoryRows()
    store = windows(rows)
    for n in range(100):
        store.put_window(b'"%02d"' % n, 0, n)
    committed(store, 100)
    opened = windows(rows)
    slices = opened.close(10, 7)
    found = next(slices)
    while not opened.preload_some(30):
        found += next(slices)
    found += chain.from_iterable(slices)

    assert [value for _, _, value in found] == [*range(100)]


def test_window_that_opens_and_closes_between_two_seals_is_never_written() -> None:
    rows = MemoryRows()
    store = windows(rows)
    store.put_window(A, 0, 1)
    assert closed(store, 10) == [(0, A, 1)]
    assert not store.dirty
    assert committed(store, 1) == []
    assert list(rows.scan(ROW, INDEX)) == []


def test_stored_window_is_deleted_with_the_commit_after_the_one_that_closes_it() -> None:
    rows = MemoryRows()
    store = windows(rows)
    store.put_window(A, 0, 1)
    (logged,) = node_of("w", WINDOW, Timing(10, 10, 10)).changelog_keys([time_bytes(0) + A])
    assert committed(store, 1) == [(logged, b"1")]
    assert closed(store, 10) == [(0, A, 1)]
    assert store.dirty
    assert committed(store, 1) == []
    assert rows.get(ROW + time_bytes(0) + A) == b"1"
    assert store.dirty
    assert committed(store, 2) == [(logged, None)]
    assert (list(rows.scan(ROW, INDEX)), rows.position(), store.dirty) == ([], 2, False)


@pytest.mark.parametrize("sealed", [0, 3, 6])
@pytest.mark.parametrize("stored", [True, False])
def test_dropped_windows_leave_the_same_rows_as_closed_ones(sealed: int, stored: bool) -> None:
    """Six windows, of which some were sealed, and written or not, close with and without results.

    One of the sealed ones has changed since, and one is a deletion.
    """
    left = []
    for drops in (False, True):
        rows = MemoryRows()
        store = windows(rows)
        for number in range(6):
            store.put_window(b"%d" % number, number // 3 * 10, number)
            if number + 1 == sealed:
                assert len(sent(store)) == sealed
                store.adopt(1)
                while stored and not store.write_some(1):
                    pass
        if sealed:
            store.put_window(b"0", 0, 7)
            store.put_window(b"1", 0, None)
        for _ in store.drop(20, 1) if drops else store.close(20, 1):
            pass
        while not store.write_some(1):
            pass
        changes = [committed(store, end) for end in (2, 3)]
        left.append(([sorted(each) for each in changes], list(rows.scan(ROW, INDEX)), store.due))
    assert left[0] == left[1]
    assert left[0][1] == []


def test_many_windows_close_by_their_keys() -> None:
    store = windows(MemoryRows())
    keys = [b"%05d" % (n * 7919 % 20_000) for n in range(20_000)]
    assert len(keys) > SORTED_ROWS
    for key in keys:
        store.put_window(key, 0, 1)
    assert [key for _, key, _ in closed(store, 10)] == sorted(keys)


def test_commit_without_an_answer_deletes_nothing_until_it_is_adopted() -> None:
    store = windows(MemoryRows())
    store.put_window(A, 0, 1)
    committed(store, 1)
    closed(store, 10)
    assert sent(store) == []  # its offsets are refused: the next commit is for both intervals
    assert committed(store, 1) == []
    assert [value for _, value in committed(store, 2)] == [None]


def test_position_of_tombstones_alone_is_written_once() -> None:
    rows = Counted()
    store = windows(rows)
    store.put_window(A, 0, 1)
    committed(store, 1)
    closed(store, 10)
    committed(store, 1)
    Counted.writes = 0
    committed(store, 2)
    for end in (2, 2, 3):
        committed(store, end)
    assert (Counted.writes, rows.position()) == (1, 2)


def test_resumed_store_gives_no_second_result_and_deletes_closed_windows() -> None:
    rows = MemoryRows()
    store = windows(rows)
    store.put_window(A, 0, 1)
    store.put_window(A, 10, 2)
    committed(store, 1)
    again = windows(rows)
    again.resume(10)
    assert list(again.items()) == [(("a", 10), 2)]
    assert closed(again, 20) == [(10, A, 2)]
    committed(again, 1)
    assert [value for _, value in committed(again, 2)] == [None, None]


def test_abort_reopens_windows_closed_since_the_last_commit() -> None:
    store = windows(MemoryRows())
    store.put_window(A, 0, 1)
    committed(store, 1)
    assert closed(store, 10) == [(0, A, 1)]
    store.aborted()
    assert (store.closed, store.fetch(A, 0)) == (-1, 1)
    assert closed(store, 10) == [(0, A, 1)]


def test_window_newer_than_all_stored_ones_is_not_looked_up_below() -> None:
    class Watched(MemoryRows):
        def get(self, key: bytes) -> bytes | None:
            raise AssertionError(key)

    rows = Watched()
    rows.write({ROW + time_bytes(0) + A: b"1"}, None)
    store = windows(rows)
    assert store.load(time_bytes(10) + A) is None
    with pytest.raises(AssertionError):
        store.load(time_bytes(0) + B)


def test_range_is_read_through_all_layers() -> None:
    store = windows(MemoryRows())
    for n in range(4):
        store.put_window(A, 10 * n, n)
        if n < 3:
            sent(store)
        if n == 1:
            store.adopt(1)
            while not store.write_some(5):
                pass
    found = store.scan(ROW + time_bytes(10), ROW + time_bytes(30))
    assert [(row[1:9], value) for row, value in found] == [(time_bytes(10), 1), (time_bytes(20), 2)]


# -- sessions


def begun(store: Any, key: bytes, at: int) -> None:
    found = store.get(key) or ()
    store.replace(key, found, [], [at, at, 1])


def test_session_closes_behind_its_gap_by_end_then_key() -> None:
    store = sessions(MemoryRows())
    for key, at in [(B, 5), (A, 5), (A, 40), (B, 1)]:
        begun(store, key, at)
    assert closed(store, 11) == []
    assert closed(store, 15) == [(1, 1, B, 1)]
    assert closed(store, 60) == [(5, 5, A, 1), (5, 5, B, 1), (40, 40, A, 1)]
    assert not store.dirty


def test_extended_session_closes_by_its_new_end() -> None:
    rows = MemoryRows()
    store = sessions(rows)
    begun(store, A, 5)
    committed(store, 1)
    store = sessions(rows)
    (entry,) = store.load(A)
    entry[1] = 14
    store.hot[A] = [entry]
    assert closed(store, 24) == []
    assert closed(store, 25) == [(5, 14, A, 1)]


def test_closed_session_leaves_its_row_a_commit_later_and_index_rows_go() -> None:
    rows = MemoryRows()
    store = sessions(rows)
    begun(store, A, 5)
    committed(store, 1)
    begun(store, A, 100)
    assert closed(store, 100) == [(5, 5, A, 1)]
    ((key, raw),) = committed(store, 2)
    assert (key, len(store.decode(raw))) == (A, 2)
    ((key, raw),) = committed(store, 3)
    assert (key, store.decode(raw)) == (A, [[100, 100, 1]])
    assert [row[1:9] for row, _ in rows.scan(INDEX, b"\x03")] == [time_bytes(100)]


def test_store_that_is_opened_reads_hints_of_the_next_times_only() -> None:
    class Watched(MemoryRows):
        def scan(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
            assert start[:1] == INDEX or stop == INDEX, (start, stop)
            return super().scan(start, stop)

    rows = Watched()
    store = sessions(rows)
    for n in range(50):
        begun(store, b"%d" % n, 10 * n)
    committed(store, 1)
    again = sessions(rows)
    assert closed(again, 11) == [(0, 0, b"0", 1)]
    assert again.due <= 21


# -- join buffers


def kept(store: Any, key: bytes, at: int, *, matched: bool = False) -> None:
    row = time_bytes(at - at % store.size) + key
    entries = store.hot.get(row)
    if entries is None:
        entries = store.load(row) or []
    entries.append([at, matched, at])
    store.hot[row] = entries
    if at < store.horizon and not matched:
        store.note(at, key, len(entries) - 1)


def test_unmatched_records_come_by_time_then_key_at_the_record_that_closes_them() -> None:
    store = buffer(MemoryRows())
    kept(store, A, 7)
    kept(store, B, 3)
    kept(store, A, 3)
    kept(store, A, 5, matched=True)
    assert closed(store, 13) == []
    assert closed(store, 14) == [(3, A, 3), (3, B, 3)]
    kept(store, B, 6)
    assert store.due == 17
    assert closed(store, 17, 1) == [(6, B, 6)]
    assert closed(store, 40) == [(7, A, 7)]


def test_bucket_expires_when_its_last_record_has_closed() -> None:
    rows = MemoryRows()
    store = buffer(rows)
    kept(store, A, 3)
    committed(store, 1)
    for now, left in [(19, 1), (20, 0)]:
        list(store.drop(now, 10))
        committed(store, now)
        committed(store, now)
        assert len(list(rows.scan(ROW, INDEX))) == left


def test_peek_shows_stored_rows_and_is_no_change() -> None:
    store = buffer(MemoryRows())
    kept(store, A, 3)
    committed(store, 1)
    assert store.peek(time_bytes(0) + A) == [[3, False, 3]]
    assert store.peek(time_bytes(10) + A) is None
    assert not store.dirty


def test_full_row_is_refused_with_key_and_remedy() -> None:
    error = buffer(MemoryRows()).full(A)
    assert isinstance(error, ValueRefused)
    says = f"join buffer b, key {A!r}: {ENTRIES_MAX} within 10 ms: join within less time"
    assert says in str(error)


def test_items_are_the_open_windows_with_their_times() -> None:
    visits = sessions(MemoryRows())
    begun(visits, A, 5)
    committed(visits, 1)
    begun(visits, A, 30)
    closed(visits, 30)
    assert list(visits.items()) == [(("a", 30, 30), 1)]
    joined = buffer(MemoryRows())
    kept(joined, B, 3)
    kept(joined, A, 12)
    assert (list(joined.keys()), joined.count()) == ([("b", 3), ("a", 12)], 2)
    closed(joined, 14)
    assert list(joined.items()) == [(("a", 12), 12)]
