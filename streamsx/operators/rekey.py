"""Operator `rekey`: gives a record the key that a function derives from the value."""

from collections.abc import Callable
from typing import Any, Final

from streamsx.operators.operator import Code, Operator

CODE: Final = Code("{new_key} = {encode_key}({key_of}({value}))", makes=("key",))


def rekey(key_of: Callable[[Any], Any], encode_key: Callable[[Any], bytes | None]) -> Operator:
    return Operator("rekey", CODE, {"key_of": key_of, "encode_key": encode_key})
