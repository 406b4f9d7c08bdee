"""Active task: the Task, and the data loop's figures for feeding and committing that Task."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from streamsx.model import TaskId, TopicPartition
from streamsx.processing.failure_policy import QUIET_S
from streamsx.processing.task import Task
from streamsx.tasks.processing_gap import ProcessingGap

FIRST_RECORDS = 16
"""Records that a task is given at once until their cost is known: at 1 ms each, 500 held the loop
for 0.5 s."""
SILENT_S = 30.0
COST_MIN_S = 1e-9
COST_WEIGHT = 0.3
"""Weight of the newest measurement in the moving average."""


@dataclass(slots=True)
class Active:
    """Active task, owned by the data loop alone.

    The task has something to commit while `task.dirty` is true.
    """

    task: Task
    gap: ProcessingGap
    suspended: bool = False
    """The task is fed nothing more."""
    denied: bool = False
    """The group denied the last commit of the task, and the denial was logged."""
    begins: bool = False
    """The offset at which the task begins is not committed yet."""
    paused: bool = False
    """The task is fed nothing until a commit succeeds."""
    why: str = ""
    """Reason for which the task has stopped; empty while it runs."""
    preloaded: bool = False
    silent: dict[str, float] = field(default_factory=dict)
    """Topics of which some writers have told no time, and the time since when."""
    passed: int = 0
    """Turns in a row whose time was over before it was this task's."""
    first: bool = True
    """The task has processed nothing yet."""
    cost_s: float | None = None
    """Seconds per record; None until the first records are processed."""
    held: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Topics whose last records failed in a row: the position taken, and the time since when."""
    dirty_bytes: float | None = None
    """Bytes per record that the stores of the task hold until a commit; None like `cost_s`."""
    sources: list[TopicPartition] = field(init=False)
    """Partitions that the task reads."""

    def __post_init__(self) -> None:
        self.sources = [TopicPartition(topic, self.id.partition) for topic in self.task.plan.topics]

    @property
    def id(self) -> TaskId:
        return self.task.id

    def ends(self, ends: Mapping[TopicPartition, int]) -> dict[str, int]:
        """Return the end of each store's changelog, out of the acknowledged ends of partitions."""
        changelogs = self.task.plan.changelogs(self.id.partition)
        return {name: ends[tp] for name, tp in changelogs.items() if tp in ends}

    def pass_over(self, now: float, caught_up: Callable[[TopicPartition], bool]) -> None:
        """Give up the failures at the end of each topic that has been quiet for QUIET_S.

        The loop calls this now and then while the task is fed.
        """
        for tp in self.sources:
            topic = tp.topic
            task = self.task
            if not (caught_up(tp) and task.holds(topic)):
                self.held.pop(topic, None)
                continue
            taken, since = self.held.get(topic, (-1, now))
            if taken != task.taken[topic]:
                self.held[topic] = task.taken[topic], now
            elif now - since >= QUIET_S:
                task.give_up(topic)

    def silences(self, now: float) -> Iterator[tuple[str, str]]:
        """Yield, once, topics whose time stands, and the partitions of writers that hold it."""
        for topic, progress in self.task.progress.items():
            if not progress.silent or self.task.stream_time < 0:
                self.silent.pop(topic, None)
            elif now - self.silent.setdefault(topic, now) >= SILENT_S:
                self.silent[topic] = math.inf
                yield topic, ", ".join(str(writer.partition) for writer in progress.silent)

    def took(self, records: int, seconds: float) -> None:
        """Update the average cost of a record.

        The caller leaves out chunks during which a body awaits something foreign.
        """
        cost_s = seconds / records
        if self.cost_s is None:
            self.cost_s = cost_s
        self.cost_s += COST_WEIGHT * (cost_s - self.cost_s)

    def left(self, records: int, dirty_bytes: int) -> None:
        """Update the dirty bytes per record.

        A higher figure counts at once, a lower one through the moving average.

        Args:
            records: how many were processed.
            dirty_bytes: bytes that these records left in the stores.
        """
        each = dirty_bytes / records
        if self.dirty_bytes is None or each > self.dirty_bytes:
            self.dirty_bytes = each
        self.dirty_bytes += COST_WEIGHT * (each - self.dirty_bytes)

    def fills(self, room_bytes: int) -> int:
        """Return the number of records that leave about `room_bytes` in the stores; at least 1."""
        if self.dirty_bytes is None:
            return FIRST_RECORDS
        return max(1, int(room_bytes / max(self.dirty_bytes, 1.0)))

    def affords(self, seconds: float) -> int:
        """Return the number of records that take about so many seconds; at least 1."""
        if self.cost_s is None:
            return FIRST_RECORDS
        return max(1, int(seconds / max(self.cost_s, COST_MIN_S)))
