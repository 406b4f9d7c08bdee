"""Operators of tables: `put` keeps the newest value of each key, `join_table` looks a value up.

`filter_table` and `map_table` make another table of the changes of one, with the old value of each
change. A row that a filter does not keep any more leaves as a deletion. The row of a key is the
key's bytes.
"""

from collections.abc import Callable
from typing import Any, Final

from streamsx.operators.aggregate import BIND
from streamsx.operators.operator import Code, Operator, indented
from streamsx.serde.codec import Encoders
from streamsx.state.layout import StoreNode

SET: Final = """\
{hot}[{key}] = GONE if {value} is None else {value}
{then}
"""
UNDONE: Final = """\
{hot}[{key}] = GONE if {value} is None else {value}
try:
    {then}
except Exception:
    {hot}[{key}] = GONE if {new_old} is None else {new_old}
    raise
"""
OLD: Final = """\
{new_old} = {get}({key})
if {new_old} is None:
    {new_old} = {load}({key})
elif {new_old} is GONE:
    {new_old} = None
"""
KEYED: Final = "if {key} is None:\n    {counts}.skipped += 1\nelse:\n"
PUT: Final = Code(KEYED + indented(SET), bind=BIND)
PUT_OLD: Final = Code(KEYED + indented(OLD + SET), ("old",), bind=BIND)
PUT_UNDONE: Final = Code(KEYED + indented(OLD + UNDONE), ("old",), bind=BIND)
CHANGED: Final = "if {value} is not None or {new_old} is not None:\n"
PUT_CHANGES: Final = Code(OLD + CHANGED + indented(SET), ("old",), bind=BIND)
PUT_CHANGES_UNDONE: Final = Code(OLD + CHANGED + indented(UNDONE), ("old",), bind=BIND)
FILTER: Final = Code(
    """\
{new_value} = {value} if {value} is not None and {condition}({value}) else None
{new_old} = {old} if {old} is not None and {condition}({old}) else None
if {new_value} is not None or {new_old} is not None:
    {then}
""",
    ("value", "old"),
)
MAP: Final = "{new_value} = None if {value} is None else {fun}({value})\n"
MAP_OLD: Final = "{new_old} = None if {old} is None else {fun}({old})\n"
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
    return Operator("put", PUT, stores={"store": store}, with_old=PUT_OLD, undone=PUT_UNDONE)


def put_changes(store: StoreNode) -> Operator:
    """Return a `put` that passes no deletion on of a row that is not there."""
    return Operator(
        "put_changes", PUT_CHANGES, stores={"store": store}, with_old=PUT_CHANGES,
        undone=PUT_CHANGES_UNDONE,
    )  # fmt: skip


def filter_table(condition: Callable[[Any], Any]) -> Operator:
    return Operator("filter_table", FILTER, {"condition": condition})


def map_table(fun: Callable[[Any], Any]) -> Operator:
    code = Code(MAP, ("value",))
    return Operator("map_table", code, {"fun": fun}, with_old=Code(MAP + MAP_OLD, ("value", "old")))


def join_table(store: StoreNode, fun: Callable[[Any, Any], Any], *, left: bool) -> Operator:
    """Return a join of a stream with a table: `fun` takes both values, the table's maybe None."""
    kind = "left_join_table" if left else "join_table"
    return Operator(kind, LEFT if left else INNER, {"fun": fun}, stores={"store": store})


GLOBAL: Final = """\
if {value} is None:
    {counts}.skipped += 1
else:
    {found} = None
    {at} = @key
    if {at} is not None:
        {found} = {load}({at})
"""
GLOBAL_INNER: Final = """\
    if {found} is not None:
        {new_value} = {fun}({value}, {found})
        {then}
    elif {at} is None:
        {counts}.skipped += 1
"""
GLOBAL_LEFT: Final = """\
    {new_value} = {fun}({value}, {found})
    {then}
"""
KEY_MADE: Final = """\
{at} = {key_of}({value})
    {at} = {encode_key}[type({at})]({at})"""


def join_global(
    table: StoreNode,
    fun: Callable[[Any, Any], Any],
    key_of: Callable[[Any], Any] | None,
    keys: Encoders,
    *,
    left: bool,
) -> Operator:
    """Return a join of a stream with a global table, by the key that `key_of` makes of the value.

    Without `key_of` the record's key is that of the table.
    """
    block = GLOBAL + (GLOBAL_LEFT if left else GLOBAL_INNER)
    block = block.replace("{at} = @key", "{at} = {key}" if key_of is None else KEY_MADE)
    functions: dict[str, Any] = {"fun": fun}
    if key_of is not None:
        functions |= {"key_of": key_of, "encode_key": keys}
    code = Code(block, ("value",), bind="{load} = {table}.load\n")
    kind = "left_join_global" if left else "join_global"
    return Operator(kind, code, functions, tables={"table": table})
