"""How long a task stood still while input for it was waiting: the longest such gap, per task.

A gap begins when the task has processed its last record and more is there, or when something
arrives for a task that had nothing to do; it ends with the next record. Time without input is no
gap.
"""

from dataclasses import dataclass

from streamsx.model import TaskId


@dataclass(slots=True)
class Gap:
    """Monotonic seconds. `since`: None while nothing waits."""

    since: float | None = None
    longest: float = 0.0

    def waits(self, now: float) -> None:
        """Input is there."""
        if self.since is None:
            self.since = now

    def processed(self, now: float, *, more: bool) -> None:
        """Records were processed; `more` are waiting."""
        if self.since is not None:
            self.longest = max(self.longest, now - self.since)
        self.since = now if more else None

    def taken(self, now: float) -> float:
        """The longest since the last call, the one that is under way included."""
        open_s = now - self.since if self.since is not None else 0.0
        longest, self.longest = max(self.longest, open_s), 0.0
        return longest


class Gaps:
    """Of all running tasks of a worker."""

    def __init__(self) -> None:
        self._of: dict[TaskId, Gap] = {}

    def add(self, task: TaskId) -> Gap:
        self._of[task] = made = Gap()
        return made

    def remove(self, task: TaskId) -> None:
        self._of.pop(task, None)

    def taken(self, now: float) -> dict[TaskId, float]:
        """Seconds, for every task that runs."""
        return {task: gap.taken(now) for task, gap in sorted(self._of.items())}
