"""Local bytes <-> changelog bytes, both ways.

A key-value store and its changelog differ by the tag byte: values are the same bytes, so that
what was encoded once goes to Kafka and to the disk. Keys and values are Faust's for tables, so a
stopped Faust app is taken over and stock Faust can read ours.
"""

from collections.abc import Iterable

from streamsx.state.api import ROW


def local_keys(keys: Iterable[bytes | None]) -> list[bytes | None]:
    """Changelog keys as keys of `Rows`. A record without a key stays None: it is nobody's row."""
    return [None if key is None else ROW + key for key in keys]


def changelog_key(key: bytes) -> bytes:
    """The key of a row as the changelog has it."""
    return key[1:]
