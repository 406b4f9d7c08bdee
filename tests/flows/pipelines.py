"""Random pipelines as cases, with random inputs: one to five operators of `OPERATORS`' names.

A pipeline reads stream `a`, and may join or merge stream `b`, or join table `t`. Inputs of several
topics stand in the order in which a task takes them: by the running maximum of the times. So a
task that has all inputs before the first gives the results of one that gets input by input.
"""

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.flows.cases import Result, result_of
from tests.flows.reference import Case, Given, Windowed

LETTERS = "pqr"


@dataclass
class Drawing:
    """Pipeline being drawn. `at` names the last operator; `number` is the path of a number."""

    draw: random.Random
    sources: list[dict[str, Any]] = field(default_factory=list)
    ops: list[dict[str, Any]] = field(default_factory=list)
    at: str = "a"
    number: str = "$v.n"
    maybe_null: bool = False
    windowed: bool = False

    def source(self, topic: str, kind: str = "stream") -> None:
        self.sources.append({"topic": topic, "kind": kind})

    def op(self, op: str, *others: str, **fields: Any) -> None:
        name = f"{op.replace('_', '-')}-{len(self.ops)}"
        self.ops.append({"out": name, "op": op, "in": [self.at, *others], **fields})
        self.at = name

    def stateless(self) -> None:
        self.draw.choice(STATELESS)(self)


def _filter(d: Drawing) -> None:
    d.op("filter", fn=[d.draw.choice([">", "<", ">="]), d.number, d.draw.randrange(2, 8)])
    d.maybe_null = False


def _map_values(d: Drawing) -> None:
    fields = {"n": ["+", d.number, d.draw.randrange(3)], "c": "$v.c" if d.number == "$v.n" else "p"}
    d.op("map_values", fn=fields)
    d.number = "$v.n"
    d.maybe_null = True


def _flat_map_values(d: Drawing) -> None:
    d.op("flat_map_values", fn=[{"n": d.number, "c": "$v.c"}, {"n": d.draw.randrange(9), "c": "q"}])
    d.number = "$v.n"
    d.maybe_null = True


def _branch_and_merge(d: Drawing) -> None:
    d.op("branch", branches=[["low", ["<", d.number, 4]], ["even", ["==", ["%", d.number, 2], 0]]])
    first = d.at
    one, two = d.draw.sample(["low", "even", "rest"], 2)
    d.at = f"{first}.{one}"
    d.op("merge", f"{first}.{two}")


STATELESS: tuple[Callable[[Drawing], None], ...] = (
    _filter, _map_values, _flat_map_values, _branch_and_merge,
)  # fmt: skip


# -- operators with state


def _aggregate(d: Drawing, window: dict[str, Any] | None = None, emits: str = "uc") -> None:
    agg = d.draw.choice(["count", "sum", "min", "max", "collect"])
    if agg not in ("count", "collect") and d.maybe_null:
        d.op("filter", fn=[">=", d.number, 0])
    fields: dict[str, Any] = {} if agg == "count" else {"of": d.number}
    if window is not None:
        fields["window"] = window
    emit = {"u": "update", "c": "commit", "f": "final"}[d.draw.choice(emits)]
    d.op("group_by_key")
    d.op("aggregate", agg=agg, emit=emit, **fields)
    d.number = "$v" if agg != "collect" else "none"
    d.windowed = window is not None


def _sizes(d: Drawing, kind: str) -> dict[str, Any]:
    size = d.draw.choice([50, 100, 1000])
    window: dict[str, Any] = {"kind": kind, "grace": d.draw.choice([0, 30, 300])}
    if kind == "session":
        return {**window, "gap": d.draw.choice([20, 60])}
    if kind == "hopping":
        window["step"] = d.draw.choice([size // 2, size // 5])
    return {**window, "size": size}


def _totals(d: Drawing) -> None:
    _aggregate(d)


def _tumbling(d: Drawing) -> None:
    _aggregate(d, _sizes(d, "tumbling"), "uff")


def _hopping(d: Drawing) -> None:
    _aggregate(d, _sizes(d, "hopping"), "uff")


def _session(d: Drawing) -> None:
    _aggregate(d, _sizes(d, "session"), "uff")


def _sliding(d: Drawing) -> None:
    _aggregate(d, _sizes(d, "sliding"), "uff")


def _join_streams(d: Drawing) -> None:
    d.source("b")
    before, after = d.draw.choice([(20, 20), (100, 100), (0, 50), (70, 20)])
    kind = d.draw.choice(["inner", "left", "outer"])
    times = {"before": before, "after": after, "grace": d.draw.choice([0, 50])}
    d.op("join", "b", kind=kind, **times)
    d.number = "$v.l" if d.number == "$v" else "$v.l.n"
    d.maybe_null = True


def _join_table(d: Drawing) -> None:
    d.source("t", "table")
    d.op("join", "t", kind=d.draw.choice(["inner", "left"]))
    d.number = "$v.l" if d.number == "$v" else "$v.l.n"
    d.maybe_null = True


def _merge_streams(d: Drawing) -> None:
    d.source("b")
    d.op("merge", "b")
    d.maybe_null = True
    d.draw.choice([_totals, _tumbling, _session])(d)


def _to_table(d: Drawing) -> None:
    d.op("to_table")
    d.op("to_flow")


UNTIMED = (_totals, _join_table, _to_table)
TIMED = (_tumbling, _hopping, _session, _sliding, _join_streams, _merge_streams)
"""The last one is left out behind a topic in between: its time would be that of the slower stream.
"""
LAST = {"tumbling": _tumbling, "hopping": _hopping, "session": _session, "join": _join_streams}
"""Operators whose results are judged after a kill."""


def drawn(draw: random.Random) -> Case:
    """Return a pipeline with its inputs."""
    d = Drawing(draw)
    d.source("a")
    timed = draw.random() < 0.7
    rekeys = draw.random() < 0.3
    for _ in range(draw.choice([0, 0, 1, 2])):
        d.stateless()
    if rekeys:
        d.op("rekey", fn=["%", d.number, 3] if draw.random() < 0.5 else "$v.c")
    if timed:
        draw.choice(TIMED[:-1] if rekeys else TIMED)(d)
    elif draw.random() < 0.9:
        draw.choice(UNTIMED)(d)
    _after(d)
    return _case(d)


def _after(d: Drawing) -> None:
    """Draw what follows: more values, and totals of the results by another key."""
    last = d.ops[-1] if d.ops else {}
    if last.get("emit") == "commit" or d.number == "none" or d.draw.random() < 0.5:
        return
    if last.get("op") == "aggregate":
        d.op("to_flow")
    d.draw.choice([_filter, _map_values])(d)
    if d.draw.random() < 0.5:
        d.op("rekey", fn=["%", d.number, 3])
        d.windowed = False
        _totals(d)


def drawn_for_kills(draw: random.Random, last: str) -> Case:
    """Return a pipeline with one operator by stream time, whose counts show what is repeated."""
    d = Drawing(draw)
    d.source("a")
    if draw.random() < 0.5:
        _filter(d)
    if last == "join":
        _join_streams(d)
    else:
        d.op("group_by_key")
        d.op("aggregate", agg="count", emit="final", window=_sizes(d, last))
    return _case(d)


# -- inputs


def _case(d: Drawing) -> Case:
    if not d.ops:
        d.op("filter", fn=[">=", d.number, 0])
    names = [each["topic"] for each in d.sources]
    records = {topic: _records(d, d.draw.randrange(20, 90)) for topic in names}
    return {
        "sources": d.sources,
        "ops": d.ops,
        "sink": d.at,
        "inputs": list(in_order(records)),
    }


def _records(d: Drawing, count: int) -> list[dict[str, Any]]:
    """Draw records out of order, with gaps in time, some without key or value."""
    draw = d.draw
    keys, disorder, step = draw.choice([1, 3, 10]), draw.choice([1, 60, 500]), 12
    at = 1_000_000
    made = list[dict[str, Any]]()
    for _ in range(count):
        at += draw.randrange(step)
        if draw.random() < 0.02:
            at += 40 * step
        key = f"k{draw.randrange(keys)}" if draw.random() > 0.04 else None
        value = {"n": draw.randrange(10), "c": draw.choice(LETTERS)}
        late = draw.randrange(disorder) if draw.random() < 0.3 else 0
        none = draw.random() < 0.06
        made.append({"key": key, "value": None if none else value, "ts": at - late})
    return made


def in_order(records: dict[str, list[dict[str, Any]]]) -> Iterable[dict[str, Any]]:
    """Yield records of topics by the running maximum of each topic's times, then by topic."""
    ranked = list[tuple[int, str, int, dict[str, Any]]]()
    for topic, each in records.items():
        high = -1
        for n, record in enumerate(each):
            high = max(high, record["ts"])
            ranked.append((high, topic, n, {"topic": topic, **record}))
    return (record for *_, record in sorted(ranked, key=lambda each: each[:3]))


# -- results of the reference


def wanted(results: Iterable[Given]) -> list[Result]:
    """Return results of the reference in the form of a run's."""
    return [result_of(g.cause, _text(g.key), g.value, g.at_ms) for g in results]


def _text(key: Any) -> str | None:
    if isinstance(key, Windowed):
        return json.dumps(list(key))
    return None if key is None else str(key)
