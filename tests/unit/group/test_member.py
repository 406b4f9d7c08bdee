"""group/member.py: joining, owning, being fenced and leaving, as stories."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest

from streamsx.assignor.model import Mark, MarkState
from streamsx.assignor.wire import AssignmentView
from streamsx.client.transactional_id import TransactionIdentity
from streamsx.errors import InvalidTransition
from streamsx.group import member_events as e
from streamsx.group.member import REPLAN_S, MemberState
from streamsx.group.owned_partitions import COLLECT_S
from streamsx.model import OffsetAndMetadata, TaskId, TopicPartition

Plays = Callable[..., Any]
P, Q, R = (TopicPartition("orders", n) for n in range(3))
OPEN = TransactionIdentity("app-1", 7, 0, 2)
OFFSETS = {P: OffsetAndMetadata(5, "")}
LEAVES, LEFT = e.LeaveGroup(("m1",), "done"), [e.Remember(None), e.Left()]


def only(effects: list[e.Effect], kind: type[e.Effect]) -> list[e.Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


# Joining.


def test_new_member_id_is_remembered_before_rejoin(play: Plays) -> None:
    group = play()
    group.begin()
    effects = group.answer(e.JoinGroup, 79, e.Joined(-1, "m1", ""))
    assert effects[0] == e.Remember("m1")
    assert group.last(e.JoinGroup).member_id == "m1"
    assert group.last(e.JoinGroup).body.nonce == 1
    assert only(group.joined(1), e.Remember) == []


def test_follower_syncs_without_assignments_and_reports_in_order(play: Plays) -> None:
    group = play()
    group.begin()
    effects = group.joined(1)
    assert only(effects, e.Assign) == []
    assert group.last(e.SyncGroup).body.assignments == {}
    assert group.synced(P, Q, generation=1) == [
        e.OnAssignment(1, (P, Q), AssignmentView(generation=1)),
        e.Assigned((P, Q)),
    ]
    assert group.member.state is MemberState.STABLE


def test_leader_plans_before_sync(play: Plays) -> None:
    group = play()
    group.begin()
    assign = only(group.joined(1, leader=True), e.Assign)[0]
    assert isinstance(assign, e.Assign)
    assert not [send for send in group.sent if isinstance(send.body, e.SyncGroup)]
    group.feed(e.Planned(assign.request, {"m1": b"all"}))
    assert group.last(e.SyncGroup).body.assignments == {"m1": b"all"}


def test_plan_request_carries_member_id_and_generation(play: Plays) -> None:
    """Fresh metadata may take 2 s; a member that is fenced meanwhile has no id to plan under."""
    group = play()
    group.begin()
    assign = only(group.joined(7, leader=True), e.Assign)[0]
    assert isinstance(assign, e.Assign)
    assert (assign.member_id, assign.generation) == ("m1", 7)


def test_join_and_sync_timeout_exceeds_rebalance_timeout(play: Plays) -> None:
    """With 2 s all members joined again, for ever, before the slowest one had joined (seed 82)."""
    group = play(rebalance_timeout_s=60.0)
    group.begin()
    assert group.last(e.JoinGroup).timeout_s == 65.0
    group.joined(1)
    assert group.last(e.SyncGroup).timeout_s == 65.0


def test_failed_plan_assigns_claims_and_is_retried(play: Plays) -> None:
    group = play()
    group.begin()
    assign = only(group.joined(1, leader=True), e.Assign)[0]
    assert isinstance(assign, e.Assign)
    group.feed(e.Planned(assign.request, {"m1": b"claims"}, failed=True))
    assert group.last(e.SyncGroup).body.assignments == {"m1": b"claims"}
    assert group.feed(e.Planned(assign.request, {})) == [], "it was taken, once"
    group.synced(P)
    assert group.armed[e.Timer.COLLECT] == group.now + REPLAN_S
    group.tick(e.Timer.COLLECT)
    assert group.last(e.JoinGroup).body.reason == "the assignment failed"


def test_plan_for_finished_round_changes_nothing(play: Plays) -> None:
    group = play()
    group.begin()
    assign = only(group.joined(1, leader=True), e.Assign)[0]
    assert isinstance(assign, e.Assign)
    group.cut(e.ConnectionName.JOIN)
    assert group.feed(e.Planned(assign.request, {"m1": b"all"})) == []
    assert group.member.state is MemberState.JOINING


def test_refused_join_counts_the_error_name(play: Plays) -> None:
    """A full group was tried every 10 s, without a line in the log."""
    group = play()
    group.begin()
    assert e.Count("failed-rebalance-total", "GROUP_MAX_SIZE_REACHED") in group.answer(
        e.JoinGroup, 81
    )


def test_broken_join_connection_resends_same_join(play: Plays) -> None:
    """For the coordinator it is the same member, with the same claims and the same nonce."""
    group = play()
    group.stable(P)
    group.feed(e.Want("a reason"))
    before = group.last(e.JoinGroup).body
    group.cut(e.ConnectionName.JOIN)
    assert group.tick(e.Timer.FIND) == [e.Find()]
    group.feed(e.Found(2))
    assert group.last(e.JoinGroup).body == before
    assert group.last(e.JoinGroup).node == 2


def test_not_coordinator_answers_are_retried_with_growing_pauses(play: Plays) -> None:
    """After a restart FindCoordinator succeeds at once; JoinGroup returns 16 for up to 4 s."""
    group = play()
    group.begin()
    pauses = []
    for _ in range(6):
        group.answer(e.JoinGroup, 16)
        pauses.append(round(group.armed[e.Timer.FIND] - group.now, 3))
        group.tick(e.Timer.FIND)
        group.feed(e.Found(1))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert group.last(e.JoinGroup).body.nonce == 1


def test_unknown_coordinator_is_looked_up_again(play: Plays) -> None:
    group = play()
    assert group.feed(e.Start()) == [e.Find()]
    assert group.feed(e.Found(None)) == []
    assert group.tick(e.Timer.FIND) == [e.Find()]


def test_dead_predecessor_is_removed_before_first_join(play: Plays) -> None:
    """The old member held up every round until its session ended: 42 s instead of 0.3 s."""
    group = play()
    group.begin(predecessor="dead")
    farewell = group.last(e.LeaveGroup)
    assert (farewell.body.member_ids, farewell.timeout_s) == (("dead",), 2.0)
    group.answer(e.LeaveGroup, 25)
    assert group.last(e.JoinGroup).body.reason == "first"


def test_unremovable_predecessor_is_left_to_session_timeout(play: Plays) -> None:
    group = play()
    group.begin(predecessor="dead")
    group.cut(e.ConnectionName.JOIN)
    group.tick(e.Timer.FIND)
    group.feed(e.Found(1))
    assert isinstance(group.sent[-1].body, e.JoinGroup)


def test_second_start_raises_invalid_transition(play: Plays) -> None:
    group = play()
    group.begin()
    with pytest.raises(InvalidTransition, match=r"Start.*joining.*the story.*Found"):
        group.feed(e.Start())


def test_join_wanted_during_round_makes_next_round(play: Plays) -> None:
    group = play()
    group.begin()
    group.feed(e.Want("a reason"))
    group.joined(1)
    group.synced(P)
    assert group.last(e.JoinGroup).body.reason == "a reason"
    assert group.last(e.JoinGroup).body.nonce == 2


def test_answer_to_abandoned_request_changes_nothing(play: Plays) -> None:
    group = play()
    group.begin()
    old = group.last(e.JoinGroup)
    group.cut(e.ConnectionName.JOIN)
    late = e.Reply(old.request, 0, e.Joined(7, "m1", "m1"))
    assert group.feed(late) == []
    assert group.member.generation == -1


def test_broken_beat_lane_does_not_disturb_round_on_join_lane(play: Plays) -> None:
    """The coordinator is looked up again; SyncGroup goes to the broker that answered JoinGroup."""
    group = play()
    group.stable(P)
    group.feed(e.Want("a reason"))
    group.cut(e.ConnectionName.BEAT)
    group.joined(2)
    assert group.last(e.SyncGroup).node == 1


@pytest.mark.parametrize("node", [1, 2])
def test_parked_join_is_resent_to_found_coordinator(play: Plays, node: int) -> None:
    """The coordinator moves, or restarts and forgets the round. The connection on which JoinGroup
    waits stays silent for 65 s, while heartbeats are answered well.
    """
    group = play()
    group.stable(P)
    group.feed(e.Want("a reason"))
    parked = group.last(e.JoinGroup).body
    group.cut(e.ConnectionName.BEAT)
    group.tick(e.Timer.FIND)
    effects = group.feed(e.Found(node))
    assert effects[0] == e.Close(e.ConnectionName.JOIN)
    assert (group.last(e.JoinGroup).body, group.last(e.JoinGroup).node) == (parked, node)
    assert group.last(e.Heartbeat).node == node


def test_parked_sync_at_former_coordinator_restarts_with_join(
    play: Plays,
) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Want("a reason"))
    group.joined(2)
    group.answer(e.Heartbeat, 16)
    group.tick(e.Timer.FIND)
    group.feed(e.Found(2))
    assert group.member.state is MemberState.JOINING
    assert group.last(e.JoinGroup).node == 2
    assert group.member.holding.owned == {P}


def test_commit_at_former_coordinator_goes_to_new_one(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Commit(1, OFFSETS, 1))
    group.feed(e.Want("a reason"))
    group.answer(e.JoinGroup, 16)
    group.tick(e.Timer.FIND)
    assert e.Close(e.ConnectionName.BEAT) in group.feed(e.Found(2))
    assert group.last(e.OffsetCommit).node == 2
    assert group.last(e.OffsetCommit).body.offsets == OFFSETS


def test_broken_idle_join_connection_changes_nothing(play: Plays) -> None:
    group = play()
    group.stable(P)
    assert group.cut(e.ConnectionName.JOIN) == []
    assert e.Timer.FIND not in group.armed


def test_commit_to_unavailable_coordinator_backs_off_to_one_second(
    play: Plays,
) -> None:
    """The topic of offsets lacks a replica: commits get 15, heartbeats no error. Each heartbeat
    reset the pauses, and 10 commits a second were sent, with JoinGroup if it waited.
    """
    group = play()
    group.stable(P)
    group.feed(e.Commit(1, OFFSETS, 1))
    pauses = []
    for _ in range(6):
        group.answer(e.OffsetCommit, 15)
        pauses.append(round(group.armed[e.Timer.FIND] - group.now, 3))
        group.tick(e.Timer.FIND)
        group.feed(e.Found(1))
        group.answer(e.Heartbeat)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


# Removing who overstays.

EVICTION = {"slow": 35.0}
OVERSTAYS = e.LeaveGroup(("slow",), "it did not leave by its deadline")


def led(group: Any, generation: int, evictions: Any = MappingProxyType({})) -> None:
    """Return a round that the member leads, whose plan has deadlines of removals."""
    assign = only(group.joined(generation, leader=True), e.Assign)[0]
    assert isinstance(assign, e.Assign)
    group.feed(e.Planned(assign.request, {}, evictions=evictions))
    group.synced(P)


def test_overstaying_member_is_removed_by_leader_once(play: Plays) -> None:
    group = play()
    group.begin()
    led(group, 1, EVICTION | {"slower": 40.0})
    assert group.armed[e.Timer.EVICT] == 35.0
    group.tick(e.Timer.EVICT)
    assert group.last(e.LeaveGroup).body == OVERSTAYS
    assert group.answer(e.LeaveGroup, 16) == []
    group.tick(e.Timer.EVICT)
    assert group.last(e.LeaveGroup).body.member_ids == ("slower",)
    assert e.Timer.EVICT not in group.armed
    assert group.answer(e.LeaveGroup) == []


def test_removal_waits_for_coordinator_and_for_earlier_removal(play: Plays) -> None:
    """The coordinator is being looked up, or another removal is under way."""
    group = play()
    group.begin()
    led(group, 1, EVICTION | {"slower": 35.5})
    group.answer(e.Heartbeat, 16)
    group.tick(e.Timer.EVICT)
    assert not [send for send in group.sent if isinstance(send.body, e.LeaveGroup)]
    group.feed(e.Found(1))
    assert group.last(e.LeaveGroup).body == OVERSTAYS
    group.tick(e.Timer.EVICT)
    group.answer(e.LeaveGroup)
    assert group.last(e.LeaveGroup).body.member_ids == ("slower",)


def test_returning_leader_removes_no_member_before_heartbeat_answer(
    play: Plays,
) -> None:
    """The leader's session ended in an outage; others planned, and a tool took the leave of `slow`
    back. The leader's LeaveGroup followed the heartbeat that was to report this.
    """
    group = play()
    group.begin()
    led(group, 1, EVICTION)
    group.cut(e.ConnectionName.BEAT)
    group.tick(e.Timer.EVICT)
    group.now = 60.0
    group.feed(e.Found(2))
    assert [type(send.body) for send in group.sent] == [e.Heartbeat]
    group.answer(e.Heartbeat, 25)
    assert not group.member._evictions.ends


def test_removal_follows_answer_that_renews_session(play: Plays) -> None:
    group = play()
    group.begin()
    led(group, 1, EVICTION)
    group.cut(e.ConnectionName.BEAT)
    group.now = 60.0
    group.feed(e.Found(2))
    group.answer(e.Heartbeat)
    assert group.last(e.LeaveGroup).body == OVERSTAYS


def test_removal_timeout_leaves_time_for_heartbeat(play: Plays) -> None:
    """Both use one connection, in order: 5 s for the removal would end a session of 6 s."""
    group = play(session_timeout_s=6.0, heartbeat_interval_s=2.0)
    group.begin()
    led(group, 1, {"slow": 1.0})
    group.answer(e.Heartbeat)
    group.tick(e.Timer.EVICT)
    assert group.last(e.LeaveGroup).timeout_s == 2.0


def test_eviction_deadline_unknown_to_newer_plan_is_dropped(play: Plays) -> None:
    """A worker was asked to leave within 30 s, asked to stay at 10 s, and removed at 35 s."""
    group = play()
    group.begin()
    led(group, 1, EVICTION)
    group.feed(e.Want("a tool has taken it back"))
    led(group, 2)
    assert e.Timer.EVICT not in group.armed


def test_eviction_deadline_ends_with_leadership(play: Plays) -> None:
    """m1 leads and sets the timer; m2 leads and gets the cancellation; m1 leads again, and waits
    for fresh metadata when the time comes.
    """
    group = play()
    group.begin()
    led(group, 1, EVICTION)
    group.stable(P, generation=2)
    assert e.Timer.EVICT not in group.armed
    group.feed(e.Want("a reason"))
    group.joined(3, leader=True)
    assert e.Timer.EVICT not in group.armed


def test_eviction_deadline_stands_while_next_round_gathers(play: Plays) -> None:
    """The round may wait for the very member that is to be removed."""
    group = play()
    group.begin()
    led(group, 1, EVICTION)
    group.feed(e.Want("a reason"))
    group.tick(e.Timer.EVICT)
    assert group.last(e.LeaveGroup).body == OVERSTAYS


def test_fenced_leader_removes_no_member(play: Plays) -> None:
    group = play()
    group.begin()
    led(group, 1, EVICTION)
    group.answer(e.Heartbeat, 25)
    assert e.Timer.EVICT not in group.armed


# Heartbeats and the lease.


def test_join_answer_extends_lease_from_sending_and_heartbeat_follows(
    play: Plays,
) -> None:
    """Counted from its arrival, a late answer gave a lease to an expired member."""
    group = play(session_timeout_s=10.0)
    group.begin()
    group.now = 9.0
    group.joined(1)
    assert group.member.lease.until == 10.0
    assert group.last(e.Heartbeat).generation == 1
    group.now = 9.5
    group.answer(e.Heartbeat)
    assert group.member.lease.until == 19.0


def test_heartbeat_in_flight_during_join_is_followed_by_another(
    play: Plays,
) -> None:
    group = play()
    group.stable(P)
    group.tick(e.Timer.HEARTBEAT)
    group.feed(e.Want("a reason"))
    group.joined(2)
    group.answer(e.Heartbeat, 22)
    assert group.last(e.Heartbeat).generation == 2


@pytest.mark.parametrize(("code", "counts"), [(0, True), (27, True), (22, False), (14, False)])
def test_lease_is_extended_only_by_session_extending_answers(
    play: Plays, code: int, *, counts: bool
) -> None:
    group = play(session_timeout_s=10.0)
    group.stable(P)
    group.feed(e.Want("a reason"))
    group.now = 5.0
    group.tick(e.Timer.HEARTBEAT)
    group.now = 6.0
    group.answer(e.Heartbeat, code)
    assert group.member.lease.until == (15.0 if counts else 10.0)


def test_lease_is_not_extended_by_staged_offsets(play: Plays) -> None:
    """TxnOffsetCommit does not renew the session in a classic group."""
    group = play(session_timeout_s=10.0)
    group.stable(P)
    group.now = 5.0
    group.feed(e.Commit(1, OFFSETS, 1, OPEN))
    group.now = 6.0
    group.answer(e.TxnOffsetCommit)
    assert group.member.lease.until == 10.0


@pytest.mark.parametrize(("code", "lease"), [(0, 25.0), (27, 20.0)])
def test_member_aware_of_round_has_rebalance_timeout_to_join(
    play: Plays, code: int, lease: float
) -> None:
    group = play(session_timeout_s=100.0, rebalance_timeout_s=20.0)
    group.stable(P)
    group.feed(e.Want("a reason"))
    group.now = 5.0
    group.tick(e.Timer.HEARTBEAT)
    group.answer(e.Heartbeat, code)
    assert group.member.lease.until == lease


def test_member_without_assignment_suspends_before_removal(
    play: Plays,
) -> None:
    """Its SyncGroup does not arrive, its heartbeats do: at the sync deadline the coordinator
    removes it, and the others may close the next round at once.
    """
    group = play(session_timeout_s=15.0, rebalance_timeout_s=20.0)
    group.stable(P)
    group.feed(e.Want("a reason"))
    group.now = 5.0
    group.tick(e.Timer.HEARTBEAT)
    group.answer(e.Heartbeat, 27)
    group.now = 7.0
    group.joined(2)  # the round was closed between these two
    for now in (7.0, 16.0, 24.0):
        group.now = now
        if not group.flying(e.ConnectionName.BEAT, e.Heartbeat):
            group.tick(e.Timer.HEARTBEAT)
        group.answer(e.Heartbeat)
    assert group.member.lease.until == 25.0

    group.synced(P)
    group.tick(e.Timer.HEARTBEAT)
    group.answer(e.Heartbeat)

    assert group.member.lease.until == group.now + 15.0


@pytest.mark.parametrize(("code", "lease"), [(0, 15.0), (27, 10.0), (22, 10.0)])
def test_only_accepted_commit_extends_lease(play: Plays, code: int, lease: float) -> None:
    group = play(session_timeout_s=10.0)
    group.stable(P)
    group.feed(e.Want("a reason"))
    group.now = 5.0
    group.feed(e.Commit(1, OFFSETS, 1))
    group.answer(e.OffsetCommit, code)
    assert group.member.lease.until == lease


def test_silent_broker_suspends_member_without_loss(play: Plays) -> None:
    """Broker away for 9.7 s, session 6 s: treating silence as a loss repeated 3,600 records."""
    group = play(session_timeout_s=10.0)
    group.stable(P)
    group.cut(e.ConnectionName.BEAT)
    assert group.tick(e.Timer.FENCE) == [e.Count("self-fence-total")]
    assert group.now >= group.member.lease.until
    assert group.member.holding.owned == {P}


def test_outdated_lease_timer_counts_no_fence(play: Plays) -> None:
    group = play(session_timeout_s=10.0)
    group.stable(P)
    group.now = 5.0
    group.tick(e.Timer.HEARTBEAT)
    group.answer(e.Heartbeat)
    assert group.feed(e.Tick(e.Timer.FENCE)) == []


def test_heartbeat_answer_starts_rebalance(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.tick(e.Timer.HEARTBEAT)
    group.answer(e.Heartbeat, 27)
    join = group.last(e.JoinGroup).body
    assert (join.claims, join.owned_generation) == ((P,), 1)


def test_joining_member_stays_joining_on_heartbeat_27_and_22(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Want("a reason"))
    for code in (27, 22):
        group.tick(e.Timer.HEARTBEAT)
        assert group.answer(e.Heartbeat, code) == []
    assert group.member.state is MemberState.JOINING
    assert group.member.holding.owned == {P}


def test_heartbeats_hurry_while_more_partitions_are_due(play: Plays) -> None:
    group = play(heartbeat_interval_s=3.0)
    group.begin()
    group.joined(1)
    group.synced(P, more=True)
    assert group.armed[e.Timer.HEARTBEAT] == pytest.approx(0.1)
    group.answer(e.Heartbeat)
    while group.now < 10.0:
        group.tick(e.Timer.HEARTBEAT)
        group.answer(e.Heartbeat)
    assert group.armed[e.Timer.HEARTBEAT] == pytest.approx(group.now + 3.0)


# Fences.


def test_fenced_member_loses_all_and_claims_nothing(play: Plays) -> None:
    """An old claim would be a zombie's (KIP-792)."""
    group = play()
    group.stable(P)
    group.tick(e.Timer.HEARTBEAT)
    effects = group.answer(e.Heartbeat, 22)
    assert effects[0] == e.Lost((P,))
    assert group.member.lease.until == 0.0
    group.tick(e.Timer.BACKOFF)
    send = group.last(e.JoinGroup)
    assert send.member_id == "m1"
    assert (send.body.claims, send.body.owned_generation) == ((), -1)


def test_unknown_member_is_fenced_and_forgets_member_id(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Want("a reason"))
    group.tick(e.Timer.HEARTBEAT)
    effects = group.answer(e.Heartbeat, 25)
    assert effects == [e.Lost((P,)), e.Close(e.ConnectionName.JOIN)]
    group.tick(e.Timer.BACKOFF)
    assert group.last(e.JoinGroup).member_id == ""


def test_fenced_member_rejoins_despite_unanswered_sync(play: Plays) -> None:
    """Kafka stops reading from a member that was removed while its SyncGroup was parked."""
    group = play()
    group.stable(P)
    group.feed(e.Want("a reason"))
    group.joined(2)
    effects = group.answer(e.Heartbeat, 25)
    assert e.Close(e.ConnectionName.JOIN) in effects
    group.tick(e.Timer.BACKOFF)
    assert isinstance(group.sent[-1].body, e.JoinGroup)


@pytest.mark.parametrize("code", [22, 27])
def test_failed_sync_member_claims_under_last_assignment(play: Plays, code: int) -> None:
    """The member is still in the group and still holds p; its claim must not be dropped as old."""
    group = play()
    group.stable(P)
    group.feed(e.Want("a reason"))
    group.joined(2)
    group.answer(e.SyncGroup, code)
    join = group.last(e.JoinGroup).body
    assert (join.claims, join.owned_generation, join.nonce) == ((P,), 1, 3)


def test_fenced_instance_id_is_fatal(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.tick(e.Timer.HEARTBEAT)
    fatal = e.Fatal("the coordinator refuses this member: FENCED_INSTANCE_ID", 82)
    lost, goes = group.answer(e.Heartbeat, 82)
    assert (lost, group.member.state) == (e.Lost((P,)), MemberState.GONE)
    assert isinstance(goes, e.SendRequest)
    assert group.answer(e.LeaveGroup, 25) == [fatal]


def test_refused_member_ends_even_without_leave_answer(play: Plays) -> None:
    group = play()
    group.begin()
    assert isinstance(group.answer(e.JoinGroup, 24)[-1], e.Fatal)

    group = play()
    group.stable(P)
    group.tick(e.Timer.HEARTBEAT)
    group.answer(e.Heartbeat, 30)
    assert [type(effect) for effect in group.cut(e.ConnectionName.BEAT)] == [e.Fatal]


def test_silent_worker_leaves_group_and_is_fatal(play: Plays) -> None:
    group = play()
    group.stable(P)
    effects = group.feed(e.Silent("the data loop stands still"))
    assert [type(effect) for effect in effects] == [e.Lost, e.SendRequest]
    assert group.answer(e.LeaveGroup) == [e.Remember(None), e.Fatal("the data loop stands still")]


def test_heartbeat_hurry_ends_with_next_round(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Want("a"))
    group.joined(2)
    group.synced(P, more=True)
    assert group.armed[e.Timer.HEARTBEAT] == pytest.approx(group.now + 0.1)

    group.feed(e.Want("b"))
    group.joined(3)
    group.synced(P)
    assert group.armed[e.Timer.HEARTBEAT] == pytest.approx(group.now + 1.0)


def test_immediate_round_replaces_collected_reasons(play: Plays) -> None:
    """A retried plan and ready learners asked for one more round, for nothing."""
    group = play()
    group.begin()
    group.joined(1, leader=True)
    asked = next(effect for effect in group.effects if isinstance(effect, e.Assign))
    group.feed(e.Planned(asked.request, {}, failed=True))
    group.synced(P)
    group.feed(e.Ready())
    due = group.armed[e.Timer.COLLECT]
    assert due == group.now + COLLECT_S
    group.now += 0.02
    group.feed(e.Ready())
    assert group.armed[e.Timer.COLLECT] == due  # or those that come one by one put it off

    group.feed(e.Want("at once"))
    assert group.last(e.JoinGroup).body.reason == "at once"
    assert e.Timer.COLLECT not in group.armed


# What is ours.


def test_revoke_precedes_assignment_and_kept_partitions_stay(
    play: Plays,
) -> None:
    group = play()
    group.stable(P, Q)
    effects = group.stable(Q, R, generation=2)
    number = next(iter(group.member.holding.revoking.values())).number
    assert effects == [
        e.Revoke((P,), number),
        e.OnAssignment(2, (Q, R), AssignmentView()),
        e.Assigned((R,)),
    ]
    assert group.member.holding.owned == {P, Q, R}


def revoking(group: Any, *kept: TopicPartition) -> int:
    """Revoke all but these of P, Q and R; return the number of the revoke."""
    group.stable(P, Q, R)
    group.stable(*kept, generation=2)
    return int(next(iter(group.member.holding.revoking.values())).number)


def test_last_release_starts_next_round_at_once(play: Plays) -> None:
    group = play()
    number = revoking(group, Q, R)
    group.feed(e.Released(frozenset({P}), number))
    assert group.last(e.JoinGroup).body.claims == (Q, R)


def test_single_releases_are_collected_into_one_round(play: Plays) -> None:
    """They would take three rounds where two are enough."""
    group = play()
    number = revoking(group, R)
    assert group.feed(e.Released(frozenset({P}), number)) == []
    group.tick(e.Timer.COLLECT)
    assert group.last(e.JoinGroup).body.claims == (Q, R)


def test_release_during_join_makes_another_round(play: Plays) -> None:
    """The leader saw the claim, and withholds p from all members until it is released."""
    group = play()
    number = revoking(group, Q, R)
    group.feed(e.Want("a reason"))
    group.feed(e.Released(frozenset({P}), number))
    group.joined(3)
    group.synced(Q, R)
    assert group.last(e.JoinGroup).body.claims == (Q, R)


def test_partition_given_back_before_release_is_assigned_after_release(play: Plays) -> None:
    group = play()
    number = revoking(group, Q, R)
    assert group.stable(P, Q, R, generation=3)[-1] == e.Assigned(())
    assert group.feed(e.Released(frozenset({P}), number)) == [e.Assigned((P,))]
    assert group.member.holding.since[P] == 1


def test_overdue_revoke_is_lost(play: Plays) -> None:
    group = play(revoke_timeout_s=60.0)
    number = revoking(group, Q, R)
    assert group.armed[e.Timer.REVOKE] == 60.0
    assert group.tick(e.Timer.REVOKE)[0] == e.Lost((P,))
    assert group.last(e.JoinGroup).body.claims == (Q, R)
    assert group.feed(e.Released(frozenset({P}), number)) == []


def test_round_proceeds_during_slow_release(play: Plays) -> None:
    group = play()
    revoking(group, Q, R)
    group.tick(e.Timer.HEARTBEAT)
    group.answer(e.Heartbeat, 27)
    assert group.last(e.JoinGroup).body.claims == (P, Q, R)


def test_ready_learners_are_collected(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Ready(), e.Ready())
    assert group.armed[e.Timer.COLLECT] == pytest.approx(0.05)
    group.tick(e.Timer.COLLECT)
    assert group.last(e.JoinGroup).body.reason == "learner ready"


def test_readiness_during_join_is_ignored(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Want("a reason"), e.Ready())
    assert e.Timer.COLLECT not in group.armed


def test_only_leader_replans_when_topics_grow(play: Plays) -> None:
    group = play()
    group.stable(P)
    changed = e.PartitionsChanged({"orders": 4})
    assert group.feed(changed) == [changed], "the worker hears of it"
    group.feed(e.Want("a reason"))
    group.feed(e.Planned(group.joined(2, leader=True)[-1].request, {}))
    group.feed(e.PartitionsChanged({}))
    group.synced(P)
    assert group.last(e.JoinGroup).body.reason == "topics changed"


def test_topic_growth_before_plan_needs_no_further_round(play: Plays) -> None:
    """The leader looks at the counts for each plan: a second round would follow its first one."""
    group = play()
    group.begin()
    asked = group.joined(1, leader=True)[-1]
    group.feed(e.PartitionsChanged({"orders": 4}), e.Planned(asked.request, {}))
    group.synced(P)
    assert not group.flying(e.ConnectionName.JOIN, e.JoinGroup)

    group.feed(e.Want("a reason"), e.PartitionsChanged({"orders": 5}))
    group.feed(e.Planned(group.joined(2, leader=True)[-1].request, {}))
    group.synced(P)
    assert not group.flying(e.ConnectionName.JOIN, e.JoinGroup)


# Commits.


def committing(group: Any) -> tuple[str, int, Any]:
    """Commit for an owner in a generation."""
    send = group.last(e.OffsetCommit)
    return send.member_id, send.generation, send.body.offsets


def test_commit_is_sent_under_current_generation(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Commit(1, OFFSETS, 1))
    assert committing(group) == ("m1", 1, OFFSETS)
    assert group.answer(e.OffsetCommit) == [e.CommitDone(1)]


def test_next_commit_waits_for_commit_in_flight(play: Plays) -> None:
    """So the offsets of a partition arrive in order."""
    group = play()
    group.stable(P)
    assert len(group.feed(e.Commit(1, OFFSETS, 1))) == 1
    assert group.feed(e.Commit(2, {P: OffsetAndMetadata(6, "")}, 1)) == []
    assert group.answer(e.OffsetCommit)[0] == e.CommitDone(1)
    assert committing(group) == ("m1", 1, {P: OffsetAndMetadata(6, "")})


def test_commits_continue_while_joining_and_wait_while_syncing(play: Plays) -> None:
    """Kafka accepts commits in PreparingRebalance and returns 27 in CompletingRebalance."""
    group = play()
    group.stable(P)
    group.feed(e.Want("a reason"))
    group.feed(e.Commit(1, OFFSETS, 1))
    group.answer(e.OffsetCommit)
    group.joined(2)
    assert group.feed(e.Commit(2, OFFSETS, 1)) == []
    group.synced(P)
    assert group.last(e.OffsetCommit).generation == 2


@pytest.mark.parametrize("code", [22, 25, 27])
def test_commit_refused_by_moving_group_is_resent_in_next_generation(
    play: Plays, code: int
) -> None:
    """m1 commits at 1; the group moves to 2; the commit arrives. Treated as a fence, this was a
    livelock.
    """
    group = play()
    group.stable(P)
    group.feed(e.Commit(1, OFFSETS, 1))
    group.feed(e.Want("a reason"))
    assert group.answer(e.OffsetCommit, code) == [e.Count("commit-resent-total")]
    group.joined(2)
    group.synced(P)
    assert committing(group) == ("m1", 2, OFFSETS)


def test_commit_refused_for_rebalance_while_stable_starts_round(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Commit(1, OFFSETS, 1))
    group.answer(e.OffsetCommit, 27)
    assert group.last(e.JoinGroup).body.claims == (P,)


@pytest.mark.parametrize(("code", "member_id"), [(22, "m1"), (25, "")])
def test_commit_refused_while_stable_fences_member(play: Plays, code: int, member_id: str) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Commit(1, OFFSETS, 1))
    assert group.answer(e.OffsetCommit, code) == [
        e.Lost((P,)),
        e.CommitDone(1, {P: e.NOT_OURS}, e.Refusal.FENCED),
    ]
    assert (group.member.state, group.member.member_id) == (MemberState.OUT, member_id)


def test_commit_on_broken_connection_is_resent(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Commit(1, OFFSETS, 1))
    group.cut(e.ConnectionName.BEAT)
    group.tick(e.Timer.FIND)
    group.feed(e.Found(1))
    assert group.last(e.OffsetCommit).body.offsets == OFFSETS


def test_released_partition_is_not_committed(play: Plays) -> None:
    group = play()
    number = revoking(group, Q, R)
    group.feed(e.Released(frozenset({P}), number))
    failed = group.feed(e.Commit(1, OFFSETS, 2))
    assert failed == [e.CommitDone(1, {P: e.NOT_OURS}, e.Refusal.NOT_OWNED)]


# Leaving.


def test_leaving_member_announces_and_leaves_when_nothing_is_held(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Leave(30.0))
    join = group.last(e.JoinGroup).body
    assert (join.leaving, join.deadline, join.reason) == (True, 30.0, "leaving")
    group.joined(2)
    revoke = group.synced()[0]
    group.feed(e.Released(frozenset({P}), revoke.number))
    assert group.last(e.LeaveGroup).body == LEAVES
    assert group.answer(e.LeaveGroup) == LEFT


def test_leaving_member_stays_until_last_commit_is_answered(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Commit(1, OFFSETS, 1), e.Leave(None))
    group.joined(2)
    revoke = group.synced()[0]
    group.feed(e.Released(frozenset({P}), revoke.number))
    assert not [send for send in group.sent if isinstance(send.body, e.LeaveGroup)]
    group.answer(e.OffsetCommit)
    assert group.last(e.LeaveGroup)


def test_leaving_member_with_nothing_leaves_during_round(play: Plays) -> None:
    group = play()
    group.begin()
    group.joined(1)
    told, closed, *_ = group.feed(e.Leave(None))
    assert (told, closed) == (e.IsLeaving(None), e.Close(e.ConnectionName.JOIN))
    assert group.member.state is MemberState.GONE


@pytest.mark.parametrize(("deadline", "until"), [(40.0, 40.0), (2.0, 5.0), (None, 60.0)])
def test_leaving_member_without_takers_stops_at_once_with_deadline(
    play: Plays, deadline: float | None, until: float
) -> None:
    """Bodies may still run: a record whose body awaited 4 s was processed twice."""
    group = play()
    group.stable(P)
    group.feed(e.Leave(deadline))
    group.joined(2)
    effects = group.synced(P, no_takers=True)
    assert only(effects, e.Revoke)
    assert group.armed[e.Timer.STOP] == until


def test_drain_ends_at_deadline(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Leave(30.0))
    assert only(group.tick(e.Timer.DRAIN), e.Revoke)
    assert group.armed[e.Timer.STOP] == 35.0
    effects = group.tick(e.Timer.STOP)
    assert effects[:2] == [e.Lost((P,)), e.Close(e.ConnectionName.JOIN)]
    assert group.cut(e.ConnectionName.BEAT) == [e.Left("REQUEST_TIMED_OUT")]


def test_leave_request_does_not_wait_behind_unanswered_request(play: Plays) -> None:
    """m1 sends a heartbeat; its last task is released a second later, or three."""
    for later, speaks in ((1.0, True), (3.0, False)):
        group = play()
        group.stable(P)
        group.tick(e.Timer.HEARTBEAT)
        (revoke,) = only(group.feed(e.Stop(60.0)), e.Revoke)
        assert isinstance(revoke, e.Revoke)
        group.now += later
        effects = group.feed(e.Released(frozenset({P}), revoke.number))
        assert effects[0] == e.Close(e.ConnectionName.BEAT)
        assert bool(only(effects, e.SendRequest)) is speaks
        assert (e.Left("it does not answer") in effects) is not speaks


def test_mark_makes_member_leave_once_and_newer_mark_stay(play: Plays) -> None:
    group = play()
    group.begin()
    group.joined(1)
    group.synced(P, deadline=50.0, mark=Mark(MarkState.LEAVING, epoch_ms=10))
    assert group.last(e.JoinGroup).body.deadline == 50.0
    group.joined(2)
    group.synced(P, mark=Mark(MarkState.CANCELLED, epoch_ms=11))
    assert group.last(e.JoinGroup).body.reason == "stays"
    assert not group.last(e.JoinGroup).body.leaving
    group.joined(3)
    group.synced(P, deadline=50.0, mark=Mark(MarkState.LEAVING, epoch_ms=10))
    assert not group.member.leaving


def test_old_cancelled_mark_does_not_stop_a_drain(play: Plays) -> None:
    group = play()
    cancelled = Mark(MarkState.CANCELLED, epoch_ms=10)
    group.begin()
    group.joined(1)
    group.synced(P, mark=cancelled)
    group.feed(e.Leave(30.0))
    group.joined(2)
    group.synced(P, mark=cancelled)
    assert group.member.leaving.draining


def test_drain_deadline_only_moves_closer(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Leave(25.0), e.Leave(60.0), e.Leave(None))
    assert group.armed[e.Timer.DRAIN] == 25.0


def test_mark_does_not_soften_a_stop(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Want("a reason"), e.Stop(20.0), e.Leave(60.0))
    for epoch_ms, state in ((1, MarkState.LEAVING), (2, MarkState.CANCELLED)):
        group.member.leaving.heed(Mark(state, epoch_ms=epoch_ms), 10.0)
    assert group.member.leaving.halting
    assert e.Timer.DRAIN not in group.armed


def marked(group: Any, *tps: TopicPartition, deadline: float = 30.0) -> None:
    """Mark the member as leaving, as a tool does."""
    group.begin()
    group.joined(1)
    group.synced(*tps, deadline=deadline, mark=Mark(MarkState.LEAVING, epoch_ms=1))


STAY = Mark(MarkState.CANCELLED, epoch_ms=2)


def test_cancelled_leaving_member_announces_staying(play: Plays) -> None:
    group = play()
    marked(group, P)
    group.joined(2)
    group.synced(P, mark=STAY)
    assert group.last(e.JoinGroup).body.reason == "stays"
    assert e.Timer.DRAIN not in group.armed


def test_mark_does_not_cancel_a_signal(play: Plays) -> None:
    """After SIGTERM and `leave --cancel` the worker stayed, got tasks, and was killed with them."""
    group = play()
    marked(group, P)
    group.feed(e.Leave(20.0))
    group.joined(2)
    group.synced(P, mark=STAY)
    told = group.last(e.JoinGroup).body
    assert (told.leaving, told.deadline, told.reason) == (True, 20.0, "leaving")
    assert group.armed[e.Timer.DRAIN] == 20.0


def test_stop_during_rebalance_keeps_membership_until_commit(play: Plays) -> None:
    """Leaving at once dropped the uncommitted records: 900-3,000 records came twice."""
    group = play()
    group.stable(P)
    group.feed(e.Want("a reason"))
    group.joined(2)
    revoke = group.feed(e.Stop(20.0))[-1]
    assert group.feed(e.Commit(1, OFFSETS, 1)) == []
    group.synced(P)
    group.answer(e.OffsetCommit)
    group.feed(e.Released(frozenset({P}), revoke.number))
    assert group.answer(e.LeaveGroup) == LEFT


def test_stopping_member_takes_nothing_new_and_does_not_rejoin(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Want("a reason"), e.Stop(20.0))
    group.joined(2)
    task = frozenset({TaskId(0, 1)})
    (whole, *_) = group.synced(P, Q, learners=task, promises=task)
    assert whole == e.OnAssignment(2, (), AssignmentView())
    group.tick(e.Timer.HEARTBEAT)
    group.answer(e.Heartbeat, 27)
    assert group.member.state is MemberState.STABLE


def test_stopping_member_rejoins_to_complete_commit(play: Plays) -> None:
    """A coordinator that restarted between JoinGroup and SyncGroup refuses commits until the member
    joins.
    """
    group = play()
    group.stable(P)
    group.feed(e.Stop(20.0), e.Commit(1, OFFSETS, 1))
    group.answer(e.OffsetCommit, 27)
    assert group.member.state is MemberState.JOINING
    group.joined(2)
    group.synced()
    assert group.last(e.OffsetCommit).generation == 2


def test_repeated_stop_moves_deadline_closer(play: Plays) -> None:
    """Each further Ctrl-C gave five seconds more."""
    group = play()
    group.stable(P)
    for again, until in ((20.0, 20.0), (5.0, 5.0), (9.0, 5.0)):
        group.feed(e.Stop(again))
        assert group.armed[e.Timer.STOP] == until


def test_fence_during_release_does_not_block_stop(play: Plays) -> None:
    """A hand-over is data in the state machine: a fence finds no waiting code to cancel."""
    group = play()
    group.stable(P)
    group.feed(e.Stop(20.0))
    group.tick(e.Timer.HEARTBEAT)
    effects = group.answer(e.Heartbeat, 25)
    assert effects == [e.Lost((P,)), e.Left()]


def test_member_never_in_group_leaves_silently(play: Plays) -> None:
    group = play()
    group.feed(e.Start())
    assert group.feed(e.Stop(5.0)) == [e.IsLeaving(5.0, at_once=True), e.Left()]


def test_member_leaving_mid_join_waits_for_id_and_leaves_group(play: Plays) -> None:
    """The group waits for each member with an id, until its session ends."""
    group = play()
    group.begin()
    assert group.feed(e.Leave(30.0)) == [e.IsLeaving(30.0)]
    group.answer(e.JoinGroup, 79, e.Joined(-1, "m1", ""))
    assert [send.body for send in group.sent] == [LEAVES]
    assert group.answer(e.LeaveGroup) == LEFT


def test_wait_for_member_id_is_limited(play: Plays) -> None:
    for deadline, until in ((60.0, 2.0), (1.5, 1.5)):
        group = play()
        group.begin()
        group.now = 1.0
        group.feed(e.Stop(deadline))
        assert group.armed[e.Timer.STOP] == until
        assert e.Left() in group.tick(e.Timer.STOP)


def test_commit_after_end_fails_and_nothing_else_happens(play: Plays) -> None:
    group = play()
    group.stable(P)
    group.feed(e.Stop(0.0))
    group.tick(e.Timer.STOP)
    assert group.feed(e.Commit(1, OFFSETS, 1)) == [
        e.CommitDone(1, {P: e.NOT_OURS}, e.Refusal.NOT_OWNED)
    ]
    assert group.feed(e.Want("a reason")) == []
    assert group.answer(e.LeaveGroup) == LEFT
