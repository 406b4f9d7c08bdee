"""Commit cycles of a real worker whose member is played by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamsx.group import member_events as e
from streamsx.model import TaskId
from tests.unit.conftest import changelog, counting, words

if TYPE_CHECKING:
    from tests.unit.conftest import VirtualCluster, WorkerHarness

T0, T1 = TaskId(0, 0), TaskId(0, 1)


def commits(station: WorkerHarness) -> list[e.Commit]:
    return [event for event in station.hand.posted if isinstance(event, e.Commit)]


def running(bench: VirtualCluster, *tasks: TaskId, **settings: Any) -> WorkerHarness:
    station = bench.begun(counting(**settings))
    station.hand.plan(*tasks)
    bench.until(lambda: all(station.states(task)[-1:] == ["running"] for task in tasks))
    return station


def test_commit_follows_the_interval_and_covers_only_processed_tasks(bench: VirtualCluster) -> None:
    station = running(bench, T0, T1, commit_interval=2.0)
    bench.run(10)
    assert commits(station) == []
    bench.feed(0, "a")
    bench.run(10)
    (asked,) = commits(station)
    assert {tp: offset for tp, (offset, _) in asked.offsets.items()} == {words(0): 1}
    for _ in range(50):
        bench.feed(1, "b")
        bench.run(0.2)
    assert 4 <= len(commits(station)) - 1 <= 6


def test_store_is_written_only_after_kafka_has_the_offsets(bench: VirtualCluster) -> None:
    station = running(bench, T0)
    station.hand.holds = True
    bench.feed(0, "a")
    bench.until(lambda: commits(station))
    bench.feed(0, "b")
    bench.run(5)
    assert bench.counted() == {"a": 1}
    assert station.rows(0) == {}
    assert len(commits(station)) == 1
    station.hand.holds = False
    station.hand.commit(commits(station)[0])
    bench.until(lambda: len(commits(station)) == 2)
    bench.run(0.1)
    assert station.rows(0) == {"a": b"1", "b": b"1"}
    assert [told["records"] for told in station.told("commit")] == [1, 1]


def test_too_much_dirty_state_is_committed_before_the_interval(bench: VirtualCluster) -> None:
    station = running(bench, T0, commit_interval=600, memory_budget="1MiB")
    began = bench.scheduler.now
    for batch in range(20):
        bench.feed(0, *(f"{batch}-{number:0200d}" for number in range(100)))
    bench.until(lambda: commits(station))
    assert bench.scheduler.now - began < 10


def test_partial_commit_writes_only_the_accepted_tasks(bench: VirtualCluster) -> None:
    station = running(bench, T0, T1)
    station.hand.holds = True
    bench.feed(0, "a")
    bench.feed(1, "b")
    bench.until(lambda: commits(station))
    (asked,) = commits(station)
    station.deliver(e.CommitDone(asked.id, {words(1): e.NOT_OURS}))
    bench.run(0.5)
    assert station.rows(0) == {"a": b"1"}
    assert station.rows(1) == {}


def test_refused_commit_is_reported_and_carried_by_the_next_one(bench: VirtualCluster) -> None:
    station = running(bench, T0)
    station.hand.holds = True
    bench.feed(0, "a")
    bench.until(lambda: commits(station))
    station.deliver(e.CommitDone(commits(station)[0].id, {}, e.Refusal.NOT_OWNED))
    station.hand.holds = False
    bench.feed(0, "b")
    bench.until(lambda: bench.committed.get(words(0), (0, ""))[0] == 2)
    bench.run(0.1)
    assert "commit dropped" in str(station.told("error")[0]["what"])
    assert bench.counted() == {"a": 1, "b": 1}
    assert station.position(0) == 2


def test_answer_to_an_older_commit_is_ignored(bench: VirtualCluster) -> None:
    station = running(bench, T0)
    bench.feed(0, "a")
    bench.until(lambda: words(0) in bench.committed)
    station.hand.holds = True
    bench.feed(0, "b")
    bench.until(lambda: len(commits(station)) == 2)
    station.deliver(e.CommitDone(commits(station)[0].id))
    bench.run(1)
    assert station.rows(0) == {"a": b"1"}


def test_idle_task_is_released_at_once(bench: VirtualCluster) -> None:
    station = running(bench, T0)
    station.hand.holds = True
    station.hand.revoke(T0)
    bench.until(station.hand.released, 0.1)
    assert commits(station) == []


def test_task_revoked_during_a_commit_cycle_gets_another_cycle(
    bench: VirtualCluster,
) -> None:
    """Records of the first cycle's time are committed before the task is released."""
    station = running(bench, T0)
    station.hand.holds = True
    bench.feed(0, "a")
    bench.until(lambda: commits(station))
    bench.feed(0, "b")
    bench.run(0.2)
    station.hand.revoke(T0)
    bench.run(0.2)
    station.hand.commit(commits(station)[0])
    bench.until(lambda: len(commits(station)) == 2, 1)
    assert station.hand.released() == []
    station.hand.commit(commits(station)[1])
    bench.until(station.hand.released, 1)
    assert bench.committed[words(0)][0] == 2
    assert bench.counted() == {"a": 1, "b": 1}


def test_task_lost_during_a_commit_does_not_affect_others(bench: VirtualCluster) -> None:
    station = running(bench, T0, T1)
    station.hand.holds = True
    bench.feed(0, "a")
    bench.feed(1, "b")
    bench.until(lambda: commits(station))
    station.hand.lose(T1)
    bench.run(0.2)
    station.deliver(e.CommitDone(commits(station)[0].id, {words(1): e.NOT_OURS}))
    bench.run(0.5)
    assert station.rows(0) == {"a": b"1"}
    assert station.states(T1)[-1] == "closed"
    station.hand.holds = False
    bench.feed(0, "c")
    bench.until(lambda: bench.committed.get(words(0), (0, ""))[0] == 2)


def test_unavailable_broker_delays_a_commit_and_nothing_is_lost(
    bench: VirtualCluster,
) -> None:
    station = running(bench, T0)
    bench.process.freeze(20)
    bench.feed(0, "a", "b")
    bench.run(21)
    bench.until(lambda: words(0) in bench.committed)
    assert bench.committed[words(0)][0] == 2
    assert len(bench.read(changelog(0))) == 2
    assert station.process.alive
