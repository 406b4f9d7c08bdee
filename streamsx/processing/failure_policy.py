"""What becomes of a record that fails, and how a driver hears of it.

One that fails among others that do not is poison: its policy says what becomes of it. Records that
fail in a row are a broken deploy: the first of them holds the position while the row lasts, and
when there are too many their task stops, so that mended code finds all of them again. A row at the
end of a log is poison too once nothing has come behind it for QUIET_S: else it would hold the
position, and be reported at each start, for as long as the log is quiet.

Not here: telling anybody; a driver limits and counts what it is told, and has the clock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from streamsx.model import TaskId

QUIET_S: Final = 5.0
"""Seconds without a record after which a task passes over the failures at the end of a topic."""


class FailureAction(Enum):
    """Values are those of the settings `on_error` and `on_decode_error`."""

    LOG = "log"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Failure:
    """One record that failed. `operator`: the agent whose it was; `decode`: its bytes."""

    task: TaskId
    topic: str
    partition: int
    offset: int
    operator: str
    decode: bool
    error: Exception

    @property
    def place(self) -> str:
        return f"{self.topic}-{self.partition} offset {self.offset}, task {self.task}"

    def __str__(self) -> str:
        what = "record cannot be decoded" if self.decode else "record failed"
        error = f"{type(self.error).__name__}: {self.error}"
        return f"{what}: {self.place}, {self.operator}: {error}"


def nobody(_failure: Failure) -> None:
    """For drivers that look at the counters only."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`report` is told of each failure that does not end the worker.

    `consecutive_failures_max`: so many records in a row that fail stop their task; None: no
    number does, and nothing is held.
    """

    on_error: FailureAction = FailureAction.LOG
    on_decode_error: FailureAction = FailureAction.LOG
    report: Callable[[Failure], None] = nobody
    consecutive_failures_max: int | None = 10
    passed: Callable[[Failure], None] = nobody
    """Told of a record without a value that its agent did not ask for."""

    def stops(self, failure: Failure) -> bool:
        word = self.on_decode_error if failure.decode else self.on_error
        return word is FailureAction.STOP


class FailureStreak:
    """Records in a row that one reader has failed on.

    They are known by their ordinals, the number of records that the reader was given before: a log
    has holes. Nothing is called for a record that does not fail: a streak is over when one behind
    it has been read.
    """

    __slots__ = ("_count", "_limit", "_next", "_stopped", "first", "since")

    def __init__(self, limit: int | None) -> None:
        self._limit, self._count, self._next = limit, 0, 0
        self._stopped = False
        self.first = -1
        """Offset."""
        self.since = -1
        """Stream time before it."""

    def failed(self, ordinal: int, offset: int, stream_time: int) -> bool:
        """Count a record that failed; return whether it is one too many, which stops the task: then
        the streak lasts for good, because a body that catches what stopped its task goes on behind
        the record. `stream_time`: before it.
        """
        if ordinal != self._next or not self._count:
            self._count, self.first, self.since = 0, offset, stream_time
        self._count, self._next = self._count + 1, ordinal + 1
        self._stopped = self._limit is not None and self._count >= self._limit
        return self._stopped

    def passed(self, ordinal: int) -> None:
        """Pass over a record that says nothing about the code: a row goes on behind it."""
        if ordinal == self._next:
            self._next += 1

    def lasts(self, ordinal: int) -> bool:
        """Nothing from its first record on may be committed. `ordinal`: of the record at hand, or
        of the next one.
        """
        if self._limit is None or not self._count:
            return False
        return self._stopped or ordinal <= self._next

    def reset(self) -> None:
        """Forget the streak: its records are gone from the log, or are passed over."""
        self._count, self._stopped = 0, False
