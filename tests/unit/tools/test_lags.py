"""Lag of an app, by the brokers."""

import asyncio
from typing import Any

from confluent_kafka import Producer

from streamsx.assignor.model import MemberMetadata
from streamsx.assignor.observer import GroupReport, Instance
from streamsx.client.admin import delete_topics
from streamsx.client.cluster import Cluster
from streamsx.model import TaskId, TopicPartition
from streamsx.processing.progress import HEADER, Told
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from streamsx.testing import Broker
from streamsx.tools.cli.lags import input_of, waiting
from streamsx.topology.time_links import Writer
from tests.support.scripted_broker import NODE, Asked, ScriptedBroker

TOPICS = {"orders": 4, "users": 2}
START, END = 10, 100
COMMITTED = {
    "orders": {0: 70, 2: 3, 3: 130}, "users": {0: 95, 1: 100},
}  # fmt: skip
"""Nothing of one, of another what is not there any more, or not yet."""
TASKS = [TaskId(0, number) for number in range(4)]
HERE = Instance(MemberMetadata("m1", "a"), (*TASKS[1:], TaskId(1, 1)))
SEEN = GroupReport(7, "m1", (HERE,), (TASKS[0],), {}, {0: ("orders", "users"), 1: ("users",)})


def answered(one: Any) -> Any:
    """Answer by what `one` returns for each partition."""

    def answer(asked: Asked) -> dict[str, Any]:
        topics = [
            {"name": t.name, "partitions": [one(t.name, p) for p in t.partitions]}
            for t in asked.body.topics
        ]
        return {"topics": topics}

    return answer


def committed(_asked: Asked) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": partition, "committed_offset": offset}
                    for partition, offset in offsets.items()
                ],
            }
            for topic, offsets in COMMITTED.items()
        ]
    }


def offset(_topic: str, asked: Any) -> dict[str, Any]:
    found = END if asked.timestamp == -1 else START
    return {"partition_index": asked.partition_index, "offset": found}


def seen(offsets: Any, coordinator: int = ErrorCode.NONE) -> dict[TaskId, int | None]:
    async def story() -> dict[TaskId, int | None]:
        answers: dict[int, Any] = {
            Api.OFFSET_FETCH: committed,
            Api.LIST_OFFSETS: offsets,
            Api.FETCH: lambda _: {"responses": []},
        }
        async with ScriptedBroker(answers, TOPICS) as broker:
            here = {"node_id": NODE, "host": "127.0.0.1", "port": broker.port}
            broker.answers[Api.FIND_COORDINATOR] = lambda _: {"error_code": coordinator, **here}
            cluster = Cluster(broker.bootstrap, tries_for_s=0.2)
            await cluster.start()
            try:
                found = await input_of(cluster, "shop", SEEN)
                return {task: each.lag for task, each in found.tasks.items()}
            finally:
                await cluster.stop()

    return asyncio.run(story())


def test_task_lag_is_the_sum_of_uncommitted_records_of_all_inputs() -> None:
    """Also of a task that runs on no worker at the moment."""
    assert seen(answered(offset)) == {
        TASKS[0]: 30 + 5, TASKS[1]: 90, TASKS[2]: 90, TASKS[3]: 0, TaskId(1, 1): 0,
    }  # fmt: skip


def test_refused_partition_makes_only_one_task_lag_unknown() -> None:
    def refused(topic: str, asked: Any) -> dict[str, Any]:
        one = (topic, asked.partition_index) == ("orders", 2)
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED if one else ErrorCode.NONE
        return {**offset(topic, asked), "error_code": code}

    assert seen(answered(refused)) == {
        TASKS[0]: 35, TASKS[1]: 90, TASKS[2]: None, TASKS[3]: 0, TaskId(1, 1): 0,
    }  # fmt: skip


def test_lags_are_unknown_while_the_coordinator_moves() -> None:
    found = seen(answered(offset), ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert set(found.values()) == {None}


# What offsets without a record have to do with it.

READ = TopicPartition("in", 0)


def produced(broker: Broker, *sends: tuple[str, bool]) -> None:
    """Send values in a transaction each; False aborts it."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "x"})
    producer.init_transactions(10)
    for value, commits in sends:
        producer.begin_transaction()
        producer.produce("in", value, partition=0)
        if commits:
            producer.commit_transaction(10)
        else:
            producer.flush(10)
            producer.abort_transaction(10)


def left(broker: Broker, committed: int) -> dict[TopicPartition, int]:
    async def story() -> dict[TopicPartition, int]:
        cluster = Cluster(broker.bootstrap)
        await cluster.start()
        try:
            await cluster.follow(["in"])
            return await waiting(cluster, {READ: committed}, [READ])
        finally:
            await cluster.stop()

    return asyncio.run(story())


def test_markers_and_aborted_records_do_not_count_as_lag() -> None:
    with Broker(topics={"in": 1}) as broker:
        produced(broker, ("a", True), ("b", False), ("c", True), ("d", False))
        found = [left(broker, committed)[READ] for committed in (0, 1, 5, 6, 8)]
    assert found == [2, 1, 0, 0, 0], "offsets: a . b . c . d ."


def test_times_of_writers_do_not_count_as_lag() -> None:
    value = Told(Writer(1, 0), 5).encode()
    with Broker(topics={"in": 1}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("in", "a", partition=0)
        producer.produce("in", value, partition=0, headers=[(HEADER, None)])
        producer.flush(10)
        found = [left(broker, committed)[READ] for committed in (0, 1, 2)]
    assert found == [1, 0, 0]


def test_open_transaction_does_not_count_as_lag() -> None:
    with Broker(topics={"in": 1}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "x"})
        producer.init_transactions(10)
        producer.begin_transaction()
        producer.produce("in", "a", partition=0)
        producer.flush(10)
        assert left(broker, 0) == {READ: 0}
        producer.abort_transaction(10)


def test_topic_deleted_between_two_looks_is_absent() -> None:
    report = GroupReport(7, "m1", (HERE,), (), {}, {0: ("in",), 1: ("kept",)})

    async def story(broker: Broker) -> list[tuple[str, ...]]:
        cluster = Cluster(broker.bootstrap)
        await cluster.start()
        try:
            first = await input_of(cluster, "shop", report)
            await delete_topics(cluster, ["in"])
            return [first.absent, (await input_of(cluster, "shop", report)).absent]
        finally:
            await cluster.stop()

    with Broker(topics={"in": 1, "kept": 1}) as broker:
        assert asyncio.run(story(broker)) == [(), ("in",)]
