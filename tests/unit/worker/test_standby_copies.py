"""Standbys of a worker: their start, their turns and their reports."""

import pytest

from streamsx.assignor.model import CopyRole
from streamsx.broker.api.served import answered
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.broker.service import Service
from streamsx.group import member_events as e
from streamsx.model import TaskId
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from tests.unit.conftest import ROWS_PER_BATCH, VirtualCluster, WorkerHarness, changelog, counting

T0, T1, T2 = TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)


def copies(station: WorkerHarness) -> dict[TaskId, tuple[CopyRole, int | None]]:
    station.made.reports.publish()
    found = station.made.session.builder.report.copies
    return {task: (copy.role, copy.lag) for task, copy in found.items()}


def test_standby_follows_quietly_and_announces_itself_when_wanted(bench: VirtualCluster) -> None:
    station = bench.begun(counting(acceptable_recovery_lag=0))
    bench.remember(changelog(0), 3)
    station.hand.plan(standbys=[T0])
    bench.until(lambda: station.states(T0)[-1:] == ["tailing"])
    bench.run(1)
    assert e.Ready() not in station.hand.posted
    assert copies(station) == {T0: (CopyRole.STANDBY, 0)}

    station.hand.plan(standbys=[T0], wanted=[T0])

    bench.until(lambda: e.Ready() in station.hand.posted)
    assert copies(station) == {T0: (CopyRole.LEARNER, 0)}


def test_active_is_restored_before_learner_and_learner_before_standby(
    bench: VirtualCluster,
) -> None:
    """The standby has least to do, and the active task most."""
    station = bench.begun(counting(acceptable_recovery_lag=0))
    station.write_s = 0.01
    for partition in range(3):
        bench.remember(changelog(partition), 10 * (partition + 1))
    station.hand.plan(T2, learners=[T1], standbys=[T0])
    done: list[int] = []

    def ended() -> bool:
        ends = {n: ROWS_PER_BATCH * 10 * (n + 1) for n in range(3)}
        done.extend(n for n in ends if n not in done and station.position(n) == ends[n])
        return len(done) == len(ends)

    bench.until(ended)
    assert done == [2, 1, 0]


def no_leader(service: Service, call: ServedRequest) -> ReplyBody | None:
    """Leave changelogs without a leader when their ends are asked for."""
    body = answered(service, call)
    if call.api is Api.LIST_OFFSETS and body is not None:
        for part in (part for topic in body["topics"] for part in topic["partitions"]):
            part["error_code"] = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return body


@pytest.mark.parametrize("asked_for", [True, False])
def test_standby_turned_learner_gets_learner_priority(
    bench: VirtualCluster, asked_for: bool
) -> None:
    """While its ends were being read it kept the last place: behind every other learner."""
    station = bench.begun(counting(acceptable_recovery_lag=0))
    station.write_s = 0.01
    small, large = bench.remember(changelog(0), 5), bench.remember(changelog(1), 50)
    bench.answer = no_leader if asked_for else answered
    station.hand.plan(learners=[T1], standbys=[T0])
    bench.until(lambda: station.states(T0) == ["opening"] or station.position(1))
    bench.run(0.01)
    station.hand.plan(learners=[T0, T1])
    bench.answer = answered

    bench.until(lambda: station.position(0) == small)

    assert station.position(1) < large


def test_standby_waiting_for_a_turn_reports_lag_and_is_not_stalled(
    bench: VirtualCluster,
) -> None:
    """It reported that it was at the end, for as long as an active task was restored."""
    station = bench.begun(counting(acceptable_recovery_lag=0))
    station.hand.plan(standbys=[T0])
    bench.until(lambda: station.states(T0)[-1:] == ["tailing"])
    station.write_s = 1.0
    bench.remember(changelog(1), 200)
    station.hand.plan(T1, standbys=[T0])
    bench.until(lambda: station.position(1))
    bench.remember(changelog(0), 1)

    bench.run(70)

    assert station.states(T1)[-1] != "running"
    assert copies(station)[T0] == (CopyRole.STANDBY, ROWS_PER_BATCH)
    assert station.made.session.builder.report.stalled == frozenset()
