"""group/offset_commits.py: effects of a rebalance on a commit."""

import pytest

from streamsx.client.transactional_id import TransactionIdentity
from streamsx.errors import InvariantBroken
from streamsx.group import member_events as e
from streamsx.group.error_table import Verdict
from streamsx.group.offset_commits import SOON_S, WAITING_MAX, OffsetCommits
from streamsx.group.step_effects import Effects
from streamsx.model import OffsetAndMetadata, TopicPartition

P, Q = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Owner:
    """Owner of partitions that commits; `told`: outcomes of its commits."""

    def __init__(self, *tps: TopicPartition, generation: int = 1) -> None:
        self.box, self.since = Effects(), dict.fromkeys(tps, generation)
        self.commits = OffsetCommits(self.box, self.since)

    @property
    def told(self) -> list[e.Effect]:
        """Return the outcomes since the last look."""
        out = self.box.out
        self.box.open(0.0)
        return out


def offsets(**at: int) -> dict[TopicPartition, OffsetAndMetadata]:
    return {{"p": P, "q": Q}[name]: OffsetAndMetadata(n, "") for name, n in at.items()}


def test_offset_not_owned_is_dropped_and_named_and_rest_committed() -> None:
    m = Owner(P)
    m.commits.ask(e.Commit(7, offsets(p=1, q=2), 1))
    assert m.told == []
    assert (m.commits.next(stable=True), m.told) == (e.OffsetCommit(offsets(p=1)), [])
    m.commits.answered(Verdict.GOOD, e.Reply(1, 0))
    assert m.told == [e.CommitDone(7, {Q: e.NOT_OURS})]


def test_a_commit_of_nothing_owned_fails() -> None:
    m = Owner(P)
    m.commits.ask(e.Commit(7, offsets(q=2), 1))
    assert m.told == [e.CommitDone(7, {Q: e.NOT_OURS}, e.Refusal.NOT_OWNED)]
    assert m.commits.next(stable=True) is None


def test_commit_from_older_ownership_is_not_sent() -> None:
    """The member loses p and gets p again before the worker knows of either."""
    m = Owner(P, generation=3)
    m.commits.ask(e.Commit(7, offsets(p=1), generation=1))
    assert m.told == [e.CommitDone(7, {P: e.NOT_OURS}, e.Refusal.NOT_OWNED)]


def test_refused_commit_is_resent_when_stable_without_lost_partitions() -> None:
    m = Owner(P, Q)
    m.commits.ask(e.Commit(7, offsets(p=1, q=2), 1))
    m.commits.next(stable=True)
    m.commits.answered(Verdict.MOVED, e.Reply(1, 22))
    assert m.told == [e.Count("commit-resent-total")]
    assert (m.commits.next(stable=False), m.told) == (None, [])

    m.since[Q] = 2
    assert (m.commits.next(stable=True), m.told) == (e.OffsetCommit(offsets(p=1)), [])
    m.commits.answered(Verdict.GOOD, e.Reply(1, 0))
    assert m.told == [e.CommitDone(7, {Q: e.NOT_OURS})]


def test_commits_of_partition_are_sent_in_order() -> None:
    m = Owner(P)
    m.commits.ask(e.Commit(7, offsets(p=1), 1))
    m.commits.ask(e.Commit(8, offsets(p=2), 1))
    for _ in ("a connection that breaks", "the next one"):
        assert m.commits.next(stable=True) == e.OffsetCommit(offsets(p=1))
    m.commits.answered(Verdict.GOOD, e.Reply(1, 0))
    assert m.commits.next(stable=True) == e.OffsetCommit(offsets(p=2))


def test_commit_behind_refused_commit_waits() -> None:
    m = Owner(P)
    m.commits.ask(e.Commit(7, offsets(p=1), 1))
    m.commits.next(stable=True)
    m.commits.answered(Verdict.MOVED, e.Reply(1, 27))
    m.commits.ask(e.Commit(8, offsets(p=2), 1))
    assert m.commits.next(stable=False) is None
    assert m.commits.next(stable=True) == e.OffsetCommit(offsets(p=1))


def test_denied_partition_is_named_and_others_committed() -> None:
    m = Owner(P, Q)
    m.commits.ask(e.Commit(7, offsets(p=1, q=2), 1))
    m.commits.next(stable=True)
    m.commits.answered(Verdict.GOOD, e.Reply(1, 0, {Q: 3}))
    assert m.told == [e.CommitDone(7, {Q: 3})]


def test_wholly_denied_commit_is_not_resent() -> None:
    for denied, verdict in (({P: 29}, Verdict.MOVED), ({}, Verdict.REFUSE)):
        m = Owner(P)
        m.commits.ask(e.Commit(7, offsets(p=1), 1))
        m.commits.next(stable=True)
        m.commits.answered(verdict, e.Reply(1, 29, denied))
        assert m.told == [e.CommitDone(7, {P: 29})]
        assert m.commits.next(stable=True) is None


def test_denied_partition_is_reported_when_others_are_done_or_lost() -> None:
    for lost in (False, True):
        m = Owner(P, Q)
        m.commits.ask(e.Commit(7, offsets(p=1, q=2), 1))
        m.commits.next(stable=True)
        m.commits.answered(Verdict.MOVED, e.Reply(1, 27, {Q: 29}))
        if lost:
            del m.since[P]
            m.commits.next(stable=True)
        else:
            assert m.commits.next(stable=True) == e.OffsetCommit(offsets(p=1))
            m.commits.answered(Verdict.GOOD, e.Reply(1, 0))
        assert m.told[1:] == [e.CommitDone(7, {Q: 29} | ({P: e.NOT_OURS} if lost else {}))]


def test_too_many_unanswered_commits_raise_invariant_broken() -> None:
    m = Owner(P)
    for number in range(WAITING_MAX):
        m.commits.ask(e.Commit(number, offsets(p=1), 1))
    with pytest.raises(InvariantBroken, match="wait for each"):
        m.commits.ask(e.Commit(WAITING_MAX, offsets(p=1), 1))


def test_fence_fails_all_waiting_commits() -> None:
    m = Owner(P)
    m.commits.ask(e.Commit(7, offsets(p=1), 1))
    m.commits.next(stable=True)
    m.commits.ask(e.Commit(8, offsets(p=2), 1))
    fenced, gone = e.Refusal.FENCED, {P: e.NOT_OURS}
    m.commits.fail(fenced)
    assert m.told == [e.CommitDone(7, gone, fenced), e.CommitDone(8, gone, fenced)]
    assert m.commits.next(stable=True) is None


# -- offsets that are staged in a transaction


OPEN = TransactionIdentity("app-1", 7, 0, 2)


def staged(m: Owner, **at: int) -> None:
    m.commits.ask(e.Commit(7, offsets(**at), 1, OPEN))


def test_staged_offsets_with_a_lost_partition_are_not_sent() -> None:
    """The outputs of q would be committed, and its next owner makes them again."""
    m = Owner(P)
    staged(m, p=1, q=2)
    lost = {P: e.NOT_OURS, Q: e.NOT_OURS}
    assert m.told == [e.CommitDone(7, lost, e.Refusal.NOT_OWNED)]
    assert m.commits.next(stable=True) is None


def test_staged_offsets_are_sent_in_the_next_generation_if_nothing_is_lost() -> None:
    """A revoke comes in between: the group has moved, and takes none of these partitions
    (KAFKA-18943).
    """
    m = Owner(P, Q)
    staged(m, p=1, q=2)
    assert m.commits.next(stable=True) == e.TxnOffsetCommit(offsets(p=1, q=2), OPEN)
    m.commits.answered(Verdict.MOVED, e.Reply(1, 22))
    assert m.commits.next(stable=False) is None
    assert m.commits.next(stable=True) == e.TxnOffsetCommit(offsets(p=1, q=2), OPEN)
    m.commits.answered(Verdict.GOOD, e.Reply(2, 0))
    assert m.told == [e.Count("commit-resent-total"), e.CommitDone(7, {})]


def test_staged_offsets_of_which_some_are_revoked_meanwhile_are_not_sent_again() -> None:
    m = Owner(P, Q)
    staged(m, p=1, q=2)
    m.commits.next(stable=True)
    m.commits.answered(Verdict.MOVED, e.Reply(1, 22))
    m.since[Q] = 2
    assert m.commits.next(stable=True) is None
    lost = {P: e.NOT_OURS, Q: e.NOT_OURS}
    assert m.told[-1] == e.CommitDone(7, lost, e.Refusal.NOT_OWNED)


def test_staged_offsets_wait_until_the_transaction_before_has_ended() -> None:
    m = Owner(P)
    staged(m, p=1)
    m.commits.next(stable=True)
    m.commits.answered(Verdict.SOON, e.Reply(1, 51))
    assert m.told == [e.Arm(e.Timer.STAGE, SOON_S)]
    assert m.commits.next(stable=True) is None
    m.commits.go_on()
    assert m.commits.next(stable=True) == e.TxnOffsetCommit(offsets(p=1), OPEN)


def test_staged_offsets_of_a_transaction_that_is_over_fail_with_its_error() -> None:
    m = Owner(P)
    staged(m, p=1)
    m.commits.next(stable=True)
    m.commits.answered(Verdict.ABORT, e.Reply(1, 90))
    assert m.told == [e.CommitDone(7, {P: e.NOT_OURS}, e.Refusal.ABORTED, 90)]


def test_staged_offsets_with_a_denied_partition_end_as_a_whole() -> None:
    m = Owner(P, Q)
    staged(m, p=1, q=2)
    m.commits.next(stable=True)
    m.commits.answered(Verdict.GOOD, e.Reply(1, 0, {Q: 29}))
    assert m.told == [e.CommitDone(7, {Q: 29})]
    assert m.commits.next(stable=True) is None
