"""group/partition_counts.py: growth counts at once, a loss only after a while."""

from streamsx.group.partition_counts import PartitionCounts
from streamsx.topology.presence import GONE_AFTER_S


def update(counts: PartitionCounts, now: float, **found: int) -> dict[str, int]:
    return counts.update(now, found)


def test_first_partition_counts_and_growth_are_reported() -> None:
    counts = PartitionCounts()
    assert update(counts, 0.0, a=4, b=2) == {"a": 4, "b": 2}
    assert update(counts, 5.0, a=4, b=2) == {}
    assert update(counts, 10.0, a=4, b=4) == {"b": 4}
    assert counts.known == {"a": 4, "b": 4}


def test_unseen_topic_has_no_count_until_gone_delay() -> None:
    """The topic was just created, and not every broker knows it."""
    counts = PartitionCounts()
    assert update(counts, 0.0, a=0) == {}
    assert counts.known == {}
    assert update(counts, GONE_AFTER_S, a=0) == {"a": 0}


def test_stale_broker_does_not_remove_topic() -> None:
    counts = PartitionCounts()
    update(counts, 0.0, a=4)
    for now in range(0, 100, 5):
        assert update(counts, now + 1.0, a=0) == update(counts, now + 1.5, a=3) == {}
        assert update(counts, now + 2.0, a=4) == {}
    assert counts.known == {"a": 4}


def test_topic_is_gone_after_delay_and_returns_at_once() -> None:
    counts = PartitionCounts()
    update(counts, 0.0, a=4)
    assert update(counts, 5.0, a=0) == {}
    assert update(counts, 5.0 + GONE_AFTER_S, a=0) == {"a": 0}
    assert update(counts, 30.0, a=0) == {}
    assert update(counts, 40.0, a=2) == {"a": 2}


def test_recreated_topic_with_fewer_partitions_shrinks_after_delay() -> None:
    counts = PartitionCounts()
    update(counts, 0.0, a=4)
    assert update(counts, 5.0, a=2) == {}
    assert update(counts, 5.0 + GONE_AFTER_S, a=2) == {"a": 2}


def test_topic_missing_from_answer_keeps_count() -> None:
    counts = PartitionCounts()
    update(counts, 0.0, a=4)
    update(counts, 5.0, a=0)
    assert update(counts, 5.0 + GONE_AFTER_S) == {}
    assert counts.known == {"a": 4}
