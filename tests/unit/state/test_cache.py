"""state/cache.py: compared with a plain dict, and where a dict has no counterpart."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import orjson
import pytest

from streamsx.errors import DecodeFailed, DiskFailed, ValueRefused, WorldError
from streamsx.model import RECORD_BYTES_MAX
from streamsx.state.api import ROW
from streamsx.state.cache import (
    FIRST_SLICE_ROWS,
    SCAN_ROWS,
    SLICE_BYTES,
    SORTED_ROWS,
    CachedStore,
)
from streamsx.state.layout import StoreNode
from streamsx.state.memory import MemoryRows
from streamsx.state.sizes import SLOT_BYTES, deep_bytes
from tests.support.codecs import coded

JSON = coded(orjson.loads, orjson.dumps)


def store(rows: MemoryRows, budget_bytes: int = 1 << 20) -> CachedStore:
    node = StoreNode("s", "log", JSON, JSON)
    return CachedStore(node, rows, budget_bytes)


def commit(cached: CachedStore, end: int, slice_rows: int = 3) -> dict[bytes, bytes | None]:
    """Run a whole commit; return its changelog rows."""
    sent: dict[bytes, bytes | None] = {}
    while (part := cached.seal(slice_rows)).keys:
        sent.update(zip(part.keys, part.values, strict=True))
    cached.adopt(end)
    while not cached.write_some(slice_rows):
        pass
    return sent


def test_commit_writes_each_changed_key_once_with_position() -> None:
    rows = MemoryRows()
    cached = store(rows)
    for n in range(10):
        cached.put("a", n)
    cached.put("b", 1)
    assert commit(cached, 12) == {b'"a"': b"9", b'"b"': b"1"}
    assert rows.get(ROW + b'"a"') == b"9"
    assert rows.position() == 12


def test_position_is_written_with_last_rows_only() -> None:
    rows = MemoryRows()
    cached = store(rows)
    for n in range(4):
        cached.put(f"k{n}", n)
    while cached.seal(3).keys:
        pass
    cached.adopt(4)
    assert not cached.write_some(3)
    assert rows.position() is None
    assert cached.write_some(3)
    assert rows.position() == 4


def test_deleted_key_is_gone_from_every_layer() -> None:
    rows = MemoryRows()
    cached = store(rows)
    cached.put("a", 1)
    commit(cached, 1)
    cached.delete("a")
    assert cached.get("a") is None
    assert commit(cached, 2) == {b'"a"': None}
    assert cached.get("a") is None
    assert rows.get(ROW + b'"a"') is None


def test_value_written_during_seal_belongs_to_next_seal() -> None:
    cached = store(MemoryRows())
    for n in range(4):
        cached.put(f"k{n}", n)
    first = cached.seal(2)
    cached.put("k3", 30)
    second = cached.seal(3)
    sealed = dict(zip(first.keys + second.keys, first.values + second.values, strict=True))
    assert sealed == {b'"k%d"' % n: b"%d" % n for n in range(4)}
    assert cached.get("k3") == 30


def test_keys_equal_in_python_stay_apart() -> None:
    cached = store(MemoryRows())
    cached.put(1, "int")
    cached.put(1.0, "float")
    cached.put(True, "bool")
    assert [cached.get(key) for key in (1, 1.0, True)] == ["int", "float", "bool"]
    assert commit(cached, 3) == {b"1": b'"int"', b"1.0": b'"float"', b"true": b'"bool"'}


def test_abort_discards_values_changed_in_place() -> None:
    rows = MemoryRows()
    cached = store(rows)
    cached.put("a", [1])
    commit(cached, 1)
    value: Any = cached.get("a")
    value.append(2)
    cached.put("a", value)
    cached.aborted()
    assert cached.get("a") == [1]


def test_rows_put_back_are_read_over_the_rows_below_and_written_with_the_next_commit() -> None:
    rows = MemoryRows()
    cached = store(rows)
    cached.put("a", 1)
    commit(cached, 1)
    cached.put("a", 2)
    cached.put("b", 2)
    cached.seal(9)
    committed = cached.committed_rows()
    assert committed == {ROW + b'"a"': b"1", ROW + b'"b"': None}
    cached.aborted()
    rows.write({ROW + b'"a"': b"2", ROW + b'"b"': b"2"}, 3)  # as a restore does

    again = store(rows)
    again.put_back(committed)
    assert (again.get("a"), again.get("b"), dict(again.items())) == (1, None, {"a": 1})
    assert again.dirty_bytes > 0
    again.put("c", 3)
    assert commit(again, 5) == {b'"c"': b"3"}
    assert dict(rows.scan(ROW, None)) == {ROW + b'"a"': b"1", ROW + b'"c"': b"3"}
    assert again.dirty_bytes == 0


def test_complete_cache_never_reads_store() -> None:
    class Watched(MemoryRows):
        asked = 0

        def get(self, key: bytes) -> bytes | None:
            self.asked += 1
            return super().get(key)

    rows = Watched()
    cached = store(rows)
    cached.put("a", 1)
    commit(cached, 1)
    assert (cached.get("a"), cached.get("b"), rows.asked) == (1, None, 0)


def test_non_empty_store_is_complete_after_preload() -> None:
    rows = MemoryRows()
    first = store(rows)
    for n in range(10):
        first.put(f"k{n}", n)
    commit(first, 10)

    again = store(rows)
    begun = (again.complete, again.preload_some(4))
    again.put("k9", 90)
    again.delete("k8")
    commit(again, 12)
    while not again.preload_some(4):
        pass
    assert (begun, again.complete) == ((False, False), True)
    assert [again.get(f"k{n}") for n in range(10)] == [*range(8), None, 90]


def test_preload_beyond_half_of_budget_leaves_cache_incomplete() -> None:
    rows = MemoryRows()
    first = store(rows)
    for n in range(100):
        first.put(n, n)
    commit(first, 100)
    again = store(rows, budget_bytes=1000)
    assert again.preload_some(10)
    assert not again.complete


def test_read_between_commit_and_write_gives_new_row() -> None:
    rows = MemoryRows()
    rows.write({ROW + b'"a"': b"1"}, 1)
    cached = store(rows, budget_bytes=0)
    cached.put("a", 2)
    while cached.seal(10).keys:
        pass
    cached.young, cached.old = {}, {}
    before = cached.get("a")
    cached.young = {}
    cached.adopt(2)
    assert (before, cached.get("a")) == (2, 2)


@pytest.mark.parametrize("first", ["a", 5, b"a", b"5", 1.5, None])
def test_key_spellings_share_one_row(first: object) -> None:
    """A count by raw keys, b"1", is preloaded as 1: it must not start again at the next b"1"."""

    def as_bytes_or_json(key: Any) -> bytes:
        return key if isinstance(key, bytes) else orjson.dumps(key)

    def json_or_bytes(row: bytes) -> Any:
        try:
            return orjson.loads(row)
        except ValueError:
            return row

    rows = MemoryRows()
    rows.write({ROW + b"1": b"7", ROW + b"x": b"8"}, 1)
    node = StoreNode("s", "log", coded(json_or_bytes, as_bytes_or_json), JSON)
    cached: CachedStore = CachedStore(node, rows, 1 << 20)
    cached.get(first)
    while not cached.preload_some(1):
        pass
    assert cached.complete
    assert (cached.get(b"1"), cached.get(1), cached.get(b"x")) == (7, 7, 8)
    cached.put(1, 9)
    assert cached.get(b"1") == 9
    cached.put(b"1", 10)
    assert (cached.get(1), dict(cached.items())) == (10, {1: 10, b"x": 8})


class FullDisk(MemoryRows):
    """Disk that refuses the second write, and then has room again."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0

    def write(self, rows: Mapping[bytes, bytes | None], position: int | None) -> None:
        self.writes += 1
        if self.writes == 2:
            raise DiskFailed("disk full")
        super().write(rows, position)


def test_rows_refused_by_full_disk_are_written_on_retry() -> None:
    rows = FullDisk()
    cached = store(rows)
    for n in range(7):
        cached.put(f"k{n}", n)
    while cached.seal(3).keys:
        pass
    cached.adopt(9)
    assert not cached.write_some(3)
    with pytest.raises(DiskFailed):
        cached.write_some(3)
    while not cached.write_some(3):
        pass
    assert len(list(rows.scan(ROW, None))) == 7
    assert rows.position() == 9


def test_commit_sorted_in_several_runs_writes_every_row() -> None:
    count = SORTED_ROWS + 10
    rows = MemoryRows()
    cached = store(rows)
    for n in range(count):
        cached.put(n, n)
    commit(cached, count, 1000)
    assert rows.estimate() == count
    assert rows.position() == count


class Counted(MemoryRows):
    """Rows that count the reads of their scans."""

    taken = 0

    def scan(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        for row in super().scan(start, stop):
            self.taken += 1
            yield row


def filled(count: int) -> Counted:
    rows = Counted()
    rows.write({ROW + b"%05d" % n: b"%d" % n for n in range(count)}, count)
    return rows


def numbered(rows: MemoryRows, budget_bytes: int = 1 << 20, **codecs: Any) -> CachedStore:
    """Return keys of five digits."""
    node = StoreNode("s", "log", coded(bytes.decode, str.encode), JSON)
    return CachedStore(replace(node, **codecs), rows, budget_bytes)


def held(cached: CachedStore) -> int:
    """Return the memory of its warm rows, each of them measured."""
    warm = [*cached.young.items(), *cached.old.items()]
    return sum(SLOT_BYTES + deep_bytes(key) + deep_bytes(value) for key, value in warm)


def test_scan_of_first_entries_does_not_load_all() -> None:
    rows = filled(10_000)
    cached = numbered(rows)
    cached.put("00000", -1)
    cached.put("00002x", -2)
    cached.delete("00001")
    rows.taken = 0
    first = list(islice(cached.items(), 4))
    assert first == [("00000", -1), ("00002", 2), ("00002x", -2), ("00003", 3)]
    assert rows.taken <= SCAN_ROWS


def test_keys_and_count_need_no_value_decoding() -> None:
    def refuse(_: bytes) -> None:
        raise ValueError

    cached = numbered(filled(1000), values=coded(refuse))
    cached.put("99999", 1)
    cached.delete("00000")
    cached.delete("77777")
    assert cached.count() == 1000
    assert next(cached.keys()) == "00001"


def test_items_show_state_at_first_step_despite_later_commit() -> None:
    rows = MemoryRows()
    cached = numbered(rows)
    for n in range(3):
        cached.put(f"{n:05}", n)
    walk = cached.items()
    first = next(walk)
    cached.put("00001", 10)
    cached.put("00009", 9)
    commit(cached, 1)
    assert [first, *walk] == [("00000", 0), ("00001", 1), ("00002", 2)]


def test_scan_of_released_store_raises_world_error() -> None:
    cached = numbered(filled(1000))
    walk = cached.items()
    next(walk)
    cached.stop_scans()
    with pytest.raises(WorldError, match="store moved while it was read: s"):
        list(walk)


def test_rows_only_read_stay_within_small_budget() -> None:
    cached = numbered(filled(1000), budget_bytes=20 * 300)
    for n in range(1000):
        assert cached.get(f"{n:05}") == n
        assert held(cached) <= 20 * 300


def test_undecodable_row_is_skipped_until_read() -> None:
    rows = filled(3)
    rows.write({ROW + b"00001": b"{"}, 4)
    cached = numbered(rows)
    while not cached.preload_some(1):
        pass
    assert (cached.get("00000"), cached.get("00002"), cached.complete) == (0, 2, False)
    for asked in (lambda: cached.get("00001"), lambda: list(cached.items())):
        with pytest.raises(DecodeFailed, match="row cannot be read: store s, key b'00001': "):
            asked()
    cached.put("00001", 1)
    assert cached.get("00001") == 1


def test_row_that_is_renewed_during_a_preload_is_still_there_behind_it() -> None:
    """A record failed while a store was preloaded: the row that it had changed was missing
    afterwards.
    """
    cached = numbered(filled(3))
    assert not cached.preload_some(3)
    cached.renew("00001")
    while not cached.preload_some(3):
        pass
    assert [cached.get(f"{n:05}") for n in range(3)] == [0, 1, 2]


def test_rows_that_are_dropped_during_a_preload_are_still_there_behind_it() -> None:
    cached = numbered(filled(3))
    assert not cached.preload_some(3)
    assert cached.drop_clean()
    while not cached.preload_some(3):
        pass
    assert [cached.get(f"{n:05}") for n in range(3)] == [0, 1, 2]


def test_slices_are_small_for_large_values() -> None:
    cached = numbered(MemoryRows())
    for n in range(100):
        cached.put(f"{n:05}", "x" * 100_000)
    first = len(cached.seal(1000).keys)
    assert first == FIRST_SLICE_ROWS
    assert len(cached.seal(1000).keys) == SLICE_BYTES // cached.entry_bytes


def test_value_too_large_for_changelog_is_refused_with_key() -> None:
    cached = numbered(MemoryRows())
    largest = RECORD_BYTES_MAX - len('12345""')
    cached.put("12345", "x" * largest)
    commit(cached, 1)
    cached.put("12345", "x" * (largest + 1))
    with pytest.raises(ValueRefused, match=f"key '12345', type str: {RECORD_BYTES_MAX + 1} bytes"):
        cached.seal(10)


def test_checked_put_of_bad_value_raises_value_refused() -> None:
    cached = numbered(MemoryRows())
    cached.check_values(checking=True)
    cached.put("00000", 1)
    cached.delete("00001")
    with pytest.raises(ValueRefused, match="store s, key '00002', type object: TypeError"):
        cached.put("00002", object())
    assert (cached.get("00002"), cached.get("00000")) == (None, 1)
    cached.check_values(checking=False)
    with pytest.raises(ValueRefused):
        cached.put("00002", object())
    commit(cached, 2)
    cached.put("00002", object())


def test_memory_rows_set_aside_lose_rows_and_position() -> None:
    """A position without its rows would be a table that misses them for good."""
    rows = MemoryRows()
    rows.write({ROW + b"a": b"1"}, 7)
    assert not rows.set_aside("nowhere")
    assert (rows.position(), rows.estimate()) == (None, 0)


# -- memory

BUDGET = 2 << 20


def document(number: int, fields: int) -> dict[str, Any]:
    made = range(fields)
    return {f"f{i}": [f"value {number} {i}", number * 1000 + i, i / 7] for i in made}


SHAPES: dict[str, Callable[[int], Any]] = {
    "counts": lambda n: n + 1000,
    "documents": lambda n: document(n, 15),
    "large documents": lambda n: document(n, 150),
    "texts": lambda n: f"{n}" + "x" * 20_000,
    "a few large ones": lambda n: "x" * 200_000 if n % 50 == 0 else n,
}


def rows_of(make: Callable[[int], Any], count: int) -> MemoryRows:
    rows = MemoryRows()
    rows.write({ROW + b"%05d" % n: orjson.dumps(make(n)) for n in range(count)}, count)
    return rows


@pytest.mark.parametrize("shape", SHAPES)
def test_written_rows_of_any_shape_stay_within_budget(shape: str) -> None:
    """With 64 MiB for 4,000 rows of 100 KB the process took 864 MiB."""
    make = SHAPES[shape]
    cached = numbered(MemoryRows(), BUDGET)
    for begin in range(0, 1000, 200):
        for n in range(begin, begin + 200):
            cached.put(f"{n:05}", make(n))
        commit(cached, begin, 1000)
        assert held(cached) <= 1.15 * BUDGET


@pytest.mark.parametrize("shape", SHAPES)
def test_read_rows_of_any_shape_stay_within_budget(shape: str) -> None:
    make = SHAPES[shape]
    cached = numbered(rows_of(make, 1000), BUDGET)
    for n in range(1000):
        assert cached.get(f"{n:05}") is not None
        if n % 100 == 0:
            assert held(cached) <= 1.15 * BUDGET


@pytest.mark.parametrize("shape", SHAPES)
def test_preload_stops_at_budget(shape: str) -> None:
    """A table larger than the memory of the machine ended the process at each start."""
    cached = numbered(rows_of(SHAPES[shape], 1000), BUDGET)
    done, parts = False, 0
    while not done:
        done = cached.preload_some(100)
        parts += 1
        assert held(cached) <= 1.15 * BUDGET
    assert cached.complete == (shape == "counts")
    assert parts <= 11


def test_preload_of_rows_that_fit_loads_all_of_them() -> None:
    cached = numbered(rows_of(SHAPES["documents"], 200), BUDGET)
    while not cached.preload_some(50):
        pass
    assert cached.complete
    assert len(cached.young) == 200


def test_large_read_rows_are_measured_beside_small_written_ones() -> None:
    """Small rows that are put again and again must not stand for the size of large ones."""
    cached = numbered(rows_of(SHAPES["texts"], 1000), BUDGET)
    for n in range(500):
        cached.get(f"{n:05}")
        for hot in range(50):
            cached.put(f"9{hot:04}", n)
        commit(cached, n, 1000)
        if n % 100 == 0:
            assert held(cached) <= 1.15 * BUDGET


def test_rows_put_repeatedly_do_not_evict_others() -> None:
    cached = numbered(rows_of(SHAPES["counts"], 2000), BUDGET)
    while not cached.preload_some(500):
        pass
    for n in range(400):
        for hot in range(100):
            cached.put(f"{hot:05}", n)
        commit(cached, n, 1000)
    assert cached.complete


def test_rows_growing_in_place_stay_within_budget() -> None:
    cached = numbered(MemoryRows(), BUDGET)
    for n in range(100):
        cached.put(f"{n:05}", [])
    for n in range(60):
        for key in range(100):
            value = cached.get(f"{key:05}")
            value += [f"{n} {i}" for i in range(20)]
            cached.put(f"{key:05}", value)
        commit(cached, n, 1000)
        assert held(cached) <= 1.15 * BUDGET


def test_store_with_shrunk_share_evicts_rows_beyond_share() -> None:
    cached = numbered(rows_of(SHAPES["documents"], 500), BUDGET)
    for n in range(500):
        cached.get(f"{n:05}")
    assert held(cached) > BUDGET // 2
    cached.share(BUDGET // 4)
    assert held(cached) <= BUDGET // 4
    assert cached.get("00007") == document(7, 15)


@pytest.mark.parametrize("shape", SHAPES)
def test_changed_rows_are_measured_before_encoding(shape: str) -> None:
    """The first commit would find 400 MB of them."""
    make = SHAPES[shape]
    cached = numbered(MemoryRows(), BUDGET)
    dirty = [0]
    for n in range(400):
        cached.put(f"{n:05}", make(n))
        dirty.append(cached.dirty_bytes)
    real = sum(SLOT_BYTES + deep_bytes(f"{n:05}") + deep_bytes(make(n)) for n in range(400))
    assert 0.7 * real <= dirty[-1] <= 1.5 * real
    assert dirty == sorted(dirty)
    commit(cached, 1, 1000)
    assert cached.dirty_bytes == 0


def test_committed_view_has_no_change_since_the_last_commit() -> None:
    cached = store(MemoryRows())
    cached.put("kept", {"n": 1})
    cached.put("gone", 1)
    commit(cached, 2)
    cached.get("kept")["n"] = 2  # in place, and not put
    cached.put("new", 1)
    cached.delete("gone")
    view = cached.committed_view()
    assert [view.get(key) for key in ("kept", "gone", "new")] == [{"n": 1}, 1, None]
    assert dict(view.items()) == {"kept": {"n": 1}, "gone": 1}
    assert (view.count(), list(view.keys())) == (2, ["gone", "kept"])


def test_committed_view_has_rows_that_are_sealed_only_once_they_are_committed() -> None:
    cached = store(MemoryRows())
    cached.put("a", 1)
    assert cached.seal(3).keys
    assert cached.committed_view().get("a") is None
    cached.adopt(1)
    assert cached.committed_view().get("a") == 1, "committed, and not written yet"
    assert dict(cached.committed_view().items()) == {"a": 1}
