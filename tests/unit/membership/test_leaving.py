"""Whether and until when a member is on its way out, by its process and by marks."""

import pytest

from streamsx.assignor.model import Mark, MarkState
from streamsx.membership import events as e
from streamsx.membership.effects import Effects
from streamsx.membership.leaving import Leaving

DRAIN, STOP = e.Timer.DRAIN, e.Timer.STOP
LEAVES, STAYS = e.Want("leaving"), e.Want("stays")


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


def test_a_deadline_of_a_drain_only_moves_closer(box: Effects, leaving: Leaving) -> None:
    assert not leaving
    assert leaving.drain(e.Leave(None)) == LEAVES
    assert (bool(leaving), leaving.deadline, box.out) == (True, None, [e.IsLeaving(None)])
    told = [leaving.drain(e.Leave(at)) for at in (60.0, 25.0, 90.0, None)]
    assert (told, leaving.deadline) == ([None] * 4, 25.0)
    assert box.out == [e.IsLeaving(None), e.Arm(DRAIN, 60.0), e.Arm(DRAIN, 25.0)]


def test_of_marks_only_one_that_is_newer_than_the_last_counts(leaving: Leaving) -> None:
    assert leaving.heed(None, None) is None
    assert leaving.heed(*leave(5, 60.0)) == LEAVES
    assert leaving.heed(*leave(5, 20.0)) is None
    assert leaving.heed(*stay(4)) is None
    assert (leaving.draining, leaving.deadline) == (True, 60.0)


def test_a_mark_takes_back_what_a_mark_has_asked_for(box: Effects, leaving: Leaving) -> None:
    leaving.heed(*leave(5, 60.0))
    box.open(1.0)
    assert leaving.heed(*stay(6)) == STAYS
    assert (bool(leaving), leaving.deadline, box.out) == (False, None, [e.Disarm(DRAIN), e.Stays()])
    assert leaving.heed(*stay(7)) is None
    assert leaving.heed(*leave(8)) == LEAVES


def test_a_mark_does_not_take_back_what_its_process_was_told(
    box: Effects, leaving: Leaving
) -> None:
    """The leader that planned so is to hear that it leaves all the same."""
    leaving.drain(e.Leave(25.0))
    assert leaving.heed(*stay(6)) == LEAVES
    assert (leaving.draining, leaving.deadline) == (True, 25.0)
    assert box.out == [e.Arm(DRAIN, 25.0), e.IsLeaving(25.0)]


def test_a_halt_follows_a_drain_with_its_own_deadline(box: Effects, leaving: Leaving) -> None:
    leaving.drain(e.Leave(25.0))
    box.open(1.0)
    leaving.halt(30.0)
    assert (leaving.draining, leaving.halting, leaving.deadline) == (False, True, 30.0)
    assert box.out == [e.Disarm(DRAIN), e.Arm(STOP, 30.0)]


def test_a_deadline_of_a_halt_only_moves_closer_and_nothing_undoes_it(leaving: Leaving) -> None:
    leaving.halt(30.0)
    leaving.halt(40.0)
    assert leaving.deadline == 30.0
    leaving.halt(10.0)
    assert leaving.deadline == 10.0
    assert leaving.drain(e.Leave(5.0)) is None
    assert leaving.heed(*stay(6)) is None
    assert (leaving.halting, leaving.draining, leaving.deadline) == (True, False, 10.0)


@pytest.mark.parametrize(("deadline", "at"), [(None, 7.0), (9.0, 7.0), (5.0, 5.0)])
def test_it_waits_no_longer_than_it_may_stay(
    box: Effects, leaving: Leaving, deadline: float | None, at: float
) -> None:
    leaving.drain(e.Leave(deadline))
    leaving.wait(7.0)
    assert box.out[-1] == e.Arm(STOP, at)
