"""Seals that wait until a body has come to the end of its record, at least once. Pure.

The race without the wait: a body changes a table and waits for another system; its task commits,
so the change is committed and the record is not; the record ends; another record fails, and the
task goes back to that commit; the record runs again, and the table counts it twice.

So the seal of a task with a body in the middle of a record is put off. The body sees no record
behind that one. The other tasks run and commit meanwhile. When the body is done the task is sealed
by itself, beside whatever the commit cycle is doing then, and runs on.

A body that takes longer than RECORD_PATIENCE_S is not waited for, since a body may loop within one
record for as long as the worker runs. Nor is any body while too much is dirty. What it has changed
so far is committed, and the other bodies of its task go on.

A careful task does not wait, because its seals leave the open record out. A task that is revoked
has a limit of its own (`Committer.suspend`).

Not here: exactly-once, where no task commits before all bodies are done
(`transactional_committer`).
"""

from collections.abc import Collection
from typing import Final

from streamsx.model import TaskId
from streamsx.tasks.active_task import Active

RECORD_PATIENCE_S: Final = 30.0
"""Longest wait for the end of a record. Most clients of other systems have given up by then. A kill
in the meantime repeats the records ahead of it too, as many as the commit interval had."""


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
        """Return the tasks that wait no longer, and are to be sealed."""
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
