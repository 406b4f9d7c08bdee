"""Who stays, who owns what, who could take it."""

from collections.abc import Callable

from streamsx.assignor.assign import look
from streamsx.assignor.model import Group, Rules
from streamsx.assignor.view import Facts, View

Build = Callable[..., Group]


def facts(group: Group) -> Facts:
    return look(group, Rules()).tasks[0]


def seats(view: View) -> list[str | None]:
    return [member.instance for member in view.members]


def test_members_stand_in_the_order_of_their_names(group: Build) -> None:
    view = look(group("0_0", b="", c="", a=""), Rules())

    assert seats(view) == ["a", "b", "c"]


def test_an_observer_has_no_seat(group: Build) -> None:
    view = look(group("0_0", a="", tool="observer"), Rules())

    assert (seats(view), view.observed) == (["a"], True)


def test_who_leaves_or_cannot_be_read_receives_nothing(group: Build) -> None:
    view = look(group("0_0", a="leaving", b="opaque", c=""), Rules())

    assert view.stay == {2}


def test_a_leaver_is_overdue_from_its_deadline_on(group: Build) -> None:
    members = {"a": "leaving=1000", "b": "leaving=1001", "c": "leaving"}

    assert look(group("0_0", now_ms=1000, **members), Rules()).expired == {0}


def test_who_claims_a_task_owns_it_and_runs_it_unless_it_says_less(group: Build) -> None:
    task = facts(group("0_0", a="disk 0_0", b="owns 0_0"))

    assert task.owner == 1
    assert task.lag(1) == 0


def test_of_two_claimants_the_first_owns(group: Build) -> None:
    task = facts(group("0_0", b="owns 0_0", a="owns 0_0"))

    assert (task.owner, task.claimants) == (0, (0, 1))


def test_what_nobody_claims_belongs_to_who_ran_it_last_and_is_furthest(group: Build) -> None:
    """So it is with members that let go of everything before they join."""
    assert facts(group("0_0", a="disk 0_0", b="ran 0_0")).owner == 1
    assert facts(group("0_0", a="disk 0_0", b="ran 0_0=8", c="ran 0_0=7")).owner == 2
    assert facts(group("0_0", a="disk 0_0", b="disk 0_0")).owner is None


def test_an_overdue_leaver_owns_only_what_it_claims(group: Build) -> None:
    assert facts(group("0_0", a="ran 0_0 leaving=0")).owner is None
    assert facts(group("0_0", a="owns 0_0 leaving=0")).owner == 0


def test_home_is_where_a_task_is_going_the_promised_member_first(group: Build) -> None:
    going = "learner 0_0=5"
    assert facts(group("0_0", a="owns 0_0", b=going, c="learner 0_0=4")).home == 2
    assert facts(group("0_0", a="owns 0_0", b=f"{going} promised 0_0", c=going)).home == 1


def test_home_is_with_the_owner_if_the_task_goes_nowhere(group: Build) -> None:
    assert facts(group("0_0", a="owns 0_0", b="disk 0_0 standby 0_0")).home == 0
    assert facts(group("0_0", a="owns 0_0 leaving", b="disk 0_0")).home is None


def test_who_has_other_code_cannot_take_a_task_unless_everybody_has(group: Build) -> None:
    assert facts(group("0_0", a="knows=0,1", b="knows=1", c="")).able == (0, 2)
    assert facts(group("0_0", a="knows=0 leaving", b="knows=1", c="knows=1")).able == (1, 2)


def test_a_task_without_state_has_no_copies_but_those_that_run(group: Build) -> None:
    task = facts(group("| 0_0", a="restoring 0_0=7", b="learner 0_0", c="ran 0_0"))

    assert [(seat, task.lag(seat)) for seat in task.copies] == [(0, 0), (2, 0)]


def test_ready_is_who_is_near_enough_or_was_promised_the_task_and_has_something(
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
