"""The plan of a round, and who is removed behind its deadline."""

import pytest

from streamsx.membership import events as e
from streamsx.membership.effects import Effects
from streamsx.membership.plans import PAUSE_S, Plans

EVICT = e.Timer.EVICT


@pytest.fixture
def box() -> Effects:
    return Effects()


@pytest.fixture
def plans(box: Effects) -> Plans:
    """One is asked for, as number 1."""
    made = Plans(box)
    made.ask("m1", 4, ())
    assert box.open(0.0) == []
    return made


def test_it_is_asked_for_under_a_number_and_as_of_now() -> None:
    box, members = Effects(), [("m1", b"word")]
    Plans(box).ask("m1", 4, members)
    assert box.out == [e.Assign(1, "m1", 4, members)]


def test_only_the_plan_of_this_round_is_taken_and_once(plans: Plans) -> None:
    assert [plans.take(e.Planned(number, {})) for number in (9, 1, 1)] == [False, True, False]


def test_one_that_failed_is_taken_and_made_again_after_a_pause(box: Effects, plans: Plans) -> None:
    box.now = 2.0
    assert plans.take(e.Planned(1, {}, "SOURCE_TOPIC_MISSING"))
    assert box.out == [
        e.Count("failed-rebalance-total"), e.Arm(e.Timer.REPLAN, 2.0 + PAUSE_S),
    ]  # fmt: skip
    assert plans.failed() == e.Want("the assignment failed")


def test_each_is_removed_at_its_own_time_and_once(box: Effects, plans: Plans) -> None:
    plans.take(e.Planned(1, {}, evictions={"b": 9.0, "a": 5.0}))
    assert box.out == [e.Arm(EVICT, 5.0)]
    for now, said in [(5.0, [e.Evict("a"), e.Arm(EVICT, 9.0)]), (9.0, [e.Evict("b")])]:
        out = box.open(now)
        box.fired(EVICT)
        plans.evict()
        assert out == said


def test_what_an_older_plan_has_armed_is_void(box: Effects, plans: Plans) -> None:
    plans.take(e.Planned(1, {}, evictions={"a": 5.0}))
    out = box.open(1.0)
    plans.end()
    assert out == [e.Disarm(EVICT)]
    out = box.open(6.0)
    plans.evict()
    assert out == []


def test_a_plan_of_a_round_that_is_over_is_not_taken(plans: Plans) -> None:
    plans.end()
    assert not plans.take(e.Planned(1, {}))
