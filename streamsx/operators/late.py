"""Late records of windows, as a user's function gets them.

A record is late when all windows that hold it have closed. An operator counts it; with a function
of the user it calls that too, before the next record.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from streamsx.operators.operator import Code, Operator

COUNTED: Final = re.compile(r"^( *)\{counts\}\.late \+= 1$", re.MULTILINE)
CALL: Final = (
    "{on_late}({late_record}({value}, {decoded}, {timestamp}, {now} - {timestamp}, @start, @end))"
)


class LateRecord(NamedTuple):
    """Record that came when its window had closed.

    `timestamp`: in ms; `late_ms`: how far stream time is ahead of the record; `start`, `end`:
    bounds of the window in ms, as in a `WindowedKey`.
    """

    value: Any
    key: Any
    timestamp: int
    late_ms: int
    start: int
    end: int


def call_for_late(
    operator: Operator, on_late: Callable[[LateRecord], Any], start: str, end: str
) -> Operator:
    """Return an operator that calls a function for each late record.

    `start` and `end` are expressions of the bounds, in the names of the operator's code.
    """
    call = CALL.replace("@start", start).replace("@end", end)

    def called(code: Code) -> Code:
        return replace(code, block=COUNTED.sub(rf"\g<0>\n\g<1>{call}", code.block))

    return replace(
        operator,
        code=called(operator.code),
        with_old=operator.with_old and called(operator.with_old),
        alone=operator.alone and called(operator.alone),
        functions={**operator.functions, "on_late": on_late, "late_record": LateRecord},
    )
