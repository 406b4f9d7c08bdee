"""What the rows of a store are: their keys here and in the changelog, and what a database says of
itself. Of key-value stores, as yet the only kind; whatever another kind lays out otherwise stands
here beside it, and nowhere else.

A key-value store and its changelog differ by the tag byte: values are the same bytes, so that
what was encoded once goes to Kafka and to the disk. Keys and values are Faust's for tables, so a
stopped Faust app is taken over and stock Faust can read ours.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from streamsx.errors import IncompatibleStore
from streamsx.serde.codec import Codec
from streamsx.state.api import INDEX, ROW, Rows

LAYOUT_VERSION = 1
FIRST_ROWS: Final = 32
"""So many rows have to be unreadable before a type counts as another one; nearly always the first
is read, and no other."""


@dataclass(frozen=True, slots=True)
class StoreNode:
    """A key-value store and the topic that its changes go to.

    `key_type`: str, bytes or int when the table has one; `persistent`: on disk.
    """

    name: str
    changelog: str
    keys: Codec
    values: Codec
    key_type: type | None = None
    persistent: bool = True

    def layout(self, partitions: int) -> str:
        """What a database says of itself, in the row at FORMAT; another text is another format."""
        layout = {
            "version": LAYOUT_VERSION, "store": "kv", "key": self.keys.name,
            "value": self.values.name, "topic": self.changelog, "partitions": partitions,
        }  # fmt: skip
        return json.dumps(layout, separators=(",", ":"))


def local_keys(keys: Iterable[bytes | None]) -> list[bytes | None]:
    """Changelog keys as keys of `Rows`. A record without a key stays None: it is nobody's row."""
    return [None if key is None else ROW + key for key in keys]


def changelog_key(key: bytes) -> bytes:
    """The key of a row as the changelog has it."""
    return key[1:]


def refuse_other_types(node: StoreNode, rows: Rows) -> None:
    """Raise IncompatibleStore where the table's types fit none of the first rows.

    One row that cannot be read fails the records that ask for it. All of them say that the type
    has changed: each record would fail, and the tasks would stop one by one.
    """
    found: tuple[bytes, Exception] | None = None
    for row, raw in islice(rows.scan(ROW, INDEX), FIRST_ROWS):
        try:
            node.keys.decode(changelog_key(row))
            node.values.decode(raw)
        except Exception as error:  # any codec's
            found = found or (changelog_key(row), error)
        else:
            return
    if found is not None:
        key, why = found
        raise IncompatibleStore(
            f"stored rows do not fit the table's type: table {node.name}, key {key[:100]!r}: "
            f"{type(why).__name__}: {why}: give a field that was added a default, or declare "
            "what is stored, or raise the app's version, which begins with empty tables"
        ) from why
