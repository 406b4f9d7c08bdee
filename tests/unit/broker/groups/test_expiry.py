"""Offsets that go: deleted by hand (KIP-496), or unused for long (KIP-211)."""

import pytest

from streamsx.broker.groups.classic import GroupState
from streamsx.broker.groups.coordinator_events import ExpireOffsets
from streamsx.broker.groups.group import GroupConfig
from streamsx.protocol.consumer_protocol import Subscription
from streamsx.protocol.error_codes import ErrorCode
from tests.support.desk import Desk

NONE = ErrorCode.NONE
WEEK_MS = GroupConfig().offsets_retention_ms
READS_T = Subscription(("t",)).write()


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.set_topics(t=4, u=1)
    return desk


def alone(desk: Desk, subscription: bytes = READS_T, kind: str = "consumer") -> str:
    """The only member of a group in STABLE, at generation 1."""
    waiter = desk.join(version=3, protocols={"range": subscription}, kind=kind)
    member = str(desk.replies[waiter]["member_id"])
    desk.sync(member, 1, assignments={member: b"all"})
    assert desk.round().state is GroupState.STABLE
    return member


def expire(desk: Desk, later_ms: int) -> None:
    """As long after the present."""
    desk.step(ExpireOffsets(int(desk.now * 1000) + later_ms))


def test_offsets_of_empty_group_are_deleted(desk: Desk) -> None:
    desk.commit("", -1, {("t", 0): 1, ("t", 1): 1, ("u", 0): 1})
    assert desk.delete_offsets(("t", 0), ("t", 2), ("t", 9), ("no", 0)) == {
        "t": [NONE, NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        "no": [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
    }
    assert desk.committed() == {("t", 1): 1, ("u", 0): 1}
    desk.crash()
    assert desk.committed() == {("t", 1): 1, ("u", 0): 1}
    desk.delete_offsets(("t", 1), ("u", 0))
    assert (desk.disk, desk.machine.groups) == ({}, {})


def test_offsets_of_subscribed_topic_are_not_deleted(desk: Desk) -> None:
    member = alone(desk)
    desk.commit(member, 1, {("t", 0): 1, ("u", 0): 1})
    assert desk.delete_offsets(("t", 0), ("u", 0)) == {
        "t": [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC],
        "u": [NONE],
    }
    assert desk.committed() == {("t", 0): 1}
    desk.leave((member, None))
    assert desk.delete_offsets(("t", 0)) == {"t": [NONE]}
    assert desk.committed() == {}


@pytest.mark.parametrize(
    ("kind", "subscription", "told"),
    [
        ("consumer", b"rubbish", {"t": [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]}),
        ("stream", READS_T, {"": [ErrorCode.NON_EMPTY_GROUP]}),
    ],
)
def test_unreadable_subscription_protects_all_offsets(
    desk: Desk, kind: str, subscription: bytes, told: dict[str, list[int]]
) -> None:
    member = alone(desk, subscription, kind)
    desk.commit(member, 1, {("t", 0): 1})
    assert desk.delete_offsets(("t", 0)) == told
    expire(desk, 2 * WEEK_MS)
    assert desk.committed() == {("t", 0): 1}


def test_delete_offsets_of_absent_group_answered_not_found(desk: Desk) -> None:
    assert desk.delete_offsets(("t", 0)) == {"": [ErrorCode.GROUP_ID_NOT_FOUND]}


def test_offsets_without_members_expire_by_commit_time(desk: Desk) -> None:
    desk.commit("", -1, {("t", 0): 1})
    desk.sleep(10)
    desk.commit("", -1, {("u", 0): 1})
    expire(desk, WEEK_MS - 10_001)
    assert desk.committed() == {("t", 0): 1, ("u", 0): 1}
    expire(desk, WEEK_MS - 10_000)
    assert desk.committed() == {("u", 0): 1}
    expire(desk, WEEK_MS)
    assert (desk.disk, desk.machine.groups) == ({}, {})


def test_offsets_of_emptied_group_expire_since_last_member_left(desk: Desk) -> None:
    member = alone(desk)
    desk.commit(member, 1, {("t", 0): 1})
    desk.sleep(8)
    desk.heartbeat(member, 1)
    desk.leave((member, None))
    desk.crash()  # since when it is empty is on the disk
    desk.sleep(5)
    expire(desk, WEEK_MS - 5001)
    assert desk.committed() == {("t", 0): 1}
    expire(desk, WEEK_MS - 5000)
    assert (desk.disk, desk.machine.groups) == ({}, {})


def test_offsets_of_active_group_expire_for_unsubscribed_topics_only(desk: Desk) -> None:
    member = alone(desk)
    desk.commit(member, 1, {("t", 0): 1, ("u", 0): 1})
    expire(desk, WEEK_MS - 1)
    assert desk.committed() == {("t", 0): 1, ("u", 0): 1}
    desk.join(member, protocols={"range": Subscription(("t", "u")).write()})
    expire(desk, WEEK_MS)  # in a round nobody knows
    assert desk.committed() == {("t", 0): 1, ("u", 0): 1}
    desk.join(member, protocols={"range": READS_T})
    desk.sync(member, desk.round().generation, assignments={member: b"all"})
    expire(desk, WEEK_MS)
    assert desk.committed() == {("t", 0): 1}
    assert desk.heartbeat(member, desk.round().generation)["error_code"] == NONE
