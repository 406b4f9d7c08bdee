"""Connections: what clients may do with theirs, rightly and wrongly, without effect on other
clients.
"""

import asyncio
import logging
import os
import random
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from streamsx.broker.api.served import SERVED
from streamsx.broker.net.client_connection import ConnectionLimits
from streamsx.broker.net.server import BrokerServer
from streamsx.protocol import wire
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import Builder
from streamsx.protocol.wire import Api
from streamsx.testing import Broker
from tests.support.apache_kafka import converse

REFUSED = {
    Api.JOIN_GROUP: (range(4, 99), ErrorCode.MEMBER_ID_REQUIRED),
    Api.HEARTBEAT: (range(99), ErrorCode.UNKNOWN_MEMBER_ID),
    Api.SYNC_GROUP: (range(99), ErrorCode.UNKNOWN_MEMBER_ID),
    Api.LEAVE_GROUP: (range(3), ErrorCode.UNKNOWN_MEMBER_ID),  # then it is said of each member
    Api.OFFSET_DELETE: (range(99), ErrorCode.NON_EMPTY_GROUP),  # one of no consumers
    Api.SASL_HANDSHAKE: (range(99), ErrorCode.ILLEGAL_SASL_STATE),
    Api.SASL_AUTHENTICATE: (range(99), ErrorCode.ILLEGAL_SASL_STATE),
    Api.ADD_OFFSETS_TO_TXN: (range(99), ErrorCode.INVALID_REQUEST),
    Api.END_TXN: (range(99), ErrorCode.INVALID_REQUEST),
    Api.CONSUMER_GROUP_HEARTBEAT: (range(99), ErrorCode.INVALID_REQUEST),
}
"""What a member, group or transaction that is not there gets, or who says who it is where nobody
asks, and in which versions.
"""
VERSIONS = {"client_software_name": "test", "client_software_version": "1"}


def dial(broker: Broker) -> socket.socket:
    host, _, port = broker.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def frame(api: Api, version: int, number: int = 1, **body: Any) -> bytes:
    return bytes(wire.request_encoder(api, version)(number, body, "test"))


def received(sock: socket.socket) -> bytes:
    """Read one frame; None if the broker hung up."""
    data = b""
    try:
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4]):
            size = int.from_bytes(data[:4]) if len(data) >= 4 else 0
            if not (more := sock.recv(4 + size - len(data))):
                return b""
            data += more
    except ConnectionResetError:
        return b""
    return data[4:]


def alive(broker: Broker) -> bool:
    with dial(broker) as sock:
        return bool(converse(sock, Api.API_VERSIONS, 3, VERSIONS).api_keys)


@contextmanager
def serving(folder: Path, **limits: float) -> Iterator[Broker]:
    with Broker(folder, limits=ConnectionLimits(**limits), topics={"t": 1}) as broker:  # type: ignore[arg-type]  # of two types
        yield broker


def test_each_request_is_answered_in_old_and_new_versions(tmp_path: Path) -> None:
    """Every second version: a codec takes 20 ms to compile, and `test_wire` looks at
    all of them.
    """
    asked = set()
    with serving(tmp_path) as broker:
        for api, (oldest, newest, *_) in SERVED.items():
            for version in {oldest, *range(newest, oldest, -2)}:
                body = {
                    "group_id": f"g{version}", "session_timeout": 10_000, "protocol_type": "c",
                    "acks": 1, "protocols": [{"name": "p"}], "coordinator_keys": ["g"],
                    "topics": [],
                    "groups": [{"group_id": "g"}] if api == Api.OFFSET_FETCH else ["g"],
                    "members": [{"member_id": "m"}], "endpoint_type": 1,
                }  # fmt: skip
                with dial(broker) as sock:
                    answer = converse(sock, api, version, body)
                versions, code = REFUSED.get(Api(api), (range(0), ErrorCode.NONE))
                expected = code if version in versions else ErrorCode.NONE
                assert getattr(answer, "error_code", ErrorCode.NONE) == expected, (api, version)
                asked.add(api)
    assert asked == set(SERVED)


def test_pipelined_requests_are_answered_in_order(tmp_path: Path) -> None:
    with serving(tmp_path) as broker, dial(broker) as sock:
        sock.sendall(b"".join(frame(Api.API_VERSIONS, 3, i, **VERSIONS) for i in range(500)))
        assert [int.from_bytes(received(sock)[:4]) for _ in range(500)] == list(range(500))


def fetch(number: int, wait_ms: int) -> bytes:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    return frame(
        Api.FETCH, 11, number, max_wait=wait_ms, min_bytes=1, max_bytes=1 << 20,
        topics=[{"topic": "t", "partitions": [partition]}],
    )  # fmt: skip


def produce(number: int, value: bytes, acks: int = 1) -> bytes:
    builder = Builder(1 << 20)
    builder.append(1, None, value)
    data = [{"name": "t", "partition_data": [{"index": 0, "records": builder.close()}]}]
    return frame(Api.PRODUCE, 9, number, acks=acks, timeout=1000, topic_data=data)


def test_waiting_request_holds_up_only_the_same_connection(tmp_path: Path) -> None:
    with serving(tmp_path) as broker, dial(broker) as waiting, dial(broker) as other:
        waiting.sendall(fetch(1, 10_000) + frame(Api.API_VERSIONS, 3, 2, **VERSIONS))
        other.sendall(frame(Api.API_VERSIONS, 3, 3, **VERSIONS))
        assert int.from_bytes(received(other)[:4]) == 3
        waiting.setblocking(False)
        with pytest.raises(BlockingIOError):
            waiting.recv(1)
        waiting.settimeout(10)
        other.sendall(produce(4, b"x"))
        assert [int.from_bytes(received(waiting)[:4]) for _ in range(2)] == [1, 2]


def test_fetch_waits_no_longer_than_requested(tmp_path: Path) -> None:
    with serving(tmp_path) as broker, dial(broker) as sock:
        sock.sendall(fetch(1, 50))
        answer = wire.response_decoder(Api.FETCH, 11)(received(sock))[1]
        assert bytes(answer.responses[0].partitions[0].records) == b""


def test_waiting_fetch_of_a_deleted_topic_is_answered(tmp_path: Path) -> None:
    with serving(tmp_path) as broker, dial(broker) as sock, dial(broker) as other:
        sock.sendall(fetch(1, 10_000))
        converse(other, Api.API_VERSIONS, 3, VERSIONS)
        converse(other, Api.DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout": 1000})
        answer = wire.response_decoder(Api.FETCH, 11)(received(sock))[1]
        assert answer.responses[0].partitions[0].error_code == 3


def test_topic_recreated_behind_a_fetch_of_the_old_topic_is_writable(tmp_path: Path) -> None:
    """The fetch is answered in the middle of deleting, when the folder still exists."""
    topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
    with serving(tmp_path) as broker, dial(broker) as sock, dial(broker) as other:
        sock.sendall(fetch(1, 10_000) + frame(Api.CREATE_TOPICS, 4, 2, topics=[topic]))
        converse(other, Api.API_VERSIONS, 3, VERSIONS)
        converse(other, Api.DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout": 1000})
        assert [int.from_bytes(received(sock)[:4]) for _ in range(2)] == [1, 2]
        sock.sendall(produce(3, b"x"))
        stored = wire.response_decoder(Api.PRODUCE, 9)(received(sock))[1]
        assert stored.responses[0].partition_responses[0].error_code == 0


def test_waiting_fetch_ends_with_the_connection(tmp_path: Path) -> None:
    with serving(tmp_path) as broker:
        log = broker.server.service.topics.by_name["t"].logs[0]
        with dial(broker) as sock, dial(broker) as other:
            sock.sendall(fetch(1, 10_000))
            converse(other, Api.API_VERSIONS, 3, VERSIONS)
            assert len(log.waiters) == 1
            sock.close()
            while log.waiters:
                converse(other, Api.API_VERSIONS, 3, VERSIONS)


def test_stopped_broker_leaves_no_timers_waiters_or_descriptors(tmp_path: Path) -> None:
    async def story() -> None:
        before = len(os.listdir("/dev/fd"))
        broker = BrokerServer(tmp_path, topics={"t": 1})
        await broker.start()
        group = {"group_id": "g", "session_timeout": 50, "rebalance_timeout": 50}
        kind = {"protocol_type": "x", "protocols": [{"name": "p", "metadata": b""}]}
        joins = [frame(Api.JOIN_GROUP, 3, i, **group, **kind, member_id="") for i in (1, 2)]
        readers, writers = [], []
        for request in (fetch(1, 10_000), *joins):
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            writer.write(request)
            readers.append(reader)
            writers.append(writer)
        await readers[1].readexactly(4)
        assert broker.service.groups._timers
        await broker.close()
        assert not broker.service.groups._timers
        assert not broker.service.topics.by_name["t"].logs[0].waiters
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        assert len(os.listdir("/dev/fd")) == before

    asyncio.run(story())


def test_produce_with_acks_0_gets_no_answer(tmp_path: Path) -> None:
    with serving(tmp_path) as broker, dial(broker) as sock:
        sock.sendall(produce(1, b"x", acks=0) + fetch(2, 0))
        answer = received(sock)
        assert int.from_bytes(answer[:4]) == 2
        assert wire.response_decoder(Api.FETCH, 11)(answer)[1].responses[0].partitions[0].records


SIZES = "8 to 33554432 can be"
MALFORMED = {
    "an unknown request": (
        bytes.fromhex("0000000a 03e7 0000 00000001 ffff"), "request 999: not supported",
    ),
    "a request that is not served": (
        bytes.fromhex("0000000a 001d 0003 00000001 ffff"), "request 29: not supported",
    ),
    "a version to come": (
        bytes.fromhex("0000000a 0003 0063 00000001 ffff"), "METADATA v99: supported are 0 to 13",
    ),
    "a version of long ago": (
        bytes.fromhex("0000000a 0000 0000 00000001 ffff"), "PRODUCE v0: supported are 3 to 13",
    ),
    "a head cut short": (bytes.fromhex("00000004 0003 0001"), f"a frame of 4 bytes: {SIZES}"),
    "a body cut short": (
        bytes.fromhex("0000000a 0003 0001 00000001 ffff"), "METADATA v1: cut short: 10 bytes",
    ),
    "a negative length": (
        bytes.fromhex("ffffffff 0003 0001 00000001 ffff"), f"a frame of -1 bytes: {SIZES}",
    ),
    "a length beyond all limits": (
        bytes.fromhex("7fffffff 0003 0001 00000001 ffff"), f"a frame of {2**31 - 1} bytes: {SIZES}",
    ),
    "another protocol": (
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", f"a frame of 1195725856 bytes: {SIZES}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "why"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_bytes_close_the_connection_with_one_log_line(
    sent: bytes, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path) as broker, dial(broker) as other:
        with dial(broker) as sock:
            sock.sendall(sent)
            assert received(sock) == b""
        assert converse(other, Api.API_VERSIONS, 3, VERSIONS).api_keys
    (line,) = (r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)
    assert re.fullmatch(rf"Closed the connection of 127\.0\.0\.1:\d+: {re.escape(why)}\.", line)


def test_failing_request_handler_logs_the_traceback_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = SERVED[Api.API_VERSIONS]._replace(answer=lambda service, call: {"": 1 // 0})
    monkeypatch.setitem(SERVED, Api.API_VERSIONS, failing)
    with serving(tmp_path) as broker, dial(broker) as other:
        for _ in range(2):
            with dial(broker) as sock:
                sock.sendall(frame(Api.API_VERSIONS, 3, 1, **VERSIONS))
                assert received(sock) == b""
        assert converse(other, Api.METADATA, 12, {"topics": None}).topics
    told = [record for record in caplog.records if record.exc_info]
    assert len(told) == 1
    assert "failed here 2 times: ZeroDivisionError" in caplog.text


def test_broker_survives_frames_of_random_bytes(tmp_path: Path) -> None:
    rng = random.Random(1)
    good = [fetch(1, 0), produce(1, b"x"), frame(Api.API_VERSIONS, 3, 1, **VERSIONS)]
    with serving(tmp_path) as broker:
        for trial in range(600):
            data = bytearray(rng.choice(good))
            for _ in range(rng.randrange(1, 6)):
                data[rng.randrange(4, len(data))] = rng.randrange(256)
            if trial % 3 == 0:
                data = bytearray((20).to_bytes(4) + rng.randbytes(20))
                data[4:6] = rng.choice(list(SERVED)).to_bytes(2)
                data[6:8] = rng.randrange(5).to_bytes(2)
            with dial(broker) as sock:
                sock.sendall(data)
                sock.shutdown(socket.SHUT_WR)
                received(sock)
        assert alive(broker)


# Limits.


def test_idle_connection_is_closed_and_waiting_connection_is_kept(tmp_path: Path) -> None:
    limits = {"connections_max_idle_s": 0.2}
    with serving(tmp_path, **limits) as broker, dial(broker) as idle, dial(broker) as waiting:
        waiting.sendall(fetch(1, 900))
        assert received(idle) == b""
        assert int.from_bytes(received(waiting)[:4]) == 1


def test_connection_over_the_limit_is_closed_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, connections_max=2) as broker, dial(broker) as first:
        with dial(broker) as second:
            for sock in (first, second):
                assert converse(sock, Api.API_VERSIONS, 3, VERSIONS).api_keys
            with dial(broker) as third:
                assert received(third) == b""
        converse(first, Api.API_VERSIONS, 3, VERSIONS)
        assert alive(broker)


def test_connection_announcing_a_frame_over_the_limit_is_closed(tmp_path: Path) -> None:
    with serving(tmp_path, frame_bytes_max=1000) as broker, dial(broker) as sock:
        sock.sendall(produce(1, bytes(2000))[:8])
        assert received(sock) == b""


def test_frame_up_to_the_configured_limit_is_read(tmp_path: Path) -> None:
    with serving(tmp_path, frame_bytes_max=40 << 20) as broker, dial(broker) as sock:
        sock.sendall(produce(1, bytes(33 << 20)))
        told = wire.response_decoder(Api.PRODUCE, 9)(received(sock))[1]
        code = told.responses[0].partition_responses[0].error_code
        assert code == ErrorCode.MESSAGE_TOO_LARGE


def test_requests_in_flight_are_limited_over_all_connections(tmp_path: Path) -> None:
    limits = {"in_flight_bytes_max": 300_000}
    with serving(tmp_path, **limits) as broker, dial(broker) as first, dial(broker) as second:
        big = produce(1, bytes(200_000))
        first.sendall(big[:-1])
        assert alive(broker)  # and so it was received
        second.sendall(big[:-1])
        assert received(first) == b""
        second.sendall(big[-1:])
        assert received(second)


def test_half_frames_are_closed_before_connections_with_small_requests(tmp_path: Path) -> None:
    """The frames never become whole; a poll waits all the time, and other connections come."""
    mib = 1 << 20
    with (
        serving(tmp_path, in_flight_bytes_max=8 * mib) as broker, dial(broker) as poll,
        ExitStack() as stack,
    ):  # fmt: skip
        poll.sendall(fetch(0, 60_000))
        half = [stack.enter_context(dial(broker)) for _ in range(12)]
        for sock in half:
            sock.sendall((30 * mib).to_bytes(4) + bytes(mib + 1000))
            assert alive(broker)
        assert [received(sock) for sock in half[:5]] == [b""] * 5
        with dial(broker) as other:
            other.sendall(produce(1, b"x"))
            assert received(other)
        assert received(poll)


def test_announced_bytes_do_not_count_as_in_flight(tmp_path: Path) -> None:
    mib = 1 << 20
    with (
        serving(tmp_path, in_flight_bytes_max=64 * mib) as broker, ExitStack() as stack,
    ):  # fmt: skip
        half = [stack.enter_context(dial(broker)) for _ in range(32)]
        for sock in half:
            sock.sendall((30 * mib).to_bytes(4) + bytes(20_000))
        assert alive(broker)
        for sock in half:
            sock.settimeout(0)
            with pytest.raises(BlockingIOError):
                sock.recv(1)


@pytest.mark.parametrize(
    "limits", [{"queued_requests_max": 3}, {"queued_bytes_max": 1000}], ids=["number", "size"]
)
def test_waiting_connection_is_read_no_further_than_the_limit(
    limits: dict[str, float], tmp_path: Path
) -> None:
    behind = b"".join(frame(Api.API_VERSIONS, 3, i, **VERSIONS) for i in range(20_000))
    with serving(tmp_path, **limits) as broker, dial(broker) as sock, dial(broker) as other:
        sock.sendall(fetch(0, 60_000))
        sock.settimeout(0.5)
        with pytest.raises(TimeoutError):
            sock.sendall(behind * 20)
        sock.settimeout(10)
        other.sendall(produce(1, b"x"))
        assert [int.from_bytes(received(sock)[:4]) for _ in range(3)] == [0, 0, 1]


def test_client_that_does_not_read_is_served_no_further(tmp_path: Path) -> None:
    asked = 300
    with serving(tmp_path, unsent_bytes_max=1 << 16) as broker, dial(broker) as other:
        other.sendall(produce(1, bytes(500_000)))
        received(other)
        with dial(broker) as sock:
            sock.sendall(b"".join(fetch(i, 0) for i in range(asked)))
            while not (stalled := [c for c in broker.server._traffic.connections if c._unsent]):
                converse(other, Api.API_VERSIONS, 3, VERSIONS)
            assert stalled[0]._transport.get_write_buffer_size() < 1_000_000
            assert stalled[0]._queue
            assert [int.from_bytes(received(sock)[:4]) for _ in range(asked)] == list(range(asked))
            assert converse(sock, Api.API_VERSIONS, 3, VERSIONS).api_keys, "and then it goes on"
