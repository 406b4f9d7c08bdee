"""Records and batches that Apache Kafka refuses: split, skipped, or their task stops."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest

from streamsx.clock import SystemClock
from streamsx.model import TopicPartition
from streamsx.protocol.record_batch import Builder
from tests.support.apache_kafka import ApacheKafka
from tests.support.client import Client
from tests.support.workers import Workers

admin: Any = confluent_kafka.admin  # its types do not know what it exports

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.xdist_group("kafka"),
    pytest.mark.timeout(120),
]
APP = """
import streamsx
app = streamsx.App("refusals", topic_partitions=1, commit_interval=0.2)
out = app.topic("refusals-out", partitions=1)
tab = app.Table("tab", default=str, extra_topic_configs={"max.message.bytes": "20000"})

@app.agent(app.topic("refusals-in"))
async def agent(stream):
    async for number in stream:
        tab[str(number)] = "y" * 1000
        await out.send(key=str(number), value="x" * 1000)
"""
SOURCE, OUT = TopicPartition("refusals-in", 0), TopicPartition("refusals-out", 0)
CHANGELOG = TopicPartition("refusals-tab-changelog", 0)
AFTER = "message.timestamp.after.max.ms"
ANY_TIME = {AFTER: str(2**63 - 1)}
HOURS_MS = 3 * 3600 * 1000
SMALL = {"max.message.bytes": "20000"}


@pytest.fixture
def client(kafka: ApacheKafka) -> Iterator[Client]:
    client = Client(kafka.bootstrap)
    yield client
    for topic in (SOURCE.topic, OUT.topic, CHANGELOG.topic):
        client.delete(topic)
    client.close()


def workers(kafka: ApacheKafka, folder: Path) -> Workers:
    folder.joinpath("refusals.py").write_text(APP)
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return Workers(kafka.bootstrap, folder / "w", app="refusals", env={"PYTHONPATH": paths})


def feed(client: Client, numbers: range, ahead_ms: int = 0) -> None:
    builder = Builder(1 << 20)
    for number in numbers:
        at_ms = int(SystemClock().wall() * 1000) + ahead_ms
        builder.append(at_ms, None, json.dumps(number).encode())
    client.send_raw(SOURCE, builder.close())


def keys(client: Client) -> list[int]:
    return [int(record.key or b"") for record in client.read(OUT)]


def test_batches_are_split_to_fit_and_future_record_fails_alone(
    kafka: ApacheKafka, client: Client, tmp_path: Path
) -> None:
    """The source takes any timestamp, output and changelog take an hour ahead."""
    client.create(SOURCE.topic, 1, ANY_TIME)
    client.create(OUT.topic, 1, SMALL)
    feed(client, range(100))
    feed(client, range(100, 101), HOURS_MS)
    feed(client, range(101, 200))
    with workers(kafka, tmp_path) as group:
        group.start("a")
        group.until(lambda: client.committed("refusals", [SOURCE])[SOURCE] == 200, "committed")
        assert "refusals-in-0 offset 100" in group.log("a")
        assert f"s ahead of now, and {AFTER} of the topic is 3600000" in group.log("a")
        assert group.stop("a") == [0]
    assert keys(client) == [*range(100), *range(101, 200)]
    assert len(list(client.read(CHANGELOG))) == 199, "the record that failed leaves no row"


def test_record_refused_by_the_broker_stops_the_task_or_is_skipped(
    kafka: ApacheKafka, client: Client, tmp_path: Path
) -> None:
    """The limit of the output topic is lowered while the worker runs."""
    client.create(SOURCE.topic, 1, ANY_TIME)
    client.create(OUT.topic, 1, ANY_TIME)
    feed(client, range(10))
    with workers(kafka, tmp_path) as group:
        group.start("a")
        group.until(lambda: client.committed("refusals", [SOURCE])[SOURCE] == 10, "committed")
        lower(kafka, OUT.topic, "3600000")
        feed(client, range(10, 11), HOURS_MS)
        feed(client, range(11, 20))
        group.until(lambda: "Task stopped: 0_0: record refused" in group.log("a"), "stopped")
        (line,) = [line for line in group.log("a").splitlines() if "Task stopped" in line]
        assert f"record refused: {OUT}, key b'10', sent by task 0_0 at {SOURCE}" in line
        assert "INVALID_TIMESTAMP" in line
        assert client.committed("refusals", [SOURCE])[SOURCE] == 10
        assert group.stop("a") == [0]
        lower(kafka, OUT.topic, ANY_TIME[AFTER])
        group.start("a")
        group.until(lambda: client.committed("refusals", [SOURCE])[SOURCE] == 20, "committed")
        assert group.stop("a") == [0]
    assert set(keys(client)) == set(range(20))


def lower(kafka: ApacheKafka, topic: str, value: str) -> None:
    """Lower the record size limit of a topic, or raise it again."""
    operation = admin.AlterConfigOpType.SET
    entry = admin.ConfigEntry(AFTER, value, incremental_operation=operation)
    kind = admin.ConfigResource.Type.TOPIC
    resource = admin.ConfigResource(kind, topic, incremental_configs=[entry])
    client = admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
    for done in client.incremental_alter_configs([resource]).values():
        done.result(10)
