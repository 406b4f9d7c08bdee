"""Tasks whose records a broker has refused for good: `on_produce_error`.

`stop_task` stops the task that sent such a record at its last commit, as a row of failures does: it
alone stands still, where mended code finds everything again. `stop` ends the worker. `log` passes
over the record; but a changelog's row is never passed over (its table would lose it at the next
restore), nor is what is refused for no record (a missing right): then the task stops all the same.

Not here: which records of a batch are refused (`client/rejected_batch`).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum

from streamsx.client.rejected_batch import OF_RECORDS, RefusedRecord, Sender, told
from streamsx.clock import Clock
from streamsx.errors import TaskStopped, WorldError
from streamsx.journal import LOG, Journal
from streamsx.model import TaskId, TopicPartition
from streamsx.tasks.active_task import Active

TELL_EVERY_S = 1.0


class OnProduceError(Enum):
    """Values are those of the setting."""

    STOP_TASK = "stop_task"
    STOP = "stop"
    LOG = "log"


class OncePerSecond:
    """One line a second for each topic; those that were left out are counted in the next one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._told_at: dict[str, float] = {}
        self._silent = Counter[str]()

    def __call__(self, topic: str, what: str) -> None:
        now = self._clock.now()
        if now - self._told_at.get(topic, -TELL_EVERY_S) < TELL_EVERY_S:
            self._silent[topic] += 1
            return
        more = self._silent.pop(topic, 0)
        self._told_at[topic] = now
        LOG.warning("record_refused %s%s", what, f" (and {more} more before it)" if more else "")


class ProduceErrors:
    """One per worker. `current` says whether a sender is its task as it runs now; `stops` stops a
    task at its last commit, `fails` drops what it has not committed and ends the worker.
    """

    def __init__(
        self,
        word: OnProduceError,
        principal: str,
        actives: Mapping[TaskId, Active],
        current: Callable[[Sender], bool],
        changelogs: frozenset[str],
        journal: Journal,
        clock: Clock,
        *,
        stops: Callable[[TaskId, TaskStopped], None],
        fails: Callable[[TaskId, Exception], None],
    ) -> None:
        self._word, self._principal = word, principal
        self._actives, self._current = actives, current
        self._changelogs, self._journal = changelogs, journal
        self._stops, self._fails = stops, fails
        self._tell = OncePerSecond(clock)

    def refused(self, tp: TopicPartition, code: int, record: RefusedRecord) -> None:
        """Follow the setting for one record of a task."""
        what = told(tp, code, record, self._principal)
        task = record.sender.task
        assert task is not None, "a record of no task"
        skips = code in OF_RECORDS and tp.topic not in self._changelogs
        if self._word is OnProduceError.LOG and skips:
            self._tell(tp.topic, f"{what}: it is passed over")
        elif (active := self._actives.get(task)) is None or not self._current(record.sender):
            # The task has ended or begun anew since, so whoever runs it sends the record again.
            self._journal("error", what=what, where=f"task {task}")
        elif self._word is OnProduceError.STOP:
            self._fails(task, WorldError(what))
        else:
            self._stop(active, what, skips=skips)

    def _stop(self, active: Active, what: str, *, skips: bool) -> None:
        task, done = active.id, active.task.committed_at.positions
        at = ", ".join(f"{topic}-{task.partition} {offset}" for topic, offset in done.items())
        more = ", or set on_produce_error=log to pass over such records" if skips else ""
        self._stops(
            task,
            TaskStopped(
                f"task stopped: {task}: {what}, and start again{more}; nothing behind its last "
                f"commit ({at}) is committed"
            ),
        )


class ProduceErrorsOutsideTasks:
    """The same for timers and the app's own tasks, whose records no commit waits for: told, unless
    the setting is `stop`.
    """

    def __init__(
        self, word: OnProduceError, principal: str, clock: Clock, fails: Callable[[Exception], None]
    ) -> None:
        self._word, self._principal, self._fails = word, principal, fails
        self._tell = OncePerSecond(clock)

    def refused(self, tp: TopicPartition, code: int, record: RefusedRecord) -> None:
        """Follow the setting for one record."""
        what = told(tp, code, record, self._principal)
        if self._word is OnProduceError.STOP:
            self._fails(WorldError(what))
        else:
            self._tell(tp.topic, f"{what}: it is lost")
