"""An in-memory TCP between hosts: what arrives, in which order, how late, and what never does.

asyncio drives its sockets as real ones. Per direction, what was written arrives in order, in
segments that split it anywhere. What a cut or an absent machine holds up is sent again after 0.2,
0.4, 0.8 s and so on, until TCP_USER_TIMEOUT or a quarter of an hour has passed without an
acknowledgement; then that side has lost the connection, and the other one does not know. The kernel
of a frozen process goes on receiving, until its window is full; that of a killed one goes on
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
"""Each twice as late as the one before, as Linux has it."""
RETRANSMIT_S: Final = 0.2
RETRANSMIT_MAX_S: Final = 120.0
USER_TIMEOUT_S: Final = 924.6
"""What Linux comes to when nobody has set TCP_USER_TIMEOUT."""
SEGMENT_BYTES: Final = 1 << 16
NO_LINGER: Final = struct.pack("ii", 1, 0)
EPHEMERAL: Final = 32768
LATENCY_MIN_S: Final = 20e-6

FIN: Final = b""
"""Among what was sent: nothing follows."""

Endpoint = tuple[str, int]


class Network:
    """Hosts by name. A route is a pair of hosts: from, to."""

    def __init__(self, scheduler: "Scheduler") -> None:
        self.scheduler = scheduler
        self.mean_s = 0.001
        """How long a segment is on its way."""
        self.split = 0.15
        """Of what is written, that share is split somewhere."""
        self.window_bytes = 1 << 18
        """What a connection holds, per direction, that nobody has read yet."""
        self.slow: dict[str, float] = {}
        """How many times slower a host's segments are."""
        self.sockets: dict[int, SimSocket] = {}
        """Those that are open, by their numbers."""
        self._listeners: dict[Endpoint, SimSocket] = {}
        self._aliases: dict[Endpoint, Endpoint] = {}
        self._cuts: dict[tuple[str, str], float] = {}
        self._away: dict[str, float] = {}
        self._off: dict[str, None] = {}
        self._ports = count(EPHEMERAL)
        self._numbers = count(3)
        self._made: dict[str, int] = {}

    # -- what goes wrong

    def cut(self, here: str, there: str, seconds: float) -> None:
        """Nothing from `here` arrives at `there`; the other direction is another cut."""
        until = self.scheduler.now + seconds
        self._cuts[here, there] = max(self._cuts.get((here, there), 0.0), until)

    def lose(self, host: str, seconds: float) -> None:
        """The host is there and nobody reaches it, nor it anybody."""
        self._away[host] = max(self._away.get(host, 0.0), self.scheduler.now + seconds)

    def heal(self) -> None:
        """All cuts are over; what they held up comes when it is sent again."""
        self._cuts.clear()
        self._away.clear()
        self.slow.clear()

    def reset(self, sock: "SimSocket") -> None:
        """Something in between ends the connection, for both."""
        for end in (sock, sock.peer):
            if end is not None:
                end.fail()

    def open(self, here: str, there: str) -> bool:
        """Whether a segment that is sent now arrives."""
        now = self.scheduler.now
        return not (
            self._off.keys() & {here, there}
            or self._cuts.get((here, there), 0.0) > now
            or max(self._away.get(here, 0.0), self._away.get(there, 0.0)) > now
        )

    # -- machines

    def boot(self, host: str) -> None:
        """It has power (again): it answers, if only that there is no such connection."""
        self._off.pop(host, None)

    def switch_off(self, process: "Process") -> None:
        """All hosts of its machine."""
        self._off[process.host] = None
        for (host, _), listener in self._listeners.items():
            if listener.process is process:
                self._off[host] = None

    def alias(self, address: Endpoint, of: Endpoint) -> None:
        """A second address at which a listener is reached."""
        self._aliases[address] = of

    def latency(self, rng: Random, here: str, there: str) -> float:
        """Of one segment, in seconds."""
        factor = self.slow.get(here, 1.0) * self.slow.get(there, 1.0)
        return rng.expovariate(1 / (self.mean_s * factor)) + LATENCY_MIN_S

    # -- sockets

    def socket(self, process: "Process", host: str, port: int) -> "SimSocket":
        """To be connected."""
        rng = self.route(f"{process.name}>{host}:{port}")
        here = (process.host, next(self._ports))
        return SimSocket(self, process, here, (host, port), rng)

    def listening(self, process: "Process", host: str, port: int) -> "SimSocket":
        """Raises OSError if somebody does."""
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
        """Of a connection: its number counts between these two only."""
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
    """A `socket.socket` that never blocks. What was sent is on the wire until it has arrived, then
    received until it is read; both together are the window. One that listens has a backlog.
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
        """Somebody waits to write."""
        self._stuck_since = inf
        """Since when the peer's kernel has not acknowledged what it ought to."""
        self._trying = self._held = False
        """It tries again later; what is on the wire is to be sent again."""

    # -- what programs do with it

    def fileno(self) -> int:
        return -1 if self.closed else self.number

    def getsockname(self) -> Endpoint:
        return self.here

    def getpeername(self) -> Endpoint:
        return self.there

    def setblocking(self, _: bool) -> None:
        """It never does."""

    def listen(self, _: int) -> None:
        """It does since it has an address."""

    def setsockopt(self, level: int, name: int, value: Any) -> None:
        """TCP_USER_TIMEOUT and SO_LINGER count; others change nothing."""
        if (level, name) == (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
            self._patience_s = value / 1000
        elif (level, name) == (socket.SOL_SOCKET, socket.SO_LINGER):
            self._lingers = value != NO_LINGER

    def getsockopt(self, _level: int, _name: int) -> int:
        """SO_ERROR."""
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
        """For what, as a selector says it."""
        broken = self._error is not None
        readable = bool(self._received or self._backlog or self._ended or broken)
        writable = self.connected and (broken or self._room() > 0)
        return EVENT_READ * readable | EVENT_WRITE * writable

    def send(self, data: Any) -> int:
        """How many bytes of it were taken. Raises ConnectionResetError, TimeoutError."""
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
        """As asyncio does it from Python 3.12 on."""
        return self.send(b"".join(buffers))

    def recv(self, most: int) -> bytes:
        """What has arrived; nothing at the end. Raises ConnectionResetError, TimeoutError."""
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
        """FIN behind what was sent, or a reset for what nobody has read."""
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
        # Once: if it is lost, the peer learns of it when it sends something.
        at = max(self.scheduler.now + self._latency(), self._last_at + 1e-9)
        self.scheduler.at(at, self._reset_arrives)

    def vanish(self) -> None:
        """Its machine is off."""
        self.closed = True
        self.net.closed(self)
        self.fail()

    # -- being connected

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
        """Somebody waits to write, and there is no room."""
        return self._full and self._room() <= 0

    def _changed(self) -> None:
        """It may be ready for something."""
        if self.watcher is not None:
            self.watcher.look_at(self.number)

    def _put(self, data: bytes) -> None:
        now = self.scheduler.now
        at = self._last_at = max(now + self._latency(), self._last_at + 1e-9)
        self._wire.append(_Segment(now, at, data))
        self._wire_bytes += len(data)
        self.scheduler.at(at, self._arrive)

    def _arrive(self) -> None:
        """What is due goes to the peer, if there is a way."""
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
                self._wait(segment.sent_at)  # it has arrived, and nobody tells us

    def _take(self, data: bytes) -> bool:
        """Whether there still is such a connection."""
        gone = self.closed or self._error is not None
        if gone and data != FIN and self.peer is not None:
            self.scheduler.after(self._latency(), self.peer.fail)
        elif not gone:
            self._received += data
            self._ended = data == FIN
            self._changed()
        return not gone or data == FIN

    def _wait(self, since: float) -> None:
        """For an acknowledgement or a window that ought to have come: try later, and later."""
        self._stuck_since = min(self._stuck_since, since)
        if not self._trying:
            self._trying = True
            self._try_later(RETRANSMIT_S)

    def _try_later(self, again_s: float) -> None:
        now = self.scheduler.now
        over = self._stuck_since + self._patience_s
        self.scheduler.at(min(max(over, now), now + again_s), self._try_again, again_s)

    def _try_again(self, again_s: float) -> None:
        """As Linux: whose time is over does not try any more."""
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
        """What has arrived before can still be read."""
        self._wire.clear()
        self._patience_s = 0.0
        self.connected = True
        if self._error is None and not self.closed:
            self._error = OSError(number, os.strerror(number))
            self._changed()
