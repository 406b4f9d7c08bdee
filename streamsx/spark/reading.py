"""Reader of offset ranges of one task's partitions, as Arrow rows in the order of the task.

A task that reads several topics takes the next record of the topic whose running maximum of
timestamps is smallest (`processing.merge`); of equal ones the first by name. This module merges
whole columns to the same order: a stable sort by (running maximum, topic, offset). The running
maximum begins with the highest timestamp that was taken before. So the order does not depend on
where batches are cut.

Each reader has an event loop of its own, which runs only when more rows are wanted. Planning of the
ranges is not done here.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.client.fetch_state import FetchLimits
from streamsx.client.range_reader import Range, RangeReader
from streamsx.client.security import Security
from streamsx.clock import SystemClock
from streamsx.errors import TopicGone
from streamsx.event_loops import guarded
from streamsx.model import TopicPartition
from streamsx.processing.batch import Batch
from streamsx.spark.rows import RECORDS, batch_of

LIMITS: Final = FetchLimits(partition_bytes=4 << 20, held_bytes=8 << 20, held_bytes_all=32 << 20)
TIMEOUT_S: Final = 20.0
"""The loop stands still while Spark works; requests under way must not time out meanwhile."""
NEVER: Final = -1


class Brokers(NamedTuple):
    """Addresses and credentials of the brokers."""

    bootstrap: str
    security: Security

    def cluster(self, timeout_s: float = TIMEOUT_S) -> Cluster:
        return Cluster(self.bootstrap, self.security, timeout_s=timeout_s)


class TopicRange(NamedTuple):
    """Offset range of one topic, and `high`, the highest timestamp taken of the topic before."""

    topic: str
    start: int
    end: int
    high: int = NEVER


def rows(brokers: Brokers, partition: int, stretches: list[TopicRange]) -> Iterator[pa.RecordBatch]:
    """Yield the records of one partition number of several topics.

    Raises:
        WorldError: the brokers do not answer, or the range is gone.
        CorruptRecord: a record cannot be read.
    """
    ranges = {TopicPartition(each.topic, partition): Range(*each[1:3]) for each in stretches}
    with asyncio.Runner() as runner:
        cluster = brokers.cluster()
        reader = RangeReader(cluster, SystemClock(), ranges, LIMITS)

        def wait(coroutine: Any) -> Any:
            # Not `Runner.run`: for its SIGINT handler Python formats each asyncio task as text,
            # with all records of the task. This was 40 % of the cost of reading.
            return runner.get_loop().run_until_complete(guarded(coroutine))

        def of(topic: str) -> Iterator[pa.RecordBatch]:
            tp = TopicPartition(topic, partition)
            while batch := wait(reader.next(tp)):
                yield columns(batch)

        try:
            wait(cluster.start())
            check(wait(admin.bounds(cluster, ranges)), ranges)
            wait(reader.start())
            try:
                yield from merged([(of(each.topic), each.high) for each in sorted(stretches)])
            finally:
                wait(reader.stop())
        finally:
            wait(cluster.stop())


def check(
    there: Mapping[TopicPartition, admin.Bounds], ranges: Mapping[TopicPartition, Range]
) -> None:
    """Raise TopicGone if a topic no longer holds one of the ranges."""
    for tp, (start, end) in ranges.items():
        if not there[tp].start <= start <= end <= there[tp].high_watermark:
            raise TopicGone(
                f"records are gone: {tp}: offsets {start} to {end} are to be read, the topic "
                f"holds {there[tp].start} to {there[tp].high_watermark}: records were deleted, or "
                "the topic was created again: start with a new checkpoint, or with a newer "
                "snapshot"
            )


def columns(batch: Batch) -> pa.RecordBatch:
    count = len(batch.offsets)
    offsets = batch.offsets
    if isinstance(offsets, range):
        offsets = np.arange(offsets.start, offsets.stop)  # type: ignore[assignment]  # array
    found = (
        pa.repeat(batch.topic, count), pa.repeat(pa.scalar(batch.partition, pa.int32()), count),
        offsets, batch.timestamps, batch.keys, batch.values, batch.headers or [[]] * count,
    )  # fmt: skip
    return batch_of(found, RECORDS)


# -- the order of a task


def headed(
    batches: Iterator[pa.RecordBatch], high: int
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int64]]]:
    """Yield each batch with the running maximum of timestamps, by which its rows are ordered."""
    for batch in batches:
        heads = np.maximum.accumulate(np.maximum(batch.column("timestamp").to_numpy(), high))
        high = int(heads[-1])
        yield batch, heads


def merged(inputs: list[tuple[Iterator[pa.RecordBatch], int]]) -> Iterator[pa.RecordBatch]:
    """Merge the batches of several topics into the order of the task.

    Each input is the batches of one topic in the order of offsets, with the `high` of the topic.
    The inputs are sorted by name of topic.
    """
    if len(inputs) == 1:
        yield from inputs[0][0]
        return
    queues = [headed(*each) for each in inputs]
    waiting = {at: first for at, queue in enumerate(queues) if (first := next(queue, None))}
    while waiting:
        # Later batches of a topic have no running maximum below the one of its last row here.
        # So all rows below the least of these last ones are known, and the topic that owns the
        # least one yields its whole batch.
        limit, owner = min((int(heads[-1]), at) for at, (_, heads) in waiting.items())
        taken = []
        order = []
        for at, (rows, heads) in list(waiting.items()):
            if count := int(np.searchsorted(heads, limit, "right" if at <= owner else "left")):
                taken.append(rows.slice(0, count))
                order.append(heads[:count])
            if count < len(heads):
                waiting[at] = rows.slice(count), heads[count:]
            elif more := next(queues[at], None):
                waiting[at] = more
            else:
                del waiting[at]
        if len(taken) == 1:
            yield taken[0]
            continue
        by = np.argsort(np.concatenate(order), kind="stable")
        yield from pa.Table.from_batches(taken).take(by).combine_chunks().to_batches()
