"""Reading committed records, as workers do, of topics with transactions of another client."""

import asyncio
import uuid

import pytest
from confluent_kafka import Producer

from streamsx.client import admin
from streamsx.client.admin import NewTopic
from streamsx.client.cluster import Cluster
from streamsx.client.fetch_state import FetchLimits
from streamsx.client.fetcher import Fetcher
from streamsx.client.security import PLAINTEXT
from streamsx.clock import SystemClock
from streamsx.model import TopicPartition
from streamsx.spark.reading import Brokers, TopicRange, rows
from streamsx.testing import Broker
from tests.support.apache_kafka import ApacheKafka
from tests.support.markers import end_of_settled

pytestmark = [
    pytest.mark.xdist_group("kafka"),
    pytest.mark.timeout(240),
]
COMMITTED, BATCH = 10_000, 1000


def write(either: Broker | ApacheKafka, topic: str) -> None:
    """Write a hundred aborted records, then ten thousand committed ones, then some more."""
    batches = {"linger.ms": 5, "batch.num.messages": BATCH}
    producer = Producer(
        {"bootstrap.servers": either.bootstrap, "transactional.id": topic, **batches}
    )
    producer.init_transactions(30)
    for name, records, commits in (("lost", 100, False), ("kept", COMMITTED, True), ("lost", 9, 0)):
        producer.begin_transaction()
        for number in range(records):
            producer.produce(topic, b"%s %d" % (name.encode(), number), partition=0)
        producer.flush()
        if commits:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)


def raises(tp: TopicPartition, offset: int, why: str = "") -> None:
    raise AssertionError(f"{tp} at {offset}: {why}")


async def read(either: Broker | ApacheKafka, topic: str) -> list[bytes | None]:
    cluster, tp, arrived = Cluster(either.bootstrap), TopicPartition(topic, 0), asyncio.Event()
    await cluster.start()
    await cluster.follow([topic])
    fetcher = Fetcher(cluster, SystemClock(), "data", FetchLimits(), arrived.set, raises, raises)
    fetcher.add(tp, 0)
    running = asyncio.create_task(fetcher.run())
    values: list[bytes | None] = []
    async with asyncio.timeout(60):
        while not fetcher.caught_up(tp):
            await arrived.wait()
            arrived.clear()
            while (batch := fetcher.take(tp)) is not None:
                values += batch.values
    running.cancel()
    await asyncio.wait([running])
    await cluster.stop()
    return values


def test_records_committed_after_an_aborted_transaction_are_all_read(
    either: Broker | ApacheKafka,
) -> None:
    """One answer has several pieces. The aborted transactions of the first say nothing of the
    others.
    """

    async def story() -> list[bytes | None]:
        cluster, topic = Cluster(either.bootstrap), f"t-{uuid.uuid4()}"
        await cluster.start()
        await admin.create_topics(cluster, [NewTopic(topic)])
        await cluster.stop()
        await asyncio.to_thread(write, either, topic)
        return await read(either, topic)

    assert asyncio.run(story()) == [b"kept %d" % number for number in range(COMMITTED)]


def test_committed_range_ends_at_an_open_transaction_and_omits_aborted(
    either: Broker | ApacheKafka,
) -> None:
    topic = f"t-{uuid.uuid4()}"
    tp = TopicPartition(topic, 0)

    async def bounds(*, committed: bool) -> admin.Bounds:
        cluster = Cluster(either.bootstrap)
        await cluster.start()
        await admin.create_topics(cluster, [NewTopic(topic, 1)])
        found = await admin.bounds(cluster, [tp], committed=committed)
        await cluster.stop()
        return found[tp]

    async def settled() -> int:
        cluster = Cluster(either.bootstrap)
        await cluster.start()
        end = await end_of_settled(cluster, tp)
        await cluster.stop()
        return end

    asyncio.run(bounds(committed=False))
    write(either, topic)
    written = asyncio.run(settled())
    open_one = Producer(
        {"bootstrap.servers": either.bootstrap, "transactional.id": f"{topic}-open"}
    )
    open_one.init_transactions(30)
    open_one.begin_transaction()
    open_one.produce(topic, b"open", partition=0)
    open_one.flush()

    _, end = asyncio.run(bounds(committed=True))
    assert end == written
    assert asyncio.run(bounds(committed=False)).high_watermark == end + 1
    brokers = Brokers(either.bootstrap, PLAINTEXT)
    found = [
        row for each in rows(brokers, 0, [TopicRange(topic, 0, end)]) for row in each.to_pylist()
    ]
    open_one.abort_transaction(30)
    assert [row["value"] for row in found] == [b"kept %d" % number for number in range(COMMITTED)]
    assert [row["offset"] for row in found] == list(range(101, 101 + COMMITTED))
