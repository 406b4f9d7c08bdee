"""Cleanup of stores that no task of this worker has used for `state_cleanup_delay`.

Not here: the time of a cleanup (`worker/worker`), stores of tasks held here (`store_opener`).
"""

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from streamsx.clock import Clock
from streamsx.journal import LOG
from streamsx.model import TaskId
from streamsx.state.directory import StateDirectory
from streamsx.tasks.task_registry import TaskRegistry
from streamsx.topology.nodes import SubTopology


class StoreCleanup:
    """Cleanup of one worker's state directory.

    Args:
        subtopologies: sub-topologies of the app, with their stores.
        directory: folders of the stores.
        executor: threads that delete folders.
        delay_s: time for which a store is unwanted before the delete.
        clock: time of the worker.
    """

    def __init__(
        self,
        *,
        subtopologies: Iterable[SubTopology],
        directory: StateDirectory,
        executor: Executor,
        delay_s: float,
        clock: Clock,
    ) -> None:
        self._numbers = {node.name: plan.number for plan in subtopologies for node in plan.stores}
        self._directory = directory
        self._executor = executor
        self._delay_s = delay_s
        self._clock = clock
        self._unwanted: dict[tuple[str, int], float] = {}
        """Stores of tasks that are not held here, and the time since when."""

    async def run(self, held: TaskRegistry, gone: Callable[[TaskId], None]) -> None:
        """Delete stores that were unwanted for the whole delay, one by one, on another thread.

        Args:
            held: tasks of this worker, whose stores stay.
            gone: called with the task of each store that is deleted.
        """
        now = self._clock.now()
        tasks = {
            (name, partition): TaskId(self._numbers[name], partition)
            for name, partition in list(self._directory.stores())
            if name in self._numbers
        }
        unwanted = (key for key, task in tasks.items() if task not in held)
        self._unwanted = {key: self._unwanted.get(key, now) for key in unwanted}
        loop = asyncio.get_running_loop()
        for (name, partition), since in sorted(self._unwanted.items()):
            task = tasks[name, partition]
            if now - since < self._delay_s or task in held:
                continue  # the task may be assigned during the delete of another store
            kept = self._directory.discard(self._directory.store(name, partition))
            gone(task)
            LOG.info(
                "Deleted the local copy of store %s, partition %d: no task here has used it for "
                "%.0f s; no action needed.",
                name, partition, self._delay_s,
            )  # fmt: skip
            await loop.run_in_executor(self._executor, self._directory.delete, kept)
            del self._unwanted[name, partition]
