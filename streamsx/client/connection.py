"""A connection that aiokafka opened and authenticated, then taken over: our codec, our buffers.

TLS, SASL and asking what the broker speaks are aiokafka's. From then on the transport is ours: a
reply is received straight into the buffer that its records are read from, and handled inside its
arrival. One connection carries one lane of requests, answered in the order in which they were
asked; a request that waits at the broker makes all behind it wait, so callers that must not wait
for each other use lanes of their own. Which broker it is, and opening again what was lost, are
`cluster`'s.

Whatever ends a connection (the broker, the network, a reply that cannot be read, `abort`), every
request on it fails at once with BrokerUnreachable, and so does every later one.
"""

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from ssl import SSLError
from typing import Any, NamedTuple

import aiokafka  # type: ignore[import-untyped]  # has no types
from aiokafka import errors as theirs
from aiokafka.conn import AIOKafkaConnection  # type: ignore[import-untyped]  # has no types

from streamsx.client.connect_race import first_success
from streamsx.client.security import KERBEROS, OAUTH, PLAINTEXT, Security
from streamsx.errors import BrokerUnreachable, Bug, SettingError, UsageError
from streamsx.protocol import wire
from streamsx.protocol.compiler import Malformed
from streamsx.protocol.frames import Frame, Frames
from streamsx.protocol.wire import Api

# It warns of a password in the clear with each connection: a worker does, once.
logging.getLogger("aiokafka.conn").setLevel(logging.ERROR)

CLIENT_ID = "streamsx"
CONNECT_TIMEOUT_S = 5.0
NEXT_ADDRESS_S = 0.5
"""Then the next address of a broker's name is tried too: a silent one takes all of a time-out."""
REQUEST_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 1.0
REPLY_BYTES_MAX = 128 << 20
"""A fetch is asked to stay below 16 MiB, but one batch may be as large as its topic allows."""
REPLY_BYTES_MIN = 4
CORRELATION_IDS = 1 << 31

NEWEST: dict[int, int] = {
    Api.PRODUCE: 8,
    Api.FETCH: 11,
    Api.LIST_OFFSETS: 5,
    Api.METADATA: 10,
    Api.OFFSET_COMMIT: 7,
    Api.OFFSET_FETCH: 7,
    Api.FIND_COORDINATOR: 1,
    Api.JOIN_GROUP: 5,
    Api.HEARTBEAT: 3,
    Api.LEAVE_GROUP: 3,
    Api.SYNC_GROUP: 3,
    Api.DESCRIBE_GROUPS: 4,
    Api.CREATE_TOPICS: 4,
    Api.DELETE_TOPICS: 5,
    Api.DELETE_RECORDS: 1,
    Api.INIT_PRODUCER_ID: 4,
    Api.DESCRIBE_CONFIGS: 2,
}
"""The newest version of each request that we speak: topics by name, one group per request. Ids of
topics are in Metadata since 10. Fetches of sources name topics by id where both sides can
(`FETCH_BY_ID`).
"""
FETCH_BY_ID = 13

Answered = Callable[[Any], None]
"""Gets the decoded reply, or the BrokerUnreachable."""

_linger_not = struct.pack("ii", 1, 0)


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """HOST:PORT or [IPV6]:PORT. Raises SettingError."""
        host, _, port = text.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise SettingError(f"not an address: {text.strip()!r}: write HOST:PORT[,HOST:PORT]")
        return cls(host.strip("[]"), int(port))


REFUSALS = (
    theirs.AuthenticationFailedError,
    theirs.SaslAuthenticationFailed,
    theirs.UnsupportedSaslMechanismError,
)
"""What another try cannot change."""
HUNG_UP = (theirs.KafkaConnectionError, ConnectionResetError, ConnectionAbortedError, SSLError)
OTHERS_CODE = (KERBEROS, OAUTH)
"""Mechanisms that run a library or the user's code, which may raise anything."""


class _OneAddress:
    """The event loop, for whom a broker's name has one address: that of `place`."""

    def __init__(self, loop: Any, place: str) -> None:
        self._loop, self._place = loop, place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(
        self, protocol: Any, host: str, port: int, *, ssl: Any = None
    ) -> Any:
        """Connect there; TLS asks for the certificate of the name."""
        named = {} if ssl is None else {"server_hostname": host}
        return await self._loop.create_connection(protocol, self._place, port, ssl=ssl, **named)


class _Opened(AIOKafkaConnection):  # type: ignore[misc]  # has no types
    """A token that is refused is answered without an error code, by a challenge that says why (RFC
    7628, 3.2.3). aiokafka takes it for a yes, and the next request is answered ILLEGAL_SASL_STATE.
    """

    _loop: Any

    def go_to(self, place: str) -> None:
        """Connect to this address of the broker's."""
        if place != self.host:
            self._loop = _OneAddress(self._loop, place)

    def authenticator_oauth(self) -> Any:
        sender = super().authenticator_oauth()
        tell = sender.step

        async def step(challenge: bytes | None) -> Any:
            if challenge:
                raise OSError(f"the token is refused: {challenge.decode(errors='replace')}")
            return await tell(challenge)

        sender.step = step
        return sender


async def connect(
    address: Address,
    security: Security = PLAINTEXT,
    *,
    timeout_s: float = CONNECT_TIMEOUT_S,
    user_timeout_ms: int | None = None,
) -> "Connection":
    """Open, authenticate, take over.

    `user_timeout_ms`: TCP_USER_TIMEOUT where the platform has it: how long the kernel may go on
    delivering what was sent, even for a process that was stopped or killed. Raises
    BrokerUnreachable, also for a token that is refused: the next one may be a good one; and
    SettingError if the broker refuses who we are.
    """
    places = await _places(address, timeout_s)
    if len(places) == 1:
        opened = await _open(places[0], address, security, timeout_s)
    else:
        patience_s = min(NEXT_ADDRESS_S, timeout_s)
        opened = await first_success(
            places, lambda place: _open(place, address, security, timeout_s), patience_s
        )
    return Connection(opened, address, user_timeout_ms)


async def _places(address: Address, timeout_s: float) -> list[str]:
    """Return each address that a name has. Raises BrokerUnreachable."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise BrokerUnreachable(
            f"no connection: {address}: nobody has said in {timeout_s:g} s where that is"
        ) from None
    except OSError as error:
        raise BrokerUnreachable(f"no connection: {address}: {_why(error)}") from None
    return list(dict.fromkeys(str(each[4][0]) for each in found))


async def _open(place: str, address: Address, security: Security, timeout_s: float) -> "_Opened":
    """Open and authenticate at one address of a broker. Raises as `connect`."""
    settings = {name: getattr(security, name) for name in security.__slots__}
    where = str(address) if place == address.host else f"{address} ({place})"
    try:
        async with asyncio.timeout(timeout_s):
            opened = _Opened(*address, client_id=CLIENT_ID, **settings)
            opened.go_to(place)
            await opened.connect()
            return opened
    except theirs.IllegalSaslStateError:
        why = "it asks for no user here: leave the credentials out, or give another port"
        raise SettingError(f"refused by the broker: {where}: {why}") from None
    except REFUSALS as error:
        raise SettingError(f"refused by the broker: {where}: {error}") from None
    except TimeoutError:
        raise BrokerUnreachable(
            f"no answer in {timeout_s:.3g} s: {where}: it is silent, or no Kafka broker"
        ) from None
    except (OSError, theirs.KafkaError) as error:
        hint = _hint(error, security)
        raise BrokerUnreachable(f"no connection: {where}: {_why(error)}{hint}") from None
    except Exception as error:
        if security.sasl_mechanism not in OTHERS_CODE:
            raise
        what = f"{security.sasl_mechanism}: {type(error).__name__}: {error}"
        raise BrokerUnreachable(f"not authenticated: {where}: {what}") from None


def _hint(error: Exception, security: Security) -> str:
    """Return what may be wrong with a broker that hangs up before it has said anything."""
    if not isinstance(error, HUNG_UP):
        return ""
    if security.ssl_context is not None:
        return ": is it a Kafka broker, and one with TLS?"
    return ": is it a Kafka broker, and one without TLS and credentials?"


def _why(error: Exception) -> str:
    """Return what an error says, or its kind if that is nothing."""
    return str(error) or type(error).__name__


def taken_over(
    opened: Any,
) -> tuple[asyncio.Protocol, asyncio.Transport, dict[int, tuple[int, int]]]:
    """All private names of aiokafka that we use: its protocol, its transport, and the lowest and
    highest version that the broker speaks, by API. It has had all its answers; its reader must not
    get ours. Raises Bug for an aiokafka that has other names.
    """
    try:
        found = opened._protocol, opened._writer.transport, opened._versions
        opened._read_task.cancel()
    except AttributeError as error:
        raise Bug(
            f"aiokafka {aiokafka.__version__} is not the one that we know: {error}: install the "
            "version that streamsx asks for, or mend kafka.connection.taken_over"
        ) from error
    return found


class _Waiter(NamedTuple):
    """A request on its way."""

    correlation_id: int
    api: int
    version: int
    answered: Answered

    def __str__(self) -> str:
        return f"{Api(self.api).name} v{self.version}"


class Connection(asyncio.BufferedProtocol):
    """One lane of requests to one broker."""

    def __init__(self, opened: Any, address: Address, user_timeout_ms: int | None = None) -> None:
        self._opened, self._address = opened, address
        self._inner, self._transport, self._theirs = taken_over(opened)
        self._waiting: deque[_Waiter] = deque()
        self._correlation_id = 0
        self._lost = ""
        """Why the connection has ended."""
        self._frames = Frames(REPLY_BYTES_MIN, REPLY_BYTES_MAX, believed=REPLY_BYTES_MAX)
        if user_timeout_ms is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            self._set_option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_ms)
        self._transport.set_protocol(self)

    def __repr__(self) -> str:
        return f"<Connection {self._address} {self._lost or 'open'}>"

    @property
    def closed(self) -> bool:
        """No request will be answered any more."""
        return bool(self._lost) or self._transport.is_closing()

    def speaks(self, api: int, version: int) -> bool:
        """Return whether the broker knows this version of a request."""
        low, high = self._theirs.get(api, (0, -1))
        return low <= version <= high

    def version(self, api: int) -> int:
        """The newest one that both sides speak. Raises UsageError if there is none."""
        low, high = self._theirs.get(api, (0, -1))
        version = min(high, NEWEST[api])
        if version < max(low, wire.versions(api)[0]):
            raise UsageError(
                f"the broker does not know {Api(api).name}: {self._address}: it speaks versions"
                f" {low} to {high}, we up to {NEWEST[api]}: use Kafka 2.5 or newer"
            )
        return version

    def call(
        self, api: int, body: wire.Body, answered: Answered, version: int | None = None
    ) -> None:
        """Send a request; `answered` runs inside the arrival of its reply: no task, no turn of the
        loop between. It gets the BrokerUnreachable if there will be none, also of a connection that
        was closed before; then it runs in a turn of its own. Raises UsageError (`version`).

        `version`: one that the broker `speaks`, else the newest that both sides do.
        """
        version = self.version(api) if version is None else version
        self._correlation_id = (self._correlation_id + 1) % CORRELATION_IDS
        waiter = _Waiter(self._correlation_id, api, version, answered)
        if self.closed:
            self._tell(waiter)
            return
        frame = wire.request_encoder(api, version)(self._correlation_id, body, CLIENT_ID)
        self._waiting.append(waiter)
        self._transport.write(frame)

    async def ask(
        self,
        api: int,
        body: wire.Body,
        timeout_s: float = REQUEST_TIMEOUT_S,
        version: int | None = None,
    ) -> Any:
        """The decoded reply: attributes of the newest version.

        Raises BrokerUnreachable; after `timeout_s` the connection is aborted first, for the answer
        may still come and every other one behind it. That holds for who has given up waiting too:
        else a network that swallows everything is found out by nobody. Raises UsageError
        (`version`).
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def answered(reply: Any) -> None:
            overdue.cancel()
            if future.done():  # nobody waits any more
                return
            if isinstance(reply, BrokerUnreachable):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.call(api, body, answered, version)
        overdue = loop.call_later(timeout_s, self.abort, f"no answer in {timeout_s:.3g} s")
        return await future

    def abort(self, why: str = "given up by this worker") -> None:
        """End it now; what was sent and has not left this machine yet never will.

        A connection that is closed as usual is still served by the kernel, after a network cut for
        minutes: a commit would arrive behind newer ones of the next connection.
        """
        self._set_option(socket.SOL_SOCKET, socket.SO_LINGER, _linger_not)
        self._lose(why)
        self._transport.abort()

    async def close(self) -> None:
        """End it as usual, and wait until it has ended."""
        self._lose("closed by this worker")
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._opened.close()
        except TimeoutError:  # the broker does not take what was sent
            self._transport.abort()

    # What asyncio calls.

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """They are there."""
        try:
            for frame in self._frames.received(nbytes):
                self._arrived(frame)
        except Malformed as error:
            self.abort(f"malformed: {error}: is it a Kafka broker?")

    def eof_received(self) -> None:
        """The broker closes, as it does with idle connections (`connections.max.idle.ms`)."""
        self._lose("closed by the broker")
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended; aiokafka's object must know."""
        self._lose(str(exc) if exc else "closed by the broker")
        self._inner.connection_lost(exc)
        self._opened.close()

    # How it works.

    def _arrived(self, frame: Frame) -> None:
        if not self._waiting:
            raise Malformed("a reply to nothing")
        waiter = self._waiting[0]
        head, reply = wire.response_decoder(waiter.api, waiter.version)(frame)
        if head.correlation_id != waiter.correlation_id:
            raise Malformed(f"a reply to {head.correlation_id}, not to {waiter.correlation_id}")
        self._waiting.popleft()
        waiter.answered(reply)

    def _lose(self, why: str) -> None:
        """Tell every waiter, once."""
        self._lost = self._lost or why
        while self._waiting:
            self._tell(self._waiting.popleft())

    def _tell(self, waiter: _Waiter) -> None:
        # Each in a turn of its own: what one of them does about it cannot keep it from the others.
        lost = BrokerUnreachable(f"{waiter}: {self._address}: {self._lost or 'closed'}")
        asyncio.get_running_loop().call_soon(waiter.answered, lost)

    def _set_option(self, level: int, name: int, value: int | bytes) -> None:
        """On the socket, if there is one: ended connections have a closed one."""
        sock = self._transport.get_extra_info("socket")
        if sock and sock.fileno() >= 0:
            sock.setsockopt(level, name, value)
