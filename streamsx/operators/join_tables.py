"""Operators that join two tables by key: one for the changes of each side.

Each change joins the newest value of the other side. The result has the newest time of both rows.
A row of the result is there while both sides are (`inner`), the left one is (`left`), or one of
them is (`outer`). Where the row ends, a deletion leaves, with the newest time of the change and of
the other side. The rows of both sides are kept with their times, by the bytes of the key.
"""

from collections.abc import Callable
from typing import Any, Final

from streamsx.operators.operator import Code, Operator, indented
from streamsx.state.layout import StoreNode

BIND: Final = """\
{hot} = {own}.hot
{get} = {hot}.get
{load} = {own}.load
{other_get} = {other}.hot.get
{other_load} = {other}.load
"""
JOIN: Final = """\
if {key} is None:
    {counts}.skipped += 1
else:
    {before} = {get}({key})
    if {before} is None:
        {before} = {load}({key})
    elif {before} is GONE:
        {before} = None
    if {value} is not None or {before} is not None:
        {hot}[{key}] = GONE if {value} is None else ({timestamp}, {value})
"""
GIVE: Final = """\
{found} = {other_get}({key})
if {found} is None:
    {found} = {other_load}({key})
elif {found} is GONE:
    {found} = None
{mine} = None if {before} is None else {before}[1]
{new_timestamp} = {timestamp}
{theirs} = None
if {found} is not None:
    {new_timestamp} = max({timestamp}, {found}[0])
    {theirs} = {found}[1]
@old
{new_value} = @result if @is_there else None
if {new_value} is not None or (@was_there):
    {then}
"""
UNDONE: Final = """\
try:
@give
except Exception:
    {hot}[{key}] = GONE if {before} is None else {before}
    raise
"""
THERE: Final = {
    ("inner", False): "{mine} is not None and {theirs} is not None",
    ("inner", True): "{mine} is not None and {theirs} is not None",
    ("left", False): "{mine} is not None",
    ("left", True): "{theirs} is not None",
    ("outer", False): "{mine} is not None or {theirs} is not None",
    ("outer", True): "{mine} is not None or {theirs} is not None",
}
"""Condition for a row of the result, by kind and side (whether the right one)."""
RESULT: Final = {False: "{fun}({mine}, {theirs})", True: "{fun}({theirs}, {mine})"}
"""Value of the result, by side (whether the right one)."""


def _code(kind: str, *, right: bool, old: bool, undone: bool = False) -> Code:
    was_there = THERE[kind, right]
    parts = {
        "@old": f"{{new_old}} = {RESULT[right]} if {was_there} else None" if old else "",
        "@result": RESULT[right].replace("{mine}", "{value}"),
        "@is_there": was_there.replace("{mine}", "{value}"),
        "@was_there": was_there,
    }
    give = UNDONE.replace("@give\n", indented(GIVE)) if undone else GIVE
    block = JOIN + indented(give, 8)
    for name, text in parts.items():
        block = block.replace(name, text)
    made = ("value", "timestamp", "old") if old else ("value", "timestamp")
    return Code(block, made, {"headers": "None"}, bind=BIND)


def join_tables(
    left: StoreNode, right: StoreNode, fun: Callable[[Any, Any], Any], kind: str
) -> tuple[Operator, Operator]:
    """Return the operators of the left and of the right changes."""

    def side(own: StoreNode, other: StoreNode, *, is_right: bool) -> Operator:
        return Operator(
            f"join_tables_{'right' if is_right else 'left'}",
            _code(kind, right=is_right, old=False),
            {"fun": fun},
            stores={"own": own, "other": other},
            with_old=_code(kind, right=is_right, old=True),
            undone=_code(kind, right=is_right, old=True, undone=True),
        )

    return side(left, right, is_right=False), side(right, left, is_right=True)
