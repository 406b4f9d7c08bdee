"""Groups of the consumer protocol (KIP-848), and who may commit for what (seed 002, KIP-1251).

Most stories are told twice: as they are, and with a crash between any two of their steps.
"""

from dataclasses import replace
from typing import Any

import pytest

from streamsx.broker.groups.assignments import Reconciliation
from streamsx.broker.groups.consumer_group import AWAY
from streamsx.broker.groups.coordinator_events import BrokerTick
from streamsx.broker.groups.group import GroupConfig
from streamsx.broker.metadata_rows import ConsumerGroupKey, CurrentKey, CurrentValue
from streamsx.protocol.error_codes import ErrorCode as E
from tests.support.desk import Desk, topic_id

SESSION_S = 45


class Shaky(Desk):
    """Its coordinator crashes after each step."""

    def beat(self, *args: Any, **about: Any) -> dict[str, Any]:
        answer = super().beat(*args, **about)
        self.crash()
        return answer


@pytest.fixture(params=[Desk, Shaky])
def desk(request: pytest.FixtureRequest) -> Desk:
    desk: Desk = request.param()
    desk.set_topics(t=4, u=2)
    return desk


@pytest.fixture
def calm() -> Desk:
    """Nobody's session begins anew."""
    desk = Desk()
    desk.set_topics(t=4)
    return desk


def given(answer: dict[str, Any]) -> tuple[int, list[int] | None]:
    """Epoch and partitions of t; None if they were not told."""
    assert not answer.get("error_code"), answer
    if answer["assignment"] is None:
        return answer["member_epoch"], None
    topics = answer["assignment"]["topic_partitions"]
    return answer["member_epoch"], [p for t in topics for p in t["partitions"]]


def code(answer: dict[str, Any]) -> int:
    return int(answer.get("error_code", E.NONE))


def t(*partitions: int) -> list[tuple[str, int]]:
    return [("t", p) for p in partitions]


def commits(desk: Desk, member: str, epoch: int, *partitions: int, version: int = 9) -> set[int]:
    """The codes of one request for these partitions of t."""
    offsets = dict.fromkeys(t(*partitions), 7)
    return set(desk.commit(member, epoch, offsets, version=version).values())


def alone(desk: Desk, member: str = "a", **about: Any) -> None:
    """It has all of t, at epoch 2."""
    assert given(desk.beat(member, 0, **about)) == (2, [0, 1, 2, 3])


def two(desk: Desk) -> None:
    """a has 0 and 1 at epoch 3, b has 2 and 3."""
    alone(desk)
    assert given(desk.beat("b", 0)) == (3, [])
    assert given(desk.beat("a", 2)) == (2, [0, 1])
    assert given(desk.beat("a", 2, owned=t(0, 1))) == (3, None)
    assert given(desk.beat("b", 3)) == (3, [2, 3])


# The life of a group.


def test_single_member_receives_all_partitions(desk: Desk) -> None:
    alone(desk)
    assert given(desk.beat("a", 2)) == (2, None)
    assert given(desk.beat("a", 2, topics=["t"], owned=t(0), rebalance_ms=5)) == (2, [0, 1, 2, 3])
    assert desk.consumers().listed() == {"protocol_type": "consumer", "group_state": "Stable"}


def test_partition_assigned_only_after_previous_owner_revoked(desk: Desk) -> None:
    alone(desk)
    assert given(desk.beat("b", 0)) == (3, [])
    assert given(desk.beat("b", 3)) == (3, None)
    assert given(desk.beat("a", 2)) == (2, [0, 1])
    assert given(desk.beat("a", 2, owned=t(0, 1, 2))) == (2, None)
    assert given(desk.beat("b", 3)) == (3, None)
    assert given(desk.beat("a", 2, owned=t(0, 1))) == (3, None)
    assert given(desk.beat("b", 3)) == (3, [2, 3])
    assert desk.consumers().listed()["group_state"] == "Stable"


def test_partitions_of_leaving_member_go_to_remaining_members(desk: Desk) -> None:
    two(desk)
    assert desk.beat("b", -1)["member_epoch"] == -1
    assert desk.consumers().listed()["group_state"] == "Assigning"
    assert given(desk.beat("a", 3)) == (4, [0, 1, 2, 3])
    assert desk.beat("a", -1)["member_epoch"] == -1
    assert desk.consumers().listed()["group_state"] == "Empty"
    assert given(desk.beat("c", 0)) == (6, [0, 1, 2, 3])


def test_silent_member_removed_at_session_timeout(calm: Desk) -> None:
    two(calm)
    calm.sleep(SESSION_S - 1)
    assert given(calm.beat("a", 3)) == (3, None)
    calm.sleep(2)
    assert list(calm.consumers().held.members) == ["a"]
    calm.sleep(SESSION_S - 3)
    assert given(calm.beat("a", 3)) == (4, [0, 1, 2, 3])
    assert code(calm.beat("b", 3)) == E.UNKNOWN_MEMBER_ID


def test_member_not_revoking_removed_at_rebalance_timeout(desk: Desk) -> None:
    alone(desk, rebalance_ms=8000)
    desk.beat("b", 0)
    assert given(desk.beat("a", 2)) == (2, [0, 1])
    desk.sleep(7)
    assert given(desk.beat("a", 2, owned=t(0, 1, 2, 3))) == (2, None)
    desk.sleep(8)
    assert code(desk.beat("a", 2)) == E.UNKNOWN_MEMBER_ID
    assert given(desk.beat("b", 3)) == (4, [0, 1, 2, 3])


def test_late_revoked_partitions_return_to_member_when_unneeded(desk: Desk) -> None:
    alone(desk)
    desk.beat("b", 0)
    assert given(desk.beat("a", 2)) == (2, [0, 1])
    desk.beat("b", -1)
    assert given(desk.beat("a", 2)) == (2, None)
    assert given(desk.beat("a", 2, owned=t(0, 1))) == (4, [0, 1, 2, 3])
    assert given(desk.beat("a", 4)) == (4, None)


def test_new_topics_and_partitions_are_assigned(desk: Desk) -> None:
    alone(desk, topics=["t", "n"])
    desk.set_topics(t=5, n=1)
    epoch, partitions = given(desk.beat("a", 2))
    assert (epoch, sorted(partitions or ())) == (3, [0, 0, 1, 2, 3, 4])
    desk.set_topics(t=5, n=1, other=3)
    assert given(desk.beat("a", 3)) == (3, None)
    desk.set_topics(n=1)
    assert given(desk.beat("a", 3, owned=[("n", 0)])) == (4, [0])


def test_changed_subscription_changes_assignment(desk: Desk) -> None:
    alone(desk)
    assert given(desk.beat("a", 2, topics=["u"])) == (2, [])
    assert given(desk.beat("a", 2, owned=())) == (3, [0, 1])
    reads = desk.consumers().reads()
    assert [reads("u"), reads("t")] == [True, False]


def test_assignor_unchanged_by_restart(desk: Desk) -> None:
    """Members are loaded by their ids, not as they joined."""
    alone(desk, "b", assignor="range")
    desk.beat("a", 0, assignor="uniform")
    before = desk.consumers().described()["assignor_name"]
    desk.crash()
    assert desk.consumers().described()["assignor_name"] == before


@pytest.mark.parametrize(("assignor", "expected"), [("range", [0, 1]), ("uniform", [0, 1])])
def test_assignor_preferred_by_most_members_is_used(
    desk: Desk, assignor: str, expected: object
) -> None:
    alone(desk, assignor=assignor)
    desk.beat("b", 0, assignor=assignor)
    assert given(desk.beat("a", 2)) == (2, expected)
    assert desk.consumers().described()["assignor_name"] == assignor


def test_group_is_described_listed_and_deleted(desk: Desk) -> None:
    two(desk)
    (told,) = desk.replies[desk.ask(69, 1, group_ids=["g"])]["groups"]
    assert (told["group_state"], told["group_epoch"], told["assignment_epoch"]) == ("Stable", 3, 3)
    a, b = told["members"]
    assert (a["member_id"], a["member_epoch"], a["member_type"]) == ("a", 3, 1)
    assert a["assignment"] == a["target_assignment"]
    assert b["assignment"]["topic_partitions"] == [
        {"topic_id": topic_id("t"), "topic_name": "t", "partitions": (2, 3)}
    ]
    (classic,) = desk.replies[desk.ask(15, 6, groups=["g"])]["groups"]
    assert (classic["error_code"], classic["group_state"]) == (E.GROUP_ID_NOT_FOUND, "Dead")
    (absent,) = desk.replies[desk.ask(69, 1, group_ids=["h"])]["groups"]
    assert absent["error_code"] == E.GROUP_ID_NOT_FOUND
    (listed,) = desk.replies[desk.ask(16, 5, states_filter=[], types_filter=["Consumer"])]["groups"]
    assert (listed["group_id"], listed["group_type"]) == ("g", "consumer")
    assert not desk.replies[desk.ask(16, 5, states_filter=[], types_filter=["classic"])]["groups"]

    def delete() -> int:
        return int(desk.replies[desk.ask(42, 2, groups_names=["g"])]["results"][0]["error_code"])

    assert delete() == E.NON_EMPTY_GROUP
    desk.beat("a", -1)
    desk.beat("b", -1)
    assert delete() == E.NONE
    assert not desk.disk


def test_empty_consumer_group_becomes_classic_group(desk: Desk) -> None:
    desk.commit("", -1, {("t", 0): 5})
    alone(desk)
    desk.beat("a", -1)
    assert desk.replies[desk.join(version=0)]["generation_id"] == 1
    assert ConsumerGroupKey("g") not in desk.disk
    assert desk.committed() == {("t", 0): 5}
    assert code(desk.beat("a", 2)) == E.GROUP_ID_NOT_FOUND


# Who is refused.


@pytest.mark.parametrize(
    ("epoch", "about"),
    [
        (0, {"group": ""}), (0, {"member_id": ""}), (1, {"member_id": "", "version": 0}),
        (0, {"instance": ""}), (0, {"topics": None, "regex": ""}), (0, {"owned": t(0)}),
        (-2, {}), (-3, {}),
    ],
)  # fmt: skip
def test_invalid_heartbeat_refused(epoch: int, about: dict[str, Any]) -> None:
    desk = Desk()
    told = desk.beat(about.pop("member_id", "a"), epoch, **about)
    if about.get("regex") == "":
        assert code(told) == E.NONE  # said, but empty
    else:
        assert code(told) == E.INVALID_REQUEST
        assert not desk.machine.groups


def test_subscription_by_regex_refused_with_reason() -> None:
    """Matched by `re`, one could hold up everybody."""
    desk = Desk()
    told = desk.beat("a", 0, regex="t.*")
    assert told["error_code"] == E.INVALID_REGULAR_EXPRESSION
    assert "by their names" in told["error_message"]
    assert not desk.machine.groups


def test_unknown_group_member_or_assignor_refused(desk: Desk) -> None:
    assert [code(desk.beat("a", n)) for n in (-1, 1)] == [E.GROUP_ID_NOT_FOUND] * 2
    assert code(desk.beat("a", 0, assignor="x")) == E.UNSUPPORTED_ASSIGNOR
    assert not desk.machine.groups
    alone(desk)
    assert [code(desk.beat("z", n)) for n in (-1, 1)] == [E.UNKNOWN_MEMBER_ID] * 2


def test_full_group_refuses_new_member() -> None:
    desk = Desk(GroupConfig(members_max=1))
    desk.set_topics(t=4)
    alone(desk)
    assert code(desk.beat("b", 0)) == E.GROUP_MAX_SIZE_REACHED
    alone(desk)


def test_subscription_size_is_limited() -> None:
    """40 members with 40,000 names each took 0.75 s a join."""
    desk = Desk(GroupConfig(metadata_bytes_max=10))
    desk.set_topics(t=1)
    assert code(desk.beat("a", 0, topics=["t", "u" * 10])) == E.INVALID_REQUEST
    assert code(desk.beat("a", 0, topics=["t", "u" * 9])) == E.NONE


def test_member_id_generated_by_coordinator_in_version_0() -> None:
    desk = Desk()
    assert desk.beat("", 0, version=0)["member_id"] in desk.consumers().held.members


def test_past_and_future_member_epochs_are_fenced(desk: Desk) -> None:
    two(desk)
    assert [code(desk.beat("a", n)) for n in (1, 2, 4)] == [E.FENCED_MEMBER_EPOCH] * 3
    assert code(desk.beat("a", 2, owned=t(0, 1, 2))) == E.FENCED_MEMBER_EPOCH
    assert code(desk.beat("a", 1, owned=t(0, 1))) == E.FENCED_MEMBER_EPOCH


def test_previous_epoch_accepted_when_answer_was_lost(desk: Desk) -> None:
    two(desk)
    assert given(desk.beat("a", 2, owned=t(0, 1))) == (3, None)
    assert given(desk.beat("a", 2, owned=t(0, 1))) == (3, None)
    assert given(desk.beat("a", 0)) == (3, [0, 1])


# Commits (seed 002).


def test_commit_with_current_epoch_accepted_for_any_partition(desk: Desk) -> None:
    two(desk)
    assert commits(desk, "a", 3, 0, 1, 2, 3) == {E.NONE}


def test_commit_accepted_for_partition_being_revoked(desk: Desk) -> None:
    alone(desk)
    desk.beat("b", 0)
    desk.beat("a", 2)
    assert desk.consumers().held.members["a"].state is Reconciliation.UNREVOKED
    assert commits(desk, "a", 2, 3) == {E.NONE}


def test_commit_with_older_epoch_accepted_for_kept_partitions_only(desk: Desk) -> None:
    two(desk)
    assert commits(desk, "a", 2, 0, 1) == {E.NONE}
    assert commits(desk, "a", 2, 2) == {E.STALE_MEMBER_EPOCH}
    assert commits(desk, "a", 1, 0) == {E.STALE_MEMBER_EPOCH}
    assert commits(desk, "b", 2, 2) == {E.STALE_MEMBER_EPOCH}


def test_commit_with_stale_partition_refused_as_a_whole(desk: Desk) -> None:
    two(desk)
    assert commits(desk, "a", 2, 0, 2) == {E.STALE_MEMBER_EPOCH}
    assert desk.committed() == {}


def test_unknown_partition_does_not_refuse_rest_of_commit(desk: Desk) -> None:
    two(desk)
    told = desk.commit("a", 2, {("t", 0): 1, ("t", 9): 1, ("gone", 0): 1}, version=9)
    assert told[("t", 0)] == E.NONE
    assert {told[("t", 9)], told[("gone", 0)]} == {E.UNKNOWN_TOPIC_OR_PARTITION}


def test_commit_with_future_epoch_refused(desk: Desk) -> None:
    two(desk)
    assert commits(desk, "a", 4, 0) == {E.STALE_MEMBER_EPOCH}


def test_commit_for_returned_partition_refused_with_earlier_epoch(
    desk: Desk,
) -> None:
    two(desk)
    desk.beat("b", -1)
    assert given(desk.beat("a", 3)) == (4, [0, 1, 2, 3])
    assert commits(desk, "a", 2, 2) == {E.STALE_MEMBER_EPOCH}
    assert commits(desk, "a", 3, 2) == {E.STALE_MEMBER_EPOCH}
    assert commits(desk, "a", 2, 0) == {E.NONE}
    assert commits(desk, "a", 4, 2) == {E.NONE}


def test_assignment_epochs_kept_through_repeated_revocations(desk: Desk) -> None:
    """Each commit with an epoch in which it had the partition is taken, through two rounds."""
    alone(desk)
    desk.beat("b", 0)
    desk.beat("a", 2)
    desk.beat("c", 0)
    assert given(desk.beat("a", 2, owned=t(0, 1))) == (2, [0])
    assert commits(desk, "a", 2, 0, 1) == {E.NONE}
    assert commits(desk, "a", 3, 0) == {E.STALE_MEMBER_EPOCH}
    assert given(desk.beat("a", 2, owned=t(0))) == (4, None)
    assert commits(desk, "a", 2, 0) == {E.NONE}
    assert commits(desk, "a", 3, 1) == {E.STALE_MEMBER_EPOCH}


def test_commit_without_valid_member_refused_unless_group_is_empty(desk: Desk) -> None:
    alone(desk)
    assert commits(desk, "", -1, 0) == {E.UNKNOWN_MEMBER_ID}
    assert commits(desk, "a", -1, 0) == {E.STALE_MEMBER_EPOCH}
    assert commits(desk, "x", 2, 0) == {E.UNKNOWN_MEMBER_ID}
    assert commits(desk, "a", 2, 0, version=8) == {E.UNSUPPORTED_VERSION}
    desk.beat("a", -1)
    assert commits(desk, "", -1, 0) == {E.NONE}
    assert commits(desk, "a", 2, 0) == {E.UNKNOWN_MEMBER_ID}


def test_row_without_assignment_epochs_allows_only_current_epoch(desk: Desk) -> None:
    two(desk)
    key = CurrentKey("g", "a")
    row = desk.disk[key]
    assert isinstance(row, CurrentValue)
    desk.disk[key] = replace(row, assigned=tuple(replace(p, epochs=None) for p in row.assigned))
    desk.machine.forget("g")  # what is in memory is of no use
    desk.crash()
    assert commits(desk, "a", 2, 0) == {E.STALE_MEMBER_EPOCH}
    assert commits(desk, "a", 3, 0) == {E.NONE}
    desk.beat("b", -1)
    assert given(desk.beat("a", 3)) == (4, [0, 1, 2, 3])
    stored = desk.disk[key]
    assert isinstance(stored, CurrentValue)
    assert [p.epochs for p in stored.assigned] == [(3, 3, 4, 4)]


def test_offset_fetch_requires_current_member_epoch(desk: Desk) -> None:
    two(desk)

    def fetch(member: str | None, epoch: int) -> int:
        asked = type("Asked", (), {"group_id": "g", "topics": None})()
        asked.member_id, asked.member_epoch = member, epoch
        waiter = desk.ask(9, 9, groups=[asked], require_stable=False)
        return code(desk.replies[waiter]["groups"][0])

    assert [fetch("a", 3), fetch(None, -1)] == [E.NONE] * 2
    assert [fetch("a", 2), fetch("a", -1)] == [E.STALE_MEMBER_EPOCH] * 2
    assert [fetch("x", 3), fetch("", -1)] == [E.UNKNOWN_MEMBER_ID] * 2


# Static members (KIP-345).


def test_partitions_of_absent_static_member_are_kept(desk: Desk) -> None:
    alone(desk, instance="i")
    assert desk.beat("a", AWAY, instance="i")["member_epoch"] == AWAY
    assert desk.consumers().listed()["group_state"] == "Reconciling"
    assert commits(desk, "a", 2, 0) == {E.STALE_MEMBER_EPOCH}
    assert code(desk.beat("a", 2, instance="i")) == E.FENCED_MEMBER_EPOCH
    assert given(desk.beat("b", 0, instance="i")) == (2, [0, 1, 2, 3])


def test_returned_static_member_commits_with_any_epoch_and_old_id_never(desk: Desk) -> None:
    alone(desk, instance="i")
    desk.beat("a", AWAY, instance="i")
    desk.beat("b", 0, instance="i")
    assert commits(desk, "b", 0, 0) == commits(desk, "b", 1, 3) == commits(desk, "b", 2, 1)
    assert commits(desk, "b", 0, 0) == {E.NONE}
    assert commits(desk, "a", 2, 0) == {E.UNKNOWN_MEMBER_ID}
    assert code(desk.beat("a", 2, instance="i")) == E.FENCED_INSTANCE_ID
    assert code(desk.beat("a", 2)) == E.UNKNOWN_MEMBER_ID


def test_static_member_returns_under_same_member_id(desk: Desk) -> None:
    alone(desk, instance="i")
    desk.beat("a", AWAY, instance="i")
    alone(desk, instance="i")
    assert given(desk.beat("a", 2, instance="i")) == (2, None)


def test_held_instance_id_is_not_given_to_another_member(desk: Desk) -> None:
    alone(desk, instance="i")
    assert code(desk.beat("b", 0, instance="i")) == E.UNRELEASED_INSTANCE_ID
    assert code(desk.beat("a", 0, instance="i")) == E.UNRELEASED_INSTANCE_ID
    assert code(desk.beat("b", 2, instance="i")) == E.FENCED_INSTANCE_ID
    assert code(desk.beat("a", 2, instance="j")) == E.UNKNOWN_MEMBER_ID
    assert code(desk.beat("b", AWAY, instance="i")) == E.FENCED_INSTANCE_ID


def test_static_member_not_returning_removed_at_session_timeout(calm: Desk) -> None:
    alone(calm, instance="i")
    calm.beat("b", 0)
    calm.beat("a", AWAY, instance="i")
    calm.sleep(30)
    assert given(calm.beat("b", 3)) == (3, None)
    calm.sleep(30)
    assert given(calm.beat("b", 3)) == (4, [0, 1, 2, 3])


def test_early_tick_changes_nothing(desk: Desk) -> None:
    two(desk)
    desk.step(BrokerTick("g", 0))
    assert given(desk.beat("a", 3)) == (3, None)
