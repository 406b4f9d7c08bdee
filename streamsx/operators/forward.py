"""Operator `forward`: sends a record to a topic, with headers and bytes of the value unchanged.

A value that cannot be decoded fails its record and is not forwarded.
"""

from typing import Final

from streamsx.operators.operator import Code, Operator

CODE: Final = Code("{send}({key}, {raw}, {timestamp}, {headers})", needs=frozenset({"value"}))


def forward(topic: str) -> Operator:
    return Operator("forward", CODE, topic=topic)
