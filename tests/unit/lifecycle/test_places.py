"""lifecycle/places.py: where a partition without a committed offset begins."""

import pytest

from streamsx.lifecycle.places import Reset
from streamsx.model import TopicPartition

START, END = 3, 9


@pytest.mark.parametrize(
    ("reset", "topic", "partition", "begins"),
    [
        (Reset(), "in", 0, START),
        (Reset(latest=True), "in", 0, END),
        (Reset(latest=True, own={"own"}), "own", 0, START),
        (Reset(latest=True, own={"own"}), "in", 0, END),
        (Reset(latest=True, counts={"in": 2}), "in", 1, END),
        (Reset(latest=True, counts={"in": 2}), "in", 2, START),
        (Reset(latest=True, counts={"in": 2}), "other", 2, END),
    ],
)
def test_partition_without_offset_begins_where_the_rule_says(
    reset: Reset, topic: str, partition: int, begins: int
) -> None:
    assert reset.offset(TopicPartition(topic, partition), START, END) == begins
