"""Which partitions of each task are ours: a member's words, which are of partitions, as words of
tasks.

A task is all its partitions, or what is there of them. They change under a task where a topic
grows or goes: "topics a of 4 partitions and b of 2 in one sub-topology without state; 0_2 runs on
a-2 alone; b grows to 4, and the member is given b-2". So a task keeps running while nothing of it
changes, and with every other set of partitions it begins anew: `TasksAssigned` of a task that is
ours, `Revoked` and `TasksLost` with what is `kept`.

Not here: what begins anew, and how (`reconcile`).
"""

from collections.abc import Callable, Iterable

from streamsx.model import TaskId, TopicPartition
from streamsx.tasks.task_registry import Revoked, TasksAssigned, TasksLost

PartitionSet = frozenset[TopicPartition]
NONE: PartitionSet = frozenset()


class TaskPartitions:
    """Of one worker. `task_of`: None for a partition of no task, which is passed over."""

    def __init__(self, task_of: Callable[[TopicPartition], TaskId | None]) -> None:
        self._task_of = task_of
        self._owned: dict[TaskId, PartitionSet] = {}
        self._asked: dict[TaskId, dict[int, PartitionSet]] = {}
        """Wanted back and not released: by task, and by number of the revoke."""

    def of(self, task: TaskId) -> PartitionSet:
        """What a task that begins now has to read."""
        return self._owned.get(task, NONE)

    def assigned(self, tps: Iterable[TopicPartition]) -> TasksAssigned:
        """These became ours."""
        by_task = self._by_task(tps)
        for task, some in by_task.items():
            assert not some & self.of(task), f"assigned twice: {sorted(some)}"
            self._owned[task] = self.of(task) | some
        return TasksAssigned(frozenset(by_task))

    def revoked(self, tps: Iterable[TopicPartition], number: int) -> Revoked:
        """The group wants these back. They stay ours until they are released."""
        by_task = self._by_task(tps)
        for task, some in by_task.items():
            self._asked.setdefault(task, {})[number] = some
        return Revoked(frozenset(by_task), number, self._kept(by_task))

    def foreign(self, tps: Iterable[TopicPartition]) -> PartitionSet:
        """Of no task: a leader with other code has given them, and nothing of ours has to end."""
        return frozenset(tp for tp in tps if self._task_of(tp) is None)

    def released(self, task: TaskId, number: int) -> list[tuple[PartitionSet, int]]:
        """The task has stopped: what answers the revokes of up to this number."""
        asked = self._asked.get(task, {})
        free = [(asked.pop(known), known) for known in sorted(asked) if known <= number]
        self._drop(task, NONE.union(*(some for some, _ in free)))
        return free

    def lost(self, tps: Iterable[TopicPartition]) -> TasksLost:
        by_task = self._by_task(tps)
        for task, some in by_task.items():
            self._drop(task, some)
        return TasksLost(frozenset(by_task), self._kept(by_task))

    def _kept(self, tasks: Iterable[TaskId]) -> frozenset[TaskId]:
        """Those of which something is ours, and not wanted back."""
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
