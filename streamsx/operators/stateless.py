"""Stateless steps as fragments of the generated loop. Functions come in as names, never as text.

A fragment reads the variables `{key}`, `{value}`, `{raw}`, `{timestamp}` and `{headers}` of one
record at its place in the tree; keys are bytes. A fragment writes only the variables listed in
`makes`, for instance `{new_key}`: they belong to the fragment, so that siblings in the tree do not
see them. `{name}` stands for a function of the operator, `{send}` for the bound sender of the
operator's topic.
"""

from typing import Final, NamedTuple


class Fragment(NamedTuple):
    """One line of the loop. `makes` are the names that the line redefines for steps below."""

    line: str
    makes: tuple[str, ...] = ()


FRAGMENTS: Final[dict[str, Fragment]] = {
    "rekey": Fragment("{new_key} = {encode_key}({key_of}({value}))", ("key",)),
    "forward": Fragment("{send}({key}, {raw}, {timestamp}, {headers})"),
}
"""`rekey` sets the key that a function derives from the value. `forward` sends the value's bytes
unchanged."""
