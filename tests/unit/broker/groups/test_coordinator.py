"""Many groups, requests about several at once, and the crashes of seed 001."""

from types import SimpleNamespace

import pytest

from streamsx.broker.groups.classic import GroupState
from streamsx.broker.groups.coordinator import refuse
from streamsx.broker.groups.coordinator_events import BrokerTick, TopicsChanged
from streamsx.protocol.error_codes import ErrorCode
from tests.support.coordinator_harness import CoordinatorHarness

NONE = ErrorCode.NONE


@pytest.fixture
def harness() -> CoordinatorHarness:
    harness = CoordinatorHarness()
    harness.set_topics(t=4, u=1)
    return harness


def pair(harness: CoordinatorHarness, group: str = "g") -> tuple[str, str]:
    """Return leader and follower of a group in COMPLETING, at generation 2."""
    leader = str(harness.replies[harness.join(version=3, group=group)]["member_id"])
    harness.join(version=3, group=group)
    harness.join(leader, group=group)
    members = harness.round(group).members
    return leader, next(m for m in members if m != leader)


def stable(harness: CoordinatorHarness, group: str = "g") -> tuple[str, str]:
    """Return them in STABLE; each was assigned its own id."""
    leader, follower = pair(harness, group)
    assignments = {m: m.encode() for m in (leader, follower)}
    harness.sync(leader, 2, group=group, assignments=assignments)
    harness.sync(follower, 2, group=group)
    return leader, follower


def round_of(harness: CoordinatorHarness, group: str = "g") -> tuple[GroupState, int]:
    state = harness.round(group)
    return state.state, state.generation


# Seed 001, "Handling Coordinator Failures": the coordinator dies ...


def test_crash_before_generation_is_persisted_makes_members_rejoin(
    harness: CoordinatorHarness,
) -> None:
    leader, follower = stable(harness)
    harness.join(leader)
    harness.crash()
    assert round_of(harness) == (GroupState.STABLE, 2)
    waiters = [harness.join(leader, protocols={"range": b"new"}), harness.join(follower)]
    assert [harness.replies[w]["generation_id"] for w in waiters] == [3, 3]


def test_crash_before_sync_keeps_generation_for_members(harness: CoordinatorHarness) -> None:
    leader, follower = pair(harness)
    harness.crash()
    assert round_of(harness) == (GroupState.COMPLETING, 2)
    parked = harness.sync(follower, 2)
    harness.sync(leader, 2, assignments={follower: b"yours"})
    assert harness.replies[parked]["assignment"] == b"yours"
    assert round_of(harness) == (GroupState.STABLE, 2)


def test_join_after_crash_before_sync_aborts_sync_phase(harness: CoordinatorHarness) -> None:
    leader, follower = pair(harness)
    harness.crash()
    parked = harness.sync(follower, 2)
    waiter = harness.join(leader)
    assert harness.replies[parked]["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS
    harness.join(follower)
    assert harness.replies[waiter]["generation_id"] == 3


def test_crash_before_assignment_is_persisted_makes_members_sync_again(
    harness: CoordinatorHarness,
) -> None:
    leader, follower = pair(harness)
    harness.sync(follower, 2)
    harness.crash()
    again = harness.sync(follower, 2)
    harness.sync(leader, 2, assignments={follower: b"yours"})
    assert harness.replies[again]["assignment"] == b"yours"


def test_stored_assignment_answered_at_once_after_crash(harness: CoordinatorHarness) -> None:
    leader, follower = pair(harness)
    harness.sync(leader, 2, assignments={follower: b"yours"})
    harness.crash()
    assert harness.replies[harness.sync(follower, 2)]["assignment"] == b"yours"
    assert harness.heartbeat(leader, 2)["error_code"] == NONE
    assert round_of(harness) == (GroupState.STABLE, 2)


def test_members_have_full_session_after_crash(harness: CoordinatorHarness) -> None:
    leader, _ = stable(harness)
    harness.sleep(9)
    harness.crash()
    harness.sleep(9)
    assert harness.heartbeat(leader, 2)["error_code"] == NONE
    harness.sleep(2)
    assert harness.heartbeat(leader, 2)["error_code"] == ErrorCode.REBALANCE_IN_PROGRESS


def test_member_not_syncing_after_crash_is_removed(harness: CoordinatorHarness) -> None:
    leader, follower = pair(harness)
    harness.crash()
    for _ in range(20):
        harness.heartbeat(leader, 2)
        harness.heartbeat(follower, 2)
        harness.sleep(3)
    assert round_of(harness) == (GroupState.EMPTY, 3)


def test_promised_ids_forgotten_after_crash(harness: CoordinatorHarness) -> None:
    promised = harness.replies[harness.join()]["member_id"]
    harness.crash()
    assert harness.replies[harness.join(promised)]["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("half", ["joined", "synced"])
def test_follower_rejoin_after_crash_and_completed_round_starts_no_round(
    harness: CoordinatorHarness, half: str
) -> None:
    """A member that joins again without a change gets the current round."""
    leader, follower = pair(harness)
    harness.crash()
    generation = 2
    if half == "joined":
        harness.join(leader)
        harness.join(follower)
        generation = 3
    else:
        harness.sync(leader, 2)
    before = round_of(harness)
    waiter = harness.join(follower)
    assert harness.replies[waiter]["generation_id"] == generation
    assert round_of(harness) == before


# Groups that are not there, or hold only offsets.


def test_absent_group_refuses_members_and_is_created_by_join_only(
    harness: CoordinatorHarness,
) -> None:
    unknown = ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.heartbeat("m", 1, group="no")["error_code"] == unknown
    assert harness.replies[harness.sync("m", 1, group="no")]["error_code"] == unknown
    assert harness.leave(("m", None), group="no") == [unknown]
    assert harness.committed("no") == {}
    assert harness.machine.groups == {}


def test_group_with_only_offsets_keeps_offsets_after_unused_join(
    harness: CoordinatorHarness,
) -> None:
    harness.commit("", -1, {("t", 0): 7})
    assert harness.heartbeat("m", 1)["error_code"] == ErrorCode.UNKNOWN_MEMBER_ID
    harness.join(session_ms=1000)
    harness.sleep(1)
    assert harness.committed() == {("t", 0): 7}


def test_emptied_group_keeps_generation(harness: CoordinatorHarness) -> None:
    leader, follower = stable(harness)
    harness.leave((leader, None), (follower, None))
    harness.heartbeat("m", 1)
    assert round_of(harness) == (GroupState.EMPTY, 3)


def test_group_with_unused_promised_id_is_dropped(harness: CoordinatorHarness) -> None:
    harness.join(session_ms=1000)
    assert "g" in harness.machine.groups
    harness.sleep(1)
    assert harness.machine.groups == {}


def test_tick_of_deleted_group_changes_nothing(harness: CoordinatorHarness) -> None:
    assert harness.step(BrokerTick("no", 0)) == []


def test_round_of_one_group_leaves_other_groups_stable(harness: CoordinatorHarness) -> None:
    leader, _ = stable(harness, "g")
    stable(harness, "h")
    harness.leave((leader, None))
    assert (round_of(harness, "g")[0], round_of(harness, "h")[0]) == (
        GroupState.PREPARING,
        GroupState.STABLE,
    )


def test_commit_without_member_accepted_by_empty_group_only(harness: CoordinatorHarness) -> None:
    assert harness.commit("", -1, {("t", 0): 7, ("u", 0): 8}) == {("t", 0): NONE, ("u", 0): NONE}
    harness.crash()
    assert harness.committed() == {("t", 0): 7, ("u", 0): 8}
    pair(harness)
    assert harness.commit("", -1, {("t", 0): 9}) == {("t", 0): ErrorCode.UNKNOWN_MEMBER_ID}
    assert harness.committed() == {("t", 0): 7, ("u", 0): 8}


@pytest.mark.parametrize(
    ("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_commit_by_member_of_absent_group_refused(
    harness: CoordinatorHarness, version: int, code: int
) -> None:
    assert harness.commit("m", 1, {("t", 0): 1}, version=version) == {("t", 0): code}
    assert harness.machine.groups == {}


def test_commit_with_generation_refused_by_empty_group(harness: CoordinatorHarness) -> None:
    harness.commit("", -1, {("t", 0): 7})
    assert harness.commit("m", 1, {("t", 0): 8}) == {("t", 0): ErrorCode.UNKNOWN_MEMBER_ID}


def test_member_commits_at_own_generation_except_between_join_and_sync(
    harness: CoordinatorHarness,
) -> None:
    leader, follower = pair(harness)
    assert harness.commit(leader, 2, {("t", 0): 1}) == {("t", 0): ErrorCode.REBALANCE_IN_PROGRESS}
    harness.sync(leader, 2)
    assert harness.commit(leader, 2, {("t", 0): 2}) == {("t", 0): NONE}
    harness.join(leader)
    assert harness.commit(follower, 2, {("t", 1): 3}) == {("t", 1): NONE}


def test_member_committing_while_parked_then_dead_removed_at_session_end(
    harness: CoordinatorHarness,
) -> None:
    """The worker commits on one connection while its JoinGroup waits on another."""
    first = str(harness.replies[harness.join(version=3)]["member_id"])
    harness.join(version=3, session_ms=60_000)
    harness.join(first)
    second = next(m for m in harness.round().members if m != first)
    harness.sync(first, 2)
    harness.sync(second, 2)
    harness.join(first)
    harness.sleep(20)
    assert harness.commit(first, 2, {("t", 0): 1}) == {("t", 0): NONE}
    harness.leave((second, None))
    assert round_of(harness) == (GroupState.COMPLETING, 3)
    harness.sleep(9.9)
    assert round_of(harness) == (GroupState.COMPLETING, 3)
    harness.sleep(0.2)
    assert round_of(harness) == (GroupState.EMPTY, 4)


def test_commit_refuses_unknown_partitions_and_stores_others(harness: CoordinatorHarness) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    asked = {("no", 0): 1, ("t", 3): 2, ("t", 4): 3, ("t", -1): 4}
    assert harness.commit("", -1, asked) == {
        ("no", 0): unknown, ("t", 3): NONE, ("t", 4): unknown, ("t", -1): unknown,
    }  # fmt: skip
    assert harness.committed() == {("t", 3): 2}


def test_commit_metadata_too_long_is_refused(harness: CoordinatorHarness) -> None:
    too_large = ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert harness.commit("", -1, {("t", 0): 1}, note="ü" * 2049) == {("t", 0): too_large}
    assert harness.commit("", -1, {("t", 0): 1}, note="ü" * 2048) == {("t", 0): NONE}


def test_uncommitted_offset_fetched_as_minus_one(harness: CoordinatorHarness) -> None:
    topics = [SimpleNamespace(name="t", topic_id=bytes(16), partition_indexes=[0])]
    waiter = harness.ask(9, 5, group_id="g", topics=topics, groups=(), require_stable=False)
    reply = harness.replies[waiter]
    partition = reply["topics"][0]["partitions"][0]
    assert (partition["committed_offset"], partition["error_code"]) == (-1, NONE)
    assert reply["groups"][0]["topics"] == reply["topics"]


def test_offset_fetch_without_groups_answered_empty(harness: CoordinatorHarness) -> None:
    waiter = harness.ask(9, 8, groups=(), require_stable=False)
    assert harness.replies[waiter] == {"groups": []}
    refused = refuse(harness.asked[waiter], ErrorCode.NOT_COORDINATOR)
    assert refused.body == {"error_code": ErrorCode.NOT_COORDINATOR, "groups": []}


def test_committed_offset_fetched_with_epoch_and_metadata(harness: CoordinatorHarness) -> None:
    at = SimpleNamespace(
        partition_index=0, committed_offset=5, committed_leader_epoch=3, committed_metadata="note"
    )
    harness.ask(
        8, 8, group_id="g", member_id="", group_instance_id=None, generation_id_or_member_epoch=-1,
        topics=[SimpleNamespace(name="t", topic_id=bytes(16), partitions=[at])],
    )  # fmt: skip
    harness.crash()
    waiter = harness.ask(
        9, 8, groups=[SimpleNamespace(group_id="g", topics=None)], require_stable=False
    )
    assert harness.replies[waiter]["groups"][0]["topics"][0]["partitions"] == [
        {
            "partition_index": 0, "committed_offset": 5, "committed_leader_epoch": 3,
            "metadata": "note", "error_code": NONE,
        }
    ]  # fmt: skip


def test_offsets_addressed_by_topic_id_since_version_10(harness: CoordinatorHarness) -> None:
    known, unknown = harness.topics["t"][0], b"?" * 16
    at = SimpleNamespace(
        partition_index=0, committed_offset=5, committed_leader_epoch=-1, committed_metadata=None
    )
    topics = [SimpleNamespace(topic_id=id_, partitions=[at]) for id_ in (known, unknown)]
    waiter = harness.ask(
        8, 10, group_id="g", member_id="", group_instance_id=None,
        generation_id_or_member_epoch=-1, topics=topics,
    )  # fmt: skip
    codes = [t["partitions"][0]["error_code"] for t in harness.replies[waiter]["topics"]]
    assert codes == [NONE, ErrorCode.UNKNOWN_TOPIC_ID]
    topics = [SimpleNamespace(topic_id=id_, partition_indexes=[0]) for id_ in (known, unknown)]
    waiter = harness.ask(
        9,
        10,
        groups=[SimpleNamespace(group_id="g", member_id=None, member_epoch=-1, topics=topics)],
        require_stable=False,
    )
    told = [t["partitions"][0] for t in harness.replies[waiter]["groups"][0]["topics"]]
    assert [(p["committed_offset"], p["error_code"]) for p in told] == [
        (5, NONE), (-1, ErrorCode.UNKNOWN_TOPIC_ID),
    ]  # fmt: skip


# What is answered for several groups.


def test_describe_group_shows_metadata_when_stable_and_last_assignments(
    harness: CoordinatorHarness,
) -> None:
    leader, follower = stable(harness)
    described = harness.replies[harness.ask(15, 5, groups=["g", "no"])]["groups"]
    assert described[0]["group_state"] == "Stable"
    assert described[0]["protocol_data"] == "range"
    assert {m["member_id"]: m["member_assignment"] for m in described[0]["members"]} == {
        leader: leader.encode(), follower: follower.encode(),
    }  # fmt: skip
    assert described[1] == {"group_id": "no", "group_state": "Dead", "error_code": NONE}
    harness.join(leader)
    (described,) = harness.replies[harness.ask(15, 5, groups=["g"])]["groups"]
    assert described["group_state"] == "PreparingRebalance"
    assert {m["member_metadata"] for m in described["members"]} == {b""}
    assert {m["member_assignment"] for m in described["members"]} == {
        leader.encode(), follower.encode(),
    }  # fmt: skip


def test_absent_group_described_as_not_found_since_version_6(harness: CoordinatorHarness) -> None:
    (described,) = harness.replies[harness.ask(15, 6, groups=["no"])]["groups"]
    assert described["error_code"] == ErrorCode.GROUP_ID_NOT_FOUND


def test_groups_listed_by_state_and_type(harness: CoordinatorHarness) -> None:
    stable(harness, "b")
    harness.commit("", -1, {("t", 0): 1}, group="a")

    def listed(states: list[str], types: list[str]) -> list[str]:
        waiter = harness.ask(16, 5, states_filter=states, types_filter=types)
        return [g["group_id"] for g in harness.replies[waiter]["groups"]]

    assert listed([], []) == ["a", "b"]
    assert listed(["empty"], ["Classic"]) == ["a"]
    assert listed([], ["consumer"]) == []


def test_group_deleted_with_offsets_only_when_empty(harness: CoordinatorHarness) -> None:
    leader, follower = stable(harness)
    harness.commit(leader, 2, {("t", 0): 1})

    def delete() -> list[int]:
        waiter = harness.ask(42, 2, groups_names=["g", "no"])
        return [result["error_code"] for result in harness.replies[waiter]["results"]]

    assert delete() == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    harness.leave((leader, None), (follower, None))
    assert delete() == [NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert (harness.disk, harness.machine.groups) == ({}, {})


# Topics come and go.


def test_offsets_deleted_with_topic(harness: CoordinatorHarness) -> None:
    harness.commit("", -1, {("t", 0): 1, ("u", 0): 2})
    harness.set_topics(u=1)
    assert harness.committed() == {("u", 0): 2}
    harness.crash()
    assert harness.committed() == {("u", 0): 2}


def test_group_dropped_when_last_offsets_are_deleted_with_topic(
    harness: CoordinatorHarness,
) -> None:
    harness.commit("", -1, {("t", 0): 1}, group="g1")
    harness.commit("", -1, {("t", 0): 1, ("u", 0): 2}, group="g2")
    harness.set_topics(u=1)
    before = set(harness.machine.groups)
    harness.crash()
    assert before == set(harness.machine.groups) == {"g2"}


def test_offsets_not_inherited_by_recreated_topic(harness: CoordinatorHarness) -> None:
    harness.commit("", -1, {("t", 0): 1})
    harness.step(TopicsChanged({"t": (b"another id.....!", 4)}))
    assert harness.committed() == {}


def test_offsets_of_missing_topics_removed_at_start(harness: CoordinatorHarness) -> None:
    harness.commit("", -1, {("t", 0): 1, ("u", 0): 2})
    harness.topics = {"u": harness.topics["u"]}
    harness.crash()
    assert harness.committed() == {("u", 0): 2}


# Refusals as a whole: what is answered when nothing could be written.


@pytest.mark.parametrize("api", [8, 9, 11, 12, 15, 42])
def test_refused_request_carries_code_where_client_reads(
    harness: CoordinatorHarness, api: int
) -> None:
    code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    harness.commit("", -1, {("t", 0): 1})
    harness.join()
    harness.heartbeat("m", 1)
    harness.committed()
    harness.ask(15, 5, groups=["g"])
    harness.ask(42, 2, groups_names=["g"])
    request = next(r for r in harness.asked.values() if r.api == api)
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
    harness: CoordinatorHarness,
) -> None:
    """The coordinator knows no topic yet, and a member would believe that there is none."""
    harness.commit("", -1, {("t", 0): 1})
    (request,) = harness.asked.values()
    body = refuse(request, ErrorCode.COORDINATOR_NOT_AVAILABLE).body
    (partition,) = body["topics"][0]["partitions"]
    assert partition["error_code"] == ErrorCode.COORDINATOR_NOT_AVAILABLE
