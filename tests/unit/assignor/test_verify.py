"""Invariants: each finds a plan that breaks it; decisions: each has its sentence."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from streamsx.assignor.assign import assign, look
from streamsx.assignor.model import Group, Rules, Withheld
from streamsx.assignor.round import RULES as ROWS
from streamsx.assignor.verify import INVARIANTS, WHY, in_a_line, verify
from streamsx.errors import IllegalPlan
from streamsx.model import TaskId

Build = Callable[..., Group]
RULES = Rules(acceptable_recovery_lag=10, imbalance_percentage=0, max_learners_per_member=1)
T0, T1, T2, U = TaskId(0, 0), TaskId(0, 1), TaskId(0, 2), TaskId(9, 0)
HELD = {T0: Withheld("id-a", "id-b", "")}

# which invariant, the group, what is changed in its plan
BROKEN: list[tuple[str, str, dict[str, str], dict[str, object]]] = [
    ("V1", "0_0", {"a": ""}, {"active": {"id-a": ()}}),
    ("V1", "0_0", {"a": "", "b": ""}, {"active": {"id-a": (T0,), "id-b": (T0,)}}),
    ("V1", "0_0", {"a": "owns 0_0"}, {"withheld": HELD}),
    ("V2", "0_0", {"a": "owns 0_0", "b": ""}, {"active": {"id-b": (T0,)}}),
    ("V3", "0_0", {"a": ""}, {"active": {}, "withheld": {T0: Withheld(None, None, "")}}),
    ("V4", "0_0", {"a": ""}, {"learner": {"id-a": (T0,)}}),
    ("V5", "0_0", {"a": "", "b": "leaving"}, {"active": {"id-b": (T0,)}}),
    ("V5", "0_0", {"a": "", "b": "leaving"}, {"learner": {"id-b": (T0,)}}),
    ("V6", "| 9_0", {"a": "owns 9_0", "b": ""}, {"learner": {"id-b": (U,)}}),
    ("V7", "0_0", {"a": "owns 0_0", "b": ""}, {"learner": {"id-b": (T0,)}}),
    ("V8", "0_0 0_1 0_2", {"a": "owns 0_0 0_1 0_2", "b": ""}, {"learner": {"id-b": (T0, T1)}}),
    ("V9", "0_0", {"a": "owns 0_0", "b": ""}, {"active": {}, "withheld": HELD}),
    ("V9", "0_0", {"a": "ran 0_0", "b": ""}, {"active": {"id-b": (T0,)}}),
    ("V10", "0_0", {"a": "", "b": "knows=1"}, {"active": {"id-b": (T0,)}}),
    ("V10", "0_0", {"a": "", "b": "opaque"}, {"active": {"id-b": (T0,)}}),
    ("V10", "0_0", {"a": "", "t": "observer"}, {"active": {"id-t": (T0,)}}),
    ("V10", "0_0", {"a": ""}, {"active": {"id-a": (T0, T1)}}),
    ("V4", "0_0", {"a": ""}, {"standby": {"id-a": (T0,)}}),
    ("V4", "0_0", {"a": "owns 0_0 leaving", "b": ""}, {"standby": {"id-b": (T0,)}}),
    ("V5", "0_0", {"a": "", "b": "leaving"}, {"standby": {"id-b": (T0,)}}),
    ("V6", "| 9_0", {"a": "owns 9_0", "b": ""}, {"standby": {"id-b": (U,)}}),
    ("V10", "0_0", {"a": "", "b": "knows=1"}, {"standby": {"id-b": (T0,)}}),
    (
        "V11",
        "0_0",
        {"a": "owns 0_0", "b": "", "c": ""},
        {"standby": {"id-b": (T0,), "id-c": (T0,)}},
    ),
    ("V11", "0_0", {"a": "owns 0_0", "b": ""}, {"wanted": {T0: "id-b"}}),
]


@pytest.mark.parametrize(("number", "tasks", "members", "changes"), BROKEN)
def test_broken_plan_is_refused(
    group: Build, number: str, tasks: str, members: dict[str, str], changes: dict[str, object]
) -> None:
    shape = group(tasks, **members)
    view, plan = look(shape, RULES), assign(shape, RULES)
    verify(view, plan)

    with pytest.raises(IllegalPlan) as broken:
        verify(view, replace(plan, **changes))  # type: ignore[arg-type]  # fields of a plan

    named = {f"V{n}": rule.__name__ for n, rule in enumerate(INVARIANTS, 1)}
    assert named[number] in str(broken.value)


def test_plan_over_the_group_limit_is_refused(group: Build) -> None:
    rules = replace(RULES, max_learners=1, max_learners_per_member=None)
    shape = group("0_0 0_1 0_2 0_3", a="owns 0_0 0_1 0_2 0_3", b="")
    plan = assign(shape, rules)

    with pytest.raises(IllegalPlan, match="the group learns too much"):
        verify(look(shape, rules), replace(plan, learner={"id-b": (T0, T1)}))


def test_each_invariant_has_a_case() -> None:
    assert {number for number, *_ in BROKEN} == {f"V{n}" for n in range(1, len(INVARIANTS) + 1)}


EXPLAINED: list[tuple[str, str, dict[str, str]]] = [
    (
        (
            "standby-drop: b is 5 records behind and follows it no more; "
            "0 kept (num_standby_replicas)"
        ),
        "0_0",
        {"a": "owns 0_0", "b": "standby 0_0=5"},
    ),
    (
        "stage: b is 11 records behind (limit 10); a keeps running",
        "0_0",
        {"a": "owns 0_0 leaving", "b": "learner 0_0=11"},
    ),
    (
        "stage: b has no copy (limit 10); a keeps running",
        "0_0",
        {"a": "owns 0_0 leaving", "b": ""},
    ),
    (
        (
            "parked: b already learns 1 (max_learners_per_member); "
            "a is 0 records behind and keeps running"
        ),
        "0_0 0_1",
        {"a": "owns 0_0 0_1 leaving", "b": "learner 0_1=99"},
    ),
    (
        "withheld: still owned by a; b is next",
        "0_0",
        {"a": "owns 0_0 leaving", "b": "learner 0_0=0"},
    ),
    (
        "hand-over: b is 5 records behind (limit 10) and takes over from a",
        "0_0",
        {"a": "ran 0_0 leaving", "b": "learner 0_0=5"},
    ),
    (
        (
            "promote: no worker has it now; b is 5 records behind on its disk (limit 10) and takes "
            "over"
        ),
        "0_0",
        {"b": "disk 0_0=5"},
    ),
    (
        "cold: no worker has it now and no worker has a copy; b restores it",
        "0_0",
        {"b": ""},
    ),
    (
        (
            "least-lag: no worker has it now and no other copy is nearer: "
            "b does not know how far behind it is"
        ),
        "0_0",
        {"b": "disk 0_0=?"},
    ),
    (
        (
            "failover: no worker has it now; c is 5 records behind on its disk and takes over; "
            "b is 99 records behind and learns it"
        ),
        "0_0 0_1",
        {"b": "learner 0_0=99", "c": "owns 0_1 disk 0_0=5"},
    ),
    (
        "keep-restoring: a is 99 records behind and restores; b is 98 records behind",
        "0_0",
        {"a": "restoring 0_0=99 leaving", "b": "learner 0_0=98"},
    ),
    (
        "stateless: no state, so nothing has to be restored",
        "| 0_0",
        {"b": ""},
    ),
    (
        "wait: a command asks the group, so nothing is handed over now; a keeps running",
        "0_0",
        {"a": "owns 0_0 leaving", "b": "learner 0_0=0", "t": "observer"},
    ),
]


@pytest.mark.parametrize(("why", "tasks", "members"), EXPLAINED)
def test_decision_is_explained_with_numbers(
    group: Build, why: str, tasks: str, members: dict[str, str]
) -> None:
    decision = assign(group(tasks, **members), RULES).explain[0]

    assert f"{decision.decision}: {decision.why}" == why


def test_owner_past_the_deadline_is_named_in_the_reason(group: Build) -> None:
    shape = group("0_0", a="ran 0_1 owns 0_0 leaving=0", b="learner 0_0=5")

    assert assign(shape, RULES).withheld[T0].reason == "still owned by a"


def test_group_limit_is_named_as_the_reason(group: Build) -> None:
    rules = replace(RULES, max_learners=1, max_learners_per_member=None)

    plan = assign(group("0_0 0_1", a="owns 0_0 0_1 leaving", b=""), rules)

    assert plan.explain[1].why.startswith("the group already learns 1 (max_learners); ")


def test_unmoved_task_has_no_explanation(group: Build) -> None:
    assert assign(group("0_0", a="owns 0_0"), RULES).explain == ()


def test_plan_line_names_the_changes_of_each_member(group: Build) -> None:
    rules = replace(RULES, max_learners=1, max_learners_per_member=None)
    shape = group(
        "0_0 0_1 0_2 0_3 | 9_0 9_1", a="owns 0_0 0_1 9_0 9_1 leaving", b="owns 0_2 0_3", c=""
    )

    labels = {"id-a": "ann", "id-b": "bob", "id-c": "cleo"}

    assert in_a_line(assign(shape, rules), labels) == (
        "ann runs 2, gives up 9_0-1; cleo runs 0, learns 0_0; bob runs 2; later: 0_1"
    )
    shape = group("0_0 0_1", a="owns 0_1", b="learner 0_0=3")
    assert in_a_line(assign(shape, rules), labels) == (
        "bob runs 1, takes over 0_0; ann runs 1; cleo runs 0"
    )


def test_plan_line_names_the_failover_member_and_not_the_target(group: Build) -> None:
    plan = assign(group("0_0 0_1", a="", b="owns 0_1 disk 0_0=90000"), RULES)

    assert (plan.explain[0].decision, plan.target[T0]) == ("failover", "id-a")
    assert in_a_line(plan, {"id-a": "ann", "id-b": "bob"}) == (
        "ann runs 0, learns 0_0; bob runs 2, takes over 0_0"
    )


def test_plan_line_sums_up_unchanged_members(group: Build) -> None:
    owns = {f"m{number:02}": f"owns 0_{number}" for number in range(12)}
    plan = assign(group(" ".join(word.split()[1] for word in owns.values()), **owns), RULES)

    told = in_a_line(plan, {f"id-{name}": name for name in owns}).split("; ")

    assert (told[0], told[8:]) == ("m00 runs 1", ["4 others stay"])


def test_every_rule_has_an_explanation() -> None:
    assert {row.name for row in ROWS} - {"keep"} | {"withheld", "parked"} == set(WHY)
