"""Flows in plain Python: a case's results, one record at a time, without any code of the product.

A case names its operators as `data/public.jsonl` does. `REFERENCE` has a function for each; a new
operator is a new entry. State is dicts, and nothing is forgotten before its time.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from tests.flows.expressions import evaluate, true

Case = Mapping[str, Any]
Emit = Callable[[Any, Any, int], None]
"""Receiver of a record: key, value, time in ms."""


class Windowed(NamedTuple):
    key: Any
    start: int
    end: int


class Given(NamedTuple):
    """Result: the index of the input that caused it, key, value and time in ms."""

    cause: int
    key: Any
    value: Any
    at_ms: int


@dataclass(eq=False)
class Node:
    """Records at one place of a flow; `sources` are the topics that they come from."""

    sources: frozenset[str]
    receivers: list[Emit] = field(default_factory=list)

    def emit(self, key: Any, value: Any, at: int) -> None:
        for receive in self.receivers:
            receive(key, value, at)

    def then(self, made: Callable[[Emit], Emit]) -> "Node":
        """Return the records that `made(emit)` makes of each record here."""
        node = Node(self.sources)
        self.receivers.append(made(node.emit))
        return node


@dataclass(eq=False)
class Keyed(Node):
    """Rows of a table beside its changes."""

    rows: dict[Any, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Clock:
    """Stream time of an operator; `close` passes on the results that are due."""

    sources: frozenset[str]
    now: int = -1
    close: Callable[[], None] = lambda: None


@dataclass
class World:
    """Operators of a case: clocks in the order of the flow, and counts of what was left out."""

    clocks: list[Clock] = field(default_factory=list)
    late: int = 0

    def clock(self, *nodes: Node) -> Clock:
        made = Clock(frozenset().union(*(node.sources for node in nodes)))
        self.clocks.append(made)
        return made


class Answer(NamedTuple):
    """Results of a case in order, and the number of late records."""

    results: list[Given]
    late: int


def answer(case: Case) -> Answer:
    """Return what a case gives."""
    world = World()
    made: dict[str, Any] = {}
    times: dict[str, Any] = {}
    for source in case["sources"]:
        topic = source["topic"]
        node = made[topic] = Node(frozenset({topic}))
        times[topic] = source.get("timestamp")
        if source["kind"] == "table":
            made[topic] = _to_table(world, {}, node)
            made[f"{topic} records"] = node
    for op in case["ops"]:
        found = [_named(made, name) for name in op["in"]]
        made[op["out"]] = REFERENCE[op["op"]](world, op, *found)
    results: list[Given] = []
    cause = -1
    _named(made, case["sink"]).receivers.append(
        lambda key, value, at: results.append(Given(cause, key, value, at))
    )
    for each in case["inputs"]:
        cause += 1
        topic, value, at = each["topic"], each["value"], each["ts"]
        if times[topic] is not None:
            at = evaluate(times[topic], v=value)
        for clock in world.clocks:
            if topic in clock.sources and at > clock.now:
                clock.now = at
                clock.close()
        made.get(f"{topic} records", made[topic]).emit(each["key"], value, at)
    return Answer(results, world.late)


def _named(made: Mapping[str, Any], name: str) -> Any:
    first, _, branch = name.partition(".")
    return made[first][branch] if branch else made[first]


# -- each record by itself


def _plain(key: Any) -> Any:
    return key._asdict() if isinstance(key, Windowed) else key


def _filter(_: World, op: Case, node: Node) -> Node:
    def made(emit: Emit) -> Emit:
        def take(key: Any, value: Any, at: int) -> None:
            if true(evaluate(op["fn"], v=value)):
                emit(key, value, at)

        return take

    return node.then(made)


def _map_values(_: World, op: Case, node: Node) -> Node:
    return node.then(
        lambda emit: lambda k, v, at: emit(k, evaluate(op["fn"], k=_plain(k), v=v), at)
    )


def _flat_map_values(_: World, op: Case, node: Node) -> Node:
    def made(emit: Emit) -> Emit:
        def take(key: Any, value: Any, at: int) -> None:
            for each in op["fn"]:
                emit(key, evaluate(each, k=_plain(key), v=value), at)

        return take

    return node.then(made)


def _branch(_: World, op: Case, node: Node) -> dict[str, Node]:
    names = [name for name, _ in op["branches"]]
    nodes = {name: Node(node.sources) for name in (*names, "rest")}

    def take(key: Any, value: Any, at: int) -> None:
        fits = (name for name, each in op["branches"] if true(evaluate(each, v=value)))
        nodes[next(fits, "rest")].emit(key, value, at)

    node.receivers.append(take)
    return nodes


def _merge(_: World, _op: Case, *nodes: Node) -> Node:
    made = Node(frozenset().union(*(node.sources for node in nodes)))
    for node in nodes:
        node.receivers.append(made.emit)
    return made


def _rekey(_: World, op: Case, node: Node) -> Node:
    def text(value: Any) -> Any:
        return value if value is None or isinstance(value, str) else str(value)

    return node.then(lambda emit: lambda _k, v, at: emit(text(evaluate(op["fn"], v=v)), v, at))


def _same(_: World, _op: Case, node: Node) -> Node:
    return node


# -- by key and window


class Fold(NamedTuple):
    """Aggregate: the first one, the step by a value, and the merge of two."""

    init: Any
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any]


def _fold(op: Case) -> Fold:
    def of(value: Any) -> Any:
        return evaluate(op.get("of", "$v"), v=value)

    def two(choose: Callable[[Any, Any], Any]) -> Fold:
        def both(a: Any, b: Any) -> Any:
            return b if a is None else a if b is None else choose(a, b)

        return Fold(None, lambda a, v: both(a, of(v)), both)

    return {
        "count": lambda: Fold(0, lambda n, _: n + 1, lambda a, b: a + b),
        "sum": lambda: two(lambda a, b: a + b),
        "min": lambda: two(min),
        "max": lambda: two(max),
        "collect": lambda: Fold([], lambda a, v: [*a, of(v)], lambda a, b: a + b),
    }[op["agg"]]()


def _aggregate(world: World, op: Case, node: Node) -> Node:
    kind = op["window"]["kind"] if "window" in op else ""
    if not kind:
        return _totals(op, node)
    return WINDOWS.get(kind, _windows)(world, op, node)


def _totals(op: Case, node: Node) -> Node:
    fold = _fold(op)
    table = Keyed(node.sources)

    def take(key: Any, value: Any, at: int) -> None:
        if key is not None and value is not None:
            total = table.rows[key] = fold.add(table.rows.get(key, fold.init), value)
            table.emit(key, total, at)

    node.receivers.append(take)
    return table


def _windows(world: World, op: Case, node: Node) -> Node:
    window, fold = op["window"], _fold(op)
    size = window["size"]
    step = window.get("step", size)
    stays = size + window.get("grace", 0)
    final = op.get("emit") == "final"
    out, clock = Node(node.sources), world.clock(node)
    counts: dict[tuple[int, Any], Any] = {}

    def close() -> None:
        for start, key in sorted(each for each in counts if each[0] + stays <= clock.now):
            value = counts.pop((start, key))
            if final:
                out.emit(Windowed(key, start, start + size), value, start + size - 1)

    def take(key: Any, value: Any, at: int) -> None:
        if key is None or value is None:
            return
        for start in range(max(0, (at - size) // step * step + step), at + 1, step):
            if start + stays <= clock.now:
                world.late += 1
                continue
            total = counts[start, key] = fold.add(counts.get((start, key), fold.init), value)
            if not final:
                out.emit(Windowed(key, start, start + size), total, at)

    clock.close = close
    node.receivers.append(take)
    return out


def _sessions(world: World, op: Case, node: Node) -> Node:
    window, fold = op["window"], _fold(op)
    gap = window["gap"]
    stays = gap + window.get("grace", 0)
    final = op.get("emit") == "final"
    out, clock = Node(node.sources), world.clock(node)
    live: dict[Windowed, Any] = {}

    def close() -> None:
        gone = [each for each in live if each.end + stays < clock.now]
        for session in sorted(gone, key=lambda each: (each.end, each.key)):
            value = live.pop(session)
            if final:
                out.emit(session, value, session.end)

    def take(key: Any, value: Any, at: int) -> None:
        if key is None or value is None:
            return
        near = [s for s in live if s.key == key and s.start - gap <= at <= s.end + gap]
        near.sort(key=lambda each: each.start)
        start = min([at, *(each.start for each in near)])
        made = Windowed(key, start, max([at, *(each.end for each in near)]))
        if made.end + stays < clock.now:
            world.late += 1
            return
        total = fold.init
        for each in near:
            total = fold.merge(total, live.pop(each))
            if each != made and not final:
                out.emit(each, None, at)
        live[made] = fold.add(total, value)
        if not final:
            out.emit(made, live[made], at)

    clock.close = close
    node.receivers.append(take)
    return out


class Sliding:
    """Sliding windows: each value is computed anew, from all records of the key."""

    def __init__(self, world: World, op: Case, node: Node) -> None:
        self.world = world
        self.fold = _fold(op)
        self.size = op["window"]["size"]
        self.stays = op["window"].get("grace", 0)
        self.final = op.get("emit") == "final"
        self.out = Node(node.sources)
        self.clock = world.clock(node)
        self.clock.close = self.close
        self.records: dict[Any, list[tuple[int, Any]]] = {}
        self.made: dict[Any, set[int]] = {}
        self.open: set[Windowed] = set()
        node.receivers.append(self.take)

    def close(self) -> None:
        gone = [each for each in self.open if each.end + self.stays < self.clock.now]
        for window in sorted(gone, key=lambda each: (each.end, each.key)):
            self.open.remove(window)
            if self.final:
                self.out.emit(window, self.value(window), window.end)

    def value(self, window: Windowed) -> Any:
        total = self.fold.init
        for at, value in self.records[window.key]:
            if window.start <= at <= window.end:
                total = self.fold.add(total, value)
        return total

    def starts(self, key: Any) -> set[int]:
        times = {at for at, _ in self.records[key]}
        ahead = {max(0, at - self.size) for at in times}
        return ahead | {
            at + 1 for at in times if any(at < each <= at + 1 + self.size for each in times)
        }

    def take(self, key: Any, value: Any, at: int) -> None:
        if key is None or value is None:
            return
        if at + self.size + self.stays < self.clock.now:
            self.world.late += 1
            return
        self.records.setdefault(key, []).append((at, value))
        before = self.made.get(key, set())
        made = self.made[key] = before | self.starts(key)
        for start in sorted(made):
            window = Windowed(key, start, start + self.size)
            is_open = window.end + self.stays >= self.clock.now
            if is_open and (start not in before or start <= at <= window.end):
                self.open.add(window)
                if not self.final:
                    self.out.emit(window, self.value(window), at)


# -- tables and joins


def _to_table(_: World, _op: Case, node: Node) -> Keyed:
    table = Keyed(node.sources)

    def take(key: Any, value: Any, at: int) -> None:
        if key is None:
            return
        table.rows[key] = value
        table.emit(key, value, at)

    node.receivers.append(take)
    return table


@dataclass(eq=False)
class Row:
    """Record in the buffer of a join."""

    key: Any
    value: Any
    at: int
    matched: bool = False


def _join(world: World, op: Case, left: Node, right: Node) -> Node:
    if "before" not in op:
        return _lookup(op, left, right)
    return StreamJoin(world, op, left, right).out


def _lookup(op: Case, left: Node, table: Any) -> Node:
    expression = op.get("fn", {"l": "$l", "r": "$r"})

    def made(emit: Emit) -> Emit:
        def take(key: Any, value: Any, at: int) -> None:
            if value is None or (key is None and op["kind"] == "inner"):
                return
            found = None if key is None else table.rows.get(key)
            if found is not None or op["kind"] == "left":
                emit(key, evaluate(expression, l=value, r=found), at)

        return take

    return left.then(made)


class StreamJoin:
    """Join of two streams; sides are `l` and `r`.

    A side's reach is how much earlier and later than its record the other's may be.
    """

    def __init__(self, world: World, op: Case, left: Node, right: Node) -> None:
        self.world = world
        self.expression = op.get("fn", {"l": "$l", "r": "$r"})
        self.grace = op["grace"]
        self.reach = {"l": (op["before"], op["after"]), "r": (op["after"], op["before"])}
        self.alone = {"inner": "", "left": "l", "outer": "lr"}[op["kind"]]
        self.seen: dict[str, list[Row]] = {"l": [], "r": []}
        self.out = Node(left.sources | right.sources)
        self.clock = world.clock(left, right)
        self.clock.close = self.close
        left.receivers.append(partial(self.take, "l"))
        right.receivers.append(partial(self.take, "r"))

    def closed(self, side: str, at: int) -> bool:
        return bool(at + self.reach[side][1] + self.grace < self.clock.now)

    def pair(self, side: str, mine: Any, other: Any) -> Any:
        one, two = (mine, other) if side == "l" else (other, mine)
        return evaluate(self.expression, l=one, r=two)

    def close(self) -> None:
        gone = [(r.at, side, r.key, r) for side in "lr" for r in self.seen[side]]
        gone = [each for each in gone if self.closed(each[1], each[0])]
        for at, side, key, row in sorted(gone, key=lambda each: each[:3]):
            self.seen[side].remove(row)
            if side in self.alone and not row.matched:
                self.out.emit(key, self.pair(side, row.value, None), at)

    def take(self, side: str, key: Any, value: Any, at: int) -> None:
        if value is None:
            return
        if key is None:
            if side in self.alone:
                self.out.emit(key, self.pair(side, value, None), at)
            return
        if self.closed(side, at):
            self.world.late += 1
            return
        back, ahead = self.reach[side]
        there = self.seen["r" if side == "l" else "l"]
        fits = [r for r in there if r.key == key and at - back <= r.at <= at + ahead]
        fits.sort(key=lambda row: row.at)
        self.seen[side].append(Row(key, value, at, bool(fits)))
        for row in fits:
            row.matched = True
            self.out.emit(key, self.pair(side, value, row.value), max(at, row.at))


WINDOWS: Mapping[str, Callable[[World, Case, Node], Node]] = {
    "session": _sessions,
    "sliding": lambda world, op, node: Sliding(world, op, node).out,
}
"""Kinds of windows that are neither tumbling nor hopping."""
REFERENCE: Mapping[str, Callable[..., Any]] = {
    "filter": _filter,
    "map_values": _map_values,
    "flat_map_values": _flat_map_values,
    "branch": _branch,
    "merge": _merge,
    "rekey": _rekey,
    "group_by": _rekey,
    "group_by_key": _same,
    "aggregate": _aggregate,
    "join": _join,
    "to_table": _to_table,
    "to_flow": _same,
}
"""Operators by the names of cases: a function of the world, the operator and what it reads."""
