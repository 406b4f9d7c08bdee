"""processing/rerun.py: data that an ending task leaves to the next one at the last commit."""

import pytest

from streamsx.errors import TaskStopped, ValueRefused
from streamsx.processing.rerun import NO_RERUN, Rerun, rerun_after


def test_refused_value_makes_the_interval_run_again_carefully() -> None:
    taken = {"words": 7}
    rerun = rerun_after(ValueRefused("no"), taken, {}, {})
    taken["words"] = 9
    assert rerun == Rerun({"words": 7}, careful=True)


def test_stopped_task_runs_nothing_again() -> None:
    why = TaskStopped("refused")
    rerun = rerun_after(why, {"words": 7}, {}, {})
    assert rerun.stop is why
    assert not rerun.careful_at({"words": 0})


@pytest.mark.parametrize(
    ("positions", "careful"),
    [
        ({"words": 0, "lines": 0}, True),
        ({"words": 7, "lines": 2}, True),
        ({"words": 6, "lines": 3}, True),
        ({"words": 7, "lines": 3}, False),
        ({"words": 9, "lines": 9}, False),
    ],
)
def test_run_is_careful_until_every_topic_is_behind_the_interval(
    positions: dict[str, int], *, careful: bool
) -> None:
    assert Rerun({"words": 7, "lines": 3}, careful=True).careful_at(positions) is careful


def test_topic_that_the_task_no_longer_reads_holds_nothing_up() -> None:
    """Its partition may have gone while the task was closed."""
    rerun = Rerun({"words": 7, "lines": 3}, careful=True)
    assert not rerun.careful_at({"words": 7})
    assert rerun.careful_at({"words": 6})


def test_topic_that_the_task_reads_since_then_is_no_part_of_the_interval() -> None:
    assert not Rerun({"words": 7}, careful=True).careful_at({"words": 7, "lines": 0})


def test_rows_are_put_back_only_by_a_task_that_begins_at_their_commit() -> None:
    rows = {"counts": {b"a": b"1"}}
    begins = {"words": (4, {"reader": 6})}
    for why in (ValueRefused("no"), TaskStopped("no")):
        rerun = rerun_after(why, {"words": 7}, rows, begins)
        assert rerun.rows_at(begins) == rows
        assert rerun.rows_at({"words": (7, {})}) == rerun.rows_at({"words": (4, {})}) == {}


def test_first_run_is_not_careful() -> None:
    assert not NO_RERUN.careful_at({"words": 0})
    assert NO_RERUN.stop is None
    assert NO_RERUN.rows_at({}) == {}
