"""What a member has under way, where its coordinator is, and how long it waits to ask again."""

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


def test_a_coordinator_that_is_being_looked_for_is_not_looked_for_twice(
    box: Effects, calls: PendingRequests
) -> None:
    """Both lanes break: the look that was due would move on, by a pause twice as long."""
    calls.find()
    box.now = 0.05
    calls.find()
    assert box.out == [e.Arm(e.Timer.FIND, PAUSE_MIN_S)]
    assert not calls.known


def test_who_asks_where_it_is_waits_for_the_answer(box: Effects, calls: PendingRequests) -> None:
    calls.look()
    calls.find()
    assert box.out == [e.Find()]


def test_a_coordinator_that_nobody_knows_is_looked_for_again(
    box: Effects, calls: PendingRequests
) -> None:
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


def test_pauses_double_up_to_the_longest_until_all_is_well(box: Effects) -> None:
    calls = PendingRequests(box, 0.5)
    pauses = [calls.pause() for _ in range(6)]
    longer = 1 + JITTER / 2
    expected = [PAUSE_MIN_S * 2**n for n in range(4)] + [PAUSE_MAX_S] * 2
    assert pauses == pytest.approx([pause * longer for pause in expected])
    calls.well()
    assert calls.pause() == pytest.approx(PAUSE_MIN_S * longer)


def test_a_lane_for_joins_has_one_request_and_the_other_one_of_each_kind(
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


def test_an_answer_ends_its_request_and_a_broken_connection_all_of_its_lane(
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


def test_how_long_a_lane_is_silent_counts_from_its_oldest_request(
    box: Effects, calls: PendingRequests
) -> None:
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
def test_what_was_asked_before_it_was_looked_for_is_doubted(
    calls: PendingRequests, node: int | None, doubtful: list[e.ConnectionName]
) -> None:
    """On the lane for joins wherever it was found; on the other one if that is elsewhere."""
    calls.send(WHO, BEAT, 1.0, HEARTBEAT)
    calls.send(WHO, JOIN, 1.0, SYNC)
    assert calls.doubtful(node) == doubtful
