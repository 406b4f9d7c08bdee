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


def test_a_partition_more_is_of_the_same_task() -> None:
    held = owned(A2, A3)
    assert held.assigned([B2]) == TasksAssigned(tasks(T))
    assert (held.of(T), held.of(U)) == (some(A2, B2), some(A3))


def test_what_is_of_no_task_is_nothing_to_us() -> None:
    other = TopicPartition("x", 0)
    held = owned(A2)
    assert held.assigned([other]) == TasksAssigned(tasks())
    assert held.foreign([A2, other]) == some(other)


def test_a_task_whose_part_is_wanted_back_keeps_the_rest_and_releases_the_part() -> None:
    held = owned(A2, A3, B2)
    assert held.revoked([B2, A3], 7) == Revoked(tasks(T, U), 7, kept=tasks(T))
    assert held.of(T) == some(A2, B2), "ours until it is released"
    assert held.released(T, 7) == [(some(B2), 7)]
    assert held.of(T) == some(A2)


def test_a_task_that_is_wanted_back_piece_by_piece_releases_all_that_was_asked_for() -> None:
    """b-2 is asked for (7); while 0_2 is settled, a-2 is too (8)."""
    held = owned(A2, B2)
    held.revoked([B2], 7)
    assert held.revoked([A2], 8) == Revoked(tasks(T), 8)
    assert held.released(T, 8) == [(some(B2), 7), (some(A2), 8)]
    assert held.of(T) == some()


def test_an_answer_is_no_answer_to_a_later_question() -> None:
    held = owned(A2)
    held.revoked([A2], 8)
    assert held.released(T, 0) == held.released(T, 7) == []
    assert held.of(T) == some(A2)


def test_what_is_lost_is_not_released_any_more() -> None:
    held = owned(A2, B2)
    held.revoked([B2], 7)
    assert held.lost([B2]) == TasksLost(tasks(T), kept=tasks(T))
    assert held.released(T, 7) == []
    assert held.lost([A2]) == TasksLost(tasks(T))
