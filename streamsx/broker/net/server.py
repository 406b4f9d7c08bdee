"""Broker server: owns the data directory, listens, and dispatches requests by `broker/api/served`.

A malformed request closes its connection with one line in the log, and so does a request whose
handler fails; other connections go on. Not here: the encoding of requests
(`streamsx.protocol.wire`).
"""

import asyncio
import errno
import fcntl
import ipaddress
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Self
from uuid import UUID, uuid4

from streamsx.broker.api.served import SERVED, Handler, answered, frame_bytes_max
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.groups.group import GroupConfig
from streamsx.broker.groups.runtime import CoordinatorRuntime
from streamsx.broker.log.cleaner import Cleaner
from streamsx.broker.log.flusher import Flusher
from streamsx.broker.log.markers import MarkerWriter
from streamsx.broker.metadata_store import MetadataStore
from streamsx.broker.metrics import API_LABELS, PREFIX, BrokerCounts, in_a_line
from streamsx.broker.net.access import Access
from streamsx.broker.net.client_connection import (
    ClientConnection,
    ConnectionLimits,
    ConnectionLoad,
    ServedRequest,
)
from streamsx.broker.net.sasl import Authentication, Step, Users
from streamsx.broker.net.tls_handshake import TlsHandshake
from streamsx.broker.options import Options
from streamsx.broker.service import Service
from streamsx.broker.topics import NAME, TopicStore, alike, remove_folders
from streamsx.clock import Clock, SystemClock
from streamsx.errors import StoreCorrupt, StoreLocked, UsageError, WorldError
from streamsx.log_sentences import counted
from streamsx.metrics import MetricRegistry
from streamsx.protocol.compiler import Malformed
from streamsx.protocol.frames import LARGE_BYTES, Frame
from streamsx.protocol.wire import Api, request_decoder, request_head, response_encoder
from streamsx.state.disk import make_folder, sync_folder

HANDSHAKE_S = 10.0
"""Time limit of a TLS handshake."""
UNKNOWN_MAY = frozenset({Api.API_VERSIONS, Api.SASL_HANDSHAKE, Api.SASL_AUTHENTICATE})
"""Requests that are answered before a client is authenticated."""
BACKLOG = 512
"""Connections that the kernel queues until the broker accepts them."""
TELL_S = 60.0
"""Interval at which metrics are logged, if any request came meanwhile."""
SWEEPS_PER_IDLE_LIMIT = 4
"""Checks per idle limit: an idle connection is closed at most a fourth of the limit too late."""

logger = logging.getLogger(__name__)
STARTED = "Broker started at %s: data in %s, %s."
OPEN = (
    "Anyone who reaches the broker at %s can read and write everything: it has no TLS and no "
    "users. Give --tls-cert and --sasl-users to keep others out."
)


@dataclass(eq=False)
class BrokerServer:
    """Embedded broker on the caller's event loop.

    Example: `async with BrokerServer(folder) as broker: broker.bootstrap`.
    """

    folder: Path
    _: KW_ONLY
    host: str = "127.0.0.1"
    port: int = 0
    """Port to listen on; 0 picks a free one."""
    topics: Mapping[str, int] = field(default_factory=dict)
    """Topics to create if they do not exist, with their number of partitions."""
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    """Configuration of the topics that are created at the start."""
    options: Options = field(default_factory=Options)
    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    groups: GroupConfig = field(default_factory=GroupConfig)
    allow_remote: bool = False
    access: Access = field(default_factory=Access)
    clock: Clock = field(default_factory=SystemClock)
    fresh_id: Callable[[], UUID] = uuid4
    """Source of ids for members and topics."""
    answer: Handler = answered
    """Handler of each request; a simulation puts its own handler in front."""
    service: Service = field(init=False)
    """State that answers requests, for observers; set once the broker has started."""
    metrics: MetricRegistry = field(init=False)
    """Counters since the start, and gauges, which can be read once the broker has started."""
    _counts: BrokerCounts = field(init=False)
    _traffic: ConnectionLoad = field(init=False)
    _failures: Counter[tuple[Api, type[Exception]]] = field(init=False, default_factory=Counter)
    _closing: ExitStack = field(init=False, default_factory=ExitStack)
    _users: Users | None = field(init=False, default=None)
    _server: asyncio.Server = field(init=False)
    _sweep_timer: asyncio.TimerHandle = field(init=False)
    _metrics_timer: asyncio.TimerHandle = field(init=False)
    _logged_requests: int = field(init=False, default=0)
    """Number of requests when metrics were logged last."""

    def __post_init__(self) -> None:
        registry = self.metrics = MetricRegistry(PREFIX)
        self._counts = BrokerCounts(registry)
        self._traffic = ConnectionLoad(self._counts)
        connections = self._traffic.connections
        registry.gauge("connections", "Open connections.", lambda: len(connections))
        registry.gauge("groups", "Consumer groups.", self._groups)
        registry.gauge("topics", "Topics.", lambda: len(self.service.topics.by_name))
        registry.gauge("partitions", "Partitions.", lambda: self.service.topics.partitions)
        registry.gauge("log_bytes", "Bytes of all logs.", self._log_bytes, unit="bytes")

    @property
    def bootstrap(self) -> str:
        """Return the bootstrap address for clients; valid once the broker has started."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def start(self) -> None:
        """Load the data directory and start serving.

        Raises:
            StoreLocked: Another process uses the directory.
            StoreCorrupt: The directory is damaged or incomplete.
            IncompatibleStore: The directory has another format.
            UsageError: The host or a topic is not valid.
            WorldError: The port is taken, or the directory cannot be used.
        """
        with ExitStack() as undo:
            address = await self._resolve()
            self._check_topics()
            with on_disk(self.folder):
                undo.callback(os.close, lock(self.folder))
            try:  # before anything is written: a broker that cannot listen must change nothing
                self._server = await asyncio.get_running_loop().create_server(
                    self._connection, address, self.port, backlog=BACKLOG, start_serving=False
                )
            except OSError as error:
                why = os.strerror(error.errno or 0)
                what = "--host" if error.errno == errno.EADDRNOTAVAIL else "--port"
                raise WorldError(
                    f"cannot listen: {self.bootstrap}: {why}: choose another {what}"
                ) from error
            undo.callback(self._server.close)
            with on_disk(self.folder):
                self._load(undo)
                mark_used(self.folder)
            self.port = self._server.sockets[0].getsockname()[1]
            await self._server.start_serving()
            self._sweep()
            self._log_metrics()
            self._closing = undo.pop_all()
        topics = len(self.service.topics.by_name)
        logger.info(STARTED, self.bootstrap, self.folder, counted(topics, "topic"))

    async def close(self) -> None:
        """Close all connections, flush everything to the disk, and release the directory.

        Raises:
            WorldError: The disk refused.
        """
        with on_disk(self.folder), self._closing:
            self._server.close()
            self._traffic.open = False
            self._sweep_timer.cancel()
            self._metrics_timer.cancel()
            for connection in tuple(self._traffic.connections):
                connection.abort()
            await self.service.cleaner.close()
            await self.service.flusher.close()
            self.service.topics.flush()
            self.service.meta.revive()
            self.service.meta.flush()
            mark_clean(self.folder)
        logger.info("Broker at %s stopped; its data stay in %s.", self.bootstrap, self.folder)

    def abandon(self) -> None:
        """Release the directory as a kill does: no client is notified, nothing is flushed."""
        self._closing.close()

    def _groups(self) -> int:
        machine = self.service.groups.machine
        return len(machine.groups) if machine else 0

    def _log_bytes(self) -> int:
        return sum(log.size for *_, log in self.service.topics.logs())

    def _log_metrics(self) -> None:
        """Log the metrics if any request came since they were logged last."""
        requests = self._counts.requests.total()
        if requests != self._logged_requests:
            self._logged_requests = requests
            logger.info("Metrics: %s", in_a_line(self.metrics.samples()))
        self._metrics_timer = asyncio.get_running_loop().call_later(TELL_S, self._log_metrics)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _resolve(self) -> str:
        """Return the one address of `host`.

        A name with several addresses is an error: the broker would listen on one of them by chance.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(
                f"unknown host: {self.host}: {why}: give an address of this machine"
            ) from error
        addresses = sorted({str(address[0]) for *_, address in found})
        if len(addresses) > 1:
            several = " and ".join(addresses)
            raise UsageError(f"host with several addresses: {self.host}: choose one: {several}")
        if ipaddress.ip_address(addresses[0]).is_loopback or self.access.secured:
            return addresses[0]
        if not self.allow_remote:
            raise UsageError(
                f"other machines can reach this address: {self.host}: they could read and write "
                "everything: add --tls-cert and --sasl-users to keep them out, or --allow-remote "
                "to let them in"
            )
        logger.warning(OPEN, self.host)
        return addresses[0]

    def _check_topics(self) -> None:
        most = self.limits.partitions_max
        left = most
        seen = dict[str, str]()
        for name, partitions in self.topics.items():
            left -= partitions
            if not NAME.fullmatch(name) or partitions < 1 or left < 0:
                raise UsageError(
                    f"bad topic: {name}:{partitions}: give a name of letters, digits, dots, _ and "
                    f"-, and 1 to {most} partitions, counted over all topics"
                )
            if (other := seen.setdefault(alike(name), name)) != name:
                raise UsageError(
                    f"topic names too similar: {other} and {name}: dots and _ are the same in "
                    "metrics: choose other names"
                )
        if self.options.partitions > most:
            raise UsageError(
                f"too many partitions: {self.options.partitions}: the limit is {most} for all "
                "topics: give fewer for each topic, or raise the limit"
            )

    def _load(self, undo: ExitStack) -> None:
        if self.access.passwords is not None:
            self._users = Users(self.access.passwords, lambda: self.fresh_id().bytes)
        folder = self.folder
        sync = self.options.sync
        check_whole(folder / "meta", folder / "logs")
        meta = MetadataStore(folder / "meta", sync=sync)
        undo.callback(meta.close)
        topics = TopicStore(folder / "logs", meta, clean=(folder / CLEAN).exists(), sync=sync)
        undo.callback(topics.close)
        sync_folder(folder)  # flush the entries of both folders

        def reopen() -> bool:
            left = topics.reopen()
            if not left:
                groups.end_strays()
            return left

        flusher = Flusher(meta, reopen)
        groups = CoordinatorRuntime(
            self.groups, meta, self.clock, topics.catalog, self.fresh_id,
            MarkerWriter(topics, flusher, sync=sync), self._counts.group_events,
        )  # fmt: skip
        undo.callback(groups.close)
        topics.changed = groups.topics_changed
        loop = asyncio.get_running_loop()
        topics.remove = lambda gone: loop.run_in_executor(None, remove_folders, gone)
        # Topics are created after the groups have noticed which topics are gone.
        for name, partitions in self.topics.items():
            if name not in topics.by_name:
                topics.create(name, self.fresh_id().bytes, partitions, self.topic_configs)
            elif (found := len(topics.by_name[name].logs)) != partitions:
                logger.warning(
                    "Topic %s is there already, with %d partitions and not %d.",
                    name,
                    found,
                    partitions,
                )
        cleaner = Cleaner(topics, flusher, self.clock, self.options)
        undo.callback(cleaner.stop)
        self.service = Service(
            self.options,
            self.limits,
            self.access.advertised,
            meta,
            topics,
            groups,
            flusher,
            cleaner,
            self.fresh_id,
            self.clock,
        )

    def _connection(self) -> ClientConnection | TlsHandshake:
        authentication = None if self._users is None else Authentication(self._users)

        def most(key: int) -> int:
            """Return the largest request allowed; small until the client is authenticated."""
            known = authentication is None or authentication.done
            return frame_bytes_max(key) if known else LARGE_BYTES

        made = ClientConnection(
            self._traffic, self.limits, self._serve, self.clock.now, most, authentication
        )
        tls = self.access.tls
        return made if tls is None else TlsHandshake(made, tls, HANDSHAKE_S)

    def _serve(self, connection: ClientConnection, frame: Frame) -> None:
        try:
            call = self._decode(connection, frame)
        except Malformed as error:
            connection.close(str(error))
            return
        known = connection.authentication
        if known is not None and not known.done and call.api not in UNKNOWN_MAY:
            connection.close(f"{call.api.name}: the client is not authenticated: it must use SASL")
            return
        connection.call = call
        self._counts.requests.add(1, API_LABELS[call.api])
        try:
            body = self.answer(self.service, call)
        except Exception as error:
            self._failed(call, error)
            return
        if body is not None:
            call.reply(body)
        if known is not None and known.step is Step.REFUSED:
            connection.hang_up(f"login refused: user {known.user!r}")

    def _decode(self, connection: ClientConnection, frame: Frame) -> ServedRequest:
        key, version, correlation_id = request_head(frame)
        if (served := SERVED.get(key)) is None:
            raise Malformed(f"request {key}: not supported")
        api = Api(key)
        if not served.oldest <= version <= served.newest:
            if api is not Api.API_VERSIONS:
                known = f"supported are {served.oldest} to {served.newest}"
                raise Malformed(f"{api.name} v{version}: {known}")
            # KIP-511: ApiVersions of an unknown version is answered as version 0, so that the
            # client learns which versions there are.
            return ServedRequest(connection, api, 0, correlation_id, "", None, self._respond)
        try:
            head, body = request_decoder(api, version)(frame)
        except Malformed as error:
            raise Malformed(f"{api.name} v{version}: {error}") from None
        client_id = head.client_id or ""
        return ServedRequest(
            connection, api, version, correlation_id, client_id, body, self._respond
        )

    def _respond(self, call: ServedRequest, body: ReplyBody | None) -> None:
        try:
            encode = response_encoder(call.api, call.version)
            frame = b"" if body is None else encode(call.correlation_id, body)
        except Exception as error:
            self._failed(call, error)
            return
        call.connection.answer(frame)

    def _failed(self, call: ServedRequest, error: Exception) -> None:
        """Close the connection of a request whose handler failed, which is an error of the broker.

        Clients retry for ever, so the traceback is logged once; later failures are only counted.
        """
        kind = (call.api, type(error))
        self._failures[kind] = times = self._failures[kind] + 1
        if times == 1:
            logger.error("A request of kind %s failed here:", call.api.name, exc_info=error)
        call.connection.close(
            f"{call.api.name} v{call.version}: failed here {times} times: {error!r}"
        )

    def _sweep(self) -> None:
        idle_s = self.limits.connections_max_idle_s
        for connection in tuple(self._traffic.connections):
            if connection.call is None and self.clock.now() - connection.active_at > idle_s:
                connection.close(f"idle for {idle_s:g} s")
        loop = asyncio.get_running_loop()
        self._sweep_timer = loop.call_later(idle_s / SWEEPS_PER_IDLE_LIMIT, self._sweep)


@contextmanager
def on_disk(folder: Path) -> Iterator[None]:
    """Turn an OSError into a WorldError, at the start and at the end, when no client can get an
    answer.

    Raises:
        WorldError: The disk refused.
    """
    try:
        yield
    except OSError as error:
        raise WorldError(
            f"disk full or broken: {folder}: {error}: make room or repair it, and start the "
            "broker again; flushed records are safe"
        ) from error


def lock(folder: Path) -> int:
    """Lock the directory for this process.

    Returns:
        A descriptor that holds the lock until it is closed.

    Raises:
        StoreLocked: Another process holds the lock.
        WorldError: The directory cannot be created or used.
    """
    try:
        make_folder(folder)
        fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise WorldError(
            f"cannot use the data directory: {folder}: {error.strerror}: choose another with --data"
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(fd, 20, 0).decode() or "unknown"
        os.close(fd)
        raise StoreLocked(
            f"the data directory is in use by process {pid}: {folder}:"
            " stop that broker, or choose another directory with --data"
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, b"%d" % os.getpid(), 0)
    return fd


CLEAN = "clean"
"""File that exists if everything was flushed at the end; absent while a broker runs."""


def check_whole(meta: Path, logs: Path) -> None:
    """Refuse logs without metadata.

    Half a copy of a directory is not an empty directory: a new topic with the name of an old one
    would remove the old logs.

    Raises:
        StoreCorrupt: There are logs, but no metadata.
    """
    if not (meta / "CURRENT").exists() and any(logs.glob("*/*.log")):
        raise StoreCorrupt(
            f"{logs}: logs without {meta}: restore a copy of the whole directory, or remove {logs}"
        )


def mark_used(folder: Path) -> None:
    """Remove the clean mark; the last step before a broker serves, so a failed start leaves the
    mark in place.
    """
    (folder / CLEAN).unlink(missing_ok=True)
    sync_folder(folder)


def mark_clean(folder: Path) -> None:
    """Set the clean mark; the last step of a broker before it releases the directory."""
    (folder / CLEAN).touch()
    sync_folder(folder)
