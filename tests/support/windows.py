"""Cost of a record in the stores by stream time, beside the same work on a dict.

    python -m tests.support.windows

Least CPU time of many runs, in ns a record, of the fragments in the stores' docstrings.
"""

import sys
from collections.abc import Callable
from functools import partial
from time import process_time
from timeit import timeit
from typing import Any

from streamsx.state.factory import make_store
from streamsx.state.layout import BUFFER, SESSION, WINDOW, Timing, time_bytes
from streamsx.state.memory import MemoryRows
from tests.support.timed import node_of

RECORDS = 20_000
KEYS = [b'"k%d"' % n for n in range(RECORDS)]
FEW = [KEYS[n % 500] for n in range(RECORDS)]
RUNS = 25
DAY = 86_400_000


def least(make: Callable[[], Any], run: Callable[[Any], object]) -> float:
    """Return the least duration of a run on a new object, in ns a record."""
    found = []
    for _ in range(RUNS):
        made = make()
        found.append(timeit(partial(run, made), timer=process_time, number=1))
    return min(found) / RECORDS * 1e9


def store_of(kind: str, timing: Timing) -> Any:
    return make_store(node_of("s", kind, timing), MemoryRows(), 1 << 26)


def on_dict(counts: dict[bytes, int], keys: list[bytes]) -> None:
    """Count on a dict by key, with the times that a window needs."""
    get, due, late, size, stays, now = counts.get, 1 << 62, 0, DAY, DAY, 1_000_000
    for at, key in enumerate(keys, 1_000_000):
        now = max(now, at)
        if now >= due:
            raise AssertionError
        start = at - at % size
        if start + stays <= now:
            late += 1
            continue
        value = get(key)
        counts[key] = 1 if value is None else value + 1


def in_windows(store: Any, keys: list[bytes]) -> None:
    hot, load, size, stays, now = store.hot, store.load, store.size, store.stays, 1_000_000
    get, pack, current, prefix = hot.get, time_bytes, -1, b""
    for at, key in enumerate(keys, 1_000_000):
        now = max(now, at)
        if now >= store.due:
            raise AssertionError
        start = at - at % size
        if start + stays <= now:
            continue
        if start != current:
            current, prefix = start, pack(start)
        row = prefix + key
        value = get(row)
        if value is None:
            value = load(row) or 0
        hot[row] = value + 1


def in_sessions(store: Any, keys: list[bytes]) -> None:
    hot, load, gap, stays, now = store.hot, store.load, store.size, store.stays, 1_000_000
    get = hot.get
    for at, key in enumerate(keys, 1_000_000):
        now = max(now, at)
        sessions = get(key)
        if sessions is None:
            sessions = load(key) or ()
        entry = sessions[0] if len(sessions) == 1 else None
        if entry and entry[0] - gap <= at <= entry[1] + gap and entry[1] + stays >= now:
            entry[2] += 1
            if at > entry[1]:
                entry[1] = at
            elif at < entry[0]:
                entry[0] = at
            hot[key] = sessions
        else:
            store.replace(key, sessions, store.near(sessions, at, now), [at, at, 1])


def into_buffer(store: Any, keys: list[bytes]) -> None:
    hot, load, size = store.hot, store.load, store.size
    get, pack = hot.get, time_bytes
    for at, key in enumerate(keys, 1_000_000):
        row = pack(at - at % size) + key
        entries = get(row)
        if entries is None:
            entries = load(row) or []
        if len(entries) >= 10_000:
            raise store.full(key)
        entries.append([at, False, at])
        hot[row] = entries


def from_buffer(store: Any, keys: list[bytes]) -> None:
    hot, peek, size, stays, now = store.hot, store.peek, store.size, store.stays, 1_000_000
    get, pack = hot.get, time_bytes
    for at, key in enumerate(keys, 1_000_000):
        low, high = at - 100, at + 100
        for start in range(max(0, low - low % size), high + 1, size):
            row = pack(start) + key
            entries = get(row)
            if entries is None:
                entries = peek(row) or ()
            for entry in entries:
                if low <= entry[0] <= high and entry[0] + stays >= now:
                    raise AssertionError


def filled(store: Any, run: Callable[[Any, list[bytes]], None]) -> Any:
    store.due = 1 << 62
    run(store, FEW)
    return store


def main() -> None:
    window = Timing(DAY, DAY, DAY)
    bare = least(dict, lambda counts: on_dict(counts, FEW))
    first = least(dict, lambda counts: on_dict(counts, KEYS))
    found = least(
        lambda: filled(store_of(WINDOW, window), in_windows), lambda s: in_windows(s, FEW)
    )
    new = least(lambda: filled(store_of(WINDOW, window), in_windows), lambda s: in_windows(s, KEYS))
    gap = Timing(DAY, 0, DAY)
    kept = least(lambda: filled(store_of(SESSION, gap), in_sessions), lambda s: in_sessions(s, FEW))
    begun = least(lambda: store_of(SESSION, gap), lambda s: in_sessions(s, KEYS))
    bucket = Timing(100, 0, 100)
    added = least(lambda: store_of(BUFFER, bucket), lambda s: into_buffer(s, KEYS))
    looked = least(lambda: store_of(BUFFER, bucket), lambda s: from_buffer(s, KEYS))
    lines = (
        f"dict: found {bare:.0f}, new {first:.0f}",
        f"window: found {found:.0f} (+{found - bare:.0f}), new {new:.0f} (+{new - first:.0f})",
        f"session: goes on {kept:.0f} (+{kept - bare:.0f}), begins {begun:.0f}",
        f"buffer: added {added:.0f}, looked up in three rows {looked:.0f}",
    )
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
