"""Hand-overs to this worker: their duration, from the assignment to the first record.

Not here: the steps of a hand-over (`state_machine`, `store_restore`).
"""

from collections.abc import Callable, Iterable, Mapping

from streamsx.clock import Clock
from streamsx.journal import Journal
from streamsx.model import TaskId, TopicPartition
from streamsx.tasks.active_task import Active
from streamsx.tasks.task_registry import TaskRegistry


class Handovers:
    """Hand-overs of one worker that are under way, for the journal.

    Args:
        registry: tasks held here, and their roles.
        actives: active tasks of this worker.
        lag: returns the lag of a follower in records.
        caught_up: returns whether no record of a partition waits.
        journal: receives the end of each hand-over.
        clock: time of the worker.
    """

    def __init__(
        self,
        *,
        registry: TaskRegistry,
        actives: Mapping[TaskId, Active],
        lag: Callable[[TaskId], int | None],
        caught_up: Callable[[TopicPartition], bool],
        journal: Journal,
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._actives = actives
        self._lag = lag
        self._caught_up = caught_up
        self._journal = journal
        self._clock = clock
        self._granted: dict[TaskId, tuple[float, int]] = {}
        """Followers that became active, until their hand-over is complete: the time of the
        assignment, and the lag at that time."""

    def granted(self, tasks: Iterable[TaskId]) -> None:
        """Begin the hand-over of followers that this assignment makes active."""
        now = self._clock.now()
        for task in tasks:
            if task in self._registry and self._registry.of(task).role.follows:
                self._granted[task] = now, self._lag(task) or 0

    def processed(self, active: Active, now: float, *, more: bool) -> None:
        """Note that the loop has processed records of a task; `more` are waiting."""
        active.gap.processed(now, more=more)
        if active.first:
            active.first = False
            self._journal("first_record", task=str(active.id))
            self._complete(active.id, now)

    def complete_idle(self) -> None:
        """Complete the hand-over of promoted tasks that find no input.

        Their hand-over ended when they began to run. The data loop calls this now and then.
        """
        for task in sorted(self._granted.keys() & self._actives.keys()):
            active = self._actives[task]
            if all(map(self._caught_up, active.sources)):
                self._complete(task, active.gap.last)

    def forget(self, task: TaskId) -> None:
        """Forget the hand-over of a task that is closed."""
        self._granted.pop(task, None)

    def _complete(self, task: TaskId, at: float) -> None:
        if task in self._granted:
            granted_at, lag = self._granted.pop(task)
            ms = round((at - granted_at) * 1000, 1)
            self._journal("promoted", task=str(task), lag=lag, handover_ms=ms, at=at)
