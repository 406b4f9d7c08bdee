"""Restores and large commits under exactly-once, where other stream processors had bugs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from streamsx import App, Stream
from streamsx.model import TaskId, TopicPartition
from streamsx.simulation.scheduler import Killed
from streamsx.tasks import crash_points
from tests.unit.conftest import HOST, PORT, VirtualCluster, WorkerHarness

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHANGELOG = TopicPartition("exact-counts-changelog", 0)
OUT = TopicPartition("out", 0)
T0 = TaskId(0, 0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[VirtualCluster]:
    made = VirtualCluster(tmp_path, {"in": 1, "out": 1})
    yield made
    made.close()


def app_of(sends: int = 0, **settings: Any) -> App:
    """Return an app that counts words; `sends`: outputs of 10 kB for each."""
    given = {"broker": f"{HOST}:{PORT}", "session_timeout": 10, "memory_budget": "32MiB"}
    app = App("exact", processing_guarantee="exactly_once", **{**given, **settings})
    out = app.topic("out", value_type=str, value_serializer="raw")
    counts = app.Table("counts", default=int, key_type=str, value_type=int, partitions=1)

    @app.agent(app.topic("in", value_type=str, value_serializer="raw"))
    async def count(stream: Stream[str]) -> None:
        async for word in stream:
            counts[word] += 1
            for n in range(sends):
                await out.send(value=f"{n}".ljust(10_000))

    return app


def feed(bench: VirtualCluster, *words: str) -> None:
    bench.append(TopicPartition("in", 0), [(None, word.encode()) for word in words])


def position(bench: VirtualCluster, tp: TopicPartition) -> int:
    """Return the end that a reader of committed records sees."""
    return (
        bench.log(tp).last_stable_offset if tp.topic in bench.broker.service.topics.by_name else 0
    )


def counted(station: WorkerHarness) -> dict[str, int]:
    rows = station.rows(0) if ("counts", 0) in station.stores else {}
    return {word: int(value) for word, value in rows.items()}


def dies(station: WorkerHarness, name: str) -> None:
    """Kill the worker once its rows are in the changelog, before its commit."""
    if name == "after_flush" and station.process.alive:
        station.process.kill()
        raise Killed


def replaced(bench: VirtualCluster, old: WorkerHarness) -> WorkerHarness:
    """Start a worker with an empty directory, and wait until it has restored everything."""
    old.process.kill()
    new = bench.station(app_of(), "w2", by_hand=False)
    bench.until(lambda: "running" in new.states(T0), 60)
    return new


def test_restore_whose_end_is_a_commit_marker_ends(bench: VirtualCluster) -> None:
    """KAFKA-20876: the last offset of the changelog has no record, so none ever arrives from
    there.
    """
    first = bench.station(app_of(), "w1", by_hand=False)
    feed(bench, "a", "b", "a")
    bench.until(lambda: position(bench, CHANGELOG) == 3, 30)  # two rows and the marker
    assert bench.log(CHANGELOG).high_watermark == 3
    second = replaced(bench, first)
    assert second.position(0) == 3
    assert counted(second) == {"a": 2, "b": 1}


def test_restore_whose_end_is_an_abort_marker_leaves_out_the_rows_ahead_of_it(
    bench: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker dies with rows in its changelog; its transaction is aborted 10 s later."""
    first = bench.station(app_of(), "w1", by_hand=False)
    feed(bench, "a")
    bench.until(lambda: counted(first) == {"a": 1}, 30)
    monkeypatch.setattr(crash_points, "point", lambda name: dies(first, name))
    feed(bench, "b")
    bench.until(lambda: not first.process.alive, 30)
    assert bench.log(CHANGELOG).high_watermark == 3  # two rows, the marker between them
    second = replaced(bench, first)
    assert (second.position(0), counted(second)) == (4, {"a": 1})
    bench.until(lambda: counted(second) == {"a": 1, "b": 1}, 30)
    assert bench.log(CHANGELOG).high_watermark == 6


def test_one_record_may_send_more_than_the_buffer_holds(bench: VirtualCluster) -> None:
    """KAFKA-20933: no record of a transaction counts before its end, and one record fills the
    buffer.
    """
    bench.station(app_of(200, produce_buffer="1MiB"), "w1", by_hand=False)
    feed(bench, "a", "b")
    bench.until(lambda: position(bench, OUT) > 400, 60)  # and a marker
    values = [value for _, value in bench.read(OUT) if value]
    assert [int(value) for value in values if len(value) == 10_000] == [*range(200), *range(200)]
