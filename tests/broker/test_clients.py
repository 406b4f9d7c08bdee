"""Unmodified clients, aiokafka and librdkafka, over real sockets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest
from aiokafka import (  # type: ignore[import-untyped]  # has no types
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    TopicPartition,
)
from aiokafka.errors import ProducerFenced  # type: ignore[import-untyped]  # has no types
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, Producer
from confluent_kafka import TopicPartition as At

from streamsx.broker.groups.group import GroupConfig
from streamsx.testing import Broker

WAIT_S = 60.0
admin: Any = confluent_kafka.admin  # its types do not know what it exports


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    groups = GroupConfig(consumer_heartbeat_interval_ms=100)
    with Broker(tmp_path / "data", topics={"t": 4}, groups=groups) as broker:
        yield broker


# aiokafka.


class Assigned(ConsumerRebalanceListener):  # type: ignore[misc]  # has no types
    """Partitions of a consumer; `until` waits for them."""

    def __init__(self) -> None:
        self.partitions: set[int] = set()
        self.changed = asyncio.Event()

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.partitions -= {tp.partition for tp in revoked}

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.partitions |= {tp.partition for tp in assigned}
        self.changed.set()

    async def until(self, good: Callable[[set[int]], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not good(self.partitions):
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def member(broker: Broker, **options: Any) -> AsyncIterator[tuple[Any, Assigned]]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap, group_id="g", auto_offset_reset="earliest",
        enable_auto_commit=False, heartbeat_interval_ms=100, **options,
    )  # fmt: skip
    assigned = Assigned()
    consumer.subscribe(["t"], listener=assigned)
    async with consumer:
        yield consumer, assigned


async def send(broker: Broker, values: range, **options: Any) -> None:
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap, **options) as producer:
        for i in values:
            await producer.send("t", b"%d" % i, partition=i % 4)
        await producer.flush()


async def read(consumer: Any, count: int) -> list[int]:
    async with asyncio.timeout(WAIT_S):
        return [int((await consumer.getone()).value) for _ in range(count)]


def test_aiokafka_reads_sent_records_and_resumes_from_the_commit(broker: Broker) -> None:
    async def story() -> None:
        await send(broker, range(100), enable_idempotence=True)
        async with member(broker) as (consumer, _):
            assert sorted(await read(consumer, 100)) == list(range(100))
            await consumer.commit()
        await send(broker, range(100, 120), compression_type="gzip")
        async with member(broker) as (consumer, _):
            assert sorted(await read(consumer, 20)) == list(range(100, 120))
            at = TopicPartition("t", 1)
            assert await consumer.committed(at) == 25
            ends = await consumer.end_offsets([at])
            assert ends[at] == 30
            begin = await consumer.offsets_for_times({at: 0})
            assert begin[at].offset == 0

    asyncio.run(story())


def test_aiokafka_consumers_share_a_topic_and_take_over_from_each_other(
    broker: Broker,
) -> None:
    async def story() -> None:
        async with member(broker) as (_, first):
            await first.until(lambda owned: len(owned) == 4)
            async with member(broker) as (_, second):
                await second.until(lambda owned: len(owned) == 2)
                await first.until(lambda owned: owned == {0, 1, 2, 3} - second.partitions)
            await first.until(lambda owned: len(owned) == 4)

    asyncio.run(story())


def test_aiokafka_producer_creates_a_topic_by_sending(broker: Broker) -> None:
    async def story() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap) as producer:
            assert (await producer.send_and_wait("new", b"x")).offset == 0

    asyncio.run(story())


def test_aiokafka_moves_records_and_offsets_in_one_transaction(broker: Broker) -> None:
    async def story() -> None:
        await send(broker, range(8))
        options = {"bootstrap_servers": broker.bootstrap, "transactional_id": "x"}
        async with AIOKafkaProducer(**options) as producer:
            at = {TopicPartition("t", 0): 1}
            async with producer.transaction():
                await producer.send("made", b"0", partition=0)
                await producer.send_offsets_to_transaction(at, "g")
            await producer.begin_transaction()
            await producer.send("made", b"1", partition=0)
            await producer.send_offsets_to_transaction({TopicPartition("t", 0): 2}, "g")
            await producer.abort_transaction()
            async with producer.transaction():
                await producer.send("made", b"2", partition=0)
        reading = {"auto_offset_reset": "earliest", "bootstrap_servers": broker.bootstrap}
        for level, values in (("read_committed", [0, 2]), ("read_uncommitted", [0, 1, 2])):
            consumer = AIOKafkaConsumer("made", isolation_level=level, group_id=None, **reading)
            async with consumer:
                assert await read(consumer, len(values)) == values
        async with member(broker) as (consumer, _):
            assert await consumer.committed(TopicPartition("t", 0)) == 1

    asyncio.run(story())


def test_aiokafka_producer_is_fenced_by_the_next_with_the_same_id(broker: Broker) -> None:
    async def story() -> None:
        options = {"bootstrap_servers": broker.bootstrap, "transactional_id": "x"}
        async with AIOKafkaProducer(**options) as zombie:
            await zombie.begin_transaction()
            await zombie.send_and_wait("t", b"0", partition=0)
            async with AIOKafkaProducer(**options):
                with pytest.raises(ProducerFenced):
                    await zombie.commit_transaction()

    asyncio.run(story())


# librdkafka.


def librdkafka(broker: Broker, **options: object) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "heartbeat.interval.ms": 100, "session.timeout.ms": 6000,
    } | {name.replace("_", "."): value for name, value in options.items()}  # fmt: skip


def take(consumer: Consumer, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"only {len(found)} of {count} came"
        assert message.error() is None, message.error()
        found.append(int(message.value() or b""))
    return found


def owned(consumer: Consumer) -> set[int]:
    return {tp.partition for tp in consumer.assignment()}


def settle(consumers: list[Consumer], good: Callable[[], bool]) -> None:
    for _ in range(2000):
        if good():
            return
        for consumer in consumers:
            consumer.poll(0.01)
    raise AssertionError([owned(consumer) for consumer in consumers])


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_sends_idempotently_and_compressed(codec: str, broker: Broker) -> None:
    producer = Producer(librdkafka(broker, enable_idempotence=True, compression_type=codec))
    for i in range(1000):
        producer.produce("t", b"%d" % i, partition=i % 4)
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer(librdkafka(broker))
    consumer.assign([At("t", partition, 0) for partition in range(4)])
    assert sorted(take(consumer, 1000)) == list(range(1000))
    consumer.close()


def test_librdkafka_consumers_hand_over_partition_by_partition(broker: Broker) -> None:
    options = librdkafka(broker, partition_assignment_strategy="cooperative-sticky")
    first, second = Consumer(options), Consumer(options)
    revoked: list[int] = []
    first.subscribe(["t"], on_revoke=lambda _, tps: revoked.extend(tp.partition for tp in tps))
    settle([first], lambda: len(owned(first)) == 4)
    second.subscribe(["t"])
    settle([first, second], lambda: len(owned(first)) == len(owned(second)) == 2)
    assert owned(first) | owned(second) == {0, 1, 2, 3}
    assert set(revoked) == owned(second)
    second.close()
    settle([first], lambda: len(owned(first)) == 4)
    first.close()


def test_static_librdkafka_member_returns_without_a_rebalance(broker: Broker) -> None:
    first = Consumer(librdkafka(broker, group_instance_id="one"))
    second = Consumer(librdkafka(broker, group_instance_id="two"))
    lost: list[int] = []
    first.subscribe(["t"], on_revoke=lambda _, tps: lost.extend(tp.partition for tp in tps))
    second.subscribe(["t"])
    settle([first, second], lambda: len(owned(first)) == len(owned(second)) == 2)
    before = owned(second)
    lost.clear()
    second.close()
    again = Consumer(librdkafka(broker, group_instance_id="two"))
    again.subscribe(["t"])
    settle([first, again], lambda: owned(again) == before)
    assert lost == []
    first.close()
    again.close()


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_librdkafka_consumers_of_the_new_protocol_share_a_topic(
    assignor: str, broker: Broker
) -> None:
    options = {
        "bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "group.protocol": "consumer",
        "group.remote.assignor": assignor,
    }  # fmt: skip
    producer = Producer(librdkafka(broker))
    for i in range(100):
        producer.produce("t", b"%d" % i, partition=i % 4)
    producer.flush(WAIT_S)
    first, second = Consumer(options), Consumer(options)
    first.subscribe(["t"])
    assert sorted(take(first, 100)) == list(range(100))
    first.commit(asynchronous=False)
    second.subscribe(["t"])
    settle([first, second], lambda: len(owned(first)) == len(owned(second)) == 2)
    assert owned(first) | owned(second) == {0, 1, 2, 3}
    (place,) = second.committed([At("t", min(owned(second)))], timeout=WAIT_S)
    assert place.offset == 25
    second.close()
    settle([first], lambda: len(owned(first)) == 4)
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    (future,) = client.describe_consumer_groups(["g"]).values()
    assert future.result(WAIT_S).state == ConsumerGroupState.STABLE
    first.close()


def test_librdkafka_moves_records_and_offsets_in_one_transaction(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "x"})
    consumer = Consumer(librdkafka(broker, isolation_level="read_committed"))
    consumer.subscribe(["t"])
    settle([consumer], lambda: len(owned(consumer)) == 4)
    producer.init_transactions(WAIT_S)
    for value in (b"0", b"1", b"2"):
        producer.begin_transaction()
        producer.produce("t", value, partition=0)
        at = [At("t", 0, int(value) + 1)]
        producer.send_offsets_to_transaction(at, consumer.consumer_group_metadata(), WAIT_S)
        if value == b"1":
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)
    assert take(consumer, 2) == [0, 2]
    assert consumer.committed([At("t", 0)], timeout=WAIT_S)[0].offset == 3
    consumer.close()

    again = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "x"})
    producer.begin_transaction()
    producer.produce("t", b"3", partition=0)
    again.init_transactions(WAIT_S)
    with pytest.raises(KafkaException, match="_FENCED"):
        producer.commit_transaction(WAIT_S)


def test_librdkafka_resets_offsets_of_an_empty_group_only(broker: Broker) -> None:
    """With a member in the group the reset is refused: a worker would commit over it."""
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap})

    def reset(offset: int) -> bool:
        """Reset offsets; return whether the broker has done it."""
        asked = confluent_kafka.ConsumerGroupTopicPartitions("g", [At("t", 0, offset)])
        (future,) = client.alter_consumer_group_offsets([asked]).values()
        (answered,) = future.result(WAIT_S).topic_partitions
        return answered.error is None

    producer = Producer(librdkafka(broker))
    for value in (b"1", b"2"):
        producer.produce("t", value, partition=0)
    producer.flush(WAIT_S)
    first = Consumer(librdkafka(broker))
    first.subscribe(["t"])
    assert take(first, 2) == [1, 2]
    first.commit(asynchronous=False)
    assert not reset(1)
    first.close()
    assert reset(1)
    second = Consumer(librdkafka(broker))
    second.subscribe(["t"])
    assert take(second, 1) == [2]
    second.close()


def test_librdkafka_admin_manages_topics_and_configs(broker: Broker) -> None:
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap})

    def done(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(WAIT_S)

    done(client.create_topics([admin.NewTopic("new", 2, config={"retention.ms": "5000"})]))
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        done(client.create_topics([admin.NewTopic("new", 2)]))
    done(client.create_partitions([admin.NewPartitions("new", 3)]))
    topics = client.list_topics(timeout=WAIT_S).topics
    assert {name: len(topic.partitions) for name, topic in topics.items()} == {"t": 4, "new": 3}
    resource = admin.ConfigResource(admin.ResourceType.TOPIC, "new")
    assert done(client.describe_configs([resource]))["retention.ms"].value == "5000"
    kind = admin.AlterConfigOpType.SET
    change = admin.ConfigEntry("retention.ms", "6000", incremental_operation=kind)
    altered = admin.ConfigResource(admin.ResourceType.TOPIC, "new", incremental_configs=[change])
    done(client.incremental_alter_configs([altered]))
    assert done(client.describe_configs([resource]))["retention.ms"].value == "6000"

    producer = Producer(librdkafka(broker))
    producer.produce("new", b"1", partition=0)
    producer.flush(WAIT_S)
    consumer = Consumer(librdkafka(broker))
    consumer.subscribe(["new"])
    assert take(consumer, 1) == [1]
    consumer.commit(asynchronous=False)
    (listed,) = client.list_consumer_groups().result(WAIT_S).valid
    assert listed.group_id == "g"
    described = done(client.describe_consumer_groups(["g"]))
    (found,) = described.members
    assert {tp.partition for tp in found.assignment.topic_partitions} == {0, 1, 2}
    consumer.close()
    assert done(client.delete_records([At("new", 0, 1)])).low_watermark == 1
    done(client.delete_consumer_groups(["g"]))
    done(client.delete_topics(["new"]))
    assert set(client.list_topics(timeout=WAIT_S).topics) == {"t"}
    assert len(client.describe_cluster().result(WAIT_S).nodes) == 1
