"""What the worker hears of its partitions and its commits."""

import pytest

from streamsx.assignor.wire import AssignmentView
from streamsx.membership import events as e
from streamsx.membership.answers import Verdict
from streamsx.membership.effects import Effects
from streamsx.membership.holding import Holding
from streamsx.model import TaskId, TopicPartition

P, Q, R = (TopicPartition("in", n) for n in range(3))
LEARNS = AssignmentView(learners=frozenset({TaskId(0, 1)}), promises=frozenset({TaskId(0, 2)}))
TIMEOUT_S = 60.0


@pytest.fixture
def box() -> Effects:
    return Effects()


@pytest.fixture
def mine(box: Effects) -> Holding:
    """P and Q, of generation 1."""
    made = Holding(box, TIMEOUT_S)
    given(made, 1, P, Q)
    box.open(10.0)
    return made


def given(mine: Holding, generation: int, *tps: TopicPartition, halting: bool = False) -> None:
    synced = e.Synced(frozenset(tps), LEARNS)
    mine.apply(generation, synced, leader=False, halting=halting)


def offsets(*tps: TopicPartition) -> dict[TopicPartition, e.OffsetAndMetadata]:
    return {tp: e.OffsetAndMetadata(5) for tp in tps}


def asked(mine: Holding) -> int:
    """The number of a revoke of all that is owned."""
    mine.release_all()
    return next(iter(mine.claims.revoking.values())).number


def test_what_must_go_is_asked_for_before_what_is_new_begins(box: Effects, mine: Holding) -> None:
    given(mine, 2, Q, R)
    (revoke, *others) = box.out
    assert isinstance(revoke, e.Revoke)
    assert revoke.tps == (P,)
    assert others == [e.OnAssignment(2, (Q, R), LEARNS), e.Assigned((R,))]
    assert mine.claims.owned == {P, Q, R}


def test_who_halts_begins_and_learns_nothing(box: Effects, mine: Holding) -> None:
    given(mine, 2, Q, R, halting=True)
    (revoke, whole, begin) = box.out
    assert isinstance(revoke, e.Revoke)
    assert revoke.tps == (P, Q)
    assert (whole, begin) == (e.OnAssignment(2, (), AssignmentView()), e.Assigned(()))


def test_the_leader_hears_of_what_was_released_and_soon_if_more_follows(mine: Holding) -> None:
    number = asked(mine)
    assert mine.released(e.Released(frozenset({P}), number + 9)) is None
    some = mine.released(e.Released(frozenset({P}), number))
    assert some == e.Want("released some partitions", soon=True)
    every = mine.released(e.Released(frozenset({Q}), number))
    assert every == e.Want("released all partitions asked for")
    assert mine.nothing


def test_what_is_given_back_before_it_was_released_begins_again(
    box: Effects, mine: Holding
) -> None:
    number = asked(mine)
    given(mine, 2, P)
    box.open(11.0)
    assert mine.released(e.Released(frozenset({P}), number)) is None
    assert box.out == [e.Assigned((P,))]
    assert mine.claims.owned == {P, Q}


def test_what_is_not_released_in_time_is_lost_and_its_timer_follows(
    box: Effects, mine: Holding
) -> None:
    mine.release_all()
    mine.watch()
    assert box.out[-1] == e.Arm(e.Timer.REVOKE, 10.0 + TIMEOUT_S)
    box.open(9.9 + TIMEOUT_S)
    assert mine.expired() is None
    out = box.open(10.0 + TIMEOUT_S)
    assert mine.expired() == e.Want("some partitions were not released in time")
    mine.watch()
    assert out == [e.Lost((P, Q)), e.Disarm(e.Timer.REVOKE)]


def test_what_is_lost_fails_its_commits_too(box: Effects, mine: Holding) -> None:
    mine.commits.ask(e.Commit(7, offsets(P), 1))
    mine.lose_all(e.Refusal.FENCED)
    (lost, failed) = box.out
    assert isinstance(lost, e.Lost)
    assert (lost.tps, lost.why) == ((P, Q), e.Refusal.FENCED.value)
    assert failed == e.CommitFailed(7, e.Refusal.FENCED)
    assert mine.nothing
    out = box.open(11.0)
    mine.lose_all(e.Refusal.FENCED)
    assert out == []


def test_a_commit_that_is_under_way_is_something_and_one_that_waits_is_not(
    box: Effects, mine: Holding
) -> None:
    mine.commits.ask(e.Commit(7, offsets(P, Q), 1))
    assert mine.commits.next(stable=True) == offsets(P, Q)
    mine.released(e.Released(frozenset({P, Q}), asked(mine)))
    assert (mine.claims.owned, mine.nothing) == (frozenset(), False)
    out = box.open(11.0)
    mine.commits.answered(Verdict.GOOD, e.Reply(1, 0, e.Committed({Q: 29})))
    assert (out, mine.nothing) == ([e.CommitDone(7, (), {Q: 29})], True)


def test_a_commit_of_what_is_gone_meanwhile_is_not_sent(box: Effects, mine: Holding) -> None:
    mine.commits.ask(e.Commit(7, offsets(P), 1))
    mine.released(e.Released(frozenset({P}), asked(mine)))
    out = box.open(11.0)
    assert mine.commits.next(stable=True) == {}
    assert out == [e.CommitFailed(7, e.Refusal.NOT_OWNED)]
