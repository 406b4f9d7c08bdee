"""tasks/processing_gap.py: gaps in which a task with input processes nothing."""

from streamsx.tasks.processing_gap import ProcessingGap


def test_time_without_input_is_no_gap() -> None:
    gap = ProcessingGap()
    gap.processed(10.0, more=False)
    gap.waits(90.0, 0.0)
    gap.processed(90.5, more=False)
    assert gap.taken(200.0) == 0.5


def test_leftover_input_starts_the_next_gap() -> None:
    gap = ProcessingGap()
    gap.processed(10.0, more=True)
    gap.processed(13.0, more=False)
    assert gap.taken(20.0) == 3.0


def test_delayed_record_counts_from_creation() -> None:
    gap = ProcessingGap()
    gap.processed(10.0, more=False)
    gap.waits(15.0, 2.0)
    gap.processed(15.0, more=False)
    assert gap.taken(20.0) == 2.0


def test_record_created_before_the_last_one_waits_since_the_last_one() -> None:
    gap = ProcessingGap()
    gap.processed(10.0, more=False)
    gap.waits(10.5, 3.0)
    gap.processed(10.5, more=False)
    assert gap.taken(20.0) == 0.5


def test_record_with_an_old_timestamp_counts_from_arrival() -> None:
    gap = ProcessingGap()
    gap.waits(50.0, 86_400.0)
    gap.processed(50.25, more=False)
    assert gap.taken(60.0) == 0.25


def test_unfinished_gap_is_counted_once() -> None:
    gap = ProcessingGap()
    gap.waits(5.0, 0.0)
    assert gap.taken(8.0) == 3.0
