"""processing/failure_policy.py: records in a row that fail."""

import pytest

from streamsx.processing.failure_policy import FailureStreak


def failed(streak: FailureStreak, *records: tuple[int, int]) -> list[bool]:
    """Each at a stream time of ten times its offset."""
    return [streak.failed(ordinal, offset, 10 * offset) for ordinal, offset in records]


def test_first_failure_of_a_streak_holds_the_position_until_a_later_record() -> None:
    streak = FailureStreak(10)
    assert not streak.lasts(3)
    failed(streak, (3, 40), (4, 44))
    assert [streak.lasts(ordinal) for ordinal in (4, 5, 6)] == [True, True, False]
    assert (streak.first, streak.since) == (40, 400)


def test_holes_in_the_log_do_not_end_a_failure_streak() -> None:
    assert failed(FailureStreak(3), (0, 5), (1, 17), (2, 90)) == [False, False, True]


def test_processed_record_ends_a_failure_streak() -> None:
    streak = FailureStreak(2)
    assert failed(streak, (0, 5), (2, 7), (3, 8)) == [False, False, True]
    assert streak.first == 7


def test_very_first_record_may_begin_a_failure_streak() -> None:
    streak = FailureStreak(2)
    assert failed(streak, (1, 6)) == [False]
    assert (streak.lasts(2), streak.first) == (True, 6)


@pytest.mark.parametrize("limit", [1, 2])
def test_limit_counts_consecutive_failures(limit: int) -> None:
    assert failed(FailureStreak(limit), *((n, n) for n in range(3))).index(True) == limit - 1


def test_streak_without_a_limit_holds_no_position() -> None:
    streak = FailureStreak(None)
    assert failed(streak, *((n, n) for n in range(50))) == [False] * 50
    assert not streak.lasts(50)


def test_reset_streak_holds_no_position() -> None:
    streak = FailureStreak(10)
    failed(streak, (0, 5))
    streak.reset()
    assert not streak.lasts(1)
    assert failed(streak, (1, 6)) == [False]
    assert streak.first == 6
