"""state/careful.py: changes of one record in a store, kept or undone alone."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from streamsx.errors import ValueRefused
from streamsx.state.cache import CachedStore
from streamsx.state.careful import Careful
from streamsx.state.layout import StoreNode
from streamsx.state.memory import MemoryRows
from tests.support.codecs import coded

JSON = coded(orjson.loads, orjson.dumps)


@pytest.fixture
def store() -> CachedStore:
    made = CachedStore(StoreNode("s", "app-s-changelog", JSON, JSON, str), MemoryRows(), 1 << 20)
    made.put("old", {"n": [1]})
    commit(made)
    made.check_values(checking=True)
    return made


def commit(store: CachedStore) -> dict[str, Any]:
    """Commit, and return the rows that were sealed."""
    sealed: dict[str, Any] = {}
    while (part := store.seal(1)).keys:
        values = [None if raw is None else orjson.loads(raw) for raw in part.values]
        sealed.update(zip(map(orjson.loads, part.keys), values, strict=True))
    store.adopt(1)
    while not store.write_some(10):
        pass
    return sealed


def test_change_in_place_of_a_clean_row_is_undone(store: CachedStore) -> None:
    store.get("old")["n"].append(2)
    assert store.undo() == ["old"]
    assert store.get("old") == {"n": [1]}
    assert store.complete, "the row was read again"


def read_ahead_meanwhile(undo: Callable[[CachedStore], object], *, careful: bool) -> CachedStore:
    """Return a store of three rows of which two were preloaded when a record failed, and the last
    since.

    The race: a task begins, and its store is preloaded in slices; the first record gets a row of a
    slice that has been read, and fails; the row is dropped from memory; the last slice is read, and
    the store takes all rows to be in memory.
    """
    rows = MemoryRows()
    node = StoreNode("s", "app-s-changelog", JSON, JSON, str)
    before = CachedStore(node, rows, 1 << 20)
    for n in range(3):
        before.put(f"k{n}", [n])
    commit(before)
    made = CachedStore(node, rows, 1 << 20)
    made.check_values(checking=careful)
    made.preload_some(2)
    made.get("k0").append(7)
    undo(made)
    while not made.preload_some(2):
        pass
    return made


@pytest.mark.parametrize(
    ("undo", "careful"),
    [(CachedStore.undo, True), (CachedStore.drop_clean, False)],
    ids=["in careful mode", "while nothing is dirty"],
)
def test_rows_of_a_failed_record_are_there_behind_the_end_of_a_preload(
    undo: Callable[[CachedStore], object], careful: bool
) -> None:
    store = read_ahead_meanwhile(undo, careful=careful)
    assert [store.get(f"k{n}") for n in range(3)] == [[0], [1], [2]]


def test_rows_that_a_record_has_set_are_undone(store: CachedStore) -> None:
    store.put("new", 1)
    store.delete("gone")
    store.keep()
    store.put("new", 2)
    store.put("newer", 3)
    store.put("gone", 4)
    store.delete("old")
    store.undo()
    assert dict(store.items()) == {"new": 1, "old": {"n": [1]}}
    assert commit(store) == {"new": 1, "gone": None}


def test_change_in_place_of_a_changed_row_is_undone(store: CachedStore) -> None:
    value = {"n": [1]}
    store.put("new", value)
    store.keep()
    store.get("new")["n"].append(2)
    value["n"].append(3)
    store.undo()
    assert store.get("new") == {"n": [1]}


def test_rows_of_one_object_are_rows_of_their_own_for_the_next_record(store: CachedStore) -> None:
    value = {"n": [1]}
    store.put("a", value)
    store.put("b", value)
    store.keep()
    store.get("a")["n"].append(2)
    store.undo()
    assert commit(store) == {"a": {"n": [1]}, "b": {"n": [1]}}


def test_value_changed_after_its_set_is_kept_as_the_record_has_left_it(store: CachedStore) -> None:
    value: dict[str, Any] = {}
    store.put("a", value)
    value["n"] = 1
    store.keep()
    assert store.get("a") == {"n": 1}
    assert commit(store) == {"a": {"n": 1}}


def test_value_that_cannot_be_encoded_any_more_is_refused_by_the_seal(store: CachedStore) -> None:
    value: dict[str, Any] = {}
    store.put("a", value)
    value["n"] = object()
    store.keep()
    with pytest.raises(ValueRefused):
        commit(store)


def test_refused_value_leaves_the_one_that_was_set_before(store: CachedStore) -> None:
    store.put("a", {"n": 1})
    value = store.get("a")
    value["n"] = object()
    with pytest.raises(ValueRefused):
        store.put("a", value)
    assert store.get("a") == {"n": 1}
    store.put("b", 5)
    with pytest.raises(ValueRefused):
        store.put("b", object())
    assert store.get("b") == 5
    store.keep()
    for bad in (object(), object()):
        with pytest.raises(ValueRefused):
            store.put("a", bad)
    assert store.get("a") == {"n": 1}


def test_seal_leaves_out_values_set_by_the_record_of_a_waiting_body(store: CachedStore) -> None:
    store.put("a", {"n": 1})
    store.keep()
    store.put("a", {"n": 2})
    store.put("b", {"n": 3})
    store.record_open = True
    assert commit(store) == {"a": {"n": 1}}
    assert dict(store.items()) == {"a": {"n": 2}, "b": {"n": 3}, "old": {"n": [1]}}
    store.undo()
    assert dict(store.items()) == {"a": {"n": 1}, "old": {"n": [1]}}


def test_reader_beside_a_seal_gets_an_object_of_its_own(store: CachedStore) -> None:
    store.put("a", {"n": [1]})
    store.put("b", {"n": [2]})
    store.keep()
    store.seal(1)
    for row in "ab":
        store.get(row)["n"].append(3)
    store.undo()
    assert store.seal(1).values == [b'{"n":[2]}']


def test_clean_objects_are_dropped_only_while_no_row_has_changed(store: CachedStore) -> None:
    store.get("old")["n"].append(2)
    assert store.drop_clean()
    assert store.get("old") == {"n": [1]}
    store.put("new", 1)
    assert not store.drop_clean()


# Without `at_set`, as behind a record that was undone.


@pytest.fixture
def late(store: CachedStore) -> CachedStore:
    store.check_values(checking=True, at_set=False)
    return store


def encode(store: CachedStore) -> None:
    assert isinstance(store.hot, Careful)
    store.hot.encode()


def test_bad_value_raises_at_the_end_where_its_record_can_be_undone(late: CachedStore) -> None:
    late.put("a", {"n": 1})
    encode(late)
    late.keep()
    late.get("a")["n"] = 2
    late.put("a", {"n": 2})
    late.put("b", object())
    with pytest.raises(ValueRefused, match="key 'b'"):
        encode(late)
    late.undo()
    assert commit(late) == {"a": {"n": 1}}


def test_record_can_be_undone_between_its_encoding_and_its_end(late: CachedStore) -> None:
    late.put("a", {"n": 1})
    encode(late)
    late.undo()
    assert dict(late.items()) == {"old": {"n": [1]}}


def test_bad_value_that_its_record_has_set_anew_is_no_failure(late: CachedStore) -> None:
    late.put("a", object())
    late.put("a", {"n": 1})
    late.put("b", object())
    late.delete("b")
    encode(late)
    late.keep()
    assert commit(late) == {"a": {"n": 1}, "b": None}


def test_bad_value_set_outside_of_records_is_refused_by_the_seal(late: CachedStore) -> None:
    late.put("a", object())
    late.keep()
    with pytest.raises(ValueRefused):
        commit(late)


# Changes outside of records, of a job that a body has started, say.


@pytest.mark.parametrize("value", [{"n": 2}, 2, None], ids=repr)
def test_row_changed_between_two_records_is_sealed_as_it_is(late: CachedStore, value: Any) -> None:
    for key in "ab":
        late.put(key, {"n": 1})
        encode(late)
        late.keep()
    if value is None:
        late.delete("a")
    else:
        late.put("a", value)
    assert commit(late) == {"a": value, "b": {"n": 1}}
    assert late.get("a") == value


def test_bad_value_set_between_two_records_is_refused_by_the_seal(late: CachedStore) -> None:
    late.put("a", {"n": 1})
    encode(late)
    late.keep()
    late.put("a", object())
    with pytest.raises(ValueRefused):
        commit(late)


def test_bytes_beside_the_objects_of_changed_rows_count_as_memory(late: CachedStore) -> None:
    late.put("a", {"text": "x" * 10_000})
    encode(late)
    late.keep()
    assert late.dirty_bytes > 20_000


def test_row_that_has_left_is_not_there_beside_a_seal(late: CachedStore) -> None:
    """A session that was never stored ends, and its row leaves; its key has a record in a seal."""
    for key in "abc":
        late.put(key, {"n": 1})
        encode(late)
        late.keep()
    late.hot.pop("a")
    late.keep()
    late.seal(1)
    assert late.get("a") is None
    assert late.get("c") == {"n": 1}
