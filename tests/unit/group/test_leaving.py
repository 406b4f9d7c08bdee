"""Leaving members: whether and until when, by signals and by marks."""

import pytest

from streamsx.assignor.model import Mark, MarkState
from streamsx.group import member_events as e
from streamsx.group.leaving import Leaving
from streamsx.group.step_effects import Effects

DRAIN, STOP = e.Timer.DRAIN, e.Timer.STOP
STOPPED = e.Arm(DRAIN, None)


@pytest.fixture
def box() -> Effects:
    return Effects()


@pytest.fixture
def leaving(box: Effects) -> Leaving:
    return Leaving(box)


def leave(epoch_ms: int, deadline: float | None = None) -> tuple[Mark, float | None]:
    return Mark(MarkState.LEAVING, epoch_ms=epoch_ms), deadline


def stay(epoch_ms: int) -> tuple[Mark, float | None]:
    return Mark(MarkState.CANCELLED, epoch_ms=epoch_ms), None


def test_drain_deadline_only_moves_closer(box: Effects, leaving: Leaving) -> None:
    assert not leaving
    leaving.drain(e.Leave(None))
    assert box.taken() == "leaving"
    assert (bool(leaving), leaving.deadline, box.out) == (True, None, [e.IsLeaving(None)])
    for at in (60.0, 25.0, 90.0, None):
        leaving.drain(e.Leave(at))
    assert (box.rejoin_reason, leaving.deadline) == (None, 25.0)
    told = [each for each in box.out if isinstance(each, e.IsLeaving)]
    assert told == [e.IsLeaving(None), e.IsLeaving(60.0), e.IsLeaving(25.0)]
    assert [each for each in box.out if each not in told] == [
        e.Arm(DRAIN, 60.0), e.Arm(DRAIN, 25.0),
    ]  # fmt: skip


def test_only_mark_newer_than_last_one_counts(box: Effects, leaving: Leaving) -> None:
    leaving.heed(None, None)
    assert box.rejoin_reason is None
    leaving.heed(*leave(5, 60.0))
    assert box.taken() == "leaving"
    leaving.heed(*leave(5, 20.0))
    leaving.heed(*stay(4))
    assert box.rejoin_reason is None
    assert (leaving.draining, leaving.deadline) == (True, 60.0)


def test_newer_mark_cancels_leaving_asked_by_mark(box: Effects, leaving: Leaving) -> None:
    leaving.heed(*leave(5, 60.0))
    box.taken()
    box.open(1.0)
    leaving.heed(*stay(6))
    assert box.taken() == "stays"
    assert (bool(leaving), leaving.deadline, box.out) == (False, None, [STOPPED, e.Stays()])
    leaving.heed(*stay(7))
    assert box.rejoin_reason is None
    leaving.heed(*leave(8))
    assert box.rejoin_reason == "leaving"


def test_mark_does_not_cancel_drain_of_own_process(box: Effects, leaving: Leaving) -> None:
    """The leader that planned this still has to learn that the process leaves."""
    leaving.drain(e.Leave(25.0))
    box.taken()
    leaving.heed(*stay(6))
    assert box.rejoin_reason == "leaving"
    assert (leaving.draining, leaving.deadline) == (True, 25.0)
    assert box.out == [e.Arm(DRAIN, 25.0), e.IsLeaving(25.0)]


def test_halt_replaces_drain_with_own_deadline(box: Effects, leaving: Leaving) -> None:
    leaving.drain(e.Leave(25.0))
    box.open(1.0)
    leaving.halt(30.0)
    assert (leaving.draining, leaving.halting, leaving.deadline) == (False, True, 30.0)
    assert box.out == [e.IsLeaving(30.0, at_once=True), STOPPED, e.Arm(STOP, 30.0)]


def test_halt_deadline_only_moves_closer_and_halt_is_final(box: Effects, leaving: Leaving) -> None:
    leaving.halt(30.0)
    leaving.halt(40.0)
    assert leaving.deadline == 30.0
    leaving.halt(10.0)
    assert leaving.deadline == 10.0
    leaving.drain(e.Leave(5.0))
    leaving.heed(*stay(6))
    assert box.rejoin_reason is None
    assert (leaving.halting, leaving.draining, leaving.deadline) == (True, False, 10.0)


@pytest.mark.parametrize(("deadline", "at"), [(None, 7.0), (9.0, 7.0), (5.0, 5.0)])
def test_leaving_member_waits_no_longer_than_deadline(
    box: Effects, leaving: Leaving, deadline: float | None, at: float
) -> None:
    leaving.drain(e.Leave(deadline))
    leaving.wait(7.0)
    assert box.out[-1] == e.Arm(STOP, at)
