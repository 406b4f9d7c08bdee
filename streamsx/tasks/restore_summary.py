"""Summary of the restores that last: when the log has a line about all of them, and their end.

Most restores are over before anybody would look, and have no line.
"""

from typing import Final, NamedTuple

from streamsx.model import TaskId

EVERY_S: Final = 10.0
"""Time until the first line, and between two lines."""


class RestoresOver(NamedTuple):
    """Restores that have ended: their tasks, their records, and the seconds that they took."""

    tasks: tuple[TaskId, ...]
    records: int
    took_s: float


class RestoreSummary:
    """Restores of one worker that are under way, and those that have ended beside them."""

    def __init__(self) -> None:
        self._left: set[TaskId] = set()
        self._over: dict[TaskId, int] = {}
        """Records of each task whose restore has ended since the first of `_left` began."""
        self._began = self._due_at = 0.0
        self._told = False

    def begun(self, now: float, task: TaskId) -> None:
        """Note that a restore begins."""
        if not self._left:
            self._began = now
            self._due_at = now + EVERY_S
        self._left.add(task)

    def due(self, now: float) -> bool:
        """Return whether a line about all restores is due; then the next one is due later."""
        if not self._left or now < self._due_at:
            return False
        self._due_at = now + EVERY_S
        self._told = True
        return True

    def over(self, now: float, task: TaskId, records: int) -> RestoresOver | None:
        """Note the end of a restore; return all that have ended if it was the last one.

        Restores without a line have no end in the log either.
        """
        if task not in self._left:
            return None
        self._over[task] = records
        return self._without(now, task)

    def dropped(self, now: float, task: TaskId) -> RestoresOver | None:
        """Note that a restore is given up; return as `over` does."""
        return self._without(now, task) if task in self._left else None

    def _without(self, now: float, task: TaskId) -> RestoresOver | None:
        self._left.discard(task)
        if self._left:
            return None
        ended, told = self._over, self._told
        self._over = {}
        self._told = False
        if not told or not ended:
            return None
        return RestoresOver(tuple(sorted(ended)), sum(ended.values()), now - self._began)
