"""group/admin/leave.py: whole workers asked to leave, on a real broker in virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from streamsx.assignor.memory import MARKS_MAX
from streamsx.assignor.wire import read_join
from streamsx.broker.api.served import answered
from streamsx.client.cluster import Cluster
from streamsx.errors import GroupError, NotFound, UsageError
from streamsx.group.admin.leave import leave
from streamsx.group.admin.leave_progress import LeaveState
from streamsx.protocol.consumer_protocol import Subscription
from streamsx.protocol.wire import Api
from streamsx.simulation.process import Process
from tests.unit.conftest import HOST, PORT, counting
from tests.unit.worker.test_worker import start, works

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamsx.broker.groups.coordinator_events import ReplyBody
    from streamsx.broker.net.client_connection import ServedRequest
    from streamsx.broker.service import Service
    from streamsx.group.admin.leave_progress import LeaveProgress
    from tests.unit.conftest import VirtualCluster, WorkerHarness


def asking(bench: VirtualCluster, *names: str, app: str = "t", **how: Any) -> Any:
    """Start a tool in a thread, which has a result or an error."""
    process = Process(bench.net, f"tool{bench.scheduler.now}")

    async def main() -> Mapping[str, LeaveProgress]:
        cluster = Cluster(f"{HOST}:{PORT}", rng=bench.scheduler.stream("tool"))
        await cluster.start()
        try:
            return await leave(cluster, process.clock, app, names, **how)
        finally:
            await cluster.stop()

    return process.start(main)


def asked(
    bench: VirtualCluster, *names: str, limit_s: float = 60.0, **how: Any
) -> Mapping[str, LeaveProgress]:
    """Return the outcome; raise the error of the tool."""
    tool = asking(bench, *names, **how)
    bench.until(lambda: tool.result is not None or tool.error is not None, limit_s)
    if tool.error is not None:
        raise tool.error
    found: Mapping[str, LeaveProgress] = tool.result
    return found


def share(first: WorkerHarness, second: WorkerHarness) -> bool:
    """Return whether the group is stable, and both workers run some tasks."""
    return works(first, second) and len(second.made.registry.tasks()) > 0


def test_leave_command_accepts_at_most_the_marks_a_group_remembers(bench: VirtualCluster) -> None:
    station = start(bench, counting())
    bench.until(lambda: works(station))
    names = [f"n{number}" for number in range(MARKS_MAX + 1)]
    states = {one.state for one in asked(bench, *names[1:]).values()}
    assert states == {LeaveState.UNKNOWN}
    with pytest.raises(UsageError, match=f"too many workers at once: {MARKS_MAX + 1}: name 64"):
        asked(bench, *names)


def test_leave_without_wait_reports_the_state_known_to_the_group(bench: VirtualCluster) -> None:
    first, second = start(bench, counting(), "w1"), start(bench, counting(), "w2")
    bench.until(lambda: share(first, second))
    began = bench.scheduler.now
    (departure,) = asked(bench, "w1", wait=False).values()
    assert departure.state is LeaveState.LEAVING
    assert 0 < departure.ms <= round((bench.scheduler.now - began) * 1000) + 1
    bench.until(lambda: not first.process.alive)
    assert first.main.result == 0
    (stays,) = asked(bench, "w2", wait=False, cancel=True).values()
    assert stays.state is LeaveState.CANCELLED


def test_instance_still_present_at_the_deadline_is_reported_as_timeout(
    bench: VirtualCluster,
) -> None:
    first, second = start(bench, counting(), "w1"), start(bench, counting(), "w2")
    bench.until(lambda: share(first, second))
    began = bench.scheduler.now
    tool = asking(bench, "w2", timeout_s=6.0)
    bench.until(lambda: second.told("leaving"))
    second.process.freeze(9)
    bench.until(lambda: tool.result)
    (departure,) = tool.result.values()
    assert (departure.state, departure.tasks_moved) == (LeaveState.TIMEOUT, 0)
    assert bench.scheduler.now - began == pytest.approx(6.0, abs=0.5)


def test_unknown_app_is_not_found(bench: VirtualCluster) -> None:
    with pytest.raises(NotFound, match="no such app: z"):
        asked(bench, "w1", app="z")


def test_group_without_members_reports_an_unknown_instance(bench: VirtualCluster) -> None:
    station = start(bench, counting())
    bench.until(lambda: works(station))
    asked(bench, "w1")
    bench.until(lambda: not station.process.alive)
    (departure,) = asked(bench, "w1").values()
    assert departure.state is LeaveState.UNKNOWN


def test_unsettled_group_is_waited_for_until_the_timeout(bench: VirtualCluster) -> None:
    first = start(bench, counting(session_timeout=40))
    bench.until(lambda: works(first))
    first.process.freeze(30)
    second = start(bench, counting(session_timeout=40), "w2")
    bench.run(2)
    began = bench.scheduler.now
    with pytest.raises(GroupError, match="the group is still rebalancing: t: after 3 s"):
        asked(bench, "w1", timeout_s=3.0)
    assert bench.scheduler.now - began == pytest.approx(3.0, abs=0.5)
    bench.until(lambda: share(first, second))


def test_group_not_taking_marks_is_retried_until_the_deadline(bench: VirtualCluster) -> None:
    """A hanging member holds up the round of the tool; until then all looked well."""
    first, second = start(bench, counting(), "w1"), start(bench, counting(), "w2")
    bench.until(lambda: share(first, second))
    first.process.freeze(9)
    began = bench.scheduler.now
    with pytest.raises(GroupError, match=r"the workers did not confirm the request in .* s: t"):
        asked(bench, "w2", timeout_s=2.0)
    assert bench.scheduler.now - began == pytest.approx(2.0, abs=0.5)


def test_hanging_marked_instance_times_out_even_if_the_tool_got_no_answer(
    bench: VirtualCluster,
) -> None:
    """The leader plans with the marks; the marked member joins again before the tool's SyncGroup
    arrives; another one hangs: the tool reported that the group had not taken the marks.
    """
    first, second = start(bench, counting(), "w1"), start(bench, counting(), "w2")
    bench.until(lambda: works(first, second))
    tool = asking(bench, "w2", timeout_s=7.0)
    overtaken = list[str]()

    def joins(service: Service, call: ServedRequest) -> ReplyBody | None:
        if call.api is Api.JOIN_GROUP and call.body.member_id:
            said = Subscription.read(call.body.protocols[0].metadata)
            if read_join(said.user_data).observer and not overtaken:
                overtaken.append(call.body.member_id)
                tool.process.freeze(5)
        return answered(service, call)

    bench.answer = joins
    bench.until(lambda: second.told("leaving"))
    first.process.freeze(9)
    bench.until(lambda: tool.result is not None or tool.error is not None)
    (departure,) = tool.result.values()
    assert departure.state is LeaveState.TIMEOUT
    assert overtaken
