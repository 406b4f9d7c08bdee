"""What a member has asked of its coordinator and still awaits, and where that is.

One request at a time flies on the join lane, and one of each kind on the beat lane. A coordinator
is looked for again after a pause that doubles, because FindCoordinator may name for seconds a
broker that still answers 16.

Not here: what an answer means.
"""

from streamsx.group import member_events as e
from streamsx.group.step_effects import Effects

PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 1.0
JITTER = 0.2
"""At most this part of a pause is added, other for each member."""


class PendingRequests:
    """While the coordinator is not `known`, only what a standing connection waits for may be sent.

    "The beat lane breaks; on the join lane JoinGroup is answered": SyncGroup goes there too.
    """

    def __init__(self, box: Effects, jitter: float) -> None:
        self.known = False
        self._box, self._jitter = box, jitter
        self._node: int | None = None
        self._flights: dict[int, e.SendRequest] = {}
        self._finding = False
        self._pause_s = PAUSE_MIN_S

    def send(
        self, who: tuple[str, int, bool], lane: e.ConnectionName, timeout_s: float, body: e.Request
    ) -> None:
        """`who`: the member's id, its generation, and whether it is in STABLE."""
        assert self._node is not None
        assert not self.flying(lane if lane is e.ConnectionName.JOIN else type(body))
        number, now = self._box.number(), self._box.now
        flight = e.SendRequest(number, self._node, lane, timeout_s, body, now, *who)
        self._flights[number] = flight
        self._box.emit(flight)

    def flying(self, what: e.ConnectionName | type[e.Request]) -> bool:
        return any(f.lane is what or type(f.body) is what for f in self._flights.values())

    def waited_s(self, lane: e.ConnectionName) -> float:
        """How long the oldest request on this lane has been unanswered; 0 without one."""
        sent = [flight.at for flight in self._flights.values() if flight.lane is lane]
        return self._box.now - min(sent, default=self._box.now)

    def doubtful(self, node: int | None) -> list[e.ConnectionName]:
        """Lanes that nobody can rely on once the coordinator is found at `node`: something waits
        there for minutes that was asked before it had to be looked for, or at another broker.

        "JoinGroup is parked; the coordinator moves, or its machine starts anew and knows nothing of
        a round; that connection says nothing, the heartbeat's breaks": the group would go on
        without us for as long as a round may last.
        """
        flights = self._flights.values() if node is not None else ()
        lanes = {f.lane for f in flights if f.lane is e.ConnectionName.JOIN or f.node != node}
        return [lane for lane in e.ConnectionName if lane in lanes]

    def landed(self, event: e.Reply | e.Disconnected) -> list[e.SendRequest]:
        """What this event ends; nothing, if that was given up before."""
        if isinstance(event, e.Reply):
            ended = [event.request]
        else:
            ended = [number for number, f in self._flights.items() if f.lane is event.lane]
        return [self._flights.pop(number) for number in ended if number in self._flights]

    def forget(self) -> None:
        """Answers that still come belong to nothing."""
        self._flights.clear()

    def look(self) -> None:
        self._finding = True
        self._box.emit(e.Find())

    def find(self) -> None:
        """The coordinator is not where it was."""
        self.known = False
        if not self._finding:
            self._finding = True
            self._box.after(e.Timer.FIND, self.pause())

    def found(self, node: int | None) -> None:
        self._finding, self.known = False, node is not None
        if node is None:
            self.find()
        else:
            self._node = node

    def pause(self) -> float:
        """Seconds, twice as many each time, until an answer shows that all is `well`."""
        pause = self._pause_s * (1 + JITTER * self._jitter)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        return pause

    def well(self) -> None:
        self._pause_s = PAUSE_MIN_S
