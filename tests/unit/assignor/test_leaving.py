"""Who leaves, until when, and what if nobody stays."""

from collections.abc import Callable

from streamsx.assignor.assign import assign
from streamsx.assignor.leaving import evictions, leavers
from streamsx.assignor.model import (
    Group,
    LeaveRequest,
    Mark,
    MarkState,
    MemberMetadata,
    Memory,
    Plan,
    Rules,
)
from streamsx.model import TaskId

Build = Callable[..., Group]
Tell = Callable[[Plan], dict[str, str]]


def asked(state: MarkState, deadline_ms: int | None = None, epoch_ms: int = 5) -> Mark:
    return Mark(state, deadline_ms, epoch_ms=epoch_ms)


def leaves(member: MemberMetadata, mark: Mark) -> LeaveRequest | None:
    return leavers([member], Memory(marks={"a": mark})).get(member.id)


def test_a_deadline_is_over_from_its_own_millisecond_on() -> None:
    assert [LeaveRequest(10).overdue(now) for now in (9, 10, 11, 1000)] == [False, True, True, True]
    assert not LeaveRequest().overdue(1 << 60)


def test_a_marked_instance_leaves_until_the_mark_s_deadline() -> None:
    mark = asked(MarkState.LEAVING, 1000)

    assert leaves(MemberMetadata("1", instance="a"), mark) == LeaveRequest(1000)
    assert leaves(MemberMetadata("1", instance="b"), mark) is None
    assert leaves(MemberMetadata("1"), mark) is None


def test_of_two_deadlines_the_sooner_one_counts() -> None:
    signalled = MemberMetadata("1", instance="a", leaving=LeaveRequest(400))

    assert leaves(signalled, asked(MarkState.LEAVING, 1000)) == LeaveRequest(400)
    assert leaves(signalled, asked(MarkState.LEAVING, 300)) == LeaveRequest(300)
    assert leaves(signalled, asked(MarkState.LEAVING)) == LeaveRequest(400)


def test_a_cancelled_leaver_stays_although_it_has_not_heard_of_it_yet() -> None:
    old = {"a": asked(MarkState.LEAVING, epoch_ms=4)}
    cancelled = asked(MarkState.CANCELLED)

    assert leaves(MemberMetadata("1", instance="a", leaving=LeaveRequest()), cancelled) is None
    assert (
        leaves(MemberMetadata("1", instance="a", leaving=LeaveRequest(), marks=old), cancelled)
        is None
    )


def test_who_has_heard_of_the_cancellation_and_leaves_has_its_own_reason() -> None:
    cancelled = asked(MarkState.CANCELLED)
    stopped = MemberMetadata("1", instance="a", leaving=LeaveRequest(9), marks={"a": cancelled})

    assert leaves(stopped, cancelled) == LeaveRequest(9)


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
        MemberMetadata("1", instance="a"),
        MemberMetadata("2", instance="b"),
        MemberMetadata("3", instance="c"),
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
    member, marks = MemberMetadata("1", instance="a"), {"a": asked(MarkState.LEAVING, 1000)}

    assert evictions([member], Memory(marks=marks), now_ms=9000) == {"1": 14_000}
