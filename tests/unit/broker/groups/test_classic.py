"""The state machine of classic groups; the harness checks its invariants after each request."""

import pytest

from streamsx.broker.groups.classic import COLUMN, TABLE, Cause, GroupState, Round
from streamsx.broker.groups.coordinator_events import ClientGone
from streamsx.broker.groups.group import GroupConfig
from streamsx.broker.metadata_rows import GroupValue
from streamsx.errors import InvalidTransition
from streamsx.protocol.error_codes import ErrorCode
from tests.support.coordinator_harness import CoordinatorHarness

NONE = ErrorCode.NONE
BOTH = {"range": b"r", "sticky": b"s"}


def error(harness: CoordinatorHarness, waiter: int) -> int:
    return int(harness.replies[waiter].get("error_code", 0))


def new_id(harness: CoordinatorHarness, **about: object) -> str:
    """Return a new member id, as clients first ask for one."""
    first = harness.join(**about)  # type: ignore[arg-type]  # passed through
    assert error(harness, first) == ErrorCode.MEMBER_ID_REQUIRED
    return str(harness.replies[first]["member_id"])


def joined(harness: CoordinatorHarness, members: int = 2, **about: object) -> list[str]:
    """Return a group in COMPLETING, its leader first."""
    ids = [new_id(harness, **about) for _ in range(members)]
    for member_id in ids:
        harness.join(member_id, **about)  # type: ignore[arg-type]
    for member_id in ids[:-1]:
        if state(harness) is GroupState.PREPARING:
            harness.join(member_id, **about)  # type: ignore[arg-type]
    assert state(harness) is GroupState.COMPLETING
    return ids


def stable(harness: CoordinatorHarness, members: int = 2, **about: object) -> list[str]:
    """Return a group in STABLE, its leader first; each member was assigned its own id."""
    ids = joined(harness, members, **about)
    waiters = [harness.sync(m, generation(harness)) for m in ids[1:]]
    harness.sync(ids[0], generation(harness), assignments={m: m.encode() for m in ids})
    assert [harness.replies[w]["assignment"] for w in waiters] == [m.encode() for m in ids[1:]]
    return ids


def state(harness: CoordinatorHarness) -> GroupState:
    return harness.round().state


def generation(harness: CoordinatorHarness) -> int:
    return harness.round().generation


@pytest.fixture
def harness() -> CoordinatorHarness:
    harness = CoordinatorHarness()
    harness.set_topics(t=4)
    return harness


def test_state_table_covers_all_causes_and_states_with_actions() -> None:
    assert set(TABLE) == set(Cause)
    for row in TABLE.values():
        assert len(row) == len(GroupState)
        assert all(callable(getattr(Round, name)) for name in row if name)


@pytest.mark.parametrize("cause", [c for c in Cause if not TABLE[c][COLUMN[GroupState.EMPTY]]])
def test_impossible_cause_in_empty_group_raises_invalid_transition(
    harness: CoordinatorHarness, cause: Cause
) -> None:
    joined(harness, 1)
    group = harness.round()
    group.state = GroupState.EMPTY
    with pytest.raises(InvalidTransition, match="somebody joins"):
        group.fire(cause)


@pytest.mark.parametrize("kind", ["consumer", "connect"])
def test_member_id_length_is_bounded(harness: CoordinatorHarness, kind: str) -> None:
    """A member with the longest name would leave its leader without an answer."""
    waiter = harness.join(instance="\u00e9" * 16_000, kind=kind)
    assert len(harness.replies[waiter]["member_id"].encode()) < 1000


def test_member_receives_id_before_joining(harness: CoordinatorHarness) -> None:
    member_id = new_id(harness)
    assert state(harness) is GroupState.EMPTY
    waiter = harness.join(member_id)
    reply = harness.replies[waiter]
    assert (reply["member_id"], reply["leader"], reply["generation_id"]) == (
        member_id,
        member_id,
        1,
    )
    assert reply["members"] == [
        {"member_id": member_id, "group_instance_id": None, "metadata": b"topics"}
    ]


def test_join_before_version_4_needs_no_member_id(harness: CoordinatorHarness) -> None:
    waiter = harness.join(version=3)
    assert harness.replies[waiter]["generation_id"] == 1


def test_joins_within_initial_delay_share_first_generation() -> None:
    harness = CoordinatorHarness(GroupConfig(initial_delay_ms=3000))
    first, second = new_id(harness), new_id(harness)
    waiters = [harness.join(first), harness.join(second)]
    assert not set(waiters) & harness.replies.keys()
    harness.sleep(3)
    assert [harness.replies[w]["generation_id"] for w in waiters] == [1, 1]
    assert [len(harness.replies[w]["members"]) for w in waiters] == [2, 0]


def test_join_waits_for_all_members_and_promised_ids(harness: CoordinatorHarness) -> None:
    (leader,) = stable(harness, 1)
    late = new_id(harness)
    waiter = harness.join(leader)
    assert (state(harness), waiter in harness.replies) == (GroupState.PREPARING, False)
    harness.join(late)
    assert (state(harness), harness.replies[waiter]["generation_id"]) == (GroupState.COMPLETING, 2)


def test_unused_promised_id_holds_up_round_for_one_session_only(
    harness: CoordinatorHarness,
) -> None:
    (leader,) = stable(harness, 1)
    new_id(harness, session_ms=2000)
    waiter = harness.join(leader)
    harness.sleep(2)
    assert harness.replies[waiter]["generation_id"] == 2
    assert not harness.round().pending


def test_member_not_rejoining_removed_at_rebalance_timeout(harness: CoordinatorHarness) -> None:
    leader, follower = stable(harness, session_ms=600_000, rebalance_ms=5000)
    waiter = harness.join(leader, session_ms=600_000, rebalance_ms=5000)
    harness.sleep(4.9)
    assert waiter not in harness.replies
    harness.sleep(0.1)
    assert [m["member_id"] for m in harness.replies[waiter]["members"]] == [leader]
    assert harness.heartbeat(follower, 2)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


def test_member_not_syncing_removed_at_rebalance_timeout(harness: CoordinatorHarness) -> None:
    leader, follower = joined(harness, session_ms=600_000, rebalance_ms=5000)
    harness.sync(leader, generation(harness))
    harness.sleep(5)
    assert state(harness) is GroupState.PREPARING
    assert (
        harness.heartbeat(follower, generation(harness))["error_code"]
        == ErrorCode.UNKNOWN_MEMBER_ID
    )
    assert (
        harness.heartbeat(leader, generation(harness))["error_code"]
        == ErrorCode.REBALANCE_IN_PROGRESS
    )


def test_dead_leader_replaced_when_session_expires(harness: CoordinatorHarness) -> None:
    leader, follower = stable(harness)
    codes = []
    for _ in range(4):
        harness.sleep(3)
        codes.append(harness.heartbeat(follower, generation(harness))["error_code"])
    assert codes == [NONE, NONE, NONE, ErrorCode.REBALANCE_IN_PROGRESS]
    waiter = harness.join(follower)
    assert harness.replies[waiter]["leader"] == follower
    assert leader not in harness.round().members


def test_session_renewed_by_heartbeat_commit_and_join_but_not_sync(
    harness: CoordinatorHarness,
) -> None:
    (member,) = stable(harness, 1)
    harness.sleep(9)
    assert harness.heartbeat(member, 1)["error_code"] == NONE
    harness.sleep(9)
    assert harness.commit(member, 1, {("t", 0): 5}) == {("t", 0): NONE}
    harness.sleep(9)
    harness.join(member)
    harness.sync(member, 2)
    harness.sleep(9)
    assert error(harness, harness.sync(member, 2)) == NONE
    harness.sleep(1)
    assert state(harness) is GroupState.EMPTY


def test_parked_member_outlives_session_timeout(harness: CoordinatorHarness) -> None:
    leader, follower = stable(harness, session_ms=2000)
    waiter = harness.join(leader, session_ms=2000)
    for _ in range(5):
        harness.sleep(1)
        harness.heartbeat(follower, 2)
    assert waiter not in harness.replies
    harness.join(follower, session_ms=2000)
    assert harness.replies[waiter]["generation_id"] == 3


def test_sync_parked_beyond_session_answered_rebalance_keeps_member(
    harness: CoordinatorHarness,
) -> None:
    leader, follower = joined(harness, session_ms=4000)
    parked = harness.sync(follower, 2)
    for _ in range(2):
        harness.sleep(3)
        harness.heartbeat(leader, 2)
    harness.join(new_id(harness))
    assert error(harness, parked) == ErrorCode.REBALANCE_IN_PROGRESS
    harness.sleep(3)
    assert harness.heartbeat(follower, 2)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS


def test_member_disconnected_while_parked_counts_as_joined(harness: CoordinatorHarness) -> None:
    leader, follower = stable(harness)
    waiter = harness.join(leader)
    harness.step(ClientGone("g", waiter))
    harness.join(follower)
    assert (state(harness), generation(harness)) == (GroupState.COMPLETING, 3)
    assert waiter not in harness.replies


def test_synced_member_stays_after_sync_deadline(harness: CoordinatorHarness) -> None:
    leader, follower = joined(harness, session_ms=600_000, rebalance_ms=5000)
    harness.sync(leader, 2)
    harness.sleep(4)
    assert error(harness, harness.sync(follower, 2)) == NONE
    harness.sleep(1)
    assert (state(harness), generation(harness)) == (GroupState.STABLE, 2)
    assert harness.wakes["g"] > harness.now


def test_session_restarts_when_long_parked_sync_is_answered(
    harness: CoordinatorHarness,
) -> None:
    leader, follower = joined(harness, session_ms=4000)
    parked = harness.sync(follower, 2)
    for _ in range(2):
        harness.sleep(3)
        harness.heartbeat(leader, 2)
    harness.sync(leader, 2, assignments={follower: b"yours"})
    assert harness.replies[parked]["assignment"] == b"yours"
    harness.sleep(3.9)
    assert harness.heartbeat(leader, 2)["error_code"] == NONE
    harness.sleep(0.1)
    assert harness.heartbeat(leader, 2)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS


def test_session_restarts_when_connection_of_parked_member_closes(
    harness: CoordinatorHarness,
) -> None:
    leader, follower = stable(harness, session_ms=4000)
    waiter = harness.join(leader, session_ms=4000)
    for _ in range(2):
        harness.sleep(3)
        harness.heartbeat(follower, 2)
    harness.step(ClientGone("g", waiter))
    harness.sleep(3.9)
    assert leader in harness.round().members
    harness.heartbeat(follower, 2)
    harness.sleep(0.1)
    assert leader not in harness.round().members


def test_heartbeating_member_keeps_place_while_others_rejoin(harness: CoordinatorHarness) -> None:
    leader, follower = stable(harness, session_ms=4000)
    harness.join(leader, session_ms=4000)
    for _ in range(4):
        harness.sleep(3)
        code = harness.heartbeat(follower, 2)["error_code"]
        assert code == ErrorCode.REBALANCE_IN_PROGRESS


def test_full_group_counts_promised_ids() -> None:
    harness = CoordinatorHarness(GroupConfig(members_max=2))
    first, second = new_id(harness), new_id(harness)
    assert error(harness, harness.join()) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert error(harness, harness.join(first)) == NONE
    assert harness.join(second) not in harness.replies


def test_join_accepts_largest_metadata(harness: CoordinatorHarness) -> None:
    (leader,) = stable(harness, 1)
    most = {"range": bytes(65535), "sticky": b"s"}
    assert error(harness, harness.join(leader, protocols=most)) == NONE


def test_zero_rebalance_timeout_raised_to_minimum(harness: CoordinatorHarness) -> None:
    """The time is in milliseconds, and a client may send 0."""
    leader, follower = stable(harness, rebalance_ms=0)
    waiter = harness.join(leader, rebalance_ms=0)
    harness.sleep(0.009)
    assert waiter not in harness.replies
    harness.sleep(0.001)
    assert [m["member_id"] for m in harness.replies[waiter]["members"]] == [leader]
    assert follower not in harness.round().members


def test_join_version_0_uses_session_timeout_as_rebalance_timeout(
    harness: CoordinatorHarness,
) -> None:
    """JoinGroup has no rebalance timeout before version 1."""
    leader = str(harness.replies[harness.join(version=0, session_ms=5000)]["member_id"])
    harness.sync(leader, 1)
    harness.join(version=0, session_ms=5000)
    (about,) = [m.about for m in harness.round().members.values() if m.id == leader]
    assert about.rebalance_timeout == 5000


def test_empty_group_accepts_another_protocol_type(harness: CoordinatorHarness) -> None:
    (leader,) = stable(harness, 1)
    harness.leave((leader, None))
    waiter = harness.join(version=3, kind="connect")
    assert harness.replies[waiter]["protocol_type"] == "connect"


def test_member_rejoining_without_sync_removed_at_deadline(harness: CoordinatorHarness) -> None:
    leader, follower = joined(harness, session_ms=600_000, rebalance_ms=5000)
    harness.sync(leader, 2)
    assert harness.replies[harness.join(follower)]["generation_id"] == 2
    harness.sleep(5)
    assert follower not in harness.round().members


def test_group_row_records_time_of_state_change(harness: CoordinatorHarness) -> None:
    harness.sleep(5)
    stable(harness, 1)
    told: list[tuple[int, int]] = []
    for _ in range(2):
        (row,) = harness.disk.values()
        assert isinstance(row, GroupValue)
        told.append((row.state_timestamp, len(row.members)))
        harness.sleep(10)
    assert told == [(1_005_000, 1), (1_015_000, 0)]  # it was assigned; its session ended


def test_repeated_join_replaces_parked_join(harness: CoordinatorHarness) -> None:
    leader, follower = stable(harness)
    lost, waiter = harness.join(leader), harness.join(leader)
    assert error(harness, lost) == ErrorCode.REBALANCE_IN_PROGRESS
    harness.join(follower)
    assert harness.replies[waiter]["generation_id"] == 3


def test_new_member_aborts_sync_phase(harness: CoordinatorHarness) -> None:
    leader, follower = joined(harness)
    parked = harness.sync(follower, generation(harness))
    harness.join(new_id(harness))
    assert error(harness, parked) == ErrorCode.REBALANCE_IN_PROGRESS
    assert (
        error(harness, harness.sync(leader, generation(harness))) == ErrorCode.REBALANCE_IN_PROGRESS
    )


@pytest.mark.parametrize("half", [joined, stable], ids=["completing", "stable"])
def test_follower_rejoining_unchanged_answered_with_same_generation(
    harness: CoordinatorHarness, half: object
) -> None:
    _, follower = half(harness)  # type: ignore[operator]  # joined or stable
    before = state(harness)
    waiter = harness.join(follower)
    assert (harness.replies[waiter]["generation_id"], state(harness)) == (2, before)


def test_leader_rejoin_starts_round_without_changes(harness: CoordinatorHarness) -> None:
    leader, follower = stable(harness)
    harness.join(leader)
    assert state(harness) is GroupState.PREPARING
    assert harness.heartbeat(follower, 2)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS


def test_follower_rejoin_with_changed_metadata_starts_round(harness: CoordinatorHarness) -> None:
    leader, follower = stable(harness)
    harness.join(follower, protocols={"range": b"other topics"})
    assert harness.heartbeat(leader, 2)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS
    told = harness.replies[harness.join(leader)]
    assert told["generation_id"] == 3
    metadata = {m["member_id"]: m["metadata"] for m in told["members"]}
    assert metadata == {leader: b"topics", follower: b"other topics"}


def test_last_member_leaving_empties_group(harness: CoordinatorHarness) -> None:
    leader, follower = stable(harness)
    assert harness.leave((leader, None), (follower, None), ("nobody", None)) == [
        NONE, NONE, ErrorCode.UNKNOWN_MEMBER_ID,
    ]  # fmt: skip
    assert (state(harness), generation(harness)) == (GroupState.EMPTY, 3)


def test_leave_before_version_3_answers_with_top_level_code(harness: CoordinatorHarness) -> None:
    (leader,) = stable(harness, 1)
    first = harness.ask(13, 1, group_id="g", member_id=leader)
    second = harness.ask(13, 1, group_id="g", member_id=leader)
    assert (error(harness, first), error(harness, second)) == (NONE, ErrorCode.UNKNOWN_MEMBER_ID)


def test_parked_sync_answered_when_member_is_removed(harness: CoordinatorHarness) -> None:
    _, follower = joined(harness)
    parked = harness.sync(follower, 2)
    harness.leave((follower, None))
    assert error(harness, parked) == ErrorCode.UNKNOWN_MEMBER_ID


def test_promised_id_released_by_leave(harness: CoordinatorHarness) -> None:
    (leader,) = stable(harness, 1)
    late = new_id(harness)
    waiter = harness.join(leader)
    assert harness.leave((late, None)) == [NONE]
    assert harness.replies[waiter]["generation_id"] == 2


def test_protocol_is_favourite_among_commonly_supported(harness: CoordinatorHarness) -> None:
    (old,) = stable(harness, 1, protocols={"range": b"r"})
    harness.join(
        new_id(harness, protocols={"sticky": b"s", "range": b"r"}),
        protocols={"sticky": b"s", "range": b"r"},
    )
    assert harness.replies[harness.join(old, protocols={"range": b"r"})]["protocol_name"] == "range"
    upgraded = harness.join(old, protocols={"sticky": b"s", "range": b"r"})
    follower = next(m for m in harness.round().members if m != old)
    harness.join(follower, protocols={"sticky": b"s", "range": b"r"})
    assert harness.replies[upgraded]["protocol_name"] == "sticky"


def test_protocol_chosen_by_majority_vote(harness: CoordinatorHarness) -> None:
    likes = [("range", "sticky"), ("sticky", "range"), ("sticky", "range")]
    offers = [dict.fromkeys(names, b"") for names in likes]
    ids = [new_id(harness, protocols=offer) for offer in offers]
    waiters = [harness.join(m, protocols=o) for m, o in zip(ids, offers, strict=True)]
    waiters.append(harness.join(ids[0], protocols=offers[0]))
    assert harness.replies[waiters[-1]]["protocol_name"] == "sticky"


REFUSED = {
    "another type": ({"kind": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    "no protocol in common": ({"protocols": {"mine": b""}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    "no protocol at all": ({"protocols": {}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    "a session of half an hour and more": (
        {"session_ms": 1_800_001},
        ErrorCode.INVALID_SESSION_TIMEOUT,
    ),
    "no session": ({"session_ms": 0}, ErrorCode.INVALID_SESSION_TIMEOUT),
    "no group": ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
    "an unknown id": ({"member_id": "who"}, ErrorCode.UNKNOWN_MEMBER_ID),
    "an unknown id, no group": ({"member_id": "who", "group": "h"}, ErrorCode.UNKNOWN_MEMBER_ID),
    "too much metadata": ({"protocols": {"range": bytes(65537)}}, ErrorCode.INVALID_REQUEST),
}


@pytest.mark.parametrize("why", REFUSED)
def test_join_refused_for(harness: CoordinatorHarness, why: str) -> None:
    about, code = REFUSED[why]
    stable(harness, 1)
    assert error(harness, harness.join(**about)) == code  # type: ignore[arg-type]  # of several types
    assert set(harness.machine.groups) == {"g"}


@pytest.mark.parametrize("session_ms", [1, 1_800_000])
def test_join_accepts_shortest_and_longest_session(
    harness: CoordinatorHarness, session_ms: int
) -> None:
    assert error(harness, harness.join(version=3, session_ms=session_ms)) == NONE


def test_full_group_accepts_only_returning_static_members() -> None:
    harness = CoordinatorHarness(GroupConfig(members_max=1))
    stable_static(harness, "one")
    assert error(harness, harness.join()) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert error(harness, harness.join(instance="two")) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert error(harness, harness.join(instance="one")) == NONE


def test_older_and_newer_generations_answered_illegal(harness: CoordinatorHarness) -> None:
    (leader,) = stable(harness, 1)
    assert generation(harness) == 1
    for wrong in (0, 2):
        code = ErrorCode.ILLEGAL_GENERATION
        assert harness.heartbeat(leader, wrong)["error_code"] == code
        assert error(harness, harness.sync(leader, wrong)) == code
        assert harness.commit(leader, wrong, {("t", 0): 1}) == {("t", 0): code}


def test_sync_for_another_protocol_answered_inconsistent(harness: CoordinatorHarness) -> None:
    (leader,) = joined(harness, 1)
    wrong = harness.sync(leader, 1, protocol="sticky")
    assert error(harness, wrong) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error(harness, harness.sync(leader, 1, protocol="range")) == NONE


# Static members, KIP-345.


def stable_static(harness: CoordinatorHarness, *instances: str) -> list[str]:
    """Return a group of static members in STABLE, its leader first."""
    ids: list[str] = []
    for instance in instances:
        waiter = harness.join(instance=instance, protocols=BOTH)
        for member_id, name in zip(ids, instances, strict=False):
            harness.join(member_id, instance=name, protocols=BOTH)
        ids.append(str(harness.replies[waiter]["member_id"]))
    for m in ids[1:]:
        harness.sync(m, generation(harness))
    harness.sync(ids[0], generation(harness), assignments={m: m.encode() for m in ids})
    assert state(harness) is GroupState.STABLE
    return ids


def test_returning_static_member_keeps_assignment_without_round(
    harness: CoordinatorHarness,
) -> None:
    _, old = stable_static(harness, "one", "two")
    waiter = harness.join(instance="two", protocols={"range": b"changed"})
    new = harness.replies[waiter]["member_id"]
    assert (harness.replies[waiter]["generation_id"], state(harness)) == (2, GroupState.STABLE)
    assert harness.replies[harness.sync(new, 2, instance="two")]["assignment"] == old.encode()


def test_replaced_static_member_is_fenced_if_instance_id_sent(harness: CoordinatorHarness) -> None:
    _, old = stable_static(harness, "one", "two")
    harness.join(instance="two", protocols=BOTH)
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert harness.heartbeat(old, 2, instance="two")["error_code"] == fenced
    assert error(harness, harness.sync(old, 2, instance="two")) == fenced
    assert error(harness, harness.join(old, instance="two", protocols=BOTH)) == fenced
    assert harness.commit(old, 2, {("t", 0): 1}, instance="two") == {("t", 0): fenced}
    assert harness.leave((old, "two")) == [fenced]
    assert harness.heartbeat(old, 2)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


def test_returning_static_leader_skips_assignment(harness: CoordinatorHarness) -> None:
    stable_static(harness, "one", "two")
    reply = harness.replies[harness.join(instance="one", version=9, protocols=BOTH)]
    assert (reply["leader"], reply["skip_assignment"]) == (reply["member_id"], True)
    assert len(reply["members"]) == 2


def test_returning_static_leader_before_version_9_answered_as_follower(
    harness: CoordinatorHarness,
) -> None:
    old, _ = stable_static(harness, "one", "two")
    reply = harness.replies[harness.join(instance="one", version=5, protocols=BOTH)]
    assert (reply["leader"], reply["members"]) == (old, [])
    assert harness.round().leader == reply["member_id"]


def test_static_member_returning_with_other_protocol_starts_round(
    harness: CoordinatorHarness,
) -> None:
    stable_static(harness, "one", "two")
    harness.join(instance="two", protocols={"sticky": b"s"})
    assert state(harness) is GroupState.PREPARING


def test_parked_static_member_fenced_when_instance_joins_again(harness: CoordinatorHarness) -> None:
    one, _ = stable_static(harness, "one", "two")
    here = harness.join(one, instance="one", protocols=BOTH)
    there = harness.join(instance="one", protocols=BOTH)
    assert error(harness, here) == ErrorCode.FENCED_INSTANCE_ID
    assert there not in harness.replies


def test_live_static_member_not_rejoining_keeps_place(harness: CoordinatorHarness) -> None:
    one, two = stable_static(harness, "one", "two")
    waiter = harness.join(one, instance="one", protocols=BOTH)
    for _ in range(20):
        harness.sleep(3)
        harness.heartbeat(two, 2, instance="two")
    assert [m["member_id"] for m in harness.replies[waiter]["members"]] == sorted([one, two])


def test_round_without_joins_waits_while_static_members_live(harness: CoordinatorHarness) -> None:
    one, two = stable_static(harness, "one", "two")
    harness.leave((one, "one"))
    for _ in range(30):
        harness.sleep(3)
        harness.heartbeat(two, 2, instance="two")
    assert (state(harness), generation(harness)) == (GroupState.PREPARING, 2)
    assert harness.replies[harness.join(two, instance="two", protocols=BOTH)]["leader"] == two


def test_static_member_leaves_by_instance_id(harness: CoordinatorHarness) -> None:
    stable_static(harness, "one", "two")
    assert harness.leave(("", "two"), ("", "three")) == [NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert [m.about.group_instance_id for m in harness.round().members.values()] == ["one"]
