"""Reader of offset ranges, each to its end, and a producer, for programs other than workers.

Reads see committed records only, as in workers. Not here: the processing of a record.
"""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from streamsx.client.cluster import Cluster
from streamsx.client.fetch_state import FetchLimits
from streamsx.client.fetcher import Fetcher
from streamsx.client.producer import Producer
from streamsx.client.rejected_batch import RefusedRecord, refusal_message
from streamsx.clock import Clock
from streamsx.errors import CorruptRecord, TopicGone, WorldError, first_of
from streamsx.model import TopicPartition
from streamsx.processing.batch import Batch

T = TypeVar("T")
STALL_S = 60.0
"""Time without any record after which a read fails."""
BUFFER_BYTES = 16 << 20


class Range(NamedTuple):
    """Offsets from `start` up to, but not including, `end`."""

    start: int
    end: int


class RangeReader:
    """Reader of ranges: each range is read by itself, while all are fetched.

    Call `start`, then `next`, and `stop` at the end, all on one event loop. Between calls the loop
    may stand still. Each `end` must become readable: the reader waits for open transactions below.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        ranges: Mapping[TopicPartition, Range],
        limits: FetchLimits | None = None,
    ) -> None:
        self._ends = {tp: each.end for tp, each in ranges.items() if each.start < each.end}
        self._cluster = cluster
        self._ranges = ranges
        self._arrived = asyncio.Event()
        about = "ranges", limits or FetchLimits(), self._arrived.set, _gone, _unreadable
        self._fetcher = Fetcher(cluster, clock, *about)
        self._running: asyncio.Task[None]

    async def start(self) -> None:
        """Follow the topics and begin to fetch.

        Raises:
            BrokerUnreachable: no broker answers.
        """
        await self._cluster.follow({tp.topic for tp in self._ends})
        for tp in self._ends:
            self._fetcher.add(tp, self._ranges[tp].start)
        self._running = asyncio.create_task(self._fetcher.run(), name="read ranges")
        self._running.add_done_callback(lambda _: self._arrived.set())

    async def next(self, tp: TopicPartition) -> Batch | None:
        """Return some thousand records of a partition, at least one; None behind the last.

        Raises:
            TopicGone: an offset was deleted.
            CorruptRecord: a record cannot be read.
            WorldError: nothing has come for STALL_S seconds.
        """
        while tp in self._ends:
            if (batch := self._fetcher.take(tp)) is None:
                await self._more(tp)
                continue
            if batch.next_offset >= self._ends[tp]:
                batch = _below(batch, self._ends.pop(tp))
                self._fetcher.remove(tp)
            if batch.offsets:
                return batch
        return None

    async def stop(self) -> None:
        """Stop fetching."""
        self._running.cancel()
        await asyncio.wait([self._running])

    async def _more(self, tp: TopicPartition) -> None:
        if self._running.done():
            try:
                self._running.result()
            except BaseExceptionGroup as group:
                raise first_of(group) from None
        self._arrived.clear()
        await within(self._arrived.wait(), f"the topic cannot be read: {tp}")


def _gone(tp: TopicPartition, offset: int) -> None:
    raise TopicGone(
        f"records were deleted before they were read: {tp} offset {offset}: start again"
    )


def _unreadable(tp: TopicPartition, offset: int, why: str) -> None:
    raise CorruptRecord(f"the topic is damaged: {tp} at offset {offset}: {why}")


def _below(batch: Batch, end: int) -> Batch:
    """Return the records of a batch below an offset."""
    stop = bisect_left(batch.offsets, end)
    columns = "keys", "values", "timestamps", "offsets"
    below: dict[str, Any] = {name: getattr(batch, name)[:stop] for name in columns}
    headers = batch.headers and batch.headers[:stop]
    return batch._replace(**below, headers=headers, next_offset=end)


async def within(answer: Awaitable[T], what: str) -> T:
    """Await an answer, and return it.

    Raises:
        WorldError: no answer has come within STALL_S seconds.
    """
    try:
        async with asyncio.timeout(STALL_S):
            return await answer
    except TimeoutError:
        raise WorldError(
            f"{what}: no data for {STALL_S:g} s: try again, or see the logs of the brokers"
        ) from None


@asynccontextmanager
async def writing(
    cluster: Cluster, clock: Clock, room: Callable[[], None] = lambda: None
) -> AsyncIterator[Producer]:
    """Yield a producer, and close that producer at the end of the block.

    A record that the broker refuses for good ends the block, and the refusal is raised.
    """

    async def end(error: Exception) -> None:
        raise error

    def refused(tp: TopicPartition, code: int, record: RefusedRecord) -> None:
        tasks.create_task(end(WorldError(refusal_message(tp, code, record, cluster.principal))))

    try:
        async with asyncio.TaskGroup() as tasks:
            producer = Producer(
                cluster, clock, tasks.create_task, refused,
                linger_s=0.0, buffer_bytes=BUFFER_BYTES, room=room,
            )  # fmt: skip
            try:
                yield producer
            finally:
                producer.close()  # a late push would spawn into an ended group
    except BaseExceptionGroup as group:
        raise first_of(group) from None
