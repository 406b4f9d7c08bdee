"""Instance names that are not one worker's: what a user gave to workers of several directories.

Marks go by name, so who asks the one to leave asks them all. Two members of one directory are no
such case: the one is a process that died, and whose session is not over yet.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

DIGITS = 8
"""Of the id of a process: enough to tell two of them apart."""


class Bearer(NamedTuple):
    """A member, the name it has if any, and the id that stays with its state directory."""

    member: str
    instance: str | None
    process: str


def shared(bearers: Iterable[Bearer]) -> Mapping[str, frozenset[str]]:
    """Names that several directories have, with the ids of these."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for bearer in bearers:
        if bearer.instance is not None:
            found[bearer.instance].add(bearer.process)
    return {name: frozenset(those) for name, those in found.items() if len(those) > 1}


def labels(bearers: Iterable[Bearer]) -> Mapping[str, str]:
    """What to call each member: its name; NAME@PROCESS or NAME@MEMBER where that is not enough."""
    known = list(bearers)
    short = {b.member: (b.instance or b.member, b.process[:DIGITS]) for b in known}
    names = Counter(name for name, _ in short.values())
    pairs = Counter(short.values())
    return {
        member: name
        if names[name] == 1
        else f"{name}@{process if pairs[name, process] == 1 else member}"
        for member, (name, process) in short.items()
    }
