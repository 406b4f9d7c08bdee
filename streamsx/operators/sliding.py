"""Operators with a running value for each key and sliding window.

A window is [end - size, end], both inclusive, and none begins below 0. A record makes the window
that ends at its time, and those that begin behind a record and hold it. A window closes when stream
time is later than its end and the grace. A record changes each open window that holds it. A record
is late when no window that can hold it is open.
"""

from collections.abc import Callable
from typing import Any, Final

from streamsx.operators.aggregate import BIND
from streamsx.operators.change import keeper
from streamsx.operators.operator import NO_AGGREGATE, Code, Operator, indented
from streamsx.operators.sessions import COMMIT, DROPS, FINALS, IN_SESSION, SKIP
from streamsx.operators.windows import WindowedKey, windowed_bytes
from streamsx.serde.codec import Codec
from streamsx.state.layout import StoreNode
from streamsx.state.session_store import Entry

ADD: Final = """\
if {timestamp} + {size} + {stays} < {now}:
    {counts}.late += 1
else:
    {windows} = {get}({key})
    if {windows} is None:
        {windows} = {load}({key}) or []
    {made} = {store}.begun({windows}, {timestamp})
    {changed} = {add}({windows}, {made}, {timestamp}, {decoded}, {value})
    {store}.put_record({key}, {windows}, {made}, {timestamp}, {now})
"""
EMIT: Final = {
    "update": """\
    for {start}, {end}, {new_value} in {changed}:
        if {end} + {stays} >= {now}:
            {then}
""",
    "commit": """\
    for {start}, {end}, {new_value} in {changed}:
        if {end} + {stays} >= {now}:
            {pending}[{key}, {start}, {end}] = {new_value}, {timestamp}
""",
    "final": "",
    "never": "",
}
"""Lines that give on results, or keep them for the commit. `never`: no operator is below."""


def _code(*, absent: str, emit: str) -> Code:
    return Code(
        SKIP.replace("@absent", absent) + indented(ADD + EMIT[emit]),
        ("value",),
        IN_SESSION,
        bind=BIND,
        commit=COMMIT if emit == "commit" else None,
        close=FINALS if emit == "final" else DROPS,
        moves_due=True,
    )


def sliding(
    store: StoreNode,
    keys: Codec,
    fun: Callable[[Any, Any, Any], Any],
    init: Callable[[], Any],
    *,
    absent: str,
    emit: str,
) -> Operator:
    """Return an aggregate by key and sliding window: `fun` takes key, value and aggregate."""
    timing = store.timing
    assert timing is not None, store

    kept = keeper(store.values)

    def own(made: Any, value: Any) -> Any:
        """Return an aggregate: a copy if it is the record's value. Raises ValueError for None."""
        if made is None:
            raise ValueError(NO_AGGREGATE)
        return kept(value) if made is value else made

    def add(windows: list[Entry], made: list[Entry], at: int, key: Any, value: Any) -> list[Entry]:
        """Add a record to the windows that hold it; return them and the new ones, by start."""
        changed = list[Entry]()
        for each in windows:
            if each[2] is not None and each[0] <= at <= each[1]:
                each[2] = own(fun(key, value, each[2]), value)
                changed.append(each)
        for each in made:
            if each[0] <= at <= each[1]:
                so_far = init() if each[2] is None else each[2]
                each[2] = own(fun(key, value, so_far), value)
        return sorted([*changed, *made]) if made else changed

    functions: dict[str, Any] = {
        "add": add,
        "windowed": WindowedKey,
        "encode_windowed": windowed_bytes,
        "decode_key": keys.decode,
        "kept": kept,
    }
    constants = {"size": timing.size, "stays": timing.stays}
    return Operator(
        f"sliding_{emit}",
        _code(absent=absent, emit=emit),
        functions,
        stores={"store": store},
        constants=constants,
        alone=_code(absent=absent, emit="never"),
    )
