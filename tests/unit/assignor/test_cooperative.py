"""Tasks that must be released first, and the members that get them."""

from collections.abc import Callable

from streamsx.assignor.assign import assign
from streamsx.assignor.model import Group, Plan, Rules, Withheld
from streamsx.model import TaskId

Build = Callable[..., Group]
Tell = Callable[[Plan], dict[str, str]]
T = TaskId(0, 0)


def test_heir_with_a_copy_keeps_learning_with_a_promise(group: Build, tell: Tell) -> None:
    plan = assign(group("0_0", a="owns 0_0 leaving", b="learner 0_0=0"), Rules())

    assert tell(plan) == {"a": "", "b": "^0_0"}
    assert plan.withheld == {T: Withheld("id-a", "id-b", "still owned by a")}
    assert (plan.revoke["id-a"], *plan.withheld) == ((T,), T)


def test_heir_without_a_copy_gets_no_promise(group: Build, tell: Tell) -> None:
    plan = assign(group("| 0_0", a="owns 0_0 leaving", b=""), Rules())

    assert tell(plan) == {"a": "", "b": ""}
    assert plan.withheld == {T: Withheld("id-a", "id-b", "still owned by a")}


def test_task_claimed_by_two_members_is_withheld_until_both_revoke(
    group: Build, tell: Tell
) -> None:
    plan = assign(group("0_0", a="owns 0_0", b="owns 0_0"), Rules())

    assert tell(plan) == {"a": "^0_0", "b": ""}
    assert plan.withheld == {T: Withheld("id-a", "id-a", "claimed by a and b")}
    assert plan.revoke == {"id-a": (T,), "id-b": (T,)}


def test_leaver_is_never_an_heir(group: Build, tell: Tell) -> None:
    plan = assign(group("0_0", a="owns 0_0 leaving", b="restoring 0_0=? leaving", c=""), Rules())

    assert tell(plan) == {"a": "", "b": "", "c": "+0_0"}
    assert plan.withheld[T].heir is None


def test_released_task_is_assigned_at_once(group: Build, tell: Tell) -> None:
    plan = assign(
        group("0_0 0_1", a="owns 0_1 disk 0_0=0", b="learner 0_0=99 promised 0_0"),
        Rules(acceptable_recovery_lag=0),
    )

    assert tell(plan) == {"a": "0_1", "b": "0_0"}
    assert plan.revoke == {"id-a": (), "id-b": ()}
    assert not plan.withheld
