"""Cases of `data/public.jsonl` as apps, and their run through a TestDriver.

On each case Kafka Streams 4.4 and the rules of this project give the same results. A case names its
sources, its operators, the topic of results, the inputs, and the outputs after each input.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from streamsx import App, WindowedKey, hopping, session, sliding, tumbling
from streamsx.app.flow import Flow, Grouped
from streamsx.app.table_flow import GlobalTable, TableFlow
from streamsx.testing import TestDriver
from tests.flows.expressions import evaluate, true

FILE = Path(__file__).parent / "data" / "public.jsonl"
SINK = "results"
Case = Mapping[str, Any]


def cases() -> list[Case]:
    return [json.loads(line) for line in FILE.read_text().splitlines()]


class Result(NamedTuple):
    """Result of a case: the index of the input that caused it, key, value and time in ms."""

    cause: int
    key: str
    value: Any
    at_ms: int


def expected(case: Case) -> dict[str, list[tuple[Any, int]]]:
    """Return values and times by key, in order."""
    results = (Result(each["i"], _written(each["key"]), each["value"], each["ts"])
               for each in case["outputs"])  # fmt: skip
    return _by_key(case, results)


def by_key(case: Case, results: Iterator[Result]) -> dict[str, list[tuple[Any, int]]]:
    return _by_key(case, results)


def _by_key(case: Case, results: Iterator[Result]) -> dict[str, list[tuple[Any, int]]]:
    found: defaultdict[str, list[tuple[Any, int]]] = defaultdict(list)
    last: dict[str, Any] = {}
    for each in results:
        if each.value is None and last.get(each.key) is None and _of_table(case):
            continue  # a deletion of a row that is not there
        last[each.key] = each.value
        found[each.key].append((each.value, each.at_ms))
    return dict(found)


def _written(key: Any) -> str:
    """Return a key as text: a number and its text are one key, as keys of flows are text."""
    if isinstance(key, dict):
        return json.dumps({**key, "key": _written(key["key"])}, sort_keys=True)
    return str(key)


def _of_table(case: Case) -> bool:
    """Return whether the results of a case are changes of a table, maybe as a flow."""
    if any(op["op"] == "to_flow" for op in case["ops"]):
        return True
    made = {each["topic"]: each["kind"] != "stream" for each in case["sources"]}
    for op in case["ops"]:
        first = made.get(op["in"][0].split(".")[0], False)
        made[op["out"]] = TABLE_OF.get(op["op"], first)
    return bool(made[case["sink"].split(".")[0]])


TABLE_OF = {
    "aggregate": True, "to_table": True, "to_flow": False, "group_by": False,
    "group_by_key": False, "rekey": False, "deduplicate": False,
}  # fmt: skip


# -- a case as an app


def app_of(case: Case, **settings: Any) -> App:
    app = App("case", topic_partitions=1, **{"store": "memory://", **settings})
    made: dict[str, Any] = {each["topic"]: _source(app, each) for each in case["sources"]}
    for op in case["ops"]:
        given = [_named(made, name) for name in op["in"]]
        made[op["out"]] = OPERATORS[op["op"]](op, *given)
    _named(made, case["sink"]).to(SINK)
    return app


def _named(made: Mapping[str, Any], name: str) -> Any:
    first, _, branch = name.partition(".")
    return made[first][branch] if branch else made[first]


def _source(app: App, source: Mapping[str, Any]) -> Flow | TableFlow | GlobalTable:
    topic = source["topic"]
    if source["kind"] == "global":
        return app.global_table(topic)
    if source["kind"] == "table":
        return app.table(topic)
    time = source.get("timestamp")
    if time is None:
        return app.flow(topic)
    return app.flow(topic, timestamp=lambda value: evaluate(time, v=value) / 1000)


def _of_value(expression: Any) -> Callable[[Any], Any]:
    return lambda value: evaluate(expression, v=value)


def _condition(expression: Any) -> Callable[[Any], bool]:
    return lambda value: true(evaluate(expression, v=value))


def _filter(op: Case, flow: Any) -> Any:
    return flow.filter(_condition(op["fn"]))


def _map_values(op: Case, flow: Any) -> Any:
    if "$k" not in json.dumps(op["fn"]):
        return flow.map_values(_of_value(op["fn"]))
    return flow.map_values(lambda v, k, _at, _headers: evaluate(op["fn"], k=k, v=v), metadata=True)


def _flat_map_values(op: Case, flow: Flow) -> Flow:
    def made(value: Any, key: Any, _at: int, _headers: Any) -> list[Any]:
        return [evaluate(each, k=key, v=value) for each in op["fn"]]

    return flow.flat_map_values(made, metadata=True)


def _branch(op: Case, flow: Flow) -> dict[str, Flow]:
    return flow.branch({name: _condition(each) for name, each in op["branches"]})


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _rekey(op: Case, flow: Flow) -> Flow:
    if "$k" not in json.dumps(op["fn"]):
        return flow.rekey(lambda value: _text(evaluate(op["fn"], v=value)))

    def key_of(value: Any, key: Any, _at: int, _headers: Any) -> str | None:
        plain = key._asdict() if isinstance(key, WindowedKey) else key
        return _text(evaluate(op["fn"], k=plain, v=value))

    return flow.rekey(key_of, metadata=True)


def _deduplicate(op: Case, flow: Flow) -> Flow:
    def id_of(value: Any, key: Any, _at: int, _headers: Any) -> Any:
        return evaluate(op["by"], k=key, v=value)

    return flow.deduplicate(key=id_of, within=f"{op['within']}ms", name=op["out"], metadata=True)


def _group_by(op: Case, flow: Flow) -> Grouped:
    return flow.group_by(lambda value: _text(evaluate(op["fn"], v=value)))


def _window(window: Case) -> Any:
    times = {n: f"{window[n]}ms" for n in ("size", "step", "gap", "grace") if n in window}
    return WINDOWS[window["kind"]](**times)


WINDOWS: Mapping[str, Callable[..., Any]] = {
    "tumbling": tumbling, "hopping": hopping, "session": session, "sliding": sliding,
}  # fmt: skip


def _aggregate(op: Case, groups: Any) -> Any:
    of = _of_value(op.get("of", "$v"))
    how: dict[str, Any] = {"name": op["out"], "emit": op.get("emit", "update")}
    if "window" in op:
        groups = groups.window(_window(op["window"]))
    if op["agg"] == "count":
        return groups.count(**how)
    if op["agg"] == "collect":
        how["merge"] = lambda _key, earlier, later: earlier + later
        return groups.aggregate(list, lambda _key, value, so_far: [*so_far, of(value)], **how)
    return getattr(groups, op["agg"])(of, **how)


def _join(op: Case, left: Any, right: Any) -> Any:
    expression = op.get("fn", {"l": "$l", "r": "$r"})
    how: dict[str, Any] = {}
    if op.get("by", "$k") != "$k":
        how["key"] = lambda value: _text(evaluate(op["by"], v=value))
    if "before" in op:
        how["within"] = (f"{op['before']}ms", f"{op['after']}ms")
        how["grace"] = f"{op['grace']}ms"
    return left.join(
        right, lambda a, b: evaluate(expression, l=a, r=b), kind=op["kind"], name=op["out"], **how
    )


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "deduplicate": _deduplicate,
    "filter": _filter,
    "map_values": _map_values,
    "flat_map_values": _flat_map_values,
    "branch": _branch,
    "merge": lambda _op, first, *others: first.merge(*others),
    "rekey": _rekey,
    "group_by": _group_by,
    "group_by_key": lambda _op, flow: flow.group_by_key(),
    "aggregate": _aggregate,
    "join": _join,
    "to_table": lambda op, flow: flow.to_table(op["out"]),
    "suppress": lambda op, table: table.suppress(f"{op['wait']}ms", name=op["out"]),
    "to_flow": lambda _op, table: table.to_flow(),
}


# -- the run


def run(
    case: Case, driver: TestDriver, again: Callable[[], None] = lambda: None
) -> Iterator[Result]:
    """Feed a case, input by input, and yield the results. `again` is called after each input."""
    seen = 0
    for n, each in enumerate(case["inputs"]):
        record = each["key"], each["value"], each["ts"] / 1000
        driver.pipe(each["topic"], [record])
        again()
        results = driver.read(SINK)
        for found in results[seen:]:
            key = None if found.key is None else found.key.decode()
            yield result_of(n, key, found.value, round(found.timestamp * 1000))
        seen = len(results)


def result_of(cause: int, key: str | None, value: Any, at_ms: int) -> Result:
    """Return a record of the topic of results as a result."""
    return Result(cause, _written(_plain(key)), value, at_ms)


def _plain(key: str | None) -> Any:
    if key is None or not key.startswith("["):
        return key
    plain, start, end = json.loads(key)
    return {"key": plain, "start": start, "end": end}
