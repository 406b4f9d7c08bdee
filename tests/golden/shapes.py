"""Shapes of JSON: names of fields and types of values, and where a value has another one.

A shape is a dict of shapes (with the key "*" for any name), a list of one shape, or names of types
with bars between them.
"""

from collections.abc import Iterator
from typing import Any

TYPES = {
    "str": "str", "int": "int", "float": "float", "bool": "bool", "NoneType": "null",
}  # fmt: skip


def differences(shape: Any, value: Any, where: str = "$") -> Iterator[str]:
    """Name each place where a value has not the shape. A list may be empty, a number an int."""
    if isinstance(shape, dict) and isinstance(value, dict):
        known = dict.fromkeys(value, shape["*"]) if "*" in shape else shape
        yield from (f"{where}.{name} is missing" for name in known.keys() - value.keys())
        yield from (f"{where}.{name} is new" for name in value.keys() - known.keys())
        for name in known.keys() & value.keys():
            yield from differences(known[name], value[name], f"{where}.{name}")
    elif isinstance(shape, list) and isinstance(value, list):
        for at, each in enumerate(value):
            yield from differences(shape[0], each, f"{where}[{at}]")
    elif not isinstance(shape, str) or TYPES.get(type(value).__name__) not in shape.split("|"):
        yield f"{where} is {value!r}, no {shape}"
