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
    """The story with a scripted broker and a cluster that has found it."""

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


def test_what_is_not_there_or_not_followed_has_no_partitions() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.follow(["b"])
        for topic in ("a", "b"):
            assert (cluster.partitions(topic), cluster.leader(TopicPartition(topic, 0))) == (
                0,
                None,
            )
            assert cluster.error(topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(story, topics={"a": 2})


def test_no_metadata_request_may_bring_a_topic_into_being() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await cluster.follow(["a"])
        await cluster.refresh()
        await cluster.metadata(["b"])
        asked = broker.asked_for(Api.METADATA)
        assert [[t.name for t in each.body.topics] for each in asked] == [[], ["a"], ["a"], ["b"]]
        assert {each.body.allow_auto_topic_creation for each in asked} == {False}

    run(story, topics={"a": 2})


def test_a_refusal_of_a_topic_is_told_with_its_code() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        def refuses(asked: Asked) -> wire.Body:
            node = {"node_id": NODE, "host": "127.0.0.1", "port": broker.port}
            return {"brokers": [node], "topics": [{"name": "a", "error_code": 29}]}

        broker.answers[Api.METADATA] = refuses
        await cluster.follow(["a"])
        assert cluster.error("a") == ErrorCode.TOPIC_AUTHORIZATION_FAILED

    run(story)


def test_who_asks_for_news_at_the_same_time_shares_one_request() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        before = len(broker.asked_for(Api.METADATA))
        await asyncio.gather(*(cluster.refresh() for _ in range(20)))
        assert len(broker.asked_for(Api.METADATA)) - before == 2

    run(story)


def test_a_shared_request_that_failed_is_not_taken_for_news() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        await broker.stop()
        asked = (cluster.refresh() for _ in range(5))
        heard = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in heard] == [BrokerUnreachable] * 5

    run(story)


def test_a_cluster_that_is_not_there_is_told_after_the_given_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streamsx.client.cluster.PATIENCE_S", 0.05)
    ports = free_port(), free_port()
    where = ",".join(f"127.0.0.1:{port}" for port in ports)
    with pytest.raises(BrokerUnreachable) as told:
        asyncio.run(Cluster(where).start(timeout_s=0.25))
    said = str(told.value)
    assert said.startswith(f"no Kafka broker in 0.25 s: {where}: start one, or give the address")
    assert f"no connection: 127.0.0.1:{ports[1]}" in said
    (waiting,) = caplog.messages
    assert waiting.startswith(f"waiting for {where} (no broker answers: no connection: 127.0.0.1:")


def test_who_is_hung_up_on_comes_again_ever_more_seldom() -> None:
    """As a client without SASL is by a broker that wants it: 25 times a second for 10 s."""

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


def test_a_cluster_that_was_found_is_not_told_of_as_one_that_is_waited_for(
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


def test_a_cluster_that_comes_up_late_is_found() -> None:
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
def test_a_bootstrap_that_is_no_list_of_addresses_is_refused(bootstrap: str) -> None:
    with pytest.raises(SettingError):
        Cluster(bootstrap)


def test_a_lane_is_one_connection_however_many_open_it_at_once() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        before = broker.connections
        opened = await asyncio.gather(*(cluster.open(NODE, "data") for _ in range(5)))
        assert len(set(opened)) == 1
        assert broker.connections - before == 1
        assert await cluster.open(NODE, "restore") not in opened
        assert await cluster.any("data") in opened

    run(story)


def test_a_request_that_waits_on_one_lane_holds_up_no_other() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        waits = await cluster.open(NODE, "join")
        join = asyncio.create_task(waits.ask(Api.JOIN_GROUP, {}))
        beat = await cluster.open(NODE, "beat")
        assert (await beat.ask(Api.HEARTBEAT, BEAT)).error_code == 0
        join.cancel()

    run(story, {Api.JOIN_GROUP: never, Api.HEARTBEAT: lambda asked: {}})


def test_a_lane_that_the_broker_closed_silently_is_opened_anew_at_the_next_use() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        first = await cluster.open(NODE, "data")
        broker.hang_up()
        while not first.closed:  # noqa: ASYNC110  # no event tells what a socket will bring
            await asyncio.sleep(0)
        second = await cluster.open(NODE, "data")
        assert second is not first
        assert (await second.ask(Api.HEARTBEAT, BEAT)).error_code == 0

    run(story, {Api.HEARTBEAT: lambda asked: {}})


def test_a_lane_that_was_aborted_is_opened_anew_at_once() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        first = await cluster.open(NODE, "data")
        first.abort()
        second = await cluster.open(NODE, "data")
        assert (await second.ask(Api.HEARTBEAT, BEAT)).error_code == 0

    run(story, {Api.HEARTBEAT: lambda asked: {}})


def test_after_a_restart_everything_recovers() -> None:
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


def test_a_broker_that_hangs_up_while_it_is_asked_is_asked_again() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        answers = iter([None, None, {"controller_id": 7}])
        broker.answers[Api.METADATA] = lambda asked: next(answers)
        await cluster.refresh()
        assert len(broker.asked_for(Api.METADATA)) == 4

    run(story)


def test_a_broker_that_starts_and_knows_no_broker_yet_does_not_make_us_forget_them() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.answers[Api.METADATA] = lambda asked: {}
        await cluster.refresh()
        assert not (await cluster.open(NODE, "lane")).closed

    run(story)


def test_a_broker_that_does_not_answer_is_given_up() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.answers[Api.METADATA] = never
        with pytest.raises(BrokerUnreachable, match=r"METADATA v10: .*: no answer in 0.2 s"):
            await cluster.refresh()

    run(story, timeout_s=0.2)


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "not connected"])
def test_a_node_that_has_vanished_costs_a_moment_and_no_time_out(*, connected: bool) -> None:
    """Its time-outs came one after the other, 5 s each: longer than a session."""

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


def test_a_broker_that_cannot_be_talked_to_is_the_users_error_and_no_other_is_tried() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.ranges[Api.METADATA] = (50, 50)
        broker.hang_up()
        with pytest.raises(UsageError, match="the broker does not know METADATA"):
            await cluster.refresh()

    run(story)


def test_an_unknown_broker_is_not_reachable() -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        with pytest.raises(BrokerUnreachable, match="broker 9 is not in the metadata"):
            await cluster.open(9, "data")

    run(story)


def coordinated(asked: Asked, port: int) -> wire.Body:
    return {"node_id": 5, "host": "127.0.0.1", "port": port}


def test_the_coordinator_of_a_group_is_looked_up_and_connected_to() -> None:
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
def test_a_group_without_coordinator_says_why(code: ErrorCode, kind: type[Exception]) -> None:
    async def story(broker: ScriptedBroker, cluster: Cluster) -> None:
        broker.answers[Api.FIND_COORDINATOR] = lambda asked: {"error_code": code}
        with pytest.raises(kind, match=f"{code.name}: coordinator of group g"):
            await cluster.coordinator("g")

    run(story)
