"""State of the demo's group, by the events of its workers."""

import json
from pathlib import Path

from streamsx.tools.demonstration.group import DemoGroup, EventsFile, SeenEvent, group_of


def event(mono: float, instance: str, name: str, **fields: object) -> SeenEvent:
    return {"t": 0.0, "mono": mono, "instance": instance, "event": name, **fields}


def assigned(mono: float, instance: str, generation: int) -> SeenEvent:
    return event(mono, instance, "assigned", generation=generation, active=[], learner=[])


def task(mono: float, instance: str, name: str, to: str, role: str = "active") -> SeenEvent:
    return event(mono, instance, "task", task=name, role=role, **{"from": "?", "to": to})


def group(*events: SeenEvent) -> DemoGroup:
    return group_of(events)


SHARED = (
    assigned(1.0, "w1", 7), task(1.1, "w1", "0_0", "running"),
    assigned(1.0, "w2", 7), task(1.2, "w2", "0_1", "running"),
)  # fmt: skip


def test_torn_last_line_is_read_once_complete(tmp_path: Path) -> None:
    path, said = tmp_path / "w1.jsonl", event(1.0, "w1", "left")
    line, file = json.dumps(said) + "\n", EventsFile(path)
    assert file.more() == []
    path.write_text(line + line[:20])
    assert file.more() == [said]
    assert file.more() == []
    path.write_text(line + line)
    assert file.more() == [said]


def test_line_torn_by_a_killed_worker_is_skipped(tmp_path: Path) -> None:
    path, said = tmp_path / "w1.jsonl", event(1.0, "w1", "left")
    line = json.dumps(said) + "\n"
    path.write_text(line + line[:20] + line + line)
    assert EventsFile(path).more() == [said, said]


def test_group_is_at_rest_when_workers_share_all_tasks() -> None:
    assert group(*SHARED).at_rest(("w1", "w2"), 2)
    assert group(*SHARED).moved_at == 1.2


def test_group_is_not_at_rest_while_a_worker_has_no_assignment() -> None:
    assert not group().at_rest(("w1",), 0)
    assert not group(*SHARED).at_rest(("w1", "w2", "w3"), 2)
    joins = event(2.0, "w1", "rebalance_started", generation=7, reason="joins")
    assert not group(*SHARED, joins).at_rest(("w1", "w2"), 2)


def test_group_is_not_at_rest_while_generations_differ() -> None:
    assert not group(*SHARED, assigned(2.0, "w2", 8)).at_rest(("w1", "w2"), 2)


def test_group_is_not_at_rest_with_missing_duplicate_or_learned_tasks() -> None:
    both = ("w1", "w2")
    assert not group(*SHARED).at_rest(both, 3)
    assert not group(*SHARED, task(2.0, "w1", "0_1", "running")).at_rest(both, 3)
    assert not group(*SHARED, task(2.0, "w1", "0_2", "restoring")).at_rest(both, 3)
    learns = task(2.0, "w1", "0_2", "tailing", role="learner")
    assert not group(*SHARED, learns).at_rest(both, 3)


def test_worker_that_left_holds_no_tasks() -> None:
    seen = group(
        *SHARED, event(2.0, "w1", "leaving", deadline=None), assigned(2.1, "w1", 8),
        task(2.2, "w1", "0_0", "closing"), task(2.3, "w1", "0_0", "closed"),
    )  # fmt: skip
    assert (seen.workers["w1"].doing, seen.workers["w1"].tasks) == ("leaves", {})
    assert group(*SHARED, event(3.0, "w1", "left")).workers["w1"].doing == "has left"


def test_learner_progress_is_shown_and_commits_are_counted() -> None:
    seen = group(
        task(1.0, "w1", "1_0", "restoring", role="learner"),
        event(1.1, "w1", "restore_progress", task="1_0", role="learner", restored=3, end=9),
        event(1.2, "w1", "restore_progress", task="1_9", role="learner", restored=1, end=1),
        event(1.3, "w1", "commit", tasks=1, records=5, ms=1.0),
        event(1.4, "w1", "commit", tasks=1, records=6, ms=1.0),
        event(1.5, "w1", "an event of a later version"),
    )  # fmt: skip
    worker = seen.workers["w1"]
    held = worker.learns()["1_0"]
    assert (held.restored, held.end, set(worker.tasks)) == (3, 9, {"1_0"})
    assert (worker.commits, worker.records) == (2, 11)
