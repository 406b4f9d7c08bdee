"""Active tasks of a worker: creation out of committed positions and open stores, and their end.

Not here: the time of each step (`task_driver`), feeding (`worker/data_loop`), commits
(`committer`).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from streamsx.client.producer import Producer
from streamsx.client.rejected_batch import SourceRecords
from streamsx.clock import Clock
from streamsx.journal import LOG
from streamsx.model import TaskId, TopicPartition
from streamsx.processing.actor import GatedActor
from streamsx.processing.batch import Chunk
from streamsx.processing.failure_policy import Policy
from streamsx.processing.rerun import Rerun
from streamsx.processing.task import Task
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.state.api import Rows
from streamsx.state.cache import CachedStore
from streamsx.state.factory import make_store
from streamsx.tasks.active_task import Active
from streamsx.tasks.commit_cycle import place_of
from streamsx.tasks.committer import WRITE_ROWS
from streamsx.tasks.processing_gap import ProcessingGap
from streamsx.topology.nodes import SubTopology
from streamsx.topology.time_links import time_links

DELIVERY_S = 2.0
"""Longest wait, while a task begins anew, for the outputs that its next run does not send again."""
CommittedPlace = tuple[int, OffsetMetadata]
"""Committed offset of a partition, and the metadata beside it."""


class ActiveTasks:
    """Active tasks of one worker, which share the memory for decoded objects.

    Attributes:
        running: tasks that run, are suspended or have stopped.
        closing: ended tasks whose stores are not closed yet.

    Args:
        plans: sub-topologies by number.
        tables: global tables by name, which all tasks read.
        partitions: numbers of partitions of the app's topics.
        producer: takes the records that tasks send.
        policy: consequences of records that fail.
        wake: called when there is work for the data loop.
        cache_bytes: memory for decoded objects of all tasks.
        clock: time of the worker.
    """

    def __init__(
        self,
        *,
        plans: Mapping[int, SubTopology],
        tables: Mapping[str, CachedStore],
        partitions: Mapping[str, int],
        producer: Producer,
        policy: Policy,
        wake: Callable[[], None],
        cache_bytes: int,
        clock: Clock,
    ) -> None:
        self._plans = plans
        self._tables = tables
        self._partitions = partitions
        self._producer = producer
        self._policy = policy
        self._wake = wake
        self._cache_bytes = cache_bytes
        self._clock = clock
        self.running: dict[TaskId, Active] = {}
        self.closing: dict[TaskId, Active] = {}

    def run(
        self,
        task: TaskId,
        found: Mapping[str, CommittedPlace],
        rows: Mapping[str, Rows],
        rerun: Rerun,
    ) -> Active:
        """Create a task.

        Args:
            task: the task.
            found: committed place by source topic.
            rows: open rows by store.
            rerun: order of a task that was undone; NO_RERUN for any other.
        """
        plan = part_of(self._plans[task.subtopology], found.keys())
        stores = {node.name: make_store(node, rows[node.name], 0) for node in plan.stores}
        metadata = place_of(found)
        warn_of_newer(plan, task.partition, found)
        start = partial(GatedActor, self._wake)
        origin = Origin(lambda: made.at_hand)
        outbox = self._producer.of(task, origin)
        links = time_links(self._plans.values(), plan, task.partition, self._partitions)
        about = plan, task.partition, stores, outbox, start, self._policy, metadata, rerun
        made = Task(*about, links, self._tables)
        active = self.running[task] = Active(made, ProcessingGap(last=self._clock.now()))
        self._share_cache()
        return active

    def _share_cache(self) -> None:
        """Share the cache's memory equally among the stores of all active tasks."""
        stores = [s for active in self.running.values() for s in active.task.stores.values()]
        for store in stores:
            store.share(self._cache_bytes // len(stores))

    def gaps(self, now: float) -> dict[TaskId, float]:
        """Return the longest gap of each task since the last call, in seconds.

        Stopped tasks, whose bodies have ended, are left out.
        """
        return {t: a.gap.taken(now) for t, a in sorted(self.running.items()) if not a.why}

    def stop(self, task: TaskId) -> None:
        """End the bodies of a task that cannot go on; the task stays ours."""
        halt(self.running[task])
        self._wake()

    def end(self, task: TaskId) -> None:
        """End a task; committed rows may still have to be written before the stores close."""
        active = self.running.pop(task)
        halt(active)
        self.closing[task] = active
        self._share_cache()

    def abort(self, task: TaskId, changelogs: Collection[TopicPartition]) -> None:
        """Drop everything of an ended task that is not committed."""
        self._producer.drop(changelogs)
        if task in self.closing:  # else one of its stores failed before it ran
            self.closing[task].task.aborted()

    async def write_out(self, task: TaskId) -> None:
        """Write all committed rows of an ended task to the stores, in slices."""
        ended = self.closing.pop(task).task
        for store in ended.stores.values():
            store.stop_scans()
        done = False
        while not done:
            done = ended.write_some(WRITE_ROWS)
            await asyncio.sleep(0)

    async def delivered(self) -> bool:
        """Wait until Kafka has all that tasks have sent so far; return False after DELIVERY_S."""
        try:
            async with asyncio.timeout(DELIVERY_S):
                await self._producer.flush()
        except TimeoutError:
            return False
        return True

    def forget(self, task: TaskId) -> None:
        """Forget the records of a task that the producer still counts."""
        self._producer.forget(task)


def halt(active: Active) -> None:
    """End the bodies of a task; the task is fed no more."""
    active.suspended = True
    active.task.close()


class Origin:
    """Source records that a task is processing, as the origin of the records that it sends.

    Each output partition asks when a batch begins and ends, and when another task has written. The
    records are looked up once in a chunk for all partitions.

    Args:
        at_hand: returns the chunk that the task is processing, or None.
    """

    def __init__(self, at_hand: Callable[[], Chunk | None]) -> None:
        self._at_hand = at_hand
        self._chunk: Chunk | None = None
        self._source: SourceRecords | None = None

    def __call__(self) -> SourceRecords | None:
        """Return the records of the chunk; None while the task processes no record."""
        chunk = self._at_hand()
        if chunk is not self._chunk:
            self._chunk = chunk
            self._source = None if chunk is None else source_of(chunk)
        return self._source


def source_of(chunk: Chunk) -> SourceRecords | None:
    """Return the records of a chunk; None if it has none."""
    if chunk.start == chunk.stop:
        return None
    batch = chunk.batch
    offsets = batch.offsets
    return SourceRecords(
        batch.topic, batch.partition, offsets[chunk.start], offsets[chunk.stop - 1]
    )


def warn_of_newer(plan: SubTopology, partition: int, found: Mapping[str, CommittedPlace]) -> None:
    """Log the agents that repeat records because a later release wrote metadata it alone reads."""
    for source in plan.sources:
        offset, beside = found[source.topic]
        if beside.newer and len(source.readers) > 1:
            LOG.warning(
                "%s-%d: a later version of streamsx committed offset %d, and this version "
                "cannot read the positions of the agents in it. Agents of %s that were ahead "
                "repeat records from there. Run the later version, or expect these records "
                "twice.",
                source.topic, partition, offset, ", ".join(sorted(source.readers.values())),
            )  # fmt: skip


def part_of(plan: SubTopology, topics: Collection[str]) -> SubTopology:
    """Return the plan with only the sources among `topics`.

    Without state, a topic may have fewer partitions than others in its sub-topology: tasks with
    higher numbers read fewer topics.
    """
    return replace(plan, sources=tuple(s for s in plan.sources if s.topic in topics))
