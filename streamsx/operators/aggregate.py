"""Operators with a running value for each key: `count`, `aggregate` and `aggregate_changes`.

The row of a key is the key's bytes. A record without a key or a value is counted as skipped and
goes no further. Results leave as each value changes (`update`), or as the newest value of each key
at a commit (`commit`).
"""

from collections.abc import Callable
from typing import Any, Final

from streamsx.operators.change import keeper
from streamsx.operators.operator import Code, Operator, indented
from streamsx.state.layout import StoreNode

BIND: Final = """\
{hot} = {store}.hot
{get} = {hot}.get
{load} = {store}.load
"""
SKIP: Final = """\
if {key} is None or @absent:
    {counts}.skipped += 1
else:
"""
TOTAL: Final = """\
{total} = {get}({key})
if {total} is None:
    {total} = {load}({key})
"""
COUNT: Final = "{new_value} = {hot}[{key}] = ({total} or 0) + 1\n"
AGGREGATE: Final = """\
{new_value} = {fun}(@key{value}, {init}() if {total} is None else {total})
if {new_value} is None:
    raise ValueError(NO_AGGREGATE)
elif {new_value} is {value}:
    {new_value} = {kept}({value})
{hot}[{key}] = {new_value}
"""
"""Other steps of the flow have the record's value too: an aggregate is an object of its own."""
CHANGES: Final = """\
{new_value} = {init}() if {total} is None else {total}
if {value}[0] is not None:
    {new_value} = {subtract}({decoded}, {value}[0], {new_value})
if {value}[1] is not None:
    {new_value} = {fun}({decoded}, {value}[1], {new_value})
if {new_value} is None:
    raise ValueError(NO_AGGREGATE)
{hot}[{key}] = {new_value}
"""
EMIT: Final = {
    "update": "{then}\n",
    "commit": "{pending}[{key}] = {new_value}, {timestamp}\n",
    "never": "",
}
"""Lines that give on a result, or keep it for the commit. `never`: no operator is below."""
COMMIT: Final = Code(
    "for {new_key}, ({new_value}, {new_timestamp}) in {pending}.items():\n    {then}\n",
    ("key", "value", "timestamp"),
    {"headers": "None"},
)
KEEP: Final = {
    "update": "{new_old} = {kept}({total})\n",
    "commit": """\
{held} = {pending}.get({key})
{new_old} = {kept}({total}) if {held} is None else {held}[2]
""",
}
"""Lines that keep the value before the change: at a commit, before the first one since the last."""
EMIT_OLD: Final = {
    "update": "{then}\n",
    "commit": "{pending}[{key}] = {new_value}, {timestamp}, {new_old}\n",
}
COMMIT_OLD: Final = Code(
    "for {new_key}, ({new_value}, {new_timestamp}, {new_old}) in {pending}.items():\n    {then}\n",
    ("key", "value", "timestamp", "old"),
    {"headers": "None"},
)


def _code(step: str, *, absent: str, emit: str) -> Code:
    block = SKIP.replace("@absent", absent) + indented(TOTAL + step + EMIT[emit])
    commit = COMMIT if emit == "commit" else None
    return Code(block, ("value",), {"headers": "None"}, bind=BIND, commit=commit)


def _with_old(step: str, *, absent: str, emit: str) -> Code:
    lines = TOTAL + KEEP[emit] + step + EMIT_OLD[emit]
    block = SKIP.replace("@absent", absent) + indented(lines)
    commit = COMMIT_OLD if emit == "commit" else None
    return Code(block, ("value", "old"), {"headers": "None"}, bind=BIND, commit=commit)


def count(store: StoreNode, *, absent: str, emit: str) -> Operator:
    """Return a counter of records by key. `absent` is an expression, true without a value."""
    return _operator("count", COUNT, store, {}, absent=absent, emit=emit)


def aggregate(
    store: StoreNode,
    init: Callable[[], Any],
    fun: Callable[..., Any],
    *,
    emit: str,
    keyed: bool = True,
) -> Operator:
    """Return an aggregate: `fun` takes key, value and the key's aggregate, first that of `init`.

    Without `keyed`, `fun` takes no key, and no key is decoded.
    """
    step = AGGREGATE.replace("@key", "{decoded}, " if keyed else "")
    functions: dict[str, Callable[..., Any]] = {"init": init, "fun": fun}
    return _operator("aggregate", step, store, functions, absent="{value} is None", emit=emit)


def aggregate_changes(
    store: StoreNode,
    init: Callable[[], Any],
    fun: Callable[[Any, Any, Any], Any],
    subtract: Callable[[Any, Any, Any], Any],
    *,
    emit: str,
) -> Operator:
    """Return an aggregate of the changes of a table.

    The old value of a change is taken out with `subtract`, the new one is put in with `fun`.
    """
    functions: dict[str, Callable[..., Any]] = {"init": init, "fun": fun, "subtract": subtract}
    absent = "{value} is None"
    return _operator("aggregate_changes", CHANGES, store, functions, absent=absent, emit=emit)


def _operator(
    kind: str,
    step: str,
    store: StoreNode,
    functions: dict[str, Callable[..., Any]],
    *,
    absent: str,
    emit: str,
) -> Operator:
    return Operator(
        kind,
        _code(step, absent=absent, emit=emit),
        {"kept": keeper(store.values), **functions},
        stores={"store": store},
        with_old=_with_old(step, absent=absent, emit=emit),
        alone=_code(step, absent=absent, emit="never"),
    )
