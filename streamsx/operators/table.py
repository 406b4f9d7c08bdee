"""Operators of tables: `put` keeps the newest value of each key, `join_table` looks a value up.

The row of a key is the key's bytes.
"""

from collections.abc import Callable
from typing import Any, Final

from streamsx.operators.aggregate import BIND
from streamsx.operators.operator import Code, Operator, indented
from streamsx.state.layout import StoreNode

PUT: Final = Code(
    """\
if {key} is None:
    {counts}.skipped += 1
else:
    {hot}[{key}] = GONE if {value} is None else {value}
    {then}
""",
    bind=BIND,
)
FIND: Final = """\
{found} = {get}({key})
if {found} is None:
    {found} = {load}({key})
elif {found} is GONE:
    {found} = None
"""
JOINED: Final = "{new_value} = {fun}({value}, {found})\n{then}\n"
INNER: Final = Code(
    "if {key} is None or {value} is None:\n    {counts}.skipped += 1\nelse:\n"
    + indented(FIND + "if {found} is not None:\n" + indented(JOINED)),
    makes=("value",),
    bind=BIND,
)
LEFT: Final = Code(
    "if {value} is None:\n    {counts}.skipped += 1\nelse:\n    {found} = None\n"
    "    if {key} is not None:\n" + indented(FIND, 8) + indented(JOINED),
    makes=("value",),
    bind=BIND,
)


def put(store: StoreNode) -> Operator:
    return Operator("put", PUT, stores={"store": store})


def join_table(store: StoreNode, fun: Callable[[Any, Any], Any], *, left: bool) -> Operator:
    """Return a join of a stream with a table: `fun` takes both values, the table's maybe None."""
    kind = "left_join_table" if left else "join_table"
    return Operator(kind, LEFT if left else INNER, {"fun": fun}, stores={"store": store})
