"""What a member has asked for and still awaits: requests, timers, the coordinator; its effects.

One request at a time flies on the join lane, and one of each kind on the beat lane. A coordinator
is looked for again after a pause that doubles, because FindCoordinator may name for seconds a
broker that still answers 16.

Not here: what any of it means.
"""

from dataclasses import dataclass

from streamsx.membership import events as e

PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 1.0
JITTER = 0.2
"""At most this part of a pause is added, other for each member."""
COLLECT_S = 0.05
"""Several releases, or several ready learners, make one round."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A request under way. `stable`: its member was in STABLE when it was sent, `at`."""

    body: e.Request
    node: int
    lane: e.LaneName
    at: float
    stable: bool


class PendingRequests:
    """While the coordinator is not `known`, only what a standing connection waits for may be sent.

    "The beat lane breaks; on the join lane JoinGroup is answered": SyncGroup goes there too.
    """

    def __init__(self, jitter: float) -> None:
        self.now = 0.0
        self.out: list[e.Effect] = []
        self.known = False
        self._node: int | None = None
        self._serial = 0
        self._flights: dict[int, Flight] = {}
        self._armed: dict[e.Timer, float] = {}
        self._soon = ""
        self._finding = False
        self._jitter = jitter
        self._pause_s = PAUSE_MIN_S

    def open(self, now: float) -> list[e.Effect]:
        """A new step; returns where its effects will be."""
        self.now, self.out = now, []
        return self.out

    def emit(self, *effects: e.Effect) -> None:
        self.out += effects

    def arm(self, timer: e.Timer, at: float) -> None:
        if self._armed.get(timer) != at:
            self._armed[timer] = at
            self.emit(e.Arm(timer, at))

    def after(self, timer: e.Timer, seconds: float) -> None:
        self.arm(timer, self.now + seconds)

    def disarm(self, *timers: e.Timer) -> None:
        armed = [timer for timer in timers if self._armed.pop(timer, None) is not None]
        self.emit(*map(e.Disarm, armed))

    def fired(self, timer: e.Timer) -> None:
        self._armed.pop(timer, None)

    def collect(self, reason: str) -> None:
        """A reason to join, with others that may come with it."""
        if e.Timer.COLLECT not in self._armed:
            self._soon = reason
            self.after(e.Timer.COLLECT, COLLECT_S)

    def collected(self, _: e.Tick) -> str:
        return self._soon

    def number(self) -> int:
        self._serial += 1
        return self._serial

    def send(
        self, lane: e.LaneName, timeout_s: float, body: e.Request, *, stable: bool = False
    ) -> None:
        assert self._node is not None
        assert not self.flying(lane if lane is e.LaneName.JOIN else type(body))
        number = self.number()
        self._flights[number] = Flight(body, self._node, lane, self.now, stable)
        self.emit(e.SendRequest(number, self._node, lane, timeout_s, body))

    def flying(self, what: e.LaneName | type[e.Request]) -> bool:
        return any(f.lane is what or type(f.body) is what for f in self._flights.values())

    def waited_s(self, lane: e.LaneName) -> float:
        """How long the oldest request on this lane has been unanswered; 0 without one."""
        return max((self.now - f.at for f in self._flights.values() if f.lane is lane), default=0.0)

    def doubtful(self, node: int | None) -> list[e.LaneName]:
        """Lanes that nobody can rely on once the coordinator is found at `node`: something waits
        there for minutes that was asked before it had to be looked for, or at another broker.

        "JoinGroup is parked; the coordinator moves, or its machine starts anew and knows nothing of
        a round; that connection says nothing, the heartbeat's breaks": the group would go on
        without us for as long as a round may last.
        """
        lanes = {
            flight.lane
            for flight in self._flights.values()
            if flight.lane is e.LaneName.JOIN or flight.node != node
        }
        return [lane for lane in e.LaneName if lane in lanes and node is not None]

    def landed(self, event: e.Reply | e.Disconnected) -> list[Flight]:
        """What this event ends; nothing, if that was given up before."""
        if isinstance(event, e.Reply):
            ended = [event.request]
        else:
            ended = [number for number, f in self._flights.items() if f.lane is event.lane]
        return [self._flights.pop(number) for number in ended if number in self._flights]

    def abandon(self) -> None:
        """Answers that still come belong to nothing."""
        self._flights.clear()

    def look(self, _: e.Tick | None = None) -> None:
        self._finding = True
        self.emit(e.Find())

    def find(self) -> None:
        """The coordinator is not where it was."""
        self.known = False
        if not self._finding:
            self._finding = True
            self.after(e.Timer.FIND, self.pause())

    def found(self, event: e.Found) -> bool:
        self._finding, self.known = False, event.node is not None
        if event.node is None:
            self.find()
        else:
            self._node = event.node
        return self.known

    def pause(self) -> float:
        """Seconds, twice as many each time, until an answer shows that all is `well`."""
        pause = self._pause_s * (1 + JITTER * self._jitter)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        return pause

    def well(self) -> None:
        self._pause_s = PAUSE_MIN_S
