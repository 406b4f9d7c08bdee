"""Operator `timestamp`: gives a record the time that a function finds in the value."""

from collections.abc import Callable
from typing import Any, Final

from streamsx.operators.operator import Code, Operator

TIMESTAMP: Final = "timestamp"
"""Kind of the operator: stream time goes by the timestamps that it sets."""
CODE: Final = Code("{new_timestamp} = {to_ms}({time_of}({value}))", makes=("timestamp",))


def to_ms(time: Any) -> int:
    """Return ms since 1970 of a datetime, or of seconds. Raises TypeError for another type."""
    if callable(moment := getattr(time, "timestamp", None)):
        seconds: float = moment()
        return round(seconds * 1000)
    if isinstance(time, int | float) and not isinstance(time, bool):
        return round(time * 1000)
    kind = type(time).__name__
    raise TypeError(f"not a time: {time!r} ({kind}): let timestamp= give a datetime or seconds")


def set_timestamp(time_of: Callable[[Any], Any]) -> Operator:
    return Operator(TIMESTAMP, CODE, {"time_of": time_of, "to_ms": to_ms})
