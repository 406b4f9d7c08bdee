"""Operators with a running value for each key: `count` and `aggregate`.

The row of a key is the key's bytes. A record without a key or a value is counted as skipped and
goes no further. Results leave as each value changes (`update`), or as the newest value of each key
at a commit (`commit`).
"""

from collections.abc import Callable
from typing import Any, Final

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
COUNT: Final = """\
{total} = {get}({key})
if {total} is None:
    {total} = {load}({key}) or 0
{new_value} = {hot}[{key}] = {total} + 1
"""
AGGREGATE: Final = """\
{total} = {get}({key})
if {total} is None:
    {total} = {load}({key})
{new_value} = {fun}(@key{value}, {init}() if {total} is None else {total})
{hot}[{key}] = {new_value}
"""
EMIT: Final = {"update": "{then}\n", "commit": "{pending}[{key}] = {new_value}, {timestamp}\n"}
COMMIT: Final = Code(
    "for {new_key}, ({new_value}, {new_timestamp}) in {pending}.items():\n    {then}\n",
    ("key", "value", "timestamp"),
    {"headers": "None"},
)


def _code(step: str, *, absent: str, emit: str) -> Code:
    block = SKIP.replace("@absent", absent) + indented(step + EMIT[emit])
    commit = COMMIT if emit == "commit" else None
    return Code(block, ("value",), {"headers": "None"}, bind=BIND, commit=commit)


def count(store: StoreNode, *, absent: str, emit: str) -> Operator:
    """Return a counter of records by key. `absent` is an expression, true without a value."""
    return Operator("count", _code(COUNT, absent=absent, emit=emit), stores={"store": store})


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
    code = _code(step, absent="{value} is None", emit=emit)
    return Operator("aggregate", code, {"init": init, "fun": fun}, stores={"store": store})
