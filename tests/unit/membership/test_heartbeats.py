"""When heartbeats are due."""

from streamsx.membership import events as e
from streamsx.membership.effects import Effects
from streamsx.membership.heartbeats import HURRY_INTERVAL_S, HURRY_S, Heartbeats


def due(box: Effects, beats: Heartbeats, now: float) -> e.Effect:
    """When the next one is, as of now."""
    out = box.open(now)
    beats.again()
    (armed,) = out
    return armed


def beat(at: float) -> e.Effect:
    return e.Arm(e.Timer.HEARTBEAT, at)


def test_they_come_at_the_interval() -> None:
    box = Effects()
    beats = Heartbeats(box, 3.0)
    assert due(box, beats, 0.0) == beat(3.0)
    assert due(box, beats, 3.0) == beat(6.0)


def test_in_a_hurry_they_come_at_once_and_for_a_while() -> None:
    box = Effects()
    beats = Heartbeats(box, 3.0)
    out = box.open(10.0)
    beats.hurry()
    assert out == [beat(10.0 + HURRY_INTERVAL_S)]
    assert due(box, beats, 9.9 + HURRY_S) == beat(9.9 + HURRY_S + HURRY_INTERVAL_S)
    assert due(box, beats, 10.0 + HURRY_S) == beat(13.0 + HURRY_S)


def test_the_next_round_ends_the_hurry() -> None:
    box = Effects()
    beats = Heartbeats(box, 3.0)
    box.open(10.0)
    beats.hurry()
    beats.calm()
    assert due(box, beats, 10.5) == beat(13.5)
