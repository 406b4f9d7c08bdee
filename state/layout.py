"""Layout of a store's rows: keys here and in the changelog, and the format text of a database.

There is one kind of store as yet, key-value stores. A node knows the keys of its kind, so callers
ask the node and know no tags; `streamsx.state.factory` makes the store of a kind.

Keys of a key-value store and of its changelog differ by the tag byte, and values are the same
bytes: a value is encoded once for Kafka and for the disk. Keys and values of tables are those of
Faust, so streamsx takes over from a stopped Faust app, and stock Faust can read the topics of
streamsx.
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
KEY_VALUE: Final = "kv"
"""Kind of a key-value store, as the format text names it."""
FIRST_ROWS: Final = 32
"""Number of unreadable rows that prove another type.

Nearly always the first row is readable, and no other is read.
"""


@dataclass(frozen=True, slots=True)
class StoreNode:
    """Store of a task and the topic of its changes.

    `key_type`: str, bytes or int if the table has one; `persistent`: on disk; `kind`: kind of the
    store; `by_bytes`: operators use the store, by the bytes of the keys.
    """

    name: str
    changelog: str
    keys: Codec
    values: Codec
    key_type: type | None = None
    persistent: bool = True
    kind: str = KEY_VALUE
    by_bytes: bool = False

    def layout(self, partitions: int) -> str:
        """Return the format text of a database, kept in the row at FORMAT.

        A database with any other text has another format.
        """
        layout = {
            "version": LAYOUT_VERSION, "store": self.kind, "key": self.keys.name,
            "value": self.values.name, "topic": self.changelog, "partitions": partitions,
        }  # fmt: skip
        return json.dumps(layout, separators=(",", ":"))

    def local_keys(self, keys: Iterable[bytes | None]) -> list[bytes | None]:
        """Return changelog keys as keys of `Rows`.

        None stays None, because a record without a key has no row.
        """
        return [None if key is None else ROW + key for key in keys]

    def changelog_key(self, key: bytes) -> bytes:
        """Return the changelog key of a row."""
        return key[1:]


def refuse_other_types(node: StoreNode, rows: Rows) -> None:
    """Check that the table's types fit the first rows.

    One unreadable row fails only the records that ask for it. If all are unreadable, the type has
    changed: each record would fail, and the tasks would stop one by one.

    Raises:
        IncompatibleStore: the types fit none of the first rows.
    """
    found: tuple[bytes, Exception] | None = None
    for row, raw in islice(rows.scan(ROW, INDEX), FIRST_ROWS):
        try:
            node.keys.decode(node.changelog_key(row))
            node.values.decode(raw)
        except Exception as error:  # any codec's
            found = found or (node.changelog_key(row), error)
        else:
            return
    if found is not None:
        key, why = found
        raise IncompatibleStore(
            f"stored rows do not fit the table's type: table {node.name}, key {key[:100]!r}: "
            f"{type(why).__name__}: {why}: give a field that was added a default, or declare "
            "what is stored, or raise the app's version, which begins with empty tables"
        ) from why
