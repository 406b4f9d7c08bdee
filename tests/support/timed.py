"""Operators in plain Python over the stores by stream time, and the same operators on dicts.

The operators are the fragments of the stores' docstrings. `Life` runs one in any cut of commits,
with restarts, restores and kills. The models know no store.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from streamsx.serde.codec import table_codec, table_key_codec
from streamsx.state.api import INDEX, ROW, Rows
from streamsx.state.factory import STORES
from streamsx.state.framed import second_times
from streamsx.state.join_buffer import JoinBuffer
from streamsx.state.layout import BUFFER, SESSION, WINDOW, StoreNode, Timing, time_bytes
from streamsx.state.session_store import SessionStore
from streamsx.state.timed_store import TimedStore
from streamsx.state.window_store import WindowStore
from streamsx.tasks import store_restore

Record = tuple[str, bytes, Any, int]
"""Source, key, value, time in ms."""
Result = tuple[Any, ...]


def node_of(name: str, kind: str, timing: Timing) -> StoreNode:
    return StoreNode(
        name, f"{name}-log", table_key_codec(str), table_codec(None), kind=kind, timing=timing
    )


# -- operators, each a function of its stores and a record


class Operator:
    """Operator with its stores; `now` is its stream time."""

    nodes: tuple[StoreNode, ...]

    def step(self, stores: Sequence[Any], record: Record, now: int) -> Iterator[list[Result]]:
        """Yield the results of a record in slices; a pause may follow each."""
        raise NotImplementedError

    def model(self, records: Sequence[Record]) -> list[Result]:
        raise NotImplementedError


@dataclass
class Counting(Operator):
    """Count by tumbling or hopping windows: results when windows close, else none."""

    size: int
    hop: int
    grace: int
    limit: int
    final: bool = True
    nodes: tuple[StoreNode, ...] = field(init=False)

    def __post_init__(self) -> None:
        timing = Timing(self.size, self.hop, self.size + self.grace)
        self.nodes = (node_of("counts", WINDOW, timing),)

    def step(self, stores: Sequence[Any], record: Record, now: int) -> Iterator[list[Result]]:
        store = stores[0]
        _, key, _, at = record
        if now >= store.due:
            if self.final:
                yield from store.close(now, self.limit)
            else:
                for _ in store.drop(now, self.limit):
                    yield []
        hot = store.hot
        for start in self.starts(at):
            if start + store.stays <= now:
                continue
            row = time_bytes(start) + key
            total = hot.get(row)
            if total is None:
                total = store.load(row) or 0
            hot[row] = total + 1
            if not self.final:
                yield [(start, key, total + 1)]

    def starts(self, at: int) -> range:
        first = max(0, (at - self.size) // self.hop * self.hop + self.hop)
        return range(first, at + 1, self.hop)

    def model(self, records: Sequence[Record]) -> list[Result]:
        counts: dict[tuple[int, bytes], int] = {}
        out: list[Result] = []
        now = -1
        for _, key, _, at in records:
            now = max(now, at)
            closed = sorted(w for w in counts if w[0] + self.size + self.grace <= now)
            for window in closed:
                count = counts.pop(window)
                if self.final:
                    out.append((*window, count))
            for start in self.starts(at):
                if start + self.size + self.grace > now:
                    counts[start, key] = counts.get((start, key), 0) + 1
                    if not self.final:
                        out.append((start, key, counts[start, key]))
        return out


@dataclass
class Sessions(Operator):
    """Count by sessions, with results when they close."""

    gap: int
    grace: int
    limit: int
    nodes: tuple[StoreNode, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = (node_of("visits", SESSION, Timing(self.gap, 0, self.gap + self.grace)),)

    def step(self, stores: Sequence[Any], record: Record, now: int) -> Iterator[list[Result]]:
        store = stores[0]
        _, key, _, at = record
        if now >= store.due:
            yield from store.close(now, self.limit)
        gap, stays = store.size, store.stays
        sessions = store.hot.get(key)
        if sessions is None:
            sessions = store.load(key) or ()
        entry = sessions[0] if len(sessions) == 1 else None
        joins = entry and entry[0] - gap <= at <= entry[1] + gap and entry[1] + stays >= now
        if entry and joins:
            entry[2] += 1
            if at > entry[1]:
                entry[1] = at
            elif at < entry[0]:
                entry[0] = at
            store.hot[key] = sessions
        elif not (merged := store.near(sessions, at, now)) and at + stays < now:
            return
        else:
            start = min(at, merged[0][0]) if merged else at
            end = max([at, *(each[1] for each in merged)])
            count = 1 + sum(each[2] for each in merged)
            store.replace(key, sessions, merged, [start, end, count])

    def model(self, records: Sequence[Record]) -> list[Result]:
        live: dict[bytes, list[tuple[int, int, int]]] = defaultdict(list)
        out: list[Result] = []
        now, stays = -1, self.gap + self.grace
        for _, key, _, at in records:
            now = max(now, at)
            gone = [(s, e, k, n) for k, each in live.items() for s, e, n in each if e + stays < now]
            out += sorted(gone, key=lambda each: (each[1], each[2]))
            for k in live:
                live[k] = [each for each in live[k] if each[1] + stays >= now]
            near = [s for s in live[key] if s[0] - self.gap <= at <= s[1] + self.gap]
            if near or at + stays >= now:
                live[key] = [each for each in live[key] if each not in near]
                start = min([at, *(s[0] for s in near)])
                end = max([at, *(s[1] for s in near)])
                live[key].append((start, end, 1 + sum(s[2] for s in near)))
        return out


@dataclass
class Joining(Operator):
    """Join of the streams l and r; `outer`: sides whose records without a match give a result."""

    before: int
    after: int
    grace: int
    limit: int
    outer: str
    nodes: tuple[StoreNode, ...] = field(init=False)

    def __post_init__(self) -> None:
        size = max(self.before, self.after)
        self.nodes = (
            node_of("left", BUFFER, Timing(size, 0, self.after + self.grace)),
            node_of("right", BUFFER, Timing(size, 0, self.before + self.grace)),
        )

    def step(self, stores: Sequence[Any], record: Record, now: int) -> Iterator[list[Result]]:
        for side, store in zip("lr", stores, strict=True):
            if now < store.due:
                continue
            if side in self.outer:
                for part in store.close(now, self.limit):
                    yield [(side, key, value, None, at) for at, key, value in part]
            else:
                for _ in store.drop(now, self.limit):
                    yield []
        side, key, value, at = record
        own: JoinBuffer = stores["lr".index(side)]
        other: JoinBuffer = stores["rl".index(side)]
        if at + own.stays < now:
            return
        found = self._found(other, side, key, at, now)
        yield [("b", key, value, each[2], max(at, each[0])) for each in found]
        row = time_bytes(at - at % own.size) + key
        entries = own.hot.get(row)
        if entries is None:
            entries = own.load(row) or []
        entries.append([at, bool(found), value])
        own.hot[row] = entries
        if at < own.horizon and not found:
            own.note(at, key, len(entries) - 1)

    def _found(self, other: JoinBuffer, side: str, key: bytes, at: int, now: int) -> list[Any]:
        low, high = self.reach(side, at)
        found = []
        for start in range(max(0, low - low % other.size), high + 1, other.size):
            row = time_bytes(start) + key
            entries = other.hot.get(row)
            if entries is None:
                entries = other.peek(row) or ()
            for entry in entries:
                if low <= entry[0] <= high and entry[0] + other.stays >= now:
                    found.append(entry)
                    if not entry[1] and self.outer:
                        entry[1] = True
                        other.hot[row] = entries
        if len(found) > 1:
            found.sort(key=itemgetter(0))
        return found

    def reach(self, side: str, at: int) -> tuple[int, int]:
        """Return the times of the other side's records that match."""
        before, after = (self.before, self.after) if side == "l" else (self.after, self.before)
        return at - before, at + after

    def model(self, records: Sequence[Record]) -> list[Result]:
        stays = {"l": self.after + self.grace, "r": self.before + self.grace}
        seen: dict[str, list[list[Any]]] = {"l": [], "r": []}
        out: list[Result] = []
        now = -1
        for side, key, value, at in records:
            now = max(now, at)
            for one in "lr":
                gone = [each for each in seen[one] if each[0] + stays[one] < now]
                seen[one] = [each for each in seen[one] if each[0] + stays[one] >= now]
                if one in self.outer:
                    gone.sort(key=itemgetter(0, 1))
                    out += [(one, k, v, None, t) for t, k, v, matched in gone if not matched]
            if at + stays[side] < now:
                continue
            low, high = self.reach(side, at)
            other = seen["r" if side == "l" else "l"]
            found = [each for each in other if each[1] == key and low <= each[0] <= high]
            found.sort(key=itemgetter(0))
            for each in found:
                each[3] = True
                out.append(("b", key, value, each[2], max(at, each[0])))
            seen[side].append([at, key, value, bool(found)])
        return out


# -- a task's life

CRASHES = ("abort", "restart", "restore", "kill", "refused")
"""Ends of an interval without its commit: the stores go back and stay; they are opened anew, on
their rows or on restored ones; its rows are in the changelogs, and its offsets nowhere; its commit
comes with the next one."""


class Life:
    """Task with one operator, from commit to commit.

    `rows`: makes empty rows for a store; `make`: classes of stores by kind, those of the factory if
    none are planted; `crashes`: kinds of crashes; `forgets`: nothing is resumed.
    """

    def __init__(
        self,
        operator: Operator,
        rows: Callable[[str], Rows],
        budget_bytes: int,
        draw: random.Random,
        planted: dict[str, Any] | None = None,
        *,
        crashes: Sequence[str] = CRASHES,
        forgets: bool = False,
    ) -> None:
        self.operator = operator
        self.make_rows = rows
        self.budget_bytes = budget_bytes
        self.draw = draw
        self.crashes = crashes
        self.forgets = forgets
        self.make = STORES | (planted or {})
        self.logs: list[list[tuple[bytes, bytes | None]]] = [[] for _ in operator.nodes]
        self.rows = [rows(node.name) for node in operator.nodes]
        self.at = 0
        self.now = -1
        self.out: list[Result] = []
        self.committed: Any = (0, -1, [-1] * len(operator.nodes), 0, [0] * len(operator.nodes))
        self.kills = 0
        self.begin()

    def begin(self) -> None:
        self.at, self.now, closed, self.sent, _ = self.committed
        self.stores = list[TimedStore]()
        for node, rows, until in zip(self.operator.nodes, self.rows, closed, strict=True):
            store = self.make[node.kind](node, rows, self.budget_bytes)
            store.resume(-1 if self.forgets else until)
            self.stores.append(store)

    def run(self, records: Sequence[Record], crash: float, commit: float = 0.1) -> None:
        while self.at < len(records):
            if self.draw.random() < crash:
                self.crash()
                continue
            record = records[self.at]
            self.now = max(self.now, record[3])
            for part in self.operator.step(self.stores, record, self.now):
                self.out += part
                self.write(self.draw.randrange(0, 3))
            self.at += 1
            if self.draw.random() < 0.1:
                for store in self.stores:
                    store.preload_some(3)
            if self.draw.random() < commit:
                self.commit()
        for _ in range(4):
            self.commit()

    def write_all(self) -> None:
        for store in self.stores:
            while not store.write_some(5):
                pass

    def write(self, rows: int) -> None:
        if rows:
            for store in self.stores:
                store.write_some(rows)

    def seal(self) -> Any:
        """Write the whole interval to the changelogs, and return what its commit will say."""
        self.write_all()
        closed = [store.closed for store in self.stores]
        limit = self.draw.randrange(1, 9)
        for store, log in zip(self.stores, self.logs, strict=True):
            while (part := store.seal(limit)).keys:
                log.extend(zip(part.keys, part.values, strict=True))
        return self.at, self.now, closed, len(self.out), list(map(len, self.logs))

    def commit(self) -> None:
        self.committed = self.seal()
        for store, end in zip(self.stores, self.committed[4], strict=True):
            store.adopt(end)
        if self.draw.random() < 0.5:
            self.write_all()
            self.check()

    def crash(self) -> None:
        """Go on after the last commit: on the same rows, on restored ones, or after a kill."""
        how = self.draw.choice(self.crashes)
        if how == "abort":
            for store in self.stores:
                store.aborted()
            self.at, self.now, _, self.sent, _ = self.committed
            del self.out[self.sent :]
            self.cut()
            return
        if how == "refused":  # the changelogs have a sealed interval, its offsets come later
            self.seal()
            return
        if how == "kill":
            self.kills += 1
            self.seal()
            self.committed = (*self.committed[:3], len(self.out), list(map(len, self.logs)))
            self.restore()
        else:
            del self.out[self.committed[3] :]
            self.cut()
            if how == "restore":
                self.restore()
            else:
                self.catch_up()
        self.begin()

    def cut(self) -> None:
        """Take back rows that were sealed and never committed."""
        for log, end in zip(self.logs, self.committed[4], strict=True):
            del log[end:]

    def restore(self) -> None:
        """Rebuild the rows from the changelogs."""
        self.rows = [self.make_rows(node.name) for node in self.operator.nodes]
        self.catch_up()

    def catch_up(self) -> None:
        """Read the changelogs from the positions of the rows on."""
        for node, rows, log in zip(self.operator.nodes, self.rows, self.logs, strict=True):
            left = log[rows.position() or 0 :]
            keys = node.local_keys([key for key, _ in left])
            newest = store_restore.newest(keys, [value for _, value in left])
            rows.write(node.indexed(newest), len(log))

    def check(self) -> None:
        """Check that a store equals its changelog up to its position, and that each session has a
        hint.
        """
        for node, rows, log in zip(self.operator.nodes, self.rows, self.logs, strict=True):
            keys = node.local_keys([key for key, _ in log])
            newest = dict(zip(keys, (value for _, value in log), strict=True))
            there = dict(rows.scan(ROW, INDEX))
            held = {key: raw for key, raw in newest.items() if raw is not None}
            assert there == held, (node.name, sorted(there.items() ^ held.items())[:4])
            if log:
                assert rows.position() == len(log), node.name
            if node.kind != SESSION:
                continue
            hints = defaultdict(list)
            for row, _ in rows.scan(INDEX, b"\x03"):
                hints[row[9:]].append(int.from_bytes(row[1:9], "big"))
            for row, raw in there.items():
                for end in second_times(raw):
                    assert any(hint <= end for hint in hints[row[1:]]), (row, end)


def inputs(draw: random.Random, count: int) -> list[Record]:
    """Draw records of two sources, out of order, with gaps in time."""
    keys, disorder, step = draw.choice([1, 5, 40]), draw.choice([1, 60, 500]), 12
    at = draw.choice([0, 1_000_000])
    made: list[Record] = []
    for n in range(count):
        at += draw.randrange(0, step)
        if draw.random() < 0.01:
            at += 40 * step
        when = max(0, at - (draw.randrange(disorder) if draw.random() < 0.3 else 0))
        made.append((draw.choice("lr"), b'"k%d"' % draw.randrange(keys), n, when))
    return made


# -- planted faults


class WithItsCommit(TimedStore):
    """Planted fault: rows are deleted with the commit that closes them."""

    def _begin_seal(self) -> None:
        self._owed.update(self._ended)
        self._owed_to = self._deletable(self._cursor)
        self._ended = {}
        super()._begin_seal()


class WindowsWithTheirCommit(WithItsCommit, WindowStore):
    pass


class SessionsWithTheirCommit(WithItsCommit, SessionStore):
    def _drop_rows(self, rows: list[bytes]) -> Any:
        kept, self._given = self._given, self.closed
        part = super()._drop_rows(rows)
        self._given = kept
        return part
