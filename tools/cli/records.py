"""Reading of a topic by a command: up to its end, and beyond it."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing, suppress
from itertools import repeat
from typing import NoReturn

from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.client.fetch_state import FetchLimits
from streamsx.client.fetcher import Fetcher
from streamsx.client.range_reader import Range, RangeReader
from streamsx.clock import Clock
from streamsx.errors import CorruptRecord, NotFound, TopicGone, WorldError, first_of
from streamsx.model import TopicPartition
from streamsx.processing.batch import Batch

LOOK_EVERY_S = 2.0
"""Time between two looks whether a followed topic is still there."""


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
        NotFound: a topic was deleted.
        TopicGone: records were deleted before they could be read.
        CorruptRecord: a record batch is damaged.
    """
    arrived = asyncio.Event()
    about = "arriving", FetchLimits(), arrived.set, _gone, _damaged
    fetcher = Fetcher(cluster, clock, *about)
    for tp, offset in starts.items():
        fetcher.add(tp, offset)
    running = asyncio.create_task(
        _fetch(cluster, fetcher, {tp.topic for tp in starts}), name="read what arrives"
    )
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


async def _fetch(cluster: Cluster, fetcher: Fetcher, topics: Collection[str]) -> None:
    """Fetch until a topic is deleted."""
    async with asyncio.TaskGroup() as group:
        group.create_task(fetcher.run(), name="fetch what arrives")
        group.create_task(_until_deleted(cluster, topics), name="look for the topics")


async def _until_deleted(cluster: Cluster, topics: Collection[str]) -> NoReturn:
    """Wait until a topic is deleted, or made anew under its name.

    A broker that has just started may not know a topic yet, so a topic counts as deleted when it is
    missing twice in a row.

    Raises:
        NotFound: a topic was deleted.
    """
    known: dict[str, bytes | None] = {}
    missing: set[str] = set()
    while True:
        with suppress(WorldError):  # no broker answers
            found = await admin.topic_ids(cluster, topics)
            gone = {name for name, id_ in found.items() if id_ is None}
            anew = {name for name, id_ in found.items() if id_ and known.get(name, id_) != id_}
            for name in sorted((gone & missing) | anew):
                raise NotFound(
                    f"the topic was deleted: {name}: all of it that arrived is printed: make it "
                    f"with streamsx topic create {name}, or end here"
                )
            missing = gone
            known |= {name: id_ for name, id_ in found.items() if id_}
        await asyncio.sleep(LOOK_EVERY_S)


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
