"""Codecs made of two functions, for tests without a topic or table."""

from collections.abc import Callable
from typing import Any

from streamsx.serde.codec import Codec, Encoders, Quick


def coded(decode: Callable[[Any], Any], encode: Any = None, name: str = "json") -> Codec:
    """Return a codec; `encode` is called for every value but bytes, which are written as they
    are.
    """
    return Codec(name, Encoders(name, encode), decode, Quick(decode))
