"""Operator `timestamp`: gives a record the time that a function finds in the value."""

from calendar import timegm
from collections.abc import Callable
from typing import Any, Final

from streamsx.operators.operator import Code, Operator

TIMESTAMP: Final = "timestamp"
"""Kind of the operator: stream time goes by the timestamps that it sets."""
CODE: Final = Code(
    "{new_timestamp} = {timestamp} if {value} is None else {to_ms}({time_of}({value}))",
    makes=("timestamp",),
)
"""A deletion has no value to find a time in, and keeps the record's."""


MS_MAX: Final = 253_402_300_799_999
"""End of the year 9999. Seconds in ms or ns would be later, and would close every window."""


def to_ms(time: Any) -> int:
    """Return ms since 1970 of a datetime, or of seconds. A datetime without a zone is in UTC.

    Raises:
        TypeError: the time is of another type.
        ValueError: the time is before 1970 or after 9999.
    """
    made = _ms(time)
    if not 0 <= made <= MS_MAX:
        raise ValueError(
            f"not a time in seconds since 1970: {time!r}: let timestamp= give seconds, not ms, or "
            "a datetime"
        )
    return made


def _ms(time: Any) -> int:
    if callable(moment := getattr(time, "timestamp", None)):
        if getattr(time, "tzinfo", time) is None:
            return timegm(time.utctimetuple()) * 1000 + int(time.microsecond) // 1000
        seconds: float = moment()
        return round(seconds * 1000)
    if isinstance(time, int | float) and not isinstance(time, bool):
        return round(time * 1000)
    kind = type(time).__name__
    raise TypeError(f"not a time: {time!r} ({kind}): let timestamp= give a datetime or seconds")


def set_timestamp(time_of: Callable[[Any], Any]) -> Operator:
    return Operator(TIMESTAMP, CODE, {"time_of": time_of, "to_ms": to_ms})
