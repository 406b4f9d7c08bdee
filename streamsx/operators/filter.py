"""Operator `filter`: passes on the records whose value fulfils a condition."""

from collections.abc import Callable
from typing import Any, Final

from streamsx.operators.operator import Code, Operator

CODE: Final = Code("if {condition}({value}):\n    {then}")


def filter_values(condition: Callable[[Any], Any]) -> Operator:
    return Operator("filter", CODE, {"condition": condition})
