"""Deleted offsets: by a request (KIP-496), or unused for long (KIP-211)."""

import pytest

from streamsx.broker.groups.classic import GroupState
from streamsx.broker.groups.coordinator_events import ExpireOffsets
from streamsx.broker.groups.group import GroupConfig
from streamsx.protocol.consumer_protocol import Subscription
from streamsx.protocol.error_codes import ErrorCode
from tests.support.coordinator_harness import CoordinatorHarness

NONE = ErrorCode.NONE
WEEK_MS = GroupConfig().offsets_retention_ms
READS_T = Subscription(("t",)).write()


@pytest.fixture
def harness() -> CoordinatorHarness:
    harness = CoordinatorHarness()
    harness.set_topics(t=4, u=1)
    return harness


def alone(
    harness: CoordinatorHarness, subscription: bytes = READS_T, kind: str = "consumer"
) -> str:
    """Return the only member of a group in STABLE, at generation 1."""
    waiter = harness.join(version=3, protocols={"range": subscription}, kind=kind)
    member = str(harness.replies[waiter]["member_id"])
    harness.sync(member, 1, assignments={member: b"all"})
    assert harness.round().state is GroupState.STABLE
    return member


def expire(harness: CoordinatorHarness, later_ms: int) -> None:
    """Delete the offsets that have expired `later_ms` after the present."""
    harness.step(ExpireOffsets(int(harness.now * 1000) + later_ms))


def test_offsets_of_empty_group_are_deleted(harness: CoordinatorHarness) -> None:
    harness.commit("", -1, {("t", 0): 1, ("t", 1): 1, ("u", 0): 1})
    assert harness.delete_offsets(("t", 0), ("t", 2), ("t", 9), ("no", 0)) == {
        "t": [NONE, NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        "no": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    }
    assert harness.committed() == {("t", 1): 1, ("u", 0): 1}
    harness.crash()
    assert harness.committed() == {("t", 1): 1, ("u", 0): 1}
    harness.delete_offsets(("t", 1), ("u", 0))
    assert (harness.disk, harness.machine.groups) == ({}, {})


def test_offsets_of_subscribed_topic_are_not_deleted(harness: CoordinatorHarness) -> None:
    member = alone(harness)
    harness.commit(member, 1, {("t", 0): 1, ("u", 0): 1})
    assert harness.delete_offsets(("t", 0), ("u", 0)) == {
        "t": [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC],
        "u": [NONE],
    }
    assert harness.committed() == {("t", 0): 1}
    harness.leave((member, None))
    assert harness.delete_offsets(("t", 0)) == {"t": [NONE]}
    assert harness.committed() == {}


@pytest.mark.parametrize(
    ("kind", "subscription", "told"),
    [
        ("consumer", b"rubbish", {"t": [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]}),
        ("stream", READS_T, {"": [ErrorCode.NON_EMPTY_GROUP]}),
    ],
)
def test_unreadable_subscription_protects_all_offsets(
    harness: CoordinatorHarness, kind: str, subscription: bytes, told: dict[str, list[int]]
) -> None:
    member = alone(harness, subscription, kind)
    harness.commit(member, 1, {("t", 0): 1})
    assert harness.delete_offsets(("t", 0)) == told
    expire(harness, 2 * WEEK_MS)
    assert harness.committed() == {("t", 0): 1}


def test_delete_offsets_of_absent_group_answered_not_found(harness: CoordinatorHarness) -> None:
    assert harness.delete_offsets(("t", 0)) == {"": [ErrorCode.GROUP_ID_NOT_FOUND]}


def test_offsets_without_members_expire_by_commit_time(harness: CoordinatorHarness) -> None:
    harness.commit("", -1, {("t", 0): 1})
    harness.sleep(10)
    harness.commit("", -1, {("u", 0): 1})
    expire(harness, WEEK_MS - 10_001)
    assert harness.committed() == {("t", 0): 1, ("u", 0): 1}
    expire(harness, WEEK_MS - 10_000)
    assert harness.committed() == {("u", 0): 1}
    expire(harness, WEEK_MS)
    assert (harness.disk, harness.machine.groups) == ({}, {})


def test_offsets_of_emptied_group_expire_since_last_member_left(
    harness: CoordinatorHarness,
) -> None:
    member = alone(harness)
    harness.commit(member, 1, {("t", 0): 1})
    harness.sleep(8)
    harness.heartbeat(member, 1)
    harness.leave((member, None))
    harness.crash()  # since when it is empty is on the disk
    harness.sleep(5)
    expire(harness, WEEK_MS - 5001)
    assert harness.committed() == {("t", 0): 1}
    expire(harness, WEEK_MS - 5000)
    assert (harness.disk, harness.machine.groups) == ({}, {})


def test_offsets_of_active_group_expire_for_unsubscribed_topics_only(
    harness: CoordinatorHarness,
) -> None:
    member = alone(harness)
    harness.commit(member, 1, {("t", 0): 1, ("u", 0): 1})
    expire(harness, WEEK_MS - 1)
    assert harness.committed() == {("t", 0): 1, ("u", 0): 1}
    harness.join(member, protocols={"range": Subscription(("t", "u")).write()})
    expire(harness, WEEK_MS)  # in a round nobody knows
    assert harness.committed() == {("t", 0): 1, ("u", 0): 1}
    harness.join(member, protocols={"range": READS_T})
    harness.sync(member, harness.round().generation, assignments={member: b"all"})
    expire(harness, WEEK_MS)
    assert harness.committed() == {("t", 0): 1}
    assert harness.heartbeat(member, harness.round().generation)["error_code"] == NONE
