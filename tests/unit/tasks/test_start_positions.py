"""tasks/start_positions.py: where a partition without a committed offset begins."""

import pytest

from streamsx.errors import StateOnSpark
from streamsx.model import TopicPartition
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.tasks.start_positions import OffsetReset, other, refuse_on_spark

TP = TopicPartition("in", 0)
START, END = 3, 9


@pytest.mark.parametrize(
    ("reset", "topic", "partition", "begins"),
    [
        (OffsetReset(), "in", 0, START),
        (OffsetReset(latest=True), "in", 0, END),
        (OffsetReset(latest=True, own={"own"}), "own", 0, START),
        (OffsetReset(latest=True, own={"own"}), "in", 0, END),
        (OffsetReset(latest=True, counts={"in": 2}), "in", 1, END),
        (OffsetReset(latest=True, counts={"in": 2}), "in", 2, START),
        (OffsetReset(latest=True, counts={"in": 2}), "other", 2, END),
    ],
)
def test_partition_without_offset_starts_by_reset_rule(
    reset: OffsetReset, topic: str, partition: int, begins: int
) -> None:
    assert reset.offset(TopicPartition(topic, partition), START, END) == begins


@pytest.mark.parametrize(
    ("offset", "done", "same", "goes_on", "says"),
    [
        (1, 1, True, START, "records deleted unread: in-0: 2 from offset 1 on"),
        (5, 5, True, 5, ""),
        (12, 12, True, END, "it ends at 9, the task was at 12"),
        (12, 7, True, 7, "it ends at 9, the task was at 12"),
        (12, 1, True, START, "it ends at 9, the task was at 12"),
        (12, 12, False, START, "or the topic was deleted and created again: continuing at 3"),
    ],
)
def test_out_of_range_task_resumes_with_least_loss_and_repetition(
    *, offset: int, done: int, same: bool, goes_on: int, says: str
) -> None:
    found = OffsetReset().out_of_range(TP, offset, START, END, done=done, same=same)
    assert found.offset == goes_on
    assert says in found.why


@pytest.mark.parametrize(
    ("before", "now", "two"),
    [("a", "b", True), ("a", "a", False), (None, "a", False), ("a", None, False)],
)
def test_topic_ids_differ_only_where_both_are_known(
    before: str | None, now: str | None, *, two: bool
) -> None:
    assert other(before, now) is two


def test_offset_from_which_spark_continues_is_refused() -> None:
    own = OffsetMetadata(7)
    refuse_on_spark("shop", [own, OffsetMetadata(7, spark="")])
    with pytest.raises(StateOnSpark, match=r"handed over: shop: .* --state s3://bucket/a"):
        refuse_on_spark("shop", [own, OffsetMetadata(7, spark="s3://bucket/a")])
