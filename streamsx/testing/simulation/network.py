"""Connections between the processes of a world and its broker.

In order, as TCP is: without that a third of all seeds fails for reasons that no network has. Also
between one connection and the next of the same lane, whose packets take the same way behind the
reset of the last. What is sent into a cut, or is under way when it begins, arrives when it ends:
unless the connection was aborted meanwhile, for then nobody sends it again. The kernel of a process
that was killed or stopped goes on sending.

Not here: what is asked and answered; which cuts there are.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from streamsx.testing.simulation.heap import Call, Heap, Life


@dataclass(slots=True)
class Path:
    """One lane of one process. `up_at`, `down_at`: when its last packet arrives."""

    life: Life
    lane: str
    up_at: float = 0.0
    down_at: float = 0.0


@dataclass(slots=True, eq=False)
class Connection:
    """`open`: as the client sees it; `served`: as the broker does; `lost` tells the client."""

    path: Path
    lost: Call
    answer: Callable[[int, object], None]
    open: bool = True
    served: bool = True
    aborted: bool = False


@dataclass(slots=True)
class Cut:
    """Until when a host reaches nobody (up), hears nobody (down), and how slow it is."""

    up_until: float = 0.0
    down_until: float = 0.0
    slow: float = 1.0


class Server(Protocol):
    """The broker's side."""

    life: Life

    def arrive(self, connection: Connection, number: int, request: object) -> None: ...
    def gone(self, connection: Connection) -> None: ...


class Network:
    """`delay_s`: mean of one way."""

    def __init__(self, heap: Heap, seed: int, delay_s: float) -> None:
        self.random = random.Random(f"{seed}/net")
        self.connections: dict[Connection, None] = {}
        self.server: Server
        self._cuts: dict[str, Cut] = {}
        self._heap, self._delay_s = heap, delay_s

    def cut(self, life: Life) -> Cut:
        return self._cuts.setdefault(life.host, Cut())

    def reaches(self, life: Life) -> bool:
        cut = self.cut(life)
        clear = max(cut.up_until, cut.down_until) <= self._heap.now
        return clear and not self.server.life.over

    def connect(self, path: Path, lost: Call, answer: Callable[[int, object], None]) -> Connection:
        """`answer` is called with a number and an answer, `lost` at most once."""
        connection = Connection(path, lost, answer)
        self.connections[connection] = None
        if self.server.life.over:
            self._drop(connection)
        return connection

    def ask(self, connection: Connection, number: int, request: object) -> None:
        server = self.server
        if connection.served:
            arrive = lambda: server.arrive(connection, number, request)  # noqa: E731
            self._up(connection, f"<-{connection.path.lane}", request, arrive)

    def reply(self, connection: Connection, number: int, answer: object) -> None:
        def arrive() -> None:
            if connection.open:
                connection.answer(number, answer)

        if connection.served:
            self._down(connection.path, "<-broker", answer, arrive)

    def abort(self, connection: Connection) -> None:
        """By the client. What is under way arrives, unless it is held up: nobody repeats it."""
        connection.aborted = self.cut(connection.path.life).up_until > self._heap.now
        self._finish(connection)

    def end(self, life: Life) -> None:
        """The process is over; its kernel says the rest."""
        for connection in [c for c in self.connections if c.path.life.host == life.host]:
            self._finish(connection)

    def reset(self, connection: Connection) -> None:
        """By nobody in particular; perhaps behind what is under way."""
        connection.aborted = self.random.random() < 0.5
        self.server.gone(connection)
        self._drop(connection)

    def server_died(self) -> None:
        for connection in list(self.connections):
            connection.aborted = True
            self._drop(connection)

    def _finish(self, connection: Connection) -> None:
        connection.open = False
        self.connections.pop(connection, None)
        server = self.server
        self._up(connection, "gone", connection.path.lane, lambda: server.gone(connection))

    def _drop(self, connection: Connection) -> None:
        def arrive() -> None:
            if connection.open:
                connection.open = False
                connection.lost()

        connection.served = False
        self.connections.pop(connection, None)
        self._down(connection.path, "cut off", connection.path.lane, arrive)

    def _delay(self, life: Life) -> float:
        return self.random.expovariate(1 / self._delay_s) * self.cut(life).slow

    def _up(self, connection: Connection, what: str, about: object, call: Call) -> None:
        path, server = connection.path, self.server.life

        def arrive() -> None:
            until = self.cut(path.life).up_until
            if until > self._heap.now and not connection.aborted:
                self._heap.at(until, server, what, about, arrive)
            elif not connection.aborted:
                call()

        path.up_at = max(path.up_at, self._heap.now + self._delay(path.life))
        self._heap.at(path.up_at, server, what, about, arrive)

    def _down(self, path: Path, what: str, about: object, call: Call) -> None:
        def arrive() -> None:
            until = self.cut(path.life).down_until
            if until > self._heap.now:
                self._heap.at(until, path.life, what, about, arrive)
            else:
                call()

        path.down_at = max(path.down_at, self._heap.now + self._delay(path.life))
        self._heap.at(path.down_at, path.life, what, about, arrive)
