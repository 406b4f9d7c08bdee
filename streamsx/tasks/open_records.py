"""Seals that wait until a body has come to the end of its record, at least once. Pure.

The race without the wait: a body changes a table and waits for another system; its task commits,
so the change is committed and the record is not; the record ends; another record fails, and the
task goes back to that commit; the record runs again, and the table counts it twice.

So the seal of a task with a body in the middle of a record is put off. The body sees no record
behind that one. The other tasks run and commit meanwhile. A cycle without them commits the task
when the body is done. A body that takes longer than RECORD_PATIENCE_S is not waited for, nor is any
body while too much is dirty, or when its task is revoked: what it has done so far is committed. A
body may loop within one record for as long as the worker runs.

A careful task does not wait, because its seals leave the open record out.

Not here: exactly-once, where no task commits before all bodies are done
(`transactional_committer`).
"""

from collections.abc import Collection
from typing import Final

from streamsx.model import TaskId
from streamsx.tasks.active_task import Active

RECORD_PATIENCE_S: Final = 30.0
"""Longest wait for the end of a record. Most clients of other systems have given up by then. A kill
in the meantime repeats no more records than without the wait, since the task takes no new ones."""


class OpenRecords:
    """Tasks whose seals are put off, and the time since when."""

    def __init__(self) -> None:
        self._since: dict[TaskId, float] = {}

    def __contains__(self, task: object) -> bool:
        return task in self._since

    def puts_off(self, now: float, active: Active, *, crowded: bool) -> bool:
        """Return whether the seal of a task has to wait; note since when.

        To be called ahead of each slice of a seal. `crowded`: whether too much is dirty.
        """
        if active.suspended or self._is_over(now, active, crowded=crowded):
            self.forget(active.id)
            return False
        if active.id not in self._since:
            self._since[active.id] = now
            active.task.withhold()
        return True

    def over(self, now: float, actives: Collection[Active], *, crowded: bool) -> list[Active]:
        """Return the tasks that wait no longer; they are to be sealed soon."""
        if not self._since:
            return []
        waiting = (active for active in actives if active.id in self._since)
        return [active for active in waiting if self._is_over(now, active, crowded=crowded)]

    def forget(self, task: TaskId) -> None:
        """Forget a task that is sealed now, or commits no more."""
        self._since.pop(task, None)

    def _is_over(self, now: float, active: Active, *, crowded: bool) -> bool:
        if crowded or not active.task.halfway:
            return True
        return now - self._since.get(active.id, now) >= RECORD_PATIENCE_S
