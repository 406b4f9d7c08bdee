"""Input of the measuring: lines of real text, or orders; and the progress of a group.

It is the same for every program and run: orders are drawn from one seed.
"""

import asyncio
import random
from collections.abc import Iterable, Iterator
from itertools import count, cycle
from typing import NamedTuple

from streamsx.client import admin
from streamsx.client.admin import NewTopic
from streamsx.client.cluster import Cluster
from streamsx.client.range_reader import writing
from streamsx.clock import Clock
from streamsx.protocol.partitioner import partition_of
from streamsx.tools.demonstration.traffic import lines

ORDER_KEYS = 50_000
ORDERS_FROM_MS = 1_700_000_000_000


CorpusRow = tuple[bytes | None, bytes]
"""Key and value."""


def text() -> Iterator[CorpusRow]:
    """Yield the lines, again and again."""
    return ((None, line.encode()) for line in cycle(lines()))


def orders() -> Iterator[CorpusRow]:
    """Yield orders as JSON, 150 bytes each, by one of ORDER_KEYS users; without end."""
    rng = random.Random(1)  # no secret
    for number in count():
        user = b"user-%06d" % rng.randrange(ORDER_KEYS)
        yield user, (
            b'{"order_id":"ord-%010d","user_id":"%b","sku":"sku-%05d","qty":%d,"price":%.2f,'
            b'"currency":"EUR","ts":%d,"status":"created"}'
        ) % (
            number, user, rng.randrange(5000), rng.randrange(1, 9), rng.random() * 100,
            ORDERS_FROM_MS + number // 10,
        )  # fmt: skip


async def fill(
    cluster: Cluster,
    clock: Clock,
    topic: str,
    partitions: int,
    rows: Iterable[CorpusRow],
    from_ms: int,
) -> None:
    """Make a topic of these rows: partitioned by keys, or in turn without keys.

    Ten rows share a millisecond of event time; the first has `from_ms`. The topic keeps rows of any
    time: Kafka would delete rows older than a week during a run.

    Raises:
        StreamsxError: a broker refused.
    """
    room = asyncio.Event()
    await admin.create_topics(cluster, [NewTopic(topic, partitions, 1, {"retention.ms": "-1"})])
    await cluster.follow([topic])
    async with writing(cluster, clock, room.set) as producer:
        await producer.start()
        sends = [producer.to(topic, number) for number in range(partitions)]
        for turn, (key, value) in enumerate(rows):
            place = turn % partitions if key is None else partition_of(key, partitions)
            sends[place](key, value, from_ms + turn // 10, None)
            while producer.full():
                room.clear()
                await room.wait()
        await producer.flush()


class GroupProgress(NamedTuple):
    """Progress of a group. `records`: committed records of the topic; `left`: of all its topics."""

    records: int
    left: int


async def progress(cluster: Cluster, topic: str, group: str) -> GroupProgress:
    """Return the progress of a group, with the topics that it made."""
    done = await admin.committed(cluster, group)
    ends = await admin.bounds(cluster, done) if done else {}
    left = sum(ends[tp].high_watermark - offset for tp, (offset, _) in done.items())
    return GroupProgress(sum(done[tp][0] for tp in done if tp.topic == topic), left)
