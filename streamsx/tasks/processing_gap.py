"""Processing gap of a task: the longest time in which input was waiting and none was processed.

A gap begins when the task has processed a record and more records wait, or when a record arrives
for an idle task. The gap ends with the next record. Time without input is no gap.

The timestamp of a record made less than MOMENT_S ago is the time of arrival: a loop that is held up
sees late a record that has been in its socket for long. An older record counts from the time at
which the loop saw the record.
"""

from dataclasses import dataclass

MOMENT_S = 10.0
"""Age up to which the timestamp of a record counts as its arrival."""


@dataclass(slots=True)
class ProcessingGap:
    """Gap of one task, in monotonic seconds.

    Attributes:
        since: begin of the open gap; None while no input waits.
        last: time at which the newest record was processed.
        longest: longest closed gap since `taken` was called.
    """

    since: float | None = None
    last: float = 0.0
    longest: float = 0.0

    def waits(self, now: float, age_s: float) -> None:
        """Open a gap, unless one is open: input waits, and the first record is `age_s` old."""
        if self.since is None:
            arrived = now - age_s if 0 <= age_s <= MOMENT_S else now
            self.since = max(arrived, self.last)

    def processed(self, now: float, *, more: bool) -> None:
        """Close the gap: records were processed. Open the next one if `more` are waiting."""
        if self.since is not None:
            self.longest = max(self.longest, now - self.since)
        self.last = now
        self.since = now if more else None

    def taken(self, now: float) -> float:
        """Return the longest gap since the last call, an open one included, and forget it."""
        open_s = now - self.since if self.since is not None else 0.0
        longest = max(self.longest, open_s)
        self.longest = 0.0
        return longest
