"""Failures of the disk or of our code: the client gets an error, stored data stay, and the broker
continues.
"""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamsx.broker.groups.coordinator import Coordinator
from streamsx.broker.groups.coordinator_events import ClientRequest, Effect, Event
from streamsx.broker.log.segment import Segment
from streamsx.broker.metadata_store import MetadataStore
from streamsx.broker.options import Options
from streamsx.protocol import wire
from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.record_batch import Builder
from streamsx.protocol.wire import Api
from streamsx.testing import Broker
from tests.support.apache_kafka import converse

GROUP = {"group_id": "g", "session_timeout": 60_000, "rebalance_timeout": 60_000}
JOIN = GROUP | {"protocol_type": "test", "protocols": [{"name": "p", "metadata": b""}]}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", topics={"t": 1}) as broker:
        yield broker


def dial(broker: Broker) -> socket.socket:
    host, _, port = broker.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def answer(sock: socket.socket, api: Api, version: int) -> Any:
    with sock.makefile("rb") as stream:
        frame = stream.read(int.from_bytes(stream.read(4)))
    return wire.response_decoder(api, version)(frame)[1]


def produce(sock: socket.socket, value: bytes, **idempotent: int) -> tuple[int, int]:
    builder = Builder(1 << 20)
    builder.append(1, None, value)
    data = [{"index": 0, "records": builder.close(**idempotent)}]
    body = {"acks": -1, "timeout": 1000, "topic_data": [{"name": "t", "partition_data": data}]}
    found = converse(sock, Api.PRODUCE, 9, body).responses[0].partition_responses[0]
    return found.error_code, found.base_offset


def commit(sock: socket.socket, offset: int) -> int:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    body = {"group_id": "alone", "topics": [{"name": "t", "partitions": [partition]}]}
    alone = {"generation_id_or_member_epoch": -1, "member_id": ""}
    return int(
        converse(sock, Api.OFFSET_COMMIT, 3, {**body, **alone}).topics[0].partitions[0].error_code
    )


def committed(sock: socket.socket) -> int:
    body = {"group_id": "alone", "topics": None}
    (topic,) = converse(sock, Api.OFFSET_FETCH, 5, body).topics
    return int(topic.partitions[0].committed_offset)


def stable_with_a_parked_join(sock: socket.socket, parked: socket.socket) -> str:
    """Start a group at generation 1 with one member, whose JoinGroup waits for a second member."""
    member_id = str(converse(sock, Api.JOIN_GROUP, 3, {**JOIN, "member_id": ""}).member_id)
    about = {**GROUP, "member_id": member_id, "generation_id": 1, "assignments": []}
    converse(sock, Api.SYNC_GROUP, 3, about)
    converse(sock, Api.JOIN_GROUP, 5, {**JOIN, "member_id": ""})
    parked.sendall(wire.request_encoder(Api.JOIN_GROUP, 3)(1, {**JOIN, "member_id": member_id}, ""))
    while converse(sock, Api.HEARTBEAT, 3, about).error_code != E.REBALANCE_IN_PROGRESS:
        pass
    return member_id


def test_failed_group_write_returns_members_to_the_group_on_disk(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with dial(broker) as sock, dial(broker) as parked:
        assert commit(sock, 5) == E.NONE
        member_id = stable_with_a_parked_join(sock, parked)
        with monkeypatch.context() as broken:
            broken.setattr(MetadataStore, "write", failing)
            assert commit(sock, 6) == E.COORDINATOR_NOT_AVAILABLE
        assert answer(parked, Api.JOIN_GROUP, 3).error_code == E.COORDINATOR_NOT_AVAILABLE
        about = {**GROUP, "member_id": member_id, "generation_id": 1}
        assert converse(sock, Api.HEARTBEAT, 3, about).error_code == E.NONE
        assert committed(sock) == 5
        assert commit(sock, 7) == E.NONE
        assert committed(sock) == 7
    assert "A group was not written: No space left on device. " in caplog.text


def test_group_failing_to_reload_is_loaded_for_the_next_request(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dial(broker) as sock:
        assert commit(sock, 5) == E.NONE
        with monkeypatch.context() as broken:
            broken.setattr(MetadataStore, "write", failing)
            broken.setattr(MetadataStore, "rows", failing)
            assert commit(sock, 6) == E.COORDINATOR_NOT_AVAILABLE
    with dial(broker) as sock:
        assert committed(sock) == 5


def fails_once(real: Any) -> Any:
    """Fail once, in a request about several groups."""
    attempts = iter([True])

    def step(machine: Coordinator, now: float, event: Event) -> list[Effect]:
        if (
            isinstance(event, ClientRequest)
            and event.api is Api.LIST_GROUPS
            and next(attempts, False)
        ):
            raise ZeroDivisionError
        found: list[Effect] = real(machine, now, event)
        return found

    return step


def failing(*_: object, **__: object) -> None:
    raise OSError("No space left on device")


def test_failed_coordinator_is_replaced_and_logged(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with dial(broker) as sock, dial(broker) as parked, dial(broker) as other:
        stable_with_a_parked_join(sock, parked)
        with monkeypatch.context() as broken:
            broken.setattr(Coordinator, "step", fails_once(Coordinator.step))
            sock.sendall(wire.request_encoder(Api.LIST_GROUPS, 2)(1, {}, ""))
            assert answer(sock, Api.LIST_GROUPS, 2).error_code == E.COORDINATOR_NOT_AVAILABLE
        assert answer(parked, Api.JOIN_GROUP, 3).error_code == E.COORDINATOR_NOT_AVAILABLE
        assert commit(other, 2) == E.NONE
    assert [r.message for r in caplog.records if r.exc_info] == [
        "A request of kind LIST_GROUPS failed here:"
    ]


def test_full_disk_refuses_batches_and_leaves_none_behind(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A retry is refused again, and the log has one line about it."""
    real = os.pwrite
    with dial(broker) as sock:
        assert produce(sock, b"a") == (E.NONE, 0)
        with monkeypatch.context() as broken:
            broken.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:30], at))
            for _ in range(3):
                assert produce(sock, b"b") == (E.KAFKA_STORAGE_ERROR, -1)
        assert produce(sock, b"c") == (E.NONE, 1)
    (line,) = [
        r.message for r in caplog.records if r.message.startswith("The disk refused a request: ")
    ]
    assert "No space left on device: " in line
    assert "/logs/t-0/" in line


def test_batch_failing_to_flush_is_neither_acknowledged_nor_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux has dropped the batch: the next flush would succeed without it."""
    monkeypatch.setattr("streamsx.broker.log.flusher.REOPEN_S", 0.1)
    mine = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    options = Options(sync=True)
    with (
        Broker(tmp_path / "data", topics={"t": 1}, options=options) as broker,
        dial(broker) as sock,
    ):
        with monkeypatch.context() as broken:
            broken.setattr(Segment, "flush", failing)
            assert produce(sock, b"a", **mine) == (E.KAFKA_STORAGE_ERROR, -1)
            assert produce(sock, b"a", **mine) == (E.KAFKA_STORAGE_ERROR, -1)
        while (told := produce(sock, b"b")) == (E.KAFKA_STORAGE_ERROR, -1):
            pass  # the next one is tried in 0.1 s
        assert told == (E.NONE, 0), "nothing was there"
        assert produce(sock, b"a", **mine) == (E.NONE, 1)


def test_an_append_is_flushed_within_the_interval(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = broker.server.service.topics.by_name["t"].logs[0]
    with dial(broker) as sock:
        produce(sock, b"a")
        while log.flushed < 1:
            assert produce(sock, b"more")[0] == E.NONE
