"""Result of `demo --json` by the events of its workers, also with rebalances in between."""

from dataclasses import replace
from typing import Any

import pytest

from streamsx.tools.demonstration.group import SeenEvent
from streamsx.tools.demonstration.verdict import DemoFacts, HandOver, hand_overs, verdict

FACTS = DemoFacts(
    records=1000,
    workers=("w1", "w2", "w3"),
    stateful=frozenset({1}),
    fed_at=3.0,
    added_at=20.0,
    marked_at=30.0,
    shown_at=40.0,
    drained_at=53.0,
    exit_code=0,
    distinct=7,
    mismatches=0,
    cpu_s=2.0,
    seconds=60.04,
)


def event(mono: float, instance: str, name: str, **fields: object) -> SeenEvent:
    return {"t": 0.0, "mono": mono, "instance": instance, "event": name, **fields}


def task(mono: float, instance: str, name: str, old: str, new: str, **more: object) -> SeenEvent:
    fields = {"task": name, "role": "active", "from": old, "to": new, **more}
    return event(mono, instance, "task", **fields)


def assigned(
    mono: float, instance: str, generation: int, active: str = "", learner: str = ""
) -> SeenEvent:
    fields = {"active": active.split(), "standby": [], "learner": learner.split()}
    return event(mono, instance, "assigned", generation=generation, **fields)


def released(mono: float, instance: str, name: str) -> list[SeenEvent]:
    """Return events of a release; the last record was 20 ms before."""
    return [
        task(mono - 0.01, instance, name, "running", "suspended", last_record=mono - 0.02),
        task(mono, instance, name, "suspended", "closing"),
        task(mono + 0.05, instance, name, "closing", "closed"),
    ]


def begun(mono: float, instance: str, name: str) -> SeenEvent:
    return event(mono, instance, "first_record", task=name)


def ready(mono: float, instance: str, name: str) -> SeenEvent:
    return event(mono, instance, "learner_ready", task=name, lag=3)


def promoted(mono: float, instance: str, name: str, at: float) -> SeenEvent:
    return event(mono, instance, "promoted", task=name, lag=0, handover_ms=1.0, at=at)


def learned(mono: float, source: str, target: str, name: str, generation: int) -> list[SeenEvent]:
    """Return events of a whole move: learned in 200 ms, handed over in 100 ms, paused
    for 120 ms.
    """
    return [
        assigned(mono, target, generation, learner=name),
        ready(mono + 0.2, target, name),
        ready(mono + 0.3, target, name),
        *released(mono + 0.4, source, name),
        assigned(mono + 0.45, target, generation + 1, active=name),
        begun(mono + 0.5, target, name),
        promoted(mono + 0.501, target, name, at=mono + 0.5),
    ]


def moves(*parts: SeenEvent | list[SeenEvent]) -> list[HandOver]:
    events = [e for part in parts for e in (part if isinstance(part, list) else [part])]
    return hand_overs(sorted(events, key=lambda e: e["mono"]))


def story() -> list[SeenEvent]:
    """Return a story: calm, then w3 learns 1_0 of w1 and takes 0_0, then w1 leaves 1_1 to w2."""
    events = [
        event(21.0, "w1", "calm_gap", task="1_0", ms=30.0, seconds=8.0),
        event(21.0, "w2", "calm_gap", task="1_2", ms=40.0, seconds=8.0),
        *released(22.0, "w1", "0_0"),
        begun(22.2, "w3", "0_0"),
        *learned(23.0, "w1", "w3", "1_0", 4),
        event(24.0, "w2", "gap", task="1_2", ms=55.0),
        event(30.5, "w2", "calm_gap", task="1_2", ms=900.0, seconds=6.0),
        *learned(31.0, "w1", "w2", "1_1", 6),
        event(32.5, "w1", "left"),
        event(33.0, "w2", "gap", task="1_2", ms=50.0),
    ]
    return sorted(events, key=lambda e: e["mono"])


def facts(**changes: Any) -> DemoFacts:
    return replace(FACTS, **changes)


# -- hand-overs


def test_handover_of_a_learned_task_lasts_from_release_to_first_record() -> None:
    (move,) = moves(learned(10.0, "w1", "w2", "1_0", 4))
    assert (move.task, move.source, move.target) == ("1_0", "w1", "w2")
    assert (move.handover_ms, move.gap_ms) == (100.0, 120.0)
    assert move.learn_s == pytest.approx(0.2)


def test_first_owner_of_a_task_is_no_move() -> None:
    assert moves(begun(1.0, "w1", "0_0"), promoted(2.0, "w1", "1_0", at=2.0)) == []


def test_move_of_a_stateless_task_has_no_learning_time() -> None:
    (move,) = moves(released(1.0, "w1", "0_0"), begun(1.2, "w2", "0_0"))
    assert (move.handover_ms, move.learn_s) == (200.0, None)


def test_handover_without_waiting_input_ends_when_the_task_runs() -> None:
    (move,) = moves(
        assigned(1.0, "w2", 4, learner="1_0"), ready(1.1, "w2", "1_0"),
        released(2.0, "w1", "1_0"), promoted(2.3, "w2", "1_0", at=2.1), begun(9.0, "w2", "1_0"),
    )  # fmt: skip
    assert (move.handover_ms, move.gap_ms) == (100.0, 120.0)


def test_interrupted_promotion_counts_from_the_last_running_owner() -> None:
    """w1 gives 1_0 up for w2; before w2 runs it, it moves to w3, which had learned it too."""
    (move,) = moves(
        assigned(1.0, "w2", 4, learner="1_0"), ready(1.1, "w2", "1_0"),
        assigned(1.0, "w3", 4, learner="1_0"), ready(1.4, "w3", "1_0"),
        released(2.0, "w1", "1_0"),
        assigned(2.05, "w2", 5, active="1_0"),
        task(2.1, "w2", "1_0", "tailing", "restoring"),
        assigned(2.2, "w2", 6),
        task(2.2, "w2", "1_0", "restoring", "closing"),
        assigned(2.3, "w3", 7, active="1_0"),
        begun(2.5, "w3", "1_0"), promoted(2.5, "w3", "1_0", at=2.5),
    )  # fmt: skip
    assert (move.source, move.target, move.handover_ms) == ("w1", "w3", 500.0)
    assert move.learn_s == pytest.approx(0.4)


def test_task_moved_twice_is_two_handovers() -> None:
    first, second = moves(learned(10.0, "w1", "w2", "1_0", 4), learned(20.0, "w2", "w1", "1_0", 8))
    assert (first.source, first.target) == ("w1", "w2")
    assert (second.source, second.target) == ("w2", "w1")
    assert second.learn_s == pytest.approx(0.2)


def test_dropped_learner_starts_a_new_learning_time() -> None:
    (move,) = moves(
        assigned(1.0, "w2", 4, learner="1_0"), ready(1.1, "w2", "1_0"),
        assigned(2.0, "w2", 5),
        learned(10.0, "w1", "w2", "1_0", 6),
    )  # fmt: skip
    assert move.learn_s == pytest.approx(0.2)


def test_learner_over_several_rounds_counts_from_the_first_round() -> None:
    (move,) = moves(assigned(9.5, "w2", 3, learner="1_0"), learned(10.0, "w1", "w2", "1_0", 4))
    assert move.learn_s == pytest.approx(0.7)


def test_learner_promoted_before_ready_has_no_learning_time() -> None:
    (move,) = moves(
        assigned(1.0, "w2", 4, learner="1_0"),
        released(2.0, "w1", "1_0"),
        begun(2.5, "w2", "1_0"), promoted(2.5, "w2", "1_0", at=2.5), ready(3.0, "w2", "1_0"),
    )  # fmt: skip
    assert move.learn_s is None


def test_lost_task_counts_from_the_time_of_closing() -> None:
    (move,) = moves(task(2.0, "w1", "1_0", "running", "closing"), begun(2.3, "w2", "1_0"))
    assert (move.handover_ms, move.gap_ms) == (300.0, 300.0)


def test_closing_a_learner_releases_nothing() -> None:
    closing = task(2.0, "w2", "1_0", "tailing", "closing", role="learner")
    assert moves(closing, begun(2.3, "w1", "1_0")) == []


# -- the verdict


def test_verdict_of_a_good_run_has_every_field_of_the_contract() -> None:
    assert verdict(story(), FACTS) == {
        "ok": True,
        "records": 1000,
        "distinct": 7,
        "mismatches": 0,
        "workers": ["w1", "w2", "w3"],
        "rebalances": 4,
        "promotions": [
            {"task": "1_0", "from": "w1", "to": "w3", "learn_ms": 200.0, "handover_ms": 100.0},
            {"task": "1_1", "from": "w1", "to": "w2", "learn_ms": 200.0, "handover_ms": 100.0},
        ],
        "leave": {"instance": "w1", "tasks_moved": 1, "ms": 2500.0, "exit_code": 0},
        "calm_gap_ms_max": 40.0,
        "staying_gap_ms_max": 55.0,
        "moving_gap_ms_max": 220.0,
        "records_per_s": 20.0,
        "records_per_cpu_s": 500.0,
        "seconds": 60.0,
        "why": "",
    }


def test_moves_and_gaps_at_demo_start_and_end_are_not_counted() -> None:
    around = [
        *learned(10.0, "w1", "w2", "1_5", 1),
        event(12.0, "w1", "gap", task="1_0", ms=999.0),
        *learned(41.0, "w2", "w3", "1_6", 20),
        event(42.0, "w2", "gap", task="1_0", ms=999.0),
    ]
    assert verdict(sorted(story() + around, key=lambda e: e["mono"]), FACTS) == verdict(
        story(), FACTS
    )


@pytest.mark.parametrize(
    ("seconds", "fed_at"), [(4.9, 3.0), (8.0, 16.5)], ids=["too short", "without load"]
)
def test_verdict_without_a_calm_stretch_has_no_calm_gap(seconds: float, fed_at: float) -> None:
    rest = [e for e in story() if e["event"] != "calm_gap"]
    calm = event(21.0, "w1", "calm_gap", task="1_0", ms=30.0, seconds=seconds)
    found = verdict(sorted([*rest, calm], key=lambda e: e["mono"]), facts(fed_at=fed_at))
    assert found["calm_gap_ms_max"] is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"failure": "w2 ended"}, "w2 ended"),
        ({"mismatches": None}, "the counts were not compared"),
        ({"mismatches": 2, "wrong": "'a' is 1"}, "2 of 7 counts are wrong: 'a' is 1"),
        ({"forced": True}, "w1 was forced out: no worker had learned its tasks in time"),
        ({"exit_code": 1}, "w1 left with exit code 1"),
        ({"exit_code": None}, "w1 left with exit code None"),
    ],
)
def test_verdict_names_the_failed_expectation(changes: dict[str, Any], why: str) -> None:
    found = verdict(story(), facts(**changes))
    assert (found["ok"], found["why"]) == (False, why)


def test_verdict_fails_without_a_promotion_of_the_added_worker() -> None:
    others = [e for e in story() if not (e["instance"] == "w3" and e["event"] == "learner_ready")]
    assert verdict(others, FACTS)["why"] == "no learner of the added worker w3 was promoted"


def test_verdict_fails_for_a_stateful_task_moved_without_learning() -> None:
    cold = [*released(34.0, "w1", "1_7"), begun(34.2, "w2", "1_7")]
    found = verdict([*story(), *cold], FACTS)
    assert found["why"] == "tasks with state moved to workers that had not learned them: 1_7 to w2"


def test_verdict_fails_without_a_takeover_from_the_leaving_worker() -> None:
    stays = [e for e in story() if e.get("task") != "1_1"]
    assert verdict(stays, FACTS)["why"] == "w1 left, and no worker took over its tasks"


def test_verdict_of_a_run_ended_at_once_has_no_numbers() -> None:
    found = verdict(
        (), DemoFacts(records=5, workers=("w1", "w2"), stateful=frozenset(), failure="x")
    )
    assert (found["promotions"], found["rebalances"], found["leave"]["ms"]) == ([], 0, None)
    numbers = ("calm_gap_ms_max", "staying_gap_ms_max", "moving_gap_ms_max", "records_per_s")
    assert {found[name] for name in numbers} == {None}
