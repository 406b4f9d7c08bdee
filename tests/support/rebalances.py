"""Waiting times of tasks in rebalances of real workers, for changes of streamsx.

    python -m tests.support.rebalances restart --broker kafka --runs 5

`restart`: a worker is killed and started again 0.3 s later with its directory, all else at its
default. `failover`: one of three is killed, and its standbys take over, with a session of 6 s.
`stop`: one of three, which has the capacity for all 60 small tasks with state, gets SIGTERM.
`gaps`: 1 -> 2 -> 3 -> 2 workers under a steady load, 12 partitions.

Each prints a line per run, then the median and the worst. Not here: pass or fail.
"""

import argparse
import signal
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.conftest import POM
from tests.support.apache_kafka import ApacheKafka
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.maven import jars
from tests.support.wordcount import WordCount
from tests.support.workers import Workers

LINES_PER_S = 400
AWAY_S = 0.3
LONG_S = 120.0
Figures = Iterator[tuple[str, float]]


def settled(workers: Workers, tasks: int) -> bool:
    active = workers.active()
    return sum(map(len, active.values())) == tasks and all(active.values())


def restart(workers: Workers, words: WordCount) -> Figures:
    """Return the seconds from the kill until all tasks of the worker run again."""
    workers.start("a", "b", "c")
    words.feed(LINES_PER_S)
    workers.until(lambda: settled(workers, 2 * words.partitions), "settled", LONG_S)
    workers.until_event("commit", of="b", count=3)
    held = workers.held("b")
    workers.kill("b")
    killed = workers.now()
    workers.until(lambda: workers.now() - killed > AWAY_S, "away")
    workers.start("b")
    yield "back", last_running(workers, held, killed) - killed


def failover(workers: Workers, words: WordCount) -> Figures:
    """Return the seconds from the kill until the last task runs elsewhere, and how its stores
    opened.

    Returns:
        Seconds; tasks that opened a store from disk; records that one of them read. A standby's
            store is open already. The logs are short: within the default lag of 10,000 records a
            worker without a copy is near enough, and a task may go where there is more room.
    """
    settings = {
        "session_timeout": "6s", "heartbeat_interval": "1s", "num_standby_replicas": 1,
        "acceptable_recovery_lag": 100,
    }  # fmt: skip
    workers.start("a", "b", "c", **settings)
    words.feed(LINES_PER_S)

    def followed() -> bool:
        last = {
            (e["instance"], e["task"]): (e["to"], e.get("role")) for e in workers.events("task")
        }
        follow = {task for (_, task), is_now in last.items() if is_now == ("tailing", "standby")}
        return settled(workers, 2 * words.partitions) and len(follow) == words.partitions

    workers.until(followed, "followed", LONG_S)
    workers.until_event("commit", of="b", since=workers.now(), count=5)
    held = workers.held("b")
    workers.kill("b")
    killed = workers.now()
    yield "taken over", last_running(workers, held, killed) - killed
    opened = {
        str(e["task"])
        for e in workers.events("task", to="opening", role="active")
        if e["mono"] > killed and e["task"].startswith("1_")
    }
    yield "opened anew", float(len(opened))
    told = workers.events("restore_progress", role="active")
    read = [e["restored"] for e in told if e["mono"] > killed and e["task"] in opened]
    yield "records restored for one of them", float(max(read, default=0))


def last_running(workers: Workers, tasks: set[str], since: float) -> float:
    began = (
        workers.until_event("task", task=task, to="running", since=since, timeout_s=LONG_S)
        for task in sorted(tasks)
    )
    return max(float(event["mono"]) for event in began)


def stop(workers: Workers, words: WordCount) -> Figures:
    """Return the seconds from SIGTERM to the end of the worker, and the rebalances until then."""
    workers.start("a", capacity=1000)
    words.feed(LINES_PER_S)
    workers.until(lambda: settled(workers, 2 * words.partitions), "settled", LONG_S)
    workers.until_event("commit", of="a", count=3)
    workers.start("b", "c")
    for name in ("b", "c"):
        workers.until_event("assigned", of=name)
    workers.until_event("commit", of="a", since=workers.now(), count=3)
    told = workers.now()
    held = len([task for task in workers.held("a") if task.startswith("1_")])
    workers.all["a"].expected = True
    workers.signal("a", signal.SIGTERM)
    code = workers.code("a", LONG_S)
    yield "tasks with state", float(held)
    yield "seconds", workers.now() - told
    yield "exit code", float(code)
    rounds = {e["generation"] for e in workers.events("assigned") if e["mono"] > told}
    yield "rebalances", float(len(rounds))


def gaps(workers: Workers, words: WordCount) -> Figures:
    """Return the milliseconds that tasks stood still.

    For tasks that stay: with and without a rebalance. For tasks that move: from release to first
    record.
    """
    workers.start("a")
    words.feed(LINES_PER_S)
    workers.until(lambda: settled(workers, 2 * words.partitions), "settled", LONG_S)
    workers.until_event("commit", of="a", count=10)
    for name in ("b", "c"):
        workers.start(name)
        workers.until_event("assigned", of=name)
        workers.until(lambda: even(workers, words), "even", LONG_S)
        workers.until_event("commit", since=workers.now(), count=10)
    workers.all["b"].expected = True
    workers.signal("b", signal.SIGTERM)
    workers.code("b", LONG_S)
    workers.until(lambda: settled(workers, 2 * words.partitions), "two", LONG_S)
    workers.until_event("commit", since=workers.now(), count=10)
    for kind in ("calm_gap", "gap"):
        yield kind, max((e["ms"] for e in workers.events(kind)), default=0.0)
    yield "promoted", max((e["handover_ms"] for e in workers.events("promoted")), default=0.0)
    yield "moved", max(moves(workers), default=0.0)


def even(workers: Workers, words: WordCount) -> bool:
    counts = [sum(task.startswith("1_") for task in tasks) for tasks in workers.active().values()]
    return settled(workers, 2 * words.partitions) and max(counts) - min(counts) <= 1


def moves(workers: Workers) -> Iterator[float]:
    """Return times from the last record of the old owner to the first of the new one, of tasks with
    state.
    """
    last: dict[str, float] = {}
    for event in workers.events("task", "first_record"):
        task = event["task"]
        if event["event"] == "task" and event["to"] == "suspended":
            last[task] = event["last_record"]
        elif event["event"] == "first_record" and task.startswith("1_") and task in last:
            yield (event["mono"] - last.pop(task)) * 1000


WHAT: dict[str, tuple[Callable[[Workers, WordCount], Figures], int]] = {
    "restart": (restart, 4), "failover": (failover, 4), "stop": (stop, 60), "gaps": (gaps, 12),
}  # fmt: skip
"""And the partitions of each of its two topics."""


def main() -> None:
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("what", choices=WHAT)
    asked.add_argument("--broker", choices=("embedded", "kafka"), default="embedded")
    asked.add_argument("--runs", type=int, default=5)
    asked.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    told = asked.parse_args()
    play, partitions = WHAT[told.what]
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker: ApacheKafka | EmbeddedBroker
        if told.broker == "kafka":
            broker = stack.enter_context(ApacheKafka(jars(POM), folder / "kafka"))
        else:
            broker = stack.enter_context(EmbeddedBroker(folder / "broker"))
        given = dict(each.split("=", 1) for each in told.set)
        own = {f"STREAMSX_{name.upper()}": value for name, value in given.items()}
        for run in range(told.runs):
            with (
                WordCount(broker.bootstrap, partitions=partitions) as words,
                Workers(broker.bootstrap, folder / str(run), env={**words.env, **own}) as workers,
            ):
                figures = dict(play(workers, words))
            for name, value in figures.items():
                found.setdefault(name, []).append(value)
            print(f"run {run}:", ", ".join(f"{n} {v:.3f}" for n, v in figures.items()), flush=True)
    for name, values in found.items():
        print(f"{name}: median {statistics.median(values):.3f}, worst {max(values):.3f}")


if __name__ == "__main__":
    main()
