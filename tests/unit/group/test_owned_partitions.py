"""Owned partitions: the sets of an assignment, and the events for the worker."""

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from streamsx.assignor.wire import AssignmentView
from streamsx.group import member_events as e
from streamsx.group.error_table import Verdict
from streamsx.group.owned_partitions import COLLECT_S, OwnedPartitions
from streamsx.group.step_effects import Effects
from streamsx.model import OffsetAndMetadata, TaskId, TopicPartition

P, Q, R = (TopicPartition("in", n) for n in range(3))
LEARNS = AssignmentView(learners=frozenset({TaskId(0, 1)}), promises=frozenset({TaskId(0, 2)}))
TIMEOUT_S = 60.0


@pytest.fixture
def box() -> Effects:
    return Effects()


@pytest.fixture
def mine(box: Effects) -> OwnedPartitions:
    """Assign P and Q, in generation 1."""
    made = OwnedPartitions(box, TIMEOUT_S)
    given(made, 1, P, Q)
    box.open(10.0)
    return made


def given(
    mine: OwnedPartitions, generation: int, *tps: TopicPartition, halting: bool = False
) -> None:
    synced = e.Synced(frozenset(tps), LEARNS)
    mine.apply(generation, synced, leader=False, halting=halting)


def offsets(*tps: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata]:
    return dict.fromkeys(tps, OffsetAndMetadata(5, ""))


def asked(mine: OwnedPartitions) -> int:
    """Return the number of a revoke of all owned partitions."""
    mine.release_all()
    return next(iter(mine.revoking.values())).number


def test_revoke_is_sent_before_new_partitions_are_assigned(
    box: Effects, mine: OwnedPartitions
) -> None:
    given(mine, 2, Q, R)
    (revoke, *others) = box.out
    assert isinstance(revoke, e.Revoke)
    assert revoke.tps == (P,)
    assert others == [e.OnAssignment(2, (Q, R), LEARNS), e.Assigned((R,))]
    assert mine.owned == {P, Q, R}


def test_halting_member_is_assigned_and_learns_nothing(box: Effects, mine: OwnedPartitions) -> None:
    given(mine, 2, Q, R, halting=True)
    (revoke, whole, begin) = box.out
    assert isinstance(revoke, e.Revoke)
    assert revoke.tps == (P, Q)
    assert (whole, begin) == (e.OnAssignment(2, (), AssignmentView()), e.Assigned(()))


def test_release_wants_round_now_or_collects_while_more_is_revoked(
    box: Effects, mine: OwnedPartitions
) -> None:
    number = asked(mine)
    mine.released(e.Released(frozenset({P}), number + 9))
    assert mine.owned == {P, Q}
    out = box.open(10.0)
    mine.released(e.Released(frozenset({P}), number))
    assert (box.rejoin_reason, out) == (None, [e.Arm(e.Timer.COLLECT, 10.0 + COLLECT_S)])
    mine.released(e.Released(frozenset({Q}), number))
    assert box.rejoin_reason == "released all partitions asked for"
    assert not mine.owned


def test_partition_given_back_before_release_is_assigned_again(
    box: Effects, mine: OwnedPartitions
) -> None:
    number = asked(mine)
    given(mine, 2, P)
    box.open(11.0)
    mine.released(e.Released(frozenset({P}), number))
    assert (box.out, box.rejoin_reason) == ([e.Assigned((P,))], None)
    assert mine.since[P] == 1
    assert mine.revoking.keys() == {Q}
    assert mine.owned == {P, Q}


def test_overdue_revoked_partitions_are_lost_and_timer_is_disarmed(
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


def test_lost_partitions_fail_waiting_commits(box: Effects, mine: OwnedPartitions) -> None:
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


def test_commit_in_flight_is_answered_after_release(box: Effects, mine: OwnedPartitions) -> None:
    mine.commits.ask(e.Commit(7, offsets(P, Q), 1))
    assert mine.commits.next(stable=True) == e.OffsetCommit(offsets(P, Q))
    mine.released(e.Released(frozenset({P, Q}), asked(mine)))
    assert mine.owned == frozenset()
    out = box.open(11.0)
    mine.commits.answered(Verdict.GOOD, e.Reply(1, 0, {Q: 29}))
    assert out == [e.CommitDone(7, {Q: 29})]


def test_commit_of_released_partition_is_not_sent(box: Effects, mine: OwnedPartitions) -> None:
    mine.commits.ask(e.Commit(7, offsets(P), 1))
    mine.released(e.Released(frozenset({P}), asked(mine)))
    out = box.open(11.0)
    assert mine.commits.next(stable=True) is None
    assert out == [e.CommitDone(7, {P: e.NOT_OURS}, e.Refusal.NOT_OWNED)]


# The algebra.


def owner(*owned: TopicPartition, generation: int = 1) -> OwnedPartitions:
    made = OwnedPartitions(Effects(), TIMEOUT_S)
    given(made, generation, *owned)
    return made


def revoked(mine: OwnedPartitions) -> tuple[e.Partitions, int]:
    """Return the partitions of the last revoke, and its number."""
    (*_, revoke) = (effect for effect in mine._box.out if isinstance(effect, e.Revoke))
    return revoke.tps, revoke.number


def test_new_assignment_takes_added_and_revokes_removed_partition() -> None:
    mine = owner(P, Q)
    given(mine, 2, Q, R)
    assert mine._box.out[-1] == e.Assigned((R,))
    assert mine.owned == {P, Q, R}
    assert revoked(mine)[0] == (P,)


def test_partition_keeps_generation_of_assignment() -> None:
    mine = owner(P)
    given(mine, 2, P, Q)
    assert mine.since == {P: 1, Q: 2}


def test_pending_revoke_is_not_repeated() -> None:
    mine = owner(P, Q)
    given(mine, 2, Q)
    given(mine, 3)
    assert revoked(mine)[0] == (Q,)


def test_release_gives_up_only_revoked_partitions() -> None:
    mine = owner(P, Q)
    given(mine, 2, Q)
    mine.released(e.Released(frozenset({P, Q}), revoked(mine)[1]))
    assert mine.owned == {Q}


def test_release_for_earlier_revoke_is_ignored() -> None:
    mine = owner(P)
    given(mine, 2)
    before = revoked(mine)[1]
    mine.lose_all(e.Refusal.FENCED)
    given(mine, 4, P)
    given(mine, 5)
    assert revoked(mine)[1] != before
    mine.released(e.Released(frozenset({P}), before))
    assert mine.owned == {P}


def test_partition_revoked_later_is_lost_later() -> None:
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
def test_revoked_partitions_stay_subset_of_owned_for_any_script(
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
