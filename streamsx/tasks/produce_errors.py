"""Setting `on_produce_error`: the consequences of records that a broker has refused for good.

`stop_task` stops the sender of such a record at its last commit, as a row of failures does.
That task alone stands still, and mended code finds everything again. `stop` ends the worker. `log`
passes over the record, with two exceptions that stop the task all the same. A row of a changelog is
never passed over: the table would lose the row at the next restore. A refusal that is not about a
record, such as a missing right, is never passed over either.

Not here: finding the refused records of a batch (`client/rejected_batch`).
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol

from streamsx.client.rejected_batch import OF_RECORDS, RefusedRecord, Sender, refusal_message
from streamsx.clock import Clock
from streamsx.errors import TaskStopped, WorldError
from streamsx.journal import LOG, Journal
from streamsx.metrics import Counter, MetricRegistry
from streamsx.model import TaskId, TopicPartition
from streamsx.tasks.active_task import Active

LOG_EVERY_S = 1.0


class OnProduceError(Enum):
    """Values of the setting `on_produce_error`."""

    STOP_TASK = "stop_task"
    STOP = "stop"
    LOG = "log"


class OncePerSecond:
    """Log of at most one line a second for each topic; the next line counts those left out.

    Args:
        counter: counts the records of each topic.
    """

    def __init__(self, clock: Clock, counter: Counter) -> None:
        self._clock = clock
        self._counter = counter
        self._logged_at: dict[str, float] = {}
        self._logged: dict[str, int] = {}
        """Records of each topic that the log has, alone or in a number."""

    def __call__(self, topic: str, what: str, records: int) -> None:
        """Count some records of a topic, and log what became of them."""
        self._counter.add(records, topic)
        now = self._clock.now()
        if now - self._logged_at.get(topic, -LOG_EVERY_S) < LOG_EVERY_S:
            return
        count = self._counter.value(topic)
        more = count - self._logged.get(topic, 0) - records
        self._logged[topic] = count
        self._logged_at[topic] = now
        LOG.warning("record_refused %s%s", what, f" (and {more} more before it)" if more else "")


class StopsTask(Protocol):
    """Function that stops a task at the last commit."""

    def __call__(self, task: TaskId, why: TaskStopped, *, puts_back: bool) -> None: ...


class ProduceErrors:
    """Consequences of refused records of tasks; one per worker.

    Args:
        current: returns whether a sender belongs to the current run of the task.
        stops: stops a task at the last commit; `puts_back`: whether the changelogs take rows.
        sends_again: lets a task that begins anew send again what it had sent.
        fails: drops the uncommitted work of a task and ends the worker.
    """

    def __init__(
        self,
        *,
        choice: OnProduceError,
        principal: str,
        actives: Mapping[TaskId, Active],
        current: Callable[[Sender], bool],
        changelogs: frozenset[str],
        journal: Journal,
        clock: Clock,
        registry: MetricRegistry,
        stops: StopsTask,
        sends_again: Callable[[TaskId], None],
        fails: Callable[[TaskId, Exception], None],
    ) -> None:
        self._choice = choice
        self._principal = principal
        self._actives = actives
        self._current = current
        self._changelogs = changelogs
        self._journal = journal
        self._stops = stops
        self._sends_again = sends_again
        self._fails = fails
        passed_over = registry.counter(
            "refused_records_passed_over_total",
            "Records of tasks that brokers refused and that were passed over.",
            labels=("topic",),
        )
        self._log = OncePerSecond(clock, passed_over)

    def refused(self, tp: TopicPartition, code: int, record: RefusedRecord) -> None:
        """Follow the setting for one record of a task."""
        what = refusal_message(tp, code, record, self._principal)
        task = record.sender.task
        assert task is not None, "a record of no task"
        skips = code in OF_RECORDS and tp.topic not in self._changelogs
        if self._choice is OnProduceError.LOG and skips:
            self._log(tp.topic, f"{what}: it is passed over", record.records)
        elif (active := self._actives.get(task)) is None or not self._current(record.sender):
            # The task has ended or begun anew since, so its next run sends the record again.
            self._sends_again(task)
            self._journal("error", what=what, where=f"task {task}")
        elif self._choice is OnProduceError.STOP:
            self._fails(task, WorldError(what))
        else:
            self._stop(active, what, tp.topic, skips=skips)

    def _stop(self, active: Active, what: str, topic: str, *, skips: bool) -> None:
        task = active.id
        done = active.task.committed_at.positions
        at = ", ".join(f"{topic}-{task.partition} {offset}" for topic, offset in done.items())
        more = ", or set on_produce_error=log to pass over such records" if skips else ""
        self._stops(
            task,
            TaskStopped(
                f"task stopped: {task}: {what}, and start again{more}; nothing behind its last "
                f"commit ({at}) is committed"
            ),
            puts_back=topic not in self._changelogs,
        )


class ProduceErrorsOutsideTasks:
    """Consequences of refused records of timers and the app's own tasks.

    No commit waits for these records, so a refusal is only logged, unless the setting is `stop`.
    """

    def __init__(
        self, choice: OnProduceError, principal: str, clock: Clock,
        fails: Callable[[Exception], None], registry: MetricRegistry,
    ) -> None:  # fmt: skip
        self._choice = choice
        self._principal = principal
        self._fails = fails
        lost = registry.counter(
            "refused_records_lost_total",
            "Records of timers and of the app's own tasks that brokers refused.",
            labels=("topic",),
        )
        self._log = OncePerSecond(clock, lost)

    def refused(self, tp: TopicPartition, code: int, record: RefusedRecord) -> None:
        """Follow the setting for one record."""
        what = refusal_message(tp, code, record, self._principal)
        if self._choice is OnProduceError.STOP:
            self._fails(WorldError(what))
        else:
            self._log(tp.topic, f"{what}: it is lost", record.records)
