"""Stores of the tasks of a worker: opened, filled, restored, closed, and noted as inactive.

Not here: the time of each step (`task_driver`), reads and writes (`restorer`), one store's folder
(`store_opener`).
"""

from collections.abc import Mapping

from streamsx.model import Role, TaskId, TopicPartition
from streamsx.state.api import Rows
from streamsx.state.layout import refuse_other_types
from streamsx.tasks.inactive_stores import InactiveStores, kept
from streamsx.tasks.log_bounds import LogBounds
from streamsx.tasks.restorer import Restorer
from streamsx.tasks.snapshot_restore import SnapshotRestore
from streamsx.tasks.store_opener import StoreOpener
from streamsx.tasks.task_registry import TaskRegistry
from streamsx.topology.nodes import SubTopology


class TaskStores:
    """Stores of all tasks of one worker.

    Args:
        plans: sub-topologies by number.
        opener: opens and closes each store.
        snapshots: fills stores that have no position.
        restorer: replays changelogs.
        inactive: stores on the disk of tasks that are not held.
        bounds: bounds of changelogs.
        registry: tasks held here, and their roles.
    """

    def __init__(
        self,
        *,
        plans: Mapping[int, SubTopology],
        opener: StoreOpener,
        snapshots: SnapshotRestore,
        restorer: Restorer,
        inactive: InactiveStores,
        bounds: LogBounds,
        registry: TaskRegistry,
    ) -> None:
        self._plans = plans
        self._opener = opener
        self._snapshots = snapshots
        self._restorer = restorer
        self._inactive = inactive
        self._bounds = bounds
        self._registry = registry
        self._rows: dict[TaskId, dict[str, Rows]] = {}

    def changelogs(self, task: TaskId) -> dict[str, TopicPartition]:
        """Return the changelog of each store of a task."""
        return self._plans[task.subtopology].changelogs(task.partition)

    def rows(self, task: TaskId) -> Mapping[str, Rows]:
        """Return the open rows of a task, by store."""
        return self._rows[task]

    @property
    def on_disk(self) -> Mapping[TaskId, int | None]:
        """Return the lag of each task with inactive stores on this disk; None where not known."""
        return self._inactive.lags

    async def open(self, task: TaskId) -> None:
        """Open the stores of a task, and fill those without a position from a snapshot."""
        rows = self._rows[task] = dict[str, Rows]()
        self._inactive.remove(task)
        for node in self._plans[task.subtopology].stores:
            opened = rows[node.name] = await self._opener.open(task, node)
            await self._snapshots.fill(task, node, opened, self._bounds, self._registry)

    async def read_ends(self, task: TaskId, role: Role) -> tuple[Role, bool]:
        """Read the ends of a task's changelogs, and set the restore going.

        Returns:
            The role for which the ends count, and whether something is left to restore.
        """
        changelogs = self.changelogs(task)
        if not changelogs:
            return role, False
        bounds = await self._bounds.of(changelogs.values())
        if role.follows and (now := self._registry.of(task).role).follows:
            role = now
        stores = self._plans[task.subtopology].stores
        rows = self._rows[task]
        return role, self._restorer.ends(task, role, stores, changelogs, rows, bounds)

    async def read_again(self, tp: TopicPartition) -> None:
        """Restart the restore of a changelog that was cut; the store knows the position."""
        self._restorer.out_of_range(tp, (await self._bounds.of([tp]))[tp])

    def turned(self, task: TaskId, role: Role) -> None:
        """Go on with the restore of a follower in another role."""
        self._restorer.turned(task, role)

    def lag(self, task: TaskId) -> int | None:
        """Return the lag of a task in records, None for a task that is not restored here."""
        return self._restorer.lag(task)

    def end_restore(self, task: TaskId) -> None:
        """Read nothing more for a task; the stores stay open."""
        self._restorer.remove(task)

    def refuse_other_types(self, task: TaskId) -> None:
        """Check the rows of a task that were restored from changelogs.

        Raises:
            IncompatibleStore: the types of a table do not fit the rows.
        """
        for node in self._plans[task.subtopology].stores:
            refuse_other_types(node, self._rows[task][node.name])

    def being_written(self, task: TaskId) -> None:
        """Note that a task's stores stay on this disk; the rows they lack are being written."""
        if any(node.persistent for node in self._plans[task.subtopology].stores):
            self._inactive.lags[task] = 0

    def note_inactive(self, task: TaskId, lag: int | None) -> None:
        """Note the open stores of a task as inactive; `close` follows."""
        if rows := self._rows.get(task):
            plan = self._plans[task.subtopology]
            self._inactive.add(task, kept(plan, task.partition, rows), lag)

    async def close(self, task: TaskId) -> None:
        """Flush and close the stores of a task."""
        await self._opener.close(task, self._rows.pop(task, {}))
