"""Whole workers under `consumer_auto_offset_reset=latest`, and their first records."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

import pytest

from streamsx.group import member_events as e
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.testing import TestDriver
from tests.unit.conftest import app_of, counting, words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from streamsx import App, Stream
    from tests.unit.conftest import VirtualCluster, WorkerHarness

T0 = TaskId(0, 0)


def grouping(seen: list[str], *, hangs: bool = False, reset: str = "latest") -> App:
    """Return an app that reads `words`, groups them, and reads them again; the second body may
    hang.
    """
    app = app_of(consumer_auto_offset_reset=reset)

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def group(stream: Stream[str]) -> None:
        async for word in stream.group_by(lambda word: word, name="word", partitions=2):
            if hangs:
                await asyncio.sleep(3600)
            seen.append(word)

    return app


def start(
    bench: VirtualCluster, app: App, name: str = "w1", old: WorkerHarness | None = None
) -> WorkerHarness:
    stores = None if old is None else old.stores
    station = bench.station(app, name, by_hand=False, stores=stores)
    bench.until(lambda: station.begun)
    return station


def runs(station: WorkerHarness, tasks: int) -> bool:
    """Return whether this many tasks run, and the group has their offsets."""
    actives = station.made.tasks.actives if station.begun else {}
    return len(actives) == tasks and not any(active.paused for active in actives.values())


def stop(bench: VirtualCluster, station: WorkerHarness) -> None:
    station.process.signal(signal.SIGTERM)
    bench.until(lambda: not station.process.alive, 30)


def commits(station: WorkerHarness) -> list[e.Commit]:
    return [event for event in station.hand.posted if isinstance(event, e.Commit)]


def feed(bench: VirtualCluster, names: Iterable[str]) -> None:
    for number, name in enumerate(names):
        bench.feed(number % 3, name)


def test_idle_worker_after_restart_reads_records_sent_while_down(
    bench: VirtualCluster,
) -> None:
    app = counting(consumer_auto_offset_reset="latest")
    feed(bench, "ooo")
    first = start(bench, app)
    bench.until(lambda: runs(first, 3))
    stop(bench, first)
    feed(bench, "nnnnn")
    second = start(bench, app, old=first)
    bench.until(lambda: bench.counted()["n"] == 5, 20)
    assert bench.counted() == {"n": 5}
    stop(bench, second)


def test_killed_reader_of_a_repartition_topic_begins_at_the_topic_start(
    bench: VirtualCluster,
) -> None:
    """The task that forwarded the records has committed its source: no worker would send them
    again.
    """
    seen: list[str] = []
    first = start(bench, grouping(seen, hangs=True))
    bench.until(lambda: runs(first, 5))
    feed(bench, ["a", "b", "c", "d", "e"])
    bench.run(5)
    first.process.kill()
    second = start(bench, grouping(seen), old=first)
    bench.until(lambda: len(seen) >= 5, 30)
    assert sorted(seen) == ["a", "b", "c", "d", "e"]
    stop(bench, second)


def test_repartition_topic_without_offsets_is_read_from_the_start(bench: VirtualCluster) -> None:
    """One worker of two is killed before its tasks start; the other one has forwarded meanwhile."""
    seen: list[str] = []
    app = grouping(seen)
    (topic,) = app.topology().own
    bench.create(topic, 2)
    bench.append(TopicPartition(topic, 1), [(b'"early"', b"early")])
    station = start(bench, app)
    bench.until(lambda: seen == ["early"], 20)
    stop(bench, station)


@pytest.mark.parametrize("runs_meanwhile", [True, False])
def test_new_partitions_are_read_from_their_start(
    bench: VirtualCluster, *, runs_meanwhile: bool
) -> None:
    """The first record is written before any member knows the partition."""
    app = app_of(consumer_auto_offset_reset="latest")
    seen: list[str] = []

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def read(stream: Stream[str]) -> None:
        async for word in stream:
            seen.append(word)

    bench.feed(0, "old")
    station = start(bench, app)
    bench.until(lambda: runs(station, 3))
    if not runs_meanwhile:
        stop(bench, station)
    bench.grow("words", 4)
    bench.append(words(3), [(None, b"new")])
    station = station if runs_meanwhile else start(bench, app, old=station)
    bench.until(lambda: runs(station, 4), 20)
    bench.until(lambda: seen == ["new"], 5)
    stop(bench, station)


def test_task_is_not_fed_before_the_start_offset_is_committed(bench: VirtualCluster) -> None:
    """After a kill before that, the next owner begins at a later end: no record may be done by
    then.
    """
    bench.uncommitted = (-1, "")
    station = bench.begun(counting(consumer_auto_offset_reset="latest", commit_interval=20.0))
    station.hand.holds = True
    station.hand.plan(T0)
    bench.until(lambda: any(isinstance(event, e.Commit) for event in station.hand.posted), 5)
    bench.feed(0, "a", "b")
    bench.run(5)
    (asked,) = (event for event in station.hand.posted if isinstance(event, e.Commit))
    assert asked.offsets[words(0)][0] == 0
    assert station.made.tasks.actives[T0].task.taken == {"words": 0}
    station.hand.commit(asked)
    bench.until(lambda: station.made.tasks.actives[T0].task.taken == {"words": 2}, 1)


def test_refused_first_commit_is_waited_for(bench: VirtualCluster) -> None:
    """A restarted broker did not know the topic, and the task ran without an offset. After a kill
    the next owner begins at a later end, or finds state without offsets.
    """
    bench.uncommitted = (-1, "")
    station = bench.begun(counting(consumer_auto_offset_reset="latest"))
    station.hand.holds = True
    station.hand.plan(T0)
    bench.until(lambda: commits(station), 5)
    refused = {words(0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    station.deliver(e.CommitDone(commits(station)[-1].id, refused))
    bench.feed(0, "a", "b")
    bench.until(lambda: len(commits(station)) == 2, 5)
    assert station.made.tasks.actives[T0].task.taken == {"words": 0}
    station.hand.commit(commits(station)[-1])
    bench.until(lambda: station.made.tasks.actives[T0].task.taken == {"words": 2}, 1)


def test_driver_under_latest_reads_all_records() -> None:
    seen: list[str] = []
    with TestDriver(grouping(seen)) as driver:
        driver.pipe("words", ["a"])
        driver.restart()
        driver.pipe("words", ["b"])
    assert seen == ["a", "b"]
