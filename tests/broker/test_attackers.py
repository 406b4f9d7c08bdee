"""Clients that try to use up the broker's memory or time, all at once, beside one that works.

The broker is a process of its own and is looked at from outside: its memory, and whether a client
with small requests is always answered.
"""

import logging
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import perf_counter

import pytest

from streamsx.broker.api.served import SERVED
from streamsx.protocol import wire
from streamsx.protocol.record_batch import Builder
from streamsx.protocol.wire import Api
from tests.support.apache_kafka import PEM, converse
from tests.support.embedded_broker import EmbeddedBroker

MIB = 1 << 20
MEMORY_MIB = 128
"""That an attack may take, beyond what the broker had."""
ANSWER_S = 5.0
BY_TLS = ("--tls-cert", str(PEM))
TLS = ssl.create_default_context(cafile=str(PEM))
VERSIONS = {"client_software_name": "test", "client_software_version": "1"}


def rss_mib(pid: int, field: str = "VmRSS") -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) / 1024


def dial(broker: EmbeddedBroker, *, secure: bool | None = None) -> socket.socket:
    """Connect; `secure`: by TLS, or by default as the broker has it."""
    host, _, port = broker.bootstrap.rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=10)
    if secure is None and not {*BY_TLS} <= {*broker.options}:
        return sock
    return sock if secure is False else TLS.wrap_socket(sock, server_hostname="localhost")


@contextmanager
def asking(broker: EmbeddedBroker) -> Iterator[list[float]]:
    """Send small requests on one connection all the time; yield the times of the answers."""
    took, begun, over = list[float](), threading.Event(), threading.Event()

    def ask() -> None:
        with dial(broker) as sock:
            sock.settimeout(60)
            while True:
                began = perf_counter()
                try:
                    converse(sock, Api.API_VERSIONS, 3, VERSIONS)
                except OSError:
                    took.append(float("inf"))
                    raise
                took.append(perf_counter() - began)
                begun.set()
                if over.wait(0.02):
                    return

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        assert begun.wait(ANSWER_S)
        yield took
    finally:
        over.set()
        thread.join()


def mutated(dice: random.Random, good: list[bytes]) -> bytes:
    """Return random bytes after a valid head, or a good frame with some bytes changed."""
    data = bytearray(dice.choice(good))
    if dice.random() < 0.3:
        api = Api(dice.choice(sorted(SERVED)))
        version = dice.randint(SERVED[api].oldest, SERVED[api].newest)
        data[4:] = api.to_bytes(2) + version.to_bytes(2) + bytes(4) + b"\xff\xff"
        data += dice.randbytes(dice.randint(8, 400))
        data[:4] = (len(data) - 4).to_bytes(4)
    for _ in range(dice.randrange(5)):
        first = 0 if dice.random() < 0.02 else 4  # the length of a frame is seldom wrong
        data[dice.randrange(first, len(data))] = dice.choice((0, 1, 127, 128, dice.randrange(256)))
    return bytes(data)


def good_frames() -> list[bytes]:
    """Return a frame of each request, as a client would send it."""
    records = Builder(MIB)
    records.append(1, None, b"x")
    asked: dict[Api, wire.Body] = {
        Api.PRODUCE: {
            "acks": 1, "timeout": 100,
            "topic_data": [{"name": "t", "partition_data": [{"records": records.close()}]}],
        },
        Api.FETCH: {
            "max_wait": 10, "min_bytes": 1, "max_bytes": 1000,
            "topics": [{"topic": "t", "partitions": [{"partition_max_bytes": 1000}]}],
        },
    }  # fmt: skip
    frames = []
    for api, served in SERVED.items():
        version = 9 if api in asked else served.newest
        body = asked.get(Api(api)) or {
            "group_id": "g", "session_timeout": 1000, "rebalance_timeout": 10, "member_id": "",
            "protocol_type": "c", "protocols": [{"name": "p"}], "coordinator_keys": ["g"],
            "groups": [{"group_id": "g"}] if api == Api.OFFSET_FETCH else ["g"],
            "members": [{"member_id": "m"}], "endpoint_type": 1, "topics": [],
        }  # fmt: skip
        frames.append(bytes(wire.request_encoder(api, version)(1, body, "good")))
    return frames


def throw(broker: EmbeddedBroker, count: int) -> None:
    """Send this many malformed frames, and connect again whenever the broker hangs up."""
    dice, good, sock = random.Random(18), good_frames(), dial(broker)
    for _ in range(count):
        with suppress(OSError):
            sock.sendall(mutated(dice, good))
            sock.settimeout(0.05)  # some wait, for others or for the rest of the frame
            size = int.from_bytes(sock.recv(4))
            if size and len(sock.recv(size, socket.MSG_WAITALL)) == size:
                continue
        sock.close()
        sock = dial(broker)
    sock.close()


def drip(sock: socket.socket, size: int, api: Api) -> None:
    """Send a frame without its last byte, in small parts, until the broker hangs up."""
    head = size.to_bytes(4) + api.to_bytes(2) + (9).to_bytes(2)
    part, left = bytes(1 << 18), size - 1 - 4
    with suppress(OSError):
        sock.sendall(head)
        while left > 0:
            sock.sendall(part[:left])
            left -= len(part)


def half_frames(broker: EmbeddedBroker, stack: ExitStack) -> None:
    """Send unfinished frames: of the largest size, larger ones, and 300 that never continue."""
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
    """Fetch everything again and again, and never read the answers."""
    topics = [{"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 50 * MIB}]}]
    body = {"max_bytes": 50 * MIB, "max_wait": 0, "min_bytes": 1, "topics": topics}
    ask = bytes(wire.request_encoder(Api.FETCH, 11)(1, body, "silent"))
    for _ in range(30):
        stack.enter_context(dial(broker)).sendall(ask * 50)
    with dial(broker) as sock:
        while "are not taken" not in broker.told():
            converse(sock, Api.API_VERSIONS, 3, VERSIONS)


def no_handshakes(broker: EmbeddedBroker, stack: ExitStack) -> None:
    """Connect without a TLS handshake. Each costs the broker 0.4 MB, so it counts them before."""
    for _ in range(1500):
        stack.enter_context(dial(broker, secure=False))
    with dial(broker) as sock:
        converse(sock, Api.API_VERSIONS, 3, VERSIONS)
    assert "there are 100 connections" in broker.told()


@pytest.mark.timeout(240)
def test_broker_survives_rubbish(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker", "--topic", "t:1") as broker:
        throw(broker, 1000)
        with dial(broker) as sock:
            assert not converse(sock, Api.API_VERSIONS, 3, VERSIONS).error_code
        assert "Traceback" not in broker.told()
        assert broker.stop() == 0


@pytest.mark.perf
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("attack", "options"),
    [
        (half_frames, ()), (silent_readers, ()), (silent_readers, BY_TLS),
        (no_handshakes, (*BY_TLS, "--connections-max", "100")),
    ],
)  # fmt: skip
def test_attack_takes_little_memory_and_delays_no_other_client(
    tmp_path: Path, attack: Callable[[EmbeddedBroker, ExitStack], None], options: tuple[str, ...]
) -> None:
    with EmbeddedBroker(tmp_path / "broker", "--topic", "t:1", *options) as broker:
        assert broker.pid is not None
        fill(broker)
        before = rss_mib(broker.pid)
        with ExitStack() as stack, asking(broker) as took:
            attack(broker, stack)
        assert max(took) < ANSWER_S
        assert rss_mib(broker.pid, "VmHWM") < before + MEMORY_MIB
        assert "Traceback" not in broker.told()
        assert broker.stop() == 0


@pytest.mark.perf
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("count", [10_000, 100_000], ids=["some", "many"])
def test_broker_answers_amid_rubbish_half_frames_and_large_frames(
    tmp_path: Path, count: int
) -> None:
    """300 connections never continue their frame, 8 declare the largest size and more, and some
    drip.
    """
    over = threading.Event()

    def attack(broker: EmbeddedBroker, mib: int) -> None:
        while not over.is_set():
            with dial(broker) as sock, suppress(OSError):
                sock.sendall((mib * MIB).to_bytes(4) + Api.PRODUCE.to_bytes(2) + (9).to_bytes(2))
                while not over.wait(0.02):
                    sock.sendall(bytes(1 << 16))

    with EmbeddedBroker(tmp_path / "broker", "--topic", "t:1") as broker, ExitStack() as stack:
        assert broker.pid is not None
        before = rss_mib(broker.pid)
        for _ in range(300):
            sock = stack.enter_context(dial(broker))
            sock.sendall((30 * MIB).to_bytes(4) + bytes(2) + bytes(20_000))
        dripping = [threading.Thread(target=attack, args=(broker, mib)) for mib in (64, 32) * 4]
        for thread in dripping:
            thread.start()
        try:
            with asking(broker) as took:
                throw(broker, count)
        finally:
            over.set()
            for thread in dripping:
                thread.join()
        grown, worst = rss_mib(broker.pid, "VmHWM") - before, max(took)
        told = "frames=%d more_mib=%.0f answers=%d worst_s=%.3f"
        logging.getLogger(__name__).info(told, count, grown, len(took), worst)
        assert worst < ANSWER_S
        assert grown < MEMORY_MIB
        assert "Traceback" not in broker.told()
        assert broker.stop() == 0


def fill(broker: EmbeddedBroker) -> None:
    """Write 16 MiB of records for readers."""
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
