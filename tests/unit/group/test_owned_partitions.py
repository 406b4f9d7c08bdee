"""Who has what, by the algebra; what the worker hears of its partitions and its commits."""

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from streamsx.assignor.wire import AssignmentView
from streamsx.group import member_events as e
from streamsx.group.error_table import Verdict
from streamsx.group.owned_partitions import COLLECT_S, OwnedPartitions
from streamsx.group.step_effects import Effects
from streamsx.model import TaskId, TopicPartition

P, Q, R = (TopicPartition("in", n) for n in range(3))
LEARNS = AssignmentView(learners=frozenset({TaskId(0, 1)}), promises=frozenset({TaskId(0, 2)}))
TIMEOUT_S = 60.0


@pytest.fixture
def box() -> Effects:
    return Effects()


@pytest.fixture
def mine(box: Effects) -> OwnedPartitions:
    """P and Q, of generation 1."""
    made = OwnedPartitions(box, TIMEOUT_S)
    given(made, 1, P, Q)
    box.open(10.0)
    return made


def given(
    mine: OwnedPartitions, generation: int, *tps: TopicPartition, halting: bool = False
) -> None:
    synced = e.Synced(frozenset(tps), LEARNS)
    mine.apply(generation, synced, leader=False, halting=halting)


def offsets(*tps: TopicPartition) -> dict[TopicPartition, tuple[int, str]]:
    return dict.fromkeys(tps, (5, ""))


def asked(mine: OwnedPartitions) -> int:
    """The number of a revoke of all that is owned."""
    mine.release_all()
    return next(iter(mine.revoking.values())).number


def test_what_must_go_is_asked_for_before_what_is_new_begins(
    box: Effects, mine: OwnedPartitions
) -> None:
    given(mine, 2, Q, R)
    (revoke, *others) = box.out
    assert isinstance(revoke, e.Revoke)
    assert revoke.tps == (P,)
    assert others == [e.OnAssignment(2, (Q, R), LEARNS), e.Assigned((R,))]
    assert mine.owned == {P, Q, R}


def test_who_halts_begins_and_learns_nothing(box: Effects, mine: OwnedPartitions) -> None:
    given(mine, 2, Q, R, halting=True)
    (revoke, whole, begin) = box.out
    assert isinstance(revoke, e.Revoke)
    assert revoke.tps == (P, Q)
    assert (whole, begin) == (e.OnAssignment(2, (), AssignmentView()), e.Assigned(()))


def test_the_leader_hears_of_what_was_released_and_soon_if_more_follows(
    box: Effects, mine: OwnedPartitions
) -> None:
    number = asked(mine)
    mine.released(e.Released(frozenset({P}), number + 9))
    assert mine.owned == {P, Q}
    out = box.open(10.0)
    mine.released(e.Released(frozenset({P}), number))
    assert (box.wish, out) == (None, [e.Arm(e.Timer.COLLECT, 10.0 + COLLECT_S)])
    mine.released(e.Released(frozenset({Q}), number))
    assert box.wish == "released all partitions asked for"
    assert not mine.owned


def test_what_is_given_back_before_it_was_released_begins_again(
    box: Effects, mine: OwnedPartitions
) -> None:
    number = asked(mine)
    given(mine, 2, P)
    box.open(11.0)
    mine.released(e.Released(frozenset({P}), number))
    assert (box.out, box.wish) == ([e.Assigned((P,))], None)
    assert mine.since[P] == 1
    assert mine.revoking.keys() == {Q}
    assert mine.owned == {P, Q}


def test_what_is_not_released_in_time_is_lost_and_its_timer_follows(
    box: Effects, mine: OwnedPartitions
) -> None:
    mine.release_all()
    mine.watch()
    assert box.out[-1] == e.Arm(e.Timer.REVOKE, 10.0 + TIMEOUT_S)
    box.open(9.9 + TIMEOUT_S)
    mine.expired()
    assert mine.owned == {P, Q}
    out = box.open(10.0 + TIMEOUT_S)
    mine.expired()
    assert box.taken() == "some partitions were not released in time"
    mine.watch()
    assert out == [e.Lost((P, Q)), e.Arm(e.Timer.REVOKE, None)]


def test_what_is_lost_fails_its_commits_too(box: Effects, mine: OwnedPartitions) -> None:
    mine.commits.ask(e.Commit(7, offsets(P), 1))
    mine.lose_all(e.Refusal.FENCED)
    (lost, failed) = box.out
    assert isinstance(lost, e.Lost)
    assert (lost.tps, lost.why) == ((P, Q), e.Refusal.FENCED.value)
    assert failed == e.CommitDone(7, {P: e.NOT_OURS}, e.Refusal.FENCED)
    assert not mine.owned
    out = box.open(11.0)
    mine.lose_all(e.Refusal.FENCED)
    assert out == []


def test_a_commit_that_is_under_way_is_answered_when_all_is_released(
    box: Effects, mine: OwnedPartitions
) -> None:
    mine.commits.ask(e.Commit(7, offsets(P, Q), 1))
    assert mine.commits.next(stable=True) == offsets(P, Q)
    mine.released(e.Released(frozenset({P, Q}), asked(mine)))
    assert mine.owned == frozenset()
    out = box.open(11.0)
    mine.commits.answered(Verdict.GOOD, e.Reply(1, 0, {Q: 29}))
    assert out == [e.CommitDone(7, {Q: 29})]


def test_a_commit_of_what_is_gone_meanwhile_is_not_sent(
    box: Effects, mine: OwnedPartitions
) -> None:
    mine.commits.ask(e.Commit(7, offsets(P), 1))
    mine.released(e.Released(frozenset({P}), asked(mine)))
    out = box.open(11.0)
    assert mine.commits.next(stable=True) == {}
    assert out == [e.CommitDone(7, {P: e.NOT_OURS}, e.Refusal.NOT_OWNED)]


# The algebra.


def owner(*owned: TopicPartition, generation: int = 1) -> OwnedPartitions:
    made = OwnedPartitions(Effects(), TIMEOUT_S)
    given(made, generation, *owned)
    return made


def revoked(mine: OwnedPartitions) -> tuple[e.Partitions, int]:
    """What was asked for last, and by which number."""
    (*_, revoke) = (effect for effect in mine._box.out if isinstance(effect, e.Revoke))
    return revoke.tps, revoke.number


def test_two_and_three_after_one_and_two_takes_three_and_asks_for_one() -> None:
    mine = owner(P, Q)
    given(mine, 2, Q, R)
    assert mine._box.out[-1] == e.Assigned((R,))
    assert mine.owned == {P, Q, R}
    assert revoked(mine)[0] == (P,)


def test_a_partition_keeps_the_generation_it_came_in() -> None:
    mine = owner(P)
    given(mine, 2, P, Q)
    assert mine.since == {P: 1, Q: 2}


def test_what_is_asked_for_is_asked_for_once() -> None:
    mine = owner(P, Q)
    given(mine, 2, Q)
    given(mine, 3)
    assert revoked(mine)[0] == (Q,)


def test_a_release_gives_up_what_was_asked_for_and_nothing_else() -> None:
    mine = owner(P, Q)
    given(mine, 2, Q)
    mine.released(e.Released(frozenset({P, Q}), revoked(mine)[1]))
    assert mine.owned == {Q}


def test_an_answer_to_an_earlier_revoke_is_none_to_this_one() -> None:
    mine = owner(P)
    given(mine, 2)
    before = revoked(mine)[1]
    mine.lose_all(e.Refusal.FENCED)
    given(mine, 4, P)
    given(mine, 5)
    assert revoked(mine)[1] != before
    mine.released(e.Released(frozenset({P}), before))
    assert mine.owned == {P}


def test_what_was_asked_for_later_is_lost_later() -> None:
    mine = owner(P, Q)
    given(mine, 2, Q)
    mine._box.now = 10.0
    given(mine, 3)
    for now, left in ((TIMEOUT_S - 0.1, {P, Q}), (TIMEOUT_S, {Q}), (TIMEOUT_S + 10.0, set())):
        mine._box.now = now
        mine.expired()
        assert mine.owned == left


some = st.frozensets(st.sampled_from([P, Q, R]))
steps = st.lists(
    st.tuples(st.sampled_from(["given", "released", "all", "lost"]), some, st.integers(0, 8)),
    max_size=20,
)


@drawn(steps)
def test_the_sets_lie_within_each_other_whatever_happens(
    script: list[tuple[str, frozenset[TopicPartition], int]],
) -> None:
    mine = owner()
    for generation, (what, tps, number) in enumerate(script):
        owned, out = mine.owned, mine._box.open(0.0)
        match what:
            case "given":
                given(mine, generation, *tps)
                assert out[-1] == e.Assigned(tuple(sorted(tps - owned)))
            case "released":
                mine.released(e.Released(tps, number))
                back = {tp for told in out if isinstance(told, e.Assigned) for tp in told.tps}
                assert owned - mine.owned <= tps
                assert back <= mine.owned - mine.revoking.keys()
            case "all":
                mine.release_all()
            case _:
                mine.lose_all(e.Refusal.FENCED)
                assert not mine.owned
        assert mine.to_be_revoked <= mine.revoking.keys() <= mine.owned
