"""kafka-python, unmodified, over real sockets."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from streamsx.testing import Broker

WAIT_MS = 20_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data", topics={"t": 2}) as broker:
        yield broker


def test_kafka_python_reads_sent_records_and_resumes_from_the_commit(broker: Broker) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap, enable_idempotence=True)
    for i in range(20):
        producer.send("t", b"%d" % i, partition=i % 2)
    producer.flush()
    about: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap, "group_id": "g", "auto_offset_reset": "earliest",
        "enable_auto_commit": False, "consumer_timeout_ms": WAIT_MS, "heartbeat_interval_ms": 100,
    }  # fmt: skip
    consumer = KafkaConsumer("t", **about)
    found = [int(next(consumer).value) for _ in range(20)]
    assert sorted(found) == list(range(20))
    consumer.commit()
    consumer.close()
    producer.send("t", b"20", partition=0).get(timeout=20)
    producer.close()
    again = KafkaConsumer("t", **about)
    assert int(next(again).value) == 20
    assert again.committed(TopicPartition("t", 1)) == 10
    again.close()


def test_kafka_python_admin_creates_and_deletes_topics(broker: Broker) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics({"new": {"num_partitions": 2, "replication_factor": 1}})
    assert set(admin.list_topics()) == {"t", "new"}
    admin.delete_topics(["new"])
    assert set(admin.list_topics()) == {"t"}
    admin.close()
