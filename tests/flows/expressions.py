"""Expressions of the cases in `data/public.jsonl`: paths, arithmetic, comparison, objects."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "%": operator.mod,
    "min": min, "max": max,
}  # fmt: skip
COMPARISON: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def evaluate(expression: Any, **names: Any) -> Any:
    """Return the value of an expression. Arithmetic with null is null, comparison is false."""
    if isinstance(expression, str) and expression.startswith("$"):
        return _path(expression[1:], names)
    if isinstance(expression, dict):
        return {name: evaluate(each, **names) for name, each in expression.items()}
    if not isinstance(expression, list):
        return expression
    word, *parts = expression
    found = [evaluate(part, **names) for part in parts]
    if word == "not":
        return not true(found[0])
    if word == "and":
        return true(found[0]) and true(found[1])
    if word == "or":
        return true(found[0]) or true(found[1])
    if word in ("==", "!="):
        return (found[0] == found[1]) == (word == "==")
    numbers = all(isinstance(each, int) for each in found)
    if word in COMPARISON:
        return numbers and COMPARISON[word](*found)
    return ARITHMETIC[word](*found) if numbers else None


def true(value: Any) -> bool:
    return value is True or (isinstance(value, int) and value != 0)


def _path(path: str, names: Mapping[str, Any]) -> Any:
    name, *fields = path.split(".")
    found = names.get(name)
    for each in fields:
        found = found.get(each) if isinstance(found, dict) else None
    return found
