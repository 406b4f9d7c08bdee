"""Metrics of a broker: their counts, names and log line."""

import asyncio
import logging
import re
from pathlib import Path

import pytest

from streamsx.broker.metrics import PREFIX, BrokerCounts, in_a_line
from streamsx.broker.net.server import BrokerServer
from streamsx.metrics import MetricRegistry, Sample
from streamsx.protocol.wire import Api
from streamsx.testing import Broker
from tests.broker.test_connections import VERSIONS, dial, produce, received
from tests.support.apache_kafka import converse

JOIN = {
    "group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "",
    "protocol_type": "x", "protocols": [{"name": "p", "metadata": b""}],
}  # fmt: skip
NAME = re.compile(r"streamsx_broker_[a-z_]+")


def test_metrics_have_prometheus_names_and_appear_once() -> None:
    registry = MetricRegistry(PREFIX)
    counts = BrokerCounts(registry)
    counts.requests.add(2, "produce")
    counts.requests.add(1, "fetch")
    counts.received_bytes.add(7)
    counts.sent_bytes.add(8)
    counts.hung_up.add(1)
    counts.group_events.add(3, "group_generation")
    registry.gauge("connections", "Open connections.", lambda: 4)
    rows = list(registry.samples())
    assert rows == [
        Sample("streamsx_broker_requests_total", (("api", "fetch"),), 1),
        Sample("streamsx_broker_requests_total", (("api", "produce"),), 2),
        Sample("streamsx_broker_received_bytes_total", (), 7),
        Sample("streamsx_broker_sent_bytes_total", (), 8),
        Sample("streamsx_broker_connections_hung_up_total", (), 1),
        Sample("streamsx_broker_group_events_total", (("event", "group_generation"),), 3),
        Sample("streamsx_broker_connections", (), 4),
    ]
    assert all(NAME.fullmatch(row.name) for row in rows)
    assert in_a_line(rows) == (
        "fetch=1 produce=2 received_bytes_total=7 sent_bytes_total=8 connections_hung_up_total=1"
        " group_generation=3 connections=4"
    )


def test_broker_activity_is_counted(tmp_path: Path) -> None:
    with Broker(tmp_path, topics={"t": 2}) as broker, dial(broker) as sock:
        converse(sock, Api.API_VERSIONS, 3, VERSIONS)
        registry = broker.server.metrics
        before = {row.name[16:]: row.value for row in registry.samples() if not row.labels}
        sock.sendall(request := produce(1, bytes(1000)))
        answer = received(sock)
        joined = converse(sock, Api.JOIN_GROUP, 3, JOIN)
        assert joined.generation_id == 1
        with dial(broker) as other:
            other.sendall(b"rubbish" * 10)
            assert received(other) == b""
        converse(sock, Api.API_VERSIONS, 3, VERSIONS)
        found = {(row.name[16:], row.labels): row.value for row in registry.samples()}
    assert before == {
        "received_bytes_total": before["received_bytes_total"],
        "sent_bytes_total": before["sent_bytes_total"],
        "connections_hung_up_total": 0, "connections": 1, "groups": 0, "topics": 1,
        "partitions": 2, "log_bytes": 0,
    }  # fmt: skip
    assert found["requests_total", (("api", "produce"),)] == 1
    assert found["requests_total", (("api", "join_group"),)] == 1
    assert found["received_bytes_total", ()] >= before["received_bytes_total"] + len(request)
    assert found["sent_bytes_total", ()] >= before["sent_bytes_total"] + 4 + len(answer)
    assert found["connections_hung_up_total", ()] == 1
    assert found["group_events_total", (("event", "group_generation"),)] == 1
    assert (found["connections", ()], found["groups", ()]) == (1, 1)
    assert found["log_bytes", ()] > 1000


def test_metrics_logged_only_while_requests_arrive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("streamsx.broker.net.server.TELL_S", 0.01)
    caplog.set_level(logging.INFO)

    def told() -> list[str]:
        return [r.message for r in caplog.records if r.message.startswith("Metrics: ")]

    async def story() -> None:
        async with BrokerServer(tmp_path, topics={"t": 1}) as broker:
            reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
            await asyncio.sleep(0.05)
            assert not told(), "nobody has asked for anything"
            while not told():
                writer.write(produce(1, b"x"))
                await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
            said = len(told())
            await asyncio.sleep(0.05)
            assert len(told()) <= said + 1, "nothing is asked any more"
            writer.close()

    asyncio.run(story())
    assert re.match(r"Metrics: produce=\d+ received_bytes_total=\d+ ", told()[0])
    assert "partitions=1 log_bytes=" in told()[0]
