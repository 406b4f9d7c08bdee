"""What workers and commands tell programs: events as JSON Lines, the objects of `--json`.

Dashboards and scripts read these: no name may change, no type, and nothing may be left out.
"""

import json
import re
from ast import literal_eval
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streamsx
from streamsx.journal import Journal
from streamsx.metrics import MetricRegistry
from streamsx.model import Role, TaskId
from streamsx.processing.failure_policy import Failure, FailureAction
from streamsx.simulation.world import play
from streamsx.tasks.failure_reports import FailureReports
from streamsx.tasks.state_machine import TaskState
from streamsx.worker.throughput_log import EVERY_S, ThroughputLog
from tests.golden.make_kept import APP, KeptWordCount, unpack
from tests.golden.shapes import differences
from tests.support.command import streamsx as command
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.workers import Workers

METRIC_NAMES = (
    "partitions-revoked-latency-avg", "partitions-revoked-latency-max",
    "partitions-assigned-latency-avg", "partitions-assigned-latency-max",
    "partitions-lost-latency-avg", "partitions-lost-latency-max",
    "rebalance-rate-per-hour", "rebalance-total", "rebalance-latency-avg",
    "rebalance-latency-max", "rebalance-latency-total", "failed-rebalance-rate-per-hour",
    "failed-rebalance-total", "last-rebalance-seconds-ago",
)  # fmt: skip
METRICS = dict.fromkeys(METRIC_NAMES, "float|int")
DECISION = {
    "task": "str", "decision": "str", "why": "str", "owner": "str|null", "to": "str|null",
    "lag": "int|null",
}  # fmt: skip
STAMP = {"t": "float", "mono": "float", "instance": "str", "event": "str"}
EVENTS: dict[str, dict[str, Any]] = {
    "worker_started": {
        "pid": "int", "version": "str", "app": "str", "broker": "str", "directory": "str",
        "guarantee": "str",
    },
    "rebalance_started": {"generation": "int", "reason": "str"},
    "assigned": {"generation": "int", "active": ["str"], "standby": ["str"], "learner": ["str"]},
    "plan": {"generation": "int", "decisions": [DECISION]},
    "revoked": {"tasks": ["str"]},
    "rebalanced": {
        "runs": ["str"], "gained": ["str"], "lost": ["str"], "learns": ["str"],
        "standbys": ["str"], "rounds": "int", "ms": "float", "gap_ms": "float|null",
    },
    "rebalance_waits": {
        "seconds": "float", "phase": "str", "workers": ["str"], "leader": "str",
    },
    "record_takes_long": {
        "task": "str", "topic": "str", "partition": "int", "offset": "int", "operator": "str",
        "seconds": "int", "waits_at": ["str"],
    },
    "stood_still": {"ms": "int"},
    "worker_joined": {"worker": "str", "tasks": ["str"], "total": "int", "back": "bool"},
    "worker_restarted": {"worker": "str", "tasks": ["str"], "was": "str"},
    "worker_left": {"worker": "str", "tasks": ["str"], "to": {"*": "int"}, "led": "bool"},
    "worker_lost": {
        "worker": "str", "tasks": ["str"], "to": {"*": "int"}, "led": "bool",
        "session_timeout_s": "float",
    },
    "worker_differs": {"worker": "str"},
    "code_differs": {"readers": ["str"], "leader": "str"},
    "idle": {"why": "str"},
    "lost": {"tasks": ["str"], "reason": "str"},
    "task": {"task": "str", "role": "str", "from": "str", "to": "str"},
    "restore_progress": {"task": "str", "role": "str", "restored": "int", "end": "int"},
    "restoring": {"tasks": ["str"], "percent": "int", "left": "int"},
    "restored": {"tasks": ["str"], "records": "int", "ms": "float"},
    "snapshot_fetched": {
        "task": "str", "store": "str", "number": "int", "rows": "int", "bytes": "int",
        "position": "int", "ms": "float",
    },
    "learner_ready": {"task": "str", "lag": "int|null"},
    "promoted": {"task": "str", "lag": "int|null", "handover_ms": "float", "at": "float"},
    "first_record": {"task": "str"},
    "processed": {"records": "int", "per_second": "float", "lag": "int"},
    "commit": {"tasks": "int", "records": "int", "ms": "float"},
    "aborted": {"why": "str", "tasks": "int", "stops": ["str"]},
    "gap": {"task": "str", "ms": "float"},
    "calm_gap": {"task": "str", "ms": "float", "seconds": "float"},
    "metrics": METRICS,
    "failed": {
        "task": "str", "topic": "str", "partition": "int", "offset": "int", "operator": "str",
        "exception": "str", "action": "str", "attempt": "int",
    },
    "refused": {
        "task": "str|null", "topic": "str", "partition": "int", "operator": "str", "error": "str",
        "action": "str", "records": "int",
    },
    "leaving": {"deadline": "float|null"},
    "stays": {},
    "left": {"directory": "str"},
    "error": {"what": "str", "where": "str"},
}  # fmt: skip
"""Fields beside those of `STAMP`. A suspended task has `last_record` too."""
WRITTEN = re.compile(r'\b_?(?:journal|tell_gaps)\(\s*"(\w+)"')
"""How an event is written in the code, whatever module it stands in."""
SELDOM = {"aborted", "error", "lost", "processed"}
"""Events that some seeds of the simulated world have, and a calm group has not."""
OTHERWISE_WRITTEN = {"gap", "calm_gap"}

STATUS = {
    "app": "str", "at": "float", "state": "str", "generation": "int", "leader": "str|null",
    "instances": {"*": {
        "state": "str", "active": ["str"], "lag": {"*": "int|null"},
        "committed": {"*": "int|null"}, "stopped": ["str"],
        "failures": [{"task": "str", "what": "str", "why": "str"}], "standby": ["str"],
        "learner": [{"task": "str", "lag": "int|null"}], "version": "str", "metrics": METRICS,
        "member": "str", "process": "str", "note": "str",
    }},
    "tasks": "int", "unassigned": ["str"], "lag": "int|null", "committed": "int|null",
    "time": {"*": {
        "at": "int|null", "closed": "int|null", "held_back_by": "str|null", "late": "int",
    }},
    "note": "str", "notes": ["str"], "time_notes": ["str"], "absent_topics": ["str"],
}  # fmt: skip
CHECK = {"ok": "bool", "wrong": "str"}
EXPLAIN = {
    "generation": "int", "at": "float|null", "leader": "str|null", "joined": ["str"],
    "left": ["str"], "gone": ["str"], **DECISION,
}  # fmt: skip
TABLE = {"partition": "int", "key": "str", "value": "int"}
SEND = {"topic": "str", "records": "int", "partitions": {"*": "int"}}
LEAVE = {
    "app": "str",
    "instances": {"*": {"state": "str", "tasks_moved": "int", "tasks_left": "int", "ms": "int"}},
}
TOPOLOGY = {
    "app": "str",
    "subtopologies": [{
        "number": "int", "stateful": "bool", "tasks": "int", "signature": "int",
        "sources": [{
            "topic": "str", "operators": [{"kind": "str", "topic": "str|null"}], "agents": ["str"],
        }],
        "stores": [{
            "name": "str", "changelog": "str", "key": "str", "value": "str", "persistent": "bool",
        }],
        "outputs": ["str"],
    }],
    "topics": [{
        "name": "str", "kind": "str", "partitions": "int", "replication": "int",
        "config": {"*": "str"},
    }],
}  # fmt: skip
SCALE = {
    "rebalances": "int", "moves": "int", "seconds_to_balance": "float",
    "unavailable_task_seconds": "float", "learning_task_seconds": "float",
}  # fmt: skip
SEEDS = {
    "seeds": "int", "events": "int", "virtual_s": "float",
    "failures": [{"seed": "int", "invariant": "str", "at": "float"}],
}  # fmt: skip
GROUP = {
    "config": {"acceptable_recovery_lag": 5},
    "tasks": [{"id": "0_0", "stateful": True}, {"id": "0_1", "stateful": True}],
    "members": [{"id": "a", "owned": ["0_0", "0_1"]}, {"id": "b", "learner": {"0_1": 900}}],
    "memory": None,
}
PLAN = {
    "members": {
        "a": {"active": ["0_0", "0_1"], "standby": [], "learner": [], "revoke": []},
        "b": {"active": [], "standby": [], "learner": ["0_1"], "revoke": []},
    },
    "target": {"a": ["0_0"], "b": ["0_1"]},
    "withheld": {},
    "heirs": {},
    "wanted": {},
    "parked": {},
    "no_takers": False,
    "follow_up": False,
    "moves": 1,
    "memory": {"round": 1, "balancing": ["STATEFUL"], "marks": {}},
    "explain": [
        {
            "task": "0_1", "decision": "stage",
            "why": "b is 900 records behind (limit 5); a keeps running",
            "owner": "a", "to": "b", "lag": 900,
        }
    ],
}  # fmt: skip


def told(*words: str) -> list[Any]:
    """Return the objects that a command prints."""
    done = command(*words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def wrong(events: list[dict[str, Any]]) -> Iterator[str]:
    """Name each field of an event that is not as it is pinned."""
    for event in events:
        shape = {**STAMP, **EVENTS.get(event["event"], {})}
        if event["event"] == "task" and event["to"] == "suspended":
            shape["last_record"] = "float|null"
        yield from differences(shape, event, event["event"])


# -- events


def test_events_that_the_code_writes_are_the_pinned_ones() -> None:
    package = Path(streamsx.__file__).parent
    files = {*package.rglob("*.py"), *(package / "tools").rglob("*.py")}
    found = {name for path in files for name in WRITTEN.findall(path.read_text())}
    assert found | OTHERWISE_WRITTEN == EVENTS.keys()


def test_line_of_an_event_is_this_text(tmp_path: Path) -> None:
    class Stopped:
        def now(self) -> float:
            return 12.5

        def wall(self) -> float:
            return 1_700_000_000.25

    journal = Journal("a", Stopped(), tmp_path / "a.jsonl")
    journal("promoted", task="1_0", lag=None, handover_ms=1.5, at=11.0)
    journal("revoked", tasks=["1_0", "1_1"])
    journal("left")
    journal.close()
    assert (tmp_path / "a.jsonl").read_text().splitlines() == [
        (
            '{"t": 1700000000.25, "mono": 12.5, "instance": "a", "event": "promoted", '
            '"task": "1_0", "lag": null, "handover_ms": 1.5, "at": 11.0}'
        ),
        (
            '{"t": 1700000000.25, "mono": 12.5, "instance": "a", "event": "revoked", '
            '"tasks": ["1_0", "1_1"]}'
        ),
        '{"t": 1700000000.25, "mono": 12.5, "instance": "a", "event": "left"}',
    ]


def test_states_and_roles_in_events_have_these_words() -> None:
    assert [state.word for state in TaskState] == [
        "created",
        "opening",
        "opening",
        "opening",
        "restoring",
        "tailing",
        "running",
        "stopped",
        "suspended",
        "closing",
        "closing",
        "closed",
    ]
    assert [role.value for role in Role] == ["active", "standby", "learner"]


def test_events_of_seeds_that_lose_tasks_have_the_pinned_fields() -> None:
    seen = set()
    for seed in (16, 17):
        result = play(seed, story=10**6)
        assert result.violation is None
        for line in result.story:
            _, _, event, *rest = line.split(maxsplit=3)
            if event in SELDOM:
                seen.add(event)
                assert list(differences(EVENTS[event], literal_eval(rest[0]), event)) == []
    assert seen == SELDOM


def test_tally_is_told_in_these_fields(tmp_path: Path) -> None:
    class Stopped:
        def now(self) -> float:
            return 0.0

        wall = now

    journal = Journal("a", Stopped(), tmp_path / "a.jsonl")
    tally = ThroughputLog(journal, MetricRegistry())
    tally.regularly(0.0, lambda: 7)
    tally.processed(60)
    tally.regularly(EVERY_S, lambda: 7)
    journal.close()
    (line,) = (tmp_path / "a.jsonl").read_text().splitlines()
    assert json.loads(line).items() >= {"records": 60, "per_second": 2.0, "lag": 7}.items()
    assert list(wrong([json.loads(line)])) == []


def test_failed_record_is_told_in_these_fields(tmp_path: Path) -> None:
    class Stopped:
        def now(self) -> float:
            return 0.0

        wall = now

    journal = Journal("a", Stopped(), tmp_path / "a.jsonl")
    failure = Failure(
        TaskId(0, 1), "lines", 1, 7, "split", False, ValueError("x"), action=FailureAction.LOG
    )
    FailureReports(Stopped(), MetricRegistry(), journal).note(failure)
    journal.close()
    (line,) = (tmp_path / "a.jsonl").read_text().splitlines()
    assert json.loads(line)["event"] == "failed"
    assert list(wrong([json.loads(line)])) == []


# -- a group of two, seen from outside


def test_events_and_commands_of_a_group_have_the_pinned_fields(tmp_path: Path) -> None:
    snapshot = f"file://{unpack('snapshot', tmp_path)}"
    with (
        EmbeddedBroker(unpack("broker", tmp_path)) as broker,
        KeptWordCount(broker.bootstrap) as wordcount,
        Workers(broker.bootstrap, tmp_path / "workers", env=wordcount.env) as workers,
    ):
        settings = {"commit_interval": "100ms", "acceptable_recovery_lag": 0}
        workers.start("a", snapshot=snapshot, **settings)
        wordcount.feed(200)
        workers.until_event("commit", of="a", count=3)
        workers.start("b", **settings)
        workers.until_event("promoted", of="b")
        workers.until_event("gap", of="a")
        wordcount.enough()
        workers.until(lambda: wordcount.drained, "drained")

        of_app = ("--app", APP, "--bootstrap", broker.bootstrap, "--json")
        (status,) = told("status", *of_app)
        (checked,) = told("status", "--check", "--max-lag", "1000000", *of_app)
        rows = told("table", "counts", *of_app)
        why = told("explain", *of_app)
        (sent,) = told("send", f"{APP}-lines", "last", *of_app[2:])
        workers.all["b"].expected = True
        (left,) = told("leave", "--instances", "b", *of_app)
        assert workers.code("b") == 0
        assert workers.stop("a") == [0]
        unwell = command("status", "--check", *of_app)
        why += told("explain", "--events", str(workers.all["a"].told), "--json")

        assert list(differences(STATUS, status)) == []
        assert list(differences({**STATUS, **CHECK}, checked)) == []
        assert (checked["ok"], unwell.returncode) == (True, 1)
        assert list(differences([TABLE], rows)) == []
        assert list(differences([EXPLAIN], why)) == []
        assert why
        assert list(differences(SEND, sent)) == []
        assert list(differences(LEAVE, left)) == []
        assert left["instances"]["b"]["state"] == "left"
        events = [dict(event) for event in workers.events()]
    assert list(wrong(events)) == []
    absent = EVENTS.keys() - {event["event"] for event in events}
    assert absent - {"stood_still"} == {
        "lost", "record_takes_long", "stays", "error", "processed", "failed", "aborted",
        "restoring", "restored", "refused", "rebalance_waits", "worker_restarted", "worker_lost",
        "worker_differs", "code_differs", "idle",
    }  # fmt: skip


# -- commands that ask nobody


def test_topology_is_told_in_these_fields() -> None:
    assert list(differences([TOPOLOGY], told("topology", "streamsx.examples.shop", "--json"))) == []


@pytest.mark.parametrize(
    ("words", "shape"),
    [
        (("scale", "--tasks", "4", "--workers", "2", "--add", "1"), SCALE),
        (("seeds", "--from", "6", "--count", "1"), SEEDS),
    ],
    ids=["scale", "seeds"],
)
def test_simulation_is_told_in_these_fields(words: tuple[str, ...], shape: dict[str, Any]) -> None:
    (result,) = told("simulate", *words, "--json")
    assert list(differences(shape, result)) == []


def test_group_on_a_line_is_planned_as_this_document(tmp_path: Path) -> None:
    (tmp_path / "group").write_text(json.dumps(GROUP) + "\n")
    assert told("assign", "--input", str(tmp_path / "group")) == [PLAN]


def test_line_that_is_no_group_is_told_as_an_error(tmp_path: Path) -> None:
    (tmp_path / "group").write_text("{}\n")
    done = command("assign", "--input", str(tmp_path / "group"))
    assert (done.returncode, json.loads(done.stdout).keys()) == (2, {"error"})
