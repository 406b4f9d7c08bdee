"""processing/failure_policy.py: records in a row that fail."""

from typing import Any

import pytest

from streamsx.config import Retry
from streamsx.errors import RecordTooLarge, ValueRefused
from streamsx.model import TaskId
from streamsx.processing.failure_policy import Failure, FailureAction, FailureStreak, Policy


def failed(streak: FailureStreak, *records: tuple[int, int]) -> list[bool]:
    """Return failed records, each at a stream time of ten times its offset."""
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


def verdict_of(on_error: Any, attempt: int = 1, error: Exception | None = None, **how: Any) -> Any:
    undoes = how.pop("undoes", True)
    failure = Failure(
        TaskId(0, 0), "t", 0, 7, "op", False, error or ValueError("x"), attempt=attempt
    )
    return Policy(on_error, undoes=undoes).verdict(failure, **{"again": True, **how})


def test_record_is_tried_again_until_its_last_try() -> None:
    actions = [verdict_of(Retry(3), attempt).action.value for attempt in (1, 2, 3, 4)]
    assert actions == ["retry", "retry", "dlq", "dlq"]


def test_each_wait_is_about_twice_the_one_before_up_to_a_minute() -> None:
    waits = [verdict_of(Retry(99, 1.0), attempt).wait_s for attempt in (1, 2, 3, 7, 98)]
    for wait_s, about_s in zip(waits, (1, 2, 4, 60, 60), strict=True):
        assert 0.8 * about_s <= wait_s <= min(1.2 * about_s, 60)


def test_jitter_depends_on_the_place() -> None:
    retry = Retry()
    assert len({retry.wait_s(1, f"t-{partition} offset 7") for partition in range(8)}) == 8


@pytest.mark.parametrize(
    "how",
    [
        {"again": False},
        {"known": True},
        {"undoes": False},
        {"error": ValueRefused("set")},
        {"error": RecordTooLarge("x")},
    ],
)
def test_record_is_not_tried_again_in_vain(how: Any) -> None:
    found = verdict_of(Retry(3, then="stop_task"), **how)
    assert (found.action, found.wait_s) == (FailureAction.STOP_TASK, 0)


def test_try_is_undone_whether_or_not_another_follows() -> None:
    assert [verdict_of(Retry(2), attempt).clean for attempt in (1, 2)] == [True, True]
    assert not verdict_of(FailureAction.LOG).clean


def test_streak_with_dead_letters_may_hold_the_position_at_its_last_record_alone() -> None:
    streak = FailureStreak(3)
    failed(streak, (3, 40), (4, 44))
    streak.stand_at(44, 440)
    assert (streak.first, streak.since) == (40, 400)
    streak.buried = True
    streak.stand_at(44, 440)
    assert (streak.first, streak.since, streak.buried) == (44, 440, False)


def test_reason_of_a_failure_is_one_line() -> None:
    error = ValueError("first line\nsecond line")
    failure = Failure(TaskId(0, 1), "lines", 1, 7, "split", False, error)
    assert failure.reason == r"ValueError: first line\nsecond line"
