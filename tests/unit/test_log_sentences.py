"""Sentences of the text log, and the events that have none."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

import streamsx
from streamsx.journal import FILE_ONLY
from streamsx.log_sentences import SENTENCES, level_of, of_event

WRITTEN = re.compile(r'\b_?(?:journal|log_gaps)\(\s*"(\w+)"')
"""How an event is written in the code, whatever module it stands in."""
INNER = re.compile(r"streamsx-[0-9a-f]{8}|generation| -1\b|None|=|_total|\bmember\b")
"""Words that a person cannot read."""
FIELDS: dict[str, dict[str, Any]] = {
    "worker_started": {
        "pid": 7, "version": "0.1.0", "app": "shop", "instance": "a", "broker": "localhost:9092",
        "directory": "shop-data/0/shop", "guarantee": "at_least_once",
    },
    "rebalance_started": {"generation": -1, "reason": "first"},
    "assigned": {"generation": 3, "active": ["0_0", "0_1"], "standby": [], "learner": ["1_0"]},
    "plan": {"generation": 3, "decisions": [{}]},
    "revoked": {"tasks": ["0_0"]},
    "rebalanced": {
        "runs": ["0_2", "0_3", "1_4"], "gained": ["1_4"], "lost": ["0_0", "0_1"], "learns": ["1_0"],
        "standbys": [], "rounds": 8, "ms": 712.0, "gap_ms": 28.2,
    },
    "rebalance_waits": {"seconds": 15.2, "phase": "join", "workers": ["b", "c"], "leader": "a"},
    "record_takes_long": {
        "task": "1_6", "topic": "orders", "partition": 6, "offset": 51, "operator": "shop.add",
        "seconds": 30, "waits_at": ["shop.py:8", "shop.py:21", "asyncio/tasks.py:649"],
    },
    "stood_still": {"ms": 25_000},
    "worker_joined": {"worker": "c", "tasks": ["0_0", "1_0"], "total": 12, "back": False},
    "worker_restarted": {"worker": "c", "tasks": ["0_0"], "was": ""},
    "worker_left": {
        "worker": "b", "tasks": ["0_0", "0_1", "0_2"], "to": {"a": 2, "c": 1}, "led": False,
    },
    "worker_lost": {
        "worker": "b", "tasks": ["0_0", "0_1"], "to": {"a": 2}, "led": False,
        "session_timeout_s": 10.0,
    },
    "worker_differs": {"worker": "c"},
    "code_differs": {"readers": ["add", "sum"], "leader": "a"},
    "idle": {"why": "the app has 4 tasks and 5 workers"},
    "lost": {"tasks": ["0_0"], "reason": "the group went on without it"},
    "task": {"task": "0_0", "role": "active", "from": "opening", "to": "running"},
    "restore_progress": {"task": "1_0", "role": "learner", "restored": 10, "end": 1200},
    "restoring": {"tasks": ["1_0", "1_1"], "percent": 40, "left": 1200},
    "restored": {"tasks": ["1_0"], "records": 120000, "ms": 14_000.0},
    "snapshot_fetched": {
        "task": "1_0", "store": "totals", "number": 4, "rows": 10, "bytes": 2000, "position": 7,
        "ms": 12.0,
    },
    "learner_ready": {"task": "1_0", "lag": None},
    "promoted": {"task": "1_0", "lag": 12, "handover_ms": 36.5},
    "first_record": {"task": "1_0"},
    "processed": {"records": 811, "per_second": 26.6, "lag": 0},
    "commit": {"tasks": 2, "records": 10, "ms": 3.1},
    "aborted": {"why": "a broker is gone", "tasks": 3, "stops": []},
    "gap": {"task": "1_0", "ms": 3.0},
    "calm_gap": {"task": "1_0", "ms": 3.0, "seconds": 5.2},
    "metrics": {"rebalance-total": 3},
    "leaving": {"deadline": "2026-11-26T23:08:58Z"},
    "stays": {},
    "left": {"directory": "shop-data/0/shop"},
    "error": {"what": "disk full: store totals: make room", "where": "task 1_0"},
}  # fmt: skip
SAYS = {
    "worker_started": (
        "Worker a started (pid 7): app shop, streamsx 0.1.0, brokers localhost:9092, state in "
        "shop-data/0/shop, at least once."
    ),
    "rebalanced": (
        "Rebalanced: runs 3 tasks (0_2-3 1_4), took over 1 (1_4), gave up 2 (0_0-1), learns "
        "1_0; 8 rounds in 0.7 s; tasks that stayed paused for 28 ms at most."
    ),
    "restoring": "Restoring 2 tasks (1_0-1) from their changelogs: 40 %, 1,200 records left.",
    "rebalance_waits": (
        "The rebalance has waited 15 s for workers to rejoin: b and c were in the group before. A "
        "worker that died is removed when its session_timeout ends; no action needed."
    ),
    "record_takes_long": (
        "Agent shop.add has worked on one record for 30 s: orders-6 offset 51, task 1_6; it waits "
        "at shop.py:21. The task processes nothing meanwhile; give calls of other systems a "
        "time-out."
    ),
    "worker_joined": "Worker c joined; 2 of 12 tasks move to it.",
    "worker_restarted": "Worker c was started again; it gets 1 task (0_0).",
    "worker_left": "Worker b left the group; its 3 tasks moved to a (2) and c (1).",
    "worker_lost": (
        "Worker b is gone: no heartbeat within its session_timeout (10 s), or it ended with an "
        "error. Its 2 tasks (0_0-1) move to a. Look at the log of that worker."
    ),
    "idle": "Worker w has no tasks: the app has 4 tasks and 5 workers; no action needed.",
    "aborted": (
        "The transaction was aborted: a broker is gone. 3 tasks go back to the last commit; no "
        "action needed."
    ),
    "left": "Worker w left the group; its state stays in shop-data/0/shop.",
    "error": "Task 1_0: disk full: store totals: make room.",
}


def said(event: str, **fields: object) -> str:
    text = of_event(event, {"worker": "w", **fields})
    assert text is not None
    return text


def test_every_event_that_the_code_writes_has_a_sentence() -> None:
    package = Path(streamsx.__file__).parent
    files = {*package.rglob("*.py"), *(package / "tools").rglob("*.py")}
    found = {name for path in files for name in WRITTEN.findall(path.read_text())}
    assert found - FILE_ONLY <= SENTENCES.keys() == FIELDS.keys()


@pytest.mark.parametrize("event", sorted(SENTENCES))
def test_sentence_is_one_for_a_person(event: str) -> None:
    text = said(event, **FIELDS[event])
    assert text.endswith(".")
    assert text[0].isupper()
    assert not INNER.search(text)


@pytest.mark.parametrize("event", sorted(SAYS))
def test_sentence_says(event: str) -> None:
    assert said(event, **FIELDS[event]) == SAYS[event]


def test_transaction_that_a_stopped_task_aborts_does_not_say_that_nothing_is_to_do() -> None:
    assert said("aborted", why="task stopped: 0_1: fix the code", tasks=1, stops=["0_1"]) == (
        "The transaction was aborted: task stopped: 0_1: fix the code. 1 task goes back to the "
        "last commit."
    )


def test_rounds_are_debug_lines_and_their_summary_is_information() -> None:
    rounds = ("rebalance_started", "plan", "assigned", "revoked", "learner_ready", "promoted")
    assert {level_of(event) for event in rounds} == {logging.DEBUG}
    assert level_of("rebalanced") == logging.INFO


def test_first_assignment_is_not_told_as_tasks_taken_over() -> None:
    fields = {**FIELDS["rebalanced"], "gained": ["0_2", "0_3", "1_4"], "lost": [], "gap_ms": None}
    assert said("rebalanced", **fields) == (
        "Rebalanced: runs 3 tasks (0_2-3 1_4), learns 1_0; 8 rounds in 0.7 s."
    )


def test_worker_that_ends_after_an_error_waits_for_no_learners() -> None:
    fields = {"deadline": 1795734538.5, "at_once": True}
    assert said("leaving", **fields) == (
        "Worker w leaves at once: its tasks commit first; it is gone by 1795734538.5 at the latest."
    )


def test_event_without_its_fields_has_no_sentence() -> None:
    assert of_event("promoted", {"worker": "w", "what": "a b"}) is None
    assert of_event("cooled", {}) is None
