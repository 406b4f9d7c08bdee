"""What becomes of a record that fails, and how a driver hears of it.

Not here: telling anybody; a driver limits and counts what it is told.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from streamsx.model import TaskId


class Word(Enum):
    """Values are those of the settings `on_error` and `on_decode_error`."""

    LOG = "log"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Failure:
    """One record that failed. `operator`: the agent, or the kind of step; `decode`: its bytes."""

    task: TaskId
    topic: str
    partition: int
    offset: int
    operator: str
    decode: bool
    error: Exception

    def __str__(self) -> str:
        what = "record cannot be decoded" if self.decode else "record failed"
        where = f"{self.topic}-{self.partition} offset {self.offset}, task {self.task}"
        return f"{what}: {where}, {self.operator}: {type(self.error).__name__}: {self.error}"


def nobody(_failure: Failure) -> None:
    """For drivers that look at the counters only."""


@dataclass(frozen=True, slots=True)
class Policy:
    """`report` is told of each failure that does not stop the task."""

    on_error: Word = Word.LOG
    on_decode_error: Word = Word.LOG
    report: Callable[[Failure], None] = nobody

    def stops(self, failure: Failure) -> bool:
        word = self.on_decode_error if failure.decode else self.on_error
        return word is Word.STOP
