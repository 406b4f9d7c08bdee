"""Warnings about a group that cannot be reached or does not answer.

A warning is logged at once, seldom while the outage lasts, and when the outage is over. Not here:
the reaction to an outage (`member`).
"""

import math
from collections.abc import Callable

from streamsx.errors import WorldError

WARN_EVERY_S = 30.0


class Outage:
    """Outage reporter of one member.

    `warn` receives each warning. An outage of `limit_s` raises the error.
    """

    def __init__(self, warn: Callable[[str], None], limit_s: float = math.inf) -> None:
        self._warn = warn
        self._limit_s = limit_s
        self._away_since = self._suspended_since = math.inf
        self._warn_at = -math.inf

    def failed(self, now: float, why: WorldError) -> None:
        """Record that the coordinator of the group could not be found.

        Raises:
            WorldError: `why`, once the outage has lasted for `limit_s`.
        """
        self._away_since = min(self._away_since, now)
        away_s = now - self._away_since
        if away_s >= self._limit_s:
            raise why
        if now >= self._warn_at:
            self._warn_at = now + WARN_EVERY_S
            so_far = f" for {away_s:.0f} s" if away_s >= 1 else ""
            self._warn(
                f"The group is out of reach{so_far}: {why}. Trying again until a broker answers."
            )

    def found(self, now: float) -> None:
        """Record that the coordinator was found."""
        if self._away_since < math.inf:
            self._warn(f"The group is in reach again, after {now - self._away_since:.0f} s.")
        self._away_since = math.inf
        self._warn_at = -math.inf

    def leased(self, now: float, until: float, limit: str) -> None:
        """Warn when tasks are suspended or resumed.

        `until`: the end of the lease in monotonic seconds; 0: the member is in no group. `limit`:
        the reason for the end of the lease.
        """
        suspended = self._suspended_since < math.inf
        if suspended and until > now:
            paused_s = now - self._suspended_since
            self._warn(
                f"Processing continues: the group answers again, after {paused_s:.0f} s more."
            )
            self._suspended_since = math.inf
        elif not suspended and 0 < until <= now:
            self._suspended_since = now
            self._warn(
                f"Processing is paused: {limit}. It continues when the group answers; no action "
                "needed."
            )
