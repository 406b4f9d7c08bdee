"""A simulated TCP connection, from its socket down to the wire: asyncio drives it as a real one.

See `network` for what is between two of them.
"""

import errno
import os
import socket
import struct
from collections import deque
from math import inf
from random import Random
from selectors import EVENT_READ, EVENT_WRITE
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from streamsx.simulation.loop import SimSelector
    from streamsx.simulation.network import Net
    from streamsx.simulation.process import Process

SYN_S: Final = 1.0
SYN_TRIES: Final = 6
"""Each twice as late as the one before, as Linux has it."""
RETRANSMIT_S: Final = 0.2
RETRANSMIT_MAX_S: Final = 120.0
USER_TIMEOUT_S: Final = 924.6
"""What Linux comes to when nobody has set TCP_USER_TIMEOUT."""
SEGMENT_BYTES: Final = 1 << 16
NO_LINGER: Final = struct.pack("ii", 1, 0)

FIN: Final = b""
"""Among what was sent: nothing follows."""

Endpoint = tuple[str, int]


class _Segment(NamedTuple):
    sent_at: float
    arrives_at: float
    data: bytes


class SimSocket:
    """A `socket.socket` that never blocks. What was sent is on the wire until it has arrived, then
    received until it is read; both together are the window. Of one that listens, connections are
    what is received.
    """

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    peer: "SimSocket | None" = None

    def __init__(
        self, net: "Net", process: "Process", here: Endpoint, there: Endpoint, rng: Random
    ) -> None:
        self.net, self.process, self._rng = net, process, rng
        self.here, self.there = here, there
        self.watcher: SimSelector | None = None
        self.number = net.opened(self)
        self.closed = self.connected = False
        self._user_timeout_s, self._lingers = USER_TIMEOUT_S, True
        self._received: deque[Any] = deque()
        self._received_bytes = 0
        self._wire: deque[_Segment] = deque()
        self._wire_bytes = 0
        self._last_at = 0.0
        self._full = False
        """Somebody waits to write."""
        self._stuck_since = inf
        """Since when the peer's kernel has not acknowledged what it ought to."""
        self._again_s = RETRANSMIT_S
        self._trying = self._held = False
        """It tries again later; what is on the wire is to be sent again."""
        self._error: OSError | None = None
        self._silent = False
        """It sends nothing a second time: it was reset, or its machine is off."""

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
        if level == socket.IPPROTO_TCP and name == socket.TCP_USER_TIMEOUT:
            self._user_timeout_s = value / 1000
        elif level == socket.SOL_SOCKET and name == socket.SO_LINGER:
            self._lingers = value != NO_LINGER

    def getsockopt(self, _level: int, _name: int) -> int:
        """SO_ERROR."""
        return 0 if self._error is None else self._error.errno or 0

    def connect(self, _: Endpoint) -> None:
        self._dial(SYN_S)
        raise BlockingIOError

    def accept(self) -> "tuple[SimSocket, Endpoint]":
        if not self._received:
            raise BlockingIOError
        accepted: SimSocket = self._received.popleft()
        return accepted, accepted.there

    def ready(self) -> int:
        """For what, as a selector says it."""
        writable = self.connected and (self._error is not None or self._room() > 0)
        return EVENT_READ * bool(self._received) | EVENT_WRITE * writable

    def send(self, data: Any) -> int:
        """How many bytes of it were taken. Raises ConnectionResetError, TimeoutError."""
        if self._error is not None:
            raise self._error
        taken = max(0, min(len(data), self._room()))
        self._full = taken < len(data)
        if self._full:
            self._wait(self.net.scheduler.now)
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
        if not self._received:
            raise BlockingIOError
        if isinstance(self._received[0], OSError):
            raise self._received[0]
        taken = bytearray()
        while len(taken) < most and self._received and self._received[0]:
            if isinstance(self._received[0], OSError):
                break
            data = self._received.popleft()
            if rest := data[most - len(taken) :]:
                self._received.appendleft(rest)
            taken += data[: most - len(taken)]
        self._received_bytes -= len(taken)
        if self.peer is not None and self.peer._full:
            self.net.scheduler.after(self._latency(), self.peer._changed)
        return bytes(taken)

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
        if self._error is not None or self.peer is None:
            return
        unread = any(data != FIN for data in self._received)
        self._received.clear()
        self._received_bytes = 0
        if self._lingers and not unread:
            self._put(FIN)
            return
        self._silent = True
        if self._held:
            self._wire.clear()
        # Once: if it is lost, the peer learns of it when it sends something.
        at = max(self.net.scheduler.now + self._latency(), self._last_at + 1e-9)
        self.net.scheduler.at(at, self._reset_arrives)

    def vanish(self) -> None:
        """Its machine is off."""
        self.closed = self._silent = True
        self.net.closed(self)
        self._wire.clear()

    # -- being connected

    def _dial(self, again_s: float) -> None:
        if self.closed:
            return
        if self._open_both():
            self.net.scheduler.after(self._latency(), self._ask)
        elif again_s < SYN_S * 2**SYN_TRIES:
            self.net.scheduler.after(again_s, self._dial, again_s * 2)
        else:
            self._break(errno.ETIMEDOUT)

    def _ask(self) -> None:
        if self.closed:
            return
        if (listener := self.net.listener(self.there)) is None:
            self.net.scheduler.after(self._latency(), self._break, errno.ECONNREFUSED)
            return
        rng = self.net.route(f"{self.there[0]}:{self.there[1]}>{self.process.name}")
        peer = self.peer = SimSocket(self.net, listener.process, self.there, self.here, rng)
        peer.peer, peer.connected = self, True
        listener._get(peer)
        self.net.scheduler.after(self._latency(), self._accepted)

    def _accepted(self) -> None:
        self.connected = True
        self._changed()

    # -- the wire

    def _latency(self) -> float:
        return self.net.latency(self._rng, self.here[0], self.there[0])

    def _open_both(self) -> bool:
        here, there = self.here[0], self.there[0]
        return self.net.open(here, there) and self.net.open(there, here)

    def _room(self) -> int:
        assert self.peer is not None
        return self.net.window_bytes - self._wire_bytes - self.peer._received_bytes

    def _blocked(self) -> bool:
        """Somebody waits to write, and there is no room."""
        return self._full and self._room() <= 0

    def _changed(self) -> None:
        """It may be ready for something."""
        if self.watcher is not None:
            self.watcher.look_at(self.number)

    def _get(self, what: Any) -> None:
        self._received.append(what)
        self._changed()

    def _put(self, data: bytes) -> None:
        now = self.net.scheduler.now
        at = self._last_at = max(now + self._latency(), self._last_at + 1e-9)
        self._wire.append(_Segment(now, at, data))
        self._wire_bytes += len(data)
        if len(self._wire) == 1:
            self.net.scheduler.at(at, self._arrive)

    def _arrive(self) -> None:
        """In the network: what is due goes to the peer, if there is a way."""
        scheduler, wire, peer = self.net.scheduler, self._wire, self.peer
        assert peer is not None
        acknowledged = self.net.open(self.there[0], self.here[0])
        arrives = self.net.open(self.here[0], self.there[0])
        if wire and not (arrives and (acknowledged or not peer.closed)):
            self._held = True
            self._wait(wire[0].sent_at)
            return
        while wire and wire[0].arrives_at <= scheduler.now:
            segment = wire.popleft()
            self._wire_bytes -= len(segment.data)
            if not peer._take(segment.data):
                return  # a reset is on its way back
            if acknowledged:
                self._stuck_since = scheduler.now if self._blocked() else inf
            else:
                self._wait(segment.sent_at)  # it has arrived, and nobody tells us
        if wire:
            scheduler.at(wire[0].arrives_at, self._arrive)

    def _take(self, data: bytes) -> bool:
        """Whether there still is such a connection."""
        if not self.closed:
            self._received_bytes += len(data)
            self._get(data)
        elif data != FIN and self.peer is not None:
            self.net.scheduler.after(self._latency(), self.peer.get_reset)
        return not self.closed or data == FIN

    def _wait(self, since: float) -> None:
        """For an acknowledgement or a window that ought to have come: try later, and later."""
        self._stuck_since = min(self._stuck_since, since)
        if self._silent:
            self._wire.clear()
        elif not self._trying:
            self._trying, self._again_s = True, RETRANSMIT_S
            self._try_later()

    def _try_later(self) -> None:
        now, over = self.net.scheduler.now, self._stuck_since + self._user_timeout_s
        self.net.scheduler.at(min(max(over, now), now + self._again_s), self._try_again)

    def _try_again(self) -> None:
        now, both = self.net.scheduler.now, self._open_both()
        if self._silent:
            self._wire.clear()
            return
        if both and self._held:
            self._held, self._stuck_since = False, now
            at = self._last_at = now + self._latency()
            self._wire = deque(segment._replace(arrives_at=at) for segment in self._wire)
            self.net.scheduler.at(at, self._arrive)
        if both and not self._blocked():
            self._trying, self._stuck_since = False, inf
        elif now >= self._stuck_since + self._user_timeout_s:
            self._break(errno.ETIMEDOUT)
        else:
            self._again_s = min(self._again_s * 2, RETRANSMIT_MAX_S)
            self._try_later()

    # -- resets

    def _reset_arrives(self) -> None:
        if self.peer is not None and self.net.open(self.here[0], self.there[0]):
            self.peer.get_reset()

    def get_reset(self) -> None:
        """What has arrived before can still be read."""
        self._break(errno.ECONNRESET)

    def _break(self, number: int) -> None:
        self._wire.clear()
        self._silent = self.connected = True
        if self._error is None and not self.closed:
            self._error = OSError(number, os.strerror(number))
            self._get(self._error)
