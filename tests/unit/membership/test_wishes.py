"""Which reasons to join again are told, and when."""

from streamsx.membership import events as e
from streamsx.membership.effects import Effects
from streamsx.membership.wishes import COLLECT_S, Wishes

COLLECT = e.Timer.COLLECT


def test_the_first_reason_is_kept_until_it_is_taken() -> None:
    wishes = Wishes(Effects())
    wishes.add(None)
    assert wishes.reason is None
    wishes.add(e.Want("first"))
    wishes.add(e.Want("second"))
    assert (wishes.taken(), wishes.reason, wishes.taken()) == ("first", None, "")


def test_what_may_wait_waits_for_others_from_the_first_on() -> None:
    box = Effects()
    wishes = Wishes(box)
    box.now = 1.0
    wishes.add(e.Want("first", soon=True))
    box.now = 1.04
    wishes.add(e.Want("second", soon=True))
    assert (box.out, wishes.reason) == ([e.Arm(COLLECT, 1.0 + COLLECT_S)], None)
    box.fired(COLLECT)
    assert wishes.collected() == e.Want("first")


def test_a_join_takes_what_waits_with_it() -> None:
    box = Effects()
    wishes = Wishes(box)
    wishes.add(e.Want("soon", soon=True))
    box.after(e.Timer.REPLAN, 1.0)
    wishes.add(e.Want("now"))
    out = box.open(0.01)
    assert wishes.taken() == "now"
    assert out == [e.Disarm(COLLECT), e.Disarm(e.Timer.REPLAN)]
