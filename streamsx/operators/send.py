"""Operator `send`: sends key and value to a topic, with the record's timestamp and headers.

A value of None is sent as a record without a value, never as JSON's `null`.
"""

from typing import Any, Final

from streamsx.operators.operator import Code, Operator
from streamsx.serde.codec import Encoders

CODE: Final = Code("{send}({key}, {encode_value}[type({value})]({value}), {timestamp}, {headers})")


WINDOWED: Final = Code(
    "{send}({key}, {encode_value}[type({value})]({value}), {timestamp}, {headers}, {by})"
)
"""Sends the result of a window to the partition of the plain key: of one key, all windows."""


def send_windowed(topic: str, values: Encoders) -> Operator:
    """Return a sender of results with windowed keys."""
    functions: dict[str, Any] = {"encode_value": values}
    return Operator("send_windowed", WINDOWED, functions, topic)


def send(topic: str, values: Encoders) -> Operator:
    """Return a sender. `values` encode the values, None to no bytes (`Encoders.or_none`)."""
    functions: dict[str, Any] = {"encode_value": values}
    return Operator("send", CODE, functions, topic)
