"""Operators `filter` and `filter_not`: pass on the records that fulfil a condition, or do not."""

from collections.abc import Callable
from typing import Any

from streamsx.operators.operator import METADATA, VALUE, Code, Operator


def filter_values(
    condition: Callable[..., Any], *, keeps: bool = True, metadata: bool = False
) -> Operator:
    """Return a filter by a function of the value, or of value, key, timestamp and headers."""
    sign = "" if keeps else "not "
    arguments = METADATA if metadata else VALUE
    code = Code(f"if {sign}{{condition}}({arguments}):\n    {{then}}")
    return Operator("filter" if keeps else "filter_not", code, {"condition": condition})
