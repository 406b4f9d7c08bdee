"""Requests of a member that await an answer, and the address of the coordinator.

One request at a time is in flight on the join connection, and one of each kind on the beat
connection. After a failure the search for the coordinator pauses, and the pause doubles, because
FindCoordinator may return for seconds a broker that still answers 16 (NOT_COORDINATOR).

Not here: the meaning of an answer.
"""

from streamsx.group import member_events as e
from streamsx.group.step_effects import Effects

PAUSE_MIN_S = 0.1
PAUSE_MAX_S = 1.0
JITTER = 0.2
"""Largest share of a pause that is added to the pause, different for each member."""


class PendingRequests:
    """Requests in flight, by number.

    While the coordinator is not `known`, only a request that continues a round on a standing
    connection may be sent. The race: the beat connection breaks; JoinGroup is answered on the join
    connection; SyncGroup is sent there too.
    """

    def __init__(self, box: Effects, jitter: float) -> None:
        self.known = False
        self._box = box
        self._jitter = jitter
        self._node: int | None = None
        self._flights: dict[int, e.SendRequest] = {}
        self._finding = False
        self._pause_s = PAUSE_MIN_S

    def send(
        self, who: tuple[str, int, bool], lane: e.ConnectionName, timeout_s: float, body: e.Request
    ) -> None:
        """Send a request as a `SendRequest` effect.

        `who`: the member id, the generation, and whether the member is STABLE.
        """
        assert self._node is not None
        assert not self.flying(lane if lane is e.ConnectionName.JOIN else type(body))
        number = self._box.number()
        now = self._box.now
        flight = e.SendRequest(number, self._node, lane, timeout_s, body, now, *who)
        self._flights[number] = flight
        self._box.emit(flight)

    def flying(self, what: e.ConnectionName | type[e.Request]) -> bool:
        return any(f.lane is what or type(f.body) is what for f in self._flights.values())

    @property
    def commits(self) -> bool:
        """Return whether a commit is in flight."""
        return self.flying(e.OffsetCommit) or self.flying(e.TxnOffsetCommit)

    def waited_s(self, lane: e.ConnectionName) -> float:
        """Return the age of the oldest unanswered request on this connection; 0 without one."""
        sent = [flight.at for flight in self._flights.values() if flight.lane is lane]
        return self._box.now - min(sent, default=self._box.now)

    def doubtful(self, node: int | None) -> list[e.ConnectionName]:
        """Return the connections that cannot be trusted once the coordinator is found at `node`.

        A request waits there, perhaps for minutes, that was sent to another broker or is a
        JoinGroup or SyncGroup from before the search.

        The race: JoinGroup is parked; the coordinator moves, or restarts and knows of no round; the
        join connection stays silent, the beat connection breaks. Without an abort the group would
        go on without this member for as long as a round may last.
        """
        flights = self._flights.values() if node is not None else ()
        lanes = {f.lane for f in flights if f.lane is e.ConnectionName.JOIN or f.node != node}
        return [lane for lane in e.ConnectionName if lane in lanes]

    def landed(self, event: e.Reply | e.Disconnected) -> list[e.SendRequest]:
        """Remove and return the requests that this event ends, without abandoned ones."""
        if isinstance(event, e.Reply):
            ended = [event.request]
        else:
            ended = [number for number, f in self._flights.items() if f.lane is event.lane]
        return [self._flights.pop(number) for number in ended if number in self._flights]

    def forget(self) -> None:
        """Abandon all requests; later answers to them are ignored."""
        self._flights.clear()

    def look(self) -> None:
        self._finding = True
        self._box.emit(e.Find())

    def find(self) -> None:
        """Look for the coordinator after a pause, because the known address is wrong."""
        self.known = False
        if not self._finding:
            self._finding = True
            self._box.after(e.Timer.FIND, self.pause())

    def found(self, node: int | None) -> None:
        self._finding = False
        self.known = node is not None
        if node is None:
            self.find()
        else:
            self._node = node

    def pause(self) -> float:
        """Return the next pause in seconds; pauses double until `well` is called."""
        pause = self._pause_s * (1 + JITTER * self._jitter)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        return pause

    def well(self) -> None:
        self._pause_s = PAUSE_MIN_S
