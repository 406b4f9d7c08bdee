"""group/partition_counts.py: growth at once, less only when nothing else is heard for a while."""

from streamsx.group.partition_counts import PartitionCounts
from streamsx.topology.presence import GONE_AFTER_S


def heard(counts: PartitionCounts, now: float, **found: int) -> dict[str, int]:
    return counts.heard(now, found)


def test_what_is_heard_first_is_known_and_growth_too() -> None:
    counts = PartitionCounts()
    assert heard(counts, 0.0, a=4, b=2) == {"a": 4, "b": 2}
    assert heard(counts, 5.0, a=4, b=2) == {}
    assert heard(counts, 10.0, a=4, b=4) == {"b": 4}
    assert counts.known == {"a": 4, "b": 4}


def test_a_topic_of_which_nothing_was_ever_heard_has_no_count_for_a_while() -> None:
    """It was just created, and not every broker knows."""
    counts = PartitionCounts()
    assert heard(counts, 0.0, a=0) == {}
    assert counts.known == {}
    assert heard(counts, GONE_AFTER_S, a=0) == {"a": 0}


def test_a_broker_that_has_just_started_takes_no_topic_away() -> None:
    counts = PartitionCounts()
    heard(counts, 0.0, a=4)
    for now in range(0, 100, 5):
        assert heard(counts, now + 1.0, a=0) == heard(counts, now + 1.5, a=3) == {}
        assert heard(counts, now + 2.0, a=4) == {}
    assert counts.known == {"a": 4}


def test_a_topic_is_gone_when_nobody_has_known_it_for_long_enough_and_comes_back_at_once() -> None:
    counts = PartitionCounts()
    heard(counts, 0.0, a=4)
    assert heard(counts, 5.0, a=0) == {}
    assert heard(counts, 5.0 + GONE_AFTER_S, a=0) == {"a": 0}
    assert heard(counts, 30.0, a=0) == {}
    assert heard(counts, 40.0, a=2) == {"a": 2}


def test_a_topic_made_anew_with_fewer_partitions_has_fewer() -> None:
    counts = PartitionCounts()
    heard(counts, 0.0, a=4)
    assert heard(counts, 5.0, a=2) == {}
    assert heard(counts, 5.0 + GONE_AFTER_S, a=2) == {"a": 2}


def test_a_topic_that_could_not_be_asked_for_is_as_it_was() -> None:
    counts = PartitionCounts()
    heard(counts, 0.0, a=4)
    heard(counts, 5.0, a=0)
    assert heard(counts, 5.0 + GONE_AFTER_S) == {}
    assert counts.known == {"a": 4}
