"""Memory of the leader: what it takes from members, what it passes on, and the end of a mark."""

from collections.abc import Callable
from dataclasses import replace

from streamsx.assignor.assign import assign
from streamsx.assignor.memory import MARK_KEPT_MS, MARKS_MAX, recall
from streamsx.assignor.model import Group, Mark, MarkState, MemberMetadata, Memory, Rules, TaskKind

Build = Callable[..., Group]
LEAVE = Mark(MarkState.LEAVING, epoch_ms=100)
LATER = Mark(MarkState.CANCELLED, epoch_ms=200)


def said(*members: MemberMetadata, memory: Memory | None = None, now_ms: int = 0) -> Memory:
    return recall(Group((), members, memory, now_ms))


def test_new_leader_takes_the_memory_of_the_members() -> None:
    memory = said(MemberMetadata("1", round=7, marks={"x": LEAVE}), MemberMetadata("2", round=6))

    assert memory == Memory(7, TaskKind(0), {"x": LEAVE})


def test_newest_memory_wins_over_an_older_one_of_the_leader() -> None:
    """Member y restarts, and its mark ends in round 8. Member z has not seen a plan since round 7,
    and still reports the mark.
    """
    own = Memory(7, TaskKind.STATEFUL, {"y": LEAVE})

    memory = said(
        MemberMetadata("1", round=8), MemberMetadata("2", round=7, marks={"y": LEAVE}), memory=own
    )

    assert memory == Memory(8)


def test_member_back_from_an_earlier_life_of_the_group_brings_no_marks() -> None:
    """Member w4 is cut off in round 13, and comes back to a group that was started again."""
    begun = said(MemberMetadata("1", fresh=True), now_ms=100_000)
    back = MemberMetadata("4", round=13, marks={"x": LEAVE})

    memory = said(MemberMetadata("1", round=begun.round + 1), back, now_ms=101_000)

    assert memory.marks == {}


def test_up_to_date_leader_remembers_kinds_being_balanced() -> None:
    own = Memory(8, TaskKind.STATEFUL)

    assert said(MemberMetadata("1", round=8), memory=own).balancing is TaskKind.STATEFUL


def test_observer_brings_marks_and_the_newest_mark_wins() -> None:
    member = MemberMetadata("1", instance="x", round=3, marks={"x": LEAVE})

    told = said(member, MemberMetadata("2", observer=True, marks={"x": LATER, "y": LEAVE}))
    late = said(
        replace(member, marks={"x": LATER}), MemberMetadata("2", observer=True, marks={"x": LEAVE})
    )

    assert told.marks == {"x": LATER, "y": LEAVE}
    assert late.marks == {"x": LATER}


def test_marks_of_one_moment_resolve_alike_in_every_order() -> None:
    early, late = (Mark(MarkState.LEAVING, ms, epoch_ms=100) for ms in (5, 6))
    swap = Mark(MarkState.LEAVING, 6, "y", epoch_ms=100)
    tools = [
        MemberMetadata(f"{n}", observer=True, marks={"x": mark})
        for n, mark in enumerate((early, late, swap))
    ]

    assert said(*tools).marks == said(*reversed(tools)).marks == {"x": swap}
    assert said(*tools[:2]).marks == said(*reversed(tools[:2])).marks == {"x": late}


def test_mark_with_deadline_wins_over_one_of_the_same_moment_without() -> None:
    until = replace(LEAVE, deadline_ms=1)
    for first, second in ((LEAVE, until), (until, LEAVE)):
        told = said(
            MemberMetadata("1", round=3, marks={"x": first}),
            MemberMetadata("2", round=3, marks={"x": second}),
        )
        assert told.marks == {"x": until}


def test_mark_ends_when_the_marked_instance_rejoins_fresh() -> None:
    other = MemberMetadata("2", round=3, marks={"x": LEAVE})

    assert said(MemberMetadata("1", instance="x", fresh=True), other).marks == {}
    assert said(MemberMetadata("1", instance="x", round=3), other).marks == {"x": LEAVE}


def test_mark_sent_together_with_a_fresh_instance_applies() -> None:
    fresh, tool = (
        MemberMetadata("1", instance="x", fresh=True),
        MemberMetadata("2", observer=True, marks={"x": LEAVE}),
    )

    assert said(fresh, tool).marks == {"x": LEAVE}


def test_mark_of_an_absent_instance_ends_after_ten_minutes() -> None:
    other = MemberMetadata("2", round=3, marks={"x": LEAVE})
    here = MemberMetadata("1", instance="x", round=3)
    end = LEAVE.epoch_ms + MARK_KEPT_MS

    assert said(other, now_ms=end).marks == {"x": LEAVE}
    assert said(other, now_ms=end + 1).marks == {}
    assert said(other, here, now_ms=end + 1).marks == {"x": LEAVE}


def test_mark_of_an_absent_instance_is_kept_past_the_deadline() -> None:
    """`leave --timeout 7d`: an instance that is back on the third day leaves."""
    late = replace(LEAVE, deadline_ms=10 * MARK_KEPT_MS)
    other = MemberMetadata("2", round=3, marks={"x": late})

    assert said(other, now_ms=11 * MARK_KEPT_MS).marks == {"x": late}
    assert said(other, now_ms=11 * MARK_KEPT_MS + 1).marks == {}


def test_cancellation_ends_after_ten_minutes_with_the_instance_present() -> None:
    here = MemberMetadata("1", instance="x", round=3, marks={"x": LATER})

    assert said(here, now_ms=LATER.epoch_ms + MARK_KEPT_MS + 1).marks == {}


def test_oldest_mark_beyond_the_limit_is_dropped() -> None:
    marks = {f"m{n:02}": Mark(MarkState.LEAVING, epoch_ms=n) for n in range(MARKS_MAX + 1)}

    kept = said(MemberMetadata("1", observer=True, marks=marks)).marks

    assert kept == {name: mark for name, mark in marks.items() if name != "m00"}


def test_kinds_off_target_are_remembered_as_being_balanced(group: Build) -> None:
    rules = Rules(acceptable_recovery_lag=0, imbalance_percentage=0)

    rest = group("0_0 0_1 | 9_0 9_1", a="owns 0_0 9_0", b="owns 0_1 9_1")
    moves = group("0_0 0_1 | 9_0 9_1", a="owns 0_0 0_1 9_0", b="owns 9_1")
    both = group("0_0 0_1 | 9_0 9_1", a="owns 0_0 0_1 9_0 9_1", b="")
    leave = group("0_0 | 9_0", a="owns 0_0 9_0 leaving", b="")

    assert assign(rest, rules).memory.balancing == TaskKind(0)
    assert assign(moves, rules).memory.balancing == TaskKind.STATEFUL
    assert assign(both, rules).memory.balancing == TaskKind.STATEFUL | TaskKind.STATELESS
    assert assign(leave, rules).memory.balancing == TaskKind(0)


def test_each_plan_starts_a_new_round(group: Build) -> None:
    assert assign(group("0_0", Memory(4), a=""), Rules()).memory.round == 5
