"""A connection as asyncio hands it to a protocol: a transport over a simulated socket."""

import asyncio
from collections import deque
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final

from streamsx.simulation.tcp import FIN, SimSocket

if TYPE_CHECKING:
    from streamsx.simulation.loop import ThreadLoop
    from streamsx.simulation.network import Net

RECEIVE_BYTES: Final = 1 << 18
"""What asyncio takes at once."""
HIGH_WATER: Final = 1 << 16


class Side(asyncio.Transport):
    """One end, in one thread. What its socket does not take waits here, and pauses the writer."""

    peer: "Side"

    def __init__(self, net: "Net", loop: "ThreadLoop", here: Any, there: Any, rng: Random) -> None:
        self.socket = SimSocket(net, here[0], rng, self)
        super().__init__({"peername": there, "sockname": here, "socket": self.socket})
        self.loop, self.process = loop, loop.process
        self._scheduler = net.scheduler
        self.protocol: Any = None
        self._closing = self._lost = False
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._paused = self._reading = self._woken = False
        self.process.sides[self] = None

    def __repr__(self) -> str:
        return f"<Side {self.get_extra_info('sockname')} {self.get_extra_info('peername')}>"

    def join(self, peer: "Side") -> None:
        """The two are one connection."""
        self.peer, peer.peer = peer, self
        self.socket.peer, peer.socket.peer = peer.socket, self.socket

    def begin(self, protocol: Any) -> None:
        """In a turn of its thread: what has arrived before is read now."""
        self.protocol = protocol
        protocol.connection_made(self)
        self.resume_reading()

    def die(self, *, power: bool = False) -> None:
        """Its process is gone: what waits here is lost, the kernel closes the socket. With `power`
        there is no kernel any more.
        """
        if self.protocol is not None and not self._lost:
            self.loop.last_words.append(partial(self.protocol.connection_lost, None))
        self._closing = self._lost = True
        self._reading = False
        self._drop()
        if power:
            self.socket.vanish()
        self._close_socket()

    # -- asyncio's transport

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._closing:
            self._reading = True
            self.readable()

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def write(self, data: Any) -> None:
        if self._closing or not data:
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self._fill()
        if self._unsent_bytes > self._high and not self._paused:
            self._paused = True
            self.protocol.pause_writing()

    def close(self) -> None:
        """What was written is delivered; then FIN."""
        if not self._closing:
            self._closing, self._reading = True, False
            if not self._unsent:
                self._finish(None)

    def abort(self) -> None:
        """What the kernel does not have yet never leaves; the rest is `SO_LINGER`'s to say."""
        self._fail(None)

    def _fail(self, error: OSError | None) -> None:
        self._closing, self._reading = True, False
        self._drop()
        self._finish(error)

    def _finish(self, error: OSError | None) -> None:
        if not self._lost:
            self._lost = True
            self.loop.call_soon(self._tell_lost, error)

    def _tell_lost(self, error: OSError | None) -> None:
        self.protocol.connection_lost(error)
        self._close_socket()

    def _close_socket(self) -> None:
        self.process.sides.pop(self, None)
        self.socket.close()

    def _drop(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0

    # -- what its socket says

    def readable(self) -> None:
        if self._reading and not self._woken and self.socket.waits():
            self._woken = True
            self.loop.post_at(self._scheduler.now, self._read)

    def writable(self) -> None:
        """Something may have left: whoever waits to write more, or to close, may."""
        self._fill()
        if self._paused and self._unsent_bytes <= self._low:
            self.loop.post_at(self._scheduler.now, self._resume)
        if self._closing and not self._unsent and not self._lost:
            self.loop.post_at(self._scheduler.now, self._finish, None)

    def broken(self, error: OSError) -> None:
        self.loop.post_at(self._scheduler.now, self._fail, error)

    def _fill(self) -> None:
        while self._unsent:
            data = self._unsent.popleft()
            try:
                sent = self.socket.send(data)
            except OSError as error:
                self._fail(error)
                return
            self._unsent_bytes -= sent
            if sent < len(data):
                self._unsent.appendleft(data[sent:])
            if not sent:
                return

    def _resume(self) -> None:
        if self._paused and not self._lost:
            self._paused = False
            self.protocol.resume_writing()

    def _read(self) -> None:
        """Once, as asyncio does it in a turn."""
        self._woken = False
        if not self._reading or not self.socket.waits():
            return
        buffered = isinstance(self.protocol, asyncio.BufferedProtocol)
        buffer: Any = self.protocol.get_buffer(-1) if buffered else None
        try:
            data = self.socket.receive(len(buffer) if buffered else RECEIVE_BYTES)
        except OSError as error:
            self._fail(error)
            return
        if data == FIN:
            self._reading = False
            if not self.protocol.eof_received():
                self.close()
        elif buffered:
            buffer[: len(data)] = data
            self.protocol.buffer_updated(len(data))
        else:
            self.protocol.data_received(data)
        self.readable()
