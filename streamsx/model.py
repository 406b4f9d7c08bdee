"""Frozen values that every layer speaks of: tasks, partitions, roles, headers. No behaviour
but how they are written."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import Enum
from itertools import groupby
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
        with suppress(ValueError):
            subtopology, _, partition = text.partition("_")
            found = cls(int(subtopology), int(partition))
            if str(found) == text and min(found) >= 0:
                return found
        raise ValueError(f"not a task: {text!r}: expected SUBTOPOLOGY_PARTITION, such as 0_3")


def brief(tasks: Iterable[TaskId | str]) -> str:
    """`0_0-3,5 1_2`: the partitions of each sub-topology, runs of them as first and last. `tasks`:
    sorted, as ids or as written."""
    pairs = (str(task).split("_") for task in tasks)
    return " ".join(
        f"{subtopology}_{','.join(_runs(int(partition) for _, partition in group))}"
        for subtopology, group in groupby(pairs, lambda pair: pair[0])
    )


def _runs(numbers: Iterable[int]) -> Iterator[str]:
    """Ascending numbers, neighbours together."""
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        yield str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


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

    @property
    def follows(self) -> bool:
        """It restores what runs elsewhere."""
        return self is not Role.ACTIVE
