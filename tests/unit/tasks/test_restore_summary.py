"""Log lines of long restores."""

from streamsx.model import TaskId
from streamsx.tasks.restore_summary import EVERY_S, RestoresOver, RestoreSummary

A, B = TaskId(1, 0), TaskId(1, 1)


def test_short_restore_has_no_line() -> None:
    some = RestoreSummary()
    some.begun(0.0, A)
    assert not some.due(EVERY_S / 2)
    assert some.over(EVERY_S / 2, A, 100) is None
    assert not some.due(2 * EVERY_S)


def test_long_restores_have_a_line_now_and_then_and_one_at_their_end() -> None:
    some = RestoreSummary()
    some.begun(0.0, A)
    some.begun(5.0, B)
    assert [some.due(at) for at in (9.0, 10.0, 11.0, 20.0)] == [False, True, False, True]
    assert some.over(21.0, A, 100) is None
    assert some.over(30.0, B, 20) == RestoresOver((A, B), 120, 30.0)
    assert some.over(31.0, B, 20) is None


def test_restore_that_is_given_up_counts_for_nothing() -> None:
    some = RestoreSummary()
    some.begun(0.0, A)
    some.begun(0.0, B)
    assert some.due(EVERY_S)
    assert some.over(12.0, A, 100) is None
    assert some.dropped(13.0, B) == RestoresOver((A,), 100, 13.0)
    some.begun(20.0, A)
    assert some.due(30.0)
    assert some.dropped(31.0, A) is None
