"""Commits that Kafka refuses for good: only their task waits, with one log line."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from streamsx.broker.api.served import answered
from streamsx.errors import SettingError
from streamsx.group import member_events as e
from streamsx.model import TaskId
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from tests.unit.conftest import counting, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamsx.broker.groups.coordinator_events import ReplyBody
    from streamsx.broker.net.client_connection import ServedRequest
    from streamsx.broker.service import Service
    from tests.unit.conftest import VirtualCluster, WorkerHarness

T0, T1 = TaskId(0, 0), TaskId(0, 1)
NOT_ALLOWED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GONE = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def commits(station: WorkerHarness) -> list[e.Commit]:
    return [event for event in station.hand.posted if isinstance(event, e.Commit)]


def errors(station: WorkerHarness) -> list[object]:
    return [told["what"] for told in station.told("error")]


def with_one_commit(bench: VirtualCluster, *tasks: TaskId) -> WorkerHarness:
    """Return a worker with one commit on its way."""
    station = bench.begun(counting())
    for task in tasks:
        bench.feed(task.partition, "a")
    station.hand.holds = True
    station.hand.plan(*tasks)
    bench.until(lambda: commits(station))
    return station


def deny(station: WorkerHarness, code: int) -> None:
    """Deny the newest commit, for partition 0."""
    (*_, asked) = commits(station)
    station.deliver(e.CommitDone(asked.id, {words(0): code}))


def positions(station: WorkerHarness) -> dict[str, int]:
    return station.made.tasks.actives[T0].task.positions


def test_denied_task_waits_with_one_error_until_granted_and_others_commit(
    bench: VirtualCluster,
) -> None:
    """There was a line in each cycle, and the uncommitted records grew."""
    station = with_one_commit(bench, T0, T1)
    for _ in range(3):
        deny(station, NOT_ALLOWED)
        bench.feed(0, "b")
        bench.feed(1, "b")
        asked = len(commits(station))
        bench.until(lambda n=asked: len(commits(station)) > n, 5)  # type: ignore[misc]

    assert station.states(T0)[-1] == "running"
    assert positions(station) == {"words": 1}
    assert station.rows(0) == {}, "nothing that is not committed gets into a store"
    assert station.rows(1) == {"a": b"1", "b": b"2"}
    (told,) = errors(station)
    assert str(told).startswith("commit refused: TOPIC_AUTHORIZATION_FAILED: task 0_0, words-0: ")
    assert "let the user of this worker read the topic" in str(told)

    station.hand.holds = False
    (*_, asked_for) = commits(station)
    station.hand.commit(asked_for)
    bench.until(lambda: bench.committed[words(0)][0] == 4)
    bench.run(0.1)
    assert station.rows(0) == {"a": b"1", "b": b"3"}


@pytest.mark.parametrize("code", [NOT_ALLOWED, GONE])
@pytest.mark.parametrize("dirty", [False, True])
def test_revoked_task_with_a_denied_commit_is_released(
    bench: VirtualCluster, code: int, *, dirty: bool
) -> None:
    """The task waited for the time to revoke, 60 s, and was then lost."""
    station = with_one_commit(bench, T0)
    if dirty:
        bench.feed(0, "b")
        bench.run(0.05)
    station.hand.revoke(T0, number=7)
    bench.run(0.05)
    assert station.hand.released() == []

    deny(station, code)
    bench.until(station.hand.released, 0.2)
    bench.run(1)

    assert station.states(T0)[-1] == "closed"
    assert len(errors(station)) == 1
    assert len(commits(station)) == 1
    assert station.rows(0) == {}


def test_denied_commit_of_a_lost_task_is_not_reported(bench: VirtualCluster) -> None:
    """Another worker has the task, and gets its own answers."""
    station = with_one_commit(bench, T0, T1)
    station.hand.lose(T0)
    bench.run(0.05)
    deny(station, NOT_ALLOWED)
    bench.run(0.5)
    assert errors(station) == []
    assert (station.states(T0)[-1], station.rows(1)) == ("closed", {"a": b"1"})


def test_commit_refused_for_an_unknown_topic_is_retried_in_the_next_cycle(
    bench: VirtualCluster,
) -> None:
    """Input had ended, and the commit was never tried again."""
    station = with_one_commit(bench, T0)
    for count in (2, 3):
        deny(station, GONE)
        bench.until(lambda n=count: len(commits(station)) == n, 5)  # type: ignore[misc]
    station.hand.holds = False
    (*_, asked) = commits(station)
    station.hand.commit(asked)
    bench.run(2)

    assert bench.committed[words(0)][0] == 1
    assert station.states(T0)[-1] == "running"
    assert len(errors(station)) == 1
    assert station.rows(0) == {"a": b"1"}


def refusing(code: int, partitions: range) -> Callable[[Service, ServedRequest], ReplyBody | None]:
    """Make the broker refuse commits of these partitions."""

    def answer(service: Service, call: ServedRequest) -> ReplyBody | None:
        if call.api is not Api.OFFSET_COMMIT:
            return answered(service, call)
        parts = [
            {"partition_index": p.partition_index, "error_code": code if denied else 0}
            for topic in call.body.topics
            for p in topic.partitions
            for denied in [p.partition_index in partitions]
        ]
        return {"topics": [{"name": "words", "partitions": parts}]}

    return answer


def test_worker_with_a_denied_task_leaves_in_time(bench: VirtualCluster) -> None:
    bench.answer = refusing(NOT_ALLOWED, range(1))
    station = bench.station(counting(), by_hand=False)
    for partition in range(3):
        bench.feed(partition, "a")
    bench.until(lambda: station.begun and station.told("error"))
    bench.run(1)
    station.process.signal(signal.SIGTERM)
    bench.until(lambda: not station.process.alive, 5)
    assert station.main.result == 0
    assert len(errors(station)) == 1


def test_worker_denied_access_to_the_group_ends_with_a_setting_error(bench: VirtualCluster) -> None:
    bench.answer = refusing(ErrorCode.GROUP_AUTHORIZATION_FAILED, range(3))
    station = bench.station(counting(), by_hand=False)
    bench.feed(0, "a")
    bench.until(lambda: not station.process.alive)
    assert isinstance(station.main.error, SettingError)
    assert "GROUP_AUTHORIZATION_FAILED: the group refuses this worker: let the user" in str(
        station.main.error
    )
