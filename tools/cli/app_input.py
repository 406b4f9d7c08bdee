"""Progress of an app through its input, as the brokers have it: of each task, and of all. Pure.

Not here: asking the brokers (`lags`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from streamsx.model import TaskId, TopicPartition

if TYPE_CHECKING:
    from streamsx.protocol.commit_metadata import OffsetMetadata


class CommittedOffset(NamedTuple):
    """Offset that a group has committed for a partition, and the metadata beside it."""

    offset: int
    beside: "OffsetMetadata"


class TaskInput(NamedTuple):
    """Progress of a task through its input.

    `lag`: records that the task has not committed, None: not known now. `places`: what the group
    has committed, without the partitions that have no commit.
    """

    lag: int | None
    places: Mapping[TopicPartition, CommittedOffset]

    @property
    def committed_s(self) -> int | None:
        """Return the Unix second of the last commit; None: no commit, or its time is not known."""
        return max((place.beside.committed_s for place in self.places.values()), default=0) or None


class AppInput(NamedTuple):
    """Progress of an app: by task, and of all that its group has committed.

    `lag`, `committed_s`: records of these partitions that are not committed, and the Unix second of
    the last commit; None: not known. `absent`: source topics that are not there.
    """

    tasks: Mapping[TaskId, TaskInput]
    lag: int | None
    committed_s: int | None
    absent: tuple[str, ...] = ()


NOTHING_KNOWN = AppInput({}, None, None)
