"""Lease: how long tasks may run, and when heartbeats are due."""

from streamsx.group import member_events as e
from streamsx.group.lease import HURRY_INTERVAL_S, HURRY_S, Lease
from streamsx.group.step_effects import Effects

FENCED = e.Count("self-fence-total")


def test_lease_counts_from_sending_of_answered_request() -> None:
    box = Effects()
    lease = Lease(box, 10.0, 60.0, 3.0)
    out = box.open(19.9)
    lease.contact(10.0, steady=True)
    assert (lease.until, out) == (20.0, [e.Arm(e.Timer.FENCE, 20.0)])


def test_answer_to_older_request_does_not_shorten_lease() -> None:
    box = Effects()
    lease = Lease(box, 10.0, 60.0, 3.0)
    lease.contact(4.0, steady=True)
    out = box.open(6.0)
    lease.contact(3.0, steady=True)
    assert (lease.until, out) == (14.0, [])


def test_lease_ends_when_round_may_have_closed_without_member() -> None:
    box = Effects()
    lease = Lease(box, 45.0, 60.0, 3.0)
    lease.contact(1.0, steady=True)
    for second in range(2, 59):
        lease.contact(float(second), steady=False)
    assert lease.until == 61.0
    assert lease.limit == "a rebalance has lasted for 60 s (rebalance_timeout)"

    lease.contact(59.0, steady=True)

    assert lease.until == 104.0
    assert lease.limit == "the group has not answered for 45 s (session_timeout)"


def test_rebalance_time_counts_from_newest_contact() -> None:
    """A JoinGroup waited for a minute: no round was closed before its answer."""
    lease = Lease(Effects(), 45.0, 60.0, 3.0)
    lease.contact(58.0, steady=False)
    lease.contact(1.0, steady=True)
    assert lease.until == 103.0
    lease.contact(117.0, steady=False)
    assert lease.until == 118.0


def test_lost_lease_is_not_revived_by_unsteady_contact() -> None:
    box = Effects()
    lease = Lease(box, 45.0, 60.0, 3.0)
    lease.contact(100.0, steady=True)
    lease.lost()
    lease.contact(101.0, steady=False)
    assert lease.until == 0.0


def test_lease_end_is_counted_and_early_timer_is_not() -> None:
    box = Effects()
    lease = Lease(box, 10.0, 60.0, 3.0)
    lease.contact(0.0, steady=True)
    early = box.open(9.9)
    lease.ended()
    late = box.open(10.0)
    lease.ended()
    assert (early, late) == ([], [FENCED])


def due(box: Effects, lease: Lease, now: float) -> e.Effect:
    """Return the time of the next heartbeat."""
    out = box.open(now)
    lease.beat()
    (armed,) = out
    return armed


def beat(at: float) -> e.Effect:
    return e.Arm(e.Timer.HEARTBEAT, at)


def test_heartbeats_are_sent_at_interval() -> None:
    box = Effects()
    lease = Lease(box, 45.0, 60.0, 3.0)
    assert due(box, lease, 0.0) == beat(3.0)
    assert due(box, lease, 3.0) == beat(6.0)


def test_hurried_heartbeats_come_fast_for_a_while() -> None:
    box = Effects()
    lease = Lease(box, 45.0, 60.0, 3.0)
    out = box.open(10.0)
    lease.hurry()
    assert out == [beat(10.0 + HURRY_INTERVAL_S)]
    assert due(box, lease, 9.9 + HURRY_S) == beat(9.9 + HURRY_S + HURRY_INTERVAL_S)
    assert due(box, lease, 10.0 + HURRY_S) == beat(13.0 + HURRY_S)


def test_next_round_ends_heartbeat_hurry() -> None:
    box = Effects()
    lease = Lease(box, 45.0, 60.0, 3.0)
    box.open(10.0)
    lease.hurry()
    lease.calm()
    assert due(box, lease, 10.5) == beat(13.5)
