"""membership/commits.py: what a rebalance does to a commit."""

import pytest

from streamsx.errors import InvariantBroken
from streamsx.membership import events as e
from streamsx.membership.answers import Verdict
from streamsx.membership.claims import Claims
from streamsx.membership.commits import WAITING_MAX, Commits
from streamsx.model import TopicPartition

P, Q = TopicPartition("orders", 0), TopicPartition("orders", 1)


def owning(*tps: TopicPartition, generation: int = 1) -> Claims:
    claims = Claims()
    claims.apply(set(tps), generation)
    return claims


def offsets(**at: int) -> dict[TopicPartition, e.OffsetAndMetadata]:
    return {{"p": P, "q": Q}[name]: e.OffsetAndMetadata(n) for name, n in at.items()}


def test_what_is_not_owned_is_dropped_and_named_and_the_rest_goes_on() -> None:
    commits, claims = Commits(), owning(P)
    assert commits.ask(e.Commit(7, offsets(p=1, q=2), 1), claims) == []
    assert commits.next(claims, stable=True) == (offsets(p=1), [])
    assert commits.answered(Verdict.GOOD, 0, {}) == [e.CommitDone(7, (Q,))]


def test_a_commit_of_nothing_owned_fails() -> None:
    commits = Commits()
    failed = commits.ask(e.Commit(7, offsets(q=2), 1), owning(P))
    assert failed == [e.CommitFailed(7, e.Refusal.NOT_OWNED)]
    assert not commits.flying


def test_a_commit_asked_under_an_older_ownership_is_not_sent() -> None:
    """m loses p and is given p again, and the worker has heard of neither."""
    commits = Commits()
    failed = commits.ask(e.Commit(7, offsets(p=1), generation=1), owning(P, generation=3))
    assert failed == [e.CommitFailed(7, e.Refusal.NOT_OWNED)]


def test_a_refused_commit_is_sent_again_when_stable_without_what_was_lost_meanwhile() -> None:
    commits, claims = Commits(), owning(P, Q)
    commits.ask(e.Commit(7, offsets(p=1, q=2), 1), claims)
    commits.next(claims, stable=True)
    moved = commits.answered(Verdict.MOVED, 22, {})
    assert moved == [e.Count("commit-resent-total")]
    assert commits.next(claims, stable=False) == ({}, [])

    claims.drop({Q})
    claims.apply({P, Q}, 2)
    assert commits.next(claims, stable=True) == (offsets(p=1), [])
    assert commits.answered(Verdict.GOOD, 0, {}) == [e.CommitDone(7, (Q,))]


def test_commits_of_a_partition_arrive_in_the_order_of_asking() -> None:
    commits, claims = Commits(), owning(P)
    commits.ask(e.Commit(7, offsets(p=1), 1), claims)
    commits.ask(e.Commit(8, offsets(p=2), 1), claims)
    assert commits.next(claims, stable=True)[0] == offsets(p=1)
    assert commits.next(claims, stable=True)[0] == {}
    commits.break_off()
    assert commits.next(claims, stable=True)[0] == offsets(p=1)
    commits.answered(Verdict.GOOD, 0, {})
    assert commits.next(claims, stable=True)[0] == offsets(p=2)


def test_a_commit_behind_a_refused_one_waits_too() -> None:
    commits, claims = Commits(), owning(P)
    commits.ask(e.Commit(7, offsets(p=1), 1), claims)
    commits.next(claims, stable=True)
    commits.answered(Verdict.MOVED, 27, {})
    commits.ask(e.Commit(8, offsets(p=2), 1), claims)
    assert commits.next(claims, stable=False)[0] == {}
    assert commits.next(claims, stable=True)[0] == offsets(p=1)


def test_what_is_denied_is_named_and_the_others_are_done() -> None:
    commits, claims = Commits(), owning(P, Q)
    commits.ask(e.Commit(7, offsets(p=1, q=2), 1), claims)
    commits.next(claims, stable=True)
    assert commits.answered(Verdict.GOOD, 0, {Q: 3}) == [e.CommitDone(7, (), {Q: 3})]


def test_a_commit_that_is_denied_as_a_whole_is_over() -> None:
    for denied, verdict in (({P: 29}, Verdict.MOVED), ({}, Verdict.REFUSE)):
        commits, claims = Commits(), owning(P)
        commits.ask(e.Commit(7, offsets(p=1), 1), claims)
        commits.next(claims, stable=True)
        assert commits.answered(verdict, 29, denied) == [e.CommitDone(7, (), {P: 29})]
        assert not commits.flying


def test_what_was_denied_is_told_when_the_others_are_done_later_or_lost() -> None:
    for lost in (False, True):
        commits, claims = Commits(), owning(P, Q)
        commits.ask(e.Commit(7, offsets(p=1, q=2), 1), claims)
        commits.next(claims, stable=True)
        commits.answered(Verdict.MOVED, 27, {Q: 29})
        if lost:
            claims.drop({P})
            ended = commits.next(claims, stable=True)[1]
        else:
            assert commits.next(claims, stable=True)[0] == offsets(p=1)
            ended = commits.answered(Verdict.GOOD, 0, {})
        assert ended == [e.CommitDone(7, (P,) if lost else (), {Q: 29})]


def test_who_never_waits_for_an_answer_is_told() -> None:
    commits, claims = Commits(), owning(P)
    for number in range(WAITING_MAX):
        commits.ask(e.Commit(number, offsets(p=1), 1), claims)
    with pytest.raises(InvariantBroken, match="wait for each"):
        commits.ask(e.Commit(WAITING_MAX, offsets(p=1), 1), claims)


def test_a_fence_fails_all_of_them() -> None:
    commits, claims = Commits(), owning(P)
    commits.ask(e.Commit(7, offsets(p=1), 1), claims)
    commits.next(claims, stable=True)
    commits.ask(e.Commit(8, offsets(p=2), 1), claims)
    fenced = e.Refusal.FENCED
    assert commits.fail(fenced) == [e.CommitFailed(7, fenced), e.CommitFailed(8, fenced)]
    assert not commits.flying
