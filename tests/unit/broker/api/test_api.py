"""Requests to a broker on the test's own event loop."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from streamsx.broker.groups.coordinator import Coordinator
from streamsx.broker.groups.coordinator_events import ClientRequest, Effect, Event
from streamsx.broker.log.log import Log
from streamsx.broker.log.producer_state import AbortedTransaction
from streamsx.broker.log.segment import DESCRIPTORS_MAX
from streamsx.broker.metadata_store import MetadataStore
from streamsx.broker.net.client_connection import ConnectionLimits
from streamsx.broker.net.server import BrokerServer
from streamsx.broker.options import Options
from streamsx.protocol import wire
from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.record_batch import scan
from streamsx.protocol.wire import Api
from tests.support.coordinator_harness import classic
from tests.unit.broker.conftest import Client, Run, batch, produced, until

SIZE = len(batch(b"x" * 100))


def fetched(
    *partitions: int, offset: int = 0, max_bytes: int = 1 << 20, partition_max: int = 1 << 20,
    min_bytes: int = 1, wait_ms: int = 0, topic: str = "t", session: int = 0,
) -> dict[str, Any]:  # fmt: skip
    asked = [
        {"partition": p, "fetch_offset": offset, "partition_max_bytes": partition_max}
        for p in partitions
    ]
    return {
        "max_wait": wait_ms, "min_bytes": min_bytes, "max_bytes": max_bytes,
        "session_id": session, "session_epoch": 1 if session else -1,
        "topics": [{"topic": topic, "partitions": asked}],
    }  # fmt: skip


def counts(answer: Any) -> list[int]:
    """Return the number of whole batches per partition of a fetch."""
    return [
        sum(1 for _ in whole(bytes(p.records or b"")))
        for topic in answer.responses
        for p in topic.partitions
    ]


def whole(data: bytes) -> Any:
    """Return the whole batches; the last one may be cut."""
    while len(data) >= 12 and len(data) >= (size := int.from_bytes(data[8:12]) + 12):
        yield from scan(memoryview(data[:size]), check=True)
        data = data[size:]


# Fetch.


@pytest.mark.parametrize("most", [-1, 0, 1, SIZE])
def test_fetch_returns_first_batch_whole_above_byte_limit(run: Run, most: int) -> None:
    async def story(client: Client, _: Client) -> None:
        for partition in (0, 0, 1):
            await client.produce(b"x" * 100, partition=partition)
        told = await client.ask(Api.FETCH, 11, **fetched(0, 1, max_bytes=most))
        assert counts(told) == [1, 0]
        told = await client.ask(Api.FETCH, 11, **fetched(0, 1, partition_max=most))
        assert counts(told) == [1, 1]
        told = await client.ask(Api.FETCH, 11, **fetched(0, 1, max_bytes=2 * SIZE + 1))
        assert counts(told) == [2, 1]

    run(story)


def test_fetch_wait_is_capped_by_connection_idle_timeout(run: Run) -> None:
    """A client that waits for weeks may be gone, and keeps its connection all the time."""

    async def story(client: Client, _: Client) -> None:
        told = await client.ask(Api.FETCH, 11, **fetched(0, wait_ms=2**31 - 1))
        assert counts(told) == [0]

    run(story, limits=ConnectionLimits(connections_max_idle_s=1.0))


def test_fetch_waits_for_min_bytes_over_all_partitions(run: Run) -> None:
    async def story(client: Client, other: Client) -> None:
        await other.produce(b"x" * 100)
        wanted = fetched(0, 1, min_bytes=2 * SIZE + 1, wait_ms=60_000)
        client.send(Api.FETCH, 11, **wanted)
        await other.produce(b"x" * 100, partition=1)
        waiting = asyncio.ensure_future(client.told(Api.FETCH, 11))
        await other.ask(Api.API_VERSIONS, 0)
        assert not waiting.done()
        await other.produce(b"x", partition=1)
        assert counts(await waiting) == [1, 2]
        at_once = fetched(0, 1, min_bytes=2 * SIZE + len(batch(b"x")), wait_ms=60_000)
        assert counts(await client.ask(Api.FETCH, 11, **at_once)) == [1, 2]

    run(story)


def test_fetch_outside_log_answered_out_of_range_at_once(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        await client.produce(b"a", b"b", b"c")
        deleted = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 2}]}]
        await client.ask(Api.DELETE_RECORDS, 2, topics=deleted, timeout=1000)
        far = E.OFFSET_OUT_OF_RANGE
        for offset, code, start in ((1, far, -1), (2, E.NONE, 2), (4, far, -1)):
            body = fetched(0, offset=offset, wait_ms=60_000)
            told = (await client.ask(Api.FETCH, 11, **body)).responses[0].partitions[0]
            assert (told.error_code, told.log_start_offset) == (code, start)
        told = (await client.ask(Api.FETCH, 11, **fetched(0, offset=3))).responses[0].partitions[0]
        assert (told.error_code, told.high_watermark, told.last_stable_offset) == (E.NONE, 3, 3)

    run(story)


def test_invalid_fetch_answered_with_error_at_once(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        for topic, partition in (("no", 0), ("t", 2), ("t", -1)):
            body = fetched(partition, topic=topic, wait_ms=60_000)
            told = (await client.ask(Api.FETCH, 11, **body)).responses[0].partitions[0]
            assert told.error_code == E.UNKNOWN_TOPIC_OR_PARTITION
        body = fetched(0, wait_ms=60_000, session=7)
        told = await client.ask(Api.FETCH, 11, **body)
        assert told.error_code == E.FETCH_SESSION_ID_NOT_FOUND

    run(story)


def test_parked_fetch_answered_at_once_when_topic_is_deleted(run: Run) -> None:
    async def story(client: Client, other: Client) -> None:
        client.send(Api.FETCH, 11, **fetched(0, 1, wait_ms=60_000))
        log = client.broker.service.topics.by_name["t"].logs[1]
        await until(lambda: log.waiters)
        await other.ask(Api.DELETE_TOPICS, 5, topic_names=["t"], timeout=1000)
        told = (await client.told(Api.FETCH, 11)).responses[0].partitions
        assert {p.error_code for p in told} == {E.UNKNOWN_TOPIC_OR_PARTITION}

    run(story)


def test_storage_error_of_parked_fetch_does_not_fail_producer(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Log.read

    def failing(log: Log, offset: int, most: int, *, committed: bool) -> bytes:
        if log.folder.name == "t-1":
            raise OSError("bad disk")
        return read(log, offset, most, committed=committed)

    async def story(client: Client, other: Client) -> None:
        client.send(Api.FETCH, 11, **fetched(0, 1, wait_ms=60_000))
        await other.ask(Api.API_VERSIONS, 0)
        monkeypatch.setattr(Log, "read", failing)
        written = await other.produce(b"x")
        assert (written.error_code, written.base_offset) == (E.NONE, 0)
        told = await client.told(Api.FETCH, 11)
        ((good, bad),) = (topic.partitions for topic in told.responses)
        assert (good.error_code, bad.error_code) == (E.NONE, E.KAFKA_STORAGE_ERROR)
        assert counts(told) == [1, 0]

    run(story)


def test_damaged_batch_fails_only_own_partition_for_read_committed(
    run: Run,
) -> None:
    """The connection was closed, and all other partitions failed with it, at each retry."""

    async def story(client: Client, _: Client) -> None:
        for partition in (0, 1):
            await client.produce(b"x", partition=partition)
        log = client.broker.service.topics.by_name["t"].logs[0]
        log.producers.aborted.append(AbortedTransaction(1, 0, 9, 9))
        with log.segments[0].path.open("r+b") as file:
            file.seek(16)
            file.write(b"?")
        told = await client.ask(Api.FETCH, 11, isolation_level=1, **fetched(0, 1))
        codes = [p.error_code for topic in told.responses for p in topic.partitions]
        assert codes == [E.CORRUPT_MESSAGE, E.NONE]

    run(story)


def test_finished_or_disconnected_fetch_leaves_no_waiter(run: Run) -> None:
    async def story(client: Client, other: Client) -> None:
        logs = client.broker.service.topics.by_name["t"].logs
        for end in (lambda: other.produce(b"x"), client.writer.close):
            client.send(Api.FETCH, 11, **fetched(0, offset=logs[0].end, wait_ms=60_000))
            await until(lambda: logs[0].waiters)
            if (ended := end()) is not None:
                await ended
                assert counts(await client.told(Api.FETCH, 11)) == [1]
            await until(lambda: not logs[0].waiters)

    run(story)


# Produce.


@pytest.mark.parametrize("sync", [False, True])
def test_produce_acknowledged_once_high_watermark_has_advanced(run: Run, sync: bool) -> None:
    async def story(client: Client, _: Client) -> None:
        for acks, offset in ((1, 0), (-1, 1)):
            told = await client.produce(b"x", acks=acks)
            assert (told.error_code, told.base_offset) == (E.NONE, offset)
            assert client.broker.service.topics.by_name["t"].logs[0].high_watermark == offset + 1

    run(story, options=Options(sync=sync))


def test_invalid_produce_appends_nothing(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        wrong = [
            (produced(b"x", acks=2), E.INVALID_REQUIRED_ACKS),
            (produced(b"x", acks=-2), E.INVALID_REQUIRED_ACKS),
            (produced(b"x", topic="no"), E.UNKNOWN_TOPIC_OR_PARTITION),
            (produced(b"x", topic="no", acks=2), E.UNKNOWN_TOPIC_OR_PARTITION),
            (produced(b"x", partition=2, acks=2), E.UNKNOWN_TOPIC_OR_PARTITION),
            (produced(b"x", partition=2), E.UNKNOWN_TOPIC_OR_PARTITION),
            (produced(b"x" * 1_048_588), E.MESSAGE_TOO_LARGE),
        ]
        for body, code in wrong:
            told = await client.ask(Api.PRODUCE, 9, **body)
            (partition,) = told.responses[0].partition_responses
            assert (partition.error_code, partition.base_offset) == (code, -1)
        assert [log.end for log in client.broker.service.topics.by_name["t"].logs] == [0, 0]

    run(story)


def test_produce_with_acks_0_appends_without_answer(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        client.send(Api.PRODUCE, 9, **produced(b"x", acks=0))
        told = await client.produce(b"x")
        assert (told.error_code, told.base_offset) == (E.NONE, 1)

    run(story)


def test_produce_not_acknowledged_when_append_or_flush_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append fails, then the flush; then the batch is sent again."""

    def failing(*_: object) -> None:
        raise OSError("planted")

    async def story(client: Client, _: Client) -> None:
        for method in ("append", "flush"):
            with monkeypatch.context() as broken:
                broken.setattr(Log, method, failing)
                told = await client.produce(b"x")
            assert (told.error_code, told.base_offset) == (E.KAFKA_STORAGE_ERROR, -1), method
        told = await client.produce(b"z")
        assert told.error_code == E.KAFKA_STORAGE_ERROR, "a flush has failed"
        assert not client.broker.service.topics.reopen()
        assert (await client.produce(b"y")).base_offset == 0

    run(story, options=Options(sync=True))


def test_topics_resolved_by_id_and_unknown_ids_refused(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        known, wrong = client.broker.service.topics.by_name["t"].id, b"no topic of ours"
        for topic_id, code, count in ((known, E.NONE, 1), (wrong, E.UNKNOWN_TOPIC_ID, 0)):
            body = produced(b"x")
            body["topic_data"][0]["topic_id"] = topic_id
            told = (await client.ask(Api.PRODUCE, 13, **body)).responses[0]
            assert (told.topic_id, told.partition_responses[0].error_code) == (topic_id, code)
            body = fetched(0)
            body["topics"][0]["topic_id"] = topic_id
            told = await client.ask(Api.FETCH, 13, **body)
            assert (told.responses[0].partitions[0].error_code, counts(told)) == (code, [count])
            asked = [{"topic_id": topic_id, "name": None}]
            told = (await client.ask(Api.METADATA, 12, topics=asked)).topics[0]
            name = "t" if count else None
            assert (told.topic_id, told.error_code, told.name) == (topic_id, code, name)

    run(story)


# Topics.


def test_topic_auto_created_if_client_and_broker_allow_and_room_is_left(run: Run) -> None:
    async def codes(client: Client, allowed: bool, *names: str) -> list[int]:
        topics = [{"name": name} for name in names]
        body = {"topics": topics, "allow_auto_topic_creation": allowed}
        return [t.error_code for t in (await client.ask(Api.METADATA, 9, **body)).topics]

    async def story(client: Client, _: Client) -> None:
        unknown = E.UNKNOWN_TOPIC_OR_PARTITION
        assert await codes(client, False, "a") == [unknown]
        assert await codes(client, True, "a b") == [E.INVALID_TOPIC_EXCEPTION]
        assert await codes(client, True, "a", "b", "c") == [E.NONE, E.NONE, unknown]
        assert client.broker.service.topics.partitions == 8
        old = await client.ask(Api.METADATA, 0, topics=[])
        assert [(t.name, len(t.partitions)) for t in old.topics] == [("a", 3), ("b", 3), ("t", 2)]
        none = await client.ask(Api.METADATA, 1, topics=[])
        assert not none.topics
        deleted = await client.ask(Api.DELETE_TOPICS, 5, topic_names=["a"], timeout=1000)
        assert deleted.responses[0].error_code == E.NONE
        assert await codes(client, True, "c.d", "c_d") == [unknown, E.NONE], "too much alike"
        assert await codes(client, True, "c.d") == [unknown]

    run(story, options=Options(partitions=3), limits=ConnectionLimits(partitions_max=8))


def test_topic_not_auto_created_when_broker_forbids(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        body = {"topics": [{"name": "a"}], "allow_auto_topic_creation": True}
        told = await client.ask(Api.METADATA, 9, **body)
        assert told.topics[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION

    run(story, options=Options(auto_create=False))


def test_partitions_added_up_to_the_limit(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        for count, code, why in (
            (2, E.INVALID_PARTITIONS, "it has 2 partitions, and can only have more"),
            (5, E.POLICY_VIOLATION, "it has 2, and there is room for 2 more"), (4, E.NONE, None),
            (3, E.INVALID_PARTITIONS, "it has 4 partitions, and can only have more"),
        ):  # fmt: skip
            body = {"topics": [{"name": "t", "count": count}], "timeout": 1000}
            told = await client.ask(Api.CREATE_PARTITIONS, 2, **body)
            assert (told.results[0].error_code, told.results[0].error_message) == (code, why)
        assert len(client.broker.service.topics.by_name["t"].logs) == 4

    run(story, limits=ConnectionLimits(partitions_max=4))


def test_records_deleted_up_to_log_end_and_not_beyond(run: Run) -> None:
    async def story(client: Client, _: Client) -> None:
        await client.produce(b"a", b"b", b"c")
        wrong = E.OFFSET_OUT_OF_RANGE
        for offset, told in ((4, (wrong, -1)), (-2, (wrong, -1)), (1, (0, 1)), (-1, (0, 3))):
            asked = [{"name": "t", "partitions": [{"partition_index": 0, "offset": offset}]}]
            answer = await client.ask(Api.DELETE_RECORDS, 2, topics=asked, timeout=1000)
            partition = answer.topics[0].partitions[0]
            assert (partition.error_code, partition.low_watermark) == told
        for timestamp, offset in (
            (-1, 3),
            (-2, 3),
            (-4, 3),
            (-3, -1),
            (-5, -1),
            (0, -1),
        ):
            asked = [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
            answer = await client.ask(Api.LIST_OFFSETS, 9, topics=asked)
            assert answer.topics[0].partitions[0].offset == offset

    run(story)


def test_failed_topic_creation_takes_no_partition_room(run: Run, tmp_path: Path) -> None:
    async def story(client: Client, other: Client) -> None:
        (tmp_path / "data" / "logs" / "a-0").write_text("in the way")
        asked = [{"name": "a", "num_partitions": 2, "replication_factor": 1}]
        client.send(Api.CREATE_TOPICS, 4, topics=asked, timeout=1000)
        told = await client.told(Api.CREATE_TOPICS, 4)
        assert told.topics[0].error_code == E.KAFKA_STORAGE_ERROR
        asked = [{"name": "b", "num_partitions": 2, "replication_factor": 1}]
        told = await other.ask(Api.CREATE_TOPICS, 4, topics=asked, timeout=1000)
        assert told.topics[0].error_code == E.NONE

    run(story, limits=ConnectionLimits(partitions_max=4))


def test_topic_config_described_with_kafka_type_numbers(run: Run) -> None:
    """Tools read the value by this number."""
    types = {
        "preallocate": 1, "compression.type": 2, "segment.bytes": 3, "retention.ms": 5,
        "min.cleanable.dirty.ratio": 6, "cleanup.policy": 7,
    }  # fmt: skip

    async def story(client: Client, _: Client) -> None:
        asked = {"resource_type": 2, "resource_name": "t", "configuration_keys": list(types)}
        told = await client.ask(Api.DESCRIBE_CONFIGS, 4, resources=[asked])
        found = {config.name: config.config_type for config in told.results[0].configs}
        assert found == types

    run(story)


# Groups, when we fail.


JOIN = {
    "session_timeout": 60_000, "rebalance_timeout": 60_000, "member_id": "",
    "protocol_type": "test", "protocols": [{"name": "p", "metadata": b""}],
}  # fmt: skip


async def parked(client: Client, other: Client, group: str) -> None:
    """Return a group whose one member waits, at the end of `client`, for a second member."""
    body = JOIN | {"group_id": group}
    member = str((await other.ask(Api.JOIN_GROUP, 3, **body)).member_id)
    about = {"group_id": group, "member_id": member, "generation_id": 1}
    await other.ask(Api.SYNC_GROUP, 3, **about, assignments=[])
    await other.ask(Api.JOIN_GROUP, 5, **body)
    client.send(Api.JOIN_GROUP, 3, **body | {"member_id": member})
    while (await other.ask(Api.HEARTBEAT, 3, **about)).error_code != E.REBALANCE_IN_PROGRESS:
        pass


async def beat(client: Client, group: str) -> int:
    told = await client.ask(Api.HEARTBEAT, 3, group_id=group, member_id="m", generation_id=1)
    return int(told.error_code)


def test_failed_group_answers_own_parked_members_and_no_other_group(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One group is checked in full, then only the number of failures."""
    real = Coordinator.step

    def step(machine: Coordinator, now: float, event: Event) -> list[Effect]:
        if isinstance(event, ClientRequest) and (event.api, event.body.group_id) == (
            Api.HEARTBEAT,
            "g",
        ):
            raise ZeroDivisionError("planted")
        return real(machine, now, event)

    async def story(client: Client, other: Client) -> None:
        async with Client(client.broker) as asker:
            await parked(client, asker, "g")
            await parked(other, asker, "h")
            monkeypatch.setattr(Coordinator, "step", step)
            assert await beat(asker, "g") == E.COORDINATOR_NOT_AVAILABLE
            assert (await client.told(Api.JOIN_GROUP, 3)).error_code == E.COORDINATOR_NOT_AVAILABLE
            assert await beat(asker, "g") == E.COORDINATOR_NOT_AVAILABLE
            await asker.ask(Api.JOIN_GROUP, 5, **JOIN | {"group_id": "h"})
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await other.reader.readexactly(1)

    run(story)
    failed = [record for record in caplog.records if "Group g failed" in record.message]
    assert [f"({times} times so far)" in failed[times - 1].message for times in (1, 2)] == [
        True
    ] * 2
    assert [bool(record.exc_info) for record in failed] == [True, False]


def test_join_answered_unavailable_while_coordinator_cannot_load(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request broke the group; later ones found no group that could answer."""

    def failing(*_: object, **__: object) -> None:
        raise OSError("planted")

    async def story(client: Client, other: Client) -> None:
        with monkeypatch.context() as broken:
            broken.setattr(MetadataStore, "write", failing)
            broken.setattr(MetadataStore, "rows", failing)
            for each in (client, other):
                told = await each.ask(Api.JOIN_GROUP, 3, **JOIN | {"group_id": "g"})
                assert told.error_code == E.COORDINATOR_NOT_AVAILABLE
        async with Client(client.broker) as later:
            assert (await later.ask(Api.JOIN_GROUP, 3, **JOIN | {"group_id": "g"})).member_id

    run(story)


def test_member_disconnected_while_parked_does_not_hold_up_round(run: Run) -> None:
    """The member still counts as joined, but its connection is gone."""

    async def story(client: Client, _: Client) -> None:
        async with Client(client.broker) as asker:
            await parked(client, asker, "g")
            machine = client.broker.service.groups.machine
            assert machine is not None
            (promised,) = classic(machine.groups["g"]).round.pending
            client.writer.close()
            await until(lambda: len(client.broker._traffic.connections) == 2)
            body = JOIN | {"group_id": "g", "member_id": promised}
            told = await asker.ask(Api.JOIN_GROUP, 5, **body)
            assert (told.error_code, told.generation_id) == (E.NONE, 2)

    run(story)


def test_member_session_expires_after_coordinator_move_without_requests(run: Run) -> None:
    """The new coordinator loads groups at once, and not at the first request."""

    async def story(client: Client, other: Client) -> None:
        groups = client.broker.service.groups
        await parked(client, other, "h")
        await other.ask(Api.JOIN_GROUP, 3, **JOIN | {"group_id": "g", "session_timeout": 300})
        groups.move()
        assert groups.machine is not None
        group = groups.machine.groups["g"]
        assert len(group.members()) == 1
        assert (await client.told(Api.JOIN_GROUP, 3)).error_code == E.NOT_COORDINATOR
        await until(lambda: not group.members())

    run(story)


# The broker as a whole.


def test_offsets_of_deleted_topic_not_kept_for_topic_recreated_at_start(
    run: Run,
) -> None:
    """The row of the topic was deleted, and the broker was killed before it deleted the offsets."""
    partition = {"partition_index": 0, "committed_offset": 7, "committed_metadata": ""}
    about = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}

    async def before(client: Client, _: Client) -> None:
        body = {**about, "topics": [{"name": "t", "partitions": [partition]}]}
        told = await client.ask(Api.OFFSET_COMMIT, 3, **body)
        assert told.topics[0].partitions[0].error_code == E.NONE
        service = client.broker.service
        service.topics.changed = lambda *_: None
        service.topics.delete(service.topics.by_name["t"])

    async def after(client: Client, _: Client) -> None:
        told = await client.ask(Api.OFFSET_FETCH, 5, group_id="g", topics=None)
        assert not told.topics

    run(before)
    run(after)


def test_connection_accepted_during_broker_shutdown_is_not_served(tmp_path: Path) -> None:
    """The connection is accepted, and its protocol is made one turn of the loop later."""

    async def story(turns: int) -> None:
        loop, broker = (
            asyncio.get_running_loop(),
            BrokerServer(tmp_path / str(turns), topics={"t": 1}),
        )
        await broker.start()
        with socket.socket() as late:
            late.setblocking(False)
            await loop.sock_connect(late, ("127.0.0.1", broker.port))
            for _ in range(turns):
                await asyncio.sleep(0)
            await broker.close()
            with suppress(ConnectionError):
                request = wire.request_encoder(Api.PRODUCE, 9)(1, produced(b"late"), "")
                await loop.sock_sendall(late, request)
                assert await loop.sock_recv(late, 100) == b""

    for turns in range(5):
        asyncio.run(story(turns))


def test_connections_and_files_fit_default_descriptor_limit() -> None:
    assert ConnectionLimits().connections_max + DESCRIPTORS_MAX <= 1024 - 128
