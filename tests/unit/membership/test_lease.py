"""Until when tasks may run."""

from streamsx.membership import events as e
from streamsx.membership.effects import Effects
from streamsx.membership.lease import Lease

FENCED = e.Count("self-fence-total")


def test_it_counts_from_the_sending_of_what_was_answered() -> None:
    box = Effects()
    lease = Lease(box, 10.0)
    out = box.open(19.9)
    lease.contact(10.0)
    assert (lease.until, out) == (20.0, [e.Arm(e.Timer.FENCE, 20.0)])


def test_an_answer_to_what_was_sent_before_shortens_nothing() -> None:
    box = Effects()
    lease = Lease(box, 10.0)
    lease.contact(4.0)
    out = box.open(6.0)
    lease.contact(3.0)
    assert (lease.until, out) == (14.0, [])


def test_its_end_is_counted_and_a_timer_of_before_is_not() -> None:
    box = Effects()
    lease = Lease(box, 10.0)
    lease.contact(0.0)
    early = box.open(9.9)
    lease.ended()
    late = box.open(10.0)
    lease.ended()
    assert (early, late) == ([], [FENCED])
