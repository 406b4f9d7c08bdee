"""Progress of a leave, look by look, as the group shows it."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsx.assignor.model import LeaveRequest, Mark, MarkState, MemberMetadata
from streamsx.assignor.observer import GroupReport, Instance
from streamsx.errors import NotFound, UsageError
from streamsx.group.admin.leave_progress import (
    SETTLE_MS,
    LeaveProgress,
    LeaveState,
    after,
    begun,
    mark_to_send,
    refuse_absent,
    refuse_shared,
)
from streamsx.model import TaskId

T0, T1, T2 = TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)
ASKED, DUE = 1_000, 61_000
CANCELLED = Mark(MarkState.CANCELLED, epoch_ms=2_000)


def here(
    member: str,
    instance: str | None,
    *active: TaskId,
    leaving: LeaveRequest | None = None,
    process: str = "",
) -> Instance:
    return Instance(MemberMetadata(member, instance, process, leaving=leaving), active)


def group(*instances: Instance, **marks: Mark) -> GroupReport:
    return GroupReport(4, "m1" if instances else None, instances, (), marks)


def rebalancing(*members: str) -> GroupReport:
    """Return a rebalancing group: names and tasks are blank."""
    return GroupReport(-1, None, tuple(here(member, None) for member in members), (), {})


A, B = here("m1", "a", T0), here("m2", "b", T1, T2)
LEAVING = LeaveRequest(DUE)
BOTH = group(A, B)
B_LEAVES = group(A, here("m2", "b", T1, T2, leaving=LEAVING))
B_GAVE_ONE = group(here("m1", "a", T0, T1), here("m2", "b", T2, leaving=LEAVING))
A_HAS_ALL = group(here("m1", "a", T0, T1, T2))
NOBODY = group()


def asked(
    report: GroupReport = BOTH, instance: str = "b", *, cancels: bool = False
) -> LeaveProgress:
    return begun(instance, report, cancels=cancels, now_ms=ASKED, deadline_ms=DUE)


def through(departure: LeaveProgress, *looks: tuple[int, GroupReport]) -> LeaveProgress:
    for now_ms, report in looks:
        departure = after(departure, report, now_ms)
    return departure


def told(departure: LeaveProgress) -> tuple[LeaveState, int, int, int]:
    return departure.state, departure.tasks_moved, len(departure.left), departure.ms


def test_departure_of_absent_instance_is_unknown() -> None:
    departure = asked(instance="z")

    assert told(departure) == (LeaveState.UNKNOWN, 0, 0, 0)
    assert mark_to_send(departure, BOTH, ASKED) is None


def test_departure_waits_a_while_for_tasks_without_runner() -> None:
    """A swap ended with one task left: a round was about to give it to the successor."""
    departure = after(asked(), group(here("m1", "a", T1)), 1_500)
    assert told(departure) == (LeaveState.LEAVING, 1, 1, 500)
    whole = after(departure, group(here("m1", "a", T1, T2)), 1_700)
    assert told(whole) == (LeaveState.LEFT, 2, 0, 500)
    never = after(departure, group(here("m1", "a", T1)), 1_501 + SETTLE_MS)
    assert told(never) == (LeaveState.LEFT, 1, 1, 500)


def test_departure_complete_when_member_is_gone() -> None:
    departure = through(asked(), (1_200, B_LEAVES), (1_400, B_GAVE_ONE))
    assert told(departure) == (LeaveState.LEAVING, 1, 1, 400)

    assert told(after(departure, A_HAS_ALL, 1_600)) == (LeaveState.LEFT, 2, 0, 600)


def test_departure_notes_time_but_does_not_end_during_rebalance() -> None:
    """A fenced worker comes back under another id, and still leaves."""
    gone = through(asked(), (1_200, rebalancing("m1", "m2")), (1_400, rebalancing("m1")))
    assert told(gone) == (LeaveState.LEAVING, 0, 2, 400)
    again = group(A, here("m7", "b", T1, T2, leaving=LEAVING))

    assert told(through(gone, (1_600, rebalancing("m1")), (1_800, A_HAS_ALL))) == (
        LeaveState.LEFT, 2, 0, 400,
    )  # fmt: skip
    assert told(after(gone, again, 1_600)) == (LeaveState.LEAVING, 0, 2, 600)
    assert (
        told(through(gone, (1_600, again), (DUE, rebalancing("m1", "m7"))))[0] is LeaveState.TIMEOUT
    )


def test_departure_ignores_other_process_with_same_name() -> None:
    departure = after(asked(), group(A, here("m9", "b", T1, T2)), 1_500)

    assert told(departure) == (LeaveState.LEFT, 0, 2, 500)


def test_departure_times_out_at_deadline_with_tasks_not_yet_seen_moved() -> None:
    departure = after(asked(), B_GAVE_ONE, 1_400)

    for at_the_end in (B_GAVE_ONE, rebalancing("m1", "m2"), A_HAS_ALL):
        assert told(after(departure, at_the_end, DUE)) == (
            LeaveState.TIMEOUT,
            1,
            1,
            DUE - ASKED,
        )


def test_departure_counts_as_left_when_member_gone_before_deadline() -> None:
    gone = after(asked(), rebalancing("m1"), DUE - 1)

    assert told(after(gone, A_HAS_ALL, DUE + 500)) == (LeaveState.LEFT, 2, 0, DUE - 1 - ASKED)


def test_departure_does_not_wait_for_unsettled_group() -> None:
    gone = after(asked(), rebalancing("m1"), 2_000)

    assert after(gone, rebalancing("m1"), 2_000 + SETTLE_MS).state is LeaveState.LEAVING
    assert told(after(gone, rebalancing("m1"), 2_001 + SETTLE_MS)) == (
        LeaveState.LEFT,
        0,
        2,
        1_000,
    )


def test_departure_of_last_members_leaves_tasks_unassigned() -> None:
    assert told(after(asked(), NOBODY, 1_300)) == (LeaveState.LEFT, 0, 2, 300)


def test_departure_cancelled_by_another_tool() -> None:
    departure = through(asked(), (1_200, B_LEAVES), (2_100, group(A, B, b=CANCELLED)))

    assert told(departure) == (LeaveState.CANCELLED, 0, 2, 1_100)


def test_departure_ignores_older_cancellation() -> None:
    before = group(A, B, b=CANCELLED)
    departure = asked(before)

    assert departure.state is LeaveState.LEAVING
    assert mark_to_send(departure, before, ASKED) == Mark(MarkState.LEAVING, DUE, epoch_ms=2_001)
    assert after(departure, before, 2_100).state is LeaveState.LEAVING


def test_leaving_mark_sent_until_seen() -> None:
    mark = Mark(MarkState.LEAVING, DUE, epoch_ms=ASKED)
    departure = asked()
    assert mark_to_send(departure, BOTH, ASKED) == mark
    departure = replace(departure, epoch_ms=mark.epoch_ms)

    assert mark_to_send(departure, rebalancing("m1", "m2"), 1_500) is None
    assert mark_to_send(departure, B_LEAVES, 1_500) is None
    assert mark_to_send(departure, BOTH, 1_500) == Mark(MarkState.LEAVING, DUE, epoch_ms=1_500)


def test_member_leaving_sooner_receives_no_mark() -> None:
    sooner = group(A, here("m2", "b", T1, leaving=LeaveRequest(DUE - 9)))
    departure = asked(sooner)

    assert mark_to_send(departure, sooner, ASKED) is None
    assert departure.deadline_ms == DUE - 9


def test_member_leaving_later_or_without_deadline_receives_new_deadline() -> None:
    mark = Mark(MarkState.LEAVING, DUE, epoch_ms=ASKED)
    for known in (LeaveRequest(DUE + 1), LeaveRequest()):
        later = group(A, here("m2", "b", T1, leaving=known))
        departure = asked(later)

        assert (departure.deadline_ms, mark_to_send(departure, later, ASKED)) == (DUE, mark)


def test_swap_mark_sent_until_mark_with_successor_is_seen() -> None:
    """Also to a worker that already leaves without a successor; it keeps its own deadline."""
    about: dict[str, Any] = {"now_ms": ASKED, "deadline_ms": math.inf, "swap_to": "a"}
    for leaving, due in ((None, None), (LeaveRequest(), None), (LEAVING, DUE)):
        seen = group(A, here("m2", "b", T1, T2, leaving=leaving))
        departure = begun("b", seen, cancels=False, **about)
        assert mark_to_send(departure, seen, ASKED) == Mark(MarkState.LEAVING, due, "a", ASKED)
    mark = Mark(MarkState.LEAVING, None, "a", ASKED)
    knows = group(A, here("m2", "b", T1, T2, leaving=LeaveRequest()), b=mark)
    departure = begun("b", knows, cancels=False, **about)
    assert mark_to_send(departure, knows, 1_500) is None
    assert after(departure, knows, 10**15).left == {T1, T2}


def test_successor_must_be_present_and_not_leaving() -> None:
    refuse_absent("a", BOTH)
    with pytest.raises(NotFound, match=r"no such worker: c: .*start it"):
        refuse_absent("c", BOTH)
    with pytest.raises(UsageError, match="worker is leaving: b"):
        refuse_absent("b", B_LEAVES)


def test_staying_member_receives_no_cancellation() -> None:
    departure = asked(cancels=True)

    assert told(departure) == (LeaveState.CANCELLED, 0, 2, 0)
    assert mark_to_send(departure, BOTH, ASKED) is None


def test_cancellation_sent_and_complete_when_member_stays() -> None:
    mark = Mark(MarkState.LEAVING, DUE, epoch_ms=5_000)
    leaves = group(A, here("m2", "b", T1, T2, leaving=LEAVING), b=mark)
    departure = asked(leaves, cancels=True)
    assert mark_to_send(departure, leaves, ASKED) == Mark(MarkState.CANCELLED, epoch_ms=5_001)

    stays = group(here("m1", "a", T0, T1), here("m2", "b", T2))
    assert told(after(departure, stays, 1_500)) == (LeaveState.CANCELLED, 1, 1, 500)


def test_cancellation_too_late_when_member_has_left() -> None:
    departure = asked(B_LEAVES, cancels=True)

    assert after(departure, A_HAS_ALL, 1_500).state is LeaveState.LEFT


def test_cancellation_sent_once_to_member_leaving_by_signal() -> None:
    """A mark does not take a signal back; each look made two more rounds until the worker had
    left.
    """
    knows = group(A, here("m2", "b", T1, T2, leaving=LEAVING), b=CANCELLED)
    departure = asked(B_LEAVES, cancels=True)

    assert mark_to_send(departure, B_LEAVES, ASKED) is not None
    assert mark_to_send(departure, knows, 1_500) is None
    assert after(departure, knows, 1_500).state is LeaveState.LEAVING


def test_departure_includes_dead_member_of_same_name() -> None:
    """A process was killed and started again; the session of the killed one has not ended."""
    twice = group(A, here("m2", "b", T1), here("m3", "b", T2))
    departure = asked(twice)
    only_one = group(A, here("m2", "b", T1, leaving=LEAVING), here("m3", "b", T2))

    assert departure.tasks == {T1, T2}
    assert after(departure, only_one, 1_500).state is LeaveState.LEAVING
    assert mark_to_send(departure, only_one, 1_500) is not None


LOOKS = st.lists(
    st.tuples(
        st.integers(0, 20_000),
        st.sampled_from(
            [
                BOTH, B_LEAVES, B_GAVE_ONE, A_HAS_ALL, NOBODY, group(A, B, b=CANCELLED),
                group(A, here("m9", "b", T1, T2)), rebalancing("m1"), rebalancing("m1", "m2"),
            ]
        ),
    )
)  # fmt: skip


@given(LOOKS, st.booleans())
def test_ended_departure_stays_ended_and_counts_every_task(
    looks: list[tuple[int, GroupReport]], cancels: bool
) -> None:
    departure, now_ms = asked(B_LEAVES, cancels=cancels), ASKED
    for ahead_ms, report in looks:
        now_ms += ahead_ms
        before, departure = departure, after(departure, report, now_ms)

        assert departure.tasks_moved + len(departure.left) == 2
        assert departure == before or not before.ended
        assert departure.ended or now_ms < DUE + SETTLE_MS or departure.gone


@pytest.mark.parametrize("asked_for", ["a", "a@2222"])
def test_name_shared_by_two_workers_refused_with_remedy(asked_for: str) -> None:
    """One mark would reach both: `leave --instances a` took two workers out."""
    twice = group(
        here("m1", "a", T0, process="1111"), here("m2", "a", T1, process="2222"),
        here("m3", "b", T2, process="3333"),
    )  # fmt: skip

    with pytest.raises(UsageError, match=r"a@1111, a@2222 are called a: .*--instance-id"):
        refuse_shared(["b", asked_for], twice)
    refuse_shared(["b"], twice)


def test_members_of_one_process_not_refused_as_shared_name() -> None:
    one = [here(member, "a", process="1111") for member in ("m1", "m2")]
    assert set(group(*one).labels.values()) == {"a@m1", "a@m2"}
    refuse_shared(["a"], group(*one))
