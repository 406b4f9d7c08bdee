"""In-memory TCP between hosts: delivery, order, delay and loss.

asyncio drives these sockets as real ones. In each direction, written bytes arrive in order, in
segments that may split anywhere. Segments that a cut or an absent machine holds up are sent again
after 0.2, 0.4, 0.8 s and so on. When TCP_USER_TIMEOUT or a quarter of an hour has passed without an
acknowledgement, that side has lost the connection, and the other side does not know. The kernel of
a frozen process goes on receiving until its window is full. The kernel of a killed process goes on
sending.

Not here: TLS, IPv6, packets out of order (TCP puts them right), the length of a backlog, half of a
connection closed.
"""

import errno
import os
import socket
import struct
from collections import deque
from itertools import count
from math import inf
from random import Random
from selectors import EVENT_READ, EVENT_WRITE
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from streamsx.simulation.process import Process, SimSelector
    from streamsx.simulation.scheduler import Scheduler

SYN_S: Final = 1.0
SYN_TRIES: Final = 6
"""Number of attempts, each twice as late as the one before, as on Linux."""
RETRANSMIT_S: Final = 0.2
RETRANSMIT_MAX_S: Final = 120.0
USER_TIMEOUT_S: Final = 924.6
"""Timeout in seconds that Linux reaches if TCP_USER_TIMEOUT is not set."""
SEGMENT_BYTES: Final = 1 << 16
NO_LINGER: Final = struct.pack("ii", 1, 0)
EPHEMERAL: Final = 32768
LATENCY_MIN_S: Final = 20e-6

FIN: Final = b""
"""Segment after which nothing follows."""

Endpoint = tuple[str, int]


class Network:
    """Network of hosts, by name. A route is a pair of hosts: from, to."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self.scheduler = scheduler
        self.mean_s = 0.001
        """Mean seconds that a segment is on its way."""
        self.split = 0.15
        """Share of writes that are split somewhere."""
        self.window_bytes = 1 << 18
        """Bytes that a connection holds, per direction, until the peer has read them."""
        self.slow: dict[str, float] = {}
        """Factor by which the segments of a host are slower."""
        self.sockets: dict[int, SimSocket] = {}
        """Open sockets, by number."""
        self._listeners: dict[Endpoint, SimSocket] = {}
        self._aliases: dict[Endpoint, Endpoint] = {}
        self._cuts: dict[tuple[str, str], float] = {}
        self._away: dict[str, float] = {}
        self._off: dict[str, None] = {}
        self._ports = count(EPHEMERAL)
        self._numbers = count(3)
        self._made: dict[str, int] = {}

    # -- faults

    def cut(self, here: str, there: str, seconds: float) -> None:
        """Stop segments from `here` to `there` for so long; the other direction is another cut."""
        until = self.scheduler.now + seconds
        self._cuts[here, there] = max(self._cuts.get((here, there), 0.0), until)

    def lose(self, host: str, seconds: float) -> None:
        """Stop all segments from and to a host for so long; the host itself runs on."""
        self._away[host] = max(self._away.get(host, 0.0), self.scheduler.now + seconds)

    def heal(self) -> None:
        """End all cuts; segments that they held up arrive when they are sent again."""
        self._cuts.clear()
        self._away.clear()
        self.slow.clear()

    def reset(self, sock: "SimSocket") -> None:
        """End the connection for both sides, as a device in between may do."""
        for end in (sock, sock.peer):
            if end is not None:
                end.fail()

    def open(self, here: str, there: str) -> bool:
        """Return whether a segment that is sent now arrives."""
        now = self.scheduler.now
        return not (
            self._off.keys() & {here, there}
            or self._cuts.get((here, there), 0.0) > now
            or max(self._away.get(here, 0.0), self._away.get(there, 0.0)) > now
        )

    # -- machines

    def boot(self, host: str) -> None:
        """Switch a host on, so that packets are answered, if only by "no such connection"."""
        self._off.pop(host, None)

    def switch_off(self, process: "Process") -> None:
        """Switch off all hosts of the machine of a process."""
        self._off[process.host] = None
        for (host, _), listener in self._listeners.items():
            if listener.process is process:
                self._off[host] = None

    def alias(self, address: Endpoint, of: Endpoint) -> None:
        """Add a second address at which a listener is reached."""
        self._aliases[address] = of

    def latency(self, rng: Random, here: str, there: str) -> float:
        """Return the latency of one segment, in seconds."""
        factor = self.slow.get(here, 1.0) * self.slow.get(there, 1.0)
        return rng.expovariate(1 / (self.mean_s * factor)) + LATENCY_MIN_S

    # -- sockets

    def socket(self, process: "Process", host: str, port: int) -> "SimSocket":
        """Make a socket that is to be connected."""
        rng = self.route(f"{process.name}>{host}:{port}")
        here = (process.host, next(self._ports))
        return SimSocket(self, process, here, (host, port), rng)

    def listening(self, process: "Process", host: str, port: int) -> "SimSocket":
        """Make a socket that listens.

        Raises:
            OSError: The address is in use.
        """
        here = (host, port or next(self._ports))
        if self.listener(here):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.boot(host)
        made = self._listeners[here] = SimSocket(self, process, here, ("", 0), Random(0))
        return made

    def listener(self, at: Endpoint) -> "SimSocket | None":
        found = self._listeners.get(self._aliases.get(at, at))
        return found if found and not found.closed else None

    def route(self, name: str) -> Random:
        """Return the random numbers of the next connection on the route `name`."""
        self._made[name] = number = self._made.get(name, 0) + 1
        return self.scheduler.stream(f"net/{name}/{number}")

    def opened(self, sock: "SimSocket") -> int:
        number = next(self._numbers)
        self.sockets[number] = sock.process.sockets[number] = sock
        return number

    def closed(self, sock: "SimSocket") -> None:
        del self.sockets[sock.number], sock.process.sockets[sock.number]


class _Segment(NamedTuple):
    sent_at: float
    arrives_at: float
    data: bytes


class SimSocket:
    """Simulated `socket.socket` that never blocks.

    Sent bytes are on the wire until they arrive, and then received until they are read. Both
    together fill the window. A listening socket has a backlog.
    """

    family = socket.AF_INET
    type = socket.SOCK_STREAM
    proto = socket.IPPROTO_TCP
    peer: "SimSocket | None" = None

    def __init__(
        self, net: Network, process: "Process", here: Endpoint, there: Endpoint, rng: Random
    ) -> None:
        self.net = net
        self.scheduler = net.scheduler
        self.process = process
        self._rng = rng
        self.here = here
        self.there = there
        self.watcher: SimSelector | None = None
        self.number = net.opened(self)
        self.closed = self.connected = False
        self._patience_s = USER_TIMEOUT_S
        self._lingers = True
        self._backlog: deque[SimSocket] = deque()
        self._received = bytearray()
        self._ended = False
        self._error: OSError | None = None
        self._wire: deque[_Segment] = deque()
        self._wire_bytes = 0
        self._last_at = 0.0
        self._full = False
        """Whether a writer waits for room."""
        self._stuck_since = inf
        """Time since which an acknowledgement of the peer's kernel is overdue."""
        self._trying = self._held = False
        """`_trying`: a retry is due later; `_held`: segments on the wire are to be sent again."""

    # -- the interface of a socket

    def fileno(self) -> int:
        return -1 if self.closed else self.number

    def getsockname(self) -> Endpoint:
        return self.here

    def getpeername(self) -> Endpoint:
        return self.there

    def setblocking(self, _: bool) -> None:
        """Do nothing: a simulated socket never blocks."""

    def listen(self, _: int) -> None:
        """Do nothing: the socket listens since it has an address."""

    def setsockopt(self, level: int, name: int, value: Any) -> None:
        """Set TCP_USER_TIMEOUT or SO_LINGER; ignore other options."""
        if (level, name) == (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
            self._patience_s = value / 1000
        elif (level, name) == (socket.SOL_SOCKET, socket.SO_LINGER):
            self._lingers = value != NO_LINGER

    def getsockopt(self, _level: int, _name: int) -> int:
        """Return SO_ERROR."""
        return 0 if self._error is None else self._error.errno or 0

    def connect(self, _: Endpoint) -> None:
        self._dial(SYN_S)
        raise BlockingIOError

    def accept(self) -> "tuple[SimSocket, Endpoint]":
        if not self._backlog:
            raise BlockingIOError
        accepted = self._backlog.popleft()
        return accepted, accepted.there

    def ready(self) -> int:
        """Return the events that the socket is ready for, as a selector's bits."""
        broken = self._error is not None
        readable = bool(self._received or self._backlog or self._ended or broken)
        writable = self.connected and (broken or self._room() > 0)
        return EVENT_READ * readable | EVENT_WRITE * writable

    def send(self, data: Any) -> int:
        """Send as many bytes as the window takes.

        Returns:
            The number of bytes taken.

        Raises:
            BlockingIOError: The window is full.
            ConnectionResetError, TimeoutError: The connection is lost.
        """
        if self._error is not None:
            raise self._error
        taken = max(0, min(len(data), self._room()))
        self._full = taken < len(data)
        if self._full:
            self._wait(self.scheduler.now)
            if not taken:
                raise BlockingIOError
        rest = bytes(data[:taken])
        while rest:
            at = min(len(rest), SEGMENT_BYTES)
            if at > 1 and self._rng.random() < self.net.split:
                at = self._rng.randrange(1, at)
            self._put(rest[:at])
            rest = rest[at:]
        return taken

    def sendmsg(self, buffers: Any) -> int:
        """Send several buffers, as asyncio does from Python 3.12 on."""
        return self.send(b"".join(buffers))

    def recv(self, most: int) -> bytes:
        """Return bytes that have arrived; none at the end of the stream.

        Raises:
            BlockingIOError: Nothing has arrived.
            ConnectionResetError, TimeoutError: The connection is lost.
        """
        if not self._received and not self._ended:
            raise self._error or BlockingIOError
        taken = bytes(self._received[:most])
        del self._received[:most]
        if self.peer is not None and self.peer._full:
            self.scheduler.after(self._latency(), self.peer._changed)
        return taken

    def recv_into(self, buffer: Any) -> int:
        data = self.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the socket: send FIN after the last bytes, or a reset if bytes are unread."""
        if self.closed:
            return
        self.closed = True
        self.net.closed(self)
        unread = bool(self._received)
        self._received.clear()
        if self._error is not None or self.peer is None:
            return
        if self._lingers and not unread:
            self._put(FIN)
            return
        self._patience_s = 0.0
        # The reset is sent once. If it is lost, the peer learns of the end with its next send.
        at = max(self.scheduler.now + self._latency(), self._last_at + 1e-9)
        self.scheduler.at(at, self._reset_arrives)

    def vanish(self) -> None:
        """Close the socket without a segment, because the machine is off."""
        self.closed = True
        self.net.closed(self)
        self.fail()

    # -- connecting

    def _dial(self, again_s: float) -> None:
        if self.closed:
            return
        if self._open_both():
            self.scheduler.after(self._latency(), self._ask)
        elif again_s < SYN_S * 2**SYN_TRIES:
            self.scheduler.after(again_s, self._dial, again_s * 2)
        else:
            self.fail(errno.ETIMEDOUT)

    def _ask(self) -> None:
        if self.closed:
            return
        if (listener := self.net.listener(self.there)) is None:
            self.scheduler.after(self._latency(), self.fail, errno.ECONNREFUSED)
            return
        rng = self.net.route(f"{self.there[0]}:{self.there[1]}>{self.process.name}")
        peer = self.peer = SimSocket(self.net, listener.process, self.there, self.here, rng)
        peer.peer = self
        peer.connected = True
        listener._backlog.append(peer)
        listener._changed()
        self.scheduler.after(self._latency(), self._accepted)

    def _accepted(self) -> None:
        self.connected = True
        self._changed()

    # -- the wire

    def _latency(self) -> float:
        return self.net.latency(self._rng, self.here[0], self.there[0])

    def _open_both(self) -> bool:
        here = self.here[0]
        there = self.there[0]
        return self.net.open(here, there) and self.net.open(there, here)

    def _room(self) -> int:
        assert self.peer is not None
        return self.net.window_bytes - self._wire_bytes - len(self.peer._received)

    def _blocked(self) -> bool:
        """Return whether a writer waits and there is no room."""
        return self._full and self._room() <= 0

    def _changed(self) -> None:
        """Have the selector look again: the socket may be ready."""
        if self.watcher is not None:
            self.watcher.look_at(self.number)

    def _put(self, data: bytes) -> None:
        now = self.scheduler.now
        at = self._last_at = max(now + self._latency(), self._last_at + 1e-9)
        self._wire.append(_Segment(now, at, data))
        self._wire_bytes += len(data)
        self.scheduler.at(at, self._arrive)

    def _arrive(self) -> None:
        """Hand segments that are due to the peer, if the route is open."""
        now = self.scheduler.now
        wire = self._wire
        peer = self.peer
        assert peer is not None
        acknowledged = self.net.open(self.there[0], self.here[0])
        arrives = self.net.open(self.here[0], self.there[0]) and (acknowledged or not peer.closed)
        if wire and not arrives and not self._held:
            self._held = True
            self._wait(wire[0].sent_at)
        while wire and not self._held and wire[0].arrives_at <= now:
            segment = wire.popleft()
            self._wire_bytes -= len(segment.data)
            if not peer._take(segment.data):
                return  # a reset is on its way back
            if acknowledged:
                self._stuck_since = now if self._blocked() else inf
            else:
                self._wait(segment.sent_at)  # arrived, but the acknowledgement is lost

    def _take(self, data: bytes) -> bool:
        """Take a segment from the peer.

        Returns:
            False if the connection is gone and a reset is on its way back.
        """
        gone = self.closed or self._error is not None
        if gone and data != FIN and self.peer is not None:
            self.scheduler.after(self._latency(), self.peer.fail)
        elif not gone:
            self._received += data
            self._ended = data == FIN
            self._changed()
        return not gone or data == FIN

    def _wait(self, since: float) -> None:
        """Begin retries, because an acknowledgement or a free window is overdue since `since`."""
        self._stuck_since = min(self._stuck_since, since)
        if not self._trying:
            self._trying = True
            self._try_later(RETRANSMIT_S)

    def _try_later(self, again_s: float) -> None:
        now = self.scheduler.now
        over = self._stuck_since + self._patience_s
        self.scheduler.at(min(max(over, now), now + again_s), self._try_again, again_s)

    def _try_again(self, again_s: float) -> None:
        """Send held segments again, or fail with ETIMEDOUT once the time is over, as Linux does."""
        if self.scheduler.now >= self._stuck_since + self._patience_s:
            self.fail(errno.ETIMEDOUT)
            return
        both = self._open_both()
        if both and self._held:
            self._held = False
            self._stuck_since = self.scheduler.now
            self._arrive()
        if both and not self._blocked():
            self._trying = False
            self._stuck_since = inf
        else:
            self._try_later(min(again_s * 2, RETRANSMIT_MAX_S))

    # -- its end

    def _reset_arrives(self) -> None:
        if self.peer is not None and self.net.open(self.here[0], self.there[0]):
            self.peer.fail()

    def fail(self, number: int = errno.ECONNRESET) -> None:
        """Fail the connection; bytes that have arrived before can still be read."""
        self._wire.clear()
        self._patience_s = 0.0
        self.connected = True
        if self._error is None and not self.closed:
            self._error = OSError(number, os.strerror(number))
            self._changed()
