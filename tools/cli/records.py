"""Reading of a topic by a command: up to its end, and beyond it."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from itertools import repeat
from typing import NoReturn

from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.client.fetch_state import FetchLimits
from streamsx.client.fetcher import Fetcher
from streamsx.client.range_reader import Range, RangeReader
from streamsx.clock import Clock
from streamsx.errors import CorruptRecord, TopicGone, first_of
from streamsx.model import TopicPartition
from streamsx.processing.batch import Batch


async def newest(cluster: Cluster, clock: Clock, topic: str) -> dict[tuple[int, bytes], bytes]:
    """Return the newest values of a followed topic, by partition and key, up to its end now.

    Deleted keys are left out.

    Raises:
        WorldError: the brokers do not answer, or refuse.
        CorruptRecord: a record batch is damaged.
    """
    tps = [TopicPartition(topic, number) for number in range(cluster.partitions(topic))]
    ranges = {tp: Range(*each) for tp, each in (await admin.bounds(cluster, tps)).items()}
    found: dict[tuple[int, bytes | None], bytes | None] = {}
    batches = in_ranges(cluster, clock, ranges)
    async with aclosing(batches):
        async for batch in batches:
            keys = zip(repeat(batch.partition), batch.keys, strict=False)
            found.update(zip(keys, batch.values, strict=True))
    rows = ((number, key, value) for (number, key), value in found.items())
    return {(n, key): value for n, key, value in rows if key is not None and value is not None}


async def in_ranges(
    cluster: Cluster, clock: Clock, ranges: Mapping[TopicPartition, Range]
) -> AsyncGenerator[Batch, None]:
    """Yield the committed records of the ranges, one partition after the other.

    Raises:
        WorldError: the brokers do not answer, or refuse.
        CorruptRecord: a record batch is damaged.
    """
    reader = RangeReader(cluster, clock, ranges)
    await reader.start()
    try:
        for tp in ranges:
            while batch := await reader.next(tp):
                yield batch
    finally:
        await reader.stop()


async def arriving(
    cluster: Cluster, clock: Clock, starts: Mapping[TopicPartition, int]
) -> AsyncGenerator[Batch, None]:
    """Yield the committed records from the offsets on as they arrive, without an end.

    While no broker answers, wait.

    Raises:
        TopicGone: records were deleted before they could be read.
        CorruptRecord: a record batch is damaged.
    """
    arrived = asyncio.Event()
    about = "arriving", FetchLimits(), arrived.set, _gone, _damaged
    fetcher = Fetcher(cluster, clock, *about)
    for tp, offset in starts.items():
        fetcher.add(tp, offset)
    running = asyncio.create_task(fetcher.run(), name="read what arrives")
    running.add_done_callback(lambda _: arrived.set())
    try:
        while not running.done():
            arrived.clear()
            for tp in starts:
                while batch := fetcher.take(tp):
                    if batch.offsets:
                        yield batch
            await arrived.wait()
        running.result()
    except BaseExceptionGroup as group:
        raise first_of(group) from None
    finally:
        running.cancel()
        await asyncio.wait([running])


def _gone(tp: TopicPartition, offset: int) -> NoReturn:
    raise TopicGone(
        f"records are gone: {tp.topic} partition {tp.partition}: offset {offset} was deleted "
        "before it was read: read again with --from earliest"
    )


def _damaged(tp: TopicPartition, offset: int, why: str) -> NoReturn:
    raise CorruptRecord(
        f"the topic is damaged: {tp.topic} partition {tp.partition} offset {offset}: {why}: "
        "look at the broker's disk"
    )
