"""Log lines about failed records and damaged batches.

Of each operator one failed record is logged, and each second the number of further ones. The first
failure of a kind comes with a traceback, if that leads to the user's code. A kind is one operator,
one type of error, and one way through the code. The file of events has each failed record, whatever
the rate.
"""

import asyncio
import logging
from collections import defaultdict
from traceback import walk_tb
from typing import Final

from streamsx.client.fetch_state import BACKOFF_MAX_S
from streamsx.clock import Clock
from streamsx.journal import LOG, Journal
from streamsx.metrics import MetricRegistry
from streamsx.model import TaskId, TopicPartition
from streamsx.operators.operator import Counts
from streamsx.processing.dead_letters import KEPT
from streamsx.processing.failure_policy import Failure, FailureAction

LOG_EVERY_S = 1.0
OUR_PACKAGE: Final = "streamsx."
KINDS_MAX = 100
"""Most tracebacks that are logged; failures of further kinds get one line each."""

SKIPPED: Final = (
    "A record without a key, a value or a time was skipped by %s of task %s, as are all that "
    "follow: streamsx_records_skipped_total counts them."
)
LATE: Final = (
    "A record came too late: its window in %s of task %s had closed. on_late= says what becomes "
    "of such records; without it they are skipped. streamsx_records_late_total counts them. To "
    "wait longer for them give the window or the join more grace=, the table a longer expires=."
)
EMPTY: Final = (
    "A record without a value was skipped, as are all that follow: %s, agent %s. Write "
    "app.topic(..., allow_empty=True) to get None."
)


class FailureReports:
    """Reports of a worker's failed records; one per worker.

    Args:
        row_max: number of records in a row that fail and so stop their task; None: no number does.
    """

    def __init__(
        self,
        clock: Clock,
        registry: MetricRegistry,
        journal: Journal,
        row_max: int | None = None,
    ) -> None:
        self._clock = clock
        self._journal = journal
        self._later = "" if row_max is None else f" The task stops if {row_max} in a row fail."
        self._failed = registry.counter(
            "records_failed_total",
            "Failures on records that did not end the worker.",
            labels=("operator",),
        )
        self._retried = registry.counter(
            "records_retried_total",
            "Tries of records that failed and were followed by another try.",
            labels=("operator",),
        )
        self._retry_logged_at: dict[str, float] = {}
        self._logged_at: dict[str, float] = {}
        self._logged: dict[str, int] = {}
        """Failures of each operator that the log has, alone or in a number."""
        self._newest: dict[str, TopicPartition] = {}
        self._newest_at: dict[str, int] = {}
        """Partition and offset of the newest failure of each operator."""
        self._going: defaultdict[str, set[TaskId]] = defaultdict(set)
        """Tasks that go on after failures of each operator which have no line yet."""
        self._calm: dict[str, bool] = {}
        """Whether the newest failure of an operator is a dead letter of a known kind."""
        self._skipped = registry.counter(
            "records_skipped_total",
            "Records without a key, a value or a time, which an operator with state passed over.",
            labels=("store",),
        )
        self._late = registry.counter(
            "records_late_total",
            "Records that came when all that they belong to had closed.",
            labels=("store",),
        )
        self._untaken: set[tuple[str, str]] = set()
        """Kind and store of records that operators did not take; logged once each."""
        self._kinds: set[object] = set()
        self._empty: set[str] = set()
        """Agents whose topic has a type and had a record without a value; logged once each."""

    def note(self, failure: Failure) -> None:
        """Write a failed record to the file of events.

        A record that fails again, because its task goes back to its last commit, is written again.
        """
        self._journal(
            "failed",
            task=str(failure.task),
            topic=failure.topic,
            partition=failure.partition,
            offset=failure.offset,
            operator=failure.operator,
            exception=failure.exception,
            action=failure.action and failure.action.value,
            attempt=failure.attempt,
        )

    def report(self, failure: Failure) -> None:
        """Log or count a failed record whose policy is not to stop."""
        now = self._clock.now()
        operator = failure.operator
        self._failed.add(1, operator)
        self._newest[operator] = TopicPartition(failure.topic, failure.partition)
        self._newest_at[operator] = failure.offset
        stops = failure.action is FailureAction.STOP_TASK
        if stops:
            for tasks in self._going.values():
                tasks.discard(failure.task)
        error = failure.error if self._is_new(failure) else None
        if error is None and now - self._logged_at.get(operator, -LOG_EVERY_S) < LOG_EVERY_S:
            if not stops:
                self._going[operator].add(failure.task)
            return
        self._logged_at[operator] = now
        self._logged[operator] = self._logged.get(operator, 0) + 1
        kept = failure.kept.startswith(KEPT)
        self._calm[operator] = kept and error is None
        shown = error if leads_to_users_code(failure) else None
        later = "" if stops else self._later
        LOG.log(self._level(operator), "%s%s", told(failure), later, exc_info=shown)

    def _level(self, operator: str) -> int:
        """Return WARNING; INFO for a further record of a known kind that is a dead letter now."""
        return logging.INFO if self._calm.get(operator) else logging.WARNING

    def retried(self, failure: Failure) -> None:
        """Count a try that another one follows; log the first of a record, one a second at most."""
        operator = failure.operator
        self._retried.add(1, operator)
        now = self._clock.now()
        since_s = now - self._retry_logged_at.get(operator, -LOG_EVERY_S)
        if failure.attempt > 1 or since_s < LOG_EVERY_S:
            return
        self._retry_logged_at[operator] = now
        LOG.warning(
            "Record failed and is tried again in %.2g s: %s: %s.",
            failure.wait_s, where(failure), failure.reason,
        )  # fmt: skip

    def passed(self, failure: Failure) -> None:
        """Log once per agent that a record without a value was passed over."""
        if failure.operator in self._empty:
            return
        self._empty.add(failure.operator)
        LOG.warning(EMPTY, failure.place, failure.operator)

    def untaken(self, task: TaskId, store: str, counts: Counts) -> None:
        """Count records that an operator did not take, and log the first of a kind."""
        self._skipped.add(counts.skipped, store)
        self._late.add(counts.late, store)
        for kind, count, text in (
            ("skipped", counts.skipped, SKIPPED),
            ("late", counts.late, LATE),
        ):
            if count and (kind, store) not in self._untaken:
                self._untaken.add((kind, store))
                LOG.warning(text, store, task)

    def _is_new(self, failure: Failure) -> bool:
        """Return whether this failure is the first of a kind, and note the kind.

        Failures of kinds beyond the first KINDS_MAX are never new.
        """
        lines = walk_tb(failure.error.__traceback__)
        way = tuple((frame.f_code.co_filename, line) for frame, line in lines)
        kind = failure.operator, type(failure.error), way
        if kind in self._kinds or len(self._kinds) >= KINDS_MAX:
            return False
        self._kinds.add(kind)
        return True

    async def run(self) -> None:
        """Log the counts every LOG_EVERY_S until cancelled, and then those that are left."""
        try:
            while True:
                await asyncio.sleep(LOG_EVERY_S)
                self._log()
        finally:
            self._log()

    def _log(self) -> None:
        for operator, logged in self._logged.items():
            failed = self._failed.value(operator)
            if failed == logged:
                continue
            self._logged_at[operator] = self._clock.now()
            self._logged[operator] = failed
            LOG.log(self._level(operator), self._more(operator, failed - logged))
            self._going[operator].clear()

    def _more(self, operator: str, count: float) -> str:
        """Return the line about failures that have no line of their own."""
        file = self._journal.file
        each = f"each is in {file}" if file else "start with --events FILE to have each on file"
        records = "1 more record" if count == 1 else f"{count:g} more records"
        place = f"{self._newest[operator]} offset {self._newest_at[operator]}"
        later = self._later if self._going[operator] else ""
        return f"{records} of {operator} failed, the last one at {place}; {each}.{later}"


def leads_to_users_code(failure: Failure) -> bool:
    """Return whether a traceback leads to other code than this package's.

    A value that one of its codecs refuses was never in the user's code.
    """
    frames = [frame for frame, _ in walk_tb(failure.error.__traceback__)]
    modules = [str(frame.f_globals.get("__name__", "")) for frame in frames]
    return not failure.decode or not all(each.startswith(OUR_PACKAGE) for each in modules)


def told(failure: Failure) -> str:
    """Return the sentence about a failed record: what became of it, where, and why."""
    what = "cannot be decoded" if failure.decode else "failed"
    outcome = "stops its task" if failure.action is FailureAction.STOP_TASK else "is skipped"
    if failure.kept.startswith(KEPT):
        outcome = f"was {failure.kept}"
    elif failure.kept:
        outcome = f"is skipped, {failure.kept}"
    return f"Record {what} and {outcome}: {where(failure)}: {failure.reason}."


def where(failure: Failure) -> str:
    """Return the place of a record, and the agent or flow that failed on it."""
    return f"{failure.place}, in {failure.operator}"


def report_damaged(journal: Journal, tp: TopicPartition, offset: int, why: str) -> None:
    """Report a batch that stays damaged: each reader of that log stands still there."""
    what = (
        f"{why}: nothing behind it is read, and it is tried again every {BACKOFF_MAX_S:g} s: let "
        f"a sound replica lead {tp}, or give these records up with kafka-delete-records.sh"
    )
    journal("error", what=what, where=f"{tp} at offset {offset}")
