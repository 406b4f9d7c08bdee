"""Changelogs that Spark writes: all or nothing, the newest rows, by one writer."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pyarrow as pa
import pytest

from streamsx.client import admin
from streamsx.client.admin import NewTopic
from streamsx.client.security import PLAINTEXT
from streamsx.client.transaction import Keyed, SendKeyed, transaction
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


@asynccontextmanager
async def begun(brokers: Brokers, name: str) -> AsyncIterator[SendKeyed]:
    """Begin a transaction with connections of its own, as on an executor."""
    async with AsyncExitStack() as left:
        cluster = brokers.cluster()
        left.push_async_callback(cluster.stop)
        await cluster.start()
        yield await left.enter_async_context(transaction(cluster, name))


async def made(brokers: Brokers, topic: str) -> None:
    async with AsyncExitStack() as left:
        cluster = brokers.cluster()
        left.push_async_callback(cluster.stop)
        await cluster.start()
        await admin.create_topics(cluster, [NewTopic(topic, 2)])
        await admin.find_transactions(cluster, topic)


def read(brokers: Brokers, topic: str, partition: int, end: int) -> list[tuple[Pair, int, int]]:
    found = rows(brokers, partition, [TopicRange(topic, 0, end)])
    return [
        ((row["key"], row["value"]), row["timestamp"], row["offset"])
        for batch in found
        for row in batch.to_pylist()
    ]


def test_newest_record_per_key_is_published_once_by_the_last_writer(
    either: Broker | ApacheKafka,
) -> None:
    topic, brokers = f"log-{uuid.uuid4()}", Brokers(either.bootstrap, PLAINTEXT)
    app = f"app-{topic}"
    many = [(b"%d" % n, b"v" * 300) for n in range(3000)]
    large = (b"large", b"x" * 900_000)

    def publish(*batches: pa.RecordBatch) -> dict[TopicPartition, int]:
        return asyncio.run(written(app, brokers, batches))

    first, name = TopicPartition(topic, 0), f"{app}-spark-{topic}-0"

    async def die() -> None:
        async with begun(brokers, name) as send:
            await send(first, [(b"a", b"aborted", 1)])
            raise RuntimeError("killed")

    async def late(*more: Keyed) -> None:
        """Write while another attempt begins and ends."""
        async with begun(brokers, name) as stale:
            await stale(first, [(b"a", b"stale", 1)])
            async with begun(brokers, name) as newer:
                await newer(first, [(b"a", b"3", 1)])
            if more:
                await stale(first, more)

    asyncio.run(made(brokers, topic))
    ends = publish(
        log(topic, 0, (b"a", b"1"), (b"b", b"1"), (b"a", b"2")),
        log(topic, 1, *many, large, (b"0", None)),
    )
    assert ends == {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 3001}
    assert read(brokers, topic, 0, 2) == [((b"b", b"1"), 1001, 0), ((b"a", b"2"), 1002, 1)]
    last = read(brokers, topic, 1, 3001)
    assert [pair for pair, *_ in last] == [*many[1:], large, (b"0", None)]
    assert last[-1][1:] == (1000 + 3001, 3000)

    with pytest.raises(RuntimeError, match="killed"):
        asyncio.run(die())
    for more in ([], [(b"a", b"later", 1)]):
        with pytest.raises(StateConflict, match=f"two writers of one changelog: {name}"):
            asyncio.run(late(*more))
    (end,) = publish(log(topic, 0, (b"c", b"4"))).values()
    assert [pair for pair, *_ in read(brokers, topic, 0, end)] == [
        (b"b", b"1"), (b"a", b"2"), (b"a", b"3"), (b"a", b"3"), (b"c", b"4"),
    ]  # fmt: skip


def test_late_attempt_that_fails_does_not_fence_the_next_one(either: Broker | ApacheKafka) -> None:
    name, brokers = f"late-{uuid.uuid4()}", Brokers(either.bootstrap, PLAINTEXT)
    tp = TopicPartition(name, 0)
    wrote, goes_on = asyncio.Event(), asyncio.Event()

    async def late() -> None:
        async with begun(brokers, name) as stale:
            await stale(tp, [(b"a", b"stale", 1)])
            wrote.set()
            await goes_on.wait()
            raise RuntimeError("failed")

    async def story() -> int:
        await made(brokers, name)
        attempt = asyncio.create_task(late())
        await wrote.wait()
        async with begun(brokers, name) as newer:
            await newer(tp, [(b"a", b"1", 1)])
            goes_on.set()
            with pytest.raises(RuntimeError, match="failed"):
                await attempt
            return await newer(tp, [(b"b", b"2", 1)])

    end = asyncio.run(story())
    assert [pair for pair, *_ in read(brokers, name, 0, end)] == [(b"a", b"1"), (b"b", b"2")]


def test_abort_leaves_no_open_transaction(either: Broker | ApacheKafka) -> None:
    name, brokers = f"abort-{uuid.uuid4()}", Brokers(either.bootstrap, PLAINTEXT)
    tp = TopicPartition(name, 0)

    async def dies() -> None:
        async with begun(brokers, name) as send:
            await send(tp, [(b"a", b"1", 1)])
            raise RuntimeError("failed")

    async def story() -> tuple[int, int]:
        await made(brokers, name)
        with pytest.raises(RuntimeError, match="failed"):
            await dies()
        async with asyncio.timeout(30), AsyncExitStack() as left:
            cluster = brokers.cluster()
            left.push_async_callback(cluster.stop)
            await cluster.start()
            while True:
                bounds = (await admin.bounds(cluster, [tp], committed=True))[tp]
                if bounds[1]:
                    return bounds[:2]

    assert asyncio.run(story()) == (0, 2)  # the record, and the marker of the abort
