"""Owned partitions of each task: turns the member's events about partitions into events of tasks.

A task reads all its partitions, or those that exist. They change under a task when a topic grows or
goes. Example: topics a with 4 partitions and b with 2 share a sub-topology without state; 0_2 runs
on a-2 alone; b grows to 4, and the member is assigned b-2. So a task keeps running while none of
its partitions changes, and begins anew with any other set: `TasksAssigned` names a task that is
already ours, or `Revoked` and `TasksLost` name a task in `kept`.

Not here: the new begin of a task (`task_registry`).
"""

from collections.abc import Callable, Iterable

from streamsx.model import TaskId, TopicPartition
from streamsx.tasks.task_registry import Revoked, TasksAssigned, TasksLost

PartitionSet = frozenset[TopicPartition]
NONE: PartitionSet = frozenset()


class TaskPartitions:
    """Owned partitions of one worker's tasks.

    Args:
        task_of: returns the task of a partition; None for a partition of no task, which is ignored.
    """

    def __init__(self, task_of: Callable[[TopicPartition], TaskId | None]) -> None:
        self._task_of = task_of
        self._owned: dict[TaskId, PartitionSet] = {}
        self._asked: dict[TaskId, dict[int, PartitionSet]] = {}
        """Partitions that are wanted back and not released, by task and number of the revoke."""

    def of(self, task: TaskId) -> PartitionSet:
        """Return the owned partitions of a task, which the task reads from its next begin on."""
        return self._owned.get(task, NONE)

    def assigned(self, tps: Iterable[TopicPartition]) -> TasksAssigned:
        """Note that these partitions became ours."""
        by_task = self._by_task(tps)
        for task, some in by_task.items():
            assert not some & self.of(task), f"assigned twice: {sorted(some)}"
            self._owned[task] = self.of(task) | some
        return TasksAssigned(frozenset(by_task))

    def revoked(self, tps: Iterable[TopicPartition], number: int) -> Revoked:
        """Note that the group wants these partitions back; they stay ours until released."""
        by_task = self._by_task(tps)
        for task, some in by_task.items():
            self._asked.setdefault(task, {})[number] = some
        return Revoked(frozenset(by_task), number, self._kept(by_task))

    def foreign(self, tps: Iterable[TopicPartition]) -> PartitionSet:
        """Return the partitions of no task, which a leader with other code has assigned.

        No task has to end before their release.
        """
        return frozenset(tp for tp in tps if self._task_of(tp) is None)

    def released(self, task: TaskId, number: int) -> list[tuple[PartitionSet, int]]:
        """Release the partitions of a task that has stopped.

        Returns:
            The partitions and number of each revoke that this answers, up to `number`.
        """
        asked = self._asked.get(task, {})
        free = [(asked.pop(known), known) for known in sorted(asked) if known <= number]
        self._drop(task, NONE.union(*(some for some, _ in free)))
        return free

    def lost(self, tps: Iterable[TopicPartition]) -> TasksLost:
        """Note that these partitions are no longer ours."""
        by_task = self._by_task(tps)
        for task, some in by_task.items():
            self._drop(task, some)
        return TasksLost(frozenset(by_task), self._kept(by_task))

    def _kept(self, tasks: Iterable[TaskId]) -> frozenset[TaskId]:
        """Return the tasks with a partition that is ours and not wanted back."""
        asked = self._asked
        return frozenset(task for task in tasks if self.of(task).difference(*asked[task].values()))

    def _drop(self, task: TaskId, some: PartitionSet) -> None:
        self._owned[task] = self.of(task) - some
        self._asked[task] = {
            number: left
            for number, asked in self._asked.get(task, {}).items()
            if (left := asked - some)
        }

    def _by_task(self, tps: Iterable[TopicPartition]) -> dict[TaskId, PartitionSet]:
        found: dict[TaskId, set[TopicPartition]] = {}
        for tp in sorted(tps):
            if (task := self._task_of(tp)) is not None:
                found.setdefault(task, set()).add(tp)
        return {task: frozenset(some) for task, some in found.items()}
