"""Global tables of whole workers in virtual time: filled before the first task, and followed."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

from streamsx.model import TopicPartition
from tests.unit.conftest import app_of

if TYPE_CHECKING:
    from streamsx import App
    from tests.unit.conftest import VirtualCluster, WorkerHarness

TOWNS = 40


def joined(seen: list[Any]) -> App:
    """Join `words` with the global table `towns`, by the value."""
    app = app_of()
    towns = app.global_table("towns")
    words = app.flow(app.topic("words", value_type=str, value_serializer="raw"))
    words.join(towns, lambda word, town: [word, town], key=lambda word: word, kind="left").foreach(
        seen.append
    )
    return app


def start(bench: VirtualCluster, app: App, old: WorkerHarness | None = None) -> WorkerHarness:
    stores = None if old is None else old.stores
    station = bench.station(app, "w1", by_hand=False, stores=stores)
    bench.until(lambda: station.begun)
    return station


def fill(bench: VirtualCluster, value: bytes | None) -> None:
    for partition in range(2):
        rows = [(b"town%d" % n, value) for n in range(partition, TOWNS, 2)]
        bench.append(TopicPartition("towns", partition), rows)


def test_worker_has_all_of_a_global_table_before_its_first_record(bench: VirtualCluster) -> None:
    bench.create("towns", 2)
    fill(bench, b"1")
    for n in range(TOWNS):
        bench.feed(n % 3, f"town{n}")
    seen: list[Any] = []
    start(bench, joined(seen))
    bench.until(lambda: len(seen) == TOWNS)
    assert sorted(seen) == sorted([f"town{n}", 1] for n in range(TOWNS))


def test_running_worker_follows_changes_and_deletions(bench: VirtualCluster) -> None:
    bench.create("towns", 2)
    seen: list[Any] = []
    start(bench, joined(seen))
    for value in (b"1", b"2", None):
        fill(bench, value)
        bench.run(2)
        bench.feed(0, "town7")
        bench.until(lambda: seen)
        assert seen.pop() == ["town7", None if value is None else int(value)]


def test_worker_after_a_kill_has_the_newest_rows_before_its_first_record(
    bench: VirtualCluster,
) -> None:
    bench.create("towns", 2)
    fill(bench, b"1")
    first = start(bench, joined([]))
    first.process.kill()
    fill(bench, b"2")
    bench.feed(1, "town7")
    seen: list[Any] = []
    second = start(bench, joined(seen), first)
    bench.until(lambda: seen)
    assert seen == [["town7", 2]]
    second.process.signal(signal.SIGTERM)
    bench.until(lambda: not second.process.alive, 30)
