"""Opens and closes the stores of tasks: which folder, what memory, what to do with a damaged one.

Opening holds the GIL for some 5 ms and replays a log that SIGKILL left, 130-400 ms; so left-over
stores are opened and closed once before the group is joined, and an open during work finds no log.

Not here: what a store's position means, when a task wants its stores.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import closing
from pathlib import Path

from streamsx.errors import STORE_FAULTS, StoreCorrupt, StoreLocked, StreamsxError
from streamsx.journal import LOG
from streamsx.model import TaskId, TopicPartition
from streamsx.state.api import Rows
from streamsx.state.layout import StoreNode, refuse_other_types
from streamsx.state.memory import MemoryRows
from streamsx.tasks.inactive_stores import DormantPositions
from streamsx.tasks.snapshot_restore import SnapshotRestore
from streamsx.tasks.task_registry import TaskRegistry
from streamsx.tasks.worker_context import WorkerContext

LOCKED_RETRY_S = 0.25
LOCKED_MAX_S = 5.0
CLOSE_MAX_S = 30.0


class StoreOpener:
    """Of one worker."""

    def __init__(
        self, given: WorkerContext, partitions: Mapping[str, int], executor: Executor
    ) -> None:
        self._clock, self._journal, self._directory = given.clock, given.journal, given.directory
        self._rows, self._executor = given.rows(given.config.memory_budget_bytes), executor
        self._cleanup_delay_s = given.config.state_cleanup_delay_s
        plans = given.topology.subtopologies
        self._nodes = {node.name: (plan, node) for plan in plans for node in plan.stores}
        self._partitions = partitions
        self.snapshots = SnapshotRestore(given, partitions)
        self._unwanted: dict[tuple[str, int], float] = {}
        """Stores of tasks that are not held here, and since when."""

    async def open(self, task: TaskId, node: StoreNode) -> Rows:
        """The rows of one store. Raises StoreLocked, StoreCorrupt, IncompatibleStore."""
        if not node.persistent:
            return MemoryRows()
        path = self._directory.store(node.name, task.partition)
        give_up_at = self._clock.now() + LOCKED_MAX_S
        while True:
            try:
                return self._open(path, node)
            except StoreLocked:
                if self._clock.now() >= give_up_at:
                    raise
                await asyncio.sleep(LOCKED_RETRY_S)
            except StoreCorrupt as error:
                kept = self._directory.discard(path)
                what = f"{error}: moved to {kept}, restoring it from its changelog; nothing to do"
                self._journal("error", what=what, where=f"store {node.name} of task {task}")
                return self._open(path, node)

    def _open(self, path: Path, node: StoreNode) -> Rows:
        return self._rows(path, node.layout(self._partitions[node.changelog]))

    async def close(self, task: TaskId, rows: Mapping[str, Rows]) -> None:
        """Flush and close, off the loop; one that does not end is given up and named.

        Raises what the first said that could not be flushed, when all are closed.
        """
        loop = asyncio.get_running_loop()
        failed: StreamsxError | None = None
        for name, store in rows.items():
            closing = loop.run_in_executor(self._executor, store.close)
            try:
                async with asyncio.timeout(CLOSE_MAX_S):
                    await asyncio.shield(closing)
            except TimeoutError:
                what = f"not closed after {CLOSE_MAX_S:.0f} s, given up: is the disk slow or full?"
                self._journal("error", what=what, where=f"store {name} of task {task}")
            except STORE_FAULTS as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def leftovers(self) -> Mapping[TaskId, DormantPositions]:
        """What earlier processes left of this app's stores, each opened, flushed and closed.

        Raises IncompatibleStore for rows that the types of their table no longer fit.
        """
        found: dict[TaskId, dict[TopicPartition, int | None]] = {}
        for name, partition in list(self._directory.stores()):
            if name not in self._nodes or not self._nodes[name][1].persistent:
                continue
            plan, node = self._nodes[name]
            path = self._directory.store(name, partition)
            try:
                with closing(self._open(path, node)) as rows:
                    position = rows.position()
                    refuse_other_types(node, rows)
            except StoreCorrupt as error:
                self._directory.discard(path)
                self._journal(
                    "error", what=f"{error}: moved away", where=f"store {name}-{partition}"
                )
                continue
            logs, task = plan.changelogs(partition), TaskId(plan.number, partition)
            positions = found.setdefault(task, dict.fromkeys(logs.values()))
            positions[logs[name]] = position
        return found

    async def clean_up(self, held: TaskRegistry, gone: Callable[[TaskId], None]) -> None:
        """Delete stores that have been unwanted for the whole delay, one by one, off the loop.

        `gone` is told of their tasks.
        """
        now = self._clock.now()
        tasks = {
            (name, partition): TaskId(self._nodes[name][0].number, partition)
            for name, partition in list(self._directory.stores())
            if name in self._nodes
        }
        unwanted = (key for key, task in tasks.items() if task not in held)
        self._unwanted = {key: self._unwanted.get(key, now) for key in unwanted}
        loop = asyncio.get_running_loop()
        for (name, partition), since in sorted(self._unwanted.items()):
            task = tasks[name, partition]
            if now - since < self._cleanup_delay_s or task in held:
                continue  # it may have been assigned while the one before was being deleted
            kept = self._directory.discard(self._directory.store(name, partition))
            gone(task)
            LOG.info("store_wiped store=%s partition=%d: nobody wanted it", name, partition)
            await loop.run_in_executor(self._executor, self._directory.delete, kept)
            del self._unwanted[name, partition]
