"""Operator `peek`: calls a function for each record, and passes the record on."""

from collections.abc import Callable
from typing import Any

from streamsx.operators.operator import METADATA, VALUE, Code, Operator


def peek(fun: Callable[..., Any], *, metadata: bool = False) -> Operator:
    code = Code(f"{{fun}}({METADATA if metadata else VALUE})")
    return Operator("peek", code, {"fun": fun})
