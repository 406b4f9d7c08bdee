"""Two versions of an app in one group, in virtual time: each learns its own tasks only."""

from __future__ import annotations

import logging
import signal
from typing import TYPE_CHECKING, Any

import pytest

from streamsx import App, Stream
from streamsx.assignor.model import Copy, CopyRole
from streamsx.assignor.wire import AssignmentView
from streamsx.group import member_events as e
from streamsx.model import TaskId, TopicPartition

if TYPE_CHECKING:
    from tests.unit.conftest import VirtualCluster, WorkerHarness

IN_TIME_S = 6.0
"""Some rounds; the limit of a leave is 25 s."""


def app_of(version: str = "plain") -> App:
    """Return an app that counts words, in one sub-topology.

    Other versions: after a `group_by` (two); with another agent, whose sub-topology comes first;
    with one more store, which its agent writes too, or another one.
    """
    app = App(
        "t", broker="127.0.0.1:9092", topic_partitions=3, session_timeout=10, memory_budget="32MiB"
    )
    counts = app.Table("counts", default=int, key_type=str, value_type=int)

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def count(stream: Stream[str]) -> None:
        words: Any = stream
        if version == "groups":
            words = stream.group_by(lambda word: word, name="word")
        async for word in words:
            counts[word] += 1
            if version == "store":
                sizes[word] = len(word)

    if version == "store":
        sizes = app.Table("sizes", default=int, key_type=str, value_type=int)
    if version == "agent":

        @app.agent(app.topic("ahead", value_type=str, value_serializer="raw"))
        async def look(stream: Stream[str]) -> None:
            async for _ in stream:
                pass

    return app


def runs(station: WorkerHarness, tasks: int) -> bool:
    return station.begun and len(station.made.tasks.actives) == tasks


TASKS = {"plain": 3, "groups": 6, "agent": 6, "store": 3}
PAIRS = [(old, new) for old in TASKS for new in TASKS if "plain" in (old, new) and old != new]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_last_worker_of_a_version_does_not_wait_for_impossible_learners(
    bench: VirtualCluster, before: str, after: str
) -> None:
    """It took its full 25 s where the other version has a sub-topology of that number without
    state, and ended the other worker with a KeyError where it has none. No record is lost or
    repeated, whichever of the two leads.
    """
    old = bench.station(app_of(before), "w1", by_hand=False)
    bench.until(lambda: runs(old, TASKS[before]))
    for partition in range(3):
        bench.feed(partition, "a", "b")
    new = bench.station(app_of(after), "w2", by_hand=False)
    bench.until(lambda: new.told("assigned"))
    bench.run(2)

    old.process.signal(signal.SIGTERM)
    bench.until(lambda: not old.process.alive, IN_TIME_S)

    assert old.main.result == 0
    bench.until(lambda: runs(new, TASKS[after]))
    for partition in range(3):
        bench.feed(partition, "a", "c")
    bench.run(3)
    new.process.signal(signal.SIGTERM)
    bench.until(lambda: not new.process.alive, IN_TIME_S)
    assert new.main.result == 0
    assert bench.counted() == {"a": 6, "b": 3, "c": 3}


# As a leader with other code has it.

UNKNOWN = TopicPartition("not-mine", 0)
STRANGE = TaskId(7, 0)


def planned(
    *learners: TaskId, promises: tuple[TaskId, ...] = (), shared_name: bool = False
) -> e.OnAssignment:
    view = AssignmentView(
        learners=frozenset(learners), promises=frozenset(promises), shared_name=shared_name
    )
    return e.OnAssignment(1, (), view)


def begun(bench: VirtualCluster) -> WorkerHarness:
    station = bench.station(app_of())
    bench.until(lambda: station.hand.alive)
    return station


def test_task_impossible_to_learn_is_reported_as_ready(bench: VirtualCluster) -> None:
    station = begun(bench)
    station.deliver(planned(STRANGE))
    bench.run(0.1)
    assert e.Ready() in station.hand.posted
    assert station.made.session.builder.report.copies == {STRANGE: Copy(CopyRole.LEARNER, 0)}
    assert len(station.made.registry) == 0

    station.hand.posted.clear()
    station.deliver(planned(STRANGE, promises=(STRANGE,)))
    bench.run(0.1)
    assert station.hand.posted == [], "its hand-over is under way"

    station.deliver(planned())
    station.hand.plan(TaskId(0, 0))
    bench.run(1)
    assert STRANGE not in station.made.session.builder.report.copies


def test_partition_of_no_task_is_released_at_once(bench: VirtualCluster) -> None:
    """No task of ours has to end; the partition stood until `revoke_timeout` and
    counted as lost.
    """
    station = begun(bench)
    station.deliver(e.Assigned((UNKNOWN,)))
    station.deliver(e.Revoke((UNKNOWN,), 3))
    bench.run(0.1)
    assert e.Released(frozenset({UNKNOWN}), 3) in station.hand.posted


def test_shared_instance_id_is_logged_once(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    station = begun(bench)
    with caplog.at_level(logging.WARNING, "streamsx"):
        for shared_name in (False, True, True):
            station.deliver(planned(shared_name=shared_name))
        bench.run(0.1)
    told = [
        line for line in caplog.messages if line.startswith("Another worker is called w1 too, ")
    ]
    assert len(told) == 1
    assert "--instance-id" in told[0]
