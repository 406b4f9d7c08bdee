"""Groups that change to the consumer protocol and back, member by member (KIP-848)."""

from typing import Any

import pytest

from streamsx.broker.groups.assignments import Reconciliation
from streamsx.broker.groups.classic import GroupState
from streamsx.broker.groups.group import GroupConfig
from streamsx.broker.metadata_rows import ConsumerGroupKey, GroupKey
from streamsx.model import TopicPartition
from streamsx.protocol.consumer_protocol import Assignment, Subscription
from streamsx.protocol.error_codes import ErrorCode as E
from tests.support.coordinator_harness import CoordinatorHarness, topic_id
from tests.unit.broker.groups.test_consumer_group import code, commits, given


class Shaky(CoordinatorHarness):
    """Harness whose coordinator crashes after each request that is answered at once."""

    def ask(self, api: int, *args: Any, **about: Any) -> int:
        waiter = super().ask(api, *args, **about)
        if waiter in self.replies:
            self.crash()
        return waiter


@pytest.fixture(params=[CoordinatorHarness, Shaky])
def harness(request: pytest.FixtureRequest) -> CoordinatorHarness:
    harness: CoordinatorHarness = request.param()
    harness.set_topics(t=4)
    return harness


@pytest.fixture
def calm() -> CoordinatorHarness:
    harness = CoordinatorHarness()
    harness.set_topics(t=4)
    return harness


def says(generation: int, *owned: int) -> dict[str, bytes]:
    held = tuple(TopicPartition("t", p) for p in owned)
    return {"range": Subscription(("t",), owned=held, generation=generation).write()}


def join(
    harness: CoordinatorHarness, member: str, generation: int, *owned: int, **about: Any
) -> dict[str, Any]:
    asked: dict[str, Any] = {"version": 3, "protocols": says(generation, *owned)}
    return harness.replies[harness.join(member, **asked | about)]


def sync(harness: CoordinatorHarness, member: str, generation: int) -> int | list[int]:
    told = harness.replies[harness.sync(member, generation)]
    has = Assignment.read(told.get("assignment", b"")).partitions
    return int(told.get("error_code", 0)) or [tp.partition for tp in has]


def alone(harness: CoordinatorHarness, **about: Any) -> str:
    """Return a group of one classic member that has all of t at generation 1."""
    member = str(join(harness, "", -1, **about)["member_id"])
    everything = Assignment(tuple(TopicPartition("t", p) for p in range(4))).write()
    harness.sync(member, 1, assignments={member: everything})
    return member


def mixed(harness: CoordinatorHarness, **about: Any) -> str:
    """Return a group with a classic member on 0 and 1 at epoch 2, and n of the consumer protocol on
    the others.
    """
    member = alone(harness, **about)
    assert given(harness.beat("n", 0)) == (2, [])
    assert harness.heartbeat(member, 1)["error_code"] == E.REBALANCE_IN_PROGRESS
    assert join(harness, member, 1, 0, 1, 2, 3, **about)["generation_id"] == 1
    assert sync(harness, member, 1) == [0, 1]
    assert harness.heartbeat(member, 1)["error_code"] == E.REBALANCE_IN_PROGRESS
    assert join(harness, member, 1, 0, 1, **about)["generation_id"] == 2
    assert sync(harness, member, 2) == [0, 1]
    assert given(harness.beat("n", 2)) == (2, [2, 3])
    return member


def test_upgraded_group_keeps_assignments_of_classic_members(harness: CoordinatorHarness) -> None:
    member = alone(harness)
    harness.beat("n", 0)
    assert GroupKey("g") not in harness.disk
    held = harness.consumers().held
    assert set(held.members[member].assigned.values()) == {1}  # the generation (KIP-1251)
    assert harness.consumers().listed()["group_state"] == "Reconciling"
    assert commits(harness, member, 1, 3, version=8) == {E.NONE}


def test_classic_member_reconciles_to_target_generation(harness: CoordinatorHarness) -> None:
    member = mixed(harness)
    assert harness.heartbeat(member, 2)["error_code"] == E.NONE
    assert commits(harness, member, 1, 0, version=8) == {E.NONE}
    assert commits(harness, member, 1, 2, version=8) == {E.ILLEGAL_GENERATION}
    assert commits(harness, member, 3, 0, version=8) == {E.ILLEGAL_GENERATION}


def test_parked_join_answered_rebalance_on_upgrade(calm: CoordinatorHarness) -> None:
    member = alone(calm)
    parked = calm.join(version=3, protocols=says(-1))
    calm.beat("n", 0)
    assert calm.replies[parked]["error_code"] == E.REBALANCE_IN_PROGRESS
    assert len(calm.consumers().members()) == 3
    assert calm.heartbeat(member, 1)["error_code"] == E.REBALANCE_IN_PROGRESS


def test_partitions_of_classic_members_not_free_until_rebalance_ends(
    calm: CoordinatorHarness,
) -> None:
    """Classic members keep reading until they notice the rebalance."""
    member = alone(calm)
    calm.join(version=3, protocols=says(-1))
    assert join(calm, member, 1, 0, 1, 2, 3)["generation_id"] == 2
    assert given(calm.beat("n", 0)) == (3, [])
    assert sync(calm, member, 2) == E.REBALANCE_IN_PROGRESS
    join(calm, member, 2, 0, 1, 2, 3)
    kept = sync(calm, member, 2)
    assert isinstance(kept, list)
    assert given(calm.beat("n", 3)) == (3, None)
    assert join(calm, member, 2, *kept)["generation_id"] == 3
    assert given(calm.beat("n", 3))[1] is not None


def test_group_with_unreadable_metadata_is_not_upgraded(calm: CoordinatorHarness) -> None:
    calm.join(version=3, protocols={"range": b"?"})
    assert code(calm.beat("n", 0)) == E.GROUP_ID_NOT_FOUND
    assert calm.round().state is GroupState.COMPLETING


def test_partition_assigned_twice_belongs_to_one_member_after_upgrade(
    calm: CoordinatorHarness,
) -> None:
    """A leader may send any assignment."""
    first = alone(calm)
    waiter = calm.join(version=3, protocols=says(-1))
    assert join(calm, first, 1)["generation_id"] == 2
    second = str(calm.replies[waiter]["member_id"])
    everything = Assignment((TopicPartition("t", 0), TopicPartition("gone", 0))).write()
    calm.sync(first, 2, assignments=dict.fromkeys((first, second), everything))
    calm.beat("n", 0)
    assert calm.consumers().held.holders[topic_id("t"), 0] == first


def test_classic_member_not_rejoining_removed_at_rebalance_timeout(
    calm: CoordinatorHarness,
) -> None:
    member = alone(calm, rebalance_ms=8000, session_ms=20_000)
    calm.beat("n", 0)
    calm.heartbeat(member, 1)
    calm.sleep(5)
    calm.heartbeat(member, 1)
    calm.sleep(5)
    assert calm.heartbeat(member, 1)["error_code"] == E.UNKNOWN_MEMBER_ID


def test_classic_member_not_syncing_removed_at_rebalance_timeout(calm: CoordinatorHarness) -> None:
    mixed(calm)
    late = str(join(calm, "", -1, rebalance_ms=8000, session_ms=20_000)["member_id"])
    calm.sleep(9)
    assert late not in calm.consumers().held.members


def test_classic_requests_refused_for_consumer_member_except_admin_leave(
    harness: CoordinatorHarness,
) -> None:
    """An admin may still remove the member."""
    member = mixed(harness)
    assert harness.heartbeat("n", 2)["error_code"] == E.UNKNOWN_MEMBER_ID
    assert harness.leave(("x", None)) == [E.UNKNOWN_MEMBER_ID]
    assert harness.leave((member, None)) == [E.NONE]
    assert given(harness.beat("n", 2)) == (3, [0, 1, 2, 3])
    assert harness.leave(("n", None)) == [E.NONE]
    assert harness.beat("n", 3)["error_code"] == E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"kind": "other"}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": {"sticky": b""}}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": {"range": b"?"}}, E.INCONSISTENT_GROUP_PROTOCOL),
        ({"session_ms": 0}, E.INVALID_SESSION_TIMEOUT),
        ({"version": 5}, E.MEMBER_ID_REQUIRED),
    ],
)
def test_invalid_classic_join_refused(
    harness: CoordinatorHarness, about: dict[str, Any], expected: E
) -> None:
    mixed(harness)
    assert join(harness, "", -1, **about)["error_code"] == expected
    assert len(harness.consumers().members()) == 2


def test_classic_member_changes_assignor_by_offering_both(harness: CoordinatorHarness) -> None:
    """As in a classic group, and in Kafka."""
    member = mixed(harness)
    other = {"sticky": says(2, 0, 1)["range"]}
    told = join(harness, member, 2, protocols=other)
    assert told["error_code"] == E.INCONSISTENT_GROUP_PROTOCOL
    assert join(harness, member, 2, protocols=says(2, 0, 1) | other)["generation_id"] == 2
    assert join(harness, member, 2, protocols=other)["generation_id"] == 2


@pytest.mark.parametrize(
    ("member", "about", "expected"),
    [("", {"session_ms": 0}, E.INVALID_SESSION_TIMEOUT), ("x", {}, E.UNKNOWN_MEMBER_ID)],
)
def test_refused_join_leaves_empty_consumer_group_unconverted(
    harness: CoordinatorHarness, member: str, about: dict[str, Any], expected: E
) -> None:
    harness.beat("n", 0)
    harness.beat("n", -1)
    assert join(harness, member, -1, **about)["error_code"] == expected
    assert harness.consumers().described()["group_epoch"] == 3
    assert ConsumerGroupKey("g") in harness.disk


def test_full_group_refuses_classic_member() -> None:
    harness = CoordinatorHarness(GroupConfig(members_max=2))
    harness.set_topics(t=4)
    mixed(harness)
    assert join(harness, "", -1)["error_code"] == E.GROUP_MAX_SIZE_REACHED


def test_partitions_not_free_when_join_answer_was_lost(harness: CoordinatorHarness) -> None:
    """The member knows generation 1 only, and reads both partitions."""
    member = mixed(harness)
    assert given(harness.beat("k", 0)) == (3, [])
    told = join(harness, member, 1, 0, 1)
    assert given(harness.beat("k", 3)) == (3, None)
    assert sync(harness, member, told["generation_id"]) == [0]
    join(harness, member, told["generation_id"], 0)
    assert given(harness.beat("k", 3)) == (3, [1])


def test_static_member_returns_as_classic_member(harness: CoordinatorHarness) -> None:
    mixed(harness)
    first = join(harness, "", -1, instance="i")
    assert first["generation_id"] == 3
    again = join(harness, "", -1, instance="i")
    assert (again["generation_id"], len(harness.consumers().members())) == (3, 3)
    told = join(harness, first["member_id"], 3, instance="i")
    assert told["error_code"] == E.FENCED_INSTANCE_ID


def test_removed_static_member_cannot_rejoin_under_old_member_id(
    harness: CoordinatorHarness,
) -> None:
    """As in a classic group: the member gets UNKNOWN_MEMBER_ID, and releases its partitions."""
    mixed(harness)
    member = str(join(harness, "", -1, instance="i")["member_id"])
    assert harness.leave(("", "i")) == [E.NONE]
    assert join(harness, member, 3, instance="i")["error_code"] == E.UNKNOWN_MEMBER_ID
    assert "error_code" not in join(harness, "", -1, instance="i")


def test_returning_static_member_gives_up_partitions_assigned_to_others(
    harness: CoordinatorHarness,
) -> None:
    alone(harness, instance="i")
    assert given(harness.beat("n", 0)) == (2, [])
    again = join(harness, "", -1, instance="i")
    assert again["generation_id"] == 2
    assert sync(harness, again["member_id"], 2) == [0, 1]
    assert given(harness.beat("n", 2)) == (2, [2, 3])


def test_returning_static_member_receives_partitions_awaited_before(
    harness: CoordinatorHarness,
) -> None:
    assert given(harness.beat("n", 0)) == (2, [0, 1, 2, 3])
    assert join(harness, "", -1, instance="i")["generation_id"] == 3
    member = str(join(harness, "", -1, instance="i")["member_id"])
    assert given(harness.beat("n", 2)) == (2, [0, 1])
    assert given(harness.beat("n", 2, owned=[("t", 0), ("t", 1)])) == (3, None)
    assert harness.heartbeat(member, 3, instance="i")["error_code"] == E.REBALANCE_IN_PROGRESS
    assert join(harness, member, 3, instance="i")["generation_id"] == 3
    assert sync(harness, member, 3) == [2, 3]


def test_group_downgrades_when_last_consumer_member_leaves(
    harness: CoordinatorHarness,
) -> None:
    member = mixed(harness)
    harness.beat("n", -1)
    assert ConsumerGroupKey("g") not in harness.disk
    assert [key for key in harness.disk if isinstance(key, GroupKey)] == [GroupKey("g")]
    told = join(harness, member, 2, 0, 1)
    assert (told["generation_id"], told["leader"]) == (4, member)


def test_epochs_stay_valid_until_members_rejoin_after_downgrade(calm: CoordinatorHarness) -> None:
    """Refused for an old generation, members would report their partitions as lost, and read them
    again.
    """
    member = mixed(calm)
    second = str(join(calm, "", -1)["member_id"])
    calm.beat("n", -1)
    assert calm.heartbeat(member, 2)["error_code"] == E.REBALANCE_IN_PROGRESS
    assert commits(calm, member, 2, 0, version=8) == {E.NONE}
    assert commits(calm, member, 1, 0, version=8) == {E.ILLEGAL_GENERATION}
    waiter = calm.join(member, version=3, protocols=says(2, 0, 1))
    assert join(calm, second, 3)["generation_id"] == 5
    assert calm.replies[waiter]["generation_id"] == 5
    assert calm.heartbeat(member, 2)["error_code"] == E.ILLEGAL_GENERATION


def test_group_downgrades_when_session_of_last_consumer_member_expires(
    calm: CoordinatorHarness,
) -> None:
    member = mixed(calm, session_ms=600_000, rebalance_ms=600_000)
    calm.sleep(50)
    assert calm.round().state is GroupState.PREPARING
    assert [m.id for m in calm.round().members.values()] == [member]


def test_zero_rebalance_timeout_member_awaited_after_downgrade(calm: CoordinatorHarness) -> None:
    """The timer of a static member fired again and again until its session ended."""
    calm.beat("n", 0)
    join(calm, "", -1, instance="i", rebalance_ms=0)
    calm.beat("n", -1)
    assert calm.round().state is GroupState.PREPARING
    assert calm.wakes["g"] > calm.now


def test_offsets_kept_when_zero_timeout_members_downgrade(calm: CoordinatorHarness) -> None:
    """The group counted as empty since 1970."""
    calm.commit("", -1, {("t", 0): 7})
    calm.beat("n", 0)
    join(calm, "", -1, rebalance_ms=0)
    calm.beat("n", -1)
    calm.sleep(20)
    assert calm.round().state is GroupState.EMPTY
    assert calm.round().saved_ms >= 1_000_000


def test_downgrade_completed_after_crash_between_writes(calm: CoordinatorHarness) -> None:
    member = mixed(calm)
    calm.consumers().held.remove(calm.consumers().held.members["n"], "left")
    for effect in calm.consumers().held.changes():
        calm.disk |= dict(effect.puts)  # type: ignore[union-attr]
        calm.disk = {k: v for k, v in calm.disk.items() if k not in effect.deletes}  # type: ignore[union-attr]
    calm.machine.forget("g")
    calm.crash()
    assert calm.heartbeat(member, 2)["error_code"] == E.REBALANCE_IN_PROGRESS
    assert calm.round().state is GroupState.PREPARING


def test_classic_member_switches_to_consumer_protocol_in_place(harness: CoordinatorHarness) -> None:
    member = mixed(harness)
    assert given(harness.beat(member, 0, owned=())) == (2, [0, 1])
    assert harness.consumers().held.members[member].state is Reconciliation.STABLE
    assert harness.heartbeat(member, 2)["error_code"] == E.UNKNOWN_MEMBER_ID


def test_refused_consumer_heartbeat_leaves_classic_group_unchanged(
    harness: CoordinatorHarness,
) -> None:
    """All members had to join again, at each retry of the client."""
    member = alone(harness, instance="i")
    assert code(harness.beat("n", 0, instance="i")) == E.UNRELEASED_INSTANCE_ID
    assert harness.heartbeat(member, 1, instance="i")["error_code"] == E.NONE
    assert GroupKey("g") in harness.disk


def test_leader_elected_after_crash_following_downgrade(calm: CoordinatorHarness) -> None:
    """Members that joined without a change got the old generation, and no leader."""
    member = mixed(calm)
    calm.beat("n", -1)
    calm.crash()
    joined = join(calm, member, 1, 0, 1)
    assert joined["generation_id"] > 2
    assert joined["leader"] == member


def test_members_asked_to_rejoin_after_crash_following_downgrade(calm: CoordinatorHarness) -> None:
    """Where no epoch was new, members got no request to rejoin for a whole rebalance timeout."""
    calm.beat("n", 0, instance="i")
    member = str(join(calm, "", -1)["member_id"])
    calm.beat("n", 2, instance="i", owned=[("t", 0), ("t", 1)])
    assert join(calm, member, 3)["generation_id"] == 3
    returned = join(calm, "", -1, instance="i")
    assert returned["generation_id"] == 3
    assert calm.round().state is GroupState.PREPARING
    calm.crash()
    assert calm.heartbeat(member, 3)["error_code"] == E.REBALANCE_IN_PROGRESS
    assert commits(calm, member, 3, 2, version=8) == {E.NONE}
    waiter = calm.join(member, version=3, protocols=says(3, 2, 3))
    assert join(calm, returned["member_id"], 3, instance="i")["generation_id"] == 4
    assert calm.replies[waiter]["generation_id"] == 4
