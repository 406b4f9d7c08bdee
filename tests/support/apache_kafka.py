"""Real Apache Kafka on this machine in KRaft mode: one node, or several brokers and a controller.

The embedded broker and our clients are compared with it. It is started, restarted and killed by
tests, and never outlives the process that started it. Jars come from `jars`; Java 17 or newer must
be on PATH.
"""

import base64
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from streamsx.clock import Clock, SystemClock
from streamsx.errors import BrokerUnreachable
from streamsx.protocol import wire
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from streamsx.tools.cli.processes import Child

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
PROBE_TIMEOUT_S = 5.0
PROBE_PAUSE_S = 0.05
LOG_LINES_TOLD = 20
HOST = "127.0.0.1"
USER, PASSWORD = "shop", "secret"
PEM = Path(__file__).parent / "localhost.pem"
LOGIN = "org.apache.kafka.common.security"
CONTROLLER_ID = 100
ELECT_LEADERS = 43
"""An API that nothing of ours asks for or serves."""
ELECTION_NOT_NEEDED = 84

T = TypeVar("T")

COMMON = """\
controller.listener.names=CONTROLLER
listener.security.protocol.map=\
    PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT,SECURE:SASL_SSL
log.dirs={home}/logs
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=300
group.consumer.min.heartbeat.interval.ms=100
group.consumer.min.session.timeout.ms=300
group.consumer.assignment.interval.ms=0
group.consumer.assignor.offload.enable=false
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
num.network.threads=1
num.io.threads=2
"""
"""Group timers may be fast."""

ALONE = (
    COMMON
    + """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers={host}:{controller}
listeners=PLAINTEXT://{host}:{port},SASL://{host}:{sasl},SECURE://{host}:{secure},\
    CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port},SASL://{host}:{sasl},SECURE://{host}:{secure},\
    CONTROLLER://{host}:{controller}
listener.name.sasl.sasl.enabled.mechanisms=PLAIN
listener.name.secure.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.sasl.plain.sasl.jaas.config={login}.plain.PlainLoginModule required \
    user_{user}="{password}";
listener.name.secure.plain.sasl.jaas.config={login}.plain.PlainLoginModule required \
    user_{user}="{password}";
listener.name.secure.scram-sha-256.sasl.jaas.config={login}.scram.ScramLoginModule required;
listener.name.secure.scram-sha-512.sasl.jaas.config={login}.scram.ScramLoginModule required;
listener.name.secure.oauthbearer.sasl.jaas.config=\
    {login}.oauthbearer.OAuthBearerLoginModule required;
listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location={pem}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=300
"""
)
"""A killed broker's registration must expire before it comes back: 1.5 s instead of 9 bring a
restart after SIGKILL from 12.7 s to 3.9."""

CONTROLLER = (
    COMMON
    + """\
process.roles=controller
node.id={node}
controller.quorum.bootstrap.servers={host}:{controller}
listeners=CONTROLLER://{host}:{controller}
advertised.listeners=CONTROLLER://{host}:{controller}
default.replication.factor=3
min.insync.replicas=2
auto.leader.rebalance.enable=false
broker.session.timeout.ms={session}
"""
)
BROKER = (
    COMMON
    + """\
process.roles=broker
node.id={node}
controller.quorum.bootstrap.servers={host}:{controller}
listeners=PLAINTEXT://{host}:{port}
advertised.listeners=PLAINTEXT://{host}:{port}
"""
)
"""The controller says how many replicas there are, and how long a broker may be silent. Leaders go
back when they are told to."""

OVERRIDE = "--override"
JAVA = (
    "java", "-Xmx384m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote",
    "-XX:CICompilerCount=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)  # fmt: skip


class Node:
    """One process of Kafka. A context manager; the process may be down between calls, and its
    address stays the same.
    """

    def __init__(
        self,
        jars: Path,
        home: Path,
        port: int,
        properties: str,
        format_as: tuple[str, ...],
        ready: Callable[[socket.socket], bool],
        clock: Clock | None = None,
    ) -> None:
        """Prepare a node.

        Args:
            home: An empty folder for configuration, data and log.
            ready: Called with a connection to its port until it is true; may raise OSError.
        """
        home.mkdir(parents=True, exist_ok=True)
        self._jars, self._home, self._port = jars, home, port
        self._format_as, self._is_ready = format_as, ready
        self._clock = clock or SystemClock()
        self._java: Child | None = None
        self._properties = home / "server.properties"
        self._properties.write_text(properties.format(home=home, host=HOST))

    @property
    def bootstrap(self) -> str:
        """Return HOST:PORT."""
        return f"{HOST}:{self._port}"

    @property
    def pid(self) -> int | None:
        """Return the pid of the Java process; None while it is down."""
        return self._java.pid if self._java and self._java.code is None else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *, idle_s: float | None = None) -> None:
        """Start it and wait until it is ready.

        Args:
            idle_s: Seconds after which it closes idle connections; ten minutes by default.

        Raises:
            BrokerUnreachable: with the end of its log.
        """
        self.begin(idle_s=idle_s)
        self.wait()

    def begin(self, *, idle_s: float | None = None) -> None:
        """Start it and do not wait until it is ready."""
        assert self.pid is None, "it is running"
        if not (self._home / "logs").exists():
            self._format()
        limit = () if idle_s is None else (OVERRIDE, f"connections.max.idle.ms={idle_s * 1000:.0f}")
        command = self._command("kafka.Kafka", str(self._properties), *limit)
        self._java = Child("kafka", self._home / "kafka.log", command)

    def wait(self) -> None:
        """Wait until it is ready. Raises BrokerUnreachable."""
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Send SIGTERM, then SIGKILL if it does not end; do nothing if it is down."""
        if self._java is not None:
            self._java.stop(STOP_TIMEOUT_S)
            self._java = None

    def kill(self) -> None:
        """Kill it by SIGKILL, as in a crash."""
        if self._java is not None:
            self._java.kill()
            self._java = None

    def restart(self) -> None:
        """Stop it if it runs, then start it."""
        self.stop()
        self.start()

    def _command(self, *words: str) -> list[str]:
        return [*JAVA, "-cp", f"{self._jars}/*", *words]

    def _format(self) -> None:
        words = ("format", *self._format_as, "-c", str(self._properties))
        done = subprocess.run(  # the command is written above
            self._command("kafka.tools.StorageTool", *words),
            check=False, capture_output=True, text=True, timeout=READY_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode:
            raise BrokerUnreachable(f"Kafka cannot be formatted: {self._home}: {done.stderr}")

    def _wait_until_ready(self) -> None:
        assert self._java
        until = self._clock.now() + READY_TIMEOUT_S
        while not self._ready():
            try:
                status = self._java.wait(PROBE_PAUSE_S)
                raise BrokerUnreachable(f"Kafka ended with {status}: {self._told()}")
            except TimeoutError:
                pass  # it is still running: ask again
            if self._clock.now() > until:
                raise BrokerUnreachable(f"Kafka is not ready in time: {self._told()}")

    def _ready(self) -> bool:
        try:
            with socket.create_connection((HOST, self._port), PROBE_TIMEOUT_S) as sock:
                return self._is_ready(sock)
        except OSError:
            return False

    def _told(self) -> str:
        assert self._java
        return "\n".join([str(self._home), *self._java.tail(LOG_LINES_TOLD)])


class ApacheKafka(Node):
    """One node that is broker and controller, with one replica of everything.

    `settings`: of the broker, by Kafka's names. `features`: levels by name; the others are the
    newest.
    """

    def __init__(
        self,
        jars: Path,
        home: Path,
        clock: Clock | None = None,
        settings: Mapping[str, object] | None = None,
        features: Mapping[str, int] | None = None,
    ) -> None:
        # All ports stay: the controller's is written into the formatted directory.
        port, self._sasl, self._secure, controller = _free_ports(4)
        filled = _filled(
            ALONE, port=port, sasl=self._sasl, secure=self._secure, controller=controller,
            user=USER, password=PASSWORD, login=LOGIN, pem=PEM,
        )  # fmt: skip
        format_as = ["--standalone", _cluster_id()]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            format_as += ["--add-scram", f"{mechanism}=[name={USER},password={PASSWORD}]"]
        for feature, level in (features or {}).items():
            format_as += ["--feature", f"{feature}={level}"]
        super().__init__(
            jars, home, port, filled + lines_of(settings or {}), tuple(format_as), _coordinates,
            clock,
        )  # fmt: skip

    @property
    def sasl_bootstrap(self) -> str:
        """Return HOST:PORT of the listener that demands USER and PASSWORD by SASL/PLAIN."""
        return f"{HOST}:{self._sasl}"

    @property
    def secure_bootstrap(self) -> str:
        """Return HOST:PORT of the listener that demands USER by SASL_SSL.

        Mechanisms: PLAIN, SCRAM-SHA-256 and -512 with PASSWORD, OAUTHBEARER with an unsigned token.
        The certificate is PEM.
        """
        return f"{HOST}:{self._secure}"


class ApacheCluster:
    """Brokers 1, 2, 3 and a controller, each a process; three replicas, of which two must be in
    sync. A context manager.
    """

    def __init__(
        self, jars: Path, home: Path, *, session_s: float = 9.0, clock: Clock | None = None
    ) -> None:
        """Prepare a cluster.

        Args:
            home: An empty folder.
            session_s: Time after which a vanished broker is fenced; a restarted one has to wait as
                long.
        """
        self._clock, self._pause = clock or SystemClock(), threading.Event()
        named = _cluster_id()
        controller, *ports = _free_ports(4)
        properties = _filled(
            CONTROLLER, node=CONTROLLER_ID, controller=controller, session=int(session_s * 1000)
        )
        format_as = ("--standalone", named)
        self._controller = Node(
            jars, home / "controller", controller, properties, format_as, lambda _: True, clock
        )
        self.brokers: dict[int, Node] = {}
        """By id."""
        for node, port in enumerate(ports, 1):
            properties = _filled(BROKER, node=node, port=port, controller=controller)
            format_as = ("--no-initial-controllers", named)
            ready = partial(_is_member, node)
            self.brokers[node] = Node(
                jars, home / str(node), port, properties, format_as, ready, clock
            )

    @property
    def bootstrap(self) -> str:
        """Return HOST:PORT of each broker, with commas in between."""
        return ",".join(node.bootstrap for node in self.brokers.values())

    def __enter__(self) -> Self:
        """Start all; wait until the brokers know each other and one of them coordinates groups."""
        nodes = (self._controller, *self.brokers.values())
        try:
            for node in nodes:
                node.begin()
            for node in nodes:
                node.wait()
            self.until_in_sync()
            self.until(lambda: self.coordinator("probe"), "a coordinator")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all processes: their data is not needed any more."""
        for node in (*self.brokers.values(), self._controller):
            node.kill()

    def coordinator(self, group: str) -> int | None:
        """Return the id of the broker that coordinates a group, by another broker; None if there is
        none.
        """
        told = self._ask(Api.FIND_COORDINATOR, 2, {"key": group, "key_type": 0})
        return None if told.error_code else int(told.node_id)

    def leaders(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Return for each partition of each topic its leader and its preferred leader."""
        return {
            (topic.name, part.partition_index): (part.leader_id, part.replica_nodes[0])
            for topic in self._ask(Api.METADATA, 8, {"topics": None}).topics
            for part in topic.partitions
        }

    def elect_preferred(self) -> None:
        """Wait until each partition is led by its preferred broker; all of these must run."""
        body = {"election_type": 0, "topic_partitions": None, "timeout": 10_000}

        def elected() -> bool:
            told = self._ask(ELECT_LEADERS, 2, body)
            results = [p for topic in told.replica_election_results for p in topic.partition_result]
            codes = {told.error_code, *(part.error_code for part in results)}
            return codes <= {ErrorCode.NONE, ELECTION_NOT_NEEDED} and all(
                leader == preferred for leader, preferred in self.leaders().values()
            )

        self.until(elected, "leaders are the preferred ones")

    def until_in_sync(self) -> None:
        """Wait until every broker runs, with all replicas in sync."""

        def in_sync() -> bool:
            told = self._ask(Api.METADATA, 8, {"topics": None})
            return len(told.brokers) == len(self.brokers) and all(
                len(part.isr_nodes) == len(part.replica_nodes)
                for topic in told.topics
                for part in topic.partitions
            )

        self.until(in_sync, "replicas in sync")

    def until(self, condition: Callable[[], T], what: str) -> T:
        """Wait until `condition` is true and return it; OSError counts as not true.

        Raises:
            BrokerUnreachable: it took too long.
        """
        over = self._clock.now() + READY_TIMEOUT_S
        while self._clock.now() < over:
            with suppress(OSError):
                if found := condition():
                    return found
            self._pause.wait(PROBE_PAUSE_S)
        raise BrokerUnreachable(f"the cluster at {self.bootstrap}: not in time: {what}")

    def _ask(self, api: int, version: int, body: wire.Body) -> Any:
        """Ask any broker that runs."""
        running = next(node for node in self.brokers.values() if node.pid)
        host, _, port = running.bootstrap.rpartition(":")
        with socket.create_connection((host, int(port)), PROBE_TIMEOUT_S) as sock:
            return converse(sock, api, version, body)


def _filled(properties: str, **values: object) -> str:
    """Fill a template; `home` and `host` come later."""
    return properties.format(home="{home}", host="{host}", **values)


def lines_of(settings: Mapping[str, object]) -> str:
    return "".join(f"\n{name}={value}" for name, value in settings.items())


def _cluster_id() -> str:
    """Return a random cluster id as an option with "=": one id in 64 begins with a dash."""
    return "--cluster-id=" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _coordinates(sock: socket.socket) -> bool:
    """Return whether the broker coordinates groups.

    An open port is too early, and so is an answered ApiVersions: the coordinator refuses for up to
    4 s more. FindCoordinator also makes a new broker create its offsets topic.
    """
    found = converse(sock, Api.FIND_COORDINATOR, 1, {"key": "probe", "key_type": 0})
    offsets = converse(sock, Api.OFFSET_FETCH, 7, {"group_id": "probe", "topics": None})
    return {found.error_code, offsets.error_code} == {ErrorCode.NONE}


def _is_member(node: int, sock: socket.socket) -> bool:
    """Return whether the broker knows that it may lead: its registration is not fenced."""
    told = converse(sock, Api.METADATA, 8, {"topics": []})
    return node in {broker.node_id for broker in told.brokers}


def converse(sock: socket.socket, api: int, version: int, body: wire.Body) -> Any:
    """Send one request on a blocking socket and return its answer. Raises OSError and Malformed."""
    sock.sendall(wire.request_encoder(api, version)(1, body, "streamsx-probe"))
    size = int.from_bytes(_received(sock, 4), "big")
    return wire.response_decoder(api, version)(_received(sock, size))[1]


def _received(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := sock.recv(size - len(data))):
            raise ConnectionError("closed by the broker")
        data += more
    return data


def _free_ports(count: int) -> list[int]:
    """Return free ports. All are held open until the last is found, so that no two are the same."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
