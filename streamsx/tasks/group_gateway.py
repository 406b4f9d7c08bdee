"""The way from the tasks to the member: tasks inside, partitions outside. Nothing of it waits.

Not here: what the member says (`group`).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from streamsx.assignor.model import Copy, CopyRole
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor
from streamsx.group import member_events as e
from streamsx.group.session import Session
from streamsx.model import TaskId
from streamsx.tasks.rebalance_listeners import ListenerCalls
from streamsx.tasks.task_partitions import TaskPartitions


class GroupGateway:
    """`generation`: of the newest plan; `stopped`: tasks of which the group has to hear yet;
    `leaving`: its member is on its way out, `leave_by` when, if that has an end.
    """

    def __init__(
        self, session: Session, assignor: StreamsPartitionAssignor, listening: ListenerCalls
    ) -> None:
        self._session, self._listening = session, listening
        self.owned = TaskPartitions(assignor.task_of)
        self.generation, self.leaving = -1, False
        self.leave_by: float | None = None
        self.stopped: list[TaskId] = []

    def released(self, task: TaskId, number: int, on_disk: Mapping[TaskId, int | None]) -> None:
        """With the copy that is left, where it is `on_disk`: the round that this release makes is
        the one in which somebody is chosen to follow the task."""
        seat = self._session.seat
        if task in on_disk:
            left = Copy(CopyRole.DORMANT, on_disk[task])
            seat.report = replace(seat.report, copies={**seat.report.copies, task: left})
        for tps, asked in self.owned.released(task, number):
            self._listening.revoked(tps, partial(self._free, e.Released(tps, asked)))

    def _free(self, told: e.Released, _: float) -> None:
        self._session.post(told)

    def ready(self) -> None:
        self._session.post(e.Ready())

    def commit(self, number: int, offsets: e.Offsets) -> None:
        self._session.post(e.Commit(number, offsets, self.generation))
