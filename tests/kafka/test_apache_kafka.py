"""The Apache Kafka fixture: an unmodified client talks to it, and restarts keep its address and
data.
"""

import asyncio
import os
import select
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer  # type: ignore[import-untyped]  # no types

from tests.support.apache_kafka import ApacheKafka

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.xdist_group("kafka"),
    pytest.mark.timeout(240),
]


async def sent(bootstrap: str, topic: str, values: list[bytes]) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for value in values:
            await producer.send_and_wait(topic, value)


async def received(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    async with consumer, asyncio.timeout(30):
        return [(await consumer.getone()).value for _ in range(count)]


def test_unmodified_client_receives_the_records_sent(kafka: ApacheKafka) -> None:
    topic, values = f"t-{uuid.uuid4()}", [b"one", b"two", b"three"]
    asyncio.run(sent(kafka.bootstrap, topic, values))
    assert asyncio.run(received(kafka.bootstrap, topic, 3)) == values


@pytest.mark.slow
def test_records_survive_a_restart_and_a_kill(kafka: ApacheKafka) -> None:
    topic, address = f"t-{uuid.uuid4()}", kafka.bootstrap
    asyncio.run(sent(address, topic, [b"one"]))

    kafka.restart()
    asyncio.run(sent(address, topic, [b"two"]))
    kafka.kill()
    assert kafka.pid is None
    kafka.start()

    assert kafka.bootstrap == address
    assert asyncio.run(received(address, topic, 2)) == [b"one", b"two"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills children with their parent")
@pytest.mark.slow
def test_apache_kafka_does_not_outlive_a_killed_test_run(kafka_jars: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.support.apache_kafka import *;"
        "broker = ApacheKafka(*map(Path, sys.argv[1:])); broker.start();"
        "print(broker.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(kafka_jars), str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as run:  # fmt: skip
        assert run.stdout
        java = os.pidfd_open(int(run.stdout.readline()))
        run.send_signal(signal.SIGKILL)

    ended, _, _ = select.select([java], [], [], 10)  # a pidfd is readable once its process ended
    os.close(java)
    assert ended
