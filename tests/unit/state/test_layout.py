"""state/layout.py: keys of each kind, and rows that a store no longer fits."""

import dataclasses
import json
from typing import Any

import pytest
from faust.types.windows import WindowRange_from_start
from faust.utils import json as faust_json

from streamsx.errors import IncompatibleStore, ValueRefused
from streamsx.serde.codec import table_codec, table_key_codec
from streamsx.state.api import ROW
from streamsx.state.factory import make_store
from streamsx.state.layout import (
    BUFFER,
    FIRST_ROWS,
    RENEWED,
    SESSION,
    WINDOW,
    StoreNode,
    Timing,
    refuse_other_types,
    remedy,
    time_bytes,
)
from streamsx.state.memory import MemoryRows


@dataclasses.dataclass
class Grown:
    n: int
    unit: str


@dataclasses.dataclass
class GrownWithDefault:
    n: int
    unit: str = "kg"


def refused(kind: Any, values: list[bytes]) -> None:
    rows = MemoryRows()
    rows.write({ROW + b'"%03d"' % n: value for n, value in enumerate(values)}, 7)
    refuse_other_types(StoreNode("lines", "log", table_key_codec(str), table_codec(kind)), rows)


@pytest.mark.parametrize("kind", [Grown, dict[str, str], list[int], int])
def test_rows_of_other_type_are_refused_with_table_and_key(kind: Any) -> None:
    says = "stored rows do not fit the table's type: table lines, key b'\"000\"': "
    with pytest.raises(IncompatibleStore, match=says):
        refused(kind, [b'{"n":1}'] * 3)


@pytest.mark.parametrize("kind", [GrownWithDefault, dict[str, int], None])
def test_rows_lacking_field_with_default_are_accepted(kind: Any) -> None:
    refused(kind, [b'{"n":1}'])


def test_one_readable_row_is_enough_to_fit_the_type() -> None:
    refused(Grown, [b'{"n":1}'] * (FIRST_ROWS - 1) + [b'{"n":1,"unit":"kg"}'])


def test_empty_store_fits_every_type() -> None:
    refused(Grown, [])


def windowed(size: int, kind: str = WINDOW) -> StoreNode:
    timing = Timing(size, size, size)
    return StoreNode("w", "w-log", table_key_codec(str), table_codec(int), kind=kind, timing=timing)


@pytest.mark.parametrize("size", [0.3, 1.0, 10.0, 60.0, 86400.0])
@pytest.mark.parametrize("key", ["a", "ä, [1, 2]]", '"', ""])
def test_key_of_a_window_is_faust_s_both_ways(size: float, key: str) -> None:
    node = windowed(round(size * 1000))
    for start in (0.0, 30.0, 1700000000.0, 1700000000.5):
        written: Any = faust_json.dumps((key, WindowRange_from_start(start, size)))
        row = time_bytes(round(start * 1000)) + (node.keys.encoders.encode(key) or b"")
        assert node.changelog_keys([row]) == [written]
        assert node.local_keys([written, None]) == [ROW + row, None]
        assert node.key_of(ROW + row) == node.keys.encoders.encode(key)


def test_key_of_a_window_is_read_from_any_writer_of_json() -> None:
    written = json.dumps(["a", [10.0, 19.9]]).encode()
    assert windowed(10_000).local_keys([written]) == [ROW + time_bytes(10_000) + b'"a"']


def test_key_of_a_window_need_not_be_json() -> None:
    node = windowed(10_000)
    row = time_bytes(10_000) + b"\xff],[\x00"
    assert node.local_keys([*node.changelog_keys([row])]) == [ROW + row]


@pytest.mark.parametrize(
    ("key", "why"),
    [
        (b'["a",[10.0,14.9]]', "its windows have 5000 ms, those of this app 10000 ms"),
        (b'"a"', "has no window"),
    ],
)
def test_changelog_of_another_window_is_refused_with_a_remedy(key: bytes, why: str) -> None:
    with pytest.raises(IncompatibleStore, match=f"store w, topic w-log: .*{why}.*: give it a new"):
        windowed(10_000).local_keys([key])


def test_database_of_another_size_is_not_restored_as_if_nothing_were() -> None:
    ours = windowed(10_000).layout(4)
    assert remedy(windowed(5_000).layout(4), ours) == RENEWED
    assert remedy(windowed(10_000, SESSION).layout(4), ours) == RENEWED
    assert remedy(windowed(10_000).layout(8), ours).startswith("remove the folder")
    assert remedy("no JSON", ours).startswith("remove the folder")


@pytest.mark.parametrize("kind", [SESSION, BUFFER])
def test_row_of_a_list_comes_back(kind: str) -> None:
    codec = windowed(10, kind).row_values
    entries = [[1, 5, 7], [20, 30, None]] if kind == SESSION else [[1, True, 7], [1, False, None]]
    assert codec.decode(codec.encode(entries)) == entries
    assert codec.check is not None
    assert codec.check.first([entries], [codec.encode(entries) or b""]) is None


def test_value_in_a_list_that_does_not_come_back_is_found() -> None:
    node = dataclasses.replace(windowed(10, SESSION), values=table_codec(None))
    store = make_store(node, MemoryRows(), 1 << 20)
    store.put(b'"a"', [[1, 2, {"n": (1,)}]])
    with pytest.raises(ValueRefused, match=r"does not come back: store w, key .*tuple"):
        store.seal(5)
