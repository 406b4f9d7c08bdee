"""Connection to one broker, opened and authenticated by aiokafka, then taken over.

aiokafka does TLS, SASL and the question which API versions the broker speaks. Then our codec and
our buffers take over the transport. A reply is received straight into the buffer that its records
are read from, and handled inside its arrival.

One connection carries one lane of requests. The broker answers in the order of the requests, so a
request that waits at the broker delays all requests behind it. Callers that must not wait for each
other use separate lanes. `cluster` chooses the broker and reopens lost connections.

When a connection ends (by the broker, the network, an unreadable reply, `abort`), all its requests
fail at once with BrokerUnreachable, and so do later requests.
"""

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from ssl import SSLError
from typing import Any, Final, NamedTuple

import aiokafka  # type: ignore[import-untyped]  # has no types
from aiokafka import errors as theirs
from aiokafka.conn import AIOKafkaConnection  # type: ignore[import-untyped]  # has no types

from streamsx.client.api_versions import NodeApiVersions, VersionRange, default_versions
from streamsx.client.connect_race import first_success
from streamsx.client.security import KERBEROS, OAUTH, PLAINTEXT, Security
from streamsx.errors import BrokerUnreachable, Bug, SettingError, UsageError
from streamsx.protocol import wire
from streamsx.protocol.compiler import Malformed
from streamsx.protocol.frames import Frame, Frames
from streamsx.protocol.wire import Api

# aiokafka warns of a clear-text password with each connection; a worker warns once.
logging.getLogger("aiokafka.conn").setLevel(logging.ERROR)

CLIENT_ID = "streamsx"
CONNECT_TIMEOUT_S = 5.0
NEXT_ADDRESS_S = 0.5
"""Time after which the next address of a broker's name is tried too.

A silent address takes the whole time-out.
"""
REQUEST_TIMEOUT_S = 30.0
GIVEN_UP: Final = "given up by this worker"
"""Reason of a connection that its owner has aborted: no fault of the broker."""
CLOSE_TIMEOUT_S = 1.0
REPLY_BYTES_MAX = 128 << 20
"""Largest reply.

Fetches ask for less than 16 MiB, but a batch may be as large as its topic allows.
"""
REPLY_BYTES_MIN = 4
CORRELATION_IDS = 1 << 31

Answered = Callable[[Any], None]
"""Callback with the decoded reply, or with the BrokerUnreachable."""

_no_linger = struct.pack("ii", 1, 0)


class Address(NamedTuple):
    """Host and port of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse HOST:PORT or [IPV6]:PORT.

        Raises:
            SettingError: the text is no address.
        """
        host, _, port = text.strip().rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise SettingError(f"not an address: {text.strip()!r}: write HOST:PORT[,HOST:PORT]")
        return cls(host.strip("[]"), int(port))


REFUSALS = (
    theirs.AuthenticationFailedError,
    theirs.SaslAuthenticationFailed,
    theirs.UnsupportedSaslMechanismError,
)
"""Authentication errors that another try cannot change."""
HUNG_UP = (theirs.KafkaConnectionError, ConnectionResetError, ConnectionAbortedError, SSLError)
OTHERS_CODE = (KERBEROS, OAUTH)
"""Mechanisms that run a library's or the user's code, which may raise anything."""


class _OneAddress:
    """Event loop that connects to one address of a broker's name: `place`."""

    def __init__(self, loop: Any, place: str) -> None:
        self._loop = loop
        self._place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def create_connection(
        self, protocol: Any, host: str, port: int, *, ssl: Any = None
    ) -> Any:
        """Connect to that address; TLS checks the certificate for the broker's name."""
        named = {} if ssl is None else {"server_hostname": host}
        return await self._loop.create_connection(protocol, self._place, port, ssl=ssl, **named)


class _Opened(AIOKafkaConnection):  # type: ignore[misc]  # has no types
    """aiokafka connection that reports a refused OAuth token.

    A broker answers a refused token without an error code, by a challenge with the reason (RFC
    7628, 3.2.3). aiokafka takes the challenge for success, and the next request fails with
    ILLEGAL_SASL_STATE.
    """

    _loop: Any

    def go_to(self, place: str) -> None:
        """Set the address to connect to, one of the broker's addresses."""
        if place != self.host:
            self._loop = _OneAddress(self._loop, place)

    def authenticator_oauth(self) -> Any:
        sender = super().authenticator_oauth()
        next_step = sender.step

        async def step(challenge: bytes | None) -> Any:
            if challenge:
                raise OSError(f"the token is refused: {challenge.decode(errors='replace')}")
            return await next_step(challenge)

        sender.step = step
        return sender


async def connect(
    address: Address,
    security: Security = PLAINTEXT,
    *,
    timeout_s: float = CONNECT_TIMEOUT_S,
    user_timeout_ms: int | None = None,
) -> "Connection":
    """Open, authenticate and take over a connection.

    Args:
        address: Host and port of the broker.
        security: TLS and SASL settings.
        timeout_s: Time for the look-up of the name, and again for the connection.
        user_timeout_ms: TCP_USER_TIMEOUT, where the platform has that option: time for which the
            kernel may go on delivering sent bytes, even for a process that was stopped or killed.

    Raises:
        BrokerUnreachable: no connection, or a refused token, since the next token may be good.
        SettingError: the broker refuses this user.
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
    """Return every address of a broker's name.

    Raises:
        BrokerUnreachable: the name has no address, or the resolver is silent.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise BrokerUnreachable(
            f"no connection: {address}: the name was not resolved in {timeout_s:g} s: check "
            "the name, and DNS"
        ) from None
    except OSError as error:
        raise BrokerUnreachable(f"no connection: {address}: {_why(error)}") from None
    return list(dict.fromkeys(str(each[4][0]) for each in found))


async def _open(place: str, address: Address, security: Security, timeout_s: float) -> "_Opened":
    """Open and authenticate at one address of a broker; raise the errors of `connect`."""
    settings = {name: getattr(security, name) for name in security.__slots__}
    where = str(address) if place == address.host else f"{address} ({place})"
    try:
        async with asyncio.timeout(timeout_s):
            opened = _Opened(*address, client_id=CLIENT_ID, **settings)
            opened.go_to(place)
            await opened.connect()
            return opened
    except theirs.IllegalSaslStateError:
        why = "it takes no credentials on this port: leave them out, or give another port"
        raise SettingError(f"refused by the broker: {where}: {why}") from None
    except REFUSALS as error:
        raise SettingError(f"refused by the broker: {where}: {error}") from None
    except TimeoutError:
        raise BrokerUnreachable(
            f"no answer in {timeout_s:.3g} s: {where}: it hangs, or is not a Kafka broker"
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
    """Return a guess why the broker hung up before any answer; empty for other errors."""
    if not isinstance(error, HUNG_UP):
        return ""
    if security.ssl_context is not None:
        return ": is it a Kafka broker, and one with TLS?"
    return ": is it a Kafka broker, and one without TLS and credentials?"


def _why(error: Exception) -> str:
    """Return the message of an error, or its class name if the message is empty."""
    return str(error) or type(error).__name__


def taken_over(
    opened: Any,
) -> tuple[asyncio.Protocol, asyncio.Transport, dict[int, tuple[int, int]]]:
    """Return all private parts of aiokafka that we use, and stop its reader.

    By then aiokafka's reader has received all its answers, and must not get ours.

    Returns:
        Protocol, transport, and the lowest and highest version that the broker speaks, by API.

    Raises:
        Bug: this version of aiokafka has other private names.
    """
    try:
        found = opened._protocol, opened._writer.transport, opened._versions
        opened._read_task.cancel()
    except AttributeError as error:
        raise Bug(
            f"aiokafka {aiokafka.__version__} does not fit this streamsx: {error}: install the "
            "version of aiokafka that streamsx asks for"
        ) from error
    return found


class _Waiter(NamedTuple):
    """Request that waits for its reply."""

    correlation_id: int
    api: int
    version: int
    answered: Answered

    def __str__(self) -> str:
        return f"{Api(self.api).name} v{self.version}"


class Connection(asyncio.BufferedProtocol):
    """Connection to one broker, for one lane of requests."""

    def __init__(self, opened: Any, address: Address, user_timeout_ms: int | None = None) -> None:
        self._opened = opened
        self._address = address
        self._inner, self._transport, ranges = taken_over(opened)
        self._versions = NodeApiVersions(ranges)
        self._waiting: deque[_Waiter] = deque()
        self._correlation_id = 0
        self._lost = ""
        """Reason for which the connection ended; empty while open."""
        self._frames = Frames(REPLY_BYTES_MIN, REPLY_BYTES_MAX, believed=REPLY_BYTES_MAX)
        if user_timeout_ms is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            self._set_option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, user_timeout_ms)
        self._transport.set_protocol(self)

    def __repr__(self) -> str:
        return f"<Connection {self._address} {self._lost or 'open'}>"

    @property
    def closed(self) -> bool:
        """Return whether the connection has ended; no request will be answered any more."""
        return bool(self._lost) or self._transport.is_closing()

    def speaks(self, api: int, versions: VersionRange) -> bool:
        """Return whether both sides speak one of these versions of a request."""
        return self._versions.latest_usable(api, versions) is not None

    def version(self, api: int, versions: VersionRange | None = None) -> int:
        """Return the newest version of a request that both sides speak.

        `versions`: those that the caller allows, `default_versions` if None.

        Raises:
            UsageError: there is no common version.
        """
        allowed = versions or default_versions(api)
        version = self._versions.latest_usable(api, allowed)
        if version is None:
            raise UsageError(
                f"the broker does not support {Api(api).name}: {self._address}: it speaks "
                f"versions {self._versions.spoken(api)}, we {allowed}: use Kafka 2.5 or newer"
            )
        return version

    def call(
        self, api: int, body: wire.Body, answered: Answered, versions: VersionRange | None = None
    ) -> None:
        """Send a request; `answered` gets the reply, or the BrokerUnreachable.

        `answered` runs inside the arrival of the reply: no asyncio task and no turn of the loop lie
        between. If no reply will come, also because the connection was closed before, `answered`
        runs with the BrokerUnreachable in a turn of its own.

        Args:
            api: Key of the request.
            body: Fields of the request.
            answered: Callback.
            versions: Versions that this request may have, `default_versions` if None. The newest
                that both sides speak is used.

        Raises:
            UsageError: there is no common version.
        """
        version = self.version(api, versions)
        self._correlation_id = (self._correlation_id + 1) % CORRELATION_IDS
        waiter = _Waiter(self._correlation_id, api, version, answered)
        if self.closed:
            self._fail(waiter)
            return
        frame = wire.request_encoder(api, version)(self._correlation_id, body, CLIENT_ID)
        self._waiting.append(waiter)
        self._transport.write(frame)

    async def ask(
        self,
        api: int,
        body: wire.Body,
        timeout_s: float = REQUEST_TIMEOUT_S,
        versions: VersionRange | None = None,
    ) -> Any:
        """Return the decoded reply, with the attributes of the newest version.

        After `timeout_s` the connection is aborted, because the overdue answer may still come, and
        every later answer comes behind. The time-out also runs for a caller that has stopped
        waiting: otherwise a network that swallows everything would never be noticed.

        Raises:
            BrokerUnreachable: the connection ended, or no answer came within `timeout_s`.
            UsageError: there is no common version.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def answered(reply: Any) -> None:
            overdue.cancel()
            if future.done():  # the caller has given up
                return
            if isinstance(reply, BrokerUnreachable):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        self.call(api, body, answered, versions)
        overdue = loop.call_later(timeout_s, self.abort, f"no answer in {timeout_s:.3g} s")
        return await future

    def abort(self, why: str = GIVEN_UP) -> None:
        """Close the connection now; sent bytes that are still on this machine never leave.

        The kernel goes on serving a connection that was closed normally, for minutes after a
        network cut. A commit would then arrive behind newer commits of the next connection.
        """
        self._set_option(socket.SOL_SOCKET, socket.SO_LINGER, _no_linger)
        self._lose(why)
        self._transport.abort()

    async def close(self) -> None:
        """Close the connection normally, and wait for the end."""
        self._lose("closed by this worker")
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._opened.close()
        except TimeoutError:  # the broker does not take the sent bytes
            self._transport.abort()

    # -- callbacks from asyncio

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        return self._frames.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the replies that these bytes complete."""
        try:
            for frame in self._frames.received(nbytes):
                self._arrived(frame)
        except Malformed as error:
            self.abort(f"malformed: {error}: is it a Kafka broker?")

    def eof_received(self) -> None:
        """Close after the broker, which closes idle connections (`connections.max.idle.ms`)."""
        self._lose("closed by the broker")
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the open requests, and pass the end on to aiokafka's objects."""
        self._lose(str(exc) if exc else "closed by the broker")
        self._inner.connection_lost(exc)
        self._opened.close()

    # -- internals

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
        """Fail every waiting request, once."""
        self._lost = self._lost or why
        while self._waiting:
            self._fail(self._waiting.popleft())

    def _fail(self, waiter: _Waiter) -> None:
        # Each callback has a turn of its own: an error in one cannot stop the others.
        lost = BrokerUnreachable(f"{waiter}: {self._address}: {self._lost or 'closed'}")
        asyncio.get_running_loop().call_soon(waiter.answered, lost)

    def _set_option(self, level: int, name: int, value: int | bytes) -> None:
        """Set an option of the socket, if there is an open one: ended connections have none."""
        sock = self._transport.get_extra_info("socket")
        if sock and sock.fileno() >= 0:
            sock.setsockopt(level, name, value)
