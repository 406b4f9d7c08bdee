"""state/layout.py: rows that the type of their table no longer fits."""

import dataclasses
from typing import Any

import pytest

from streamsx.errors import IncompatibleStore
from streamsx.serde.codec import table_codec, table_key_codec
from streamsx.state.api import ROW
from streamsx.state.layout import FIRST_ROWS, StoreNode, refuse_other_types
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
