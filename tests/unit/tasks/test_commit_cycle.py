"""tasks/commit_cycle.py: the order of a commit, and what happens to it in a rebalance."""

from collections.abc import Sequence

import pytest

from streamsx.errors import InvalidTransition
from streamsx.model import OffsetAndMetadata, TaskId, TopicPartition
from streamsx.processing.task import TaskMetadata
from streamsx.protocol.commit_metadata import TEXT_BYTES_MAX, OffsetMetadata
from streamsx.tasks.commit_cycle import (
    Adopt,
    Arrived,
    CommitCycles,
    CommitOffsets,
    CommitState,
    Due,
    Effect,
    Event,
    Flush,
    Flushed,
    OffsetsCommitted,
    ReadersLeftOut,
    Suspended,
    SuspendedSettled,
    TaskLost,
    TaskPutOff,
    TaskSealed,
    TaskWhole,
    TaskWritten,
    TransactionEnded,
    metadata_of,
    place_of,
)
from streamsx.topology.time_links import Writer

A, B = TaskId(0, 0), TaskId(0, 1)
SEALED = TaskMetadata({"t": 5}, 1, 5)
NOBODY = frozenset[TaskId]()
GIVEN = OffsetAndMetadata(5, OffsetMetadata(1).encode())
"""Commit of SEALED."""


def run(machine: CommitCycles, *events: Event) -> Sequence[Effect]:
    effects: Sequence[Effect] = []
    for event in events:
        effects = machine.step(0.0, event)
    return effects


def test_stores_are_written_only_after_kafka_has_the_offsets() -> None:
    commits = CommitCycles()
    assert (run(commits, Due(frozenset({B, A}))), commits.sealing) == ([], A)
    assert (run(commits, TaskSealed(A, SEALED)), commits.sealing) == ([], B)
    assert (run(commits, TaskSealed(B, SEALED)), commits.sealing) == ([Flush()], None)
    assert run(commits, Flushed()) == [
        CommitOffsets({TopicPartition("t", 0): GIVEN, TopicPartition("t", 1): GIVEN})
    ]
    assert run(commits, OffsetsCommitted(NOBODY)) == [Adopt({A: SEALED, B: SEALED})]
    assert commits.unwritten == [A, B]
    run(commits, TaskWritten(A), TaskWritten(B))
    assert commits.state is CommitState.IDLE


def test_commit_carries_its_wall_time() -> None:
    commits = CommitCycles()
    run(commits, Due(frozenset({A})), TaskSealed(A, SEALED))
    (committed,) = run(commits, Flushed(wall_s=1_700_000_000))
    assert isinstance(committed, CommitOffsets)
    ((_, text),) = committed.offsets.values()
    assert OffsetMetadata.decode(text) == OffsetMetadata(1, committed_s=1_700_000_000)


def test_commit_names_the_readers_that_its_text_has_no_room_for() -> None:
    ahead = {f"{reader:08x}": reader for reader in range(1, 400)}
    readers = {reader: 5 + n for reader, n in ahead.items()}
    commits = CommitCycles()
    run(commits, Due(frozenset({A})))
    run(commits, TaskSealed(A, TaskMetadata({"t": 5}, 1, 5, readers={"t": readers})))
    left_out, committed = run(commits, Flushed())
    assert isinstance(left_out, ReadersLeftOut)
    assert isinstance(committed, CommitOffsets)
    ((tp, (offset, text)),) = committed.offsets.items()
    kept = OffsetMetadata.decode(text).readers
    assert (tp, offset, len(text) <= TEXT_BYTES_MAX) == (TopicPartition("t", 0), 5, True)
    assert (left_out.task, left_out.topic) == (A, "t")
    assert {**kept, **left_out.readers} == ahead
    assert max(left_out.readers.values()) < min(kept.values()), "those least ahead repeat least"


def test_commit_due_during_cycle_starts_no_second_cycle() -> None:
    commits = CommitCycles()
    run(commits, Due(frozenset({A})))
    assert run(commits, Due(frozenset({A, B}))) == []


def test_task_that_is_put_off_leaves_the_cycle_to_the_others() -> None:
    commits = CommitCycles()
    run(commits, Due(frozenset({A, B})))
    assert (run(commits, TaskPutOff(A)), commits.sealing) == ([], B)
    assert run(commits, TaskSealed(B, SEALED)) == [Flush()]
    assert run(commits, Flushed()) == [CommitOffsets({TopicPartition("t", 1): GIVEN})]


def test_cycle_whose_only_task_is_put_off_ends() -> None:
    commits = CommitCycles()
    assert run(commits, Due(frozenset({A})), TaskPutOff(A)) == []
    assert commits.state is CommitState.IDLE
    assert (run(commits, Due(frozenset({A}))), commits.sealing) == ([], A)


@pytest.mark.parametrize("steps", range(5))
def test_task_is_sealed_by_itself_in_any_state_and_commits_with_the_next_cycle(steps: int) -> None:
    commits = CommitCycles()
    run(commits, Due(frozenset({A, B})), TaskPutOff(A))
    rest: list[Event] = [TaskSealed(B, SEALED), Flushed(), OffsetsCommitted(NOBODY), TaskWritten(B)]
    run(commits, *rest[:steps])
    run(commits, TaskWhole(A), TaskWhole(A))
    while steps < 1 and commits.sealing != A:
        run(commits, rest.pop(0))
    assert commits.sealing == A
    run(commits, TaskSealed(A, SEALED), *rest[steps:])
    if steps:
        assert commits.state is CommitState.FLUSHING
        assert run(commits, Flushed()) == [CommitOffsets({TopicPartition("t", 0): GIVEN})]
        assert run(commits, OffsetsCommitted(NOBODY)) == [Adopt({A: SEALED})]
    run(commits, TaskWritten(A))
    assert commits.state is CommitState.IDLE


def test_task_that_is_being_sealed_by_itself_joins_the_cycle_that_begins() -> None:
    commits = CommitCycles()
    run(commits, TaskWhole(A), Due(frozenset({A, B})))
    assert (run(commits, TaskSealed(A, SEALED)), commits.sealing) == ([], B)
    assert run(commits, TaskSealed(B, SEALED)) == [Flush()]
    assert set(commits.sealed) == {A, B}


def test_task_that_was_sealed_by_itself_settles_with_its_commit() -> None:
    commits = CommitCycles()
    run(commits, Due(frozenset({B})), TaskSealed(B, SEALED), TaskWhole(A), TaskSealed(A, SEALED))
    assert run(commits, Suspended(A, dirty=False)) == []
    run(commits, Flushed(), OffsetsCommitted(NOBODY), TaskWritten(B), Flushed())
    assert SuspendedSettled(A) in run(commits, OffsetsCommitted(NOBODY))


def test_task_lost_behind_a_seal_of_its_own_commits_nothing() -> None:
    commits = CommitCycles()
    run(commits, Due(frozenset({B})), TaskSealed(B, SEALED), TaskWhole(A), TaskSealed(A, SEALED))
    run(commits, TaskLost(A), Flushed(), OffsetsCommitted(NOBODY), TaskWritten(B))
    assert commits.state is CommitState.IDLE


@pytest.mark.parametrize("event", [TaskLost(A), TaskPutOff(A)])
def test_task_that_is_gone_is_sealed_no_more_in_any_state(event: Event) -> None:
    commits = CommitCycles()
    run(commits, Due(frozenset({B})), TaskSealed(B, SEALED), Flushed(), OffsetsCommitted(NOBODY))
    run(commits, TaskWhole(A), event)
    assert (commits.state, commits.sealing) == (CommitState.WRITING, None)
    run(commits, TaskWritten(B), Due(frozenset({B})))
    assert commits.sealing == B


def test_a_suspended_task_with_nothing_to_commit_is_settled_at_once() -> None:
    assert run(CommitCycles(), Suspended(A, dirty=False)) == [SuspendedSettled(A)]


def test_suspended_task_starts_commit_cycle_and_settles_after_commit() -> None:
    commits = CommitCycles()
    assert (run(commits, Suspended(A, dirty=True)), commits.sealing) == ([], A)
    run(commits, TaskSealed(A, SEALED), Flushed())
    assert run(commits, OffsetsCommitted(NOBODY)) == [Adopt({A: SEALED}), SuspendedSettled(A)]


def test_task_suspended_after_seal_settles_with_second_cycle() -> None:
    commits = CommitCycles()
    run(commits, Due(frozenset({A, B})), TaskSealed(A, SEALED), TaskSealed(B, SEALED))
    assert run(commits, Suspended(A, dirty=True)) == []
    assert SuspendedSettled(A) not in run(commits, Flushed(), OffsetsCommitted(NOBODY))
    run(commits, TaskWritten(A))
    assert (run(commits, TaskWritten(B)), commits.sealing) == ([], A)
    run(commits, TaskSealed(A, SEALED), Flushed())
    assert SuspendedSettled(A) in run(commits, OffsetsCommitted(NOBODY))


def test_task_suspended_before_seal_settles_with_running_cycle() -> None:
    commits = CommitCycles()
    run(commits, Due(frozenset({A, B})), Suspended(B, dirty=True))
    run(commits, TaskSealed(A, SEALED), TaskSealed(B, SEALED), Flushed())
    assert SuspendedSettled(B) in run(commits, OffsetsCommitted(NOBODY))


def test_task_not_owned_at_commit_is_not_adopted_nor_settled() -> None:
    commits = CommitCycles()
    run(commits, Due(frozenset({A, B})), Suspended(A, dirty=False))
    run(commits, TaskSealed(A, SEALED), TaskSealed(B, SEALED), Flushed())
    assert run(commits, OffsetsCommitted(frozenset({A}))) == [Adopt({B: SEALED})]


@pytest.mark.parametrize("again", [False, True])
def test_denied_task_is_not_adopted_and_settles_at_once(*, again: bool) -> None:
    """A second cycle, for records after its seal, would be denied too."""
    commits = CommitCycles()
    run(commits, Due(frozenset({A, B})), Suspended(A, dirty=False))
    run(commits, TaskSealed(A, SEALED), TaskSealed(B, SEALED))
    if again:
        run(commits, Suspended(A, dirty=True))
    run(commits, Flushed())
    denied = run(commits, OffsetsCommitted(NOBODY, frozenset({A})))
    assert denied == [Adopt({B: SEALED}), SuspendedSettled(A)]
    assert run(commits, TaskWritten(B)) == []
    assert commits.state is CommitState.IDLE


@pytest.mark.parametrize("steps", range(5))
def test_lost_task_leaves_commit_cycle_at_any_step(steps: int) -> None:
    commits = CommitCycles()
    script: list[Event] = [
        Due(frozenset({A, B})),
        TaskSealed(A, SEALED),
        TaskSealed(B, SEALED),
        Flushed(),
        OffsetsCommitted(NOBODY),
    ]
    run(commits, *script[: steps + 1], TaskLost(A))
    run(commits, *(e for e in script[steps + 1 :] if e != TaskSealed(A, SEALED)))
    run(commits, TaskWritten(B))
    assert commits.state is CommitState.IDLE
    assert run(commits, Suspended(A, dirty=False)) == [SuspendedSettled(A)]


def test_cycle_with_only_lost_tasks_ends_without_commit() -> None:
    commits = CommitCycles()
    run(commits, Due(frozenset({A})), TaskSealed(A, SEALED), TaskLost(A))
    assert run(commits, Flushed()) == []
    assert commits.state is CommitState.IDLE


def test_task_with_blocked_output_is_held_and_other_tasks_commit() -> None:
    commits = CommitCycles()
    run(commits, Due(frozenset({A, B})), TaskSealed(A, SEALED), TaskSealed(B, SEALED))
    assert run(commits, Flushed(frozenset({A}))) == [CommitOffsets({TopicPartition("t", 1): GIVEN})]
    run(commits, OffsetsCommitted(NOBODY), TaskWritten(B))
    assert (commits.state, commits.held) == (CommitState.IDLE, {A})
    run(commits, Due(frozenset({A, B})))
    assert commits.sealing is B
    run(commits, Arrived(A), TaskSealed(B, SEALED), Flushed(), OffsetsCommitted(NOBODY))
    run(commits, TaskWritten(B), Due(frozenset({A})))
    assert commits.sealing is A


def test_cycle_with_all_tasks_held_ends_without_commit() -> None:
    commits = CommitCycles()
    run(commits, Due(frozenset({A})), TaskSealed(A, SEALED))
    assert run(commits, Flushed(frozenset({A}))) == []
    assert commits.state is CommitState.IDLE
    assert run(commits, Due(frozenset({A}))) == []
    assert commits.state is CommitState.IDLE


@pytest.mark.parametrize("early", [False, True], ids=["held first", "wanted back first"])
def test_revoked_held_task_commits_as_soon_as_output_resumes(*, early: bool) -> None:
    """The first cycle settles when Kafka has its sealed rows, whatever the task has done since."""
    commits, revoke = CommitCycles(), Suspended(A, dirty=False)
    run(commits, Due(frozenset({A})), TaskSealed(A, SEALED))
    if early:
        assert run(commits, revoke) == []
    run(commits, Flushed(frozenset({A})))
    if not early:
        assert run(commits, revoke) == []
    assert commits.state is CommitState.IDLE
    run(commits, Arrived(A))
    assert commits.sealing is A
    run(commits, TaskSealed(A, SEALED), Flushed())
    assert SuspendedSettled(A) in run(commits, OffsetsCommitted(NOBODY))


def test_held_task_that_is_lost_is_forgotten() -> None:
    commits = CommitCycles()
    run(commits, Due(frozenset({A})), TaskSealed(A, SEALED), Flushed(frozenset({A})), TaskLost(A))
    assert commits.held == set()
    assert run(commits, Suspended(A, dirty=False)) == [SuspendedSettled(A)]


def test_unrequested_commit_answer_raises_invalid_transition() -> None:
    with pytest.raises(InvalidTransition, match=r"Committed.*while idle"):
        run(CommitCycles(), OffsetsCommitted(NOBODY))


def test_tasks_stand_until_nothing_more_can_get_into_the_transaction() -> None:
    commits = CommitCycles(whole=True)
    events: list[Event] = [
        Due(frozenset({A})), TaskSealed(A, SEALED), Flushed(), OffsetsCommitted(NOBODY),
        TransactionEnded(), TaskWritten(A),
    ]  # fmt: skip
    stood = dict[CommitState, bool]()
    for event in events:
        run(commits, event)
        stood[commits.state] = commits.stands
    assert stood == {
        CommitState.SEALING: True, CommitState.FLUSHING: True, CommitState.COMMITTING: False,
        CommitState.ENDING: False, CommitState.WRITING: False, CommitState.IDLE: False,
    }  # fmt: skip


def test_task_that_has_run_behind_the_flush_settles_with_the_next_transaction() -> None:
    commits = CommitCycles(whole=True)
    run(commits, Due(frozenset({A})), TaskSealed(A, SEALED), Flushed(), OffsetsCommitted(NOBODY))
    assert run(commits, Suspended(A, dirty=True)) == []
    assert run(commits, TransactionEnded()) == [Adopt({A: SEALED})]
    assert (run(commits, TaskWritten(A)), commits.wanted) == ([], True)
    run(commits, Due(frozenset({A})), TaskSealed(A, SEALED), Flushed(), OffsetsCommitted(NOBODY))
    assert run(commits, TransactionEnded()) == [Adopt({A: SEALED}), SuspendedSettled(A)]


def test_next_owner_knows_the_event_times_of_writers() -> None:
    told = {"t": {Writer(42, 0): 100, Writer(42, 2): None, Writer(7, 1): 50}}
    sealed = TaskMetadata({"t": 5}, told={"t": {**told["t"], Writer(42, 1): -1}})
    texts = {topic: beside.encode() for topic, beside in metadata_of(sealed).items()}
    found = {topic: (5, OffsetMetadata.decode(text)) for topic, text in texts.items()}
    assert place_of(found).told == told
