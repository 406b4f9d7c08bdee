"""Effects of one step, timers after it, and news for the leader."""

from streamsx.group import member_events as e
from streamsx.group.step_effects import Effects

FIND, STOP, COLLECT = e.Timer.FIND, e.Timer.STOP, e.Timer.COLLECT


def test_step_opens_with_no_effects_at_own_time() -> None:
    box = Effects()
    first = box.open(1.0)
    box.emit(e.Find(), e.Left())
    second = box.open(2.0)
    box.emit(e.Left())
    assert (first, second, box.now) == ([e.Find(), e.Left()], [e.Left()], 2.0)


def test_effect_numbers_are_unique() -> None:
    box = Effects()
    assert [box.number() for _ in range(3)] == [1, 2, 3]


def test_timer_is_armed_again_only_for_another_time() -> None:
    box = Effects()
    box.now = 2.0
    box.arm(FIND, 5.0)
    box.after(FIND, 3.0)
    box.after(FIND, 4.0)
    assert box.out == [e.Arm(FIND, 5.0), e.Arm(FIND, 6.0)]


def test_only_armed_timers_are_disarmed() -> None:
    box = Effects()
    box.arm(FIND, 0.0)
    box.disarm(STOP, FIND)
    box.disarm(FIND)
    assert box.out == [e.Arm(FIND, 0.0), e.Arm(FIND, None)]


def test_fired_timer_may_be_armed_for_same_time() -> None:
    box = Effects()
    box.arm(FIND, 5.0)
    box.fired(FIND)
    box.fired(STOP)
    box.arm(FIND, 5.0)
    assert box.out == [e.Arm(FIND, 5.0)] * 2


def test_earliest_time_is_armed_and_no_time_disarms() -> None:
    box = Effects()
    box.first(FIND, [7.0, 5.0])
    box.first(FIND, [])
    box.first(FIND, [])
    assert box.out == [e.Arm(FIND, 5.0), e.Arm(FIND, None)]


def test_first_join_reason_is_kept_until_taken() -> None:
    box = Effects()
    assert box.rejoin_reason is None
    box.want("first")
    box.want("second")
    assert (box.taken(), box.rejoin_reason, box.taken()) == ("first", None, "")


def test_deferred_reasons_collect_from_the_first_on() -> None:
    box = Effects()
    box.now = 1.0
    box.want("first", 0.05)
    box.now = 1.04
    box.want("second", 0.05)
    assert (box.out, box.rejoin_reason) == ([e.Arm(COLLECT, 1.05)], None)
    box.fired(COLLECT)
    box.collected()
    assert box.rejoin_reason == "first"


def test_long_deferred_reason_does_not_delay_shorter_one() -> None:
    box = Effects()
    box.want("later", 1.0)
    box.want("sooner", 0.05)
    box.want("later", 1.0)
    assert box.out == [e.Arm(COLLECT, 1.0), e.Arm(COLLECT, 0.05)]
    box.collected()
    assert box.rejoin_reason == "sooner"


def test_join_takes_deferred_reasons_along() -> None:
    box = Effects()
    box.want("soon", 0.05)
    box.want("now")
    out = box.open(0.01)
    assert box.taken() == "now"
    assert out == [e.Arm(COLLECT, None)]
