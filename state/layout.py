"""What the rows of a store are: their keys here and in the changelog, and what a database says of
itself. Of key-value stores, as yet the only kind; whatever another kind lays out otherwise stands
here beside it, and nowhere else.

A key-value store and its changelog differ by the tag byte: values are the same bytes, so that
what was encoded once goes to Kafka and to the disk. Keys and values are Faust's for tables, so a
stopped Faust app is taken over and stock Faust can read ours.
"""

import json
from collections.abc import Iterable

from streamsx.state.api import ROW

LAYOUT_VERSION = 1


def described(key_codec: str, value_codec: str, changelog: str, partitions: int) -> str:
    """The row at FORMAT, as text; another text is another format."""
    layout = {
        "version": LAYOUT_VERSION, "store": "kv", "key": key_codec, "value": value_codec,
        "topic": changelog, "partitions": partitions,
    }  # fmt: skip
    return json.dumps(layout, separators=(",", ":"))


def local_keys(keys: Iterable[bytes | None]) -> list[bytes | None]:
    """Changelog keys as keys of `Rows`. A record without a key stays None: it is nobody's row."""
    return [None if key is None else ROW + key for key in keys]


def changelog_key(key: bytes) -> bytes:
    """The key of a row as the changelog has it."""
    return key[1:]
