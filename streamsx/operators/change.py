"""Change of a table: its new value, and its old one where an operator below asks for that.

An aggregate may be changed in place by the user's function. So the old value is an object of its
own there, read back from what the store would write.
"""

from collections.abc import Callable
from typing import Any, Final

from streamsx.serde.codec import Codec

UNCHANGING: Final = frozenset({int, float, bool, str, bytes, type(None)})
"""Types of values that nobody can change in place."""


def keeper(values: Codec) -> Callable[[Any], Any]:
    """Return a function that returns a value that later changes in place do not reach."""
    encode = values.encode
    decode = values.decode

    def kept(value: Any) -> Any:
        return value if type(value) in UNCHANGING else decode(encode(value))

    return kept
