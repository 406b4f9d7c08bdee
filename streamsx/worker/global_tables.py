"""Global tables of a worker: all partitions of their topics, read before the first task runs.

The topics are read on while tasks run, beside the tasks on the same event loop. The rows are in
memory, and are read anew at each start: a global table is small enough for each worker to have it
whole.

Not here: the look-ups of operators (`streamsx.operators.table`).
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Final

from streamsx.client import admin
from streamsx.client.fetcher import Fetcher, limits_of
from streamsx.journal import LOG
from streamsx.model import TopicPartition
from streamsx.processing.batch import Batch
from streamsx.state.global_store import GlobalStore
from streamsx.state.memory import MemoryRows
from streamsx.tasks.failure_reports import tell_damaged
from streamsx.tasks.worker_context import WorkerContext

OBJECTS_SHARE: Final = 0.05
"""Share of the memory budget for the decoded values of all global tables."""
TOLD_EVERY_S: Final = 10.0


class GlobalTables:
    """Stores of the global tables of an app, and the reader of their topics.

    `partitions` are the partition counts of all topics.
    """

    def __init__(self, context: WorkerContext, partitions: Mapping[str, int]) -> None:
        nodes = context.topology.tables
        budget = int(context.config.memory_budget_bytes * OBJECTS_SHARE) // max(1, len(nodes))
        self.stores = {
            name: GlobalStore(node, MemoryRows(), budget) for name, node in nodes.items()
        }
        self._of_topic: dict[str, list[GlobalStore]] = {}
        for name, node in nodes.items():
            self._of_topic.setdefault(node.changelog, []).append(self.stores[name])
        self._tps = [
            TopicPartition(topic, n) for topic in self._of_topic for n in range(partitions[topic])
        ]
        self._cluster = context.cluster
        self._spawn = context.owner.spawn
        self._arrived = asyncio.Event()
        self._filled = asyncio.Event()
        self._left: dict[TopicPartition, int] = {}
        """Partitions that are not read to the end that they had at the start, and that end."""
        damaged = partial(tell_damaged, context.journal)
        _, limits = limits_of(context.config)
        self._fetcher = Fetcher(
            context.cluster, context.clock, "global tables", limits,
            self._arrived.set, self._cut, damaged,
        )  # fmt: skip

    async def fill(self) -> None:
        """Read each topic to its present end; jobs go on reading until the worker ends."""
        if not self.stores:
            return
        await self._cluster.follow(set(self._of_topic))
        bounds = await admin.bounds(self._cluster, self._tps, committed=True)
        for tp, each in bounds.items():
            if each.start < each.high_watermark:
                self._left[tp] = each.high_watermark
            self._fetcher.add(tp, each.start)
        _ = self._spawn(self._fetcher.run(), name="fetch global tables")
        _ = self._spawn(self._follow(), name="read global tables")
        while self._left:
            try:
                async with asyncio.timeout(TOLD_EVERY_S):
                    await self._filled.wait()
            except TimeoutError:
                LOG.info("global tables are being read: %s", ", ".join(map(str, self._left)))

    async def _follow(self) -> None:
        """Apply records as they come."""
        while True:
            self._arrived.clear()
            for tp in self._tps:
                while (batch := self._fetcher.take(tp)) is not None:
                    self._apply(tp, batch)
                    await asyncio.sleep(0)
            if not self._left:
                self._filled.set()
            await self._arrived.wait()

    def _apply(self, tp: TopicPartition, batch: Batch) -> None:
        keys, values = batch.keys, batch.values
        if batch.unreadable:
            read = [n for n in range(len(keys)) if batch.error(n) is None]
            LOG.warning("global table: %d records of %s are unreadable", len(keys) - len(read), tp)
            keys = [keys[n] for n in read]
            values = [values[n] for n in read]
        for store in self._of_topic[tp.topic]:
            store.apply(keys, values)
        if batch.next_offset >= self._left.get(tp, batch.next_offset + 1):
            del self._left[tp]

    def _cut(self, tp: TopicPartition, offset: int) -> None:
        """Go on at the start of a log that does not have an offset any more."""
        LOG.warning("global table: %s has no offset %d: it is read from its start", tp, offset)
        _ = self._spawn(self._begin_again(tp), name=f"read {tp} again")

    async def _begin_again(self, tp: TopicPartition) -> None:
        bounds = await admin.bounds(self._cluster, [tp], committed=True)
        if tp in self._left:
            self._left[tp] = bounds[tp].high_watermark
        self._fetcher.add(tp, bounds[tp].start)
