"""Gateway from the tasks to the group member: takes tasks, passes partitions on, never waits.

Not here: the member's requests to the coordinator (`group`).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from streamsx.assignor.model import Copy, CopyRole
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor
from streamsx.client.transactional_id import TransactionIdentity
from streamsx.group import member_events as e
from streamsx.group.session import Session
from streamsx.model import Offsets, TaskId
from streamsx.tasks.rebalance_listeners import ListenerCalls
from streamsx.tasks.task_partitions import TaskPartitions


class GroupGateway:
    """Gateway of one worker to the group member.

    Attributes:
        owned: partitions of each task.
        generation: that of the newest plan.
        leaving: whether the member is leaving the group.
        leave_by: deadline of the leave, in seconds of the clock; None without one.
        stopped: tasks whose stop the group does not know yet.
    """

    def __init__(
        self, session: Session, assignor: StreamsPartitionAssignor, listening: ListenerCalls
    ) -> None:
        self._session = session
        self._listening = listening
        self.owned = TaskPartitions(assignor.task_of)
        self.generation = -1
        self.leaving = False
        self.leave_by: float | None = None
        self.stopped: list[TaskId] = []

    def released(self, task: TaskId, number: int, on_disk: Mapping[TaskId, int | None]) -> None:
        """Release the partitions of a task, up to a revoke's number, after the app's callbacks.

        Report the copy that stays on this disk first: in the round that this release causes, the
        leader chooses a follower of the task.

        Args:
            task: the task that has stopped.
            number: that of the newest revoke to answer.
            on_disk: lag by task, for tasks with stores on this disk; None where not known yet.
        """
        builder = self._session.builder
        if task in on_disk:
            left = Copy(CopyRole.DORMANT, on_disk[task])
            builder.report = replace(builder.report, copies={**builder.report.copies, task: left})
        for tps, asked in self.owned.released(task, number):
            self._listening.revoked(tps, partial(self._free, e.Released(tps, asked)))

    def _free(self, message: e.Released, _: float) -> None:
        self._session.post(message)

    def ready(self) -> None:
        """Announce that a learner may be made active."""
        self._session.post(e.Ready())

    def commit(
        self, number: int, offsets: Offsets, transaction: TransactionIdentity | None = None
    ) -> None:
        """Commit offsets under a number, in the generation of the newest plan.

        With a transaction they are staged there.
        """
        self._session.post(e.Commit(number, offsets, self.generation, transaction))
