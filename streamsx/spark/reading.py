"""Ranges of one task's partitions as Arrow rows, in the order in which the task takes them.

Where a task reads several topics, `task.merge` takes the one whose running maximum of timestamps is
smallest, by name where two are equal. Whole columns are merged here, to the same order: a stable
sort by (running maximum, topic, offset). It begins with the highest timestamps that were taken
before, so it is the same wherever batches are cut.

Each reader has an event loop of its own, that runs when more is wanted. Not here: what is planned.
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
"""The loop stands still while Spark works; what is under way must not be over by then."""
NEVER: Final = -1


class Brokers(NamedTuple):
    """Where they are, and who we are to them."""

    bootstrap: str
    security: Security

    def cluster(self, timeout_s: float = TIMEOUT_S) -> Cluster:
        return Cluster(self.bootstrap, self.security, timeout_s=timeout_s)


class TopicRange(NamedTuple):
    """What is read of one topic. `high`: the highest timestamp that was taken of it before."""

    topic: str
    start: int
    end: int
    high: int = NEVER


def rows(brokers: Brokers, partition: int, stretches: list[TopicRange]) -> Iterator[pa.RecordBatch]:
    """Of one partition number of several topics. Raises WorldError, CorruptRecord."""
    ranges = {TopicPartition(each.topic, partition): Range(*each[1:3]) for each in stretches}
    with asyncio.Runner() as runner:
        cluster = brokers.cluster()
        reader = RangeReader(cluster, SystemClock(), ranges, LIMITS)

        def wait(coroutine: Any) -> Any:
            # Not by `run`: to listen to SIGINT it has each task told in words, with all of its
            # records, which was 40 % of what reading costs.
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
    """Raises TopicGone for what is not there any more."""
    for tp, (start, end) in ranges.items():
        if not there[tp].start <= start <= end <= there[tp].high_watermark:
            raise TopicGone(
                f"records are gone: {tp}: offsets {start} to {end} are to be read, the topic holds "
                f"{there[tp].start} to {there[tp].high_watermark}: it was cut, or made anew: begin "
                "with a new checkpoint, or with a snapshot that is younger"
            )


def columns(batch: Batch) -> pa.RecordBatch:
    count, offsets = len(batch.offsets), batch.offsets
    if isinstance(offsets, range):
        offsets = np.arange(offsets.start, offsets.stop)  # type: ignore[assignment]  # as good
    found = (
        pa.repeat(batch.topic, count), pa.repeat(pa.scalar(batch.partition, pa.int32()), count),
        offsets, batch.timestamps, batch.keys, batch.values, batch.headers or [[]] * count,
    )  # fmt: skip
    return batch_of(found, RECORDS)


# -- the order of a task


def headed(
    batches: Iterator[pa.RecordBatch], high: int
) -> Iterator[tuple[pa.RecordBatch, npt.NDArray[np.int64]]]:
    """Each with the running maximum that its rows are ordered by."""
    for batch in batches:
        heads = np.maximum.accumulate(np.maximum(batch.column("timestamp").to_numpy(), high))
        high = int(heads[-1])
        yield batch, heads


def merged(inputs: list[tuple[Iterator[pa.RecordBatch], int]]) -> Iterator[pa.RecordBatch]:
    """Batches of one topic, in the order of offsets, with its `high`; inputs by name of topic."""
    if len(inputs) == 1:
        yield from inputs[0][0]
        return
    queues = [headed(*each) for each in inputs]
    waiting = {at: first for at, queue in enumerate(queues) if (first := next(queue, None))}
    while waiting:
        # What comes later of a topic is not below its last row; all before the least of these is
        # known, and whoever that is hands on all it has.
        limit, owner = min((int(heads[-1]), at) for at, (_, heads) in waiting.items())
        taken, order = [], []
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
