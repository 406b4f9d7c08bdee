"""Late records, as a user's function gets them, or as dead letters.

A record is late when all windows that hold it have closed. An operator counts it; with a function
of the user it calls that too, before the next record. Dead letters need neither key nor value, so
nothing is decoded for them.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from streamsx.errors import RecordTooLate
from streamsx.operators.operator import Code, Operator

COUNTED: Final = re.compile(r"^( *)\{counts\}\.late \+= 1$", re.MULTILINE)
CALL: Final = (
    "{on_late}({late_record}({value}, {decoded}, {timestamp}, {now} - {timestamp}, @start, @end))"
)
BURY: Final = "{bury}({index}, {too_late}({timestamp}, {now} - {timestamp}, @start, @end))"


class LateBounds(NamedTuple):
    """Bounds of a late record's window, as expressions in the names of the operator's code."""

    start: str
    end: str


class LateRecord(NamedTuple):
    """Record that came when its window had closed.

    Attributes:
        value: Its value.
        key: Its key.
        timestamp: Its time, in ms since 1970.
        late_ms: Time by which stream time is ahead of the record, in ms.
        start: Start of the window, in ms since 1970. For a join of flows and for `deduplicate` the
            earliest time of a record that it could have met.
        end: End of the window, or the latest such time.
    """

    value: Any
    key: Any
    timestamp: int
    late_ms: int
    start: int
    end: int


def call_for_late(
    operator: Operator, on_late: Callable[[LateRecord], Any], bounds: LateBounds
) -> Operator:
    """Return an operator that calls a function for each late record."""
    functions: dict[str, Callable[..., Any]] = {"on_late": on_late, "late_record": LateRecord}
    return _with_line(operator, CALL, bounds, functions)


def bury_late(operator: Operator, store: str, bounds: LateBounds) -> Operator:
    """Return an operator that sends late records to the dead letters; `store` names it there."""

    def too_late(timestamp: int, late_ms: int, start: int, end: int) -> RecordTooLate:
        return RecordTooLate(
            f"record too late: {store}: time {timestamp} is {late_ms} ms behind, and {start} to "
            f"{end} had closed: raise grace= to wait longer"
        )

    return replace(_with_line(operator, BURY, bounds, {"too_late": too_late}), buries=True)


def _with_line(
    operator: Operator, line: str, bounds: LateBounds, functions: dict[str, Callable[..., Any]]
) -> Operator:
    """Return an operator with a line behind each that counts a late record."""
    line = line.replace("@start", bounds.start).replace("@end", bounds.end)

    def called(code: Code) -> Code:
        return replace(code, block=COUNTED.sub(rf"\g<0>\n\g<1>{line}", code.block))

    return replace(
        operator,
        code=called(operator.code),
        with_old=operator.with_old and called(operator.with_old),
        alone=operator.alone and called(operator.alone),
        functions={**operator.functions, **functions},
    )
