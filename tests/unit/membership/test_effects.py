"""What one step asks for, and the timers that are armed behind it."""

from streamsx.membership import events as e
from streamsx.membership.effects import Effects

FIND, STOP = e.Timer.FIND, e.Timer.STOP


def test_a_step_begins_with_nothing_and_at_its_own_time() -> None:
    box = Effects()
    first = box.open(1.0)
    box.emit(e.Find(), e.Left())
    second = box.open(2.0)
    box.emit(e.Left())
    assert (first, second, box.now) == ([e.Find(), e.Left()], [e.Left()], 2.0)


def test_no_number_is_given_twice() -> None:
    box = Effects()
    assert [box.number() for _ in range(3)] == [1, 2, 3]


def test_a_timer_is_armed_again_only_for_another_time() -> None:
    box = Effects()
    box.now = 2.0
    box.arm(FIND, 5.0)
    box.after(FIND, 3.0)
    box.after(FIND, 4.0)
    assert box.out == [e.Arm(FIND, 5.0), e.Arm(FIND, 6.0)]


def test_only_what_is_armed_is_disarmed() -> None:
    box = Effects()
    box.arm(FIND, 0.0)
    box.disarm(STOP, FIND)
    box.disarm(FIND)
    assert box.out == [e.Arm(FIND, 0.0), e.Disarm(FIND)]
    assert not box.armed(FIND)


def test_a_timer_that_has_fired_may_be_armed_for_the_same_time() -> None:
    box = Effects()
    box.arm(FIND, 5.0)
    assert box.armed(FIND)
    box.fired(FIND)
    box.fired(STOP)
    assert not box.armed(FIND)
    box.arm(FIND, 5.0)
    assert box.out == [e.Arm(FIND, 5.0)] * 2
