"""A real Apache Kafka on this machine: one KRaft node, started, restarted, killed.

To hold against it what the embedded broker and our clients do. It never outlives the process that
started it. Jars come from `jars`; Java 17 or newer must be on PATH.
"""

import base64
import socket
import subprocess
import uuid
from pathlib import Path
from typing import Any, Self

from streamsx.clock import Clock, SystemClock
from streamsx.errors import BrokerUnreachable
from streamsx.kafka import wire
from streamsx.kafka.errors import ErrorCode
from streamsx.kafka.wire import Api
from streamsx.testing import children

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
PROBE_TIMEOUT_S = 5.0
PROBE_PAUSE_S = 0.05
LOG_LINES_TOLD = 20

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={logs}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=300
group.consumer.min.heartbeat.interval.ms=100
group.consumer.min.session.timeout.ms=300
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=300
"""
"""One node with fast group timers. A killed broker's registration must expire before it comes back:
1.5 s instead of 9 bring a restart after SIGKILL from 12.7 s to 3.9."""

OVERRIDE = "--override"
JAVA = ("java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class ApacheKafka:
    """A context manager; between its calls the node may be down, its address stays the same."""

    def __init__(self, jars: Path, home: Path, clock: Clock | None = None) -> None:
        """`home`: an empty folder for configuration, data and log."""
        self._jars, self._home = jars, home
        self._clock = clock or SystemClock()
        self._java: subprocess.Popen[bytes] | None = None
        self._port, controller = _free_ports(2)
        # Both ports stay: the controller's is written into the formatted directory.
        self._properties = home / "server.properties"
        self._properties.write_text(
            PROPERTIES.format(port=self._port, controller=controller, logs=home / "logs")
        )

    @property
    def bootstrap(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """Of the Java process; None while it is down."""
        return self._java.pid if self._java and self._java.poll() is None else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *, idle_s: float | None = None) -> None:
        """Until its group coordinator answers. `idle_s`: it closes connections that are idle for so
        long, ten minutes without. Raises BrokerUnreachable with the end of its log.
        """
        assert self.pid is None, "it is running"
        if not (self._home / "logs").exists():
            self._format()
        limit = () if idle_s is None else (OVERRIDE, f"connections.max.idle.ms={idle_s * 1000:.0f}")
        command = self._command("kafka.Kafka", str(self._properties), *limit)
        with (self._home / "kafka.log").open("ab") as log:
            self._java = children.start(command, out=log, err=log)
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to one that does not end; nothing if it is down."""
        if self._java is None:
            return
        self._java.terminate()
        try:
            self._java.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._java.kill()
        self._java.wait()
        self._java = None

    def kill(self) -> None:
        """SIGKILL: as a crash."""
        if self._java is not None:
            self._java.kill()
            self._java.wait()
            self._java = None

    def restart(self) -> None:
        """Stop if it runs, then start."""
        self.stop()
        self.start()

    def _command(self, *words: str) -> list[str]:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [*JAVA, quiet, "-cp", f"{self._jars}/*", *words]

    def _format(self) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # One in 64 begins with a dash, which would be an option without the "=".
        words = ("format", "--standalone", f"--cluster-id={cluster}", "-c", str(self._properties))
        done = subprocess.run(  # noqa: S603  # the command is written above
            self._command("kafka.tools.StorageTool", *words),
            check=False, capture_output=True, text=True, timeout=READY_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode:
            raise BrokerUnreachable(f"Kafka cannot be formatted: {self._home}: {done.stderr}")

    def _wait_until_ready(self) -> None:
        """An open port is too early, and so is an answered ApiVersions: the coordinator refuses for
        up to 4 s more. FindCoordinator also makes a new broker create its offsets topic.
        """
        assert self._java
        until = self._clock.now() + READY_TIMEOUT_S
        while not self._ready():
            try:
                status = self._java.wait(PROBE_PAUSE_S)
                raise BrokerUnreachable(f"Kafka ended with {status}: {self._told()}")
            except subprocess.TimeoutExpired:
                pass  # it is still running: ask again
            if self._clock.now() > until:
                raise BrokerUnreachable(f"Kafka is not ready in time: {self._told()}")

    def _ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), PROBE_TIMEOUT_S) as sock:
                found = converse(sock, Api.FIND_COORDINATOR, 1, {"key": "probe", "key_type": 0})
                asked = {"group_id": "probe", "topics": None}
                offsets = converse(sock, Api.OFFSET_FETCH, 7, asked)
        except OSError:
            return False
        return {found.error_code, offsets.error_code} == {ErrorCode.NONE}

    def _told(self) -> str:
        lines = (self._home / "kafka.log").read_text(errors="replace").splitlines()
        return "\n".join([str(self._home), *lines[-LOG_LINES_TOLD:]])


def converse(sock: socket.socket, api: int, version: int, body: wire.Body) -> Any:
    """One request and its answer on a blocking socket. Raises OSError and Malformed."""
    sock.sendall(wire.request_encoder(api, version)(1, "streamsx-probe", body))
    size = int.from_bytes(_received(sock, 4), "big")
    return wire.response_decoder(api, version)(_received(sock, size))


def _received(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := sock.recv(size - len(data))):
            raise ConnectionError("closed by the broker")
        data += more
    return data


def _free_ports(count: int) -> list[int]:
    """Held open until all are known, so that no two are the same."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
