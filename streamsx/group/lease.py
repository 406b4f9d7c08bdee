"""Lease of a member: the time until which tasks may run, and the time of the next heartbeat.

A contact is an answer that extends the session at the coordinator: a Heartbeat answered 0 or 27
(REBALANCE_IN_PROGRESS), an OffsetCommit answered 0, or a JoinGroup answered 0. The lease counts
from the time when the request was *sent*. The reason: m1 sends a heartbeat at 10.0; the heartbeat
arrives at 10.4; the answer arrives at 19.9. The coordinator counts the session from 10.4, so 10.0
is safe. A JoinGroup has usually waited for other members, so a heartbeat follows its answer at
once.

The session alone does not reveal a round that was closed without this member. The race: m1 is
notified of a round; m1's connection is cut; its heartbeats go on; at the rebalance timeout the
round continues without m1; the new owner of m1's tasks then runs beside m1. Such a round begins
after the last heartbeat that was answered 0 in the generation of the current assignment. The round
cannot be closed without m1 for a rebalance timeout. So the lease ends a rebalance timeout after
that heartbeat, if the session does not end sooner.

A second race: m1's SyncGroup does not arrive, and its heartbeats do; a rebalance timeout after the
JoinGroups m1 is removed, and the next round is closed at once. So nothing extends this limit until
m1 has an assignment. The limit matters only in rounds that last so long.

While tasks are handed over, heartbeats are sent more often, because a round begins only when the
last member has noticed the rebalance.

Not here: the meaning of an answer for the group.
"""

from streamsx.group import member_events as e
from streamsx.group.step_effects import Effects

HURRY_INTERVAL_S = 0.1
HURRY_S = 10.0


class Lease:
    """Lease of one member.

    Tasks must not run at or after `until`, in monotonic seconds. `until` is a plain number, so any
    thread may read it.
    """

    def __init__(
        self, box: Effects, session_timeout_s: float, rebalance_timeout_s: float, interval_s: float
    ) -> None:
        self.until = self._hurry_until = self._at = 0.0
        self._session_until = self._round_until = 0.0
        self._session_s = session_timeout_s
        self._round_s = rebalance_timeout_s
        self._box = box
        self._interval_s = interval_s

    def contact(self, at: float, *, steady: bool) -> None:
        """Extend the lease from `at`, the time when the answered request was sent.

        `steady`: no round without this member had begun at this contact.
        """
        self._at = max(self._at, at)
        self._session_until = self._at + self._session_s
        if steady:
            self._round_until = self._at + self._round_s
        self.until = min(self._session_until, self._round_until)
        self._box.arm(e.Timer.FENCE, self.until)

    @property
    def limit(self) -> str:
        """Return the reason for the end of the lease, for the log."""
        if self._session_until <= self._round_until:
            return f"the group has not answered for {self._session_s:g} s (session_timeout)"
        return f"a rebalance has lasted for {self._round_s:g} s (rebalance_timeout)"

    def lost(self) -> None:
        self.until = self._session_until = self._round_until = 0.0

    def ended(self) -> None:
        if self._box.now >= self.until:
            self._box.emit(e.Count("self-fence-total"))

    def beat(self) -> None:
        """Schedule the next heartbeat after the interval, or sooner while tasks are handed over."""
        hurries = self._box.now < self._hurry_until
        self._box.after(e.Timer.HEARTBEAT, HURRY_INTERVAL_S if hurries else self._interval_s)

    def hurry(self) -> None:
        """Send heartbeats every `HURRY_INTERVAL_S` for `HURRY_S`, or until the next round."""
        self._hurry_until = self._box.now + HURRY_S
        self.beat()

    def calm(self) -> None:
        self._hurry_until = 0.0
