"""Rows of changelogs: keys and values of each kind of table, as a task seals them.

Other programs read changelogs, and a store is its changelog: other bytes are another store.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import streamsx
from streamsx.state.layout import StoreNode
from streamsx.testing import TestDriver
from streamsx.topology.nodes import SubTopology

if TYPE_CHECKING:
    from streamsx.state.memory import MemoryRows


@dataclass
class Sale:
    customer: str
    cents: int
    tags: tuple[str, ...] = ()


KINDS: dict[str, tuple[Any, Any]] = {
    "ints": (str, int),
    "floats": (int, float),
    "texts": (bytes, str),
    "raws": (str, bytes),
    "sales": (str, Sale),
    "lists": (str, list[int]),
    "dicts": (str, dict[str, float]),
    "any": (None, None),
}
PUT: dict[str, list[tuple[Any, Any]]] = {
    "ints": [("a", 1), ("ä", -(2**40)), ("", 0)],
    "floats": [(1, 1.5), (-7, 0.0), (2**40, -0.1)],
    "texts": [(b"\x00k", 'q"é\n'), (b"", "")],
    "raws": [("r", b"\x00\xff"), ("e", b"")],
    "sales": [("o", Sale("ann", 250)), ("p", Sale("bob", 1, ("x", "y")))],
    "lists": [("l", [1, 2]), ("m", [])],
    "dicts": [("d", {"b": 1.0, "a": 2.5})],
    "any": [("s", {"a": [1, None, True]}), (("p", 1), "tuple"), (3, 3)],
}
SEALED: dict[str, list[tuple[bytes, bytes]]] = {
    "ints": [(b'"a"', b"1"), (b'"\xc3\xa4"', b"-1099511627776"), (b'""', b"0")],
    "floats": [(b"1", b"1.5"), (b"-7", b"0.0"), (b"1099511627776", b"-0.1")],
    "texts": [(b"\x00k", b'"q\\"\xc3\xa9\\n"'), (b"", b'""')],
    "raws": [(b'"r"', b"\x00\xff"), (b'"e"', b"")],
    "sales": [
        (b'"o"', b'{"customer":"ann","cents":250,"tags":[]}'),
        (b'"p"', b'{"customer":"bob","cents":1,"tags":["x","y"]}'),
    ],
    "lists": [(b'"l"', b"[1,2]"), (b'"m"', b"[]")],
    "dicts": [(b'"d"', b'{"b":1.0,"a":2.5}')],
    "any": [(b'"s"', b'{"a":[1,null,true]}'), (b'["p",1]', b'"tuple"'), (b"3", b"3")],
}


def app_of(name: str) -> streamsx.App:
    """Return an app with one table, which takes what `PUT` names, and loses what is asked for."""
    app = streamsx.App("kinds")
    key, value = KINDS[name]
    table = app.Table(name, key_type=key, value_type=value)

    @app.agent("in", name="fill")
    async def fill(stream: Any) -> None:
        async for word in stream:
            for each, what in PUT[name]:
                if word == "put":
                    table[each] = what
                else:
                    del table[each]

    return app


def changelog(driver: TestDriver, name: str) -> list[tuple[bytes | None, bytes | None]]:
    ((_, log),) = driver._logs.of(f"kinds-{name}-changelog")
    return [(key, value) for key, value, *_ in log]


@pytest.mark.parametrize("name", KINDS)
def test_rows_of_a_table_are_sealed_as_these_bytes(name: str) -> None:
    with TestDriver(app_of(name), partitions={"in": 1}) as driver:
        driver.pipe("in", ["put"])
        driver.commit()
        assert changelog(driver, name) == SEALED[name]


@pytest.mark.parametrize("name", KINDS)
def test_row_that_is_deleted_is_sealed_as_a_tombstone(name: str) -> None:
    with TestDriver(app_of(name), partitions={"in": 1}) as driver:
        driver.pipe("in", ["put"])
        driver.commit()
        driver.pipe("in", ["delete"])
        driver.commit()
        gone = [(key, None) for key, _ in SEALED[name]]
        assert changelog(driver, name)[len(gone) :] == gone


def node_of(name: str) -> StoreNode:
    (plan,) = app_of(name).topology().subtopologies
    assert isinstance(plan, SubTopology)
    (node,) = plan.stores
    return node


@pytest.mark.parametrize("name", KINDS)
def test_rows_of_a_table_are_read_from_these_bytes(name: str) -> None:
    node = node_of(name)
    read = [(node.keys.decode(key), node.values.decode(value)) for key, value in SEALED[name]]
    assert read == PUT[name]


def test_committed_rows_lie_below_under_their_tag_beside_the_position() -> None:
    with TestDriver(app_of("ints"), partitions={"in": 1}) as driver:
        driver.pipe("in", ["put"])
        driver.commit()
        rows: MemoryRows = driver._rows["ints", 0]
        assert dict(rows.scan(b"", b"\xff")) == {
            b"\x00offset": b"\x00\x00\x00\x00\x00\x00\x00\x03",
            b'\x01""': b"0",
            b'\x01"a"': b"1",
            b'\x01"\xc3\xa4"': b"-1099511627776",
        }
