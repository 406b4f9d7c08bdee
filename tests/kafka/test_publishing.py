"""Changelogs that Spark writes: all or nothing, the newest, by one writer."""

import asyncio
import uuid

import pyarrow as pa
import pytest

from streamsx.client import admin
from streamsx.client.admin import NewTopic
from streamsx.client.cluster import Cluster
from streamsx.client.security import PLAINTEXT
from streamsx.client.transaction import Keyed, transaction
from streamsx.errors import StateConflict
from streamsx.model import TopicPartition
from streamsx.spark.plan import LOG
from streamsx.spark.publish import written
from streamsx.spark.reading import Brokers, TopicRange, rows
from streamsx.spark.rows import batch_of
from streamsx.testing import Broker
from tests.support.apache_kafka import ApacheKafka

pytestmark = [
    pytest.mark.xdist_group("kafka"),
    pytest.mark.timeout(240),
]
Pair = tuple[bytes, bytes | None]


def log(topic: str, partition: int, *pairs: Pair) -> pa.RecordBatch:
    sent = [
        (LOG, topic, partition, at, 1000 + at, key, value, None, None, None)
        for at, (key, value) in enumerate(pairs)
    ]
    return batch_of(list(zip(*sent, strict=True)))


def test_newest_record_per_key_is_published_once_by_the_last_writer(
    either: Broker | ApacheKafka,
) -> None:
    topic, brokers = f"log-{uuid.uuid4()}", Brokers(either.bootstrap, PLAINTEXT)
    app = f"app-{topic}"
    many = [(b"%d" % n, b"v" * 300) for n in range(3000)]
    large = (b"large", b"x" * 900_000)

    def publish(*batches: pa.RecordBatch) -> dict[TopicPartition, int]:
        return asyncio.run(written(app, brokers, batches))

    async def begin() -> None:
        cluster = Cluster(either.bootstrap)
        await cluster.start()
        await admin.create_topics(cluster, [NewTopic(topic, 2)])
        await admin.find_transactions(cluster, app)
        await cluster.stop()

    def read(partition: int, end: int) -> list[tuple[Pair, int, int]]:
        found = rows(brokers, partition, [TopicRange(topic, 0, end)])
        return [
            ((row["key"], row["value"]), row["timestamp"], row["offset"])
            for batch in found
            for row in batch.to_pylist()
        ]

    first, name = TopicPartition(topic, 0), f"{app}-spark-{topic}-0"

    async def die() -> None:
        async with transaction(*brokers, name) as send:
            await send(first, [(b"a", b"aborted", 1)])
            raise RuntimeError("killed")

    async def late(*more: Keyed) -> None:
        """While it is at work another attempt begins, and ends."""
        async with transaction(*brokers, name) as stale:
            await stale(first, [(b"a", b"stale", 1)])
            async with transaction(*brokers, name) as newer:
                await newer(first, [(b"a", b"3", 1)])
            if more:
                await stale(first, more)

    asyncio.run(begin())
    ends = publish(
        log(topic, 0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2")),
        log(topic, 1, *many, large, (b"0", None)),
    )
    assert ends == {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 3001}
    assert read(0, 2) == [((b"b", b"1"), 1001, 0), ((b"a", b"2"), 1002, 1)]
    last = read(1, 3001)
    assert [pair for pair, *_ in last] == [*many[1:], large, (b"0", None)]
    assert last[-1][1:] == (1000 + 3001, 3000)

    with pytest.raises(RuntimeError, match="killed"):
        asyncio.run(die())
    for more in ([], [(b"a", b"later", 1)]):
        with pytest.raises(StateConflict, match=f"two writers of one changelog: {name}"):
            asyncio.run(late(*more))
    (end,) = publish(log(topic, 0, (b"c", b"4"))).values()
    assert [pair for pair, *_ in read(0, end)] == [
        (b"b", b"1"), (b"a", b"2"), (b"a", b"3"), (b"a", b"3"), (b"c", b"4"),
    ]  # fmt: skip
