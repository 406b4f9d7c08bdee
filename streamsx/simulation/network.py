"""An in-memory TCP between hosts: what arrives, in which order, how late, and what never does.

Per direction, what was written arrives in order, in segments that split it anywhere. What a cut or
an absent machine holds up is sent again after 0.2, 0.4, 0.8 s and so on, until TCP_USER_TIMEOUT or
a quarter of an hour has passed without an acknowledgement; then that side has lost the connection,
and the other one does not know. The kernel of a frozen process goes on receiving, until its window
is full; that of a killed one goes on sending.

Not here: TLS, IPv6, packets out of order (TCP puts them right), the backlog of a listener, half of
a connection closed.
"""

import errno
import os
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Final

from streamsx.simulation.tcp import Endpoint, SimSocket

if TYPE_CHECKING:
    from streamsx.simulation.process import Process
    from streamsx.simulation.scheduler import Scheduler

EPHEMERAL: Final = 32768
LATENCY_MIN_S: Final = 20e-6


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
        self.sockets: dict[int, SimSocket] = {}
        """Those that are open, by their numbers."""
        self._listeners: dict[Endpoint, SimSocket] = {}
        self._aliases: dict[Endpoint, Endpoint] = {}
        self._cuts: dict[tuple[str, str], float] = {}
        self._away: dict[str, float] = {}
        self._off: dict[str, None] = {}
        self._ports, self._numbers = count(EPHEMERAL), count(3)
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

    def reset(self, sock: SimSocket) -> None:
        """Something in between ends the connection, for both."""
        for end in (sock, sock.peer):
            if end is not None:
                end.get_reset()

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

    def socket(self, process: "Process", host: str, port: int) -> SimSocket:
        """To be connected."""
        rng, here = self.route(f"{process.name}>{host}:{port}"), (process.host, next(self._ports))
        return SimSocket(self, process, here, (host, port), rng)

    def listening(self, process: "Process", host: str, port: int) -> SimSocket:
        """Raises OSError if somebody does."""
        here = (host, port or next(self._ports))
        if self.listener(here):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.boot(host)
        made = self._listeners[here] = SimSocket(self, process, here, ("", 0), Random(0))
        return made

    def listener(self, at: Endpoint) -> SimSocket | None:
        found = self._listeners.get(self._aliases.get(at, at))
        return found if found and not found.closed else None

    def route(self, name: str) -> Random:
        """Of a connection: its number counts between these two only."""
        self._made[name] = number = self._made.get(name, 0) + 1
        return self.scheduler.stream(f"net/{name}/{number}")

    def opened(self, sock: SimSocket) -> int:
        number = next(self._numbers)
        self.sockets[number] = sock.process.sockets[number] = sock
        return number

    def closed(self, sock: SimSocket) -> None:
        del self.sockets[sock.number], sock.process.sockets[sock.number]
