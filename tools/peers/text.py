"""Lines of real text in a topic, and how far a group has come with them."""

import asyncio
from collections.abc import AsyncIterator
from itertools import cycle, islice
from typing import NamedTuple

from streamsx.kafka import admin
from streamsx.kafka.admin import NewTopic
from streamsx.kafka.batch import Builder
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.wire import Api
from streamsx.model import TopicPartition

LANE = "text"
BATCH_BYTES = 256 << 10
ACKS_ALL = -1
TIMEOUT_S = 30.0


def lines() -> list[bytes]:
    """Of the standard library's `pydoc_data.topics`; not a blank one among them."""
    from pydoc_data.topics import topics

    return [line.encode() for text in topics.values() for line in text.splitlines() if line.strip()]


async def filled(bootstrap: str, topic: str, partitions: int, records: int) -> None:
    """Write the lines, over and over, round the partitions. Raises StreamsxError."""
    cluster = Cluster(bootstrap)
    await cluster.start()
    await admin.create_topics(cluster, [NewTopic(topic, partitions, 1)])
    await cluster.follow([topic])
    text = cycle(lines())
    for number in range(partitions):
        share = records // partitions + (number < records % partitions)
        await _produce(cluster, TopicPartition(topic, number), list(islice(text, share)))
    await cluster.stop()


async def _produce(cluster: Cluster, tp: TopicPartition, values: list[bytes]) -> None:
    node = cluster.leader(tp)
    assert node is not None, f"{tp} has no leader"
    connection, done = await cluster.open(node, LANE), 0
    while done < len(values):
        builder = Builder(BATCH_BYTES)
        done = builder.extend(-1, [None] * len(values), values, done)
        part = {"index": tp.partition, "records": builder.close()}
        body = {
            "acks": ACKS_ALL,
            "timeout": int(TIMEOUT_S * 1000),
            "topic_data": [{"name": tp.topic, "partition_data": [part]}],
        }
        reply = await connection.ask(Api.PRODUCE, body, TIMEOUT_S)
        code = reply.responses[0].partition_responses[0].error_code
        assert not code, f"{tp}: refused with {code}"


class Progress(NamedTuple):
    """`records` of the topic that are committed; `left`: of all topics of the group."""

    records: int
    left: int


async def progress(
    bootstrap: str, topic: str, group: str, every_s: float
) -> AsyncIterator[Progress]:
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
            yield Progress(records, left)
            await asyncio.sleep(every_s)
    finally:
        await cluster.stop()
