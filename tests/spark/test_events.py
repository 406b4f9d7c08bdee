"""spark/events.py: a log as workers write it -> the tables, row for row."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamsx.clock import Clock
from streamsx.errors import UsageError
from streamsx.journal import Journal
from streamsx.spark.events import EventTables, events, files_of, save, summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

START = 1_700_000_000.0
LATER = 7200.0


class Told(Clock):
    """The clock of a host: `wrong` seconds off, and booted when it pleased."""

    def __init__(self, wrong: float, booted: float) -> None:
        self.seconds, self._wrong, self._booted = 0.0, wrong, booted

    def now(self) -> float:
        return self.seconds + self._booted

    def wall(self) -> float:
        return START + self.seconds + self._wrong


class Group:
    """Workers that write what they are told to, each to its file. The host of c is 10 s behind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.clocks = {"a": Told(0, 50), "b": Told(0, 9000), "c": Told(-10, 1)}
        self._journals: dict[str, Journal] = {}

    def start(self, at: float, *names: str) -> None:
        for name in names:
            path = self._folder / f"{name}.jsonl"
            self.end(name)
            self._journals[name] = Journal(name, self.clocks[name], path)
            self.say(at, name, "worker_started", pid=1, version="0", app="shop")

    def end(self, *names: str) -> None:
        for name in set(names) & self._journals.keys():
            self._journals[name].close()

    def say(self, at: float, name: str, event: str, **fields: object) -> None:
        self.clocks[name].seconds = at
        self._journals[name](event, **fields)

    def moved(self, at: float, name: str, task: str, role: str, *states: str) -> None:
        for old, new in pairwise(states):
            self.say(at, name, "task", task=task, role=role, **{"from": old, "to": new})

    def round(self, at: float, number: int, reason: str, **active: list[str]) -> None:
        """Begun by the last of them, 0.1 s before the others; over 0.5 s after that. A `+` before
        a task: its learner.
        """
        *others, first = active
        self.say(at, first, "rebalance_started", generation=number - 1, reason=reason)
        for name in others:
            follows = "the group is rebalancing"
            self.say(at + 0.1, name, "rebalance_started", generation=number - 1, reason=follows)
        for name, tasks in active.items():
            learner = [task[1:] for task in tasks if task[0] == "+"]
            mine = [task for task in tasks if task[0] != "+"]
            told: dict[str, object] = {"active": mine, "standby": [], "learner": learner}
            self.say(at + 0.6, name, "assigned", generation=number, **told)


def night(folder: Path) -> None:
    """A task is learned by c and moves there, by whose clock that was before it was released; then
    b is killed and the rest is a's. Two hours later all begins anew, at generation 1.
    """
    group = Group(folder)
    group.start(0, "a", "b")
    group.round(1, 1, "first", a=["0_0", "0_1"], b=["1_0"])
    for name, task in (("a", "0_0"), ("a", "0_1"), ("b", "1_0")):
        group.moved(2, name, task, "active", "created", "opening", "running")
    group.say(2, "b", "restore_progress", task="1_0", role="active", restored=0, end=0)
    group.start(3, "c")
    group.round(4, 2, "first", a=["0_0", "0_1"], b=["1_0"], c=["+0_1"])
    group.moved(5, "c", "0_1", "learner", "created", "opening", "restoring")
    group.say(5, "c", "restore_progress", task="0_1", role="learner", restored=0, end=400)
    group.say(6, "c", "restore_progress", task="0_1", role="learner", restored=300, end=400)
    group.say(7, "c", "restore_progress", task="0_1", role="learner", restored=420, end=420)
    group.moved(7, "c", "0_1", "learner", "restoring", "tailing")
    group.say(7.25, "c", "learner_ready", task="0_1", lag=3)
    group.say(9, "c", "restore_progress", task="0_1", role="learner", restored=450, end=450)
    group.round(10, 3, "learner ready", a=["0_0"], b=["1_0"], c=["+0_1"])
    group.say(10.6, "c", "learner_ready", task="0_1", lag=0)
    group.moved(10.7, "a", "0_1", "active", "running", "suspended", "closing", "closed")
    group.round(11, 4, "released all partitions asked for", b=["1_0"], c=["0_1"], a=["0_0"])
    group.moved(11.7, "c", "0_1", "active", "tailing", "restoring", "running")
    group.say(11.8, "c", "promoted", task="0_1", lag=2, handover_ms=200.5)
    group.say(12, "b", "commit", tasks=1, records=5, ms=1.5)
    with (folder / "b.jsonl").open("a") as file:
        file.write('{"t": 1700000012.5, "mono": 9012.5, "instance": "b", "event": "left"')
    group.round(57, 5, "the group is rebalancing", c=["0_1"], a=["0_0", "1_0"])
    group.moved(58, "a", "1_0", "active", "created", "opening", "restoring")
    group.say(58, "a", "restore_progress", task="1_0", role="active", restored=0, end=900)
    group.say(60, "a", "restore_progress", task="1_0", role="active", restored=900, end=900)
    group.moved(60, "a", "1_0", "active", "restoring", "running")
    group.moved(61, "a", "0_0", "active", "running", "suspended", "running")
    group.start(LATER, "b")
    group.round(LATER, 1, "first", b=["0_0"])
    group.moved(LATER + 2, "b", "0_0", "active", "created", "opening", "running")
    group.say(LATER + 2, "b", "something_new", task=5, active="none")
    group.end("a", "b", "c")


@pytest.fixture(scope="module")
def read(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[EventTables]:
    folder = tmp_path_factory.mktemp("night")
    night(folder)
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield events(spark, files_of([str(folder)]))
    spark.conf.set("spark.sql.shuffle.partitions", str(before))


def rows(tables: dict[str, Any], name: str) -> list[tuple[object, ...]]:
    """Times as seconds since the beginning."""
    return [
        tuple(
            round((each - datetime.fromtimestamp(START, UTC)).total_seconds(), 3)
            if isinstance(each, datetime)
            else each
            for each in row.values()
        )
        for row in tables[name].to_pylist()
    ]


def test_event_logs_become_tables_files_and_a_summary(read: EventTables, tmp_path: Path) -> None:
    tables, files = save(read, tmp_path, lambda _: None)

    names = ["rebalances", "moves", "gaps", "restores"]
    assert files == [str(tmp_path / f"{name}.parquet") for name in names]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{n}.parquet" for n in names)
    assert rows(tables, "rebalances") == [
        # generation, started, reason, members, ms, moved, learners, imbalance, clamped
        (1, 1.0, "first", 2, 600.0, 0, 0, 1, False),
        (2, -6.0, "first", 3, 10600.0, 0, 1, 2, False),
        (3, 0.0, "learner ready", 3, 10600.0, 0, 1, 1, False),
        (4, 1.1, "released all partitions asked for", 3, 10500.0, 1, 0, 0, False),
        (5, 47.1, "the group is rebalancing", 2, 10500.0, 1, 0, 1, False),
        (1, LATER, "first", 1, 600.0, 1, 0, 0, False),
    ]
    assert rows(tables, "moves") == [
        # task, from, to, learning, ready, promoted, learn_ms, handover_ms, lag
        ("0_1", "a", "c", -5.0, -2.75, 1.8, 2250.0, 200.5, 2),
    ]
    assert rows(tables, "gaps") == [
        # task, from, to, stopped, gap_ms, clean, clamped, nobody
        ("0_1", "a", "c", 10.7, 0.0, True, True, False),
        ("1_0", "b", "a", 12.0, 48000.0, False, False, False),
        ("0_0", "a", "a", 61.0, 0.0, True, False, False),
        ("0_0", "a", "b", 61.0, 7141000.0, False, False, True),
    ]
    assert rows(tables, "restores") == [
        # task, role, instance, started, ended, records, total, records_per_s
        ("0_1", "learner", "c", -5.0, -3.0, 420, 420, 210.0),
        ("1_0", "active", "a", 58.0, 60.0, 900, 900, 450.0),
    ]
    assert summary(tables) == {
        "rebalances": 6,
        "moves": 1,
        "gaps": {"p50_ms": 0.0, "p99_ms": 47040.0, "max_ms": 48000.0},
        "gaps_without_workers": 1,
        "restores": 2,
        "clock_skew": 1,
    }
    assert read.torn == 1


@pytest.mark.slow
def test_each_move_names_the_previous_owner(spark: "SparkSession", tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.start(0, "a", "b")
    group.round(1, 1, "first", a=["0_0"], b=[])
    for number, (old, new) in enumerate((("a", "b"), ("b", "a"), ("a", "b")), 2):
        at = 10 * number
        group.moved(at, new, "0_0", "learner", "created", "opening", "tailing")
        group.round(at + 1, number, "learner ready", **{old: [], new: ["0_0"]})
        group.say(at + 2, new, "promoted", task="0_0", lag=0, handover_ms=1.0)
    group.end("a", "b")
    moves = events(spark, files_of([str(tmp_path)])).tables["moves"].toArrow().to_pylist()
    assert [(row["from"], row["to"]) for row in moves] == [("a", "b"), ("b", "a"), ("a", "b")]


def test_file_that_is_no_event_log_is_refused(spark: "SparkSession", tmp_path: Path) -> None:
    log = tmp_path / "notes.jsonl"
    good = json.dumps({"t": START, "mono": 1.0, "instance": "a", "event": "left"})
    for lines, said in (
        (["not", "a", "log"], "not an event log: {}: 3 of 3 lines are none, as 'not': give"),
        ([good, '{"t": 1}', good, "[]"], "2 of 4 lines are none, as"),
        ([""], "no events: all the files are empty: give files that `worker --events` wrote"),
    ):
        log.write_text("\n".join(lines))
        with pytest.raises(UsageError) as refused:
            events(spark, [str(log)])
        assert said.format(log) in str(refused.value)
