"""Instance names that are not one worker's: what a user gave to workers of several directories.

Marks go by name, so who asks the one to leave asks them all. Two members of one directory are no
such case: the one is a process that died, and whose session is not over yet.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from streamsx.assignor.model import MemberMetadata

DIGITS = 8
"""Of the id of a process: enough to tell two of them apart."""


def shared(members: Iterable[MemberMetadata]) -> Mapping[str, frozenset[str]]:
    """Names that several directories have, with the ids of these."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for member in members:
        if member.instance is not None:
            found[member.instance].add(member.process)
    return {name: frozenset(those) for name, those in found.items() if len(those) > 1}


def labels(members: Iterable[MemberMetadata]) -> Mapping[str, str]:
    """What to call each member: its name; NAME@PROCESS or NAME@MEMBER where that is not enough."""
    short = {m.id: (m.instance or m.id, m.process[:DIGITS]) for m in members}
    names = Counter(name for name, _ in short.values())
    pairs = Counter(short.values())
    return {
        member: name
        if names[name] == 1
        else f"{name}@{process if pairs[name, process] == 1 else member}"
        for member, (name, process) in short.items()
    }
