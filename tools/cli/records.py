"""What a command reads of a topic, and how it writes to one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import repeat

from streamsx.clock import Clock
from streamsx.engine.fetch import Fetcher
from streamsx.engine.produce import Producer
from streamsx.errors import CorruptRecord, TopicGone, WorldError, first_of
from streamsx.kafka import admin
from streamsx.kafka.cluster import Cluster
from streamsx.lifecycle.fetch import FetchLimits
from streamsx.model import TopicPartition

STALL_S = 60.0
"""So long nothing may come."""
BUFFER_BYTES = 16 << 20


@asynccontextmanager
async def writing(
    cluster: Cluster, clock: Clock, room: Callable[[], None] = lambda: None
) -> AsyncIterator[Producer]:
    """A producer, which is closed at the end of this. What the broker refuses for good ends it, and
    is raised.
    """

    async def end(error: Exception) -> None:
        raise error

    def failed(error: Exception) -> None:
        tasks.create_task(end(error))

    try:
        async with asyncio.TaskGroup() as tasks:
            producer = Producer(
                cluster, clock, tasks.create_task, failed,
                linger_s=0.0, buffer_bytes=BUFFER_BYTES, room=room,
            )  # fmt: skip
            try:
                yield producer
            finally:
                producer.close()  # its last words would be tasks of a group that has ended
    except BaseExceptionGroup as group:
        raise first_of(group) from None


async def newest(cluster: Cluster, clock: Clock, topic: str) -> dict[tuple[int, bytes], bytes]:
    """The newest value by partition and key of a followed topic, as of now; deleted keys are left
    out.

    Raises WorldError, CorruptRecord.
    """
    arrived = asyncio.Event()

    def gone(tp: TopicPartition, offset: int) -> None:
        raise TopicGone(f"the topic was cut: {tp}: no offset {offset}: start again")

    def unreadable(tp: TopicPartition, offset: int, why: str) -> None:
        raise CorruptRecord(f"the topic is damaged: {tp} at offset {offset}: {why}")

    tps = [TopicPartition(topic, number) for number in range(cluster.partitions(topic))]
    ends = {
        tp: each for tp, each in (await admin.bounds(cluster, tps)).items() if each[0] < each[1]
    }
    fetcher = Fetcher(cluster, clock, "newest", FetchLimits(), arrived.set, gone, unreadable)
    for tp, bounds in ends.items():
        fetcher.add(tp, bounds.start)
    found: dict[tuple[int, bytes | None], bytes | None] = {}
    try:
        async with asyncio.timeout(STALL_S) as stall, asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(fetcher.run(), name=f"read {topic}")
            while ends:
                await arrived.wait()
                arrived.clear()
                stall.reschedule(asyncio.get_running_loop().time() + STALL_S)
                for tp in list(ends):
                    while batch := fetcher.take(tp):
                        keys = zip(repeat(tp.partition), batch.keys, strict=False)
                        found.update(zip(keys, batch.values, strict=True))
                        if batch.next_offset >= ends[tp].high_watermark:
                            del ends[tp]
                            break
            reading.cancel()
    except TimeoutError:
        why = f"nothing has come for {STALL_S:g} s"
        raise WorldError(f"the topic cannot be read: {topic}: {why}: try again") from None
    except BaseExceptionGroup as group:
        raise first_of(group) from None
    rows = ((number, key, value) for (number, key), value in found.items())
    return {(n, key): value for n, key, value in rows if key is not None and value is not None}
