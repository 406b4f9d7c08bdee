"""One client's connection: requests in, one at a time, answers out in the same order.

What need not wait is answered before the bytes behind it are looked at, without a task in between;
what must wait stalls this connection alone. What stands behind it is served in a turn of its own:
who answers is in the middle of something. Everything that can pile up has a limit. What a request
means is not known here.
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
"""Nothing shorter holds the head of a request."""
SLICE_S = 0.02
"""For so long one connection is served while others have something to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Of all connections and of each; the last is also a limit of what is stored."""

    connections_max: int = 512
    connections_max_idle_s: float = 600.0
    frame_bytes_max: int = 32 << 20
    queued_requests_max: int = 64
    queued_bytes_max: int = 32 << 20
    in_flight_bytes_max: int = 64 << 20
    unsent_bytes_max: int = 8 << 20
    unsent_by_all_bytes_max: int = 32 << 20
    """Of which asyncio may hold twice as much: it keeps the room of what it has sent in part."""
    partitions_max: int = 10_000


@dataclass(slots=True)
class ConnectionLoad:
    """All connections there are, and the bytes of requests that they hold together."""

    connections: "dict[ClientConnection, None]" = field(default_factory=dict)
    """In the order in which they came."""
    in_flight_bytes: int = 0
    counts: BrokerCounts = field(default_factory=BrokerCounts)
    open: bool = True
    """Whether the broker serves: a connection may be made a turn after it was accepted."""

    def largest(self) -> "ClientConnection":
        """Which holds the most; of equals the one that has been silent for the longest time."""
        return max(self.connections, key=lambda each: (each.counted, -each.active_at))

    def hold_answers(self, most: int) -> None:
        """Who takes no answers has to go, where all together leave more than that to be sent: the
        one that leaves the most.
        """
        unsent = {each: each.unsent_bytes for each in self.connections}
        while (held := sum(unsent.values())) > most:
            silent = max(unsent, key=lambda each: (unsent[each], -each.active_at))
            silent.close(f"{unsent.pop(silent)} bytes of answers, of {held} for all, are not taken")


@dataclass(slots=True, eq=False)
class ServedRequest:
    """A decoded request and the way back to whoever sent it."""

    connection: "ClientConnection"
    api: Api
    version: int
    correlation_id: int
    client_id: str
    body: Any
    respond: "Callable[[ServedRequest, ReplyBody | None], None]"
    gone: Callable[[], None] | None = None
    """Set by who lets it wait: called if the connection closes before the answer."""

    def reply(self, body: ReplyBody | None) -> None:
        """Answers it; with None if nobody wants to hear. Too late is no error."""
        if self.connection.call is self:
            self.respond(self, body)


class ClientConnection(asyncio.BufferedProtocol):
    """`serve` is given each frame; it sets `call` and sees to it that it is answered."""

    def __init__(
        self, traffic: ConnectionLoad, limits: ConnectionLimits,
        serve: "Callable[[ClientConnection, Frame], None]", now: Callable[[], float],
        frame_bytes_max: Callable[[int], int] | None = None,
        authentication: Authentication | None = None,
    ) -> None:  # fmt: skip
        """`frame_bytes_max`: of a request with this key, if that is not the same for all;
        `authentication`: None where everybody is let in.
        """
        self.call: ServedRequest | None = None
        self.authentication = authentication
        self.peer = self.host = ""
        self.address: tuple[str, int] = ("", 0)
        """Where the client reached us."""
        self.active_at = now()
        self._traffic, self._limits, self._serve, self._now = traffic, limits, serve, now
        self._frames = Frames(REQUEST_BYTES_MIN, limits.frame_bytes_max, of_api=frame_bytes_max)
        self._queue: deque[Frame] = deque()
        self._serving = 0  # bytes of the frame that is being served
        self._queued = 0
        self.counted = 0
        """Of this connection in the traffic's `in_flight_bytes`."""
        self._pumping = self._unsent = self._unread = False
        self._turn: asyncio.Handle | None = None
        """In which what stands behind is served."""
        self._transport: asyncio.Transport
        self._below: asyncio.Transport | None = None
        """What carries the transport, where that is TLS."""
        self.handshake: asyncio.Future[None] | None = None

    # What the event loop calls.

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
        known, most = self._traffic.connections, self._limits.connections_max
        if len(known) >= most:  # of those that nobody knows the one that came first goes
            first = next((each for each in known if each.stranger), self)
            first.close(f"there are {most} connections")
            if first is self:
                return
        known[self] = None

    def secured(self, transport: asyncio.Transport) -> None:
        """TLS stands: from here on this one is read and written."""
        self._below, self._transport = self._transport, transport
        transport.set_write_buffer_limits(self._limits.unsent_bytes_max)

    def connection_lost(self, _: Exception | None) -> None:
        self._traffic.connections.pop(self, None)
        self._forget()
        if self._below is not None:  # TLS keeps the room that it had for answers
            self._transport, self._below = self._below, None

    def get_buffer(self, _: int) -> memoryview:
        return self._frames.buffer()

    def buffer_updated(self, count: int) -> None:
        self.active_at = self._now()
        self._traffic.counts.received_bytes += count
        try:
            frames = list(self._frames.received(count))
        except Malformed as error:
            self.close(str(error))
            return
        self._queue.extend(frames)
        self._queued += sum(map(len, frames))
        self._pump()

    def eof_received(self) -> None:
        """Nothing more to answer: None closes."""

    def pause_writing(self) -> None:
        self._unsent = True

    def resume_writing(self) -> None:
        self._unsent = False
        self._pump()

    # What the broker calls.

    def answer(self, frame: bytes | bytearray) -> None:
        """The answer to the request that is being served; then, but not within, the next one."""
        self.call = None
        self.active_at = self._now()
        self._queued -= self._serving
        if frame and self._open():
            self._transport.write(frame)
            self._traffic.counts.sent_bytes += len(frame)
            if self.unsent_bytes:
                self._traffic.hold_answers(self._limits.unsent_by_all_bytes_max)
        if not self._pumping:
            self._count()
            if self._queue:
                self._pump_soon()

    @property
    def stranger(self) -> bool:
        """It has not said who it is, where that is wanted, or TLS does not stand yet."""
        unknown = self.authentication is not None and not self.authentication.done
        return self._open() and (unknown or (self.handshake is not None and self._below is None))

    @property
    def unsent_bytes(self) -> int:
        """Of answers, which the client has not taken yet."""
        below = 0 if self._below is None else self._below.get_write_buffer_size()
        return below + self._transport.get_write_buffer_size()

    def close(self, why: str) -> None:
        """For good, with what is on its way; one line says why."""
        self._say_closed(why)
        self.abort()

    def hang_up(self, why: str) -> None:
        """For good, behind the answers that are on their way; one line says why."""
        self._say_closed(why)
        self._forget()
        self._transport.close()

    def _say_closed(self, why: str) -> None:
        self._traffic.counts.hung_up += 1
        logger.warning("closed %s: %s", self.peer, why)

    def abort(self) -> None:
        """Without a word, and now: nothing of it is left to wait for."""
        self._forget()
        self._transport.abort()

    def _forget(self) -> None:
        self._queue.clear()
        self._frames.forget()  # what counts no more must not be there either
        self._traffic.in_flight_bytes -= self.counted
        self.counted = 0
        call, self.call = self.call, None
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
        """Looks at the limits of what was received and not yet answered.

        Whoever holds the most has to go, not whoever comes: "eight connections send most of a frame
        and no more": the next honest request would be one too many.
        """
        if not self._open():
            return
        limits, traffic, held = self._limits, self._traffic, self._queued + self._frames.held
        traffic.in_flight_bytes += held - self.counted
        self.counted = held
        while traffic.in_flight_bytes > limits.in_flight_bytes_max:
            largest, most = traffic.largest(), limits.in_flight_bytes_max
            largest.close(f"{largest.counted} bytes of requests, of {most} for all, are in flight")
        many = len(self._queue) >= limits.queued_requests_max
        full = many or self._queued > limits.queued_bytes_max
        if full != self._unread and self._open():
            self._unread = full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
