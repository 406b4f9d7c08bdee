"""Heartbeats, and until when their answers allow tasks to run.

"m1 sends a heartbeat at 10.0; it arrives at 10.4; the answer arrives at 19.9": the coordinator
counts a session from 10.4, so we count from 10.0, the time of *sending*. Only what extends a
session there is a contact: a Heartbeat answered 0 or 27, an OffsetCommit or a JoinGroup answered
0. The last has usually waited for others, so a heartbeat follows it at once. While tasks are being
handed over heartbeats hurry: a round begins when the last member has heard of it.

Not here: what an answer says of the group.
"""

from streamsx.membership import events as e
from streamsx.membership.outbox import PendingRequests

TRIES_PER_SESSION = 3
"""A heartbeat or commit that stays unanswered leaves time for another one."""
HURRY_INTERVAL_S, HURRY_S = 0.1, 10.0


class Lease:
    """`until`: nothing of ours runs at or after it. A plain number: any thread may read it."""

    def __init__(
        self, box: PendingRequests, session_timeout_s: float, heartbeat_interval_s: float
    ) -> None:
        self.until = 0.0
        self._box = box
        self._session_s, self._interval_s = session_timeout_s, heartbeat_interval_s
        self._hurry_until = 0.0

    def contact(self, at: float) -> None:
        """`at`: when the request was sent whose answer shows that we are in the group."""
        self._box.well()
        self.until = max(self.until, at + self._session_s)
        self._box.arm(e.Timer.FENCE, self.until)

    def ended(self, _: e.Tick) -> None:
        if self._box.now >= self.until:
            self._box.emit(e.Count("self-fence-total"))

    def ask(self, body: e.Heartbeat | e.OffsetCommit, *, stable: bool) -> None:
        self._box.send(e.LaneName.BEAT, self._session_s / TRIES_PER_SESSION, body, stable=stable)

    def beat(self, member_id: str, generation: int, *, stable: bool) -> None:
        """Now, unless one is under way or no coordinator is known; and again after the interval."""
        self._again()
        if self._box.known and not self._box.flying(e.Heartbeat):
            self.ask(e.Heartbeat(member_id, generation), stable=stable)

    def hurry(self, *, hurries: bool) -> None:
        """From an assignment with more to come until the next round."""
        self._hurry_until = self._box.now + HURRY_S if hurries else 0.0
        if hurries:
            self._again()

    def _again(self) -> None:
        hurries = self._box.now < self._hurry_until
        self._box.after(e.Timer.HEARTBEAT, HURRY_INTERVAL_S if hurries else self._interval_s)
