"""What one step asks for: its effects, its time, and the timers that are armed.

Not here: what any of it means.
"""

from streamsx.membership import events as e


class Effects:
    """Of one member. `now` and `out` are those of the step under way."""

    def __init__(self) -> None:
        self.now = 0.0
        self.out: list[e.Effect] = []
        self._armed: dict[e.Timer, float] = {}
        self._serial = 0

    def open(self, now: float) -> list[e.Effect]:
        """A new step; returns where its effects will be."""
        self.now, self.out = now, []
        return self.out

    def emit(self, *effects: e.Effect) -> None:
        self.out += effects

    def number(self) -> int:
        self._serial += 1
        return self._serial

    def arm(self, timer: e.Timer, at: float) -> None:
        if self._armed.get(timer) != at:
            self._armed[timer] = at
            self.emit(e.Arm(timer, at))

    def after(self, timer: e.Timer, seconds: float) -> None:
        self.arm(timer, self.now + seconds)

    def armed(self, timer: e.Timer) -> bool:
        return timer in self._armed

    def disarm(self, *timers: e.Timer) -> None:
        armed = [timer for timer in timers if self._armed.pop(timer, None) is not None]
        self.emit(*map(e.Disarm, armed))

    def fired(self, timer: e.Timer) -> None:
        self._armed.pop(timer, None)
