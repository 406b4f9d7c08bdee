"""tasks/processing_gap.py: what counts as standing still."""

from streamsx.tasks.processing_gap import ProcessingGap


def test_time_without_input_is_no_gap() -> None:
    gap = ProcessingGap()
    gap.processed(10.0, more=False)
    gap.waits(90.0, 0.0)
    gap.processed(90.5, more=False)
    assert gap.taken(200.0) == 0.5


def test_input_that_is_left_over_begins_the_next_gap() -> None:
    gap = ProcessingGap()
    gap.processed(10.0, more=True)
    gap.processed(13.0, more=False)
    assert gap.taken(20.0) == 3.0


def test_a_record_that_lay_in_the_socket_counts_from_when_it_was_made() -> None:
    gap = ProcessingGap()
    gap.processed(10.0, more=False)
    gap.waits(15.0, 2.0)
    gap.processed(15.0, more=False)
    assert gap.taken(20.0) == 2.0


def test_what_was_made_before_the_last_record_waited_since_then() -> None:
    gap = ProcessingGap()
    gap.processed(10.0, more=False)
    gap.waits(10.5, 3.0)
    gap.processed(10.5, more=False)
    assert gap.taken(20.0) == 0.5


def test_a_record_with_a_time_of_the_past_counts_from_when_it_was_seen() -> None:
    gap = ProcessingGap()
    gap.waits(50.0, 86_400.0)
    gap.processed(50.25, more=False)
    assert gap.taken(60.0) == 0.25


def test_a_gap_that_is_not_over_counts_too_and_is_told_once() -> None:
    gap = ProcessingGap()
    gap.waits(5.0, 0.0)
    assert gap.taken(8.0) == 3.0
