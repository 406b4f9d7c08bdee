"""The kernel's end of a simulated TCP connection: what it has sent, and what nobody has read yet.

See `network` for what it does and does not do.
"""

import errno
import os
import socket
import struct
from collections import deque
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from streamsx.simulation.network import Net

RETRANSMIT_S: Final = 0.2
RETRANSMIT_MAX_S: Final = 120.0
USER_TIMEOUT_S: Final = 924.6
"""What Linux comes to when nobody has set TCP_USER_TIMEOUT."""
SEGMENT_BYTES: Final = 1 << 16
NO_LINGER: Final = struct.pack("ii", 1, 0)

FIN: Final = b""
"""Among what was sent: nothing follows."""


class TcpOwner(Protocol):
    """Who has it open."""

    def readable(self) -> None: ...
    def writable(self) -> None: ...
    def broken(self, error: OSError) -> None:
        """While it waited to write."""


class _Segment(NamedTuple):
    sent_at: float
    arrives_at: float
    data: bytes


class SimSocket:
    """One end. What was sent is on the wire until it has arrived, then received until it is read;
    both together are the window.
    """

    peer: "SimSocket"

    def __init__(self, net: "Net", host: str, rng: Random, owner: TcpOwner) -> None:
        self.net, self.host, self._rng, self._owner = net, host, rng, owner
        self.closed = False
        self._user_timeout_s, self._lingers = USER_TIMEOUT_S, True
        self._received: deque[bytes | OSError] = deque()
        self._received_bytes = 0
        self._wire: deque[_Segment] = deque()
        self._wire_bytes = 0
        self._last_at = 0.0
        self._full = False
        """Its owner waits to write."""
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
        return -1 if self.closed else 1

    def setsockopt(self, level: int, name: int, value: Any) -> None:
        """TCP_USER_TIMEOUT and SO_LINGER count; others change nothing."""
        if level == socket.IPPROTO_TCP and name == socket.TCP_USER_TIMEOUT:
            self._user_timeout_s = value / 1000
        elif level == socket.SOL_SOCKET and name == socket.SO_LINGER:
            self._lingers = value != NO_LINGER

    def send(self, data: bytes) -> int:
        """How many bytes of it were taken; after 0 its owner hears when it is worth another try.

        Raises ConnectionResetError, TimeoutError.
        """
        if self._error is not None:
            raise self._error
        room = self.net.window_bytes - self._wire_bytes - self.peer._received_bytes
        self._full = room <= 0
        if self._full:
            self._wait(self.net.scheduler.now)
            return 0
        size = min(len(data), room, SEGMENT_BYTES)
        if size > 1 and self._rng.random() < self.net.split:
            size = self._rng.randrange(1, size)
        self._put(data[:size])
        return size

    def waits(self) -> bool:
        """Whether there is something to read, an end too."""
        return bool(self._received)

    def receive(self, most: int) -> bytes:
        """What has arrived; nothing at the end. Raises ConnectionResetError, TimeoutError."""
        taken: list[bytes] = []
        while most and self._received:
            data = self._received[0]
            if isinstance(data, OSError):
                if taken:
                    break
                raise data
            if data == FIN and taken:
                break
            _ = self._received.popleft()
            if len(data) > most:
                self._received.appendleft(data[most:])
                data = data[:most]
            most -= len(data)
            taken.append(data)
            if data == FIN:
                break
        whole = taken[0] if len(taken) == 1 else b"".join(taken)
        self._received_bytes -= len(whole)
        if self.peer._full:
            self.net.scheduler.after(self.latency(), self.peer._owner.writable)
        return whole

    def close(self) -> None:
        """FIN behind what was sent, or a reset for what nobody has read."""
        if self.closed:
            return
        self.closed = True
        if self._error is not None:
            return
        unread = any(data != FIN for data in self._received)
        self._received.clear()
        if self._lingers and not unread:
            self._put(FIN)
            return
        self._silent = True
        if self._held:
            self._wire.clear()
        self._send_reset()

    def vanish(self) -> None:
        """Its machine is off."""
        self.closed = self._silent = True
        self._wire.clear()

    # -- the wire

    def latency(self) -> float:
        return self.net.latency(self._rng, self.host, self.peer.host)

    def _put(self, data: bytes) -> None:
        now = self.net.scheduler.now
        at = self._last_at = max(now + self.latency(), self._last_at + 1e-9)
        self._wire.append(_Segment(now, at, data))
        self._wire_bytes += len(data)
        if len(self._wire) == 1:
            self.net.scheduler.at(at, self._arrive)

    def _arrive(self) -> None:
        """In the network: what is due goes to the peer, if there is a way."""
        scheduler, wire = self.net.scheduler, self._wire
        acknowledged = self.net.open(self.peer.host, self.host)
        arrives = self.net.open(self.host, self.peer.host)
        if wire and not (arrives and (acknowledged or not self.peer.closed)):
            self._held = True
            self._wait(wire[0].sent_at)
            return
        while wire and wire[0].arrives_at <= scheduler.now:
            segment = wire.popleft()
            self._wire_bytes -= len(segment.data)
            if not self.peer._take(segment.data):
                return  # a reset is on its way back
            if acknowledged:
                self._stuck_since = inf
            else:
                self._wait(segment.sent_at)  # it has arrived, and nobody tells us
        if wire:
            scheduler.at(wire[0].arrives_at, self._arrive)
        self._owner.writable()

    def _take(self, data: bytes) -> bool:
        """Whether there still is such a connection."""
        if self.closed:
            if data != FIN:
                self.net.scheduler.after(self.latency(), self.peer.get_reset)
            return data == FIN
        self._received.append(data)
        self._received_bytes += len(data)
        self._owner.readable()
        return True

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
        now, there = self.net.scheduler.now, self.peer.host
        if self._silent:
            self._wire.clear()
            return
        both = self.net.open(self.host, there) and self.net.open(there, self.host)
        full = self._full and self.peer._received_bytes >= self.net.window_bytes
        if both and (not full or self.peer.closed):
            self._go_on()
        elif now >= self._stuck_since + self._user_timeout_s:
            self._break(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
        else:
            self._again_s = min(self._again_s * 2, RETRANSMIT_MAX_S)
            self._try_later()

    def _go_on(self) -> None:
        self._trying, self._stuck_since = False, inf
        if self._held:
            self._held = False
            at = self._last_at = self.net.scheduler.now + self.latency()
            self._wire = deque(segment._replace(arrives_at=at) for segment in self._wire)
            self.net.scheduler.at(at, self._arrive)
        self._owner.writable()

    # -- resets

    def _send_reset(self) -> None:
        """Once: if it is lost, the peer learns of it when it sends something."""
        at = max(self.net.scheduler.now + self.latency(), self._last_at + 1e-9)
        self.net.scheduler.at(at, self._reset_arrives)

    def _reset_arrives(self) -> None:
        if self.net.open(self.host, self.peer.host):
            self.peer.get_reset()

    def get_reset(self) -> None:
        """What has arrived before can still be read."""
        self._break(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def _break(self, error: OSError) -> None:
        self._wire.clear()
        self._silent = True
        if self._error is None and not self.closed:
            self._error = error
            self._received.append(error)
            self._owner.readable()
            if self._full:
                self._owner.broken(error)
