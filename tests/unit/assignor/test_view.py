"""View of a group: members that stay, owners of tasks, and members that could take over."""

from collections.abc import Callable

from streamsx.assignor.assign import look
from streamsx.assignor.model import Group, Rules
from streamsx.assignor.view import Facts, View

Build = Callable[..., Group]


def facts(group: Group) -> Facts:
    return look(group, Rules()).tasks[0]


def seats(view: View) -> list[str | None]:
    return [member.instance for member in view.members]


def test_members_are_ordered_by_name(group: Build) -> None:
    view = look(group("0_0", b="", c="", a=""), Rules())

    assert seats(view) == ["a", "b", "c"]


def test_observer_has_no_seat(group: Build) -> None:
    view = look(group("0_0", a="", tool="observer"), Rules())

    assert (seats(view), view.observed) == (["a"], True)


def test_leaver_or_opaque_member_receives_nothing(group: Build) -> None:
    view = look(group("0_0", a="leaving", b="opaque", c=""), Rules())

    assert view.stay == {2}


def test_leaver_is_overdue_from_the_deadline_on(group: Build) -> None:
    members = {"a": "leaving=1000", "b": "leaving=1001", "c": "leaving"}

    assert look(group("0_0", now_ms=1000, **members), Rules()).expired == {0}


def test_claimant_owns_the_task_and_runs_the_task_by_default(group: Build) -> None:
    task = facts(group("0_0", a="disk 0_0", b="owns 0_0"))

    assert task.owner == 1
    assert task.lag(1) == 0


def test_first_claimant_owns_a_task_claimed_twice(group: Build) -> None:
    task = facts(group("0_0", b="owns 0_0", a="owns 0_0"))

    assert (task.owner, task.claimants) == (0, (0, 1))


def test_unclaimed_task_belongs_to_the_most_advanced_last_runner(group: Build) -> None:
    """Eager members release everything before they join."""
    assert facts(group("0_0", a="disk 0_0", b="ran 0_0")).owner == 1
    assert facts(group("0_0", a="disk 0_0", b="ran 0_0=8", c="ran 0_0=7")).owner == 2
    assert facts(group("0_0", a="disk 0_0", b="disk 0_0")).owner is None


def test_overdue_leaver_owns_only_claimed_tasks(group: Build) -> None:
    assert facts(group("0_0", a="ran 0_0 leaving=0")).owner is None
    assert facts(group("0_0", a="owns 0_0 leaving=0")).owner == 0


def test_home_is_the_promised_member_then_the_nearest_learner(group: Build) -> None:
    going = "learner 0_0=5"
    assert facts(group("0_0", a="owns 0_0", b=going, c="learner 0_0=4")).home == 2
    assert facts(group("0_0", a="owns 0_0", b=f"{going} promised 0_0", c=going)).home == 1


def test_home_is_the_staying_owner_when_nothing_learns(group: Build) -> None:
    assert facts(group("0_0", a="owns 0_0", b="disk 0_0 standby 0_0")).home == 0
    assert facts(group("0_0", a="owns 0_0 leaving", b="disk 0_0")).home is None


def test_member_with_another_signature_cannot_take_a_task_unless_all_have(group: Build) -> None:
    assert facts(group("0_0", a="knows=0,1", b="knows=1", c="")).able == (0, 2)
    assert facts(group("0_0", a="knows=0 leaving", b="knows=1", c="knows=1")).able == (1, 2)


def test_stateless_task_has_only_running_copies(group: Build) -> None:
    task = facts(group("| 0_0", a="restoring 0_0=7", b="learner 0_0", c="ran 0_0"))

    assert [(seat, task.lag(seat)) for seat in task.copies] == [(0, 0), (2, 0)]


def test_member_is_ready_within_the_lag_or_with_a_promise_and_a_copy(
    group: Build,
) -> None:
    rules = Rules(acceptable_recovery_lag=10)
    members = {
        "a": "learner 0_0=10",
        "b": "learner 0_0=11",
        "c": "learner 0_0=11 promised 0_0",
        "d": "promised 0_0",
        "e": "learner 0_0=?",
    }

    view = look(group("0_0", **members), rules)

    assert [view.ready(view.tasks[0], seat) for seat in range(5)] == [
        True,
        False,
        True,
        False,
        False,
    ]
