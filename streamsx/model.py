"""Frozen values that every layer speaks of: tasks, partitions, roles, headers. No behaviour."""

from enum import Enum
from typing import Final, NamedTuple

Buffer = bytes | bytearray | memoryview
Headers = list[tuple[str, bytes | None]]
"""Of one record, in the order they came. Values may be null."""
BATCH_BYTES_MAX: Final = 1_000_000
"""Uncompressed; Kafka's default for a topic is 1,048,588 with the header."""
RECORD_BYTES_MAX: Final = BATCH_BYTES_MAX - 100
"""Key and value; the rest is around them."""


class TaskId(NamedTuple):
    """One sub-topology on one partition number; written `SUBTOPOLOGY_PARTITION`, as in `1_0`."""

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> "TaskId":
        """The id that `str` wrote. Raises ValueError for anything else."""
        subtopology, _, partition = text.partition("_")
        return cls(int(subtopology), int(partition))


class TopicPartition(NamedTuple):
    """One partition of a topic; written `TOPIC-PARTITION`, as Kafka's own tools do."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Role(Enum):
    """What a worker holds a task as."""

    ACTIVE = "active"
    STANDBY = "standby"
    LEARNER = "learner"
