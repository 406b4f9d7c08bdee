"""Operators that make other values or records: `map_values`, `flat_map_values`, `map`, `flat_map`.

A new key is a user's object (`decoded`). Its bytes are made only where an operator below uses them.
"""

from collections.abc import Callable
from typing import Any, Final

from streamsx.operators.operator import METADATA, VALUE, Code, Operator
from streamsx.serde.codec import Encoders

KEY_BYTES: Final = {"key": "{encode_key}[type({new_decoded})]({new_decoded})"}


def map_values(fun: Callable[..., Any], *, metadata: bool = False) -> Operator:
    arguments = METADATA if metadata else VALUE
    code = Code(f"{{new_value}} = {{fun}}({arguments})", makes=("value",))
    return Operator("map_values", code, {"fun": fun})


def flat_map_values(fun: Callable[..., Any], *, metadata: bool = False) -> Operator:
    arguments = METADATA if metadata else VALUE
    code = Code(f"for {{new_value}} in {{fun}}({arguments}):\n    {{then}}", makes=("value",))
    return Operator("flat_map_values", code, {"fun": fun})


MAP: Final = Code(
    "{new_decoded}, {new_value} = {fun}({decoded}, {value})", ("decoded", "value"), KEY_BYTES
)
FLAT_MAP: Final = Code(
    "for {new_decoded}, {new_value} in {fun}({decoded}, {value}):\n    {then}",
    ("decoded", "value"),
    KEY_BYTES,
)


def map_records(fun: Callable[[Any, Any], Any], keys: Encoders) -> Operator:
    """Return an operator by a function from key and value to a pair of the two."""
    return Operator("map", MAP, {"fun": fun, "encode_key": keys})  # type: ignore[dict-item]


def flat_map(fun: Callable[[Any, Any], Any], keys: Encoders) -> Operator:
    """Return an operator by a function from key and value to any number of pairs."""
    return Operator("flat_map", FLAT_MAP, {"fun": fun, "encode_key": keys})  # type: ignore[dict-item]
