"""Operator `select_key`: gives a record another key, within a flow; no topic in between.

The bytes of the key are made only where an operator below uses them.
"""

from collections.abc import Callable
from typing import Any

from streamsx.operators.map import KEY_BYTES
from streamsx.operators.operator import METADATA, VALUE, Code, Operator
from streamsx.serde.codec import Encoders


def select_key(key_of: Callable[..., Any], keys: Encoders, *, metadata: bool = False) -> Operator:
    arguments = METADATA if metadata else VALUE
    code = Code(f"{{new_decoded}} = {{key_of}}({arguments})", ("decoded",), KEY_BYTES)
    functions: dict[str, Any] = {"key_of": key_of, "encode_key": keys}
    return Operator("select_key", code, functions)
