"""Shrinking of a failing seed to the faults that its failure needs.

The seed is played without some of its faults: halves, quarters and so on, down to single faults.
Faults that are not needed stay out. A try fails only if the same rule is broken. The faults that
are left give another story, and need not be the smallest set.

Not here: the faults themselves (`faults`), playing a seed (`world`).
"""

from collections.abc import Callable

Without = frozenset[int]
"""Type of the numbers of faults that do not strike."""


def needed(count: int, fails: Callable[[Without], bool], tries: int) -> list[int]:
    """Return the faults, of `count`, that a failure needs, after at most `tries` tries."""
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
