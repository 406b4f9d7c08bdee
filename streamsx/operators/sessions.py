"""Operators with a running value for each key and session.

A session holds records of one key with gaps of at most `gap` between them. Its bounds are the times
of its first and its last record, both inclusive. A session closes when stream time is later than
its end, the gap and the grace, and merges with no other session from then on. A record is late when
the session that it would make has closed.

Under `update` and `commit`, each session that becomes part of another one leaves as a deletion,
before the result of that other one.
"""

from collections.abc import Callable
from typing import Any, Final

from streamsx.operators.aggregate import BIND
from streamsx.operators.change import keeper
from streamsx.operators.operator import Code, Operator, indented
from streamsx.operators.windows import WindowedKey, windowed_bytes
from streamsx.serde.codec import Codec
from streamsx.state.layout import StoreNode

SKIP: Final = """\
if {key} is None or {timestamp} < 0 or @absent:
    {counts}.skipped += 1
else:
"""
ADD: Final = """\
{sessions} = {get}({key})
if {sessions} is None:
    {sessions} = {load}({key}) or ()
{near} = {store}.near({sessions}, {timestamp}, {now})
{start} = {end} = {timestamp}
if {near}:
    {start} = min({start}, {near}[0][0])
    {end} = max({end}, {near}[-1][1])
if {end} + {stays} < {now}:
    {counts}.late += 1
else:
@keep    {new_value} = {add}({decoded}, {value}, {total}({decoded}, {near}))
    if {new_value} is {value}:
        {new_value} = {kept}({value})
    {store}.replace({key}, {sessions}, {near}, [{start}, {end}, {new_value}])
"""
EMIT: Final = {
    "update": """\
    for {start}, {end}, {new_value} in {results}({near}, {start}, {end}, {new_value}):
        {then}
""",
    "commit": """\
    for {start}, {end}, {new_value} in {results}({near}, {start}, {end}, {new_value}):
        {pending}[{key}, {start}, {end}] = {new_value}, {timestamp}
""",
    "final": "",
    "never": "",
}
"""Lines that give on results, or keep them for the commit. `never`: no operator is below."""
EMIT_OLD: Final = {
    "update": """\
    {changes} = {results}({near}, {start}, {end}, {new_value})
    for {start}, {end}, {new_value}, {new_old} in {with_old}({olds}, {changes}):
        {then}
""",
    "commit": """\
    {changes} = {results}({near}, {start}, {end}, {new_value})
    for {start}, {end}, {new_value}, {new_old} in {with_old}({olds}, {changes}):
        {row} = {key}, {start}, {end}
        {held} = {pending}.get({row})
        {pending}[{row}] = {new_value}, {timestamp}, {new_old} if {held} is None else {held}[2]
""",
    "final": "",
}
KEEP: Final = "    {olds} = {olds_of}({near})\n"
IN_SESSION: Final = {
    "decoded": "{windowed}({decode_key}({key}), {start}, {end})",
    "key": "{encode_windowed}({decode_key}({key}), {start}, {end})",
    "by": "{key}",
    "headers": "None",
}
OF_RESULT: Final = {name: text.replace("{key}", "{plain_key}") for name, text in IN_SESSION.items()}
FINALS: Final = Code(
    """\
for {part} in {store}.close({clock}, SLICE_ROWS):
    for {start}, {end}, {plain_key}, {new_value} in {part}:
        {then}
    yield
""",
    ("value",),
    {**OF_RESULT, "timestamp": "min({end}, {newest})", "old": "None"},
)
COMMIT: Final = Code(
    """\
for ({plain_key}, {start}, {end}), ({new_value}, {new_timestamp}) in {pending}.items():
    {then}
""",
    ("value", "timestamp"),
    OF_RESULT,
)
COMMIT_OLD: Final = Code(
    """\
for ({plain_key}, {start}, {end}), ({new_value}, {new_timestamp}, {new_old}) in {pending}.items():
    {then}
""",
    ("value", "timestamp", "old"),
    OF_RESULT,
)
DROPS: Final = Code("for _ in {store}.drop({clock}, SLICE_ROWS):\n    yield\n")


def results(merged: list[Any], start: int, end: int, value: Any) -> list[tuple[int, int, Any]]:
    """Return deletions of the sessions whose bounds have changed, then the new session."""
    gone = [(each[0], each[1], None) for each in merged if (each[0], each[1]) != (start, end)]
    return [*gone, (start, end, value)]


def with_old(
    olds: dict[tuple[int, int], Any], changes: list[tuple[int, int, Any]]
) -> list[tuple[int, int, Any, Any]]:
    """Return changes of sessions with the value that each session had before."""
    return [(start, end, value, olds.get((start, end))) for start, end, value in changes]


def _code(*, absent: str, emit: str, old: bool) -> Code:
    lines = ADD.replace("@keep", KEEP if old and emit != "final" else "")
    lines += (EMIT_OLD if old else EMIT)[emit]
    updates = COMMIT_OLD if old else COMMIT
    return Code(
        SKIP.replace("@absent", absent) + indented(lines),
        ("value", "old") if old else ("value",),
        IN_SESSION,
        bind=BIND,
        commit=updates if emit == "commit" else None,
        close=FINALS if emit == "final" else DROPS,
        moves_due=True,
    )


def sessions(
    store: StoreNode,
    keys: Codec,
    fun: Callable[[Any, Any, Any], Any],
    init: Callable[[], Any],
    merge: Callable[[Any, Any, Any], Any],
    *,
    absent: str,
    emit: str,
) -> Operator:
    """Return an aggregate by key and session.

    `fun` takes key, value and aggregate; `merge` takes key and the aggregates of two sessions, the
    earlier one first.
    """
    timing = store.timing
    assert timing is not None, store
    kept = keeper(store.values)

    def total(key: Any, near: list[Any]) -> Any:
        """Return the aggregate of the sessions that a record joins."""
        if not near:
            return init()
        value = near[0][2]
        for each in near[1:]:
            value = merge(key, value, each[2])
        return value

    def olds_of(near: list[Any]) -> dict[tuple[int, int], Any]:
        """Return the values of sessions before a change, by their bounds."""
        return {(start, end): kept(value) for start, end, value in near}

    functions: dict[str, Any] = {
        "add": fun,
        "total": total,
        "results": results,
        "with_old": with_old,
        "olds_of": olds_of,
        "kept": kept,
        "windowed": WindowedKey,
        "encode_windowed": windowed_bytes,
        "decode_key": keys.decode,
    }
    constants = {"stays": timing.stays}
    return Operator(
        f"session_{emit}",
        _code(absent=absent, emit=emit, old=False),
        functions,
        stores={"store": store},
        constants=constants,
        with_old=_code(absent=absent, emit=emit, old=True),
        alone=_code(absent=absent, emit="never", old=False),
    )
