"""Lines about a rebalance that takes long."""

from streamsx.group.round_wait import EVERY_S, FIRST_S, RoundWait


def test_wait_has_a_line_soon_and_others_seldom() -> None:
    wait = RoundWait()
    wait.sent(100.0, syncs=False)
    assert wait.due_at == 100.0 + FIRST_S
    told = [wait.waited_s(100.0 + at) for at in (1.0, 5.0, 6.0, 15.0, 24.0, 25.0)]
    assert told == [None, 5.0, None, 15.0, None, 25.0]
    assert wait.due_at == 100.0 + FIRST_S + 3 * EVERY_S


def test_repeated_join_goes_on_waiting_and_the_plan_is_another_wait() -> None:
    wait = RoundWait()
    wait.sent(0.0, syncs=False)
    wait.sent(4.0, syncs=False)
    assert wait.waited_s(5.0) == 5.0
    wait.sent(8.0, syncs=True)
    assert (wait.syncs, wait.due_at) == (True, 8.0 + FIRST_S)


def test_answered_round_has_no_line() -> None:
    wait = RoundWait()
    assert wait.waited_s(100.0) is None
    wait.sent(0.0, syncs=True)
    wait.over()
    assert (wait.due_at, wait.waited_s(100.0)) == (None, None)
