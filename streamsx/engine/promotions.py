"""Learners that become active: from the assignment that says so to the first record.

Not here: what a promotion does.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from streamsx.engine.journal import Journal
from streamsx.model import TaskId


@dataclass(slots=True)
class Promotion:
    """Monotonic seconds; `lag` in records, at the assignment."""

    granted_at: float
    lag: int
    running_at: float = 0.0


class Promotions:
    """Those under way. `promoted` is told of each once it is handed over."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._of: dict[TaskId, Promotion] = {}

    def begin(self, task: TaskId, lag: int, now: float) -> None:
        self._of[task] = Promotion(now, lag)

    def drop(self, task: TaskId) -> None:
        self._of.pop(task, None)

    def running(self, task: TaskId, now: float) -> None:
        if task in self._of:
            self._of[task].running_at = now

    def idle(self, tasks: Iterable[TaskId], no_input: Callable[[TaskId], bool]) -> None:
        """A task that finds no input is handed over since it runs."""
        for task in [task for task in tasks if task in self._of and no_input(task)]:
            self.done(task, self._of[task].running_at)

    def done(self, task: TaskId, at: float) -> None:
        """Its first record was processed."""
        if (promotion := self._of.pop(task, None)) is not None:
            ms = round((at - promotion.granted_at) * 1000, 1)
            self._journal("promoted", task=str(task), lag=promotion.lag, handover_ms=ms, at=at)
