"""Pending requests of a member, its coordinator, and the pauses of retries."""

import pytest

from streamsx.group import member_events as e
from streamsx.group.pending_requests import JITTER, PAUSE_MAX_S, PAUSE_MIN_S, PendingRequests
from streamsx.group.step_effects import Effects

BEAT, JOIN = e.ConnectionName.BEAT, e.ConnectionName.JOIN
SYNC = e.SyncGroup({})
HEARTBEAT = e.Heartbeat()
COMMIT = e.OffsetCommit({})
WHO = "m1", 1, True


@pytest.fixture
def box() -> Effects:
    return Effects()


@pytest.fixture
def calls(box: Effects) -> PendingRequests:
    made = PendingRequests(box, 0.0)
    made.found(1)
    return made


def test_pending_coordinator_lookup_is_not_postponed(box: Effects, calls: PendingRequests) -> None:
    """Both lanes break: the pending lookup would be delayed by a pause twice as long."""
    calls.find()
    box.now = 0.05
    calls.find()
    assert box.out == [e.Arm(e.Timer.FIND, PAUSE_MIN_S)]
    assert not calls.known


def test_find_waits_for_coordinator_lookup_in_flight(box: Effects, calls: PendingRequests) -> None:
    calls.look()
    calls.find()
    assert box.out == [e.Find()]


def test_unknown_coordinator_is_looked_up_again(box: Effects, calls: PendingRequests) -> None:
    calls.look()
    calls.found(None)
    assert box.out == [e.Find(), e.Arm(e.Timer.FIND, PAUSE_MIN_S)]
    assert not calls.known
    calls.found(2)
    calls.send(WHO, BEAT, 1.0, HEARTBEAT)
    assert (calls.known, box.out[-1]) == (
        True,
        e.SendRequest(1, 2, BEAT, 1.0, HEARTBEAT, 0.0, *WHO),
    )


def test_retry_pauses_double_to_maximum_until_success(box: Effects) -> None:
    calls = PendingRequests(box, 0.5)
    pauses = [calls.pause() for _ in range(6)]
    longer = 1 + JITTER / 2
    expected = [PAUSE_MIN_S * 2**n for n in range(4)] + [PAUSE_MAX_S] * 2
    assert pauses == pytest.approx([pause * longer for pause in expected])
    calls.well()
    assert calls.pause() == pytest.approx(PAUSE_MIN_S * longer)


def test_join_lane_has_one_request_and_beat_lane_one_per_kind(
    calls: PendingRequests,
) -> None:
    calls.send(WHO, JOIN, 1.0, SYNC)
    calls.send(WHO, BEAT, 1.0, HEARTBEAT)
    assert calls.flying(JOIN)
    assert calls.flying(e.Heartbeat)
    assert not calls.flying(e.OffsetCommit)
    calls.send(WHO, BEAT, 1.0, COMMIT)
    with pytest.raises(AssertionError):
        calls.send(WHO, BEAT, 1.0, HEARTBEAT)
    with pytest.raises(AssertionError):
        calls.send(WHO, JOIN, 1.0, e.LeaveGroup(("m0",), ""))


def test_answer_ends_one_request_and_disconnect_all_of_lane(
    box: Effects, calls: PendingRequests
) -> None:
    sent: list[tuple[e.ConnectionName, e.Request]] = [
        (JOIN, SYNC),
        (BEAT, HEARTBEAT),
        (BEAT, COMMIT),
    ]
    for lane, body in sent:
        box.now += 1.0
        calls.send(WHO, lane, 1.0, body)
    (landed,) = calls.landed(e.Reply(2, 0))
    assert (landed.body, landed.at, landed.stable, landed.node) == (HEARTBEAT, 2.0, True, 1)
    assert calls.landed(e.Reply(2, 0)) == []
    assert [flight.body for flight in calls.landed(e.Disconnected(BEAT))] == [COMMIT]
    assert calls.flying(JOIN)
    calls.forget()
    assert calls.landed(e.Disconnected(JOIN)) == []


def test_lane_silence_counts_from_oldest_request(box: Effects, calls: PendingRequests) -> None:
    box.now = 3.0
    assert calls.waited_s(BEAT) == 0
    calls.send(WHO, BEAT, 1.0, HEARTBEAT)
    box.now = 5.0
    calls.send(WHO, BEAT, 1.0, COMMIT)
    box.now = 6.0
    assert (calls.waited_s(BEAT), calls.waited_s(JOIN)) == (3.0, 0)


@pytest.mark.parametrize(
    ("node", "doubtful"), [(1, [JOIN]), (2, [JOIN, BEAT]), (None, [])]
)  # fmt: skip
def test_requests_before_coordinator_lookup_are_doubted(
    calls: PendingRequests, node: int | None, doubtful: list[e.ConnectionName]
) -> None:
    """On the lane for joins wherever it was found; on the other one if that is elsewhere."""
    calls.send(WHO, BEAT, 1.0, HEARTBEAT)
    calls.send(WHO, JOIN, 1.0, SYNC)
    assert calls.doubtful(node) == doubtful
