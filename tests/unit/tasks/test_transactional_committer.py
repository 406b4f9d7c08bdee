"""Commits under exactly-once: whole workers beside a real broker, in virtual time.

Crashes, freezes and fences at each step are in `simulation/test_exactly_once.py`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from streamsx import App, Stream
from streamsx.broker.api.served import answered
from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from streamsx.tasks.transactional_committer import TransactionalCommitter
from tests.unit.conftest import HOST, PORT, VirtualCluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from streamsx.broker.groups.coordinator_events import ReplyBody
    from streamsx.broker.net.client_connection import ServedRequest
    from streamsx.broker.service import Service
    from tests.unit.conftest import WorkerHarness

PARTITIONS = 4


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[VirtualCluster]:
    made = VirtualCluster(tmp_path, {"in": PARTITIONS, "out": PARTITIONS})
    yield made
    made.close()


def app_of(works_s: float = 0.0, seen: list[str] | None = None, **settings: Any) -> App:
    """Return an app that counts words, adds them to `seen`, and sends them.

    Each slow one takes so long, and each poisoned one fails.
    """
    given = {"broker": f"{HOST}:{PORT}", "session_timeout": 10, "memory_budget": "32MiB"}
    app = App("exact", processing_guarantee="exactly_once", **{**given, **settings})
    out = app.topic("out", value_type=str, value_serializer="raw")
    counts = app.Table("counts", default=int, partitions=PARTITIONS)

    @app.agent(app.topic("in", value_type=str, value_serializer="raw"))
    async def work(stream: Stream[str]) -> None:
        async for word in stream:
            counts[word] += 1
            if seen is not None:
                seen.append(word)
            if word.startswith("slow"):
                await asyncio.sleep(works_s)
            if word.startswith("poison"):
                raise ValueError(word)
            await out.send(key="k", value=word)

    return app


def feed(bench: VirtualCluster, *words: str) -> None:
    """Append one word to each partition, from 0 on."""
    for n, word in enumerate(words):
        bench.append(TopicPartition("in", n), [(None, word.encode())])


def committed(bench: VirtualCluster) -> int:
    """Return the last stable offsets of the output: records of transactions that have ended, and
    ends.
    """
    return sum(bench.log(TopicPartition("out", n)).last_stable_offset for n in range(PARTITIONS))


def test_long_bodies_that_are_wanted_back_end_no_worker(bench: VirtualCluster) -> None:
    """Several bodies run for longer than they may: the first one aborts the transaction of all."""
    slow: dict[str, Any] = {"revoke_timeout": 6, "rebalance_timeout": 12}
    first = bench.station(app_of(20.0, **slow), "w0", by_hand=False)
    feed(bench, *["slow"] * PARTITIONS)
    bench.run(3)
    second = bench.station(app_of(20.0, **slow), "w1", by_hand=False)
    bench.until(lambda: first.told("aborted"), 60)
    bench.run(20)
    assert second.told("aborted") == []
    assert "a rebalance moves the task" in str(first.told("aborted")[0]["why"])
    assert not [e for e in first.told("error") if e["where"] == "worker"]
    assert not first.told("lost")


def test_tasks_are_given_back_while_the_body_of_another_one_is_at_work(
    bench: VirtualCluster,
) -> None:
    slow: dict[str, Any] = {"revoke_timeout": 6, "rebalance_timeout": 12}
    first = bench.station(app_of(20.0, **slow), "w0", by_hand=False)
    bench.run(3)
    feed(bench, "quick", "quick", "quick", "slow")
    bench.run(1)
    bench.station(app_of(20.0, **slow), "w1", by_hand=False)
    bench.run(30)
    assert not first.told("lost")


def test_records_sent_by_a_body_outside_of_records_are_committed(bench: VirtualCluster) -> None:
    """It is the only content: the transaction would stay open until its timeout."""
    app = App(
        "exact", processing_guarantee="exactly_once", broker=f"{HOST}:{PORT}", session_timeout=10,
        memory_budget="32MiB",
    )  # fmt: skip
    out = app.topic("out", value_type=str, value_serializer="raw")

    @app.agent(app.topic("in", value_type=str, value_serializer="raw"))
    async def work(stream: Stream[str]) -> None:
        asyncio.get_running_loop().call_later(5.0, lambda: out.send(value="of no record"))
        async for _ in stream:
            pass

    station = bench.station(app, "w0", by_hand=False)
    bench.until(lambda: committed(bench) >= PARTITIONS, 9)
    bench.run(15)
    assert station.told("aborted") == []


def test_a_long_stand_makes_no_long_rest(bench: VirtualCluster) -> None:
    """The next commit would come after the timeout of its transaction."""
    bench.station(app_of(8.0), "w0", by_hand=False)
    feed(bench, "slow")
    bench.until(lambda: committed(bench) > 0, 30)
    feed(bench, "quick")
    before = committed(bench)
    bench.until(lambda: committed(bench) > before, 3)


def test_stopped_task_is_told_once_whatever_is_aborted_later(bench: VirtualCluster) -> None:
    def choose(failure: Any) -> str:
        return "log" if "odd" in str(failure.error) else "stop_task"

    app = app_of(on_error="stop_task")
    counts = app.Table("odd", default=int, partitions=PARTITIONS)

    @app.agent(app.topic("in", value_type=str, value_serializer="raw"), on_error=choose)
    async def fail(stream: Stream[str]) -> None:
        async for given in stream:
            counts[given] += 1
            if given in ("bad", "odd"):
                raise ValueError(given)

    station = bench.station(app, "w0", by_hand=False)
    feed(bench, "bad")
    bench.until(lambda: station.told("error"), 30)
    before = len(station.told("aborted"))
    bench.append(TopicPartition("in", 1), [(None, b"odd")])
    bench.until(lambda: len(station.told("aborted")) > before, 30)
    bench.run(5)
    (told,) = station.told("error")
    assert told["where"] == "task 0_0"
    assert station.told("aborted")[-1]["stops"] == []


@pytest.mark.parametrize("quiet_s", [0.0, 20.0])
def test_commit_of_records_sent_by_no_record_holds_up_no_later_one(
    bench: VirtualCluster, quiet_s: float
) -> None:
    """The time since the last cycle, or since the start of the machine, counted as a
    long commit.
    """
    app = app_of()
    out = app.topic("out", value_type=str, value_serializer="raw")

    @app.agent(app.topic("in", value_type=str, value_serializer="raw"))
    async def send_ahead(stream: Stream[str]) -> None:
        if not quiet_s:
            await out.send(value="of no record")
        asyncio.get_running_loop().call_later(quiet_s, lambda: out.send(value="of no record"))
        async for _ in stream:
            pass

    bench.run(60)
    station = bench.station(app, "w0", by_hand=False)
    bench.until(lambda: committed(bench) > 0, 30)
    before = committed(bench)
    feed(bench, "quick")
    bench.until(lambda: committed(bench) > before, 0.5)
    assert station.told("aborted") == []


def test_stopped_task_ends_no_transaction_of_others(bench: VirtualCluster) -> None:
    """Its offsets are denied again: each flush of another body was an abort, and was lost."""
    app = app_of()
    out = app.topic("out", value_type=str, value_serializer="raw")

    @app.agent(app.topic("in", value_type=str, value_serializer="raw"))
    async def send_later(stream: Stream[str]) -> None:
        async for _ in stream:
            asyncio.get_running_loop().call_later(1.0, lambda: out.send(value="of no record"))

    def denies(service: Service, call: ServedRequest) -> ReplyBody | None:
        topics = call.body.topics if call.api is Api.TXN_OFFSET_COMMIT else []
        parts = [part.partition_index for topic in topics for part in topic.partitions]
        if 0 not in parts:
            return answered(service, call)
        codes = {n: 0 if n else ErrorCode.TOPIC_AUTHORIZATION_FAILED for n in parts}
        told = [{"partition_index": n, "error_code": code} for n, code in codes.items()]
        return {"topics": [{"name": "in", "partitions": told}]}

    station = bench.station(app, "w0", by_hand=False)
    bench.until(lambda: len(station.told("task")) >= 2 * PARTITIONS, 30)
    bench.answer = denies
    feed(bench, "denied", "good")
    bench.until(lambda: station.told("error"), 30)
    bench.run(0.5)
    before = len(station.told("aborted"))
    at = committed(bench)
    bench.until(lambda: committed(bench) >= at + 2, 10)  # what is sent later, and a marker
    assert len(station.told("aborted")) == before


def not_yet(service: Service, call: ServedRequest) -> ReplyBody | None:
    """Answer as brokers whose coordinators still read their logs: no commit comes to its end."""
    code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    if call.api is Api.TXN_OFFSET_COMMIT:
        told = [
            {"partition_index": part.partition_index, "error_code": code}
            for topic in call.body.topics
            for part in topic.partitions
        ]
        return {"topics": [{"name": "in", "partitions": told}]}
    if call.api is Api.END_TXN:
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
    return answered(service, call)


def not_ended_yet(service: Service, call: ServedRequest) -> ReplyBody | None:
    return not_yet(service, call) if call.api is Api.END_TXN else answered(service, call)


def committed_of(station: WorkerHarness, what: str) -> int:
    """Return a sum over all commits of a worker: of their `tasks`, or their `records`."""
    return sum(int(str(told[what])) for told in station.told("commit"))


def counting(bench: VirtualCluster, seen: list[str]) -> WorkerHarness:
    """Start a worker that notes each word and sends it, and wait for its first commits."""
    station = bench.station(app_of(seen=seen), "w0", by_hand=False)
    bench.until(lambda: committed_of(station, "tasks") >= PARTITIONS)
    return station


def rows_of(station: WorkerHarness) -> dict[str, int]:
    """Return the counts of a worker in all of its stores."""
    found = [station.rows(n) for n in range(PARTITIONS)]
    return {word: int(count) for rows in found for word, count in rows.items()}


def outputs(bench: VirtualCluster) -> list[bytes]:
    """Return the values in the output, committed or not, without markers."""
    found = [bench.read(TopicPartition("out", n)) for n in range(PARTITIONS)]
    return sorted(value for part in found for key, value in part if key == b"k" and value)


@pytest.mark.parametrize("delay", [not_yet, not_ended_yet], ids=["offsets", "end"])
def test_tasks_run_while_a_flushed_transaction_waits_for_its_end(
    bench: VirtualCluster, delay: Callable[[Service, ServedRequest], ReplyBody | None]
) -> None:
    """Their records wait for the next transaction, which begins without a long rest."""
    seen = list[str]()
    station = counting(bench, seen)
    bench.answer = delay
    feed(bench, "a", "b")
    bench.until(lambda: len(outputs(bench)) == 2)
    bench.run(0.5)
    before = committed(bench)
    feed(bench, "c", "d", "e")
    bench.until(lambda: len(seen) == 5, 1)
    bench.run(0.5)
    assert (outputs(bench), committed(bench)) == ([b"a", b"b"], before)
    bench.answer = answered
    bench.until(lambda: len(outputs(bench)) == 5, 5)
    bench.run(0.5)
    assert outputs(bench) == [b"a", b"b", b"c", b"d", b"e"]
    assert station.told("aborted") == []
    assert committed_of(station, "records") == 5
    assert station.process.alive


def fenced(service: Service, call: ServedRequest) -> ReplyBody | None:
    """Answer the end of a transaction as if another producer had begun under its id."""
    if call.api is not Api.END_TXN:
        return answered(service, call)
    return {"error_code": ErrorCode.PRODUCER_FENCED, "producer_id": -1, "producer_epoch": -1}


def test_what_tasks_do_behind_a_flush_is_done_again_if_the_transaction_is_aborted(
    bench: VirtualCluster,
) -> None:
    seen = list[str]()
    station = counting(bench, seen)
    bench.answer = not_ended_yet
    feed(bench, "a", "b")
    bench.until(lambda: {"a", "b"} <= {*seen})
    bench.run(0.5)
    feed(bench, "c", "d", "e")
    bench.until(lambda: {"c", "d", "e"} <= {*seen}, 1)
    bench.answer = fenced
    bench.until(lambda: station.told("aborted"), 5)
    bench.answer = answered
    bench.until(lambda: len(seen) == 10, 30)
    bench.run(2)
    assert rows_of(station) == dict.fromkeys("abcde", 1)
    assert committed_of(station, "records") == 5


def test_record_that_fails_behind_a_flush_takes_back_no_flushed_transaction(
    bench: VirtualCluster,
) -> None:
    seen = list[str]()
    station = counting(bench, seen)
    bench.answer = not_ended_yet
    feed(bench, "a", "b")
    bench.until(lambda: {"a", "b"} <= {*seen})
    bench.run(0.5)
    feed(bench, "poison", "c")
    bench.until(lambda: "poison" in seen, 1)
    bench.run(1)
    assert station.told("aborted") == []
    bench.answer = answered
    bench.until(lambda: station.told("aborted"), 5)
    assert committed_of(station, "records") == 2
    bench.run(5)
    assert rows_of(station) == {"a": 1, "b": 1, "c": 1}
    assert (seen.count("a"), seen.count("poison")) == (1, 2)


def test_task_that_stops_behind_a_flush_names_the_commit_that_was_under_way(
    bench: VirtualCluster,
) -> None:
    """The line named the commit before as the last one, though Kafka had the newer one."""
    app = App(
        "exact", processing_guarantee="exactly_once", broker=f"{HOST}:{PORT}",
        on_decode_error="stop_task",
    )  # fmt: skip
    seen = list[int]()

    @app.agent(app.topic("in", value_type=int))
    async def note(stream: Stream[int]) -> None:
        async for number in stream:
            seen.append(number)

    def late(service: Service, call: ServedRequest) -> ReplyBody | None:
        usual: Any = call.respond

        def responds(*answer: Any) -> None:
            asyncio.get_running_loop().call_later(1.0, usual, *answer)

        if call.api is Api.END_TXN:
            call.respond = responds
        return answered(service, call)

    station = bench.station(app, "w0", by_hand=False)
    bench.until(lambda: committed_of(station, "tasks") >= PARTITIONS)
    source = TopicPartition("in", 0)
    bench.append(source, [(None, b"1")] * 5)
    bench.until(lambda: committed_of(station, "records") == 5)
    bench.answer = late
    bench.append(source, [(None, b"2")] * 5)
    bench.until(lambda: len(seen) == 10)
    bench.run(0.3)
    bench.append(source, [(None, b"xx")])
    bench.until(lambda: station.told("error"), 30)
    (told,) = station.told("error")
    assert "in-0 offset 10: its policy is stop_task" in str(told["what"])
    assert [aborted["stops"] for aborted in station.told("aborted")] == [["0_0"]]
    assert committed_of(station, "records") == 10


def test_abort_ahead_of_the_job_that_ends_a_transaction_ends_no_worker(
    bench: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets are sent, and a task is lost in the same turn of the loop."""
    usual: Any = TransactionalCommitter.committed
    lost = list[object]()

    def committed_and_lost(self: Any, *told: Any) -> None:
        usual(self, *told)
        if not lost:
            lost.append(told)
            self._abort("a task is lost", {})

    monkeypatch.setattr(TransactionalCommitter, "committed", committed_and_lost)
    station = bench.station(app_of(), "w0", by_hand=False)
    feed(bench, "a", "b")
    bench.until(lambda: station.told("aborted"), 30)
    bench.until(lambda: committed(bench) >= 4, 30)
    assert station.process.alive
    values = [value for n in range(2) for _, value in bench.read(TopicPartition("out", n))]
    assert {b"a", b"b"} <= {*values}
