"""What the peers work on: lines of real text, or orders; and how far a group has come with them.

The same for everybody and in every run: orders are drawn from one seed.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from itertools import count, cycle, islice
from typing import NamedTuple

from streamsx.kafka import admin
from streamsx.kafka.admin import NewTopic
from streamsx.kafka.batch import Builder
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.partitioner import partition_of
from streamsx.kafka.wire import Api
from streamsx.model import TopicPartition

LANE = "text"
BATCH_BYTES = 256 << 10
CHUNK_ROWS = 100_000
"""In memory at once."""
ORDER_KEYS = 50_000
ORDERS_FROM_MS = 1_700_000_000_000
NOW = -1
"""As a timestamp."""
ACKS_ALL = -1
TIMEOUT_S = 30.0


def lines() -> list[bytes]:
    """Of the standard library's `pydoc_data.topics`; not a blank one among them."""
    from pydoc_data.topics import topics

    return [line.encode() for text in topics.values() for line in text.splitlines() if line.strip()]


CorpusRow = tuple[bytes | None, bytes]
"""Key and value."""


def text() -> Iterator[CorpusRow]:
    """The lines, over and over."""
    return ((None, line) for line in cycle(lines()))


def orders() -> Iterator[CorpusRow]:
    """Orders as JSON, 150 bytes each, by one of ORDER_KEYS users; without end."""
    rng = random.Random(1)  # noqa: S311  # no secret
    for number in count():
        user = b"user-%06d" % rng.randrange(ORDER_KEYS)
        yield user, (
            b'{"order_id":"ord-%010d","user_id":"%b","sku":"sku-%05d","qty":%d,"price":%.2f,'
            b'"currency":"EUR","ts":%d,"status":"created"}'
        ) % (
            number, user, rng.randrange(5000), rng.randrange(1, 9), rng.random() * 100,
            ORDERS_FROM_MS + number // 10,
        )  # fmt: skip


async def filled(
    bootstrap: str, topic: str, partitions: int, records: int, rows: Iterator[CorpusRow]
) -> None:
    """Write so many rows: by their keys, without keys in turn. Raises StreamsxError."""
    cluster = Cluster(bootstrap)
    await cluster.start()
    await admin.create_topics(cluster, [NewTopic(topic, partitions, 1)])
    await cluster.follow([topic])
    for start in range(0, records, CHUNK_ROWS):
        parts: list[list[CorpusRow]] = [[] for _ in range(partitions)]
        for turn, row in enumerate(islice(rows, min(CHUNK_ROWS, records - start))):
            key = row[0]
            parts[turn % partitions if key is None else partition_of(key, partitions)].append(row)
        for number, part in enumerate(parts):
            await _produce(cluster, TopicPartition(topic, number), part)
    await cluster.stop()


async def _produce(cluster: Cluster, tp: TopicPartition, rows: list[CorpusRow]) -> None:
    keys, values = [key for key, _ in rows], [value for _, value in rows]
    node = cluster.leader(tp)
    assert node is not None, f"{tp} has no leader"
    connection, done = await cluster.open(node, LANE), 0
    while done < len(values):
        builder = Builder(BATCH_BYTES)
        done = builder.extend(NOW, keys, values, done)
        part = {"index": tp.partition, "records": builder.close()}
        body = {
            "acks": ACKS_ALL,
            "timeout": int(TIMEOUT_S * 1000),
            "topic_data": [{"name": tp.topic, "partition_data": [part]}],
        }
        reply = await connection.ask(Api.PRODUCE, body, TIMEOUT_S)
        code = reply.responses[0].partition_responses[0].error_code
        assert not code, f"{tp}: refused with {code}"


class GroupProgress(NamedTuple):
    """`records` of the topic that are committed; `left`: of all topics of the group."""

    records: int
    left: int


async def progress(
    bootstrap: str, topic: str, group: str, every_s: float
) -> AsyncIterator[GroupProgress]:
    """How far a group has come, again and again: with the lines, and with what it made of them."""
    cluster = Cluster(bootstrap)
    await cluster.start()
    try:
        while True:
            connection = await cluster.open(await cluster.coordinator(group), LANE)
            body = {"group_id": group, "topics": None}  # all that it has committed
            reply = await connection.ask(Api.OFFSET_FETCH, body, TIMEOUT_S)
            done = {
                TopicPartition(found.name, part.partition_index): part.committed_offset
                for found in reply.topics
                for part in found.partitions
            }
            ends = await admin.bounds(cluster, done) if done else {}
            left = sum(ends[tp].high_watermark - offset for tp, offset in done.items())
            records = sum(offset for tp, offset in done.items() if tp.topic == topic)
            yield GroupProgress(records, left)
            await asyncio.sleep(every_s)
    finally:
        await cluster.stop()
