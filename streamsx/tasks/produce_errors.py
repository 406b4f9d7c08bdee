"""Setting `on_produce_error`: the consequences of records that a broker has refused for good.

`stop_task` stops the sender of such a record at its last commit, as a row of failures does.
That task alone stands still, and mended code finds everything again. `stop` ends the worker. `log`
passes over the record, with two exceptions that stop the task all the same. A row of a changelog is
never passed over: the table would lose the row at the next restore. A refusal that is not about a
record, such as a missing right, is never passed over either. `dlq` passes over the record as `log`
does, and sends it to the dead-letter topic, with one exception more: a refused dead letter stops
the task, because it would be refused again for ever. `stop_app` ends all workers of the app.

An agent or a flow may have a reaction of its own, which its records carry by their sender. A dead
letter has the task's own sender, and the task's commit waits for it.

Not here: finding the refused records of a batch (`client/rejected_batch`).
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Final, Protocol

from streamsx.client.rejected_batch import OF_RECORDS, RefusedRecord, Sender, refusal_message
from streamsx.clock import Clock
from streamsx.config import Function
from streamsx.errors import (
    AppStopped,
    NotFound,
    RecordRefused,
    TaskStopped,
    UsageError,
    WorldError,
)
from streamsx.journal import LOG, Journal
from streamsx.metrics import Counter, MetricRegistry
from streamsx.model import TaskId, TopicPartition
from streamsx.processing.dead_letters import RefusedOutput, kept_or_not
from streamsx.processing.failure_policy import Failure, first_answer
from streamsx.processing.inbox import Outbox
from streamsx.protocol.error_codes import name_of
from streamsx.tasks.active_task import Active

LOG_EVERY_S = 1.0


class OnProduceError(Enum):
    """Values of the setting `on_produce_error`."""

    STOP_TASK = "stop_task"
    STOP = "stop"
    STOP_APP = "stop_app"
    LOG = "log"
    DLQ = "dlq"


ENDS: Final = {OnProduceError.STOP: WorldError, OnProduceError.STOP_APP: AppStopped}
"""Errors of the reactions that end the worker."""
NO_OFFSET: Final = -1
"""Offset of an output that no log has taken."""


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
        LOG.warning("%s%s.", capital(what), f" (and {more:g} more before it)" if more else "")


def capital(text: str) -> str:
    """Return the text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]


def note_refused(
    journal: Journal,
    tp: TopicPartition,
    code: int,
    record: RefusedRecord,
    action: OnProduceError,
) -> None:
    """Write a refused record to the file of events, with the reaction."""
    sender = record.sender
    journal(
        "refused",
        task=None if sender.task is None else str(sender.task),
        topic=tp.topic,
        partition=tp.partition,
        operator=sender.operator or "",
        error=name_of(code),
        action=action.value,
        records=record.records,
    )


class StopsTask(Protocol):
    """Function that stops a task at the last commit."""

    def __call__(self, task: TaskId, why: TaskStopped, *, puts_back: bool) -> None: ...


class ProduceErrors:
    """Consequences of refused records of tasks; one per worker.

    Args:
        choice: the setting: a word, or a function of the failure.
        current: returns whether a sender belongs to the current run of the task.
        awaits: lets the commit of a task that is on its way wait for the record that was sent last.
        dead_letters: name of the dead-letter topic.
        stops: stops a task at the last commit; `puts_back`: whether the changelogs take rows.
        sends_again: lets a task that begins anew send again what it had sent.
        fails: drops the uncommitted work of a task and ends the worker.
    """

    def __init__(
        self,
        *,
        choice: str | Function,
        principal: str,
        actives: Mapping[TaskId, Active],
        current: Callable[[Sender], bool],
        awaits: Callable[[TaskId], None],
        changelogs: frozenset[str],
        dead_letters: str,
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
        self._awaits = awaits
        self._changelogs = changelogs
        self._dead_letters = dead_letters
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
        """Follow the reaction of its reader, or the setting, for one record of a task."""
        what = refusal_message(tp, code, record, self._principal)
        task = record.sender.task
        assert task is not None, "a record of no task"
        skips = code in OF_RECORDS and tp.topic not in self._changelogs
        active = self._actives.get(task) if self._current(record.sender) else None
        own = record.sender.reaction
        choices = [self._choice] if own is None else [own, self._choice]
        if active is not None and skips:
            word, what = self._asked(choices, active, tp, record, what)
        elif active is None and callable(choices[0]):  # its next run is asked
            word = OnProduceError.STOP_TASK
        else:  # there is no record to ask of
            words = (each for each in choices if not callable(each))
            word = OnProduceError(next(words, OnProduceError.STOP_TASK))
        note_refused(self._journal, tp, code, record, word)
        if word is OnProduceError.LOG and skips:
            self._log(tp.topic, f"{what}: it is skipped", record.records)
        elif active is None:
            # The task has ended or begun anew since, so its next run sends the record again.
            self._sends_again(task)
            self._journal("error", what=what, where=f"task {task}")
        elif word is OnProduceError.DLQ and skips and tp.topic != self._dead_letters:
            self._bury(active, tp, code, record, what)
        elif end := ENDS.get(word):
            self._fails(task, end(what))
        else:
            self._stop(active, what, tp.topic, skips=skips)

    def _asked(
        self, choices: Iterable[object], active: Active, tp: TopicPartition,
        record: RefusedRecord, what: str,
    ) -> tuple[OnProduceError, str]:  # fmt: skip
        """Return the first word of the choices, and the event with what became of a call.

        A function that raises, or returns anything else, stops the task: the record is not lost.
        """
        operator = operator_of(record.sender, active)
        error = RecordRefused(what)
        place = active.id, *tp, NO_OFFSET, operator
        try:
            failure = Failure(*place, decode=False, error=error, record=record.record)
            return OnProduceError(first_answer((*choices, OnProduceError.STOP_TASK), failure)), what
        except Exception as failed:  # of the user's function
            note = f"{what} (its on_produce_error failed: {type(failed).__name__}: {failed})"
            return OnProduceError.STOP_TASK, note

    def _bury(
        self, active: Active, tp: TopicPartition, code: int, record: RefusedRecord, what: str
    ) -> None:
        """Send a refused record to the dead-letter topic, ahead of the commit of its task.

        A record for which that topic has no room either is logged, as a failed record is: its task
        would meet it again at each start.
        """
        assert record.record is not None, "a record that is refused for itself"
        operator = operator_of(record.sender, active)
        output = RefusedOutput(tp, name_of(code), what, record.record, active.id, operator)
        try:
            outcome = kept_or_not(output, self._dead_letters, active.task.outbox)
        except NotFound as error:
            self._fails(active.id, UsageError(f"{error} ({what})"))
            return
        self._awaits(active.id)
        self._log(tp.topic, f"{what}: {outcome}", record.records)

    def _stop(self, active: Active, what: str, topic: str, *, skips: bool) -> None:
        task = active.id
        done = active.task.committed_at.positions
        at = ", ".join(f"{topic}-{task.partition} {offset}" for topic, offset in done.items())
        more = ", or set on_produce_error=log to skip such records" if skips else ""
        self._stops(
            task,
            TaskStopped(
                f"task stopped: {task}: {what}, and start again{more}; records after its last "
                f"commit ({at}) are not committed"
            ),
            puts_back=topic not in self._changelogs,
        )


def operator_of(sender: Sender, active: Active) -> str:
    """Return the agent or flow that has sent a record; empty if it may be one of several."""
    readers = {name for source in active.task.plan.sources for name in source.readers.values()}
    return sender.operator or (readers.pop() if len(readers) == 1 else "")


class ProduceErrorsOutsideTasks:
    """Consequences of refused records of timers and the app's own tasks.

    No commit waits for these records, so a refusal is only logged, unless the setting ends the
    worker. Under `dlq` the record is sent to the dead-letter topic, unless it comes from there.

    Args:
        choice: the setting. A function is not asked, because there is no task: the record is lost.
        outbox: returns the outbox of dead letters.
    """

    def __init__(
        self, choice: str | Function, principal: str, clock: Clock,
        fails: Callable[[Exception], None], registry: MetricRegistry, *,
        dead_letters: str, outbox: Callable[[], Outbox], journal: Journal,
    ) -> None:  # fmt: skip
        self._choice = OnProduceError.STOP_TASK if callable(choice) else OnProduceError(choice)
        self._dead_letters = dead_letters
        self._outbox = outbox
        self._journal = journal
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
        note_refused(self._journal, tp, code, record, self._choice)
        if end := ENDS.get(self._choice):
            self._fails(end(what))
            return
        outcome = "it is lost"
        sent = record.record
        buries = self._choice is OnProduceError.DLQ and tp.topic != self._dead_letters
        if buries and sent is not None and code in OF_RECORDS:
            output = RefusedOutput(tp, name_of(code), what, sent)
            try:
                outcome = kept_or_not(output, self._dead_letters, self._outbox())
            except NotFound as error:
                outcome = f"{error}: it is lost"
        self._log(tp.topic, f"{what}: {outcome}", record.records)
