"""Operator `regroup`: sends the changes of a table to the groups of their old and new values.

A change within one group is one record, with both values. A row that moves to another group is
put into the new one and taken out of the old one: two records, each with one value. A new value
that cannot be sent fails before the old one has left, so the row can go back.
"""

from collections.abc import Callable
from typing import Any, Final

from streamsx.operators.change import GroupChange, change_codec
from streamsx.operators.operator import Code, Operator
from streamsx.serde.codec import Codec, Encoders

CODE: Final = Code("""\
{left} = {entered} = None
if {old} is not None:
    {group} = {key_of}({old})
    {left} = {encode_key}[type({group})]({group})
if {value} is not None:
    {group} = {key_of}({value})
    {entered} = {encode_key}[type({group})]({group})
if {left} is not None and {left} == {entered}:
    {send}({left}, {encode}({change}({old}, {value})), {timestamp}, None)
else:
    if {entered} is not None:
        {send}({entered}, {encode}({change}(None, {value})), {timestamp}, None)
    if {left} is not None:
        {send}({left}, {encode}({change}({old}, None)), {timestamp}, None)
""")


def regroup(topic: str, key_of: Callable[[Any], Any], keys: Encoders, values: Codec) -> Operator:
    """Return the operator. A value whose key is None is in no group."""
    functions: dict[str, Any] = {
        "key_of": key_of,
        "encode_key": keys,
        "change": GroupChange,
        "encode": change_codec(values).encode,
    }
    return Operator("regroup", CODE, functions, topic)
