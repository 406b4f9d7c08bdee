"""Rerun: the order that a task leaves behind when its work since the last commit is dropped.

The task that ended makes the order (`Task.rerun`). Its driver drops the uncommitted work
(`Task.aborted`) and makes another task from the last commit, and that task takes the order. Worker,
test driver and Spark go back in this one way; docs/architecture.md has the sequence.

    the reason                                                the next task
    a record has failed (RecordUndone)                        runs the interval carefully, and on
    a seal has refused a value (ValueRefused)                 runs the interval carefully
    the careful run has not found the value's record, or a
    broker refuses a record for good (TaskStopped)            stops at the last commit

Not here: reading the rows to put back, the closing and opening of tasks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from streamsx.errors import TaskStopped, ValueRefused
from streamsx.processing.merge import Turn


class RecordUndone(ValueRefused):
    """Failure of a record that ends its task, so that what the record has changed is dropped.

    Nobody has been told of the failure: the record fails again in the careful run, which tells. A
    kind of ValueRefused, because whoever seals a task goes back after either.
    """


StoreRows = Mapping[str, Mapping[bytes, bytes | None]]
"""Rows by the name of their store."""
Begins = Mapping[str, tuple[int, Mapping[str, int]]]
"""Per topic, a position, and the positions of the readers that are ahead."""
Reached = Mapping[str, Mapping[str, int]]
"""Per topic, the offset below which each reader has done all."""
Failures = Mapping[tuple[int, bool], int]
"""Numbers of failures, by the offset of the record and whether it was a result that failed."""
ToldFailures = Mapping[str, Mapping[str, Failures]]
"""Per topic and reader, failures that were told."""
Tries = Mapping[tuple[str, str], tuple[int, int]]
"""By topic and operator, the offset of the record that is tried again, and the tries so far."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """Interval to run again from the last commit, and the manner of the run.

    `until`: per topic, the offset behind the interval. `careful`: each record is run by itself, and
    each value encoded as the record sets it, or at the record's end if the care `lasts`. So the
    record of a value that cannot be encoded is found, and fails alone. `stop`: the reason for which
    the task stops at the last commit instead of running; `stop_told`: it had stopped before, and
    the log has the reason. `rows`: per store, the committed values of the rows that have left for
    the changelog since. A restore reads the later values, so the next commit puts these back. Only
    a task that begins at the same commit may do so: behind it, the rows of the interval are
    committed. `begins`: per topic, the positions of all readers at that commit. `tries`: records
    that are tried again, and `wait_s`: the wait ahead of the run for that. `turns`: the topics in
    the order of the first run. Whatever has arrived since comes behind them, so each record meets
    the rows that it met before, and makes the outputs that have left.
    """

    until: Mapping[str, int] = field(default_factory=dict)
    careful: bool = False
    stop: TaskStopped | None = None
    stop_told: bool = False
    rows: StoreRows = field(default_factory=dict)
    begins: Begins = field(default_factory=dict)
    lasts: bool = False
    reached: Reached = field(default_factory=dict)
    high: Mapping[str, int] = field(default_factory=dict)
    told: ToldFailures = field(default_factory=dict)
    tries: Tries = field(default_factory=dict)
    wait_s: float = 0.0
    turns: Sequence[Turn] = ()

    def rows_at(self, begins: Begins) -> StoreRows:
        """Return the rows to put back, for a task that begins at a place."""
        return self.rows if begins == self.begins else {}

    def careful_at(self, positions: Mapping[str, int]) -> bool:
        """Return whether a task at these positions still has to run record by record.

        A topic that the task no longer reads counts as run.
        """
        left = (positions.get(topic, end) < end for topic, end in self.until.items())
        return self.careful and any(left)


NO_RERUN: Final = Rerun()
"""Order for a task that follows none here, or one that ended with all of its work committed."""


def rerun_after(
    why: ValueRefused | TaskStopped,
    taken: Mapping[str, int],
    rows: StoreRows,
    begins: Begins,
    reached: Reached = MappingProxyType({}),
    high: Mapping[str, int] = MappingProxyType({}),
    told: ToldFailures = MappingProxyType({}),
) -> Rerun:
    """Return the order of a task that ends for a reason.

    Args:
        why: the reason.
        taken: per topic, the offset behind the records that the task was given.
        rows: the rows to put back.
        begins: the place of the last commit.
        reached: per topic and reader, the offset below which all is done.
        high: per topic, the highest timestamp taken before the last commit.
        told: per topic and reader, failures since the last commit that were told.
    """
    if isinstance(why, TaskStopped):
        return Rerun(stop=why, rows=rows, begins=begins)
    made = Rerun(dict(taken), careful=True, rows=rows, begins=begins)
    if not isinstance(why, RecordUndone):
        return made
    return replace(made, lasts=True, reached=reached, high=high, told=told)
