"""Metadata and connections by lane, against a scripted broker that goes away and comes back."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from streamsx.client.cluster import TRIES, Cluster
from streamsx.errors import BrokerUnreachable, SettingError, UsageError, WorldError
from streamsx.model import TopicPartition
from streamsx.protocol import wire
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from tests.support.scripted_broker import NODE, Answer, Asked, ScriptedBroker

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BEAT = {"group_id": "g", "generation_id": 1, "member_id": "m"}
Story = Callable[[ScriptedBroker, Cluster], Coroutine[Any, Any, None]]


def run(
    story: Story,
    answers: dict[int, Answer] | None = None,
    topics: dict[str, int] | None = None,
    timeout_s: float = 5.0,
) -> None:
    """Run a story with a scripted broker and a cluster that has found it."""

    async def told() -> None:
        async with asyncio.timeout(10), ScriptedBroker(answers, topics) as broker:
            cluster = Cluster(broker.bootstrap, timeout_s=timeout_s)
            await cluster.start()
            try:
                await story(broker, cluster)
            finally:
                await cluster.stop()

    asyncio.run(told())


async def never(asked: Asked) -> None:
    await asyncio.Event().wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def test_followed_topics_have_leaders_and_partition_counts() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.follow(["a", "b"])
        assert (cluster.partitions("a"), cluster.partitions("b")) == (2, 1)
        assert (cluster.leader(A1), cluster.leader(TopicPartition("a", 2))) == (NODE, None)
        assert cluster.error("a") == ErrorCode.NONE

    run(story, topics={"a": 2, "b": 1})


def test_absent_or_unfollowed_topic_has_no_partitions() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.follow(["b"])
        for topic in ("a", "b"):
            assert (cluster.partitions(topic), cluster.leader(TopicPartition(topic, 0))) == (
                0,
                None,
            )
            assert cluster.error(topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(story, topics={"a": 2})


def test_metadata_requests_never_create_topics() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.follow(["a"])
        await cluster.refresh()
        await cluster.metadata(["b"])
        asked = broker.asked_for(Api.METADATA)
        assert [[t.name for t in each.body.topics] for each in asked] == [[], ["a"], ["a"], ["b"]]
        assert {each.body.allow_auto_topic_creation for each in asked} == {False}

    run(story, topics={"a": 2})


def test_topic_error_code_available_from_metadata() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        def refuses(asked: Asked) -> wire.Body:
            node = {"node_id": NODE, "host": "127.0.0.1", "port": broker.port}
            return {"brokers": [node], "topics": [{"name": "a", "error_code": 29}]}

        broker.answers[Api.METADATA] = refuses
        await cluster.follow(["a"])
        assert cluster.error("a") == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    run(story)


def test_concurrent_refreshes_share_requests() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        before = len(broker.asked_for(Api.METADATA))
        await asyncio.gather(*(cluster.refresh() for _ in range(20)))
        assert len(broker.asked_for(Api.METADATA)) - before == 2

    run(story)


def test_failed_shared_refresh_raises_for_all_waiters() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await broker.stop()
        asked = (cluster.refresh() for _ in range(5))
        heard = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in heard] == [BrokerUnreachable] * 5

    run(story)


def test_absent_cluster_logged_and_raised_after_timeout(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streamsx.client.cluster.PATIENCE_S", 0.05)
    monkeypatch.setattr("streamsx.client.cluster.WAITS_S", 0.05)
    ports = free_port(), free_port()
    where = ",".join(f"127.0.0.1:{port}" for port in ports)
    with pytest.raises(BrokerUnreachable) as told:
        asyncio.run(Cluster(where).start(timeout_s=0.25))
    said = str(told.value)
    assert said.startswith(f"no Kafka broker in 0.25 s: {where}: start one, or give the address")
    assert f"no connection: 127.0.0.1:{ports[1]}" in said
    (waiting,) = caplog.messages
    assert waiting.startswith(f"waiting for {where} (no broker answers: no connection: 127.0.0.1:")


def test_reconnects_back_off_after_hang_ups() -> None:
    """A broker that demands SASL hung up on a client without it 25 times a second for 10 s."""

    async def story() -> int:
        dialled = 0

        def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal dialled
            dialled += 1
            writer.transport.abort()

        server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(BrokerUnreachable):
            await Cluster(f"127.0.0.1:{port}").start(timeout_s=3.0)
        server.close()
        return dialled

    dialled = asyncio.run(story())
    assert TRIES < dialled <= 8 * TRIES


def test_found_cluster_is_not_logged_as_awaited(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streamsx.client.cluster.PATIENCE_S", 0.1)

    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        another = Cluster(broker.bootstrap)  # what it takes to start is imported by now
        await another.start()
        caplog.clear()
        await asyncio.sleep(0.15)
        assert caplog.messages == []
        await another.stop()

    run(story)


def test_cluster_starting_late_is_found() -> None:
    async def told() -> None:
        async with ScriptedBroker(topics={"a": 1}) as broker:
            await broker.stop()
            cluster = Cluster(f"127.0.0.1:{free_port()},{broker.bootstrap}")
            starting = asyncio.create_task(cluster.start())
            await asyncio.sleep(0.15)
            await broker.start()
            await starting
            await cluster.follow(["a"])
            assert cluster.partitions("a") == 1
            await cluster.stop()

    asyncio.run(told())


@pytest.mark.parametrize("bootstrap", ["", "localhost", "localhost:9092,"])
def test_invalid_bootstrap_refused(bootstrap: str) -> None:
    with pytest.raises(SettingError):
        Cluster(bootstrap)


def test_lane_opened_concurrently_is_one_connection() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        before = broker.connections
        opened = await asyncio.gather(*(cluster.open(NODE, "data") for _ in range(5)))
        assert len(set(opened)) == 1
        assert broker.connections - before == 1
        assert await cluster.open(NODE, "restore") not in opened
        assert await cluster.any("data") in opened

    run(story)


def test_request_waiting_on_one_lane_does_not_block_others() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        waits = await cluster.open(NODE, "join")
        join = asyncio.create_task(waits.ask(Api.JOIN_GROUP, {}))
        beat = await cluster.open(NODE, "beat")
        assert (await beat.ask(Api.HEARTBEAT, BEAT)).error_code == 0
        join.cancel()

    run(story, {Api.JOIN_GROUP: never, Api.HEARTBEAT: lambda asked: {}})


def test_lane_closed_by_broker_reopened_at_next_use() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        first = await cluster.open(NODE, "data")
        broker.hang_up()
        while not first.closed:  # noqa: ASYNC110  # no event tells what a socket will bring
            await asyncio.sleep(0)
        second = await cluster.open(NODE, "data")
        assert second is not first
        assert (await second.ask(Api.HEARTBEAT, BEAT)).error_code == 0

    run(story, {Api.HEARTBEAT: lambda asked: {}})


def test_aborted_lane_reopened_at_once() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        first = await cluster.open(NODE, "data")
        first.abort()
        second = await cluster.open(NODE, "data")
        assert (await second.ask(Api.HEARTBEAT, BEAT)).error_code == 0

    run(story, {Api.HEARTBEAT: lambda asked: {}})


def test_cluster_recovers_after_broker_restart() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.follow(["a"])
        await broker.stop()
        with pytest.raises(
            BrokerUnreachable, match=r"no broker answers: no connection: 127.0.0.1:"
        ):
            await cluster.refresh()
        with pytest.raises(BrokerUnreachable):
            await cluster.open(NODE, "data")
        assert cluster.leader(A0) == NODE

        broker.topics["a"] = 3
        await broker.start()
        await cluster.refresh()
        assert cluster.partitions("a") == 3
        assert not (await cluster.open(NODE, "data")).closed

    run(story, topics={"a": 1})


def test_metadata_request_retried_after_hang_up() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        answers = iter([None, None, {"controller_id": 7}])
        broker.answers[Api.METADATA] = lambda asked: next(answers)
        await cluster.refresh()
        assert len(broker.asked_for(Api.METADATA)) == 4

    run(story)


def test_empty_metadata_of_starting_broker_keeps_known_brokers() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.answers[Api.METADATA] = lambda asked: {}
        await cluster.refresh()
        assert not (await cluster.open(NODE, "lane")).closed

    run(story)


def test_unresponsive_broker_given_up_after_timeout() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.answers[Api.METADATA] = never
        with pytest.raises(BrokerUnreachable, match=r"METADATA v10: .*: no answer in 0.2 s"):
            await cluster.refresh()

    run(story, timeout_s=0.2)


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
def test_vanished_broker_does_not_delay_refresh_until_timeout(*, connected: bool) -> None:
    """Its timeouts of 5 s came one after the other, which took longer than a session."""

    async def told() -> None:
        async with ScriptedBroker() as alive, ScriptedBroker() as vanishes:

            def both(asked: Asked) -> wire.Body:
                ports = {1: vanishes.port, 2: alive.port}
                nodes = [{"node_id": n, "host": "127.0.0.1", "port": p} for n, p in ports.items()]
                return {"brokers": nodes, "controller_id": 2}

            alive.answers[Api.METADATA] = vanishes.answers[Api.METADATA] = both
            cluster = Cluster(vanishes.bootstrap, timeout_s=30.0)
            await cluster.start()
            vanishes.answers[Api.METADATA] = never
            vanishes.answers[Api.API_VERSIONS] = never
            if not connected:
                vanishes.hang_up()
            async with asyncio.timeout(10):
                for _ in range(5):
                    await cluster.refresh()
            await cluster.stop()

    asyncio.run(told())


def test_incompatible_broker_raises_usage_error_without_retry() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.ranges[Api.METADATA] = (50, 50)
        broker.hang_up()
        with pytest.raises(UsageError, match="the broker does not support METADATA"):
            await cluster.refresh()

    run(story)


def test_unknown_broker_raises_unreachable() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(BrokerUnreachable, match="broker 9 is not in the metadata"):
            await cluster.open(9, "data")

    run(story)


def coordinated(asked: Asked, port: int) -> wire.Body:
    return {"node_id": 5, "host": "127.0.0.1", "port": port}


def test_group_coordinator_looked_up_and_connected() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.answers[Api.FIND_COORDINATOR] = lambda asked: coordinated(asked, broker.port)
        connection = await cluster.open(await cluster.coordinator("g"), "beat")
        assert (await connection.ask(Api.HEARTBEAT, BEAT)).error_code == 0
        (asked,) = broker.asked_for(Api.FIND_COORDINATOR)
        assert (asked.body.key, asked.body.key_type) == ("g", 0)
        assert await cluster.open(await cluster.coordinator("g"), "beat") is connection

    run(story, {Api.HEARTBEAT: lambda asked: {}})


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, WorldError),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, SettingError),
    ],
)
def test_missing_group_coordinator_raises_with_code(code: ErrorCode, kind: type[Exception]) -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.answers[Api.FIND_COORDINATOR] = lambda asked: {"error_code": code}
        with pytest.raises(kind, match=f"{code.name}: coordinator of group g"):
            await cluster.coordinator("g")

    run(story)
