"""Operator `suppress`: gives on at most one change of a key in a time.

The first change of a key that is not held begins to wait, at the place of its own time. Later
changes take its value's place and leave it where it is. Stream time that reaches the place and the
wait lets the newest value out, with the time of its own change: behind the record that moved stream
time, which may still be a change of that key. A change without a time goes on at once, unless its
key is held. What is held is a session of its key: start is the time of the value, end the place.

A deletion of a row that is not there holds nothing. A change that is older than stream time and the
wait goes on at once, unless its key is held.
"""

from typing import Any, Final

from streamsx.operators.aggregate import BIND
from streamsx.operators.operator import Code, Operator
from streamsx.serde.codec import Codec
from streamsx.state.layout import StoreNode

HOLD: Final = """\
if {key} is None:
    {counts}.skipped += 1
elif {value} is not None or {old} is not None:
    {sessions} = {get}({key})
    if {sessions} is None:
        {sessions} = {load}({key}) or ()
    {held} = None
    for {entry} in {sessions}:
        if {entry}[1] + {stays} >= {now}:
            {held} = {entry}
    if {held} is not None:
        {held}[0] = {timestamp}
        {held}[2] = {value}
        {hot}[{key}] = {sessions}
    elif {timestamp} < 0 or {timestamp} + {stays} < max({clock}, {now}):
        {then}
    else:
        {store}.replace({key}, {sessions}, (), [{timestamp}, {timestamp}, {value}])
"""
OUT: Final = Code(
    """\
for {part} in {store}.close({clock}, SLICE_ROWS):
    for {new_timestamp}, {place}, {new_key}, {new_value} in {part}:
        {then}
    yield
""",
    ("key", "value", "timestamp"),
    {"headers": "None", "decoded": "{decode_key}({new_key})"},
)


def suppress(store: StoreNode, keys: Codec) -> Operator:
    """Return the operator; the store's timing has the wait."""
    timing = store.timing
    assert timing is not None, store
    code = Code(HOLD, bind=BIND, close=OUT, moves_due=True, behind=True)
    functions: dict[str, Any] = {"decode_key": keys.decode}
    constants = {"stays": timing.stays}
    return Operator("suppress", code, functions, stores={"store": store}, constants=constants)
