"""Tells of records that failed: the first of each second and operator, and how many since."""

from collections import Counter

from streamsx.clock import Clock
from streamsx.engine.journal import LOG
from streamsx.task.policy import Failure

TELL_EVERY_S = 1.0


class Failures:
    """One per worker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told_at: dict[tuple[str, bool], float] = {}
        self._silent: Counter[tuple[str, bool]] = Counter()

    def report(self, failure: Failure) -> None:
        """A record was skipped."""
        key, now = (failure.operator, failure.decode), self._clock.now()
        if now - self._told_at.get(key, -TELL_EVERY_S) < TELL_EVERY_S:
            self._silent[key] += 1
            return
        self._told_at[key] = now
        more = self._silent.pop(key, 0)
        LOG.warning("record_failed %s: skipped%s", failure, f", and {more} more" if more else "")
