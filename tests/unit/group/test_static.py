"""Static members: the coordinator's knowledge outlives their processes."""

from collections.abc import Callable

from streamsx.group import member_events as e
from streamsx.group.member import MemberConfig, MemberState
from streamsx.group.requests import request
from streamsx.model import OffsetAndMetadata, TopicPartition
from streamsx.protocol.wire import Api
from tests.unit.group.conftest import Play

Plays = Callable[..., Play]
P, Q = TopicPartition("t", 0), TopicPartition("t", 1)


def static(play: Plays) -> Play:
    """Return a static member in STABLE, with both partitions, known to the coordinator."""
    group = play(group_instance_id="a")
    group.begin()
    group.joined(4)
    group.synced(P)
    group.answer(e.Heartbeat)
    group.joined(5)
    group.synced(P, Q)
    group.answer(e.Heartbeat)
    return group


def kinds(effects: list[e.Effect]) -> list[type[e.Effect]]:
    return [type(effect) for effect in effects]


def test_instance_id_is_in_each_request() -> None:
    config = MemberConfig(group_instance_id="a")
    for body in (
        e.JoinGroup((), -1, 1, False, None, ""), e.SyncGroup({}), e.Heartbeat(),
        e.OffsetCommit({P: OffsetAndMetadata(1, "")}),
    ):  # fmt: skip
        send = e.SendRequest(1, 0, e.ConnectionName.BEAT, 1.0, body, 0.0, "m1", 3, True)
        _, fields = request("g", config, "streamsx", send)
        assert (fields["member_id"], fields["group_instance_id"]) == ("m1", "a")


def test_static_member_leaves_by_member_id() -> None:
    send = e.SendRequest(
        1, 0, e.ConnectionName.BEAT, 1.0, e.LeaveGroup(("m1",), "done"), 0.0, "m1", 3, True
    )
    api, fields = request("g", MemberConfig(group_instance_id="a"), "streamsx", send)
    assert (api, [one["member_id"] for one in fields["members"]]) == (Api.LEAVE_GROUP, ["m1"])


def test_static_member_keeps_partitions_and_rejoins_once_after_return(play: Plays) -> None:
    group = play(group_instance_id="a")
    group.begin()
    assert group.last(e.JoinGroup).member_id == ""
    group.joined(7)  # the generation as it was: it is told what it was told before

    effects = group.synced(P, Q)

    assert next(x for x in effects if isinstance(x, e.Assigned)).tps == (P, Q)
    again = group.last(e.JoinGroup)
    assert (again.member_id, again.body.reason) == ("m1", "static return")  # type: ignore[union-attr]
    assert again.body.claims == (P, Q)  # type: ignore[union-attr]
    group.joined(8)
    group.synced(P, Q)
    assert group.member.state is MemberState.STABLE, "once is enough"


def test_static_member_cut_off_before_assignment_rejoins_once_too(
    play: Plays,
) -> None:
    """It asks again with its id and the same data: no round starts."""
    group = play(group_instance_id="a")
    group.begin()
    group.joined(7)
    group.cut(e.ConnectionName.JOIN)
    group.feed(e.Found(1))
    assert group.last(e.JoinGroup).member_id == "m1"
    group.joined(7)

    group.synced(P)

    assert group.last(e.JoinGroup).body.reason == "static return"  # type: ignore[union-attr]


def test_new_static_member_known_to_leader_joins_once(play: Plays) -> None:
    """Each start made two rounds; an eager member released everything in both (seed 53)."""
    group = play(group_instance_id="a", nonce=1_700_000_000_000)
    group.begin()
    group.joined(7)
    group.synced(P, heard=1_700_000_000_001)
    assert group.member.state is MemberState.STABLE


def test_dynamic_member_joins_once(play: Plays) -> None:
    group = play()
    group.begin()
    group.joined(7)
    group.synced(P)
    assert group.member.state is MemberState.STABLE


def test_static_member_that_missed_a_round_loses_all_and_claims_nothing(play: Plays) -> None:
    """The leader of generation 6 saw no claim of Q, which was assigned in 5, and gave it away."""
    group = static(play)
    group.feed(e.Commit(1, {Q: OffsetAndMetadata(3, "")}, 5))
    group.answer(e.OffsetCommit, 27)
    effects = group.joined(7)

    lost = next(effect for effect in effects if isinstance(effect, e.Lost))
    assert lost.tps == (P, Q)
    done = next(effect for effect in effects if isinstance(effect, e.CommitDone))
    assert done.why is e.Refusal.FENCED
    assert (group.member.state, group.member.member_id) == (MemberState.OUT, "m1")
    group.tick(e.Timer.BACKOFF)
    body = group.last(e.JoinGroup).body
    assert isinstance(body, e.JoinGroup)
    assert (body.claims, body.owned_generation) == ((), -1)


def test_static_member_that_missed_no_round_keeps_all(play: Plays) -> None:
    group = static(play)
    group.feed(e.Want("a new round"))
    effects = group.joined(6)
    assert e.Lost not in kinds(effects)
    assert group.member.holding.owned == {P, Q}


def test_round_with_failed_sync_is_not_missed(play: Plays) -> None:
    """The leader has the member's data of that round."""
    group = static(play)
    group.feed(e.Want("a new round"))
    group.joined(6)
    group.answer(e.SyncGroup, 27)
    effects = group.joined(7)
    assert e.Lost not in kinds(effects)


def test_static_member_fenced_by_same_instance_id_ends(play: Plays) -> None:
    group = static(play)
    group.tick(e.Timer.HEARTBEAT)

    effects = group.answer(e.Heartbeat, 82)

    assert e.Lost in kinds(effects)
    assert group.member.state is MemberState.GONE
    group.answer(e.LeaveGroup, 82)
    assert isinstance(group.effects[-1], e.Fatal)
    assert group.effects[-1].code == 82


def test_returning_static_member_commits_and_stays_in_group(play: Plays) -> None:
    group = static(play)
    effects = group.feed(e.Stop(group.now + 5, comes_back=True))
    asked = next(effect for effect in effects if isinstance(effect, e.Revoke))
    group.feed(e.Commit(1, {P: OffsetAndMetadata(3, "")}, 5))
    group.answer(e.OffsetCommit, 0, {})

    effects = group.feed(e.Released(frozenset({P, Q}), asked.number))

    assert kinds(effects) == [e.Left]
    assert not group.sent
    assert group.member.state is MemberState.GONE


def test_second_stop_signal_does_not_make_static_member_leave(play: Plays) -> None:
    group = static(play)
    effects = group.feed(e.Stop(group.now + 5, comes_back=True))
    asked = next(effect for effect in effects if isinstance(effect, e.Revoke))
    group.feed(e.Stop(group.now + 1))
    assert kinds(group.feed(e.Released(frozenset({P, Q}), asked.number))) == [e.Left]
