"""Effects of one step of a member, with the time, the armed timers and the reason to rejoin.

The rejoin reason asks for another join, now or soon together with others. Not here: the meaning of
an effect, and the moment when a member may join.
"""

import math
from collections.abc import Iterable

from streamsx.group import member_events as e


class Effects:
    """Effects of one member.

    `now` and `out` belong to the step under way. `rejoin_reason`: the first reason to join again
    that no round has taken up.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.out: list[e.Effect] = []
        self.rejoin_reason: str | None = None
        self._later = ""
        self._armed: dict[e.Timer, float] = {}
        self._serial = 0

    def open(self, now: float) -> list[e.Effect]:
        """Begin a step and return the list that will hold its effects."""
        self.now = now
        self.out = []
        return self.out

    def emit(self, *effects: e.Effect) -> None:
        self.out += effects

    def number(self) -> int:
        self._serial += 1
        return self._serial

    # Timers.

    def arm(self, timer: e.Timer, at: float) -> None:
        if self._armed.get(timer) != at:
            self._armed[timer] = at
            self.emit(e.Arm(timer, at))

    def after(self, timer: e.Timer, seconds: float) -> None:
        self.arm(timer, self.now + seconds)

    def first(self, timer: e.Timer, times: Iterable[float]) -> None:
        """Arm the timer for the earliest of these times, or disarm the timer without any."""
        if due := sorted(times):
            self.arm(timer, due[0])
        else:
            self.disarm(timer)

    def disarm(self, *timers: e.Timer) -> None:
        armed = [timer for timer in timers if self._armed.pop(timer, None) is not None]
        self.emit(*(e.Arm(timer, None) for timer in armed))

    def fired(self, timer: e.Timer) -> None:
        self._armed.pop(timer, None)

    # Reasons to join again.

    def want(self, reason: str, within_s: float = 0.0) -> None:
        if not within_s:
            self.rejoin_reason = self.rejoin_reason or reason
        elif self.now + within_s < self._armed.get(e.Timer.COLLECT, math.inf):
            self._later = reason
            self.after(e.Timer.COLLECT, within_s)

    def wanted(self, event: e.Want) -> None:
        self.want(event.reason)

    def collected(self) -> None:
        self.want(self._later)

    def taken(self) -> str:
        """Return and clear the rejoin reason, because a join reports all changes."""
        reason = self.rejoin_reason or ""
        self.rejoin_reason = None
        self.disarm(e.Timer.COLLECT)
        return reason
