"""Clients that want to take the broker's memory or time, all at once, and one that works.

The broker is a process of its own and is looked at from outside: how much memory it has, and
whether whoever asks for little is answered all the time.
"""

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import perf_counter

import pytest

from streamsx.broker.api.served import SERVED
from streamsx.kafka import wire
from streamsx.kafka.batch import Builder
from streamsx.kafka.wire import Api
from tests.support.apache_kafka import converse
from tests.support.embedded_broker import EmbeddedBroker

MIB = 1 << 20
MEMORY_MIB = 128
"""That an attack may take, beyond what the broker had."""
ANSWER_S = 5.0
VERSIONS = {"client_software_name": "test", "client_software_version": "1"}


def rss_mib(pid: int, field: str = "VmRSS") -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) / 1024


def dial(broker: EmbeddedBroker) -> socket.socket:
    host, _, port = broker.bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


@contextmanager
def asking(broker: EmbeddedBroker) -> Iterator[list[float]]:
    """Somebody asks for little, on one connection, all the time: how long each answer took."""
    took, over = list[float](), threading.Event()

    def ask() -> None:
        with dial(broker) as sock:
            while True:
                began = perf_counter()
                converse(sock, Api.API_VERSIONS, 3, VERSIONS)
                took.append(perf_counter() - began)
                if over.wait(0.02):
                    return

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield took
    finally:
        over.set()
        thread.join()


def drip(sock: socket.socket, size: int, api: Api) -> None:
    """A frame without its last byte, in small parts, until the broker hangs up."""
    head = size.to_bytes(4) + api.to_bytes(2) + (9).to_bytes(2)
    part, left = bytes(1 << 18), size - 1 - 4
    with suppress(OSError):
        sock.sendall(head)
        while left > 0:
            sock.sendall(part[:left])
            left -= len(part)


def half_frames(broker: EmbeddedBroker, stack: ExitStack) -> None:
    """As large as they may be, as large as they may not, and 300 that never go on."""
    for _ in range(300):
        sock = stack.enter_context(dial(broker))
        sock.sendall((30 * MIB).to_bytes(4) + bytes(2) + bytes(20_000))
    sizes = ((64, Api.PRODUCE), (32, Api.PRODUCE), (32, Api.METADATA), (15, Api.FETCH))
    for mib, api in sizes:
        attackers = [stack.enter_context(dial(broker)) for _ in range(8)]
        dripping = [
            threading.Thread(target=drip, args=(sock, mib * MIB, api)) for sock in attackers
        ]
        for thread in dripping:
            thread.start()
        for thread in dripping:
            thread.join()


def silent_readers(broker: EmbeddedBroker, stack: ExitStack) -> None:
    """They ask for all that there is, again and again, and never take it."""
    topics = [{"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 50 * MIB}]}]
    body = {"max_bytes": 50 * MIB, "max_wait": 0, "min_bytes": 1, "topics": topics}
    ask = bytes(wire.request_encoder(Api.FETCH, 11)(1, body, "silent"))
    for _ in range(30):
        stack.enter_context(dial(broker)).sendall(ask * 50)
    with dial(broker) as sock:
        while "are not taken" not in broker.told():
            converse(sock, Api.API_VERSIONS, 3, VERSIONS)


def rubbish(broker: EmbeddedBroker, stack: ExitStack) -> None:
    """Requests of every kind, behind their heads at random; each is answered or hung up on."""
    del stack
    dice = random.Random(18)
    for _ in range(2_000):
        api = Api(dice.choice(sorted(SERVED)))
        version = dice.randint(SERVED[api].oldest, SERVED[api].newest)
        body = dice.randbytes(dice.randint(8, 400))
        data = bytearray(api.to_bytes(2) + version.to_bytes(2) + bytes(4) + b"\xff\xff" + body)
        for _ in range(dice.randint(0, 3)):
            data[dice.randrange(8, len(data))] = dice.choice((0, 1, 127, 128, 255))
        with dial(broker) as sock, suppress(OSError):
            sock.sendall(len(data).to_bytes(4) + data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 20):
                pass


ATTACKS = [half_frames, silent_readers, rubbish]


@pytest.mark.timeout(300)
def test_whoever_attacks_takes_little_and_nobody_else_notices(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker", "--topic", "t:1") as broker:
        assert broker.pid is not None
        fill(broker)
        before = rss_mib(broker.pid)
        for attack in ATTACKS:
            with ExitStack() as stack, asking(broker) as took:
                attack(broker, stack)
            assert max(took) < ANSWER_S, attack
        assert rss_mib(broker.pid, "VmHWM") < before + MEMORY_MIB
        assert "Traceback" not in broker.told()
        assert broker.stop() == 0


def fill(broker: EmbeddedBroker) -> None:
    """16 MiB of records for readers."""
    builder = Builder(MIB)
    builder.append(1, None, bytes(MIB // 2))
    records = bytes(builder.close())
    with dial(broker) as sock:
        for _ in range(32):
            part = [{"index": 0, "records": records}]
            body = {
                "acks": 1,
                "timeout": 1000,
                "topic_data": [{"name": "t", "partition_data": part}],
            }
            told = converse(sock, Api.PRODUCE, 9, body)
            assert not told.responses[0].partition_responses[0].error_code
