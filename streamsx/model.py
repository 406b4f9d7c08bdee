"""Frozen values shared by every layer: tasks, partitions, roles, headers.

The only behaviour is their text form.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from itertools import groupby
from typing import Final, NamedTuple

Buffer = bytes | bytearray | memoryview
Headers = list[tuple[str, bytes | None]]
"""Headers of one record, in the order of arrival; values may be null."""
BATCH_BYTES_MAX: Final = 1_000_000
"""Limit before compression; Kafka's default for a topic is 1,048,588 with the header."""
RECORD_BYTES_MAX: Final = BATCH_BYTES_MAX - 100
"""Limit of key and value; the rest of the batch surrounds them."""


class TaskId(NamedTuple):
    """Id of a task: one sub-topology on one partition number.

    The text form is `SUBTOPOLOGY_PARTITION`, such as `1_0`.
    """

    subtopology: int
    partition: int

    def __str__(self) -> str:
        return f"{self.subtopology}_{self.partition}"

    @classmethod
    def parse(cls, text: str) -> "TaskId":
        """Return the id from the text form.

        Raises:
            ValueError: the text is no task id.
        """
        with suppress(ValueError):
            subtopology, _, partition = text.partition("_")
            found = cls(int(subtopology), int(partition))
            if str(found) == text and min(found) >= 0:
                return found
        raise ValueError(f"not a task: {text!r}: expected SUBTOPOLOGY_PARTITION, such as 0_3")


def brief(tasks: Iterable[TaskId | str]) -> str:
    """Return tasks as `0_0-3,5 1_2`: the partitions of each sub-topology, runs by first and last.

    `tasks`: sorted, as ids or in the text form.
    """
    pairs = (str(task).split("_") for task in tasks)
    return " ".join(
        f"{subtopology}_{','.join(_runs(int(partition) for _, partition in group))}"
        for subtopology, group in groupby(pairs, lambda pair: pair[0])
    )


def _runs(numbers: Iterable[int]) -> Iterator[str]:
    """Yield ascending numbers as text, consecutive numbers as one range."""
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        yield str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}"


class TopicPartition(NamedTuple):
    """Partition of a topic; the text form is `TOPIC-PARTITION`, as in Kafka's own tools."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class OffsetAndMetadata(NamedTuple):
    """Offset to commit for a partition: the next one to read, and the text beside that."""

    offset: int
    metadata: str


Offsets = Mapping[TopicPartition, OffsetAndMetadata]
"""Offsets of one commit, whichever request carries them."""


class Role(Enum):
    """Role in which a worker holds a task."""

    ACTIVE = "active"
    STANDBY = "standby"
    LEARNER = "learner"

    @property
    def follows(self) -> bool:
        """Return whether a copy in this role restores a task that runs elsewhere."""
        return self is not Role.ACTIVE
