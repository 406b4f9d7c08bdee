"""Results that the flows of the simulated app must give, in plain Python: no store, no operator.

The input is a partition of the topic of words, in the order of its log. The log decides stream
time, and so the records that are late: whoever reads it gives the same results. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from streamsx.simulation.apps import is_odd
from streamsx.simulation.scene import GRACE_MS, WINDOW_MS, WITHIN_MS

Word = tuple[str, int]
"""Word and time in ms."""


class JoinedWord(NamedTuple):
    """Result of the join; `matched`: whether it has a right side."""

    word: str
    matched: bool
    at_ms: int


def windows(words: Iterable[Word]) -> Counter[Word]:
    """Return the count of each window that has closed, by word and start."""
    now = -1
    counts = Counter[Word]()
    for word, at in words:
        now = max(now, at)
        start = at - at % WINDOW_MS
        if start + WINDOW_MS + GRACE_MS > now:
            counts[word, start] += 1
    closed = {each: n for each, n in counts.items() if each[1] + WINDOW_MS + GRACE_MS <= now}
    return Counter(closed)


def pairs(words: Iterable[Word]) -> Counter[JoinedWord]:
    """Return the results of the join: words with odd ones, and those that had no match."""
    now = -1
    left = defaultdict[str, list[int]](list)
    right = defaultdict[str, list[int]](list)
    found = Counter[JoinedWord]()
    for word, at in words:
        now = max(now, at)
        if _closed(at, now):
            continue
        if not is_odd(word):
            left[word].append(at)
            continue
        times = (at, *left[word])
        found.update(JoinedWord(word, True, max(at, each)) for each in _open(right[word], at, now))
        found.update(JoinedWord(word, True, max(at, each)) for each in _open(times, at, now))
        left[word].append(at)
        right[word].append(at)
    alone = ((w, at) for w, times in left.items() if not is_odd(w) for at in times)
    found.update(JoinedWord(word, False, at) for word, at in alone if _closed(at, now))
    return found


def _closed(at: int, now: int) -> bool:
    return at + WITHIN_MS + GRACE_MS < now


def _open(times: Iterable[int], at: int, now: int) -> list[int]:
    """Return the times that match, of records that have not closed."""
    return [each for each in times if abs(each - at) <= WITHIN_MS and not _closed(each, now)]
