"""Tells of records that failed: one of them, and each second how many more, for each operator; and
of batches that stay damaged.
"""

import asyncio
from collections import Counter

from streamsx.clock import Clock
from streamsx.engine.fetch import Unreadable
from streamsx.engine.journal import LOG, Journal
from streamsx.lifecycle.fetch import BACKOFF_MAX_S
from streamsx.model import TopicPartition
from streamsx.task.policy import Failure

TELL_EVERY_S = 1.0


class Failures:
    """One per worker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told_at: dict[str, float] = {}
        self._silent: Counter[str] = Counter()

    def report(self, failure: Failure) -> None:
        """A record was skipped."""
        now, operator = self._clock.now(), failure.operator
        if now - self._told_at.get(operator, -TELL_EVERY_S) < TELL_EVERY_S:
            self._silent[operator] += 1
            return
        self._told_at[operator] = now
        LOG.warning("record_failed %s: skipped", failure)

    async def run(self) -> None:
        """Until cancelled; then it tells of what is left."""
        try:
            while True:
                await asyncio.sleep(TELL_EVERY_S)
                self._tell()
        finally:
            self._tell()

    def _tell(self) -> None:
        for operator, more in self._silent.items():
            self._told_at[operator] = self._clock.now()
            LOG.warning("record_failed %s: %s more: skipped", operator, more)
        self._silent.clear()


def damage(journal: Journal) -> Unreadable:
    """Tells of a batch that stays damaged: whoever reads that log stands still there."""

    def tell(tp: TopicPartition, offset: int, why: str) -> None:
        what = (
            f"{why}: nothing behind it is read; it is tried every {BACKOFF_MAX_S:g} s: let a sound "
            f"replica lead {tp}, or give these records up with kafka-delete-records.sh"
        )
        journal("error", what=what, where=f"{tp} at offset {offset}")

    return tell
