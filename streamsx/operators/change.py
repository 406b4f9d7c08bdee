"""Change of a table: its new value, and its old one where an operator below asks for that.

An aggregate may be changed in place by the user's function. So the old value is an object of its
own there, read back from what the store would write.

A change of a group goes through a topic as one record, so that no order of records separates the
old value from the new one. Its bytes are

    u8   1: the old value follows, 2: the new value follows, 3: both
    u32  length of the old value, big endian
         old value, then new value, as the table's store writes them
"""

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from streamsx.serde.codec import Codec, Encode, Encoders, Quick

UNCHANGING: Final = frozenset({int, float, bool, str, bytes, type(None)})
"""Types of values that nobody can change in place."""
HEADER: Final = struct.Struct(">BI")
OLD: Final = 1
NEW: Final = 2


class GroupChange(NamedTuple):
    """Values that leave a group and enter it; None for neither."""

    old: Any
    new: Any


def keeper(values: Codec) -> Callable[[Any], Any]:
    """Return a function that returns a value that later changes in place do not reach."""
    encode = values.encode
    decode = values.decode

    def kept(value: Any) -> Any:
        return value if type(value) in UNCHANGING else decode(encode(value))

    return kept


class ChangeEncoders(Encoders):
    """Encoders of changes."""

    def __init__(self, write: Encode) -> None:
        super().__init__(None, write)

    def _choose(self, kind: type) -> Encode:
        return self._dumps


def change_codec(values: Codec) -> Codec:
    """Return the codec of changes of values."""
    encoders = values.encoders
    read = values.decode

    def encoded(value: Any) -> bytes:
        return b"" if value is None else encoders[type(value)](value) or b""

    def write(change: GroupChange) -> bytes:
        old = encoded(change.old)
        flags = (change.old is not None) * OLD + (change.new is not None) * NEW
        return HEADER.pack(flags, len(old)) + old + encoded(change.new)

    def decode(data: bytes | None) -> GroupChange | None:
        if data is None:
            return None
        flags, length = HEADER.unpack_from(data)
        middle = HEADER.size + length
        return GroupChange(
            read(data[HEADER.size : middle]) if flags & OLD else None,
            read(data[middle:]) if flags & NEW else None,
        )

    return Codec("change", ChangeEncoders(write), decode, Quick(decode))
