"""Process that copies records from one topic to another, each exactly once (KIP-447).

`python -m tests.support.copier BOOTSTRAP TRANSACTIONAL_ID FROM TO` works until it is killed. It
ends at the first error: the test starts it again, and then its open transaction is aborted.
"""

import os
import signal
import sys

from confluent_kafka import Consumer, KafkaException, Producer

AT_ONCE = 20
ANSWER_S = 2.0
TURN_S = 3
"""librdkafka 2.16 may wait for ever for a group's coordinator that was down, whatever it was told:
then the process is killed.
"""


def copy(bootstrap: str, name: str, source: str, target: str) -> None:
    """Copy for ever. Raises KafkaException."""
    common = {"bootstrap.servers": bootstrap, "reconnect.backoff.max.ms": 100, "log_level": 0}
    producer = Producer({**common, "transactional.id": name, "transaction.timeout.ms": 5000})
    signal.alarm(TURN_S)
    producer.init_transactions(ANSWER_S)
    consumer = Consumer(
        {
            **common, "group.id": "copiers", "isolation.level": "read_committed",
            "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "session.timeout.ms": 1500, "heartbeat.interval.ms": 300, "fetch.wait.max.ms": 50,
        }
    )  # fmt: skip
    consumer.subscribe([source])
    while True:
        signal.alarm(TURN_S)
        found = [each for each in consumer.consume(AT_ONCE, 0.2) if each.error() is None]
        if not found:
            continue
        producer.begin_transaction()
        for each in found:
            producer.produce(target, each.value(), partition=each.partition() or 0)
        places = consumer.position(consumer.assignment())
        about = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(places, about, ANSWER_S)
        producer.commit_transaction(ANSWER_S)


if __name__ == "__main__":
    try:
        copy(*sys.argv[1:])
    except KafkaException as why:
        sys.stderr.write(f"{why!r}\n")
        os._exit(1)  # librdkafka may not end by itself while its broker is down
