"""Global tables of a worker: all partitions of their topics, read before the first task runs.

The topics are read on while tasks run, beside the tasks on the same event loop. The rows are in
memory, and are read anew at each start: a global table is small enough for each worker to have it
whole.

Not here: the look-ups of operators (`streamsx.operators.table`).
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.client.fetch_state import FetchLimits
from streamsx.client.fetcher import Fetcher
from streamsx.clock import Clock
from streamsx.journal import LOG, Journal
from streamsx.model import TopicPartition
from streamsx.processing.batch import Batch
from streamsx.state.global_store import GlobalStore
from streamsx.state.layout import StoreNode
from streamsx.state.memory import MemoryRows
from streamsx.tasks.failure_reports import report_damaged

LOG_EVERY_S: Final = 10.0
UNREADABLE: Final = "Skipped %d records of the global table's topic %s: they cannot be read."
READ_AGAIN: Final = "%s has no offset %d any more: its global table is read from the start again."


class GlobalTables:
    """Stores of the global tables of an app, and the reader of their topics.

    Args:
        nodes: stores by name.
        partitions: partition counts of all topics.
        budget_bytes: memory for the decoded values of all tables.
        limits: limits of the fetcher.
        cluster: brokers that have the topics.
        spawn: starts a job that the worker owns.
        journal: events of the worker.
        clock: time of the worker.
    """

    def __init__(
        self,
        *,
        nodes: Mapping[str, StoreNode],
        partitions: Mapping[str, int],
        budget_bytes: int,
        limits: FetchLimits,
        cluster: Cluster,
        spawn: Callable[..., asyncio.Task[None]],
        journal: Journal,
        clock: Clock,
    ) -> None:
        budget = budget_bytes // max(1, len(nodes))
        self.stores = {
            name: GlobalStore(node, MemoryRows(), budget) for name, node in nodes.items()
        }
        self._of_topic: dict[str, list[GlobalStore]] = {}
        for name, node in nodes.items():
            self._of_topic.setdefault(node.changelog, []).append(self.stores[name])
        self._tps = [
            TopicPartition(topic, n) for topic in self._of_topic for n in range(partitions[topic])
        ]
        self._cluster = cluster
        self._spawn = spawn
        self._arrived = asyncio.Event()
        self._filled = asyncio.Event()
        self._left: dict[TopicPartition, int] = {}
        """Partitions that are not read to the end that they had at the start, and that end."""
        damaged = partial(report_damaged, journal)
        wake = self._arrived.set
        self._fetcher = Fetcher(cluster, clock, "global tables", limits, wake, self._cut, damaged)

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
                async with asyncio.timeout(LOG_EVERY_S):
                    await self._filled.wait()
            except TimeoutError:
                LOG.info("Global tables are still being read: %s.", ", ".join(map(str, self._left)))

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
            LOG.warning(UNREADABLE, len(keys) - len(read), tp)
            keys = [keys[n] for n in read]
            values = [values[n] for n in read]
        for store in self._of_topic[tp.topic]:
            store.apply(keys, values)
        if batch.next_offset >= self._left.get(tp, batch.next_offset + 1):
            del self._left[tp]

    def _cut(self, tp: TopicPartition, offset: int) -> None:
        """Go on at the start of a log that does not have an offset any more."""
        LOG.warning(READ_AGAIN, tp, offset)
        _ = self._spawn(self._begin_again(tp), name=f"read {tp} again")

    async def _begin_again(self, tp: TopicPartition) -> None:
        bounds = await admin.bounds(self._cluster, [tp], committed=True)
        if tp in self._left:
            self._left[tp] = bounds[tp].high_watermark
        self._fetcher.add(tp, bounds[tp].start)
