"""How long a task stood still while input for it was waiting: the longest such gap, per task.

A gap begins when the task has processed a record and more is there, or when something arrives for a
task that had nothing to do; it ends with the next record. Time without input is no gap.

When something arrived is told by the record itself, if it was made a moment ago: a loop that is
held up sees late what has been in its socket for long. Records with times of the past count from
when they were seen.
"""

from dataclasses import dataclass

MOMENT_S = 10.0


@dataclass(slots=True)
class ProcessingGap:
    """Monotonic seconds. `since`: None while nothing waits; `last`: of the newest record."""

    since: float | None = None
    last: float = 0.0
    longest: float = 0.0

    def waits(self, now: float, age_s: float) -> None:
        """Input is there; its first record is `age_s` old."""
        if self.since is None:
            arrived = now - age_s if 0 <= age_s <= MOMENT_S else now
            self.since = max(arrived, self.last)

    def processed(self, now: float, *, more: bool) -> None:
        """Records were processed; `more` are waiting."""
        if self.since is not None:
            self.longest = max(self.longest, now - self.since)
        self.last = now
        self.since = now if more else None

    def taken(self, now: float) -> float:
        """The longest since the last call, the one that is under way included."""
        open_s = now - self.since if self.since is not None else 0.0
        longest, self.longest = max(self.longest, open_s), 0.0
        return longest
