"""Connection of one client: reads requests one at a time, and writes answers in the same order.

A request that need not wait is answered before the bytes behind it are looked at, without an
asyncio task in between. A request that must wait holds up this connection only. The requests queued
behind it are served in a later turn of the loop, because the code that answers is in the middle of
other work. Every queue and buffer has a limit. Not here: the meaning of requests.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.metrics import BrokerCounts
from streamsx.broker.net.sasl import Authentication
from streamsx.protocol.compiler import Malformed
from streamsx.protocol.frames import Frame, Frames
from streamsx.protocol.wire import Api

logger = logging.getLogger(__name__)

REQUEST_BYTES_MIN = 8
"""Smallest size of a request: nothing shorter can hold its head."""
SLICE_S = 0.02
"""Time for which one connection is served while others have requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Limits of all connections together and of each one; `partitions_max` also limits
    what is stored.
    """

    connections_max: int = 512
    connections_max_idle_s: float = 600.0
    frame_bytes_max: int = 32 << 20
    queued_requests_max: int = 64
    queued_bytes_max: int = 32 << 20
    in_flight_bytes_max: int = 64 << 20
    unsent_bytes_max: int = 8 << 20
    unsent_by_all_bytes_max: int = 32 << 20
    """Limit of unsent answers of all connections. asyncio may hold twice as much, because it keeps
    the memory of answers that are partly sent.
    """
    partitions_max: int = 10_000


@dataclass(slots=True)
class ConnectionLoad:
    """All open connections, and the bytes of requests that they hold together."""

    counts: BrokerCounts
    connections: "dict[ClientConnection, None]" = field(default_factory=dict)
    """Connections in the order in which they were accepted."""
    in_flight_bytes: int = 0
    open: bool = True
    """Whether the broker serves. A connection may be made one turn of the loop after it was
    accepted, when the broker has already closed.
    """

    def largest(self) -> "ClientConnection":
        """Return the connection that holds the most request bytes; among equals the one silent for
        longest.
        """
        return max(self.connections, key=lambda each: (each.counted, -each.active_at))

    def hold_answers(self, most: int) -> None:
        """Close connections with the most unsent answers until at most `most` bytes are unsent in
        total.
        """
        unsent = {each: each.unsent_bytes for each in self.connections}
        while (held := sum(unsent.values())) > most:
            silent = max(unsent, key=lambda each: (unsent[each], -each.active_at))
            silent.close(f"{unsent.pop(silent)} bytes of answers, of {held} for all, are not taken")


@dataclass(slots=True, eq=False)
class ServedRequest:
    """Decoded request, with the way back to the client that sent it."""

    connection: "ClientConnection"
    api: Api
    version: int
    correlation_id: int
    client_id: str
    body: Any
    respond: "Callable[[ServedRequest, ReplyBody | None], None]"
    gone: Callable[[], None] | None = None
    """Callback for a request that waits: called if the connection closes before the answer."""

    def reply(self, body: ReplyBody | None) -> None:
        """Answer the request; None sends no response. An answer that comes too late is ignored."""
        if self.connection.call is self:
            self.respond(self, body)


class ClientConnection(asyncio.BufferedProtocol):
    """Protocol of one client's connection.

    `serve` gets each frame; `serve` sets `call` and makes sure that the call is answered.
    """

    def __init__(
        self, traffic: ConnectionLoad, limits: ConnectionLimits,
        serve: "Callable[[ClientConnection, Frame], None]", now: Callable[[], float],
        frame_bytes_max: Callable[[int], int] | None = None,
        authentication: Authentication | None = None,
    ) -> None:  # fmt: skip
        """Create the protocol of a connection that is not made yet.

        Args:
            frame_bytes_max: Returns the largest request for an API key; None uses the limit of all.
            authentication: None admits every client.
        """
        self.call: ServedRequest | None = None
        self.authentication = authentication
        self.peer = self.host = ""
        self.address: tuple[str, int] = ("", 0)
        """Address at which the client reached the broker."""
        self.active_at = now()
        self._traffic = traffic
        self._limits = limits
        self._serve = serve
        self._now = now
        self._frames = Frames(REQUEST_BYTES_MIN, limits.frame_bytes_max, of_api=frame_bytes_max)
        self._queue: deque[Frame] = deque()
        self._serving = 0  # bytes of the frame that is being served
        self._queued = 0
        self.counted = 0
        """Bytes of this connection in the `in_flight_bytes` of all."""
        self._pumping = self._unsent = self._unread = False
        self._turn: asyncio.Handle | None = None
        """Scheduled turn of the loop in which queued requests are served."""
        self._transport: asyncio.Transport
        self._below: asyncio.Transport | None = None
        """Transport beneath the TLS transport, if there is one."""
        self.handshake: asyncio.Future[None] | None = None

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.host, port = (transport.get_extra_info("peername") or ("?", 0))[:2]
        self.peer = f"{self.host}:{port}"
        self.address = transport.get_extra_info("sockname")[:2]
        transport.set_write_buffer_limits(self._limits.unsent_bytes_max)
        if not self._traffic.open:
            transport.abort()
            return
        known = self._traffic.connections
        most = self._limits.connections_max
        if len(known) >= most:  # the oldest connection that is not authenticated is closed
            first = next((each for each in known if each.stranger), self)
            first.close(f"there are {most} connections")
            if first is self:
                return
        known[self] = None

    def secured(self, transport: asyncio.Transport) -> None:
        """Switch to the TLS transport, once TLS is established."""
        self._below = self._transport
        self._transport = transport
        transport.set_write_buffer_limits(self._limits.unsent_bytes_max)

    def connection_lost(self, _: Exception | None) -> None:
        self._traffic.connections.pop(self, None)
        self._forget()
        # The TLS transport keeps its buffer for answers: let go of it.
        if self._below is not None:
            self._transport = self._below
            self._below = None

    def get_buffer(self, _: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, count: int) -> None:
        self.active_at = self._now()
        self._traffic.counts.received_bytes.add(count)
        try:
            frames = list(self._frames.received(count))
        except Malformed as error:
            self.close(str(error))
            return
        self._queue.extend(frames)
        self._queued += sum(map(len, frames))
        self._pump()

    def eof_received(self) -> None:
        """Close the connection by returning None: there is nothing more to answer."""

    def pause_writing(self) -> None:
        self._unsent = True

    def resume_writing(self) -> None:
        self._unsent = False
        self._pump()

    # Calls of the broker.

    def answer(self, frame: bytes | bytearray) -> None:
        """Send the answer to the current request; serve the next one afterwards, but not within
        this call.
        """
        self.call = None
        self.active_at = self._now()
        self._queued -= self._serving
        if frame and self._open():
            self._transport.write(frame)
            self._traffic.counts.sent_bytes.add(len(frame))
            if self.unsent_bytes:
                self._traffic.hold_answers(self._limits.unsent_by_all_bytes_max)
        if not self._pumping:
            self._count()
            if self._queue:
                self._pump_soon()

    @property
    def stranger(self) -> bool:
        """Return whether a required authentication or TLS handshake is not finished."""
        unknown = self.authentication is not None and not self.authentication.done
        return self._open() and (unknown or (self.handshake is not None and self._below is None))

    @property
    def unsent_bytes(self) -> int:
        """Return the bytes of answers that the client has not taken yet."""
        below = 0 if self._below is None else self._below.get_write_buffer_size()
        return below + self._transport.get_write_buffer_size()

    def close(self, why: str) -> None:
        """Close at once, drop unsent answers, and log the reason in one line."""
        self._log_closed(why)
        self.abort()

    def hang_up(self, why: str) -> None:
        """Close after the unsent answers are sent, and log the reason in one line."""
        self._log_closed(why)
        self._forget()
        self._transport.close()

    def _log_closed(self, why: str) -> None:
        self._traffic.counts.hung_up.add(1)
        logger.warning("Closed the connection of %s: %s.", self.peer, why)

    def abort(self) -> None:
        """Close at once without a log line, and drop everything that is queued."""
        self._forget()
        self._transport.abort()

    def _forget(self) -> None:
        self._queue.clear()
        self._frames.forget()  # bytes that are no longer counted must not stay in memory
        self._traffic.in_flight_bytes -= self.counted
        self.counted = 0
        call = self.call
        self.call = None
        if call is not None and call.gone is not None:
            call.gone()

    def _open(self) -> bool:
        return not self._transport.is_closing()

    def _pump_soon(self) -> None:
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self._pumping = True
        try:
            until = self._now() + SLICE_S
            while self._queue and self.call is None and not self._unsent and self._open():
                if self._now() > until:
                    self._pump_soon()
                    break
                frame = self._queue.popleft()
                self._serving = len(frame)
                self._serve(self, frame)
        finally:
            self._pumping = False
        self._count()

    def _count(self) -> None:
        """Apply the limits on bytes that were received and not yet answered.

        The connection that holds the most is closed, not the newest one. Example: eight connections
        send most of a frame and then nothing more. If newcomers were closed, the next honest
        request would be one too many.
        """
        if not self._open():
            return
        limits = self._limits
        traffic = self._traffic
        held = self._queued + self._frames.held
        traffic.in_flight_bytes += held - self.counted
        self.counted = held
        while traffic.in_flight_bytes > limits.in_flight_bytes_max:
            largest = traffic.largest()
            most = limits.in_flight_bytes_max
            largest.close(f"{largest.counted} bytes of requests, of {most} for all, are in flight")
        many = len(self._queue) >= limits.queued_requests_max
        full = many or self._queued > limits.queued_bytes_max
        if full != self._unread and self._open():
            self._unread = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
