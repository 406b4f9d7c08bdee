"""Failures of records while a flushed transaction waits for its end: whole workers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import streamsx
from streamsx import App, Stream, tumbling
from streamsx.broker.api.served import answered
from streamsx.model import TopicPartition
from tests.flows.test_retrying_workers import committed as read_committed
from tests.unit.conftest import HOST, PORT, VirtualCluster
from tests.unit.tasks.test_transactional_committer import (
    PARTITIONS,
    app_of,
    bench,
    committed_of,
    feed,
    not_ended_yet,
    outputs,
)

if TYPE_CHECKING:
    from tests.unit.conftest import WorkerHarness

__all__ = ["bench"]


def flushed(bench: VirtualCluster, seen: list[str], app: App) -> WorkerHarness:
    """Start a worker, and feed it until its first transaction with records waits for its end."""
    station = bench.station(app, "w0", by_hand=False)
    bench.until(lambda: committed_of(station, "tasks") >= PARTITIONS)
    bench.answer = not_ended_yet
    feed(bench, "a", "b")
    bench.until(lambda: {"a", "b"} <= {*seen})
    bench.run(0.5)
    return station


def committed_outputs(bench: VirtualCluster) -> list[bytes]:
    return sorted(value for n in range(PARTITIONS) for _, value in read_committed(bench, "out", n))


def test_records_of_two_tasks_keep_their_tries_and_abort_once(bench: VirtualCluster) -> None:
    """The first one aborted. The second one forgot its try and its wait, and aborted again."""
    seen = list[str]()
    policy = streamsx.retry(attempts=2, backoff="5s", then="log")
    station = flushed(bench, seen, app_of(seen=seen, on_error=policy))
    feed(bench, "poison0", "poison1")
    bench.until(lambda: {"poison0", "poison1"} <= {*seen}, 1)
    bench.answer = answered
    bench.run(4)
    assert Counter(seen) == dict.fromkeys(["a", "b", "poison0", "poison1"], 1)
    bench.run(6)
    assert Counter(seen) == {"a": 1, "b": 1, "poison0": 2, "poison1": 2}
    told = Counter((each["attempt"], each["action"]) for each in station.told("failed"))
    assert told == {(1, "retry"): 2, (2, "log"): 2}
    assert len(station.told("aborted")) == 1


def test_other_agents_of_a_failed_task_take_no_more_records(bench: VirtualCluster) -> None:
    """What they ask of other systems is asked again when the task goes back."""
    seen = list[str]()
    app = app_of(seen=seen)

    @app.agent(app.topic("in", value_type=str, value_serializer="raw"))
    async def wait_a_little(stream: Stream[str]) -> None:
        async for word in stream:
            await asyncio.sleep(0.01)
            seen.append(f"{word} by the other one")

    flushed(bench, seen, app)
    seen.clear()
    records = [(None, b"poison"), *((None, b"word-%d" % n) for n in range(50))]
    bench.append(TopicPartition("in", 0), records)
    bench.until(lambda: "poison" in seen, 1)
    bench.run(2)
    assert len(seen) <= 3
    bench.answer = answered
    bench.until(lambda: len(outputs(bench)) == 52, 20)


@pytest.mark.parametrize("policy", ["stop", "stop_app"])
def test_worker_that_a_record_ends_commits_what_came_before(
    bench: VirtualCluster, policy: str
) -> None:
    """The flushed transaction was aborted, with all that was done behind it."""
    seen = list[str]()
    station = flushed(bench, seen, app_of(seen=seen, on_error=policy))
    feed(bench, "poison", "c")
    bench.until(lambda: "c" in seen, 1)
    bench.answer = answered
    bench.until(lambda: not station.process.alive, 20)
    assert {*outputs(bench)} == {b"a", b"b", b"c"}
    assert committed_of(station, "records") == 3
    (told,) = station.told("error")
    assert "its policy is stop" in str(told["what"])


@pytest.mark.parametrize("setting", ["on_error", "on_decode_error"])
@pytest.mark.parametrize("bad_tasks", [1, 3])
def test_worker_that_ends_again_and_again_gets_on_in_its_other_tasks(
    bench: VirtualCluster, setting: str, bad_tasks: int
) -> None:
    """Each life aborted all, and the next one began at the same places."""
    app = App(
        "exact", processing_guarantee="exactly_once", broker=f"{HOST}:{PORT}",
        memory_budget="32MiB", **{setting: "stop"},
    )  # fmt: skip
    counts = app.Table("counts", default=int, partitions=PARTITIONS)

    @app.agent(app.topic("in", value_type=int))
    async def count(stream: Stream[int]) -> None:
        async for number in stream:
            if number < 0:
                raise ValueError(number)
            counts[str(number)] += 1

    for n in range(bad_tasks):
        bad = b"-1" if setting == "on_error" else b"bad"
        bench.append(TopicPartition("in", n), [(None, b"1"), (None, b"2"), (None, bad)])

    def life(number: bytes) -> WorkerHarness:
        bench.append(TopicPartition("in", 3), [(None, number)] * 2000)
        station = bench.station(app, "w0", by_hand=False)
        bench.until(lambda: not station.process.alive, 30)
        return station

    life(b"7")
    assert committed_of(life(b"8"), "records") >= 2000


@pytest.mark.parametrize("policy", ["stop", "stop_app", "stop_task"])
def test_result_that_fails_at_the_last_seal_of_a_stopped_task_ends_that_task_alone(
    bench: VirtualCluster, policy: str
) -> None:
    """The seal was asked again after its error, and the data loop ended with it."""
    app = App(
        "exact", processing_guarantee="exactly_once", broker=f"{HOST}:{PORT}",
        memory_budget="32MiB", on_error=policy,
    )  # fmt: skip
    source = app.topic("in", value_type=str, value_serializer="raw")
    out = app.topic("out", value_type=str, value_serializer="raw")

    @app.agent(source)
    async def note(stream: Stream[str]) -> None:
        async for word in stream:
            if word == "poison":
                raise ValueError(word)
            await out.send(key="k", value=word)

    def once(count: int) -> int:
        if count > 1:
            raise ValueError(count)
        return count

    windows = app.flow(source).group_by_key().window(tumbling("10s"))
    windows.count("counts", emit="commit").map_values(once).to("results")
    station = bench.station(app, "w0", by_hand=False)
    bench.until(lambda: committed_of(station, "tasks") >= PARTITIONS)
    bench.append(TopicPartition("in", 0), [(b"k", b"a")])
    bench.until(lambda: committed_of(station, "records") == 1, 5)
    bench.append(TopicPartition("in", 0), [(b"k", b"b"), (b"k", b"poison")])
    bench.append(TopicPartition("in", 1), [(b"k", b"x")])
    bench.until(lambda: committed_outputs(bench) == [b"a", b"x"], 20)
    bench.run(20)
    assert station.process.alive == (policy == "stop_task")
    assert not [e for e in station.told("error") if "Transition" in str(e["what"])]


def test_tasks_whose_bytes_are_bad_tell_of_it_once(bench: VirtualCluster) -> None:
    """The first one stopped, and aborted; the second one read its bytes a second time."""
    seen = list[str]()
    app = App(
        "exact", processing_guarantee="exactly_once", broker=f"{HOST}:{PORT}",
        memory_budget="32MiB", on_decode_error="stop_task",
    )  # fmt: skip

    @app.agent(app.topic("in", value_type=str))
    async def note(stream: Stream[str]) -> None:
        async for word in stream:
            seen.append(word)

    station = bench.station(app, "w0", by_hand=False)
    bench.until(lambda: committed_of(station, "tasks") >= PARTITIONS)
    bench.answer = not_ended_yet
    feed(bench, '"a"', '"b"')
    bench.until(lambda: len(seen) == 2)
    bench.run(0.5)
    feed(bench, "x", "x")
    bench.run(0.5)
    bench.answer = answered
    bench.until(lambda: len(station.told("error")) == 2, 10)
    bench.run(5)
    assert Counter(each["task"] for each in station.told("failed")) == {"0_0": 1, "0_1": 1}
    assert len(station.told("error")) == 2
