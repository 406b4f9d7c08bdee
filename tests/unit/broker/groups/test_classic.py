"""The group machine, driven by requests; the desk checks its invariants after each one."""

import pytest

from streamsx.broker.groups.classic import COLUMN, TABLE, Cause, GroupState, Round
from streamsx.broker.groups.coordinator_events import ClientGone
from streamsx.broker.groups.group import GroupConfig
from streamsx.broker.metadata_rows import GroupValue
from streamsx.errors import InvalidTransition
from streamsx.protocol.error_codes import ErrorCode
from tests.support.desk import Desk

NONE = ErrorCode.NONE
BOTH = {"range": b"r", "sticky": b"s"}


def error(desk: Desk, waiter: int) -> int:
    return int(desk.replies[waiter].get("error_code", 0))


def new_id(desk: Desk, **about: object) -> str:
    """What a client does first: asks for a member id."""
    first = desk.join(**about)  # type: ignore[arg-type]  # passed through
    assert error(desk, first) == ErrorCode.MEMBER_ID_REQUIRED
    return str(desk.replies[first]["member_id"])


def joined(desk: Desk, members: int = 2, **about: object) -> list[str]:
    """A group in COMPLETING, its leader first."""
    ids = [new_id(desk, **about) for _ in range(members)]
    for member_id in ids:
        desk.join(member_id, **about)  # type: ignore[arg-type]
    for member_id in ids[:-1]:
        if state(desk) is GroupState.PREPARING:
            desk.join(member_id, **about)  # type: ignore[arg-type]
    assert state(desk) is GroupState.COMPLETING
    return ids


def stable(desk: Desk, members: int = 2, **about: object) -> list[str]:
    """A group in STABLE, its leader first; each was assigned its own id."""
    ids = joined(desk, members, **about)
    waiters = [desk.sync(m, generation(desk)) for m in ids[1:]]
    desk.sync(ids[0], generation(desk), assignments={m: m.encode() for m in ids})
    assert [desk.replies[w]["assignment"] for w in waiters] == [m.encode() for m in ids[1:]]
    return ids


def state(desk: Desk) -> GroupState:
    return desk.round().state


def generation(desk: Desk) -> int:
    return desk.round().generation


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.set_topics(t=4)
    return desk


def test_state_table_covers_all_causes_and_states_with_actions() -> None:
    assert set(TABLE) == set(Cause)
    for row in TABLE.values():
        assert len(row) == len(GroupState)
        assert all(callable(getattr(Round, name)) for name in row if name)


@pytest.mark.parametrize("cause", [c for c in Cause if not TABLE[c][COLUMN[GroupState.EMPTY]]])
def test_impossible_cause_in_empty_group_raises_invalid_transition(
    desk: Desk, cause: Cause
) -> None:
    joined(desk, 1)
    group = desk.round()
    group.state = GroupState.EMPTY
    with pytest.raises(InvalidTransition, match="somebody joins"):
        group.fire(cause)


@pytest.mark.parametrize("kind", ["consumer", "connect"])
def test_member_id_length_is_bounded(desk: Desk, kind: str) -> None:
    """Else a member whose name is as long as can be leaves its leader without an answer."""
    waiter = desk.join(instance="\u00e9" * 16_000, kind=kind)
    assert len(desk.replies[waiter]["member_id"].encode()) < 1000


def test_member_receives_id_before_joining(desk: Desk) -> None:
    member_id = new_id(desk)
    assert state(desk) is GroupState.EMPTY
    waiter = desk.join(member_id)
    reply = desk.replies[waiter]
    assert (reply["member_id"], reply["leader"], reply["generation_id"]) == (
        member_id,
        member_id,
        1,
    )
    assert reply["members"] == [
        {"member_id": member_id, "group_instance_id": None, "metadata": b"topics"}
    ]


def test_join_before_version_4_needs_no_member_id(desk: Desk) -> None:
    waiter = desk.join(version=3)
    assert desk.replies[waiter]["generation_id"] == 1


def test_joins_within_initial_delay_share_first_generation() -> None:
    desk = Desk(GroupConfig(initial_delay_ms=3000))
    first, second = new_id(desk), new_id(desk)
    waiters = [desk.join(first), desk.join(second)]
    assert not set(waiters) & desk.replies.keys()
    desk.sleep(3)
    assert [desk.replies[w]["generation_id"] for w in waiters] == [1, 1]
    assert [len(desk.replies[w]["members"]) for w in waiters] == [2, 0]


def test_join_waits_for_all_members_and_promised_ids(desk: Desk) -> None:
    (leader,) = stable(desk, 1)
    late = new_id(desk)
    waiter = desk.join(leader)
    assert (state(desk), waiter in desk.replies) == (GroupState.PREPARING, False)
    desk.join(late)
    assert (state(desk), desk.replies[waiter]["generation_id"]) == (GroupState.COMPLETING, 2)


def test_unused_promised_id_holds_up_round_for_one_session_only(desk: Desk) -> None:
    (leader,) = stable(desk, 1)
    new_id(desk, session_ms=2000)
    waiter = desk.join(leader)
    desk.sleep(2)
    assert desk.replies[waiter]["generation_id"] == 2
    assert not desk.round().pending


def test_member_not_rejoining_removed_at_rebalance_timeout(desk: Desk) -> None:
    leader, follower = stable(desk, session_ms=600_000, rebalance_ms=5000)
    waiter = desk.join(leader, session_ms=600_000, rebalance_ms=5000)
    desk.sleep(4.9)
    assert waiter not in desk.replies
    desk.sleep(0.1)
    assert [m["member_id"] for m in desk.replies[waiter]["members"]] == [leader]
    assert desk.heartbeat(follower, 2)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


def test_member_not_syncing_removed_at_rebalance_timeout(desk: Desk) -> None:
    leader, follower = joined(desk, session_ms=600_000, rebalance_ms=5000)
    desk.sync(leader, generation(desk))
    desk.sleep(5)
    assert state(desk) is GroupState.PREPARING
    assert desk.heartbeat(follower, generation(desk))["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.heartbeat(leader, generation(desk))["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS


def test_dead_leader_replaced_when_session_expires(desk: Desk) -> None:
    leader, follower = stable(desk)
    codes = []
    for _ in range(4):
        desk.sleep(3)
        codes.append(desk.heartbeat(follower, generation(desk))["error_code"])
    assert codes == [NONE, NONE, NONE, ErrorCode.REBALANCE_IN_PROGRESS]
    waiter = desk.join(follower)
    assert desk.replies[waiter]["leader"] == follower
    assert leader not in desk.round().members


def test_session_renewed_by_heartbeat_commit_and_join_but_not_sync(desk: Desk) -> None:
    (member,) = stable(desk, 1)
    desk.sleep(9)
    assert desk.heartbeat(member, 1)["error_code"] == NONE
    desk.sleep(9)
    assert desk.commit(member, 1, {("t", 0): 5}) == {("t", 0): NONE}
    desk.sleep(9)
    desk.join(member)
    desk.sync(member, 2)
    desk.sleep(9)
    assert error(desk, desk.sync(member, 2)) == NONE
    desk.sleep(1)
    assert state(desk) is GroupState.EMPTY


def test_parked_member_outlives_session_timeout(desk: Desk) -> None:
    leader, follower = stable(desk, session_ms=2000)
    waiter = desk.join(leader, session_ms=2000)
    for _ in range(5):
        desk.sleep(1)
        desk.heartbeat(follower, 2)
    assert waiter not in desk.replies
    desk.join(follower, session_ms=2000)
    assert desk.replies[waiter]["generation_id"] == 3


def test_sync_parked_beyond_session_answered_rebalance_keeps_member(
    desk: Desk,
) -> None:
    leader, follower = joined(desk, session_ms=4000)
    parked = desk.sync(follower, 2)
    for _ in range(2):
        desk.sleep(3)
        desk.heartbeat(leader, 2)
    desk.join(new_id(desk))
    assert error(desk, parked) == ErrorCode.REBALANCE_IN_PROGRESS
    desk.sleep(3)
    assert desk.heartbeat(follower, 2)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS


def test_member_disconnected_while_parked_counts_as_joined(desk: Desk) -> None:
    leader, follower = stable(desk)
    waiter = desk.join(leader)
    desk.step(ClientGone("g", waiter))
    desk.join(follower)
    assert (state(desk), generation(desk)) == (GroupState.COMPLETING, 3)
    assert waiter not in desk.replies


def test_synced_member_stays_after_sync_deadline(desk: Desk) -> None:
    leader, follower = joined(desk, session_ms=600_000, rebalance_ms=5000)
    desk.sync(leader, 2)
    desk.sleep(4)
    assert error(desk, desk.sync(follower, 2)) == NONE
    desk.sleep(1)
    assert (state(desk), generation(desk)) == (GroupState.STABLE, 2)
    assert desk.wakes["g"] > desk.now


def test_session_restarts_when_long_parked_sync_is_answered(
    desk: Desk,
) -> None:
    leader, follower = joined(desk, session_ms=4000)
    parked = desk.sync(follower, 2)
    for _ in range(2):
        desk.sleep(3)
        desk.heartbeat(leader, 2)
    desk.sync(leader, 2, assignments={follower: b"yours"})
    assert desk.replies[parked]["assignment"] == b"yours"
    desk.sleep(3.9)
    assert desk.heartbeat(leader, 2)["error_code"] == NONE
    desk.sleep(0.1)
    assert desk.heartbeat(leader, 2)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS


def test_session_restarts_when_connection_of_parked_member_closes(
    desk: Desk,
) -> None:
    leader, follower = stable(desk, session_ms=4000)
    waiter = desk.join(leader, session_ms=4000)
    for _ in range(2):
        desk.sleep(3)
        desk.heartbeat(follower, 2)
    desk.step(ClientGone("g", waiter))
    desk.sleep(3.9)
    assert leader in desk.round().members
    desk.heartbeat(follower, 2)
    desk.sleep(0.1)
    assert leader not in desk.round().members


def test_heartbeating_member_keeps_place_while_others_rejoin(desk: Desk) -> None:
    leader, follower = stable(desk, session_ms=4000)
    desk.join(leader, session_ms=4000)
    for _ in range(4):
        desk.sleep(3)
        code = desk.heartbeat(follower, 2)["error_code"]
        assert code == ErrorCode.REBALANCE_IN_PROGRESS


def test_full_group_counts_promised_ids() -> None:
    desk = Desk(GroupConfig(members_max=2))
    first, second = new_id(desk), new_id(desk)
    assert error(desk, desk.join()) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert error(desk, desk.join(first)) == NONE
    assert desk.join(second) not in desk.replies


def test_join_accepts_largest_metadata(desk: Desk) -> None:
    (leader,) = stable(desk, 1)
    most = {"range": bytes(65535), "sticky": b"s"}
    assert error(desk, desk.join(leader, protocols=most)) == NONE


def test_zero_rebalance_timeout_raised_to_minimum(desk: Desk) -> None:
    """In milliseconds; a client may say 0."""
    leader, follower = stable(desk, rebalance_ms=0)
    waiter = desk.join(leader, rebalance_ms=0)
    desk.sleep(0.009)
    assert waiter not in desk.replies
    desk.sleep(0.001)
    assert [m["member_id"] for m in desk.replies[waiter]["members"]] == [leader]
    assert follower not in desk.round().members


def test_join_version_0_uses_session_timeout_as_rebalance_timeout(desk: Desk) -> None:
    """JoinGroup had no time for the round before version 1."""
    leader = str(desk.replies[desk.join(version=0, session_ms=5000)]["member_id"])
    desk.sync(leader, 1)
    desk.join(version=0, session_ms=5000)
    (about,) = [m.about for m in desk.round().members.values() if m.id == leader]
    assert about.rebalance_timeout == 5000


def test_empty_group_accepts_another_protocol_type(desk: Desk) -> None:
    (leader,) = stable(desk, 1)
    desk.leave((leader, None))
    waiter = desk.join(version=3, kind="connect")
    assert desk.replies[waiter]["protocol_type"] == "connect"


def test_member_rejoining_without_sync_removed_at_deadline(desk: Desk) -> None:
    leader, follower = joined(desk, session_ms=600_000, rebalance_ms=5000)
    desk.sync(leader, 2)
    assert desk.replies[desk.join(follower)]["generation_id"] == 2
    desk.sleep(5)
    assert follower not in desk.round().members


def test_group_row_records_time_of_state_change(desk: Desk) -> None:
    desk.sleep(5)
    stable(desk, 1)
    told: list[tuple[int, int]] = []
    for _ in range(2):
        (row,) = desk.disk.values()
        assert isinstance(row, GroupValue)
        told.append((row.state_timestamp, len(row.members)))
        desk.sleep(10)
    assert told == [(1_005_000, 1), (1_015_000, 0)]  # it was assigned; its session ended


def test_repeated_join_replaces_parked_join(desk: Desk) -> None:
    leader, follower = stable(desk)
    lost, waiter = desk.join(leader), desk.join(leader)
    assert error(desk, lost) == ErrorCode.REBALANCE_IN_PROGRESS
    desk.join(follower)
    assert desk.replies[waiter]["generation_id"] == 3


def test_new_member_aborts_sync_phase(desk: Desk) -> None:
    leader, follower = joined(desk)
    parked = desk.sync(follower, generation(desk))
    desk.join(new_id(desk))
    assert error(desk, parked) == ErrorCode.REBALANCE_IN_PROGRESS
    assert error(desk, desk.sync(leader, generation(desk))) == ErrorCode.REBALANCE_IN_PROGRESS


@pytest.mark.parametrize("half", [joined, stable], ids=["completing", "stable"])
def test_follower_rejoining_unchanged_answered_with_same_generation(
    desk: Desk, half: object
) -> None:
    _, follower = half(desk)  # type: ignore[operator]  # joined or stable
    before = state(desk)
    waiter = desk.join(follower)
    assert (desk.replies[waiter]["generation_id"], state(desk)) == (2, before)


def test_leader_rejoin_starts_round_without_changes(desk: Desk) -> None:
    leader, follower = stable(desk)
    desk.join(leader)
    assert state(desk) is GroupState.PREPARING
    assert desk.heartbeat(follower, 2)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS


def test_follower_rejoin_with_changed_metadata_starts_round(desk: Desk) -> None:
    leader, follower = stable(desk)
    desk.join(follower, protocols={"range": b"other topics"})
    assert desk.heartbeat(leader, 2)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS
    told = desk.replies[desk.join(leader)]
    assert told["generation_id"] == 3
    metadata = {m["member_id"]: m["metadata"] for m in told["members"]}
    assert metadata == {leader: b"topics", follower: b"other topics"}


def test_last_member_leaving_empties_group(desk: Desk) -> None:
    leader, follower = stable(desk)
    assert desk.leave((leader, None), (follower, None), ("nobody", None)) == [
        NONE, NONE, ErrorCode.UNKNOWN_MEMBER_ID,
    ]  # fmt: skip
    assert (state(desk), generation(desk)) == (GroupState.EMPTY, 3)


def test_leave_before_version_3_answers_with_top_level_code(desk: Desk) -> None:
    (leader,) = stable(desk, 1)
    first = desk.ask(13, 1, group_id="g", member_id=leader)
    second = desk.ask(13, 1, group_id="g", member_id=leader)
    assert (error(desk, first), error(desk, second)) == (NONE, ErrorCode.UNKNOWN_MEMBER_ID)


def test_parked_sync_answered_when_member_is_removed(desk: Desk) -> None:
    _, follower = joined(desk)
    parked = desk.sync(follower, 2)
    desk.leave((follower, None))
    assert error(desk, parked) == ErrorCode.UNKNOWN_MEMBER_ID


def test_promised_id_released_by_leave(desk: Desk) -> None:
    (leader,) = stable(desk, 1)
    late = new_id(desk)
    waiter = desk.join(leader)
    assert desk.leave((late, None)) == [NONE]
    assert desk.replies[waiter]["generation_id"] == 2


def test_protocol_is_favourite_among_commonly_supported(desk: Desk) -> None:
    (old,) = stable(desk, 1, protocols={"range": b"r"})
    desk.join(
        new_id(desk, protocols={"sticky": b"s", "range": b"r"}),
        protocols={"sticky": b"s", "range": b"r"},
    )
    assert desk.replies[desk.join(old, protocols={"range": b"r"})]["protocol_name"] == "range"
    upgraded = desk.join(old, protocols={"sticky": b"s", "range": b"r"})
    follower = next(m for m in desk.round().members if m != old)
    desk.join(follower, protocols={"sticky": b"s", "range": b"r"})
    assert desk.replies[upgraded]["protocol_name"] == "sticky"


def test_protocol_chosen_by_majority_vote(desk: Desk) -> None:
    likes = [("range", "sticky"), ("sticky", "range"), ("sticky", "range")]
    offers = [dict.fromkeys(names, b"") for names in likes]
    ids = [new_id(desk, protocols=offer) for offer in offers]
    waiters = [desk.join(m, protocols=o) for m, o in zip(ids, offers, strict=True)]
    waiters.append(desk.join(ids[0], protocols=offers[0]))
    assert desk.replies[waiters[-1]]["protocol_name"] == "sticky"


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
def test_join_refused_for(desk: Desk, why: str) -> None:
    about, code = REFUSED[why]
    stable(desk, 1)
    assert error(desk, desk.join(**about)) == code  # type: ignore[arg-type]  # of several types
    assert set(desk.machine.groups) == {"g"}


@pytest.mark.parametrize("session_ms", [1, 1_800_000])
def test_join_accepts_shortest_and_longest_session(desk: Desk, session_ms: int) -> None:
    assert error(desk, desk.join(version=3, session_ms=session_ms)) == NONE


def test_full_group_accepts_only_returning_static_members() -> None:
    desk = Desk(GroupConfig(members_max=1))
    stable_static(desk, "one")
    assert error(desk, desk.join()) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert error(desk, desk.join(instance="two")) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert error(desk, desk.join(instance="one")) == NONE


def test_older_and_newer_generations_answered_illegal(desk: Desk) -> None:
    (leader,) = stable(desk, 1)
    assert generation(desk) == 1
    for wrong in (0, 2):
        code = ErrorCode.ILLEGAL_GENERATION
        assert desk.heartbeat(leader, wrong)["error_code"] == code
        assert error(desk, desk.sync(leader, wrong)) == code
        assert desk.commit(leader, wrong, {("t", 0): 1}) == {("t", 0): code}


def test_sync_for_another_protocol_answered_inconsistent(desk: Desk) -> None:
    (leader,) = joined(desk, 1)
    wrong = desk.sync(leader, 1, protocol="sticky")
    assert error(desk, wrong) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert error(desk, desk.sync(leader, 1, protocol="range")) == NONE


# Static members, KIP-345.


def stable_static(desk: Desk, *instances: str) -> list[str]:
    """A group of static members in STABLE, its leader first."""
    ids: list[str] = []
    for instance in instances:
        waiter = desk.join(instance=instance, protocols=BOTH)
        for member_id, name in zip(ids, instances, strict=False):
            desk.join(member_id, instance=name, protocols=BOTH)
        ids.append(str(desk.replies[waiter]["member_id"]))
    for m in ids[1:]:
        desk.sync(m, generation(desk))
    desk.sync(ids[0], generation(desk), assignments={m: m.encode() for m in ids})
    assert state(desk) is GroupState.STABLE
    return ids


def test_returning_static_member_keeps_assignment_without_round(desk: Desk) -> None:
    _, old = stable_static(desk, "one", "two")
    waiter = desk.join(instance="two", protocols={"range": b"changed"})
    new = desk.replies[waiter]["member_id"]
    assert (desk.replies[waiter]["generation_id"], state(desk)) == (2, GroupState.STABLE)
    assert desk.replies[desk.sync(new, 2, instance="two")]["assignment"] == old.encode()


def test_replaced_static_member_is_fenced_if_instance_id_sent(desk: Desk) -> None:
    _, old = stable_static(desk, "one", "two")
    desk.join(instance="two", protocols=BOTH)
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert desk.heartbeat(old, 2, instance="two")["error_code"] == fenced
    assert error(desk, desk.sync(old, 2, instance="two")) == fenced
    assert error(desk, desk.join(old, instance="two", protocols=BOTH)) == fenced
    assert desk.commit(old, 2, {("t", 0): 1}, instance="two") == {("t", 0): fenced}
    assert desk.leave((old, "two")) == [fenced]
    assert desk.heartbeat(old, 2)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


def test_returning_static_leader_skips_assignment(desk: Desk) -> None:
    stable_static(desk, "one", "two")
    reply = desk.replies[desk.join(instance="one", version=9, protocols=BOTH)]
    assert (reply["leader"], reply["skip_assignment"]) == (reply["member_id"], True)
    assert len(reply["members"]) == 2


def test_returning_static_leader_before_version_9_answered_as_follower(
    desk: Desk,
) -> None:
    old, _ = stable_static(desk, "one", "two")
    reply = desk.replies[desk.join(instance="one", version=5, protocols=BOTH)]
    assert (reply["leader"], reply["members"]) == (old, [])
    assert desk.round().leader == reply["member_id"]


def test_static_member_returning_with_other_protocol_starts_round(desk: Desk) -> None:
    stable_static(desk, "one", "two")
    desk.join(instance="two", protocols={"sticky": b"s"})
    assert state(desk) is GroupState.PREPARING


def test_parked_static_member_fenced_when_instance_joins_again(desk: Desk) -> None:
    one, _ = stable_static(desk, "one", "two")
    here = desk.join(one, instance="one", protocols=BOTH)
    there = desk.join(instance="one", protocols=BOTH)
    assert error(desk, here) == ErrorCode.FENCED_INSTANCE_ID
    assert there not in desk.replies


def test_live_static_member_not_rejoining_keeps_place(desk: Desk) -> None:
    one, two = stable_static(desk, "one", "two")
    waiter = desk.join(one, instance="one", protocols=BOTH)
    for _ in range(20):
        desk.sleep(3)
        desk.heartbeat(two, 2, instance="two")
    assert [m["member_id"] for m in desk.replies[waiter]["members"]] == sorted([one, two])


def test_round_without_joins_waits_while_static_members_live(desk: Desk) -> None:
    one, two = stable_static(desk, "one", "two")
    desk.leave((one, "one"))
    for _ in range(30):
        desk.sleep(3)
        desk.heartbeat(two, 2, instance="two")
    assert (state(desk), generation(desk)) == (GroupState.PREPARING, 2)
    assert desk.replies[desk.join(two, instance="two", protocols=BOTH)]["leader"] == two


def test_static_member_leaves_by_instance_id(desk: Desk) -> None:
    stable_static(desk, "one", "two")
    assert desk.leave(("", "two"), ("", "three")) == [NONE, ErrorCode.UNKNOWN_MEMBER_ID]
    assert [m.about.group_instance_id for m in desk.round().members.values()] == ["one"]
