"""Stores on the disk that belong to no task held here, and how far behind they are now.

A task that nobody runs goes to whoever has the nearest copy, so what is told of one must be true
when it is told. "m1 gives 1_0 to m2 and keeps the store, 0 records behind; m2 writes for five
minutes and is killed; m1 still says 0": it would be preferred to m3, which has really followed. So
the ends are asked for again and again, for as long as there are such stores.

Not here: what is on the disk (`stores`), what a copy is good for (the assignor).
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

DormantPositions = Mapping[TopicPartition, int | None]
"""Next offset by each changelog of a task; None where nothing is kept."""


class InactiveStores:
    """Of one worker. `lags`: records behind, of the worst store; None: not known yet. `changed` is
    called when they are others.
    """

    def __init__(self, bounds: LogBounds, changed: Callable[[], None]) -> None:
        self.lags: dict[TaskId, int | None] = {}
        self._bounds, self._changed = bounds, changed
        self._positions: dict[TaskId, DormantPositions] = {}
        self._some = asyncio.Event()

    async def begin(self, leftovers: Mapping[TaskId, DormantPositions]) -> None:
        """What earlier processes left on the disk, and how far behind it is."""
        for task, positions in leftovers.items():
            self.add(task, positions, None)
        if leftovers:
            await self.look()

    def add(self, task: TaskId, positions: DormantPositions, lag: int | None) -> None:
        """Its stores were closed, so far behind."""
        self._positions[task], self.lags[task] = positions, lag
        self._some.set()

    def remove(self, task: TaskId) -> None:
        """Its stores are opened, or deleted."""
        self._positions.pop(task, None)
        self.lags.pop(task, None)

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            if not self._positions:
                self._some.clear()
                await self._some.wait()
            await asyncio.sleep(LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Ask for the ends as of now. What a leader does not tell is not known until the next look:
        no worker is held up, or ended, by a log that it may never need.
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
    """Positions of a task's stores: of those that are on the disk and open."""
    logs = plan.changelogs(partition)
    open_ = {node.name for node in plan.stores if node.persistent} & rows.keys()
    return {tp: rows[name].position() if name in open_ else None for name, tp in logs.items()}


def behind(position: int | None, bounds: Bounds) -> int:
    """Records that a store at this position has to read: all, if what it has cannot be used."""
    start, end = bounds
    usable = position is not None and start <= position <= end
    return end - position if usable and position is not None else end - start
