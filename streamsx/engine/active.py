"""An active task at work: the Task, and what the loop knows about feeding and committing it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from streamsx.engine.gaps import Gap
from streamsx.engine.pump import LoopPump
from streamsx.model import TaskId, TopicPartition
from streamsx.task.task import Task

FIRST_COST_S = 10e-6
"""Per record, until the first chunk has been measured."""
COST_WEIGHT = 0.3
"""Of the newest measurement in the moving average."""


class Stage(Enum):
    """Where the commit cycle has it."""

    FREE = auto()
    SEALING = auto()
    WRITING = auto()


@dataclass(slots=True)
class Active:
    """One owner: the data loop. `task.dirty`: it has something to commit."""

    task: Task
    pump: LoopPump
    gap: Gap
    stage: Stage = Stage.FREE
    suspended: bool = False
    """It is fed nothing more."""
    denied: bool = False
    """Its last commit was, and that was told."""
    paused: bool = False
    """It is fed nothing until a commit is taken."""
    preloaded: bool = False
    first: bool = True
    """Nothing was processed yet."""
    cost_s: float = FIRST_COST_S
    sources: list[TopicPartition] = field(init=False)
    """What it reads."""
    _given: int = 0
    _spent_s: float = 0.0

    def __post_init__(self) -> None:
        self.sources = [TopicPartition(topic, self.id.partition) for topic in self.task.plan.topics]

    @property
    def id(self) -> TaskId:
        return self.task.id

    def ends(self, ends: Mapping[TopicPartition, int]) -> dict[str, int]:
        """Per store, out of the acknowledged ends of all partitions."""
        changelogs = (
            (node.name, TopicPartition(node.changelog, self.id.partition))
            for node in self.task.plan.stores
        )
        return {name: ends[tp] for name, tp in changelogs if tp in ends}

    def given(self, records: int) -> None:
        """So many were handed to the bodies; what they cost shows when they ask for more."""
        self._given += records

    def measure(self) -> None:
        """Take what the bodies spent since the last time into the average."""
        spent = self.pump.spent_s - self._spent_s
        if self._given and spent > 0:
            self.cost_s += COST_WEIGHT * (spent / self._given - self.cost_s)
            self._spent_s, self._given = self.pump.spent_s, 0
