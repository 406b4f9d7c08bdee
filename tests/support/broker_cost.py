"""Costs of the embedded broker compared with Apache Kafka, for changes of the broker.

    python -m tests.support.broker_cost --kafka

It prints the CPU time of the broker's process per request. Raw clients send the same bytes to both
brokers, each one request at a time: with one client the broker wakes up for each request, with
several it does not. Both brokers run all the time and take turns, so that other load hits both.
Kafka has its usual compilers and 1 GiB, and is warmed up until its code is compiled. A third server
bounds what a broker on asyncio can reach: it answers the same bytes to the same frames without
reading them, and has no disk. Further figures are the start of the embedded broker and its memory
when it is idle.

Not here: limits of the cost (`tests/broker/test_budget.py` has a coarse one).
"""

import argparse
import asyncio
import multiprocessing
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

from streamsx.clock import SystemClock
from streamsx.protocol import wire
from streamsx.protocol.record_batch import Builder
from streamsx.protocol.wire import Api
from tests.conftest import POM
from tests.support import apache_kafka
from tests.support.apache_kafka import ApacheKafka, converse
from tests.support.cost import busy_s
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.maven import jars

REQUESTS, ROUNDS = 2000, 7
WARM_UP = {"embedded": 1, "asyncio alone": 1, "kafka": 20}
"""Rounds that do not count."""
STARTS, IDLE_S = 5, 3.0
TOPIC = {"name": "cost", "num_partitions": 1, "replication_factor": 1}
KIND = {
    "group_id": "cost", "session_timeout": 300_000, "rebalance_timeout": 60_000, "member_id": "",
    "protocol_type": "x", "protocols": [{"name": "p", "metadata": b""}],
}  # fmt: skip
RECORD_BYTES, BATCH_BYTES, FETCH_BYTES = 100, 16 << 10, 64 << 10
JAVA = "java -Xmx1g -Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
"""As people run it; tests have one compiler, to start sooner."""

Broker = EmbeddedBroker | ApacheKafka


def batch() -> bytes:
    """Return a batch of as many records of 100 bytes as fit into 16 KiB."""
    builder = Builder(BATCH_BYTES)
    now_ms = int(SystemClock().wall() * 1000)  # Kafka deletes what is old
    while builder.append(now_ms, None, bytes(RECORD_BYTES)):
        pass
    return bytes(builder.close())


class Answering(asyncio.BufferedProtocol):
    """Protocol that answers each frame of a length with the same bytes."""

    def __init__(self, answers: dict[int, bytes]) -> None:
        self._answers, self._buffer, self._filled = answers, bytearray(1 << 20), 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, _: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, count: int) -> None:
        self._filled += count
        size = 4 + int.from_bytes(self._buffer[:4])
        if self._filled == size:
            self._filled = 0
            self._transport.write(self._answers[size])


def answer_for_ever(answers: dict[int, bytes], listening: socket.socket) -> None:
    """Run a server that does nothing else."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Answering(answers), sock=listening)
        await server.serve_forever()

    asyncio.run(serve())


class Asker:
    """Connection to a process, with the frames that are compared."""

    def __init__(self, bootstrap: str, pid: int, frames: dict[str, bytes]) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._bootstrap, self._pid = bootstrap, pid
        self._sock = socket.create_connection((host, int(port)), 60)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frames = frames

    def ask(self, frame: bytes) -> bytes:
        """Send one request and return its answer."""
        self._sock.sendall(frame)
        data = self._sock.recv(1 << 20)
        size, parts, got = 4 + int.from_bytes(data[:4]), [data], len(data)
        while got < size:
            parts.append(self._sock.recv(1 << 20))
            got += len(parts[-1])
        return b"".join(parts)

    def round_us(self, what: str, clients: int) -> float:
        """Return the CPU time of the process per request, with this many clients at once."""
        crowd = [
            self,
            *(Asker(self._bootstrap, self._pid, self.frames) for _ in range(clients - 1)),
        ]
        before = busy_s(self._pid)
        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(lambda each: each.ask_often(what), crowd))
        took = busy_s(self._pid) - before
        for each in crowd[1:]:
            each._sock.close()
        return took / REQUESTS / clients * 1e6

    def ask_often(self, what: str) -> None:
        """Send requests, and wait for each answer."""
        frame = self.frames[what]
        for _ in range(REQUESTS):
            self.ask(frame)


class Client(Asker):
    """Client of a broker, with a topic, records and a group to ask about."""

    def __init__(self, broker: Broker) -> None:
        assert broker.pid is not None
        super().__init__(broker.bootstrap, broker.pid, {})
        converse(self._sock, Api.CREATE_TOPICS, 4, {"topics": [TOPIC], "timeout": 10_000})
        joined = converse(self._sock, Api.JOIN_GROUP, 3, KIND)
        me = {"group_id": "cost", "generation_id": 1, "member_id": joined.member_id}
        converse(self._sock, Api.SYNC_GROUP, 3, {**me, "assignments": []})
        assert not converse(self._sock, Api.HEARTBEAT, 3, me).error_code
        data = [{"name": "cost", "partition_data": [{"index": 0, "records": batch()}]}]
        produced = {"acks": 1, "timeout": 5000, "topic_data": data}
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": FETCH_BYTES}
        asked = [{"topic": "cost", "partitions": [part]}]
        self.frames = {
            "heartbeat": self._frame(Api.HEARTBEAT, 3, me),
            "produce 16 KiB": self._frame(Api.PRODUCE, 9, produced),
            "fetch 64 KiB": self._frame(
                Api.FETCH, 11,
                {"max_wait": 0, "min_bytes": 1, "max_bytes": FETCH_BYTES, "topics": asked},
            ),
        }  # fmt: skip
        stored = 0
        while stored < FETCH_BYTES // BATCH_BYTES + 2:  # Kafka's leader is there a bit later
            told = converse(self._sock, Api.PRODUCE, 9, produced)
            stored += not told.responses[0].partition_responses[0].error_code
        assert len(self.ask(self.frames["fetch 64 KiB"])) > FETCH_BYTES * 0.9

    def _frame(self, api: Api, version: int, body: wire.Body) -> bytes:
        return bytes(wire.request_encoder(api, version)(1, body, "cost"))


@contextmanager
def asyncio_alone(client: Client) -> Iterator[Asker]:
    """Run a process that gives the answers of this broker."""
    answers = {len(frame): client.ask(frame) for frame in client.frames.values()}
    assert len(answers) == len(client.frames)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        spawn = multiprocessing.get_context("spawn")
        process = spawn.Process(target=answer_for_ever, args=(answers, listening))
        process.start()
        assert process.pid is not None
        port = listening.getsockname()[1]
    try:
        yield Asker(f"127.0.0.1:{port}", process.pid, client.frames)
    finally:
        process.kill()
        process.join()


def compare(clients: dict[str, Asker], at_once: int, say: Callable[[str], None]) -> None:
    """Return a row for each request: medians, the ratio to Kafka's, and that of the answering
    server.
    """
    names = [*clients, *(["ratio", "at best"] if "kafka" in clients else [])]
    say(f"{'CPU us per request':20}" + "".join(f"{name:>15}" for name in names))
    for what in next(iter(clients.values())).frames:
        for name, client in clients.items():
            for _ in range(WARM_UP[name]):
                client.round_us(what, at_once)
        rounds: dict[str, list[float]] = {name: [] for name in clients}
        for _ in range(ROUNDS):
            for name, client in clients.items():
                rounds[name].append(client.round_us(what, at_once))
        medians = {name: statistics.median(took) for name, took in rounds.items()}
        row = f"{what:20}" + "".join(f"{medians[name]:15.1f}" for name in clients)
        if "kafka" in medians:
            for name in ("embedded", "asyncio alone"):
                row += f"{medians[name] / medians['kafka']:15.2f}"
        say(row)


def start_and_memory(folder: Path, say: Callable[[str], None]) -> None:
    """Return start time and memory of new brokers, each in an empty folder."""
    took, memory = list[float](), list[float]()
    for number in range(STARTS):
        broker, began = EmbeddedBroker(folder / str(number), "--topic", "t:1"), time.perf_counter()
        with broker:
            took.append(time.perf_counter() - began)
            Event().wait(IDLE_S)
            status = Path(f"/proc/{broker.pid}/status").read_text()
            memory.append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)
    say(f"start to ready       {statistics.median(took):.2f} s (worst {max(took):.2f})")
    say(f"idle memory (RSS)    {statistics.median(memory):.0f} MiB (worst {max(memory):.0f})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--kafka", action="store_true", help="beside Apache Kafka (Java, Maven)")
    parser.add_argument("--java", default=JAVA, help=f"how it is run ({JAVA})")
    parser.add_argument("--clients", type=int, default=1, help="at once (1)")
    options = parser.parse_args()
    apache_kafka.JAVA = tuple(options.java.split())
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, brokers = Path(name), dict[str, Broker]()
        start_and_memory(folder, print)
        brokers["embedded"] = stack.enter_context(EmbeddedBroker(folder / "embedded"))
        if options.kafka:
            brokers["kafka"] = stack.enter_context(ApacheKafka(jars(POM), folder / "kafka"))
        clients: dict[str, Asker] = {}
        clients["embedded"] = embedded = Client(brokers["embedded"])
        clients["asyncio alone"] = stack.enter_context(asyncio_alone(embedded))
        if "kafka" in brokers:
            clients["kafka"] = Client(brokers["kafka"])
        compare(clients, options.clients, print)


if __name__ == "__main__":
    main()
