"""Broker and clients that are killed amid transactions: each record comes out once."""

import random
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from streamsx.clock import SystemClock
from streamsx.tools.cli.processes import Child
from tests.support.embedded_broker import EmbeddedBroker

PARTITIONS, COPIERS = 3, 2
WAIT_S = 60.0
CLOCK = SystemClock()


class Copiers:
    """Copier processes, kept at a fixed number."""

    def __init__(self, broker: EmbeddedBroker, log: Path) -> None:
        self.broker, self.log = broker, log
        self.running: dict[int, Child] = {}
        self.started = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.running.values():
            child.kill()

    def tend(self) -> None:
        """Start each process again that has ended."""
        for number in range(COPIERS):
            if number not in self.running or self.running[number].code is not None:
                command = [sys.executable, "-m", "tests.support.copier", self.broker.bootstrap]
                self.running[number] = Child(
                    f"copier-{number}", self.log, [*command, f"copier-{number}", "in", "out"]
                )
                self.started += 1

    def kill(self, number: int) -> None:
        self.running[number].kill()


class Reader:
    """Reader of committed records."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self.found: Counter[bytes] = Counter()
        self._consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap, "group.id": "reader", "log_level": 0,
                "isolation.level": "read_committed", "reconnect.backoff.max.ms": 100,
            }
        )  # fmt: skip
        self._consumer.assign([TopicPartition("out", p, 0) for p in range(PARTITIONS)])

    def read(self, wait_s: float = 0.05) -> None:
        for each in self._consumer.consume(500, wait_s):
            if each.error() is None:
                self.found[each.value() or b""] += 1

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.parametrize(
    ("records", "kills", "options"),
    [
        pytest.param(1200, 3, [], id="short"),
        pytest.param(600, 2, ["--sync"], id="short-sync", marks=[pytest.mark.slow]),
        pytest.param(12_000, 12, [], id="long", marks=[pytest.mark.slow]),
        pytest.param(6000, 12, ["--sync"], id="long-sync", marks=[pytest.mark.slow]),
    ],
)
@pytest.mark.timeout(400)
def test_transactional_copy_outputs_each_record_once_despite_kills(
    tmp_path: Path, records: int, kills: int, options: list[str]
) -> None:
    rng = random.Random(records)
    about = ["--topic", f"in:{PARTITIONS}", "--topic", f"out:{PARTITIONS}", *options]
    with ExitStack() as made:
        broker = made.enter_context(EmbeddedBroker(tmp_path / "data", *about))
        copiers = made.enter_context(Copiers(broker, tmp_path / "copiers.log"))
        reader = Reader(broker)
        made.callback(reader.close)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 1,
                "reconnect.backoff.max.ms": 100, "log_level": 0,
            }
        )  # fmt: skip
        ends = sorted(rng.sample(range(records // 10, records), kills))
        sent, until = 0, CLOCK.now() + WAIT_S
        while len(reader.found) < records:
            assert CLOCK.now() < until, f"{len(reader.found)} of {records} have come"
            copiers.tend()
            while sent < min(records, len(reader.found) + 400):
                producer.produce("in", b"%d" % sent, partition=sent % PARTITIONS)
                sent += 1
            producer.poll(0)
            reader.read()
            if ends and len(reader.found) >= ends[0]:
                ends.pop(0)
                broker.kill()
                if rng.random() < 0.5:
                    copiers.kill(rng.randrange(COPIERS))
                broker.start()
                until = CLOCK.now() + WAIT_S
        assert producer.flush(WAIT_S) == 0
        reader.read(1.0)
        assert reader.found == Counter({b"%d" % n: 1 for n in range(records)})
        assert ends == []
