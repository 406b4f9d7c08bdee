"""Reports on a worker's tasks: roles and lags of all copies, for the member's next join.

Not here: the use of a report (`group/subscription_builder`, the assignor).
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from streamsx.assignor.model import Copy, CopyRole, MemberMetadata
from streamsx.clock import Clock
from streamsx.group import member_events as e
from streamsx.group.session import Session
from streamsx.model import Role, TaskId
from streamsx.tasks.active_task import Active
from streamsx.tasks.group_gateway import GroupGateway
from streamsx.tasks.state_machine import TaskState
from streamsx.tasks.task_registry import TaskRegistry
from streamsx.tasks.task_stores import TaskStores
from streamsx.topology.nodes import SubTopology

STALLED_S = 60.0
"""Time without progress after which a learner is reported as stalled."""
FOLLOWS_AS: Final = {Role.LEARNER: CopyRole.LEARNER, Role.STANDBY: CopyRole.STANDBY}
RESTORES = frozenset({TaskState.OPENING, TaskState.PLACED, TaskState.OPENED, TaskState.RESTORING})


class TaskReports:
    """Reports on one worker's tasks.

    Attributes:
        assigned: whether the group has assigned tasks, maybe none, to this worker.
        restored: set once the first tasks of this worker run.

    Args:
        registry: tasks held here, and their states.
        actives: active tasks.
        stores: lags of the tasks' stores.
        gateway: has the tasks whose stop the group does not know yet.
        session: takes the report.
        plans: sub-topologies by number.
        lag_max: lag at which a learner is ready.
        clock: time of the worker.
    """

    def __init__(
        self,
        *,
        registry: TaskRegistry,
        actives: Mapping[TaskId, Active],
        stores: TaskStores,
        gateway: GroupGateway,
        session: Session,
        plans: Mapping[int, SubTopology],
        lag_max: int,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._actives = actives
        self._stores = stores
        self._gateway = gateway
        self._session = session
        self._plans = plans
        self._lag_max = lag_max
        self._clock = clock
        self.assigned = False
        self.restored = asyncio.Event()
        self._foreign: frozenset[TaskId] = frozenset()
        """Tasks that a leader with other code asks this worker to learn, and that its app lacks."""
        self._stops_app = ""
        self._lags: dict[TaskId, tuple[int, float]] = {}
        """Least lag of each learner, and the time since when."""

    def foreign_of(self, tasks: Iterable[TaskId]) -> frozenset[TaskId]:
        """Return the tasks that this worker's app lacks."""
        return frozenset(task for task in tasks if task.subtopology not in self._plans)

    def note_foreign(self, learners: Iterable[TaskId]) -> frozenset[TaskId]:
        """Note and return the learners of a new assignment that this worker's app lacks."""
        self._foreign = self.foreign_of(learners)
        return self._foreign

    def publish(self) -> None:
        """Publish the roles and lags of all copies as of now, for the next join.

        The control thread reads this report for each join. Report lag 0 for tasks this worker
        cannot learn, so that their owner does not wait to hand them over.
        """
        copies = {t: Copy(CopyRole.DORMANT, lag) for t, lag in self._stores.on_disk.items()}
        copies |= dict.fromkeys(self._foreign, Copy(CopyRole.LEARNER, 0))
        registry = self._registry
        now = self._clock.now()
        learning = set()
        for task in registry.tasks():
            alive = registry.of(task)
            lag = self._stores.lag(task)
            if alive.role.follows and not alive.state.ends:
                if alive.state is TaskState.TAILING:
                    lag = min(lag or 0, self._lag_max)  # announced as ready: must not flicker
                elif alive.role is Role.LEARNER:  # a standby waits for all others, not stalled
                    learning.add(task)
                    self._note_lag(task, lag, now)
                copies[task] = Copy(FOLLOWS_AS[alive.role], lag)
            elif alive.state in RESTORES and self._plans[task.subtopology].stateful:
                copies[task] = Copy(CopyRole.RESTORING, lag)
        self._lags = {task: noted for task, noted in self._lags.items() if task in learning}
        starting = (registry.of(task).role is Role.ACTIVE for task in registry.tasks(*RESTORES))
        if self.assigned and not any(starting):
            self.restored.set()
        stalled = (t for t, (_, since) in self._lags.items() if now - since > STALLED_S)
        stopped = {t: self._actives[t].why for t in registry.tasks(TaskState.STOPPED)}
        self._session.builder.report = MemberMetadata(
            "",
            copies=copies,
            stalled=frozenset(stalled),
            stopped=frozenset(stopped),
            reasons=stopped,
            stops_app=self._stops_app,
        )
        while self._gateway.stopped:  # needs a round: the group shows only reports from joins
            self._session.post(e.Want(f"task {self._gateway.stopped.pop()} stopped"))

    def stop_app(self, why: str) -> None:
        """Ask all workers of the app to end, with this join and all later ones."""
        self._stops_app = " ".join(why.split())  # one line in the logs of all
        self.publish()
        self._session.post(e.Want("the app stops"))

    def _note_lag(self, task: TaskId, lag: int | None, now: float) -> None:
        """Note the time at which the lag of a learner last fell to a new minimum."""
        least, _ = self._lags.get(task, (None, now))
        if lag is not None and (least is None or lag < least):
            self._lags[task] = lag, now
