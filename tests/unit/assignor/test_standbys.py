"""Standbys: where they are placed, that they stay there, and that they hold up no move."""

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from streamsx.assignor.assign import assign
from streamsx.assignor.model import Group, Plan, Rules
from streamsx.model import TaskId

Build = Callable[..., Group]
Tell = Callable[[Plan], dict[str, str]]

ONE = Rules(acceptable_recovery_lag=10, imbalance_percentage=0, standby=1)
TWO = replace(ONE, standby=2)
ZONES = replace(ONE, tags=("zone",))
A = "owns 0_0"

CASES: list[tuple[str, Rules, str, dict[str, str], dict[str, str]]] = [
    ("none where nobody else is", ONE, "0_0", {"a": A}, {"a": "0_0"}),
    (
        "none for what has no state",
        ONE,
        "0_0 | 9_0",
        {"a": "owns 0_0", "b": "owns 9_0"},
        {"a": "0_0", "b": "9_0 ~0_0"},
    ),
    ("as many as there are others", TWO, "0_0", {"a": A, "b": ""}, {"a": "0_0", "b": "~0_0"}),
    ("no more than wanted", ONE, "0_0", {"a": A, "b": "", "c": ""}, {"a": "0_0", "b": "~0_0"}),
    (
        "where a copy is on the disk",
        ONE,
        "0_0",
        {"a": A, "b": "", "c": "disk 0_0=99"},
        {"a": "0_0", "c": "~0_0"},
    ),
    (
        "it stays, however far behind",
        ONE,
        "0_0",
        {"a": A, "b": "disk 0_0=0", "c": "standby 0_0=?"},
        {"a": "0_0", "c": "~0_0"},
    ),
    (
        "the lighter one, by capacity",
        ONE,
        "0_0 0_1 0_2",
        {"a": "owns 0_0", "b": "owns 0_1", "c": "capacity=2 owns 0_2"},
        {"a": "0_0 ~0_1", "b": "0_1 ~0_2", "c": "0_2 ~0_0"},
    ),
    (
        "nobody gets one who does not run the sub-topology as the leader does",
        ONE,
        "0_0",
        {"a": A, "b": "knows=1", "c": ""},
        {"a": "0_0", "c": "~0_0"},
    ),
    (
        "no leaver gets one",
        ONE,
        "0_0",
        {"a": A, "b": "leaving", "c": ""},
        {"a": "0_0", "c": "~0_0"},
    ),
    (
        "a leaver's is placed anew",
        ONE,
        "0_0",
        {"a": A, "b": "leaving standby 0_0=0", "c": ""},
        {"a": "0_0", "c": "~0_0"},
    ),
    (
        "one that is far behind is wanted, and costs no learner",
        ONE,
        "0_0",
        {"a": "owns 0_0 leaving", "b": "standby 0_0=99", "c": "disk 0_0=500"},
        {"a": "0_0", "b": "!0_0"},
    ),
    (
        "one that is ready is promised its task",
        ONE,
        "0_0",
        {"a": "owns 0_0 leaving", "b": "standby 0_0=10", "c": ""},
        {"b": "^~0_0"},
    ),
    (
        "one that was wanted is where its task goes, whoever else could have it",
        ONE,
        "0_0",
        {"a": "", "b": "standby 0_0=99 wanted 0_0", "c": "owns 0_0 leaving"},
        {"b": "!0_0", "c": "0_0"},
    ),
    (
        "also if that one has come nearer meanwhile",
        ONE,
        "0_0",
        {"a": "standby 0_0=98", "b": "standby 0_0=99 wanted 0_0", "c": "owns 0_0 leaving"},
        {"b": "!0_0", "c": "0_0"},
    ),
    (
        "a leaver is no copy that will do",
        TWO,
        "0_0",
        {"a": "owns 0_0 leaving", "b": "learner 0_0=99", "c": "", "d": ""},
        {"a": "0_0", "b": "+0_0", "c": "~0_0", "d": "~0_0"},
    ),
    (
        "one that follows what moves goes on with it",
        ONE,
        "0_0 0_1 0_2",
        {"a": "owns 0_0 0_1", "b": "owns 0_2 standby 0_1=0", "c": "learner 0_1=99"},
        {"a": "0_0 0_1 ~0_2", "b": "0_2 ~0_1", "c": "+0_1 ~0_0"},
    ),
    (
        "nobody follows what it will be the one to give up: it has the copy then",
        ONE,
        "0_0 0_1",
        {"a": "owns 0_0 0_1 standby", "b": "learner 0_0=99"},
        {"a": "0_0 0_1", "b": "+0_0 ~0_1"},
    ),
    (
        "of what waits for its turn to be learned somebody does: that may take a while",
        replace(ONE, max_learners=1),
        "0_0 0_1 0_2",
        {"a": "owns 0_0 0_1 0_2 standby", "b": "", "c": ""},
        {"a": "0_0 0_1 0_2", "b": "+0_0 ~0_1", "c": "~0_2"},
    ),
    (
        "another zone, though the same one has the copy",
        ZONES,
        "0_0",
        {"a": "zone=x owns 0_0", "b": "zone=x disk 0_0=0", "c": "zone=y"},
        {"a": "0_0", "c": "~0_0"},
    ),
    (
        "who says nothing of a zone is in no other's",
        ZONES,
        "0_0",
        {"a": "zone=x owns 0_0", "b": "zone=x", "c": ""},
        {"a": "0_0", "c": "~0_0"},
    ),
    (
        "the same zone, if there is no other",
        ZONES,
        "0_0",
        {"a": "zone=x owns 0_0", "b": "zone=x"},
        {"a": "0_0", "b": "~0_0"},
    ),
    (
        "one in the same zone is replaced, and stays until the other is ready",
        ZONES,
        "0_0",
        {"a": "zone=x owns 0_0", "b": "zone=x standby 0_0=0", "c": "zone=y"},
        {"a": "0_0", "b": "~0_0", "c": "~0_0"},
    ),
    (
        "for that long",
        ZONES,
        "0_0",
        {"a": "zone=x owns 0_0", "b": "zone=x standby 0_0=0", "c": "zone=y standby 0_0=99"},
        {"a": "0_0", "b": "~0_0", "c": "~0_0"},
    ),
    (
        "and no longer",
        ZONES,
        "0_0",
        {"a": "zone=x owns 0_0", "b": "zone=x standby 0_0=0", "c": "zone=y standby 0_0=10"},
        {"a": "0_0", "c": "~0_0"},
    ),
    (
        "at once, if it is not ready itself",
        ZONES,
        "0_0",
        {"a": "zone=x owns 0_0", "b": "zone=x standby 0_0=99", "c": "zone=y"},
        {"a": "0_0", "c": "~0_0"},
    ),
    (
        "of too many the one that is ready stays beside what is wanted, one of them",
        ONE,
        "0_0",
        {"a": A, "b": "standby 0_0=0", "c": "standby 0_0=99", "d": "standby 0_0=98"},
        {"a": "0_0", "b": "~0_0"},
    ),
    (
        "both of two that are too near are replaced, and one of them stays until then",
        replace(ZONES, standby=2),
        "0_0",
        {
            "a": "zone=x owns 0_0",
            "b": "zone=x standby 0_0=0",
            "c": "zone=x standby 0_0=0",
            "d": "zone=y",
            "e": "zone=z",
        },
        {"a": "0_0", "b": "~0_0", "d": "~0_0", "e": "~0_0"},
    ),
    (
        "who has too many gives one to who has room",
        ONE,
        "0_0 0_1 0_2",
        {"a": A, "b": "owns 0_1 standby 0_0=99 0_2=99", "c": "owns 0_2 standby 0_1=99"},
        {"a": "0_0 ~0_2", "b": "0_1 ~0_0", "c": "0_2 ~0_1"},
    ),
]


@pytest.mark.parametrize(("what", "rules", "tasks", "members", "plan"), CASES)
def test_standbys_are_placed_as_expected(
    group: Build, tell: Tell, what: str, rules: Rules, tasks: str, members: dict[str, str],
    plan: dict[str, str],
) -> None:  # fmt: skip
    told = tell(assign(group(tasks, **members), rules))

    assert {name: has for name, has in told.items() if has} == plan, what


def test_standby_move_is_explained(group: Build) -> None:
    shape = group("0_0", a="zone=x owns 0_0", b="zone=x standby 0_0=0", c="zone=y")

    (decision,) = assign(shape, ZONES).explain

    assert decision.decision == "standby-move"
    assert (
        decision.why == "c has no copy and follows it in place of b, which is too full or too near"
    )
    assert (decision.task, decision.owner, decision.to) == (TaskId(0, 0), "id-a", "id-c")


def test_thousand_tasks_are_spread_evenly_over_zones(group: Build) -> None:
    tasks = [f"0_{p}" for p in range(1000)]
    members = {f"m{n:02}": f"zone={'xyz'[n % 3]}" for n in range(21)}

    plan = assign(group(" ".join(tasks), **members), ZONES)

    counts = {len(plan.active[m]) + len(plan.standby[m]) for m in plan.active}
    assert max(counts) - min(counts) <= 1
    zone = {m: "xyz"[int(m[-2:]) % 3] for m in plan.active}
    runs = {task: m for m, tasks in plan.active.items() for task in tasks}
    assert all(zone[runs[t]] != zone[m] for m, tasks in plan.standby.items() for t in tasks)


@pytest.mark.perf
def test_planning_time_grows_little_with_one_zone_per_member(group: Build) -> None:
    """It was 15 times as long, because each place was asked for each task."""
    tasks = " ".join(f"0_{p}" for p in range(3000))

    def cpu_s(word: str) -> float:
        shape = group(tasks, **{f"m{n:03}": word.format(n) for n in range(150)})
        began = time.process_time()
        assign(shape, ZONES)
        return time.process_time() - began

    apart, together = (min(cpu_s(word) for _ in range(3)) for word in ("zone={}", ""))
    assert apart < 3 * together
