"""Many groups, and what is answered for several at once; the crashes of seed 001."""

from types import SimpleNamespace

import pytest

from streamsx.broker.groups.classic import GroupState
from streamsx.broker.groups.coordinator import refuse
from streamsx.broker.groups.coordinator_events import BrokerTick, TopicsChanged
from streamsx.protocol.error_codes import ErrorCode
from tests.support.desk import Desk

NONE = ErrorCode.NONE


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.set_topics(t=4, u=1)
    return desk


def pair(desk: Desk, group: str = "g") -> tuple[str, str]:
    """Leader and follower of a group in COMPLETING, at generation 2."""
    leader = str(desk.replies[desk.join(version=3, group=group)]["member_id"])
    desk.join(version=3, group=group)
    desk.join(leader, group=group)
    members = desk.round(group).members
    return leader, next(m for m in members if m != leader)


def stable(desk: Desk, group: str = "g") -> tuple[str, str]:
    """The same in STABLE; each was assigned its own id."""
    leader, follower = pair(desk, group)
    assignments = {m: m.encode() for m in (leader, follower)}
    desk.sync(leader, 2, group=group, assignments=assignments)
    desk.sync(follower, 2, group=group)
    return leader, follower


def round_of(desk: Desk, group: str = "g") -> tuple[GroupState, int]:
    state = desk.round(group)
    return state.state, state.generation


# Seed 001, "Handling Coordinator Failures": the coordinator dies ...


def test_crash_before_generation_is_persisted_makes_members_rejoin(desk: Desk) -> None:
    leader, follower = stable(desk)
    desk.join(leader)
    desk.crash()
    assert round_of(desk) == (GroupState.STABLE, 2)
    waiters = [desk.join(leader, protocols={"range": b"new"}), desk.join(follower)]
    assert [desk.replies[w]["generation_id"] for w in waiters] == [3, 3]


def test_crash_before_sync_keeps_generation_for_members(desk: Desk) -> None:
    leader, follower = pair(desk)
    desk.crash()
    assert round_of(desk) == (GroupState.COMPLETING, 2)
    parked = desk.sync(follower, 2)
    desk.sync(leader, 2, assignments={follower: b"yours"})
    assert desk.replies[parked]["assignment"] == b"yours"
    assert round_of(desk) == (GroupState.STABLE, 2)


def test_join_after_crash_before_sync_aborts_sync_phase(desk: Desk) -> None:
    leader, follower = pair(desk)
    desk.crash()
    parked = desk.sync(follower, 2)
    waiter = desk.join(leader)
    assert desk.replies[parked]["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS
    desk.join(follower)
    assert desk.replies[waiter]["generation_id"] == 3


def test_crash_before_assignment_is_persisted_makes_members_sync_again(desk: Desk) -> None:
    leader, follower = pair(desk)
    desk.sync(follower, 2)
    desk.crash()
    again = desk.sync(follower, 2)
    desk.sync(leader, 2, assignments={follower: b"yours"})
    assert desk.replies[again]["assignment"] == b"yours"


def test_stored_assignment_answered_at_once_after_crash(desk: Desk) -> None:
    leader, follower = pair(desk)
    desk.sync(leader, 2, assignments={follower: b"yours"})
    desk.crash()
    assert desk.replies[desk.sync(follower, 2)]["assignment"] == b"yours"
    assert desk.heartbeat(leader, 2)["error_code"] == NONE
    assert round_of(desk) == (GroupState.STABLE, 2)


def test_members_have_full_session_after_crash(desk: Desk) -> None:
    leader, _ = stable(desk)
    desk.sleep(9)
    desk.crash()
    desk.sleep(9)
    assert desk.heartbeat(leader, 2)["error_code"] == NONE
    desk.sleep(2)
    assert desk.heartbeat(leader, 2)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS


def test_member_not_syncing_after_crash_is_removed(desk: Desk) -> None:
    leader, follower = pair(desk)
    desk.crash()
    for _ in range(20):
        desk.heartbeat(leader, 2)
        desk.heartbeat(follower, 2)
        desk.sleep(3)
    assert round_of(desk) == (GroupState.EMPTY, 3)


def test_promised_ids_forgotten_after_crash(desk: Desk) -> None:
    promised = desk.replies[desk.join()]["member_id"]
    desk.crash()
    assert desk.replies[desk.join(promised)]["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("half", ["joined", "synced"])
def test_follower_rejoin_after_crash_and_completed_round_starts_no_round(
    desk: Desk, half: str
) -> None:
    """Who joins again as before is told of the round, and does not begin another one."""
    leader, follower = pair(desk)
    desk.crash()
    generation = 2
    if half == "joined":
        desk.join(leader)
        desk.join(follower)
        generation = 3
    else:
        desk.sync(leader, 2)
    before = round_of(desk)
    waiter = desk.join(follower)
    assert desk.replies[waiter]["generation_id"] == generation
    assert round_of(desk) == before


# Groups that are not there, or hold only offsets.


def test_absent_group_refuses_members_and_is_created_by_join_only(desk: Desk) -> None:
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert desk.heartbeat("m", 1, group="no")["error_code"] == unknown
    assert desk.replies[desk.sync("m", 1, group="no")]["error_code"] == unknown
    assert desk.leave(("m", None), group="no") == [unknown]
    assert desk.committed("no") == {}
    assert desk.machine.groups == {}


def test_group_with_only_offsets_keeps_offsets_after_unused_join(desk: Desk) -> None:
    desk.commit("", -1, {("t", 0): 7})
    assert desk.heartbeat("m", 1)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    desk.join(session_ms=1000)
    desk.sleep(1)
    assert desk.committed() == {("t", 0): 7}


def test_emptied_group_keeps_generation(desk: Desk) -> None:
    leader, follower = stable(desk)
    desk.leave((leader, None), (follower, None))
    desk.heartbeat("m", 1)
    assert round_of(desk) == (GroupState.EMPTY, 3)


def test_group_with_unused_promised_id_is_dropped(desk: Desk) -> None:
    desk.join(session_ms=1000)
    assert "g" in desk.machine.groups
    desk.sleep(1)
    assert desk.machine.groups == {}


def test_tick_of_deleted_group_changes_nothing(desk: Desk) -> None:
    assert desk.step(BrokerTick("no", 0)) == []


def test_round_of_one_group_leaves_other_groups_stable(desk: Desk) -> None:
    leader, _ = stable(desk, "g")
    stable(desk, "h")
    desk.leave((leader, None))
    assert (round_of(desk, "g")[0], round_of(desk, "h")[0]) == (
        GroupState.PREPARING,
        GroupState.STABLE,
    )


def test_commit_without_member_accepted_by_empty_group_only(desk: Desk) -> None:
    assert desk.commit("", -1, {("t", 0): 7, ("u", 0): 8}) == {("t", 0): NONE, ("u", 0): NONE}
    desk.crash()
    assert desk.committed() == {("t", 0): 7, ("u", 0): 8}
    pair(desk)
    assert desk.commit("", -1, {("t", 0): 9}) == {("t", 0): ErrorCode.UNKNOWN_MEMBER_ID}
    assert desk.committed() == {("t", 0): 7, ("u", 0): 8}


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_commit_by_member_of_absent_group_refused(desk: Desk, version: int, code: int) -> None:
    assert desk.commit("m", 1, {("t", 0): 1}, version=version) == {("t", 0): code}
    assert desk.machine.groups == {}


def test_commit_with_generation_refused_by_empty_group(desk: Desk) -> None:
    desk.commit("", -1, {("t", 0): 7})
    assert desk.commit("m", 1, {("t", 0): 8}) == {("t", 0): ErrorCode.UNKNOWN_MEMBER_ID}


def test_member_commits_at_own_generation_except_between_join_and_sync(desk: Desk) -> None:
    leader, follower = pair(desk)
    assert desk.commit(leader, 2, {("t", 0): 1}) == {("t", 0): ErrorCode.REBALANCE_IN_PROGRESS}
    desk.sync(leader, 2)
    assert desk.commit(leader, 2, {("t", 0): 2}) == {("t", 0): NONE}
    desk.join(leader)
    assert desk.commit(follower, 2, {("t", 1): 3}) == {("t", 1): NONE}


def test_member_committing_while_parked_then_dead_removed_at_session_end(
    desk: Desk,
) -> None:
    """A worker commits on one connection while its JoinGroup waits on another."""
    first = str(desk.replies[desk.join(version=3)]["member_id"])
    desk.join(version=3, session_ms=60_000)
    desk.join(first)
    second = next(m for m in desk.round().members if m != first)
    desk.sync(first, 2)
    desk.sync(second, 2)
    desk.join(first)
    desk.sleep(20)
    assert desk.commit(first, 2, {("t", 0): 1}) == {("t", 0): NONE}
    desk.leave((second, None))
    assert round_of(desk) == (GroupState.COMPLETING, 3)
    desk.sleep(9.9)
    assert round_of(desk) == (GroupState.COMPLETING, 3)
    desk.sleep(0.2)
    assert round_of(desk) == (GroupState.EMPTY, 4)


def test_commit_refuses_unknown_partitions_and_stores_others(desk: Desk) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    asked = {("no", 0): 1, ("t", 3): 2, ("t", 4): 3, ("t", -1): 4}
    assert desk.commit("", -1, asked) == {
        ("no", 0): unknown, ("t", 3): NONE, ("t", 4): unknown, ("t", -1): unknown,
    }  # fmt: skip
    assert desk.committed() == {("t", 3): 2}


def test_commit_metadata_too_long_is_refused(desk: Desk) -> None:
    too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert desk.commit("", -1, {("t", 0): 1}, note="ü" * 2049) == {("t", 0): too_large}
    assert desk.commit("", -1, {("t", 0): 1}, note="ü" * 2048) == {("t", 0): NONE}


def test_uncommitted_offset_fetched_as_minus_one(desk: Desk) -> None:
    topics = [SimpleNamespace(name="t", topic_id=bytes(16), partition_indexes=[0])]
    waiter = desk.ask(9, 5, group_id="g", topics=topics, groups=(), require_stable=False)
    reply = desk.replies[waiter]
    partition = reply["topics"][0]["partitions"][0]
    assert (partition["committed_offset"], partition["error_code"]) == (-1, NONE)
    assert reply["groups"][0]["topics"] == reply["topics"]


def test_offset_fetch_without_groups_answered_empty(desk: Desk) -> None:
    waiter = desk.ask(9, 8, groups=(), require_stable=False)
    assert desk.replies[waiter] == {"groups": []}
    refused = refuse(desk.asked[waiter], ErrorCode.NOT_COORDINATOR)
    assert refused.body == {"error_code": ErrorCode.NOT_COORDINATOR, "groups": []}


def test_committed_offset_fetched_with_epoch_and_metadata(desk: Desk) -> None:
    at = SimpleNamespace(
        partition_index=0, committed_offset=5, committed_leader_epoch=3, committed_metadata="note"
    )
    desk.ask(
        8, 8, group_id="g", member_id="", group_instance_id=None, generation_id_or_member_epoch=-1,
        topics=[SimpleNamespace(name="t", topic_id=bytes(16), partitions=[at])],
    )  # fmt: skip
    desk.crash()
    waiter = desk.ask(
        9, 8, groups=[SimpleNamespace(group_id="g", topics=None)], require_stable=False
    )
    assert desk.replies[waiter]["groups"][0]["topics"][0]["partitions"] == [
        {
            "partition_index": 0, "committed_offset": 5, "committed_leader_epoch": 3,
            "metadata": "note", "error_code": NONE,
        }
    ]  # fmt: skip


def test_offsets_addressed_by_topic_id_since_version_10(desk: Desk) -> None:
    known, unknown = desk.topics["t"][0], b"?" * 16
    at = SimpleNamespace(
        partition_index=0, committed_offset=5, committed_leader_epoch=-1, committed_metadata=None
    )
    topics = [SimpleNamespace(topic_id=id_, partitions=[at]) for id_ in (known, unknown)]
    waiter = desk.ask(
        8, 10, group_id="g", member_id="", group_instance_id=None,
        generation_id_or_member_epoch=-1, topics=topics,
    )  # fmt: skip
    codes = [t["partitions"][0]["error_code"] for t in desk.replies[waiter]["topics"]]
    assert codes == [NONE, ErrorCode.UNKNOWN_TOPIC_ID]
    topics = [SimpleNamespace(topic_id=id_, partition_indexes=[0]) for id_ in (known, unknown)]
    waiter = desk.ask(
        9,
        10,
        groups=[SimpleNamespace(group_id="g", member_id=None, member_epoch=-1, topics=topics)],
        require_stable=False,
    )
    told = [t["partitions"][0] for t in desk.replies[waiter]["groups"][0]["topics"]]
    assert [(p["committed_offset"], p["error_code"]) for p in told] == [
        (5, NONE), (-1, ErrorCode.UNKNOWN_TOPIC_ID),
    ]  # fmt: skip


# What is answered for several groups.


def test_describe_group_shows_metadata_when_stable_and_last_assignments(
    desk: Desk,
) -> None:
    leader, follower = stable(desk)
    described = desk.replies[desk.ask(15, 5, groups=["g", "no"])]["groups"]
    assert described[0]["group_state"] == "Stable"
    assert described[0]["protocol_data"] == "range"
    assert {m["member_id"]: m["member_assignment"] for m in described[0]["members"]} == {
        leader: leader.encode(), follower: follower.encode(),
    }  # fmt: skip
    assert described[1] == {"group_id": "no", "group_state": "Dead", "error_code": NONE}
    desk.join(leader)
    (described,) = desk.replies[desk.ask(15, 5, groups=["g"])]["groups"]
    assert described["group_state"] == "PreparingRebalance"
    assert {m["member_metadata"] for m in described["members"]} == {b""}
    assert {m["member_assignment"] for m in described["members"]} == {
        leader.encode(), follower.encode(),
    }  # fmt: skip


def test_absent_group_described_as_not_found_since_version_6(desk: Desk) -> None:
    (described,) = desk.replies[desk.ask(15, 6, groups=["no"])]["groups"]
    assert described["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND


def test_groups_listed_by_state_and_type(desk: Desk) -> None:
    stable(desk, "b")
    desk.commit("", -1, {("t", 0): 1}, group="a")

    def listed(states: list[str], types: list[str]) -> list[str]:
        waiter = desk.ask(16, 5, states_filter=states, types_filter=types)
        return [g["group_id"] for g in desk.replies[waiter]["groups"]]

    assert listed([], []) == ["a", "b"]
    assert listed(["empty"], ["Classic"]) == ["a"]
    assert listed([], ["consumer"]) == []


def test_group_deleted_with_offsets_only_when_empty(desk: Desk) -> None:
    leader, follower = stable(desk)
    desk.commit(leader, 2, {("t", 0): 1})

    def delete() -> list[int]:
        waiter = desk.ask(42, 2, groups_names=["g", "no"])
        return [result["error_code"] for result in desk.replies[waiter]["results"]]

    assert delete() == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    desk.leave((leader, None), (follower, None))
    assert delete() == [NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert (desk.disk, desk.machine.groups) == ({}, {})


# Topics come and go.


def test_offsets_deleted_with_topic(desk: Desk) -> None:
    desk.commit("", -1, {("t", 0): 1, ("u", 0): 2})
    desk.set_topics(u=1)
    assert desk.committed() == {("u", 0): 2}
    desk.crash()
    assert desk.committed() == {("u", 0): 2}


def test_group_dropped_when_last_offsets_are_deleted_with_topic(desk: Desk) -> None:
    desk.commit("", -1, {("t", 0): 1}, group="g1")
    desk.commit("", -1, {("t", 0): 1, ("u", 0): 2}, group="g2")
    desk.set_topics(u=1)
    before = set(desk.machine.groups)
    desk.crash()
    assert before == set(desk.machine.groups) == {"g2"}


def test_offsets_not_inherited_by_recreated_topic(desk: Desk) -> None:
    desk.commit("", -1, {("t", 0): 1})
    desk.step(TopicsChanged({"t": (b"another id.....!", 4)}))
    assert desk.committed() == {}


def test_offsets_of_missing_topics_removed_at_start(desk: Desk) -> None:
    desk.commit("", -1, {("t", 0): 1, ("u", 0): 2})
    desk.topics = {"u": desk.topics["u"]}
    desk.crash()
    assert desk.committed() == {("u", 0): 2}


# Refusals as a whole: what is answered when nothing could be written.


@pytest.mark.parametrize("api", [8, 9, 11, 12, 15, 42])
def test_refused_request_carries_code_where_client_reads(desk: Desk, api: int) -> None:
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    desk.commit("", -1, {("t", 0): 1})
    desk.join()
    desk.heartbeat("m", 1)
    desk.committed()
    desk.ask(15, 5, groups=["g"])
    desk.ask(42, 2, groups_names=["g"])
    request = next(r for r in desk.asked.values() if r.api == api)
    body = refuse(request, code).body
    found = {
        8: lambda: body["topics"][0]["partitions"][0]["error_code"],
        9: lambda: body["groups"][0]["error_code"],
        11: lambda: body["error_code"],
        12: lambda: body["error_code"],
        15: lambda: body["groups"][0]["error_code"],
        42: lambda: body["results"][0]["error_code"],
    }[api]()
    assert found == code


def test_unloaded_coordinator_does_not_answer_unknown_topic(
    desk: Desk,
) -> None:
    """It knows of no topic, and a member would believe it."""
    desk.commit("", -1, {("t", 0): 1})
    (request,) = desk.asked.values()
    body = refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE).body
    (partition,) = body["topics"][0]["partitions"]
    assert partition["error_code"] == ErrorCode.COORDINATOR_NOT_AVAILABLE
