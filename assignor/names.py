"""Instance names that several workers share: one user gave them to workers of several directories.

Marks go by instance name, so a request for one worker to leave reaches all workers of that name.
Two members of one directory do not share a name: one of them is a dead process whose session has
not ended yet.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from streamsx.assignor.model import MemberMetadata

DIGITS = 8
"""Leading digits of a process id, enough to distinguish two processes."""


def shared(members: Iterable[MemberMetadata]) -> Mapping[str, frozenset[str]]:
    """Return the names that several directories have, with the process ids of these directories."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for member in members:
        if member.instance is not None:
            found[member.instance].add(member.process)
    return {name: frozenset(those) for name, those in found.items() if len(those) > 1}


def labels(members: Iterable[MemberMetadata]) -> Mapping[str, str]:
    """Return a label for each member: NAME, or NAME@PROCESS or NAME@MEMBER if names collide."""
    short = {m.id: (m.instance or m.id, m.process[:DIGITS]) for m in members}
    names = Counter(name for name, _ in short.values())
    pairs = Counter(short.values())
    return {
        member: name
        if names[name] == 1
        else f"{name}@{process if pairs[name, process] == 1 else member}"
        for member, (name, process) in short.items()
    }
