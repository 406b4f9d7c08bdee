"""tasks/task_partitions.py: partitions come and go, tasks stay whole. At random: test_reconcile."""

from streamsx.model import TaskId, TopicPartition
from streamsx.tasks.task_partitions import TaskPartitions
from streamsx.tasks.task_registry import Revoked, TasksAssigned, TasksLost

T, U = TaskId(0, 2), TaskId(0, 3)
A2, A3, B2 = TopicPartition("a", 2), TopicPartition("a", 3), TopicPartition("b", 2)


def owned(*tps: TopicPartition) -> TaskPartitions:
    made = TaskPartitions(lambda tp: TaskId(0, tp.partition) if tp.topic in "ab" else None)
    made.assigned(tps)
    return made


def some(*tps: TopicPartition) -> frozenset[TopicPartition]:
    return frozenset(tps)


def tasks(*ids: TaskId) -> frozenset[TaskId]:
    return frozenset(ids)


def test_added_partition_joins_the_same_task() -> None:
    held = owned(A2, A3)
    assert held.assigned([B2]) == TasksAssigned(tasks(T))
    assert (held.of(T), held.of(U)) == (some(A2, B2), some(A3))


def test_partition_of_no_task_is_foreign() -> None:
    other = TopicPartition("x", 0)
    held = owned(A2)
    assert held.assigned([other]) == TasksAssigned(tasks())
    assert held.foreign([A2, other]) == some(other)


def test_partly_revoked_task_keeps_rest_and_releases_revoked_part() -> None:
    held = owned(A2, A3, B2)
    assert held.revoked([B2, A3], 7) == Revoked(tasks(T, U), 7, kept=tasks(T))
    assert held.of(T) == some(A2, B2), "ours until it is released"
    assert held.released(T, 7) == [(some(B2), 7)]
    assert held.of(T) == some(A2)


def test_task_revoked_in_steps_releases_all_revoked_partitions() -> None:
    """b-2 is revoked (7); while 0_2 is settled, a-2 is revoked too (8)."""
    held = owned(A2, B2)
    held.revoked([B2], 7)
    assert held.revoked([A2], 8) == Revoked(tasks(T), 8)
    assert held.released(T, 8) == [(some(B2), 7), (some(A2), 8)]
    assert held.of(T) == some()


def test_release_for_earlier_revoke_is_ignored() -> None:
    held = owned(A2)
    held.revoked([A2], 8)
    assert held.released(T, 0) == held.released(T, 7) == []
    assert held.of(T) == some(A2)


def test_lost_partition_is_not_released() -> None:
    held = owned(A2, B2)
    held.revoked([B2], 7)
    assert held.lost([B2]) == TasksLost(tasks(T), kept=tasks(T))
    assert held.released(T, 7) == []
    assert held.lost([A2]) == TasksLost(tasks(T))
