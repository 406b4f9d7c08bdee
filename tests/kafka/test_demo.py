"""`streamsx demo` on a given cluster: it works there, and deletes the topics that it made."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from streamsx.protocol.wire import Api
from tests.support.apache_kafka import ApacheKafka, converse

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.xdist_group("kafka"),
    pytest.mark.timeout(240),
]


def topics(kafka: ApacheKafka) -> set[str]:
    host, _, port = kafka.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port))) as sock:
        return {topic.name for topic in converse(sock, Api.METADATA, 12, {"topics": None}).topics}


def create(kafka: ApacheKafka, *names: str) -> None:
    host, _, port = kafka.bootstrap.rpartition(":")
    wanted = [{"name": name, "num_partitions": 2, "replication_factor": 1} for name in names]
    with socket.create_connection((host, int(port))) as sock:
        converse(sock, Api.CREATE_TOPICS, 4, {"topics": wanted, "timeout": 5000})
    while not topics(kafka) >= set(names):
        pass  # made by the controller, and not heard of by the broker yet


@pytest.mark.slow
def test_demo_on_apache_kafka_succeeds_and_leaves_other_topics(
    kafka: ApacheKafka, tmp_path: Path
) -> None:
    create(kafka, "orders", "wordcount-lines", "demo-0a0b0c0d-lines")
    before = topics(kafka)

    command = [sys.executable, "-m", "streamsx", "demo", "--json", "--records", "4000"]
    done = subprocess.run(
        [*command, "--bootstrap", kafka.bootstrap, "--dir", str(tmp_path)],
        check=False, capture_output=True, text=True,
        env={**os.environ, "STREAMSX_HEARTBEAT_INTERVAL": "500ms"},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["ok"], result["mismatches"]) == (True, 0)
    assert any(promotion["to"] == "w3" for promotion in result["promotions"])
    assert topics(kafka) - {"__consumer_offsets"} == before - {"__consumer_offsets"}
    assert not list(tmp_path.glob("*/broker.log"))
