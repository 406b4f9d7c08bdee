"""Operators with a running value for each key and window: tumbling and hopping windows.

A window is [start, end). Starts are multiples of the step since 1970, and none is below 0. A window
closes when stream time reaches its end and its grace. A record is late for a window that has
closed. A record without a key, a value or a time is counted as skipped. The row of a window is its
start, packed, and the key's bytes (`streamsx.state`).

Results leave as each value changes (`update`), as the newest value of each window at a commit
(`commit`), or once, when the window closes (`final`), in the order of the ends and then of the
keys.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from streamsx.operators.aggregate import BIND
from streamsx.operators.change import keeper
from streamsx.operators.operator import Code, Operator, indented
from streamsx.serde.codec import Codec, to_json
from streamsx.state.layout import StoreNode, time_bytes


class WindowedKey(NamedTuple):
    """Key of a window's result.

    Attributes:
        key: Key of the records.
        start: Start of the window, in ms since 1970.
        end: End of the window, in ms since 1970.
    """

    key: Any
    start: int
    end: int


def windowed_bytes(key: Any, start: int, end: int) -> bytes:
    """Return the bytes of a windowed key in a topic: JSON of `[key, start, end]`."""
    return to_json([key, start, end])


TUMBLING: Final = """\
if {key} is None or {timestamp} < 0 or @absent:
    {counts}.skipped += 1
else:
    {start} = {timestamp} - {timestamp} % {size}
    if {start} + {stays} <= {now}:
        {counts}.late += 1
    else:
        if {start} != {current}:
            {prefix} = {pack}({start})
            {current} = {start}
        {row} = {prefix} + {key}
"""
HOPPING: Final = """\
if {key} is None or {timestamp} < 0 or @absent:
    {counts}.skipped += 1
else:
    {first} = max(0, ({timestamp} - {size}) // {step} * {step} + {step})
    for {start} in range({first}, {timestamp} + 1, {step}):
        if {start} + {stays} <= {now}:
            {counts}.late += 1
            continue
        {row} = {pack}({start}) + {key}
"""
TOTAL: Final = """\
{total} = {get}({row})
if {total} is None:
    {total} = {load}({row})
"""
COUNT: Final = "{new_value} = {hot}[{row}] = ({total} or 0) + 1\n"
AGGREGATE: Final = """\
{new_value} = {fun}(@key{value}, {init}() if {total} is None else {total})
if {new_value} is None:
    raise ValueError(NO_AGGREGATE)
elif {new_value} is {value}:
    {new_value} = {kept}({value})
{hot}[{row}] = {new_value}
"""
EMIT: Final = {
    "update": "{then}\n",
    "commit": "{pending}[{row}] = {start}, {key}, {new_value}, {timestamp}\n",
    "final": "",
    "never": "",
}
"""Lines that give on a result, or keep it for the commit. `never`: no operator is below."""
KEEP: Final = {
    "update": "{new_old} = {kept}({total})\n",
    "commit": """\
{held} = {pending}.get({row})
{new_old} = {kept}({total}) if {held} is None else {held}[4]
""",
    "final": "",
}
"""Lines that keep the value before the change: at a commit, before the first one since the last."""
EMIT_OLD: Final = {
    **EMIT,
    "commit": "{pending}[{row}] = {start}, {key}, {new_value}, {timestamp}, {new_old}\n",
}
IN_WINDOW: Final = {
    "decoded": "{windowed}({decode_key}({key}), {start}, {start} + {size})",
    "key": "{encode_windowed}({decode_key}({key}), {start}, {start} + {size})",
    "by": "{key}",
    "headers": "None",
}
OF_RESULT: Final = {name: text.replace("{key}", "{plain_key}") for name, text in IN_WINDOW.items()}
COMMIT: Final = Code(
    "for {start}, {plain_key}, {new_value}, {new_timestamp} in {pending}.values():\n    {then}\n",
    ("value", "timestamp"),
    OF_RESULT,
)
COMMIT_OLD: Final = Code(
    """\
for {start}, {plain_key}, {new_value}, {new_timestamp}, {new_old} in {pending}.values():
    {then}
""",
    ("value", "timestamp", "old"),
    OF_RESULT,
)
FINALS: Final = Code(
    """\
for {part} in {store}.close({clock}, SLICE_ROWS):
    for {start}, {plain_key}, {new_value} in {part}:
        {then}
    yield
""",
    ("value",),
    {**OF_RESULT, "timestamp": "min({start} + {size} - 1, {newest})", "old": "None"},
)
DROPS: Final = Code("for _ in {store}.drop({clock}, SLICE_ROWS):\n    yield\n")


def _code(step: str, *, tumbling: bool, absent: str, emit: str, old: bool) -> Code:
    head = (TUMBLING if tumbling else HOPPING).replace("@absent", absent)
    lines = TOTAL + (KEEP[emit] + step + EMIT_OLD[emit] if old else step + EMIT[emit])
    updates = COMMIT_OLD if old else COMMIT
    return Code(
        head + indented(lines, 8),
        ("value", "old") if old else ("value",),
        IN_WINDOW,
        bind=BIND + "{current} = -1\n",
        commit=updates if emit == "commit" else None,
        close=FINALS if emit == "final" else DROPS,
    )


def _operator(
    kind: str,
    step: str,
    store: StoreNode,
    keys: Codec,
    functions: dict[str, Callable[..., Any]],
    *,
    absent: str,
    emit: str,
) -> Operator:
    timing = store.timing
    assert timing is not None, store
    helpers: dict[str, Any] = {
        "pack": time_bytes,
        "windowed": WindowedKey,
        "encode_windowed": windowed_bytes,
        "decode_key": keys.decode,
        "kept": keeper(store.values),
    }
    code, with_old, alone = (
        _code(step, tumbling=timing.size == timing.step, absent=absent, emit=emit, old=old)
        for emit, old in ((emit, False), (emit, True), ("never", False))
    )
    constants = {"size": timing.size, "step": timing.step, "stays": timing.stays}
    return Operator(
        f"{kind}_{emit}",
        code,
        helpers | functions,
        stores={"store": store},
        constants=constants,
        with_old=with_old,
        alone=alone,
    )


def count_windows(store: StoreNode, keys: Codec, *, absent: str, emit: str) -> Operator:
    """Return a counter of records by key and window."""
    return _operator("window_count", COUNT, store, keys, {}, absent=absent, emit=emit)


def aggregate_windows(
    store: StoreNode,
    keys: Codec,
    init: Callable[[], Any],
    fun: Callable[..., Any],
    *,
    emit: str,
    keyed: bool = True,
) -> Operator:
    """Return an aggregate by key and window: `fun` takes key, value and aggregate.

    Without `keyed`, `fun` takes no key, and no key is decoded.
    """
    step = AGGREGATE.replace("@key", "{decoded}, " if keyed else "")
    functions: dict[str, Callable[..., Any]] = {"init": init, "fun": fun}
    absent = "{value} is None"
    return _operator("window_aggregate", step, store, keys, functions, absent=absent, emit=emit)
