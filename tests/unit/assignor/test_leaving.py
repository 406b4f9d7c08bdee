"""Leaving members: which ones leave, until when, and groups in which all leave."""

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


def test_deadline_is_overdue_from_the_very_millisecond() -> None:
    assert [LeaveRequest(10).overdue(now) for now in (9, 10, 11, 1000)] == [False, True, True, True]
    assert not LeaveRequest().overdue(1 << 60)


def test_marked_instance_leaves_until_the_deadline_of_the_mark() -> None:
    mark = asked(MarkState.LEAVING, 1000)

    assert leaves(MemberMetadata("1", instance="a"), mark) == LeaveRequest(1000)
    assert leaves(MemberMetadata("1", instance="b"), mark) is None
    assert leaves(MemberMetadata("1"), mark) is None


def test_sooner_deadline_counts_when_mark_and_member_have_one() -> None:
    signalled = MemberMetadata("1", instance="a", leaving=LeaveRequest(400))

    assert leaves(signalled, asked(MarkState.LEAVING, 1000)) == LeaveRequest(400)
    assert leaves(signalled, asked(MarkState.LEAVING, 300)) == LeaveRequest(300)
    assert leaves(signalled, asked(MarkState.LEAVING)) == LeaveRequest(400)


def test_cancelled_leaver_stays_before_seeing_the_cancellation() -> None:
    old = {"a": asked(MarkState.LEAVING, epoch_ms=4)}
    cancelled = asked(MarkState.CANCELLED)

    assert leaves(MemberMetadata("1", instance="a", leaving=LeaveRequest()), cancelled) is None
    assert (
        leaves(MemberMetadata("1", instance="a", leaving=LeaveRequest(), marks=old), cancelled)
        is None
    )


def test_leaver_aware_of_the_cancellation_still_leaves() -> None:
    cancelled = asked(MarkState.CANCELLED)
    stopped = MemberMetadata("1", instance="a", leaving=LeaveRequest(9), marks={"a": cancelled})

    assert leaves(stopped, cancelled) == LeaveRequest(9)


def test_group_of_leavers_only_keeps_owners_and_reports_no_takers(group: Build, tell: Tell) -> None:
    plan = assign(
        group("0_0 0_1 0_2 0_3", a="owns 0_0 0_1 leaving", b="owns 0_1 0_2 leaving"), Rules()
    )

    assert tell(plan) == {"a": "0_0", "b": "0_2"}
    assert plan.no_takers
    assert {task: w.reason for task, w in plan.withheld.items()} == {
        TaskId(0, 1): "claimed by a and b",
        TaskId(0, 3): "all workers leave",
    }
    assert {w.heir for w in plan.withheld.values()} == {None}


def test_group_of_observers_only_has_a_plan(group: Build) -> None:
    plan = assign(group("0_0", tool="observer"), Rules())

    assert (plan.active, plan.no_takers) == ({}, True)


def test_marked_instance_is_evicted_five_seconds_after_the_deadline() -> None:
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


def test_member_back_after_the_deadline_gets_five_seconds_before_eviction() -> None:
    """The member was removed at once, joined again and was removed again, for ever."""
    member, marks = MemberMetadata("1", instance="a"), {"a": asked(MarkState.LEAVING, 1000)}

    assert evictions([member], Memory(marks=marks), now_ms=9000) == {"1": 14_000}
