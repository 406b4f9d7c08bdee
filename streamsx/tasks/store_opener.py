"""Opening and closing of the tasks' stores: their folders, their memory, damaged stores.

An open holds the GIL for some 5 ms. After a SIGKILL an open also replays RocksDB's log, 130-400 ms.
So left-over stores are opened and closed once before the worker joins the group; an open during
work finds no log then.

Not here: the meaning of a store's position, the time at which a task needs the stores.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import closing
from pathlib import Path

from streamsx.clock import Clock
from streamsx.errors import STORE_FAULTS, StoreCorrupt, StoreLocked, StreamsxError
from streamsx.journal import Journal
from streamsx.model import TaskId, TopicPartition
from streamsx.state.api import Rows
from streamsx.state.directory import StateDirectory
from streamsx.state.layout import StoreNode, refuse_other_types
from streamsx.state.memory import MemoryRows
from streamsx.tasks.inactive_stores import InactivePositions
from streamsx.topology.nodes import SubTopology

LOCKED_RETRY_S = 0.25
LOCKED_MAX_S = 5.0
CLOSE_MAX_S = 30.0

OpenRows = Callable[[Path, str], Rows]
"""Function that opens the rows in a folder, with their layout. Raises StoreLocked, StoreCorrupt,
IncompatibleStore.
"""


class StoreOpener:
    """Opener of one worker's stores; also closes them.

    Args:
        subtopologies: sub-topologies of the app, with their stores.
        partitions: partition count of each topic.
        open_rows: opens the rows of persistent stores.
        directory: folders of the stores.
        executor: threads that flush and close stores.
        journal: receives errors that need no action.
        clock: time of the worker.
    """

    def __init__(
        self,
        *,
        subtopologies: Iterable[SubTopology],
        partitions: Mapping[str, int],
        open_rows: OpenRows,
        directory: StateDirectory,
        executor: Executor,
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._journal = journal
        self._directory = directory
        self._open_rows = open_rows
        self._executor = executor
        self._nodes = {node.name: (plan, node) for plan in subtopologies for node in plan.stores}
        self._partitions = partitions

    async def open(self, task: TaskId, node: StoreNode) -> Rows:
        """Open one store and return the rows.

        A damaged store is moved away once, and a new one is opened empty.

        Raises:
            StoreLocked: another process has held the store for LOCKED_MAX_S.
            StoreCorrupt: the new store is damaged too.
            IncompatibleStore: the store has another layout.
        """
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
                what = (
                    f"{error}: moved to {kept}, restoring it from its changelog; no action needed"
                )
                self._journal("error", what=what, where=f"store {node.name} of task {task}")
                return self._open(path, node)

    def _open(self, path: Path, node: StoreNode) -> Rows:
        return self._open_rows(path, node.layout(self._partitions[node.changelog]))

    async def close(self, task: TaskId, rows: Mapping[str, Rows]) -> None:
        """Flush and close the stores of a task on another thread.

        A store that is not closed after CLOSE_MAX_S is given up and logged.

        Raises:
            DescriptorsUsedUp, DiskFailed, StoreCorrupt, StoreLocked: the error of the first store
                that could not be flushed, raised after all are closed.
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

    def leftovers(self) -> Mapping[TaskId, InactivePositions]:
        """Open, flush and close the stores of this app that earlier processes left.

        Returns:
            The position of each store, by task and changelog.

        Raises:
            IncompatibleStore: the types of a table no longer fit the rows.
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
            logs = plan.changelogs(partition)
            task = TaskId(plan.number, partition)
            positions = found.setdefault(task, dict.fromkeys(logs.values()))
            positions[logs[name]] = position
        return found
