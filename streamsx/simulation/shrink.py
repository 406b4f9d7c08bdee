"""The shortest story that still fails: the faults that it needs, and no other.

A seed's faults are tried without, by halves, quarters and so on down to single ones, and what is
not needed stays out. A try fails only if the same rule is broken; what is left is another story,
and need not be the least there is.

Not here: what a fault is (`faults`), playing a seed (`world`).
"""

from collections.abc import Callable

Without = frozenset[int]
"""Numbers of the faults that do not strike."""


def needed(count: int, fails: Callable[[Without], bool], tries: int) -> list[int]:
    """Of `count` faults those that a failure needs, after so many tries at most."""
    kept = list(range(count))
    size = max(1, count // 2)
    everything = frozenset(kept)
    while tries and kept:
        at = 0
        gone = False
        while at < len(kept) and tries:
            rest = kept[:at] + kept[at + size :]
            tries -= 1
            if fails(everything.difference(rest)):
                kept = rest
                gone = True
            else:
                at += size
        if size == 1 and not gone:
            break
        size = max(1, size // 2)
    return kept
