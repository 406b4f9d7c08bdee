"""Subscriptions and assignments of a member, in its own time and in the group's."""

from dataclasses import replace

import pytest

from streamsx.assignor.model import (
    RUNNING,
    Copy,
    CopyRole,
    LeaveRequest,
    Mark,
    MarkState,
    MemberMetadata,
    Memory,
    Rules,
)
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor, Subtopology
from streamsx.assignor.wire import AssignmentView, read_join, write_assignment
from streamsx.errors import DataError
from streamsx.group import member_events as e
from streamsx.group.subscription_builder import SubscriptionBuilder
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.consumer_protocol import Assignment, Subscription

P, T = TopicPartition("in", 0), TaskId(0, 0)
ZERO = 1_000.0
"""The unix second of our clock's 0."""


@pytest.fixture
def builder() -> SubscriptionBuilder:
    assignor = StreamsPartitionAssignor(
        MemberMetadata("", instance="m", process=bytes(16).hex(), version="0.1.0"),
        Rules(),
        [Subtopology(0, ("in",), True, 1)],
    )
    return SubscriptionBuilder(assignor, ("in",))


def join(nonce: int, *claims: TopicPartition, leaving: bool = False) -> e.JoinGroup:
    return e.JoinGroup(claims, 4, nonce, leaving, 7.5 if leaving else None, "")


def test_join_data_has_latest_report_and_unix_deadline(
    builder: SubscriptionBuilder,
) -> None:
    builder.report = MemberMetadata("", copies={T: Copy(CopyRole.LEARNER, 9)})
    word = Subscription.read(builder.subscription(join(1, P, leaving=True), ZERO))
    assert (word.topics, word.owned, word.generation) == (("in",), (P,), 4)
    said = read_join(word.user_data)
    assert (said.nonce, said.fresh, said.leaving) == (1, True, LeaveRequest(1_007_500))
    assert said.copies == {T: Copy(CopyRole.RESTORING, 9)}


def test_eager_member_reports_partitions_run_before_join_as_running(
    builder: SubscriptionBuilder,
) -> None:
    """The worker has closed the task by then, and an unclaimed task goes to any member."""
    round_ = replace(join(1), ran=(P,))
    for told in ({}, {T: Copy(CopyRole.DORMANT, 3)}):
        builder.report = MemberMetadata("", copies=told)
        said = read_join(Subscription.read(builder.subscription(round_, ZERO)).user_data)
        assert said.copies == {T: RUNNING}
        round_ = replace(round_, nonce=2)
    builder.report = MemberMetadata("", copies={T: Copy(CopyRole.RESTORING, 3)})
    said = read_join(
        Subscription.read(builder.subscription(replace(round_, nonce=3), ZERO)).user_data
    )
    assert said.copies == {T: Copy(CopyRole.RESTORING, 3)}


def test_repeated_round_writes_identical_join_data(builder: SubscriptionBuilder) -> None:
    """A broker would take it for a change, and start the round again."""
    first = builder.subscription(join(1), ZERO)
    builder.report = MemberMetadata("", stopped=frozenset({T: "why"}), reasons={T: "why"})
    assert builder.subscription(join(1), ZERO + 1) == first
    assert builder.subscription(join(2), ZERO) != first


def test_seat_is_fresh_only_before_first_assignment(builder: SubscriptionBuilder) -> None:
    builder.given(Assignment((P,)).write(), ZERO)
    assert not read_join(Subscription.read(builder.subscription(join(1), ZERO)).user_data).fresh


def test_mark_deadline_is_converted_to_own_clock(builder: SubscriptionBuilder) -> None:
    marks = {"m": Mark(MarkState.LEAVING, 1_020_000, epoch_ms=3)}
    view = AssignmentView(Memory(marks=marks), more=True, no_takers=True)
    synced = builder.given(Assignment((P,), write_assignment(view)).write(), ZERO)
    assert (synced.view.mark, synced.deadline) == (marks["m"], 20.0)
    assert (synced.partitions, synced.view.more) == (frozenset({P}), True)


def test_mark_without_deadline_uses_own_scale_down_time(builder: SubscriptionBuilder) -> None:
    view = AssignmentView(Memory(marks={"m": Mark(MarkState.LEAVING, None, "n", 1_003_000)}))
    told = Assignment((P,), write_assignment(view)).write()
    assert builder.given(told, ZERO).deadline is None
    mine = SubscriptionBuilder(builder.assignor, builder.topics, scale_down_s=60)
    assert mine.given(told, ZERO).deadline == 63.0


def test_unreadable_user_data_is_ignored_and_bad_frame_refused(
    builder: SubscriptionBuilder,
) -> None:
    assert builder.given(Assignment((P,), b"\x09\x09").write(), ZERO).view.problem
    with pytest.raises(DataError):
        builder.given(b"\x00", ZERO)
