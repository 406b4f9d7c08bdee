"""Records that fail in real workers, on both brokers: kept byte for byte, or the app ends."""

import os
import uuid
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest

from streamsx.model import TopicPartition
from tests.process.conftest import SLOW_ON_KAFKA
from tests.support.apache_kafka import ApacheKafka
from tests.support.client import Client
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.workers import Workers

admin: Any = confluent_kafka.admin  # its types do not know what it exports

APP = """
import os
import streamsx

app = streamsx.App(
    os.environ["NAME"], on_error="dlq", on_decode_error="dlq", commit_interval="200ms"
)

def double(value):
    if value % 10 == 3:
        raise ValueError("odd")
    return value * 2

app.flow(os.environ["NAME"]).map_values(double).to(app.topic(os.environ["NAME"] + "-out"))
"""
ROWS = [(b"%d" % n, b"%d" % n if n % 25 else b"{") for n in range(300)]


def test_each_failed_record_is_kept_in_the_dead_letter_topic(
    broker: EmbeddedBroker | ApacheKafka, tmp_path: Path
) -> None:
    name = f"dead-{uuid.uuid4().hex[:8]}"
    source, out, kept = (TopicPartition(f"{name}{part}", 0) for part in ("", "-out", "-dlq"))
    client = Client(broker.bootstrap)
    for tp in (source, out, kept):
        client.create(tp.topic, 1)
    client.send(source, ROWS)
    (tmp_path / "deadapp.py").write_text(APP)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"PYTHONPATH": path, "NAME": name}
    with Workers(broker.bootstrap, tmp_path / "workers", app="deadapp", env=env) as workers:
        workers.start("w")
        workers.until(lambda: client.committed(name, [source]) == {source: 300}, "all of them")
        assert workers.stop("w") == [0]
        assert f"kept in {name}-dlq" in workers.log("w")
        failed = [event["offset"] for event in workers.events("failed")]
    results = [record.value for record in client.read(out)]
    letters = list(client.read(kept))
    client.close()

    bad = [n for n, (_, value) in enumerate(ROWS) if value == b"{" or n % 10 == 3]
    assert [(each.key, each.value) for each in letters] == [ROWS[n] for n in bad]
    assert failed == bad
    assert len(results) == 300 - len(bad)


STOPS = """
import os
import streamsx

app = streamsx.App(os.environ["NAME"], on_error="stop_app")
app.flow(os.environ["NAME"]).foreach(lambda number: 1 / number)
"""


def test_stop_app_ends_all_workers_with_1_and_the_reason(
    broker: EmbeddedBroker | ApacheKafka, tmp_path: Path
) -> None:
    name = f"stops-{uuid.uuid4().hex[:8]}"
    client = Client(broker.bootstrap)
    client.create(name, 2)
    (tmp_path / "stopapp.py").write_text(STOPS)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"PYTHONPATH": path, "NAME": name}
    with Workers(broker.bootstrap, tmp_path / "workers", app="stopapp", env=env) as workers:
        workers.start("a", "b")
        workers.until(lambda: all(map(workers.active().get, ("a", "b"))), "a task each")
        for worker in workers.all.values():
            worker.expected = True
        client.send(TopicPartition(name, 0), [(b"k", b"0")])
        assert [workers.code(worker) for worker in ("a", "b")] == [1, 1]
        reasons = sorted(map(workers.error, ("a", "b")), key=len)
    client.close()

    assert all(f"record failed: {name}-0 offset 0" in reason for reason in reasons)
    assert "another worker has stopped the app" in reasons[1]


REFUSED = """
import os
import streamsx

name = os.environ["NAME"]
app = streamsx.App(name, on_produce_error="log", commit_interval="200ms")
for part, reaction in (("own", "dlq"), ("usual", None)):
    out = app.topic(f"{name}-{part}")
    app.flow(name, on_produce_error=reaction).map_values(lambda row: row).to(out)
"""
LARGE = 57


@SLOW_ON_KAFKA
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
def test_output_that_the_broker_refuses_is_kept_or_left_out_and_all_others_arrive_once(
    broker: EmbeddedBroker | ApacheKafka, tmp_path: Path, guarantee: str
) -> None:
    """The limit of the output topic is lowered while the worker runs. The batches around the large
    record are halved until the record is alone.
    """
    name = f"refused-{uuid.uuid4().hex[:8]}"
    parts = ("", "-own", "-usual", "-dlq")
    source, own, usual, kept = (TopicPartition(f"{name}{part}", 0) for part in parts)
    client = Client(broker.bootstrap)
    for tp in (source, own, usual, kept):
        client.create(tp.topic, 1)
    client.send(source, [(b"first", b"0")])
    (tmp_path / "refusedapp.py").write_text(REFUSED)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {"PYTHONPATH": path, "NAME": name}
    with Workers(broker.bootstrap, tmp_path / "workers", app="refusedapp", env=env) as workers:
        workers.start("w", processing_guarantee=guarantee)
        workers.until(lambda: client.committed(name, [source]) == {source: 1}, "the first one")
        for tp in (own, usual):
            lower(broker, tp.topic, "3000")
        rows = [(b"%d" % n, b'"%s"' % (b"x" * (5000 if n == LARGE else 40))) for n in range(200)]
        client.send(source, rows)
        workers.until(lambda: client.committed(name, [source])[source] >= 201, "all of them")
        aborted = workers.events("aborted")
        assert workers.stop("w") == [0]
        log = workers.log("w")
    letters = list(client.read(kept))
    results = [[record.key for record in client.read(tp)] for tp in (own, usual)]
    client.close()

    assert aborted == []
    wanted = [b"first", *(key for n, (key, _) in enumerate(rows) if n != LARGE)]
    assert results == [wanted, wanted]
    assert [(each.key, each.value) for each in letters] == [rows[LARGE]]
    headers = dict(letters[0].headers)
    assert headers["__streams.errors.exception"] == b"MESSAGE_TOO_LARGE"
    assert headers["__streams.errors.topic"] == own.topic.encode()
    assert headers["__streams.errors.partition"] == b"0"
    assert f"kept in {kept.topic}" in log


def lower(broker: EmbeddedBroker | ApacheKafka, topic: str, bytes_max: str) -> None:
    """Lower the record size limit of a topic."""
    operation = admin.AlterConfigOpType.SET
    entry = admin.ConfigEntry("max.message.bytes", bytes_max, incremental_operation=operation)
    kind = admin.ConfigResource.Type.TOPIC
    resource = admin.ConfigResource(kind, topic, incremental_configs=[entry])
    client = admin.AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in client.incremental_alter_configs([resource]).values():
        done.result(10)
