"""The blocking client of tests, as a reader of what other producers have committed."""

import pytest
from confluent_kafka import KafkaException, Producer

from streamsx.model import TopicPartition
from streamsx.testing import Broker
from tests.support.client import Client

TP = TopicPartition("t", 0)


def test_client_reads_committed_records_and_fences_a_writer() -> None:
    with Broker(topics={TP.topic: 1}) as broker:
        client = Client(broker.bootstrap)
        client.send(TP, [(b"k", b"plain")], [7], [[("h", b"v")]])
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "x"})
        producer.init_transactions(30)
        for name, records, ends in (
            ("lost", 2, producer.abort_transaction),
            ("kept", 3, producer.commit_transaction),
            ("open", 1, producer.flush),
        ):
            producer.begin_transaction()
            for number in range(records):
                producer.produce(TP.topic, f"{name} {number}", partition=0)
            producer.flush()
            ends(30)

        plain, *kept = client.read(TP)
        assert plain == (0, b"k", b"plain", 7, [("h", b"v")])
        assert [record.value for record in kept] == [b"kept 0", b"kept 1", b"kept 2"]
        assert [each[:2] for each in client.transactions(TP)] == [(2, False), (3, True)]
        assert client.ends([TP])[TP] == client.stable_ends([TP])[TP] + 1
        client.fence("x")
        with pytest.raises(KafkaException, match=r"fenced|epoch"):
            producer.commit_transaction(30)
        assert [each[:2] for each in client.transactions(TP)][2:] == [(1, False)]
        client.close()
