"""An in-memory TCP between hosts: what arrives, in which order, how late, and what never does.

Per direction, what was written arrives in order, in segments that split it anywhere. What a cut or
an absent machine holds up is sent again after 0.2, 0.4, 0.8 s and so on, until TCP_USER_TIMEOUT or
a quarter of an hour has passed without an acknowledgement; then that side has lost the connection,
and the other one does not know. The kernel of a frozen process goes on receiving, until its window
is full; that of a killed one goes on sending.

Not here: TLS, IPv6, packets out of order (TCP puts them right), the backlog of a listener.
"""

import asyncio
import errno
import os
from collections.abc import Callable
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, Final

from streamsx.simulation.connection import Side

if TYPE_CHECKING:
    from streamsx.simulation.loop import ThreadLoop
    from streamsx.simulation.process import Process
    from streamsx.simulation.scheduler import Scheduler

EPHEMERAL: Final = 32768
LATENCY_MIN_S: Final = 20e-6
SYN_TRIES: Final = 6
"""The first after 1 s, each twice as late as the one before, as Linux has it."""

Endpoint = tuple[str, int]


class Net:
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
        self._listeners: dict[Endpoint, tuple[ThreadLoop, Callable[[], Any]]] = {}
        self._aliases: dict[Endpoint, Endpoint] = {}
        self._cuts: dict[tuple[str, str], float] = {}
        self._away: dict[str, float] = {}
        self._off: dict[str, None] = {}
        self._ports = count(EPHEMERAL)
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

    def reset(self, side: Side) -> None:
        """Something in between ends the connection, for both."""
        side.socket.get_reset()
        side.peer.socket.get_reset()

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
        for (host, _), (loop, _) in self._listeners.items():
            if loop.process is process:
                self._off[host] = None

    def alias(self, address: Endpoint, of: Endpoint) -> None:
        """A second address at which a listener is reached."""
        self._aliases[address] = of

    def latency(self, rng: Random, here: str, there: str) -> float:
        """Of one segment, in seconds."""
        factor = self.slow.get(here, 1.0) * self.slow.get(there, 1.0)
        return rng.expovariate(1 / (self.mean_s * factor)) + LATENCY_MIN_S

    # -- connections

    def listen(
        self, loop: "ThreadLoop", factory: Callable[[], Any], host: str, port: int
    ) -> "Listener":
        address = (host, port or next(self._ports))
        if self._listening(address):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.boot(host)
        self._listeners[address] = (loop, factory)
        return Listener(self, loop, address)  # type: ignore[abstract]  # as asyncio's

    def close(self, loop: "ThreadLoop", address: Endpoint) -> None:
        """Nobody listens there any more."""
        if (found := self._listeners.get(address)) and found[0] is loop:
            del self._listeners[address]

    def _listening(self, address: Endpoint) -> tuple["ThreadLoop", Callable[[], Any]] | None:
        found = self._listeners.get(self._aliases.get(address, address))
        return found if found and not found[0].closed else None

    async def connect(
        self, loop: "ThreadLoop", factory: Callable[[], Any], host: str, port: int
    ) -> tuple[Side, Any]:
        """As `create_connection`. Raises ConnectionRefusedError, TimeoutError."""
        answer: asyncio.Future[Side | OSError] = loop.create_future()
        _Dialing(self, loop, (host, port), answer).syn(1.0)
        try:
            side = await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and isinstance(answer.result(), Side):
                answer.result().die()  # type: ignore[union-attr]
            raise
        if isinstance(side, OSError):
            raise side
        protocol = factory()
        side.begin(protocol)
        return side, protocol

    def name(self, route: str) -> str:
        """Of a connection's randomness: its number counts between these two only."""
        self._made[route] = number = self._made.get(route, 0) + 1
        return f"net/{route}/{number}"

    def port(self) -> int:
        return next(self._ports)


class _Dialing:
    """A connection that is asked for until it is there, refused, or nobody wants it."""

    def __init__(
        self, net: Net, loop: "ThreadLoop", to: Endpoint, answer: "asyncio.Future[Side | OSError]"
    ) -> None:
        self.net, self.loop, self.to, self.answer = net, loop, to, answer
        self.host = loop.process.host
        self.stream = net.name(f"{loop.process.name}>{to[0]}:{to[1]}")
        self.rng = net.scheduler.stream(f"{self.stream}/syn")

    def syn(self, again_s: float) -> None:
        scheduler = self.net.scheduler
        if self.answer.done() or self.loop.closed:
            return
        if self.net.open(self.host, self.to[0]) and self.net.open(self.to[0], self.host):
            scheduler.after(self._late(), self._arrived)
        elif again_s < 2**SYN_TRIES:
            scheduler.after(again_s, self.syn, again_s * 2)
        else:
            self._tell(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def _arrived(self) -> None:
        net, scheduler = self.net, self.net.scheduler
        if self.answer.done() or self.loop.closed:
            return
        if (found := net._listening(self.to)) is None:
            self._tell(ConnectionRefusedError(errno.ECONNREFUSED, f"refused: {self.to}"))
            return
        there, serve = found
        local = (self.host, net.port())
        ours = Side(net, self.loop, local, self.to, scheduler.stream(f"{self.stream}/client"))
        theirs = Side(net, there, self.to, local, scheduler.stream(f"{self.stream}/server"))
        ours.join(theirs)
        there.post_at(scheduler.now, lambda: theirs.begin(serve()))
        self._tell(ours)

    def _tell(self, what: Side | OSError) -> None:
        self.loop.post_at(self.net.scheduler.now + self._late(), self._told, what)

    def _told(self, what: Side | OSError) -> None:
        if not self.answer.done():
            self.answer.set_result(what)
        elif isinstance(what, Side):
            what.die()

    def _late(self) -> float:
        return self.net.latency(self.rng, self.host, self.to[0])


class Listener(asyncio.AbstractServer):
    """An `asyncio.Server`."""

    def __init__(self, net: Net, loop: "ThreadLoop", address: Endpoint) -> None:
        self._net, self._loop, self._address = net, loop, address
        self.sockets = [self]

    def getsockname(self) -> Endpoint:
        return self._address

    def close(self) -> None:
        self._net.close(self._loop, self._address)
