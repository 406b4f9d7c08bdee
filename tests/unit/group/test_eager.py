"""Eager members: they release everything before a join, and report what they ran."""

from collections.abc import Callable

import pytest

from streamsx.group import member_events as e
from streamsx.group.member import MemberState
from streamsx.model import OffsetAndMetadata, TopicPartition
from tests.unit.group.conftest import Play

Plays = Callable[..., Play]
P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = frozenset({P, Q})


def eager(play: Plays) -> Play:
    """Return an eager member in STABLE, with both partitions."""
    group = play(eager=True)
    group.stable(P, Q)
    return group


def revoked(effects: list[e.Effect]) -> e.Revoke:
    return next(effect for effect in effects if isinstance(effect, e.Revoke))


def begins(group: Play) -> e.JoinGroup:
    """Begin another round; the join is on its way."""
    asked = revoked(group.feed(e.Want("a new round")))
    group.feed(e.Released(BOTH, asked.number))
    body = group.last(e.JoinGroup).body
    assert isinstance(body, e.JoinGroup)
    return body


def test_eager_member_releases_all_and_joins_without_claims(play: Plays) -> None:
    group = eager(play)

    asked = revoked(group.feed(e.Want("a new round")))

    assert (asked.tps, group.member.state) == ((P, Q), MemberState.JOINING)
    assert not group.flying(e.ConnectionName.JOIN, e.JoinGroup)
    group.feed(e.Released(frozenset({P}), asked.number))
    assert not group.flying(e.ConnectionName.JOIN, e.JoinGroup)
    group.feed(e.Released(frozenset({Q}), asked.number))
    body = group.last(e.JoinGroup).body
    assert isinstance(body, e.JoinGroup)
    assert (body.claims, body.ran) == ((), (P, Q))


def test_returned_partition_is_assigned_anew(play: Plays) -> None:
    """Requirement R429-21 of tests/requirements.md."""
    group = eager(play)
    begins(group)
    group.joined(2)

    effects = group.synced(P)

    told = [type(effect) for effect in effects]
    assert told.index(e.OnAssignment) < told.index(e.Assigned)
    assert next(x for x in effects if isinstance(x, e.Assigned)).tps == (P,)
    assert not any(isinstance(effect, e.Revoke) for effect in effects)
    assert group.member.holding.owned == {P}


def test_broken_off_round_rejoins_with_partitions_run_before(play: Plays) -> None:
    """The member releases t and joins; the coordinator starts another round, in which t had no
    owner.
    """
    group = eager(play)
    begins(group)
    group.joined(2)
    group.answer(e.SyncGroup, 27)
    body = group.last(e.JoinGroup).body
    assert isinstance(body, e.JoinGroup)
    assert body.ran == (P, Q)

    group.joined(3)
    group.synced(Q)
    assert begins_with(group, Q).ran == (Q,)


def begins_with(group: Play, *tps: TopicPartition) -> e.JoinGroup:
    asked = revoked(group.feed(e.Want("a new round")))
    group.feed(e.Released(frozenset(tps), asked.number))
    body = group.last(e.JoinGroup).body
    assert isinstance(body, e.JoinGroup)
    return body


def test_overdue_partitions_are_lost_and_member_joins(play: Plays) -> None:
    group = eager(play)
    group.feed(e.Want("a new round"))

    effects = group.tick(e.Timer.REVOKE)

    assert any(isinstance(effect, e.Lost) for effect in effects)
    body = group.last(e.JoinGroup).body
    assert isinstance(body, e.JoinGroup)
    assert body.claims == ()


def test_fenced_member_rejoins_with_nothing_run(play: Plays) -> None:
    group = eager(play)
    begins(group)
    group.answer(e.JoinGroup, 25)
    group.tick(e.Timer.BACKOFF)
    body = group.last(e.JoinGroup).body
    assert isinstance(body, e.JoinGroup)
    assert body.ran == ()


def test_leaving_member_stays_until_assigned_nothing(play: Plays) -> None:
    """Between its release and the answer the member holds nothing, and no worker has learned its
    tasks.
    """
    group = eager(play)
    asked = revoked(group.feed(e.Leave(60.0)))
    group.feed(e.Released(BOTH, asked.number))
    assert group.flying(e.ConnectionName.JOIN, e.JoinGroup)

    group.joined(2)
    group.synced(P, Q)
    assert group.member.holding.owned == BOTH
    begins(group)
    group.joined(3)
    group.synced()
    assert group.member.state is MemberState.GONE


def test_halting_member_leaves_though_partitions_ran(play: Plays) -> None:
    group = eager(play)
    begins(group)
    group.feed(e.Stop(group.now + 5))
    assert group.member.state is MemberState.GONE


@pytest.mark.parametrize("says", [0, 27])
def test_refused_last_commit_is_resent_while_generation_counts(play: Plays, says: int) -> None:
    """The member joined after its release, which waited for the commit, and the commit waited for
    the next generation: all was lost when the revoke was overdue (seed 99097).
    """
    group = eager(play)
    group.feed(e.Want("a new round"))
    group.feed(e.Commit(1, {P: OffsetAndMetadata(3, "")}, 1))
    group.answer(e.OffsetCommit, 27)
    assert not group.flying(e.ConnectionName.BEAT, e.OffsetCommit)

    group.tick(e.Timer.HEARTBEAT)
    group.answer(e.Heartbeat, says)

    assert group.last(e.OffsetCommit).body == e.OffsetCommit({P: OffsetAndMetadata(3, "")})
    assert e.CommitDone(1) in group.answer(e.OffsetCommit, 0, {})
