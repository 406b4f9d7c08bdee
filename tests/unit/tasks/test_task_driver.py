"""The data loop of a real worker and broker; the group is played by hand."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest

from streamsx.assignor.model import CopyRole
from streamsx.broker.api.served import Handler, answered
from streamsx.errors import Fenced
from streamsx.group import member_events as e
from streamsx.group.member_events import Joining
from streamsx.model import TaskId
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.schema import UUID_ZERO
from streamsx.protocol.wire import Api
from tests.unit.conftest import ROWS_PER_BATCH, app_of, changelog, counting, words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamsx import App, Stream
    from streamsx.broker.groups.coordinator_events import ReplyBody
    from streamsx.broker.net.client_connection import ServedRequest
    from streamsx.broker.service import Service
    from streamsx.model import TopicPartition
    from tests.unit.conftest import VirtualCluster

T0, T1, T2 = TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)


# -- records


def test_task_resumes_at_the_committed_position_and_commits_progress(bench: VirtualCluster) -> None:
    station = bench.begun(counting())
    bench.feed(0, "a", "b", "a", "c")
    bench.committed[words(0)] = (1, "")
    station.hand.plan(T0)
    bench.until(lambda: bench.committed[words(0)][0] == 4)
    assert sorted(bench.read(changelog(0))) == [(b'"a"', b"1"), (b'"b"', b"1"), (b'"c"', b"1")]
    bench.run(0.1)
    assert station.rows(0) == {"a": b"1", "b": b"1", "c": b"1"}
    assert station.position(0) == 3


def test_task_continued_by_spark_is_refused(bench: VirtualCluster) -> None:
    station = bench.begun(counting())
    bench.feed(0, "a")
    bench.committed[words(0)] = (0, OffsetMetadata(7, spark="s3://bucket/state").encode())
    station.hand.plan(T0)
    bench.until(lambda: station.told("error"))
    (told,) = station.told("error")
    assert "spark handover MODULE --state s3://bucket/state" in str(told["what"])
    assert bench.read(changelog(0)) == []


def test_source_held_far_above_the_share_is_read_to_the_end(
    bench: VirtualCluster,
) -> None:
    app = counting(
        fetch_hold_bytes="64KiB", consumer_max_fetch_size="16KiB", fetch_max_bytes="16KiB"
    )
    station = bench.begun(app)
    for _ in range(40):
        bench.feed(0, *(["x" * 100] * 100))
    station.hand.plan(T0)
    bench.until(lambda: bench.committed.get(words(0)) is not None, 10)
    bench.until(lambda: bench.committed[words(0)][0] == 4000, 10)


def test_truncated_log_is_read_from_the_start(bench: VirtualCluster) -> None:
    station = bench.begun(counting())
    bench.feed(0, "a", "b")
    bench.feed(0, "c")
    bench.run(0.1)
    bench.at_broker(lambda: bench.log(words(0)).delete_before(2))
    bench.committed[words(0)] = (1, "")
    station.hand.plan(T0)
    bench.until(lambda: bench.committed[words(0)][0] == 3)
    assert bench.read(changelog(0)) == [(b'"c"', b"1")]


def test_log_ending_before_the_position_is_reread_without_topic_ids(bench: VirtualCluster) -> None:
    """The broker has no ids, so it may be another topic; `test_sources` has those with ids."""

    def without_ids(service: Service, call: ServedRequest) -> ReplyBody | None:
        body = answered(service, call)
        if call.api is Api.METADATA and body is not None:
            for topic in body["topics"]:
                topic["topic_id"] = UUID_ZERO
        return body

    bench.answer = without_ids
    station = bench.begun(counting())
    bench.feed(0, "a", "b")
    bench.committed[words(0)] = (5, "")
    station.hand.plan(T0)
    bench.until(lambda: bench.committed[words(0)][0] == 2, 10)
    assert sorted(bench.read(changelog(0))) == [(b'"a"', b"1"), (b'"b"', b"1")]


def test_stale_log_start_is_ignored_by_a_task_reassigned_meanwhile(bench: VirtualCluster) -> None:
    """Another worker has continued from there: no record is read twice."""

    def no_leader(service: Service, call: ServedRequest) -> ReplyBody | None:
        body = answered(service, call)
        if call.api is Api.LIST_OFFSETS and body is not None:
            topics = [topic for topic in body["topics"] if topic["name"] == "words"]
            for part in (part for topic in topics for part in topic["partitions"]):
                part["error_code"] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return body

    station = bench.begun(counting())
    bench.feed(0, "a", "b")
    bench.feed(0, "c", "d")
    bench.run(0.1)
    bench.at_broker(lambda: bench.log(words(0)).delete_before(2))
    bench.committed[words(0)] = (1, "")
    bench.answer = no_leader
    station.hand.plan(T0)
    bench.run(1)
    station.hand.revoke(T0)
    bench.until(lambda: station.states(T0)[-1] == "closed")
    bench.committed[words(0)] = (3, "")
    station.hand.plan(T0)
    bench.until(lambda: bench.committed[words(0)][0] == 4)
    bench.answer = answered
    bench.run(3)
    assert bench.read(changelog(0)) == [(b'"d"', b"1")]


@pytest.mark.parametrize(
    "code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_SERVER_ERROR]
)
def test_task_denied_the_log_start_waits_and_others_continue(
    bench: VirtualCluster, code: ErrorCode
) -> None:
    """The denied task ended the worker, and then each next owner of the task."""

    def refuses(service: Service, call: ServedRequest) -> ReplyBody | None:
        body = answered(service, call)
        if call.api is Api.LIST_OFFSETS and body is not None:
            for topic in body["topics"]:
                for part in topic["partitions"]:
                    if refused and topic["name"] == "words" and not part["partition_index"]:
                        part["error_code"] = code
        return body

    refused = True
    bench.answer, bench.uncommitted = refuses, (-1, "")
    station = bench.begun(counting())
    bench.feed(0, "a")
    bench.feed(1, "b")
    station.hand.plan(T0, T1)
    bench.until(lambda: bench.committed.get(words(1), (0, ""))[0] == 1, 5)
    bench.run(5)
    assert words(0) not in bench.committed
    refused = False
    bench.until(lambda: words(0) in bench.committed, 5)


def test_permanently_damaged_source_is_reported_and_others_continue(bench: VirtualCluster) -> None:
    station = bench.begun(counting())
    bench.feed(0, "a")
    bench.run(0.1)
    (path,) = bench.log(words(0)).folder.glob("*.log")
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    station.hand.plan(T0, T1)
    bench.until(lambda: station.told("error"), 30)
    bench.feed(1, "b")
    bench.until(lambda: words(1) in bench.committed)
    (told,) = station.told("error")
    assert "words-0" in str(told)
    assert "offset 0" in str(told)
    assert words(0) not in bench.committed


# -- hand-overs


def test_released_task_stops_reading_ends_bodies_and_writes_committed_rows(
    bench: VirtualCluster,
) -> None:
    ended: list[str] = []
    app = app_of()
    counts = app.Table("counts", default=int, key_type=str, value_type=int)

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def count(stream: Stream[str]) -> None:
        try:
            async for word in stream:
                counts[word] += 1
        finally:
            ended.append("body")

    station = bench.begun(app)
    ended.clear()  # of those that were looked into
    bench.feed(0, "a", "b")
    station.hand.holds = True
    station.hand.plan(T0)
    bench.until(lambda: "running" in station.states(T0))
    bench.run(0.1)
    station.hand.revoke(T0, number=7)
    bench.run(0.5)
    bench.feed(0, "too late")
    (asked,) = [event for event in station.hand.posted if isinstance(event, e.Commit)]
    assert station.states(T0)[-1] == "suspended"
    assert station.hand.released() == []
    assert station.rows(0) == {}

    station.hand.commit(asked)
    bench.until(station.hand.released)
    assert station.hand.released() == [7]
    assert bench.committed[words(0)][0] == 2
    bench.until(lambda: station.states(T0)[-1] == "closed")
    assert ended == ["body"]
    assert station.rows(0) == {"a": b"1", "b": b"1"}
    assert station.position(0) == 2
    over = bench.scheduler.now
    bench.run(2)
    assert words(0) not in [tp for tp, _ in bench.fetched(over + 0.5)]
    assert len([event for event in station.hand.posted if isinstance(event, e.Commit)]) == 1


def test_lost_task_is_not_committed_and_the_store_rolls_back(
    bench: VirtualCluster,
) -> None:
    station = bench.begun(counting())
    bench.feed(0, "a")
    station.hand.plan(T0)
    bench.until(lambda: words(0) in bench.committed)
    bench.run(0.1)
    station.hand.holds = True
    bench.feed(0, "a", "b")
    bench.until(lambda: len(bench.read(changelog(0))) > 1)
    station.hand.lose(T0)
    bench.until(lambda: station.states(T0)[-1] == "closed")
    assert bench.committed[words(0)][0] == 1
    assert station.rows(0) == {"a": b"1"}
    assert station.hand.released() == []


def test_stream_time_survives_a_hand_over(bench: VirtualCluster) -> None:
    first = bench.begun(counting(), "w1")
    bench.feed(0, "a", at_ms=5_000_000)
    first.hand.plan(T0)
    bench.until(lambda: words(0) in bench.committed)
    first.hand.revoke(T0)
    bench.until(first.hand.released)

    second = bench.begun(counting(), "w2")
    second.hand.plan(T0)
    bench.until(lambda: "running" in second.states(T0))
    assert second.made.tasks.actives[T0].task.stream_time == 5_000_000
    assert second.made.tasks.actives[T0].task.taken == {"words": 1}


def test_worker_without_a_lease_processes_and_sends_nothing(bench: VirtualCluster) -> None:
    station = bench.begun(counting())
    station.hand.plan(T0)
    bench.until(lambda: "running" in station.states(T0))
    station.made.session.member.lease.until = bench.scheduler.now
    bench.feed(0, "a")
    bench.run(5)
    assert station.made.tasks.actives[T0].task.taken == {"words": 0}
    assert bench.read(changelog(0)) == []
    station.made.session.member.lease.until = bench.scheduler.now + 100
    bench.until(lambda: words(0) in bench.committed)


# -- restores


def test_active_task_restores_the_whole_changelog_before_running(bench: VirtualCluster) -> None:
    station = bench.begun(counting())
    end = bench.remember(changelog(0), 10)
    bench.feed(0, "000007")
    station.hand.plan(T0)
    bench.until(lambda: words(0) in bench.committed)
    bench.run(0.1)
    assert station.states(T0) == ["opening", "restoring", "running"]
    assert station.rows(0)["000007"] == b"8"
    assert len(station.rows(0)) == end


def test_learner_follows_the_changelog_and_announces_being_near(bench: VirtualCluster) -> None:
    station = bench.begun(counting(acceptable_recovery_lag=100))
    end = bench.remember(changelog(0), 10)
    station.hand.plan(learners=[T0])
    bench.until(lambda: e.Ready() in station.hand.posted)
    assert station.states(T0)[-1] == "tailing"
    assert station.position(0) >= end - 100
    bench.remember(changelog(0), 1)
    bench.until(lambda: station.position(0) == end + ROWS_PER_BATCH, 5)
    assert station.hand.posted.count(e.Ready()) == 1


def test_learner_dropped_during_restore_stops_restoring(
    bench: VirtualCluster,
) -> None:
    station = bench.begun(counting(acceptable_recovery_lag=0))
    station.write_s = 0.01
    end = bench.remember(changelog(0), 40)
    station.hand.plan(learners=[T0])
    bench.until(lambda: station.position(0) >= 1000)
    station.hand.plan()
    bench.until(lambda: station.states(T0)[-1] == "closed")
    at, over = station.position(0), bench.scheduler.now
    bench.run(5)
    assert at == station.position(0) < end
    assert changelog(0) not in [tp for tp, _ in bench.fetched(over + 0.5)]
    assert e.Ready() not in station.hand.posted


def test_copy_is_reported_by_role_and_a_closing_copy_as_dormant(
    bench: VirtualCluster,
) -> None:
    """Members report these copies in a join, and the plan depends on them."""
    station = bench.begun(counting(acceptable_recovery_lag=0))
    for partition in (0, 1):
        bench.remember(changelog(partition), 1)

    def copies() -> dict[TaskId, tuple[CopyRole, int | None]]:
        station.made.reports.publish()
        found = station.made.session.builder.report.copies
        return {task: (copy.role, copy.lag) for task, copy in found.items()}

    bench.answer = without(changelog(0).topic)
    station.hand.plan(T0, learners=[T1])
    bench.run(2)
    assert copies() == {
        T0: (CopyRole.RESTORING, ROWS_PER_BATCH), T1: (CopyRole.LEARNER, ROWS_PER_BATCH),
    }  # fmt: skip
    bench.answer = answered
    bench.until(lambda: station.states(T0)[-1] == "running" and e.Ready() in station.hand.posted)
    assert copies() == {T1: (CopyRole.LEARNER, 0)}
    bench.scheduler.disk_s = 10.0
    station.hand.plan(T0)
    bench.run(0.1)
    assert station.states(T1)[-1] == "closing"
    assert copies() == {T1: (CopyRole.DORMANT, 0)}


def test_late_answer_for_a_closed_task_is_ignored(bench: VirtualCluster) -> None:
    """Its changelog has no leader; the task closes; then a leader is elected."""
    station = bench.begun(counting())
    bench.remember(changelog(0), 1)

    def leaderless(service: Service, call: ServedRequest) -> ReplyBody | None:
        if call.api is not Api.LIST_OFFSETS:
            return answered(service, call)
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        parts = [{"partition_index": 0, "error_code": code}]
        return {"topics": [{"name": changelog(0).topic, "partitions": parts}]}

    bench.answer = leaderless
    station.hand.plan(learners=[T0])
    bench.run(1)
    assert station.states(T0)[-1] == "opening"
    station.hand.plan()
    bench.until(lambda: station.states(T0)[-1] == "closed")
    bench.answer = answered
    bench.run(5)
    assert (station.process.alive, station.told("error")) == (True, [])
    station.hand.plan(learners=[T0])
    bench.until(lambda: e.Ready() in station.hand.posted)


def test_positions_of_an_earlier_assignment_are_ignored(bench: VirtualCluster) -> None:
    """The task was assigned, revoked, closed, run elsewhere and assigned again: then they come."""
    station = bench.begun(counting())
    bench.feed(0, "a", "b", "c")
    bench.run(0.1)
    asked: list[int] = []

    async def late(tps: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, str]]:
        found = {tp: bench.committed[tp] for tp in tps}
        asked.append(found[words(0)][0])
        await asyncio.sleep(len(asked))
        return found

    station.made.bounds.committed.of = late  # type: ignore[method-assign]
    bench.committed[words(0)] = (1, "")
    station.hand.plan(T0)
    bench.run(0.2)
    station.hand.revoke(T0)
    bench.until(lambda: station.states(T0)[-1] == "closed")
    bench.committed[words(0)] = (2, "")
    station.hand.plan(T0)
    bench.until(lambda: bench.committed[words(0)][0] == 3)
    assert asked == [1, 2]
    assert bench.read(changelog(0)) == [(b'"c"', b"1")]


@pytest.mark.parametrize("role", ["active", "learner"])
def test_changelog_truncated_under_a_reader_does_not_hang_the_restore(
    bench: VirtualCluster, role: str
) -> None:
    """The records that were read are from before the cut; the next ones begin after it."""
    station = bench.begun(counting(acceptable_recovery_lag=0))
    log = changelog(0)
    end = bench.remember(log, 40, b"1%099d")

    def cut_behind_the_first_answer(service: Service, call: ServedRequest) -> ReplyBody | None:
        tp, offset = bench.fetched(0)[-1] if call.api is Api.FETCH else (log, 0)
        if tp == log and offset:
            bench.log(log).delete_before(end - 100)
        return answered(service, call)

    bench.answer = cut_behind_the_first_answer
    active, learners = ([T0], []) if role == "active" else ([], [T0])
    station.hand.plan(*active, learners=learners)
    bench.until(lambda: station.position(0) == end, 20)
    assert station.rows(0).keys() == {f"{n:06d}" for n in range(end - 100, end)}
    assert "restoring it from the start" in str(station.told("error"))
    bench.run(0.1)
    assert station.states(T0)[-1] == ("running" if role == "active" else "tailing")


def test_task_lag_is_that_of_the_store_furthest_behind(bench: VirtualCluster) -> None:
    station = bench.begun(counting(tables=1, acceptable_recovery_lag=10))
    bench.remember(changelog(0), 1)
    end = bench.remember(changelog(0, "other0"), 4)
    bench.answer = without(changelog(0, "other0").topic)
    station.hand.plan(learners=[T0])
    bench.run(5)
    assert station.made.restorer.lag(T0) == end
    copy = station.made.session.builder.report.copies[T0]
    assert (copy.role, copy.lag) == (CopyRole.LEARNER, end)
    assert e.Ready() not in station.hand.posted
    bench.answer = answered
    bench.until(lambda: e.Ready() in station.hand.posted)


def test_learner_without_progress_for_a_minute_is_reported_as_stalled(
    bench: VirtualCluster,
) -> None:
    station = bench.begun(counting(acceptable_recovery_lag=0))
    bench.remember(changelog(0), 1)
    builder, bench.answer = station.made.session.builder, without(changelog(0).topic)
    station.hand.plan(learners=[T0])
    bench.run(58)
    assert builder.report.stalled == frozenset()
    bench.run(5)
    assert builder.report.stalled == {T0}
    bench.answer = answered
    bench.until(lambda: e.Ready() in station.hand.posted)
    assert builder.report.stalled == frozenset()


def without(topic: str) -> Handler:
    """Return a broker that does not lead this topic at the time of reading."""

    def answer(service: Service, call: ServedRequest) -> ReplyBody | None:
        names = sorted(asked.topic for asked in call.body.topics) if call.api is Api.FETCH else []
        if topic not in names:
            return answered(service, call)
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        part = {"partition_index": 0, "error_code": code, "high_watermark": -1, "records": b""}
        return {"responses": [{"topic": topic, "partitions": [part]}]}

    return answer


def working(bench: VirtualCluster, record_s: float, **settings: Any) -> App:
    """Return an app whose records each hold the data loop for so long."""
    app = app_of(**settings)
    counts = app.Table("counts", default=int, key_type=str, value_type=int)
    elapse = bench.scheduler.elapse

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def count(stream: Stream[str]) -> None:
        async for word in stream:
            elapse(record_s)
            counts[word] += 1

    return app


@pytest.mark.parametrize(("role", "share"), [("active", 0.5), ("learner", 0.2)])
def test_restore_gets_a_share_beside_a_busy_task(
    bench: VirtualCluster, role: str, share: float
) -> None:
    """It gets a larger share while no task is processed."""
    station = bench.begun(working(bench, 0.0005, acceptable_recovery_lag=0))
    for _ in range(20):
        bench.feed(0, *["w"] * ROWS_PER_BATCH)
    bench.remember(changelog(1), 40)
    station.hand.plan(T0)
    bench.until(lambda: words(0) in bench.committed)
    station.write_s = 0.001
    active = [T0, T1] if role == "active" else [T0]
    station.hand.plan(*active, learners=[] if role == "active" else [T1])
    bench.until(lambda: station.position(1))
    before, began = station.writes, bench.scheduler.now
    bench.until(lambda: station.position(1) >= 20_000)
    took = bench.scheduler.now - began
    assert bench.committed[words(0)][0] < 10_000, "it was busy all the time"
    assert (station.writes - before) * station.write_s / took == pytest.approx(share, rel=0.35)


# -- what stays on a disk


def test_dormant_store_reports_current_lag(bench: VirtualCluster) -> None:
    station = bench.begun(counting())
    bench.feed(0, "a")
    station.hand.plan(T0)
    bench.until(lambda: words(0) in bench.committed)
    station.hand.revoke(T0)
    bench.until(lambda: station.states(T0)[-1] == "closed")
    bench.remember(changelog(0), 2)
    bench.run(3)
    assert station.made.session.builder.report.copies[T0].lag == 2 * ROWS_PER_BATCH


# -- what the member is told and says


def test_first_signal_leaves_within_the_shorter_limit_and_second_stops_now(
    bench: VirtualCluster,
) -> None:
    station = bench.begun(counting(shutdown_timeout=20, scale_down_timeout=300))
    now = bench.scheduler.now
    for _ in range(2):
        station.process.signal(signal.SIGTERM)
        bench.run(0.1)
    leave, stop = station.hand.posted
    assert isinstance(leave, e.Leave)
    assert isinstance(stop, e.Stop)
    assert leave.deadline == pytest.approx(now + 20, abs=0.1)
    assert stop.deadline == pytest.approx(now + 5.1, abs=0.1)


def test_worker_out_of_the_group_closes_all_tasks_and_ends(bench: VirtualCluster) -> None:
    station = bench.begun(counting())
    bench.feed(0, "a")
    station.hand.plan(T0, learners=[T1])
    bench.until(lambda: words(0) in bench.committed)
    station.deliver(e.Left())
    bench.until(lambda: not station.process.alive, 5)
    assert station.main.result == 0
    assert station.states(T0)[-1] == station.states(T1)[-1] == "closed"
    assert station.rows(0) == {"a": b"1"}


def test_worker_refused_by_the_group_ends_with_the_reason(bench: VirtualCluster) -> None:
    station = bench.begun(counting())
    station.deliver(e.Fatal("GROUP_MAX_SIZE_REACHED"))
    bench.until(lambda: not station.process.alive, 5)
    assert isinstance(station.main.error, Fenced)
    assert "GROUP_MAX_SIZE_REACHED" in str(station.main.error)


def test_gaps_are_reported_for_tasks_kept_through_a_rebalance(bench: VirtualCluster) -> None:
    """While they ran before a rebalance, and during it."""
    station = bench.begun(counting())
    station.hand.plan(T0)
    bench.until(lambda: "running" in station.states(T0))
    bench.run(10)
    bench.feed(0, "a", "b")
    bench.run(1)
    station.deliver(Joining(1, "a member has joined"))
    bench.feed(0, "c")
    station.hand.plan(T0, T1)
    bench.run(2)
    calm, gap = station.told("calm_gap"), station.told("gap")
    assert [told["task"] for told in calm] == ["0_0"]
    assert [told["task"] for told in gap if told["task"] == "0_1"] == []
    assert gap[-1]["task"] == "0_0"
    assert all(0 <= float(str(told["ms"])) < 500 for told in [*calm, *gap])
    assert calm[0]["seconds"] == pytest.approx(10.5, abs=0.7)


def test_rebalance_is_summarized_once_when_its_rounds_are_over(bench: VirtualCluster) -> None:
    station = bench.begun(counting())
    station.hand.plan(T0)
    bench.run(1)
    for tasks in ((T0, T1), (T0, T1, T2)):
        station.deliver(Joining(1, "a member came"))
        station.hand.plan(*tasks)
        bench.run(0.2)
    bench.run(1)
    station.deliver(Joining(1, "a tool asks"))
    station.hand.plan(T0, T1, T2)
    bench.run(1)

    first, second = station.told("rebalanced")
    assert first["runs"] == ["0_0"]
    assert second["runs"] == ["0_0", "0_1", "0_2"]
    assert second["gained"] == ["0_1", "0_2"]
    assert (second["lost"], second["learns"], second["rounds"]) == ([], [], 2)
    assert 200 <= float(str(second["ms"])) < 500


def test_first_job_failure_is_reported_despite_later_events(bench: VirtualCluster) -> None:
    """No new job can start by then, and that error would be reported instead."""
    station = bench.begun(counting())
    station.hand.plan(T0)
    bench.until(lambda: "running" in station.states(T0))
    station.refusals = [ValueError("planted")]
    station.hand.plan(T0, T1, T2)
    bench.until(lambda: not station.refusals)
    for number in range(20):
        station.hand.revoke(T0, number=number)
    bench.until(lambda: not station.process.alive, 10)
    assert isinstance(station.main.error, ValueError)
