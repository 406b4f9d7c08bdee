"""An active task at work: the Task, and what the loop knows about feeding and committing it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from streamsx.model import TaskId, TopicPartition
from streamsx.processing.failure_policy import QUIET_S
from streamsx.processing.task import Task
from streamsx.tasks.processing_gap import ProcessingGap

FIRST_RECORDS = 16
"""Of a task, until it is known what they cost: at 1 ms each, 500 held the loop for 0.5 s."""
COST_MIN_S = 1e-9
COST_WEIGHT = 0.3
"""Of the newest measurement in the moving average."""


@dataclass(slots=True)
class Active:
    """One owner: the data loop. `task.dirty`: it has something to commit."""

    task: Task
    gap: ProcessingGap
    suspended: bool = False
    """It is fed nothing more."""
    denied: bool = False
    """Its last commit was, and that was told."""
    begins: bool = False
    """The group does not have yet where it begins."""
    paused: bool = False
    """It is fed nothing until a commit is taken."""
    why: str = ""
    """It has stopped."""
    preloaded: bool = False
    first: bool = True
    """Nothing was processed yet."""
    cost_s: float | None = None
    """Per record; None until the first ones are through."""
    held: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Topics whose last records failed in a row: what was taken of them, and since when."""
    dirty_bytes: float | None = None
    """Per record, that its stores hold until they are committed; None as `cost_s`."""
    sources: list[TopicPartition] = field(init=False)
    """What it reads."""

    def __post_init__(self) -> None:
        self.sources = [TopicPartition(topic, self.id.partition) for topic in self.task.plan.topics]

    @property
    def id(self) -> TaskId:
        return self.task.id

    def ends(self, ends: Mapping[TopicPartition, int]) -> dict[str, int]:
        """Per store, out of the acknowledged ends of all partitions."""
        changelogs = self.task.plan.changelogs(self.id.partition)
        return {name: ends[tp] for name, tp in changelogs.items() if tp in ends}

    def pass_over(self, now: float, caught_up: Callable[[TopicPartition], bool]) -> None:
        """Give up the failures at the end of each topic that has been quiet for QUIET_S. Called now
        and then, while it is fed.
        """
        for tp in self.sources:
            topic, task = tp.topic, self.task
            if not (caught_up(tp) and task.holds(topic)):
                self.held.pop(topic, None)
                continue
            taken, since = self.held.get(topic, (-1, now))
            if taken != task.taken[topic]:
                self.held[topic] = task.taken[topic], now
            elif now - since >= QUIET_S:
                task.give_up(topic)

    def took(self, records: int, seconds: float) -> None:
        """So much for so many, into the average; not what ran beside somebody's foreign await."""
        cost_s = seconds / records
        if self.cost_s is None:
            self.cost_s = cost_s
        self.cost_s += COST_WEIGHT * (cost_s - self.cost_s)

    def left(self, records: int, dirty_bytes: int) -> None:
        """Take in what so many records left in its stores; more counts at once, less in time."""
        each = dirty_bytes / records
        if self.dirty_bytes is None or each > self.dirty_bytes:
            self.dirty_bytes = each
        self.dirty_bytes += COST_WEIGHT * (each - self.dirty_bytes)

    def fills(self, room_bytes: int) -> int:
        """Return how many records leave about so much in its stores; at least one."""
        if self.dirty_bytes is None:
            return FIRST_RECORDS
        return max(1, int(room_bytes / max(self.dirty_bytes, 1.0)))

    def affords(self, seconds: float) -> int:
        """Records that take about so long; at least one."""
        if self.cost_s is None:
            return FIRST_RECORDS
        return max(1, int(seconds / max(self.cost_s, COST_MIN_S)))
