"""state/factory.py: the store of a node, by its kind."""

from dataclasses import replace

import pytest

from streamsx.serde.codec import table_codec, table_key_codec
from streamsx.state.cache import CachedStore
from streamsx.state.factory import make_store
from streamsx.state.join_buffer import JoinBuffer
from streamsx.state.layout import BUFFER, SESSION, WINDOW, StoreNode, Timing
from streamsx.state.memory import MemoryRows
from streamsx.state.session_store import SessionStore
from streamsx.state.window_store import WindowStore

NODE = StoreNode("counts", "app-counts-changelog", table_key_codec(str), table_codec(int))


def test_key_value_node_gets_a_cached_store_with_its_name_and_budget() -> None:
    store = make_store(NODE, MemoryRows(), 1024)

    assert type(store) is CachedStore
    assert (store.name, store.budget_bytes) == ("counts", 1024)


@pytest.mark.parametrize(
    ("kind", "made"), [(WINDOW, WindowStore), (SESSION, SessionStore), (BUFFER, JoinBuffer)]
)
def test_node_by_time_gets_the_store_of_its_kind(kind: str, made: type) -> None:
    node = replace(NODE, kind=kind, timing=Timing(10, 5, 20))
    store = make_store(node, MemoryRows(), 1024)
    assert type(store) is made
    assert '"partitions":4,"size":10,"step":5}' in node.layout(4)


def test_kind_stands_in_the_layout_of_the_database() -> None:
    assert '"store":"kv"' in NODE.layout(4)
    assert NODE.layout(4) != replace(NODE, kind="other").layout(4)


def test_unknown_kind_has_no_store() -> None:
    with pytest.raises(KeyError, match="other"):
        make_store(replace(NODE, kind="other"), MemoryRows(), 1024)
