"""Operator `deduplicate`: passes the first record of each id on, and drops the repetitions.

A record is a repetition if a record with its id has passed, and their times are at most `within`
apart, in either direction. A repetition does not prolong that time. A record without an id, or
without a time, passes. An id is forgotten when stream time is later than the id's time, `within`
and the grace. A record that is as late as that is dropped and counted.

The store is one of sessions: each record that passed is a session of one time, without a value.
"""

from collections.abc import Callable
from typing import Any, Final

from streamsx.operators.aggregate import BIND
from streamsx.operators.operator import METADATA, VALUE, Code, Operator
from streamsx.operators.sessions import DROPS
from streamsx.state.layout import StoreNode

BLOCK: Final = """\
{id} = {id_of}(@arguments)
{passes} = {id} is None or {timestamp} < 0
if {passes}:
    pass
elif {timestamp} + {stays} < {now}:
    {counts}.late += 1
else:
    {row} = {encode_id}[type({id})]({id})
    {times} = {get}({row})
    if {times} is None:
        {times} = {load}({row}) or ()
    if not {times} or not {store}.near({times}, {timestamp}, {now}):
        {passes} = True
        {store}.replace({row}, {times}, (), [{timestamp}, {timestamp}, None])
if {passes}:
    {then}
"""


def deduplicate(store: StoreNode, id_of: Callable[..., Any], *, metadata: bool = False) -> Operator:
    """Return an operator by a function that finds the id of a record."""
    timing = store.timing
    assert timing is not None, store
    block = BLOCK.replace("@arguments", METADATA if metadata else VALUE)
    functions: dict[str, Any] = {"id_of": id_of, "encode_id": store.keys.encoders}
    code = Code(block, bind=BIND, close=DROPS, moves_due=True)
    stores = {"store": store}
    constants = {"size": timing.size, "stays": timing.stays}
    return Operator("deduplicate", code, functions, stores=stores, constants=constants)
