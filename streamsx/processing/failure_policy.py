"""Handling of records that fail, and the reports that a driver gets.

A single record that fails is poison: the policy of its kind of failure decides. Records that fail
in a row are a broken deploy: the first of them holds the position while the row lasts, and too many
of them stop their task, so that repaired code finds all of them again. A row at the end of a log is
poison too, once no record has followed for QUIET_S: else the row would hold the position, and be
reported at each start, for as long as the log is quiet.

A record that is tried again counts once, after its last try.

Not here: logging and the clock. The driver limits and counts the reports, and measures time.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from streamsx.config import Function, Retry, decode_reaction, reaction
from streamsx.errors import RecordRefused, RecordTooLarge, ValueRefused
from streamsx.model import Headers, TaskId
from streamsx.operators.operator import Counts
from streamsx.topology.nodes import AS_THE_APP, OnFailure

QUIET_S: Final = 5.0
"""Seconds without a record after which a task passes over the failures at the end of a topic."""


HOPELESS: Final = (ValueRefused, RecordRefused, RecordTooLarge)
"""Errors of a record whose results cannot be kept; another try would make the same results."""


class FailureAction(Enum):
    """Reaction to a failure; values are those of the settings `on_error` and `on_decode_error`."""

    LOG = "log"
    DLQ = "dlq"
    RETRY = "retry"
    STOP_TASK = "stop_task"
    STOP = "stop"
    STOP_APP = "stop_app"


FailureReaction = FailureAction | Retry


def reaction_of(choice: str | Retry) -> FailureReaction:
    """Return the reaction of a setting or an answer."""
    return choice if isinstance(choice, Retry) else FailureAction(choice)


class FailureVerdict(NamedTuple):
    """Decision about a failure. `wait_s`: the wait ahead of the next try, for the action RETRY.

    `clean`: whether nothing of the try may stay, in tables or outputs.
    """

    action: FailureAction
    wait_s: float = 0.0
    clean: bool = False


class FailedRecord(NamedTuple):
    """Bytes of a record that failed, and its timestamp in ms. `value` is None if it is damaged."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers | None


@dataclass(frozen=True, slots=True)
class Failure:
    """Record that failed, as a function of a failure gets it.

    Attributes:
        task: Task of the record, such as `1_0`.
        topic: Topic of the record; for an output that a broker refused the topic that it was for.
        partition: Partition of the record.
        offset: Offset of the record; -1 for an output that a broker refused.
        operator: Agent or step that failed.
        decode: Whether the record's bytes could not be decoded.
        error: The exception.
        record: Key, value, timestamp and headers; None for a result that failed outside of its
            record: when its window closed, say.
        kept: Whether the record is in the dead-letter topic, in words; empty if it is not meant to
            be there.
        action: The reaction, once it is chosen.
        attempt: Number of the try, from 1 on.
        wait_s: Wait ahead of the next try, in seconds; 0 if there is none.
    """

    task: TaskId
    topic: str
    partition: int
    offset: int
    operator: str
    decode: bool
    error: Exception
    record: FailedRecord | None = None
    kept: str = ""
    action: FailureAction | None = None
    attempt: int = 1
    wait_s: float = 0.0

    @property
    def exception(self) -> str:
        """Return the class of the error with its module, as Kafka Streams names exceptions."""
        kind = type(self.error)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        return module + kind.__qualname__

    @property
    def place(self) -> str:
        """Return topic, partition, offset and task, for a log line."""
        return f"{self.topic}-{self.partition} offset {self.offset}, task {self.task}"

    @property
    def reason(self) -> str:
        """Return the error with its notes, in one line."""
        notes = "".join(f" ({note})" for note in getattr(self.error, "__notes__", ()))
        return f"{type(self.error).__name__}: {self.error}{notes}".replace("\n", "\\n")

    def __str__(self) -> str:
        what = "record cannot be decoded" if self.decode else "record failed"
        error = self.reason
        kept = f": {self.kept}" if self.kept else ""
        return f"{what}: {self.place}, {self.operator}: {error}{kept}"


def first_answer(choices: Iterable[object], failure: Failure) -> object:
    """Return the first choice that is not None; a function is asked for its own.

    Errors of the user's functions pass through.
    """
    answers = (choice(failure) if callable(choice) else choice for choice in choices)
    return next((answer for answer in answers if answer is not None), None)


def nobody(_failure: Failure) -> None:
    """Ignore a failure; for drivers that read only the counters."""


def uncounted(_task: TaskId, _store: str, _counts: Counts) -> None:
    """Ignore records that operators did not take."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Policy for failures. `report` is called for each failure that does not end the worker.

    `consecutive_failures_max` is the number of records in a row that fail and stop their task. With
    None no number does, and no position is held. `dead_letters` is the topic of the records whose
    reaction is `DLQ`. `undoes`: whether the driver goes back to the last commit after RecordUndone,
    so that a record that fails leaves nothing in stores.
    """

    on_error: FailureReaction | str | Function = FailureAction.LOG
    """Reaction, word or function of the failure, as the setting; None of a function is `LOG`."""
    on_decode_error: FailureAction | str | Function = FailureAction.LOG
    report: Callable[[Failure], None] = nobody
    consecutive_failures_max: int | None = 10
    passed: Callable[[Failure], None] = nobody
    """Callback for a record without a value that its agent did not ask for."""
    untaken: Callable[[TaskId, str, Counts], None] = uncounted
    """Callback for records that an operator did not take since the last commit, by its store."""
    dead_letters: str = ""
    noted: Callable[[Failure], None] = nobody
    """Callback for each failure, with its action and ahead of it, also if it ends the worker."""

    retried: Callable[[Failure], None] = nobody
    """Callback for each try that another one follows."""

    undoes: bool = False
    whole: bool = False
    """Whether outputs are undone with their record, and those of an interval with the interval,
    as under exactly-once."""
    choices: OnFailure = AS_THE_APP
    """What one agent or flow has chosen in place of `on_error` and `on_decode_error`."""

    @property
    def retries(self) -> bool:
        """Return whether each record that fails is tried again: no function has to be asked."""
        return self.undoes and isinstance(self.choices.error or self.on_error, Retry)

    def verdict(self, failure: Failure, *, again: bool, known: bool = False) -> FailureVerdict:
        """Return the decision about a failure. `again`: whether its reader can stand before it.

        `known`: whether the last try of the record was told before its task went back.

        A driver that does not undo tries nothing again: what the failed try has done would stay.
        """
        chosen = self._reaction(failure)
        if isinstance(chosen, FailureAction):
            return FailureVerdict(chosen)
        clean = again and self.undoes
        last = known or failure.attempt >= chosen.attempts or isinstance(failure.error, HOPELESS)
        if last or not clean:
            return FailureVerdict(FailureAction(chosen.then), clean=clean)
        wait_s = chosen.wait_s(failure.attempt, failure.place)
        return FailureVerdict(FailureAction.RETRY, wait_s, clean=True)

    def _reaction(self, failure: Failure) -> FailureReaction:
        """Return the reaction to a failure.

        A function of the user that raises, or returns anything else, stops the task: the record is
        not lost. The error gets a note about that.
        """
        name, own, usual = (
            ("on_decode_error", self.choices.decode_error, self.on_decode_error)
            if failure.decode
            else ("on_error", self.choices.error, self.on_error)
        )
        parse = decode_reaction if failure.decode else reaction
        try:
            return reaction_of(parse(first_answer((own, usual, FailureAction.LOG), failure)))
        except Exception as error:  # of the user's function
            failure.error.add_note(f"its {name} failed: {type(error).__name__}: {error}")
            return FailureAction.STOP_TASK


class FailureStreak:
    """Row of consecutive records on which one reader failed.

    Records count by ordinal, the number of records given to the reader before, because the offsets
    of a log have holes. A record that succeeds causes no call: a streak is over once a record
    behind the streak has been read.
    """

    __slots__ = ("_count", "_limit", "_next", "_stopped", "buried", "first", "since")

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._count = 0
        self._next = 0
        self._stopped = False
        self.first = -1
        """Offset of the first record of the streak."""
        self.since = -1
        """Stream time before the first record of the streak."""
        self.buried = False
        """Whether a record of the streak is a dead letter."""

    def failed(self, ordinal: int, offset: int, stream_time: int) -> bool:
        """Count a record that failed, and return whether the failure stops the task.

        A stopped streak lasts for good, because a body that catches the error that stopped the task
        goes on behind the record. `stream_time` is the one before the record.
        """
        if ordinal != self._next or not self._count:
            self._count = 0
            self.buried = False
            self.first = offset
            self.since = stream_time
        self._count = self._count + 1
        self._next = ordinal + 1
        self._stopped = self._limit is not None and self._count >= self._limit
        return self._stopped

    def stop(self, ordinal: int, offset: int, stream_time: int) -> None:
        """Count a record that failed, and stop the task whatever the count."""
        self.failed(ordinal, offset, stream_time)
        self._stopped = True

    def stand_at(self, offset: int, stream_time: int) -> None:
        """Hold the position at this record alone, if records in front of it are dead letters."""
        if self.buried:
            self.buried = False
            self.first = offset
            self.since = stream_time

    def passed(self, ordinal: int) -> None:
        """Pass over a record that proves nothing about the code: the streak continues."""
        if ordinal == self._next:
            self._next += 1

    def lasts(self, ordinal: int) -> bool:
        """Return whether offsets from the streak's first record on must not be committed.

        `ordinal` is that of the record at hand, or of the next one.
        """
        if self._stopped:
            return True
        if self._limit is None or not self._count:
            return False
        return ordinal <= self._next

    def reset(self) -> None:
        """Forget the streak, because the records are gone from the log or passed over."""
        self._count = 0
        self._stopped = False


class ResultStreak(FailureStreak):
    """Row of results that failed outside of the block of a record, when a window closed, say.

    Many results may leave at one record, so they do not count by ordinal: the compiled loop sets
    `fine` for each result that succeeds. Such a row holds no position, because closed windows stay
    closed; a row that stops its task sets it back to its last commit.
    """

    __slots__ = ("fine",)

    def __init__(self, limit: int | None) -> None:
        super().__init__(limit)
        self.fine = False

    def failed(self, ordinal: int, offset: int, stream_time: int) -> bool:
        """Count a result that failed, whatever the record at hand; return as for records."""
        ordinal = self._next + self.fine
        self.fine = False
        return super().failed(ordinal, offset, stream_time)
