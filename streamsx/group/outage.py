"""What is told of a group that cannot be reached, or is silent: at once, seldom while it lasts, and
when it is over. It says so and does nothing about it: that is the member's.
"""

import math
from collections.abc import Callable

from streamsx.errors import WorldError

TELL_EVERY_S = 30.0


class Outage:
    """Of one member. `warn` is given what is to be said; what lasts for `limit_s` is raised."""

    def __init__(self, warn: Callable[[str], None], limit_s: float = math.inf) -> None:
        self._warn, self._limit_s = warn, limit_s
        self._away_since = self._suspended_since = math.inf
        self._tell_at = -math.inf

    def failed(self, now: float, why: WorldError) -> None:
        """Nobody has said who coordinates the group."""
        self._away_since = min(self._away_since, now)
        away_s = now - self._away_since
        if away_s >= self._limit_s:
            raise why
        if now >= self._tell_at:
            self._tell_at = now + TELL_EVERY_S
            self._warn(f"broker_away for {away_s:.0f} s: {why}: asking until one answers")

    def found(self, now: float) -> None:
        """Somebody has."""
        if self._away_since < math.inf:
            self._warn(f"broker_back after {now - self._away_since:.0f} s")
        self._away_since, self._tell_at = math.inf, -math.inf

    def leased(self, now: float, until: float, limit: str) -> None:
        """Tasks may run until then; 0: this member is in no group. `limit`: what has lasted for too
        long if they may not."""
        suspended = self._suspended_since < math.inf
        if suspended and until > now:
            self._warn(f"resumed: the group answers after {now - self._suspended_since:.0f} s more")
            self._suspended_since = math.inf
        elif not suspended and 0 < until <= now:
            self._suspended_since = now
            told = "nothing is processed until the group answers; nothing to do"
            self._warn(f"suspended: {limit}: {told}")
