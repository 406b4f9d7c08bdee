"""Workers whose source topics are created again, or whose logs lose records at either end."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from streamsx.client.api_versions import VersionRange
from streamsx.model import TaskId
from streamsx.protocol.commit_metadata import OffsetMetadata
from tests.unit.conftest import counting, words

if TYPE_CHECKING:
    from tests.unit.conftest import VirtualCluster, WorkerHarness

T0 = TaskId(0, 0)


def running(
    bench: VirtualCluster, old: WorkerHarness | None = None, **settings: Any
) -> WorkerHarness:
    """Start a worker whose tasks all run, in a real group."""
    stores = None if old is None else old.stores
    station = bench.station(counting(**settings), by_hand=False, stores=stores)

    def runs() -> bool:
        actives = station.made.tasks.actives if station.begun else {}
        return len(actives) == 3 and not any(active.paused for active in actives.values())

    bench.until(runs)
    return station


def stop(bench: VirtualCluster, station: WorkerHarness) -> None:
    station.process.signal(signal.SIGTERM)
    bench.until(lambda: not station.process.alive, 30)


def make_anew(bench: VirtualCluster) -> None:
    bench.delete("words")
    bench.create("words", 3)


def topic_id(bench: VirtualCluster) -> str:
    return bench.broker.service.topics.by_name["words"].id.hex()


def by_id(monkeypatch: pytest.MonkeyPatch, *, known: bool) -> None:
    """Choose the broker: from Kafka 3.1 on fetches name ids; 2.8 to 3.0 have ids, and fetches name
    topics.
    """
    if not known:
        monkeypatch.setattr("streamsx.client.fetcher.FETCH_BY_ID", VersionRange(99, 99))


# -- made anew


@pytest.mark.parametrize("count", [2, 9])
def test_topic_recreated_under_a_worker_is_read_once_from_the_start(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    """When the worker notices, the new log is shorter or longer than the old position."""
    station = running(bench)
    bench.feed(0, *["old"] * 5)
    bench.until(lambda: bench.counted() == {"old": 5})
    make_anew(bench)
    bench.feed(0, *["new"] * count)
    bench.until(lambda: bench.counted()["new"] == count, 20)
    bench.feed(0, "after")
    bench.until(lambda: bench.counted()["after"] == 1, 20)
    assert bench.counted() == {"old": 5, "new": count, "after": 1}
    told = [
        text
        for text in caplog.messages
        if "created again: words-0: continuing at its start" in text
    ]
    assert len(told) == 1
    stop(bench, station)
    bench.feed(0, "last")
    second = running(bench, station)
    bench.until(lambda: bench.counted()["last"] == 1, 20)
    assert bench.counted() == {"old": 5, "new": count, "after": 1, "last": 1}
    stop(bench, second)


def test_recreated_topic_is_noticed_where_brokers_fetch_by_name_only(
    bench: VirtualCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker reports nothing; a look at the metadata finds it, and some records are read
    twice.
    """
    by_id(monkeypatch, known=False)
    station = running(bench)
    bench.feed(0, *["old"] * 5)
    bench.until(lambda: bench.counted() == {"old": 5})
    make_anew(bench)
    bench.feed(0, *(f"new{n}" for n in range(9)))
    bench.until(lambda: len(bench.counted()) == 10, 20)
    assert bench.counted()["old"] == 5
    stop(bench, station)


@pytest.mark.parametrize("count", [3, 9])
def test_topic_recreated_while_down_is_read_from_the_start(
    bench: VirtualCluster, count: int
) -> None:
    """The committed offset is of the old topic."""
    old = OffsetMetadata(7, topic_id=topic_id(bench)).encode()
    make_anew(bench)
    bench.feed(0, *["new"] * count)
    bench.committed[words(0)] = (5, old)
    station = bench.begun(counting())
    station.hand.plan(T0)
    bench.until(lambda: bench.committed[words(0)][0] == count)
    assert bench.counted() == {"new": count}
    assert OffsetMetadata.decode(bench.committed[words(0)][1]).topic_id == topic_id(bench)


def test_offset_of_a_newer_topic_is_trusted_by_a_worker_with_old_metadata(
    bench: VirtualCluster,
) -> None:
    """Another worker has seen the new topic and processed its first records; then the
    task moves.
    """
    station = bench.begun(counting())
    make_anew(bench)
    bench.feed(0, "done", "left")
    bench.committed[words(0)] = (1, OffsetMetadata(topic_id=topic_id(bench)).encode())
    station.hand.plan(T0)
    bench.until(lambda: bench.committed[words(0)][0] == 2)
    assert bench.counted() == {"left": 1}


# -- logs that lose records


def test_offset_after_the_log_end_resumes_at_the_end(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    bench.feed(0, "a", "a")
    bench.committed[words(0)] = (5, OffsetMetadata(topic_id=topic_id(bench)).encode())
    station = bench.begun(counting())
    station.hand.plan(T0)
    bench.until(lambda: bench.committed[words(0)][0] == 2)
    bench.feed(0, "b")
    bench.until(lambda: bench.committed[words(0)][0] == 3)
    assert bench.counted() == {"b": 1}
    assert [text for text in caplog.messages if "words-0: it ends at 2, the task was at 5" in text]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_offset_before_the_log_start_resumes_there_and_logs_the_loss(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture, reset: str
) -> None:
    bench.feed(0, *"abcde")
    bench.run(0.1)
    bench.at_broker(lambda: bench.log(words(0)).delete_before(3))
    bench.committed[words(0)] = (1, "")
    station = bench.begun(counting(consumer_auto_offset_reset=reset))
    station.hand.plan(T0)
    bench.until(lambda: bench.committed[words(0)][0] == 5)
    assert bench.counted() == {"d": 1, "e": 1}
    assert [text for text in caplog.messages if "deleted unread: words-0: 2 from offset 1" in text]


def test_held_records_are_processed_when_the_log_is_truncated_after_them(
    bench: VirtualCluster,
) -> None:
    """A task holds a batch; the records after it are deleted before the task has room for them."""
    station = bench.begun(counting())
    station.hand.plan(T0)
    bench.until(lambda: T0 in station.made.tasks.actives)
    active = station.made.tasks.actives[T0]
    active.paused = True
    bench.feed(0, "held")
    bench.until(lambda: station.made.fetcher.waiting(words(0)))
    batch = station.made.fetcher.take(words(0))
    assert batch is not None
    active.task.offer(batch)
    bench.feed(0, "deleted", "left")
    bench.run(1)
    bench.at_broker(lambda: bench.log(words(0)).delete_before(2))
    station.made.sources.cut(words(0))
    bench.run(1)
    active.paused = False
    bench.until(lambda: bench.committed.get(words(0), (0, ""))[0] == 3, 5)
    assert bench.counted() == {"held": 1, "left": 1}


def test_outdated_out_of_range_answer_repeats_and_loses_nothing(bench: VirtualCluster) -> None:
    """The answer was of a broker that was behind; the current leader has the offset."""
    station = bench.begun(counting())
    station.hand.plan(T0)
    bench.feed(0, *"abc")
    bench.until(lambda: bench.committed.get(words(0), (0, ""))[0] == 3)
    station.made.sources.cut(words(0))
    bench.feed(0, *"de")
    bench.until(lambda: bench.committed[words(0)][0] == 5)
    assert bench.counted() == dict.fromkeys("abcde", 1)
