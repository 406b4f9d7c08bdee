"""Stateless steps as fragments of the generated loop. Functions come in as names, never as text.

A fragment reads the variables that hold `{key}`, `{value}`, `{raw}`, `{timestamp}` and `{headers}`
of one record where it stands in the tree; keys are bytes. It writes only those that it `makes`, as
`{new_key}`: they are variables of its own, so that nobody beside it in the tree sees them. `{name}`
stands for a function of the operator, `{send}` for the bound sender of its topic.
"""

from typing import Final, NamedTuple


class Fragment(NamedTuple):
    """One line of the loop; `makes`: what those below find instead of what it found."""

    line: str
    makes: tuple[str, ...] = ()


FRAGMENTS: Final[dict[str, Fragment]] = {
    "rekey": Fragment("{new_key} = {encode_key}({key_of}({value}))", ("key",)),
    "forward": Fragment("{send}({key}, {raw}, {timestamp}, {headers})"),
}
"""rekey: the key that a function makes of the value. forward: the value's bytes as they came."""
