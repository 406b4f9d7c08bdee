"""Groups of the consumer protocol (KIP-848), and members that may commit (seed 002, KIP-1251).

Most stories run twice: as they are, and with a crash between any two steps.
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
from tests.support.coordinator_harness import CoordinatorHarness, topic_id

SESSION_S = 45


class Shaky(CoordinatorHarness):
    """Harness whose coordinator crashes after each step."""

    def beat(self, *args: Any, **about: Any) -> dict[str, Any]:
        answer = super().beat(*args, **about)
        self.crash()
        return answer


@pytest.fixture(params=[CoordinatorHarness, Shaky])
def harness(request: pytest.FixtureRequest) -> CoordinatorHarness:
    harness: CoordinatorHarness = request.param()
    harness.set_topics(t=4, u=2)
    return harness


@pytest.fixture
def calm() -> CoordinatorHarness:
    """Return a harness without crashes, in which no session starts again."""
    harness = CoordinatorHarness()
    harness.set_topics(t=4)
    return harness


def given(answer: dict[str, Any]) -> tuple[int, list[int] | None]:
    """Return epoch and partitions of t; None if the answer has none."""
    assert not answer.get("error_code"), answer
    if answer["assignment"] is None:
        return answer["member_epoch"], None
    topics = answer["assignment"]["topic_partitions"]
    return answer["member_epoch"], [p for t in topics for p in t["partitions"]]


def code(answer: dict[str, Any]) -> int:
    return int(answer.get("error_code", E.NONE))


def t(*partitions: int) -> list[tuple[str, int]]:
    return [("t", p) for p in partitions]


def commits(
    harness: CoordinatorHarness, member: str, epoch: int, *partitions: int, version: int = 9
) -> set[int]:
    """Return the codes of one commit for these partitions of t."""
    offsets = dict.fromkeys(t(*partitions), 7)
    return set(harness.commit(member, epoch, offsets, version=version).values())


def alone(harness: CoordinatorHarness, member: str = "a", **about: Any) -> None:
    """Return a group of one member that has all of t, at epoch 2."""
    assert given(harness.beat(member, 0, **about)) == (2, [0, 1, 2, 3])


def two(harness: CoordinatorHarness) -> None:
    """Return a group in which a has 0 and 1 at epoch 3, and b has 2 and 3."""
    alone(harness)
    assert given(harness.beat("b", 0)) == (3, [])
    assert given(harness.beat("a", 2)) == (2, [0, 1])
    assert given(harness.beat("a", 2, owned=t(0, 1))) == (3, None)
    assert given(harness.beat("b", 3)) == (3, [2, 3])


# The life of a group.


def test_single_member_receives_all_partitions(harness: CoordinatorHarness) -> None:
    alone(harness)
    assert given(harness.beat("a", 2)) == (2, None)
    assert given(harness.beat("a", 2, topics=["t"], owned=t(0), rebalance_ms=5)) == (
        2,
        [0, 1, 2, 3],
    )
    assert harness.consumers().listed() == {"protocol_type": "consumer", "group_state": "Stable"}


def test_partition_assigned_only_after_previous_owner_revoked(harness: CoordinatorHarness) -> None:
    alone(harness)
    assert given(harness.beat("b", 0)) == (3, [])
    assert given(harness.beat("b", 3)) == (3, None)
    assert given(harness.beat("a", 2)) == (2, [0, 1])
    assert given(harness.beat("a", 2, owned=t(0, 1, 2))) == (2, None)
    assert given(harness.beat("b", 3)) == (3, None)
    assert given(harness.beat("a", 2, owned=t(0, 1))) == (3, None)
    assert given(harness.beat("b", 3)) == (3, [2, 3])
    assert harness.consumers().listed()["group_state"] == "Stable"


def test_partitions_of_leaving_member_go_to_remaining_members(harness: CoordinatorHarness) -> None:
    two(harness)
    assert harness.beat("b", -1)["member_epoch"] == -1
    assert harness.consumers().listed()["group_state"] == "Assigning"
    assert given(harness.beat("a", 3)) == (4, [0, 1, 2, 3])
    assert harness.beat("a", -1)["member_epoch"] == -1
    assert harness.consumers().listed()["group_state"] == "Empty"
    assert given(harness.beat("c", 0)) == (6, [0, 1, 2, 3])


def test_silent_member_removed_at_session_timeout(calm: CoordinatorHarness) -> None:
    two(calm)
    calm.sleep(SESSION_S - 1)
    assert given(calm.beat("a", 3)) == (3, None)
    calm.sleep(2)
    assert list(calm.consumers().held.members) == ["a"]
    calm.sleep(SESSION_S - 3)
    assert given(calm.beat("a", 3)) == (4, [0, 1, 2, 3])
    assert code(calm.beat("b", 3)) == E.UNKNOWN_MEMBER_ID


def test_member_not_revoking_removed_at_rebalance_timeout(harness: CoordinatorHarness) -> None:
    alone(harness, rebalance_ms=8000)
    harness.beat("b", 0)
    assert given(harness.beat("a", 2)) == (2, [0, 1])
    harness.sleep(7)
    assert given(harness.beat("a", 2, owned=t(0, 1, 2, 3))) == (2, None)
    harness.sleep(8)
    assert code(harness.beat("a", 2)) == E.UNKNOWN_MEMBER_ID
    assert given(harness.beat("b", 3)) == (4, [0, 1, 2, 3])


def test_late_revoked_partitions_return_to_member_when_unneeded(
    harness: CoordinatorHarness,
) -> None:
    alone(harness)
    harness.beat("b", 0)
    assert given(harness.beat("a", 2)) == (2, [0, 1])
    harness.beat("b", -1)
    assert given(harness.beat("a", 2)) == (2, None)
    assert given(harness.beat("a", 2, owned=t(0, 1))) == (4, [0, 1, 2, 3])
    assert given(harness.beat("a", 4)) == (4, None)


def test_new_topics_and_partitions_are_assigned(harness: CoordinatorHarness) -> None:
    alone(harness, topics=["t", "n"])
    harness.set_topics(t=5, n=1)
    epoch, partitions = given(harness.beat("a", 2))
    assert (epoch, sorted(partitions or ())) == (3, [0, 0, 1, 2, 3, 4])
    harness.set_topics(t=5, n=1, other=3)
    assert given(harness.beat("a", 3)) == (3, None)
    harness.set_topics(n=1)
    assert given(harness.beat("a", 3, owned=[("n", 0)])) == (4, [0])


def test_changed_subscription_changes_assignment(harness: CoordinatorHarness) -> None:
    alone(harness)
    assert given(harness.beat("a", 2, topics=["u"])) == (2, [])
    assert given(harness.beat("a", 2, owned=())) == (3, [0, 1])
    reads = harness.consumers().reads()
    assert [reads("u"), reads("t")] == [True, False]


def test_assignor_unchanged_by_restart(harness: CoordinatorHarness) -> None:
    """Members are loaded in the order of their ids, not of their joins."""
    alone(harness, "b", assignor="range")
    harness.beat("a", 0, assignor="uniform")
    before = harness.consumers().described()["assignor_name"]
    harness.crash()
    assert harness.consumers().described()["assignor_name"] == before


@pytest.mark.parametrize(("assignor", "expected"), [("range", [0, 1]), ("uniform", [0, 1])])
def test_assignor_preferred_by_most_members_is_used(
    harness: CoordinatorHarness, assignor: str, expected: object
) -> None:
    alone(harness, assignor=assignor)
    harness.beat("b", 0, assignor=assignor)
    assert given(harness.beat("a", 2)) == (2, expected)
    assert harness.consumers().described()["assignor_name"] == assignor


def test_group_is_described_listed_and_deleted(harness: CoordinatorHarness) -> None:
    two(harness)
    (told,) = harness.replies[harness.ask(69, 1, group_ids=["g"])]["groups"]
    assert (told["group_state"], told["group_epoch"], told["assignment_epoch"]) == ("Stable", 3, 3)
    a, b = told["members"]
    assert (a["member_id"], a["member_epoch"], a["member_type"]) == ("a", 3, 1)
    assert a["assignment"] == a["target_assignment"]
    assert b["assignment"]["topic_partitions"] == [
        {"topic_id": topic_id("t"), "topic_name": "t", "partitions": (2, 3)}
    ]
    (classic,) = harness.replies[harness.ask(15, 6, groups=["g"])]["groups"]
    assert (classic["error_code"], classic["group_state"]) == (E.GROUP_ID_NOT_FOUND, "Dead")
    (absent,) = harness.replies[harness.ask(69, 1, group_ids=["h"])]["groups"]
    assert absent["error_code"] == E.GROUP_ID_NOT_FOUND
    (listed,) = harness.replies[harness.ask(16, 5, states_filter=[], types_filter=["Consumer"])][
        "groups"
    ]
    assert (listed["group_id"], listed["group_type"]) == ("g", "consumer")
    assert not harness.replies[harness.ask(16, 5, states_filter=[], types_filter=["classic"])][
        "groups"
    ]

    def delete() -> int:
        return int(
            harness.replies[harness.ask(42, 2, groups_names=["g"])]["results"][0]["error_code"]
        )

    assert delete() == E.NON_EMPTY_GROUP
    harness.beat("a", -1)
    harness.beat("b", -1)
    assert delete() == E.NONE
    assert not harness.disk


def test_empty_consumer_group_becomes_classic_group(harness: CoordinatorHarness) -> None:
    harness.commit("", -1, {("t", 0): 5})
    alone(harness)
    harness.beat("a", -1)
    assert harness.replies[harness.join(version=0)]["generation_id"] == 1
    assert ConsumerGroupKey("g") not in harness.disk
    assert harness.committed() == {("t", 0): 5}
    assert code(harness.beat("a", 2)) == E.GROUP_ID_NOT_FOUND


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
    harness = CoordinatorHarness()
    told = harness.beat(about.pop("member_id", "a"), epoch, **about)
    if about.get("regex") == "":
        assert code(told) == E.NONE  # said, but empty
    else:
        assert code(told) == E.INVALID_REQUEST
        assert not harness.machine.groups


def test_subscription_by_regex_refused_with_reason() -> None:
    """One expression, matched by `re`, could hold up all clients."""
    harness = CoordinatorHarness()
    told = harness.beat("a", 0, regex="t.*")
    assert told["error_code"] == E.INVALID_REGULAR_EXPRESSION
    assert "by their names" in told["error_message"]
    assert not harness.machine.groups


def test_unknown_group_member_or_assignor_refused(harness: CoordinatorHarness) -> None:
    assert [code(harness.beat("a", n)) for n in (-1, 1)] == [E.GROUP_ID_NOT_FOUND] * 2
    assert code(harness.beat("a", 0, assignor="x")) == E.UNSUPPORTED_ASSIGNOR
    assert not harness.machine.groups
    alone(harness)
    assert [code(harness.beat("z", n)) for n in (-1, 1)] == [E.UNKNOWN_MEMBER_ID] * 2


def test_full_group_refuses_new_member() -> None:
    harness = CoordinatorHarness(GroupConfig(members_max=1))
    harness.set_topics(t=4)
    alone(harness)
    assert code(harness.beat("b", 0)) == E.GROUP_MAX_SIZE_REACHED
    alone(harness)


def test_subscription_size_is_limited() -> None:
    """40 members with 40,000 names each took 0.75 s per join."""
    harness = CoordinatorHarness(GroupConfig(metadata_bytes_max=10))
    harness.set_topics(t=1)
    assert code(harness.beat("a", 0, topics=["t", "u" * 10])) == E.INVALID_REQUEST
    assert code(harness.beat("a", 0, topics=["t", "u" * 9])) == E.NONE


def test_member_id_generated_by_coordinator_in_version_0() -> None:
    harness = CoordinatorHarness()
    assert harness.beat("", 0, version=0)["member_id"] in harness.consumers().held.members


def test_past_and_future_member_epochs_are_fenced(harness: CoordinatorHarness) -> None:
    two(harness)
    assert [code(harness.beat("a", n)) for n in (1, 2, 4)] == [E.FENCED_MEMBER_EPOCH] * 3
    assert code(harness.beat("a", 2, owned=t(0, 1, 2))) == E.FENCED_MEMBER_EPOCH
    assert code(harness.beat("a", 1, owned=t(0, 1))) == E.FENCED_MEMBER_EPOCH


def test_previous_epoch_accepted_when_answer_was_lost(harness: CoordinatorHarness) -> None:
    two(harness)
    assert given(harness.beat("a", 2, owned=t(0, 1))) == (3, None)
    assert given(harness.beat("a", 2, owned=t(0, 1))) == (3, None)
    assert given(harness.beat("a", 0)) == (3, [0, 1])


# Commits (seed 002).


def test_commit_with_current_epoch_accepted_for_any_partition(harness: CoordinatorHarness) -> None:
    two(harness)
    assert commits(harness, "a", 3, 0, 1, 2, 3) == {E.NONE}


def test_commit_accepted_for_partition_being_revoked(harness: CoordinatorHarness) -> None:
    alone(harness)
    harness.beat("b", 0)
    harness.beat("a", 2)
    assert harness.consumers().held.members["a"].state is Reconciliation.UNREVOKED
    assert commits(harness, "a", 2, 3) == {E.NONE}


def test_commit_with_older_epoch_accepted_for_kept_partitions_only(
    harness: CoordinatorHarness,
) -> None:
    two(harness)
    assert commits(harness, "a", 2, 0, 1) == {E.NONE}
    assert commits(harness, "a", 2, 2) == {E.STALE_MEMBER_EPOCH}
    assert commits(harness, "a", 1, 0) == {E.STALE_MEMBER_EPOCH}
    assert commits(harness, "b", 2, 2) == {E.STALE_MEMBER_EPOCH}


def test_commit_with_stale_partition_refused_as_a_whole(harness: CoordinatorHarness) -> None:
    two(harness)
    assert commits(harness, "a", 2, 0, 2) == {E.STALE_MEMBER_EPOCH}
    assert harness.committed() == {}


def test_unknown_partition_does_not_refuse_rest_of_commit(harness: CoordinatorHarness) -> None:
    two(harness)
    told = harness.commit("a", 2, {("t", 0): 1, ("t", 9): 1, ("gone", 0): 1}, version=9)
    assert told[("t", 0)] == E.NONE
    assert {told[("t", 9)], told[("gone", 0)]} == {E.UNKNOWN_TOPIC_OR_PARTITION}


def test_commit_with_future_epoch_refused(harness: CoordinatorHarness) -> None:
    two(harness)
    assert commits(harness, "a", 4, 0) == {E.STALE_MEMBER_EPOCH}


def test_commit_for_returned_partition_refused_with_earlier_epoch(
    harness: CoordinatorHarness,
) -> None:
    two(harness)
    harness.beat("b", -1)
    assert given(harness.beat("a", 3)) == (4, [0, 1, 2, 3])
    assert commits(harness, "a", 2, 2) == {E.STALE_MEMBER_EPOCH}
    assert commits(harness, "a", 3, 2) == {E.STALE_MEMBER_EPOCH}
    assert commits(harness, "a", 2, 0) == {E.NONE}
    assert commits(harness, "a", 4, 2) == {E.NONE}


def test_assignment_epochs_kept_through_repeated_revocations(harness: CoordinatorHarness) -> None:
    """Each commit with an epoch at which the member had the partition is accepted, through two
    rounds.
    """
    alone(harness)
    harness.beat("b", 0)
    harness.beat("a", 2)
    harness.beat("c", 0)
    assert given(harness.beat("a", 2, owned=t(0, 1))) == (2, [0])
    assert commits(harness, "a", 2, 0, 1) == {E.NONE}
    assert commits(harness, "a", 3, 0) == {E.STALE_MEMBER_EPOCH}
    assert given(harness.beat("a", 2, owned=t(0))) == (4, None)
    assert commits(harness, "a", 2, 0) == {E.NONE}
    assert commits(harness, "a", 3, 1) == {E.STALE_MEMBER_EPOCH}


def test_commit_without_valid_member_refused_unless_group_is_empty(
    harness: CoordinatorHarness,
) -> None:
    alone(harness)
    assert commits(harness, "", -1, 0) == {E.UNKNOWN_MEMBER_ID}
    assert commits(harness, "a", -1, 0) == {E.STALE_MEMBER_EPOCH}
    assert commits(harness, "x", 2, 0) == {E.UNKNOWN_MEMBER_ID}
    assert commits(harness, "a", 2, 0, version=8) == {E.UNSUPPORTED_VERSION}
    harness.beat("a", -1)
    assert commits(harness, "", -1, 0) == {E.NONE}
    assert commits(harness, "a", 2, 0) == {E.UNKNOWN_MEMBER_ID}


def test_row_without_assignment_epochs_allows_only_current_epoch(
    harness: CoordinatorHarness,
) -> None:
    two(harness)
    key = CurrentKey("g", "a")
    row = harness.disk[key]
    assert isinstance(row, CurrentValue)
    harness.disk[key] = replace(row, assigned=tuple(replace(p, epochs=None) for p in row.assigned))
    harness.machine.forget("g")  # what is in memory is of no use
    harness.crash()
    assert commits(harness, "a", 2, 0) == {E.STALE_MEMBER_EPOCH}
    assert commits(harness, "a", 3, 0) == {E.NONE}
    harness.beat("b", -1)
    assert given(harness.beat("a", 3)) == (4, [0, 1, 2, 3])
    stored = harness.disk[key]
    assert isinstance(stored, CurrentValue)
    assert [p.epochs for p in stored.assigned] == [(3, 3, 4, 4)]


def test_offset_fetch_requires_current_member_epoch(harness: CoordinatorHarness) -> None:
    two(harness)

    def fetch(member: str | None, epoch: int) -> int:
        asked = type("Asked", (), {"group_id": "g", "topics": None})()
        asked.member_id, asked.member_epoch = member, epoch
        waiter = harness.ask(9, 9, groups=[asked], require_stable=False)
        return code(harness.replies[waiter]["groups"][0])

    assert [fetch("a", 3), fetch(None, -1)] == [E.NONE] * 2
    assert [fetch("a", 2), fetch("a", -1)] == [E.STALE_MEMBER_EPOCH] * 2
    assert [fetch("x", 3), fetch("", -1)] == [E.UNKNOWN_MEMBER_ID] * 2


# Static members (KIP-345).


def test_partitions_of_absent_static_member_are_kept(harness: CoordinatorHarness) -> None:
    alone(harness, instance="i")
    assert harness.beat("a", AWAY, instance="i")["member_epoch"] == AWAY
    assert harness.consumers().listed()["group_state"] == "Reconciling"
    assert commits(harness, "a", 2, 0) == {E.STALE_MEMBER_EPOCH}
    assert code(harness.beat("a", 2, instance="i")) == E.FENCED_MEMBER_EPOCH
    assert given(harness.beat("b", 0, instance="i")) == (2, [0, 1, 2, 3])


def test_returned_static_member_commits_with_any_epoch_and_old_id_never(
    harness: CoordinatorHarness,
) -> None:
    alone(harness, instance="i")
    harness.beat("a", AWAY, instance="i")
    harness.beat("b", 0, instance="i")
    assert commits(harness, "b", 0, 0) == commits(harness, "b", 1, 3) == commits(harness, "b", 2, 1)
    assert commits(harness, "b", 0, 0) == {E.NONE}
    assert commits(harness, "a", 2, 0) == {E.UNKNOWN_MEMBER_ID}
    assert code(harness.beat("a", 2, instance="i")) == E.FENCED_INSTANCE_ID
    assert code(harness.beat("a", 2)) == E.UNKNOWN_MEMBER_ID


def test_static_member_returns_under_same_member_id(harness: CoordinatorHarness) -> None:
    alone(harness, instance="i")
    harness.beat("a", AWAY, instance="i")
    alone(harness, instance="i")
    assert given(harness.beat("a", 2, instance="i")) == (2, None)


def test_held_instance_id_is_not_given_to_another_member(harness: CoordinatorHarness) -> None:
    alone(harness, instance="i")
    assert code(harness.beat("b", 0, instance="i")) == E.UNRELEASED_INSTANCE_ID
    assert code(harness.beat("a", 0, instance="i")) == E.UNRELEASED_INSTANCE_ID
    assert code(harness.beat("b", 2, instance="i")) == E.FENCED_INSTANCE_ID
    assert code(harness.beat("a", 2, instance="j")) == E.UNKNOWN_MEMBER_ID
    assert code(harness.beat("b", AWAY, instance="i")) == E.FENCED_INSTANCE_ID


def test_static_member_not_returning_removed_at_session_timeout(calm: CoordinatorHarness) -> None:
    alone(calm, instance="i")
    calm.beat("b", 0)
    calm.beat("a", AWAY, instance="i")
    calm.sleep(30)
    assert given(calm.beat("b", 3)) == (3, None)
    calm.sleep(30)
    assert given(calm.beat("b", 3)) == (4, [0, 1, 2, 3])


def test_early_tick_changes_nothing(harness: CoordinatorHarness) -> None:
    two(harness)
    harness.step(BrokerTick("g", 0))
    assert given(harness.beat("a", 3)) == (3, None)
