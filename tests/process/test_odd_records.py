"""Records in the forms of clients in other languages: read as they are, on both brokers."""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamsx.model import TopicPartition
from tests.support.apache_kafka import ApacheKafka
from tests.support.client import Client
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.odd_batches import LATIN_1, odd_batch, odd_record
from tests.support.workers import Workers

APP = """
import os
import streamsx

app = streamsx.App(os.environ["NAME"], value_serializer="raw", commit_interval="200ms")
source = app.topic(os.environ["NAME"])
out = app.topic(os.environ["NAME"] + "-out", partitions=1)

@app.agent(source)
async def names(stream):
    async for event in stream.events():
        await out.send(value=event.value, headers=event.headers)

@app.agent(source)
async def grouped(stream):
    async for value in stream.group_by(lambda value: value, name="g", partitions=1):
        await out.send(value=b"grouped " + value)
"""


@pytest.fixture
def client(broker: EmbeddedBroker | ApacheKafka) -> Iterator[Client]:
    client = Client(broker.bootstrap)
    yield client
    client.close()


def test_header_name_not_in_utf_8_does_not_hold_up_a_worker(
    broker: EmbeddedBroker | ApacheKafka, client: Client, tmp_path: Path
) -> None:
    name = f"odd-{uuid.uuid4().hex[:8]}"
    source, out = TopicPartition(name, 0), TopicPartition(f"{name}-out", 0)
    client.create(name, 1)
    client.create(out.topic, 1)
    client.send(source, [(None, b"before")])
    client.send_raw(source, odd_batch([odd_record(0, b"odd", [(LATIN_1, b"1"), (LATIN_1, None)])]))
    client.send(source, [(None, b"after")])
    (tmp_path / "oddapp.py").write_text(APP)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"PYTHONPATH": path, "NAME": name}
    with Workers(broker.bootstrap, tmp_path / "workers", app="oddapp", env=env) as workers:
        workers.start("w")
        workers.until(lambda: client.ends([out])[out] == 6, "all of them, twice")
        assert workers.stop("w") == [0]
        assert "damaged" not in workers.log("w")
    records = list(client.read(out))
    words = [b"before", b"odd", b"after"]
    assert sorted(r.value or b"" for r in records) == sorted(
        words + [b"grouped " + w for w in words]
    )
    assert client.committed(name, [source]) == {source: 3}
