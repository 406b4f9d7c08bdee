"""Records that fail in real workers, on both brokers: kept byte for byte, or the end of the app."""

import os
import uuid
from pathlib import Path

from streamsx.model import TopicPartition
from tests.support.apache_kafka import ApacheKafka
from tests.support.client import Client
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.workers import Workers

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
