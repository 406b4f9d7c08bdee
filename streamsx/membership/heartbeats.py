"""When heartbeats are due. While tasks are being handed over they hurry: a round begins when the
last member has heard of it.
"""

from streamsx.membership import events as e
from streamsx.membership.effects import Effects

HURRY_INTERVAL_S, HURRY_S = 0.1, 10.0


class Heartbeats:
    """Of one member."""

    def __init__(self, box: Effects, interval_s: float) -> None:
        self._box, self._interval_s, self._hurry_until = box, interval_s, 0.0

    def again(self) -> None:
        """The next one is due after the interval."""
        hurries = self._box.now < self._hurry_until
        self._box.after(e.Timer.HEARTBEAT, HURRY_INTERVAL_S if hurries else self._interval_s)

    def hurry(self) -> None:
        """Until the next round, if that comes soon."""
        self._hurry_until = self._box.now + HURRY_S
        self.again()

    def calm(self) -> None:
        self._hurry_until = 0.0
