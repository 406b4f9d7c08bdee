"""Stores on the disk that belong to no task held here, and their lags.

A task without an owner goes to the member with the nearest copy, so a reported lag must be true at
the time of the report. The race: m1 gives 1_0 to m2 and keeps the store, 0 records behind; m2
writes for five minutes and is killed; m1 still reports 0, and is preferred to m3, which has really
followed. So the worker asks for the ends again and again, as long as there are such stores.

Not here: opening the stores (`store_opener`), the use of a copy (the assignor).
"""

import asyncio
from collections.abc import Callable, Mapping

from streamsx.client.admin import Bounds
from streamsx.journal import LOG
from streamsx.model import TaskId, TopicPartition
from streamsx.state.api import Rows
from streamsx.tasks.log_bounds import LogBounds
from streamsx.topology.nodes import SubTopology

LOOK_EVERY_S = 1.0

InactivePositions = Mapping[TopicPartition, int | None]
"""Next offset by each changelog of a task; None where nothing is kept."""


class InactiveStores:
    """Inactive stores of one worker.

    Attributes:
        lags: records behind, of the worst store of each task; None while not known.

    Args:
        bounds: source of the changelogs' bounds.
        changed: called after each look at the ends.
    """

    def __init__(self, bounds: LogBounds, changed: Callable[[], None]) -> None:
        self.lags: dict[TaskId, int | None] = {}
        self._bounds = bounds
        self._changed = changed
        self._positions: dict[TaskId, InactivePositions] = {}
        self._some = asyncio.Event()

    async def begin(self, leftovers: Mapping[TaskId, InactivePositions]) -> None:
        """Add the stores that earlier processes left on the disk, and find out their lags."""
        for task, positions in leftovers.items():
            self.add(task, positions, None)
        if leftovers:
            await self.look()

    def add(self, task: TaskId, positions: InactivePositions, lag: int | None) -> None:
        """Add a task whose stores were closed with this lag."""
        self._positions[task] = positions
        self.lags[task] = lag
        self._some.set()

    def remove(self, task: TaskId) -> None:
        """Remove a task whose stores are opened or deleted."""
        self._positions.pop(task, None)
        self.lags.pop(task, None)

    async def watch(self) -> None:
        """Ask for the ends every LOOK_EVERY_S, until cancelled."""
        while True:
            if not self._positions:
                self._some.clear()
                await self._some.wait()
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Ask for the ends as of now, and update the lags.

        If a leader does not answer, the lag is None until the next look: a log that the worker may
        never need must neither hold up nor end the worker.
        """
        asked = dict(self._positions)
        wanted = {tp for tps in asked.values() for tp in tps}
        bounds, why = await self._bounds.look(wanted)
        if why is not None:
            LOG.debug("ends of changelogs: %s", why)
        for task, positions in asked.items():
            if self._positions.get(task) is positions:
                known = bounds.keys() >= positions.keys()
                lags = [behind(at, bounds[tp]) for tp, at in positions.items() if known]
                self.lags[task] = max(lags, default=None)
        self._changed()


def kept(
    plan: SubTopology, partition: int, rows: Mapping[str, Rows]
) -> dict[TopicPartition, int | None]:
    """Return the position of each of a task's stores, by changelog.

    The position is None for a store that is not on the disk or not open.
    """
    logs = plan.changelogs(partition)
    open_ = {node.name for node in plan.stores if node.persistent} & rows.keys()
    return {tp: rows[name].position() if name in open_ else None for name, tp in logs.items()}


def behind(position: int | None, bounds: Bounds) -> int:
    """Return the number of records that a store at this position has to read.

    A store without a usable position has to read the whole changelog.
    """
    start, end = bounds
    usable = position is not None and start <= position <= end
    return end - position if usable and position is not None else end - start
