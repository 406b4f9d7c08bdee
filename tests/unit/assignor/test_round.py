"""Rows of the rules of a round, and the limits of learners."""

from collections.abc import Callable

import pytest

from streamsx.assignor.assign import assign, look
from streamsx.assignor.model import Group, Plan, Rules
from streamsx.assignor.round import RULES, round_assignment
from streamsx.model import TaskId

Build = Callable[..., Group]
Tell = Callable[[Plan], dict[str, str]]

NEAR = Rules(acceptable_recovery_lag=10, imbalance_percentage=0)
UNSTAGED = Rules(acceptable_recovery_lag=10, imbalance_percentage=0, max_learners=0)

# rule, who runs 0_0 now, does b learn it; b is where 0_0 shall end
ROWS: list[tuple[str, str, bool, str, dict[str, str]]] = [
    ("keep", "b", False, "0_0", {"b": "owns 0_0"}),
    ("wait", "a", True, "0_0", {"a": "owns 0_0 leaving", "b": "learner 0_0", "t": "observer"}),
    ("wait", "a", False, "| 0_0", {"a": "owns 0_0 leaving", "b": "", "t": "observer"}),
    ("stateless", "b", False, "| 0_0", {"a": "owns 0_0 leaving", "b": ""}),
    ("promote", "b", False, "0_0", {"b": "disk 0_0=10"}),
    ("promote", "b", False, "0_0", {"a": "owns 0_0 leaving=0", "b": "learner 0_0"}),
    ("failover", "c", True, "0_0 0_1", {"b": "learner 0_0=11", "c": "owns 0_1 disk 0_0=10"}),
    ("failover", "a", True, "0_0", {"a": "disk 0_0=99 promised 0_0", "b": "", "c": "disk 0_0=50"}),
    ("least-lag", "b", False, "0_0", {"b": "disk 0_0=?"}),
    ("least-lag", "b", False, "0_0", {"a": "owns 0_0 leaving=0", "b": "learner 0_0=99"}),
    ("cold", "b", False, "0_0", {"b": ""}),
    ("hand-over", "b", False, "0_0", {"a": "owns 0_0 leaving", "b": "learner 0_0=10"}),
    ("hand-over", "b", False, "0_0", {"a": "owns 0_0 leaving", "b": "learner 0_0=99 promised 0_0"}),
    ("stage", "a", True, "0_0", {"a": "owns 0_0 leaving", "b": "disk 0_0=10"}),
    ("stage", "a", True, "0_0", {"a": "owns 0_0 leaving", "b": "learner 0_0=11"}),
    ("stage", "a", True, "0_0", {"a": "restoring 0_0=10 leaving", "b": ""}),
    ("overtake", "b", False, "0_0", {"a": "restoring 0_0=99 leaving", "b": "learner 0_0=49"}),
    ("keep-restoring", "a", True, "0_0", {"a": "restoring 0_0=98 leaving", "b": "learner 0_0=49"}),
    ("keep-restoring", "a", True, "0_0", {"a": "restoring 0_0=? leaving", "b": ""}),
    (
        "keep-restoring",
        "a",
        True,
        "0_0 0_1",
        {"a": "restoring 0_0=98 leaving", "b": "learner 0_0=60", "c": "owns 0_1 disk 0_0=50"},
    ),
    (
        "failover",
        "c",
        True,
        "0_0 0_1",
        {"a": "restoring 0_0=99 leaving", "b": "learner 0_0=11", "c": "owns 0_1 disk 0_0=10"},
    ),
]


@pytest.mark.parametrize(("rule", "runner", "learns", "tasks", "members"), ROWS)
def test_first_matching_rule_decides(
    group: Build, rule: str, runner: str, learns: bool, tasks: str, members: dict[str, str]
) -> None:
    view = look(group(tasks, **members), NEAR)
    seats = {member.instance: seat for seat, member in enumerate(view.members)}
    elsewhere = {task.id: seats["c"] for task in view.tasks if task.id != TaskId(0, 0)}

    choice = round_assignment(view, {TaskId(0, 0): seats["b"], **elsewhere})[0]

    assert (choice.rule, choice.runner, choice.learn) == (rule, seats[runner], learns)


def test_every_rule_has_a_case() -> None:
    assert {row[0] for row in ROWS} | {"unstaged"} == {rule.name for rule in RULES}


def test_task_without_staging_moves_at_once_and_does_not_return(group: Build, tell: Tell) -> None:
    claimed = assign(group("0_0", a="owns 0_0 leaving", b=""), UNSTAGED)
    released = assign(group("0_0 0_1", a="disk 0_0=0 owns 0_1", b=""), UNSTAGED)

    assert str(claimed.withheld[TaskId(0, 0)].heir) == "id-b"
    assert tell(released) == {"a": "0_1", "b": "0_0"}


def test_less_loaded_member_takes_over_among_equally_near_copies(group: Build, tell: Tell) -> None:
    shape = group(
        "0_0 0_1 0_2 0_3",
        a="owns 0_1 0_2 disk 0_0=0",
        b="owns 0_3 disk 0_0=0",
        c="learner 0_0=99",
    )

    assert tell(assign(shape, NEAR))["b"] == "0_0 0_3"


def test_failovers_are_shared_out(group: Build, tell: Tell) -> None:
    disk = "disk 0_0=0 0_1=0"
    shape = group(
        "0_0 0_1 0_2 0_3 0_4 0_5",
        a=f"owns 0_2 0_3 {disk}",
        b=f"owns 0_4 0_5 {disk}",
        c="learner 0_0=99 0_1=99",
    )

    assert tell(assign(shape, NEAR)) == {
        "a": "0_0 0_2 0_3",
        "b": "0_1 0_4 0_5",
        "c": "+0_0 +0_1",
    }


def test_each_receiver_learns_several_tasks_at_once_up_to_the_limit(
    group: Build, tell: Tell
) -> None:
    shape = group(
        "0_0 0_1 0_2 0_3 0_4 0_5 0_6 0_7 0_8",
        a="owns 0_0 0_1 0_2 0_3 0_4 0_5 0_6 0_7 0_8",
        b="",
        c="",
    )

    plan = assign(shape, NEAR)

    assert tell(plan) == {
        "a": "0_0 0_1 0_2 0_3 0_4 0_5 0_6 0_7 0_8",
        "b": "+0_0 +0_2",
        "c": "+0_1 +0_3",
    }
    assert plan.parked == {TaskId(0, 4): "id-b", TaskId(0, 5): "id-c"}


def test_group_limit_is_shared_among_members_learning_least(group: Build, tell: Tell) -> None:
    rules = Rules(acceptable_recovery_lag=10, max_learners=3, max_learners_per_member=None)
    shape = group("0_0 0_1 0_2 0_3 0_4 0_5", a="owns 0_0 0_1 0_2 0_3 0_4 0_5", b="", c="")

    told = tell(assign(shape, rules))

    assert (told["b"], told["c"]) == ("+0_0 +0_2", "+0_1")


def test_running_learner_continues_before_new_ones_start(group: Build, tell: Tell) -> None:
    rules = Rules(acceptable_recovery_lag=10, max_learners_per_member=1)
    owner = "owns 0_0 0_1 0_2 0_3"

    plain = group("0_0 0_1 0_2 0_3", a=owner, b="learner 0_3=99 disk 0_0=50")
    stalled = group("0_0 0_1 0_2 0_3", a=owner, b="learner 0_3=99 stalled 0_3")

    assert tell(assign(plain, rules))["b"] == "+0_3"
    assert tell(assign(stalled, rules))["b"] == "+0_0"


def test_tasks_of_a_leaver_are_learned_first(group: Build, tell: Tell) -> None:
    rules = Rules(acceptable_recovery_lag=10, imbalance_percentage=0, max_learners_per_member=1)
    shape = group("0_0 0_1 0_2 0_3 0_4", a="owns 0_0 0_1 0_2 0_3", b="owns 0_4 leaving", c="")

    assert tell(assign(shape, rules))["c"] == "+0_4"


def test_promise_counts_as_a_learner_and_is_kept_beyond_the_limit(group: Build, tell: Tell) -> None:
    rules = Rules(acceptable_recovery_lag=10, imbalance_percentage=0, max_learners_per_member=1)
    shape = group(
        "0_0 0_1 0_2 0_3 0_4 0_5", a="owns 0_0 0_1 0_2 0_3 0_4 0_5", b="learner 0_0=0 0_1=0 0_2=99"
    )

    plan = assign(shape, rules)

    assert tell(plan)["b"] == "^0_0 ^0_1"
    assert plan.parked == {TaskId(0, 2): "id-b"}
