"""Stateless steps as fragments of the generated loop. Functions come in as names, never as text.

A fragment sees the locals `key`, `value`, `raw`, `timestamp` and `headers` of one record and may
write them. `{name}` stands for a function of the operator, `{send}` for the bound sender of its
topic.
"""

from typing import Final, NamedTuple


class Fragment(NamedTuple):
    """Lines of the loop, indented as one record's work."""

    lines: tuple[str, ...]


FRAGMENTS: Final[dict[str, Fragment]] = {
    "rekey": Fragment(("key = {key_of}(value)",)),
    "forward": Fragment(("{send}({encode_key}(key), raw, timestamp, headers)",)),
}
"""rekey: the key that a function makes of the value. forward: the value's bytes as they came."""
