"""Our codec, batches, connections and admin calls against Apache Kafka."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]  # no types

from streamsx.client import admin
from streamsx.client.admin import Bounds, NewTopic
from streamsx.client.api_versions import NEWEST
from streamsx.client.cluster import Cluster
from streamsx.clock import SystemClock
from streamsx.errors import BrokerUnreachable, SettingError
from streamsx.model import TopicPartition
from streamsx.protocol import record_batch, wire
from streamsx.protocol.consumer_protocol import Assignment, Subscription
from streamsx.protocol.error_codes import RETRIABLE, ErrorCode
from streamsx.protocol.wire import Api
from tests.support.apache_kafka import ApacheKafka
from tests.support.markers import end_of_settled

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.xdist_group("kafka"),
    pytest.mark.timeout(240),
]
NOW_MS = round(SystemClock().wall() * 1000)
"""Kafka's retention deletes older records at its next run, and Kafka refuses newer ones."""


Story = Callable[[Cluster], Awaitable[None]]


def run(kafka: ApacheKafka, story: Story) -> None:
    async def told() -> None:
        cluster = Cluster(kafka.bootstrap)
        async with asyncio.timeout(60):
            await cluster.start()
            try:
                await story(cluster)
            finally:
                await cluster.stop()

    asyncio.run(told())


async def new_topic(cluster: Cluster, partitions: int = 1, **configs: str) -> str:
    name = f"t-{uuid.uuid4()}"
    await admin.create_topics(cluster, [NewTopic(name, partitions, configs=configs)])
    await cluster.follow([name])
    assert cluster.partitions(name) == partitions
    return name


def filled(count: int, compression: str = "none") -> bytearray:
    builder = record_batch.Builder(1 << 20, compression=compression)
    for i in range(count):
        assert builder.append(NOW_MS + i, b"k%d" % i, b"v%d" % i, [("n", b"%d" % i)])
    return builder.close()


async def produced(cluster: Cluster, tp: TopicPartition, data: bytearray) -> int:
    """Send a batch and return its base offset. A new leader may not know that it leads yet (6,
    3).
    """
    partition = {"index": tp.partition, "records": data}
    body = {
        "acks": -1,
        "timeout": 10_000,
        "topic_data": [{"name": tp.topic, "partition_data": [partition]}],
    }
    while True:
        connection = await cluster.open(cluster.leader(tp) or 0, "produce")
        told = (await connection.ask(Api.PRODUCE, body)).responses[0].partition_responses[0]
        if told.error_code not in RETRIABLE:
            assert told.error_code == ErrorCode.NONE
            return int(told.base_offset)
        await cluster.refresh()


async def fetched(cluster: Cluster, tp: TopicPartition, offset: int) -> Any:
    """Return the partition's part of a read_committed fetch."""
    part = {"partition": tp.partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    part["current_leader_epoch"] = -1
    body = {
        "replica_id": -1, "max_wait": 5000, "min_bytes": 1, "max_bytes": 16 << 20,
        "isolation_level": 1, "session_epoch": -1,
        "topics": [{"topic": tp.topic, "partitions": [part]}],
    }  # fmt: skip
    connection = await cluster.open(cluster.leader(tp) or 0, "fetch")
    told = (await connection.ask(Api.FETCH, body)).responses[0].partitions[0]
    assert told.error_code == ErrorCode.NONE
    return told


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_streamsx_batches_are_read_back_and_by_aiokafka(
    kafka: ApacheKafka, compression: str
) -> None:
    async def story(cluster: Cluster) -> None:
        tp = TopicPartition(await new_topic(cluster), 0)
        assert await produced(cluster, tp, filled(100, compression)) == 0
        assert await produced(cluster, tp, filled(3, compression)) == 100

        read = record_batch.columns((await fetched(cluster, tp, 40)).records, 40)
        assert read.keys == [b"k%d" % i for i in [*range(40, 100), *range(3)]]
        assert (read.offsets, read.next_offset) == (range(40, 103), 103)
        assert read.headers == [[("n", key[1:])] for key in read.keys if key]

        consumer = AIOKafkaConsumer(
            tp.topic, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest"
        )
        async with consumer:
            theirs = [(r.key, r.value) async for r in _first(consumer, 103)]
        assert theirs == [(b"k%d" % i, b"v%d" % i) for i in [*range(100), *range(3)]]

    run(kafka, story)


async def _first(consumer: Any, count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await consumer.getone()


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
def test_aiokafka_batches_are_read(kafka: ApacheKafka, compression: str | None) -> None:
    async def story(cluster: Cluster) -> None:
        tp = TopicPartition(await new_topic(cluster), 0)
        settings = {"compression_type": compression, "linger_ms": 20}
        async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, **settings) as producer:
            await asyncio.gather(
                *[await producer.send(tp.topic, b"x%d" % i, partition=0) for i in range(50)]
            )
        read = record_batch.columns((await fetched(cluster, tp, 0)).records, 0)
        assert read.values == [b"x%d" % i for i in range(50)]

    run(kafka, story)


def test_aborted_transaction_is_not_read(kafka: ApacheKafka) -> None:
    async def story(cluster: Cluster) -> None:
        tp = TopicPartition(await new_topic(cluster), 0)
        settings = {"bootstrap_servers": kafka.bootstrap, "transactional_id": tp.topic}
        async with AIOKafkaProducer(**settings) as producer:
            for value, commits in ((b"one", True), (b"lost", False), (b"two", True)):
                await producer.begin_transaction()
                await producer.send_and_wait(tp.topic, value, partition=0)
                await (producer.commit_transaction() if commits else producer.abort_transaction())
        end = await end_of_settled(cluster, tp)
        assert end == 6
        values: list[bytes | None] = []
        offset = 0
        while offset < end:
            told = await fetched(cluster, tp, offset)
            aborted = [(a.producer_id, a.first_offset) for a in told.aborted_transactions or ()]
            read = record_batch.columns(told.records, offset, aborted=aborted)
            values += read.values
            offset = read.next_offset
        assert values == [b"one", b"two"]

    run(kafka, story)


def test_created_topics_have_the_requested_partitions_and_configs(kafka: ApacheKafka) -> None:
    async def story(cluster: Cluster) -> None:
        name = await new_topic(cluster, 3, **{"cleanup.policy": "compact"})
        await admin.create_topics(cluster, [NewTopic(name, 7)])

        missing = f"t-{uuid.uuid4()}"
        assert await admin.partition_counts(cluster, [name, missing]) == {name: 3}
        configs = await admin.topic_configs(cluster, [name, missing])
        assert configs.keys() == {name}
        assert configs[name]["cleanup.policy"] == "compact"
        assert configs[name]["segment.bytes"] is not None

    run(kafka, story)


def test_topic_kafka_refuses_is_a_setting_error(kafka: ApacheKafka) -> None:
    async def story(cluster: Cluster) -> None:
        odd = NewTopic(f"t-{uuid.uuid4()}", 1, configs={"cleanup.policy": "odd"})
        with pytest.raises(SettingError, match=r"INVALID_CONFIG: topic t-.*: .*cleanup\.policy"):
            await admin.create_topics(cluster, [odd])
        with pytest.raises(SettingError, match=r"INVALID_TOPIC_EXCEPTION: topic a b: "):
            await admin.create_topics(cluster, [NewTopic("a b")])

    run(kafka, story)


def test_metadata_request_for_a_missing_topic_does_not_create_a_topic(kafka: ApacheKafka) -> None:
    async def story(cluster: Cluster) -> None:
        missing = f"t-{uuid.uuid4()}"
        await cluster.follow([missing])
        await cluster.refresh()
        assert cluster.error(missing) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await admin.partition_counts(cluster, [missing]) == {}

    run(kafka, story)


def test_bounds_are_the_first_offset_and_the_high_watermark(kafka: ApacheKafka) -> None:
    async def story(cluster: Cluster) -> None:
        name = await new_topic(cluster, 3)
        first, second, empty = (TopicPartition(name, i) for i in range(3))
        await produced(cluster, first, filled(10))
        await produced(cluster, second, filled(4))
        assert await admin.delete_records(cluster, {first: 6}) == {first: 6}
        assert await admin.bounds(cluster, [first, second, empty]) == {
            first: Bounds(6, 10),
            second: Bounds(0, 4),
            empty: Bounds(0, 0),
        }

    run(kafka, story)


def test_group_is_described_with_the_metadata_of_the_members(kafka: ApacheKafka) -> None:
    async def story(cluster: Cluster) -> None:
        name, group = await new_topic(cluster, 2), f"g-{uuid.uuid4()}"
        settings = {"bootstrap_servers": kafka.bootstrap, "group_id": group}
        async with AIOKafkaConsumer(name, client_id="me", **settings) as consumer:
            while not consumer.assignment():  # noqa: ASYNC110  # there is no event for it
                await asyncio.sleep(0.01)
            told = await admin.describe_group(cluster, group)
        ((member_id, metadata, assignment),) = told.members
        assert (told.state, told.protocol_type, member_id[:3]) == ("Stable", "consumer", "me-")
        assert Subscription.read(metadata).topics == (name,)
        held = (TopicPartition(name, 0), TopicPartition(name, 1))
        assert Assignment.read(assignment).partitions == held

    run(kafka, story)


def test_unknown_group_is_described_as_dead(kafka: ApacheKafka) -> None:
    async def story(cluster: Cluster) -> None:
        told = await admin.describe_group(cluster, f"g-{uuid.uuid4()}")
        assert (told.state, told.members) == ("Dead", ())

    run(kafka, story)


def test_every_client_request_version_is_supported_by_kafka(kafka: ApacheKafka) -> None:
    async def story(cluster: Cluster) -> None:
        connection = await cluster.any("admin")
        for api in wire.Api:
            if api in NEWEST:
                assert connection.version(api) == NEWEST[api]

    run(kafka, story)


@pytest.mark.parametrize("how", [pytest.param("restart", marks=pytest.mark.slow), "kill"])
def test_client_continues_after_a_broker_restart_or_crash(kafka: ApacheKafka, how: str) -> None:
    async def story(cluster: Cluster) -> None:
        tp = TopicPartition(await new_topic(cluster), 0)
        await produced(cluster, tp, filled(5))
        waits = asyncio.create_task(fetched(cluster, tp, 5))
        coordinator = await cluster.open(await cluster.coordinator("g"), "beat")

        await asyncio.to_thread(kafka.stop if how == "restart" else kafka.kill)
        with pytest.raises(BrokerUnreachable, match="FETCH v11: "):
            await waits
        assert coordinator.closed
        with pytest.raises(BrokerUnreachable):
            await cluster.refresh()

        await asyncio.to_thread(kafka.start)
        await cluster.refresh()
        assert await produced(cluster, tp, filled(2)) == 5
        assert (await admin.bounds(cluster, [tp]))[tp] == Bounds(0, 7)
        assert len(record_batch.columns((await fetched(cluster, tp, 5)).records, 5).keys) == 2
        assert not (await cluster.open(await cluster.coordinator("g"), "beat")).closed

    run(kafka, story)
