"""Who leaves, until when, and what if nobody stays."""

from collections.abc import Callable

from streamsx.assignor.assign import assign
from streamsx.assignor.leaving import evictions, leavers
from streamsx.assignor.model import (
    Group,
    Mark,
    MarkState,
    MemberAtJoin,
    Memory,
    Plan,
    Rules,
    WayOut,
)
from streamsx.model import TaskId

Build = Callable[..., Group]
Tell = Callable[[Plan], dict[str, str]]


def asked(state: MarkState, deadline_ms: int | None = None, epoch_ms: int = 5) -> Mark:
    return Mark(state, deadline_ms, epoch_ms=epoch_ms)


def leaves(member: MemberAtJoin, mark: Mark) -> WayOut | None:
    return leavers([member], Memory(marks={"a": mark})).get(member.id)


def test_a_deadline_is_over_from_its_own_millisecond_on() -> None:
    assert [WayOut(10).overdue(now) for now in (9, 10, 11, 1000)] == [False, True, True, True]
    assert not WayOut().overdue(1 << 60)


def test_a_marked_instance_leaves_until_the_mark_s_deadline() -> None:
    mark = asked(MarkState.LEAVING, 1000)

    assert leaves(MemberAtJoin("1", instance="a"), mark) == WayOut(1000)
    assert leaves(MemberAtJoin("1", instance="b"), mark) is None
    assert leaves(MemberAtJoin("1"), mark) is None


def test_of_two_deadlines_the_sooner_one_counts() -> None:
    signalled = MemberAtJoin("1", instance="a", leaving=WayOut(400))

    assert leaves(signalled, asked(MarkState.LEAVING, 1000)) == WayOut(400)
    assert leaves(signalled, asked(MarkState.LEAVING, 300)) == WayOut(300)
    assert leaves(signalled, asked(MarkState.LEAVING)) == WayOut(400)


def test_a_cancelled_leaver_stays_although_it_has_not_heard_of_it_yet() -> None:
    old = {"a": asked(MarkState.LEAVING, epoch_ms=4)}
    cancelled = asked(MarkState.CANCELLED)

    assert leaves(MemberAtJoin("1", instance="a", leaving=WayOut()), cancelled) is None
    assert leaves(MemberAtJoin("1", instance="a", leaving=WayOut(), marks=old), cancelled) is None


def test_who_has_heard_of_the_cancellation_and_leaves_has_its_own_reason() -> None:
    cancelled = asked(MarkState.CANCELLED)
    stopped = MemberAtJoin("1", instance="a", leaving=WayOut(9), marks={"a": cancelled})

    assert leaves(stopped, cancelled) == WayOut(9)


def test_when_nobody_stays_owners_go_on_and_are_told_not_to_wait(group: Build, tell: Tell) -> None:
    plan = assign(
        group("0_0 0_1 0_2 0_3", a="owns 0_0 0_1 leaving", b="owns 0_1 0_2 leaving"), Rules()
    )

    assert tell(plan) == {"a": "0_0", "b": "0_2"}
    assert plan.no_takers
    assert {task: w.reason for task, w in plan.withheld.items()} == {
        TaskId(0, 1): "claimed by a and b",
        TaskId(0, 3): "nobody stays",
    }
    assert {w.heir for w in plan.withheld.values()} == {None}


def test_a_group_of_tools_alone_has_a_plan_too(group: Build) -> None:
    plan = assign(group("0_0", tool="observer"), Rules())

    assert (plan.active, plan.no_takers) == ({}, True)


def test_marked_instances_are_removed_five_seconds_after_their_deadline() -> None:
    members = [
        MemberAtJoin("1", instance="a"),
        MemberAtJoin("2", instance="b"),
        MemberAtJoin("3", instance="c"),
    ]
    marks = {
        "a": asked(MarkState.LEAVING, 1000),
        "b": asked(MarkState.LEAVING),
        "c": asked(MarkState.CANCELLED, 1000),
        "gone": asked(MarkState.LEAVING, 1000),
    }

    assert evictions(members, Memory(marks=marks), now_ms=0) == {"1": 6000}


def test_who_comes_back_behind_its_deadline_is_to_hear_of_the_mark_first() -> None:
    """Removed at once it joined again, was removed again, and so for ever."""
    member, marks = MemberAtJoin("1", instance="a"), {"a": asked(MarkState.LEAVING, 1000)}

    assert evictions([member], Memory(marks=marks), now_ms=9000) == {"1": 14_000}
