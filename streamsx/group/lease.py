"""Until when the coordinator's answers allow tasks to run, and when the next heartbeat is due.

"m1 sends a heartbeat at 10.0; it arrives at 10.4; the answer arrives at 19.9": the coordinator
counts a session from 10.4, so we count from 10.0, the time of *sending*. Only what extends a
session there is a contact: a Heartbeat answered 0 or 27, an OffsetCommit or a JoinGroup answered
0. The last has usually waited for others, so a heartbeat follows it at once.

No session tells of a round that was closed without us: "m1's connection is cut when it has heard
of a round; its heartbeats go on; at the rebalance timeout the round goes on without it": whoever
has its tasks then runs beside it. Such a round begins behind the last heartbeat that was answered 0
in the generation of our assignment, and cannot be closed without us for a rebalance timeout, so the
lease is no longer than that either. "m1's SyncGroup does not arrive; its heartbeats do": at the
rebalance timeout behind the JoinGroups it is removed, and the next round is closed at once: until
it has an assignment nothing makes that time longer. It bites only in rounds that last so long.

While tasks are being handed over heartbeats hurry: a round begins when the last member has heard
of it.

Not here: what an answer says of the group.
"""

from streamsx.group import member_events as e
from streamsx.group.step_effects import Effects

HURRY_INTERVAL_S, HURRY_S = 0.1, 10.0


class Lease:
    """`until`: nothing of ours runs at or after it. A plain number: any thread may read it."""

    def __init__(
        self, box: Effects, session_timeout_s: float, rebalance_timeout_s: float, interval_s: float
    ) -> None:
        self.until = self._hurry_until = self._at = 0.0
        self._session_until = self._round_until = 0.0
        self._session_s, self._round_s = session_timeout_s, rebalance_timeout_s
        self._box, self._interval_s = box, interval_s

    def contact(self, at: float, *, steady: bool) -> None:
        """`at`: when the request was sent whose answer shows that we are in the group; `steady`:
        and that by the newest contact no round had begun which we are not in.
        """
        self._at = max(self._at, at)
        self._session_until = self._at + self._session_s
        if steady:
            self._round_until = self._at + self._round_s
        self.until = min(self._session_until, self._round_until)
        self._box.arm(e.Timer.FENCE, self.until)

    @property
    def limit(self) -> str:
        """What bounds it, for people."""
        if self._session_until <= self._round_until:
            return f"the group has not answered for {self._session_s:g} s (session_timeout)"
        return f"a rebalance has lasted for {self._round_s:g} s (rebalance_timeout)"

    def lost(self) -> None:
        self.until = self._session_until = self._round_until = 0.0

    def ended(self) -> None:
        if self._box.now >= self.until:
            self._box.emit(e.Count("self-fence-total"))

    def beat(self) -> None:
        """The next heartbeat is due after the interval."""
        hurries = self._box.now < self._hurry_until
        self._box.after(e.Timer.HEARTBEAT, HURRY_INTERVAL_S if hurries else self._interval_s)

    def hurry(self) -> None:
        """Until the next round, if that comes soon."""
        self._hurry_until = self._box.now + HURRY_S
        self.beat()

    def calm(self) -> None:
        self._hurry_until = 0.0
