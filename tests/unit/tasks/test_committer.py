"""Commits and their effects on records: a real worker and broker, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from streamsx import App, Stream
from streamsx.broker.api.served import answered
from streamsx.errors import DiskFailed, TaskFailed
from streamsx.group import member_events as e
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.commit_metadata import TEXT_BYTES_MAX, OffsetMetadata
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.wire import Api
from streamsx.state.api import ROW
from streamsx.state.memory import MemoryRows
from streamsx.tasks.committer import DIRTY_ROWS_MAX
from streamsx.testing import TestDriver

if TYPE_CHECKING:
    from streamsx.broker.groups.coordinator_events import ReplyBody
    from streamsx.broker.net.client_connection import ServedRequest
    from streamsx.broker.service import Service
    from tests.unit.conftest import VirtualCluster, WorkerHarness

T0, T1 = TaskId(0, 0), TaskId(0, 1)
P0, P1 = TopicPartition("words", 0), TopicPartition("words", 1)
CHANGELOG = TopicPartition("t-kept-changelog", 0)
MB = 1 << 20

Keep = Callable[[Any, str], Any]


def app_of(keep: Keep, **settings: Any) -> App:
    """Return an app; `keep` gets the table and each word, and is awaited if it waits."""
    given = {"topic_partitions": 3, "memory_budget": "32MiB", **settings}
    app = App("t", broker="127.0.0.1:9092", **given)
    kept = app.Table("kept")

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def agent(stream: Stream[str]) -> None:
        async for word in stream:
            if (waits := keep(kept, word)) is not None:
                await waits

    return app


def counting_words(kept: Any, word: str) -> None:
    kept[word] = (kept.get(word) or 0) + 1
    if word == "bad":
        raise ValueError(word)


def put(kept: Any, word: str) -> None:
    kept[word] = word


def begun(bench: VirtualCluster, app: App, *tasks: TaskId) -> WorkerHarness:
    """Start a worker that runs these tasks."""
    station = bench.station(app)
    bench.until(lambda: station.hand.alive)
    station.hand.plan(*tasks)
    bench.until(lambda: all("running" in station.states(task) for task in tasks))
    return station


def feed(bench: VirtualCluster, *words: str, partition: int = 0) -> None:
    bench.append(TopicPartition("words", partition), [(None, word.encode()) for word in words])


def committed(bench: VirtualCluster, tp: TopicPartition = P0) -> int:
    return bench.committed.get(tp, (-1, ""))[0]


def changelog(bench: VirtualCluster) -> dict[str, Any]:
    """Return the newest value of each key."""
    newest = dict(bench.read(CHANGELOG))
    return {orjson.loads(k): orjson.loads(v) for k, v in newest.items() if k and v is not None}


def store(station: WorkerHarness, partition: int = 0) -> dict[str, Any]:
    rows = station.stores["kept", partition].scan(ROW, None)
    return {orjson.loads(key[1:]): orjson.loads(value) for key, value in rows}


def errors(station: WorkerHarness) -> list[str]:
    return [str(told["what"]) for told in station.told("error")]


# -- outputs that take nothing


def two_outputs(**settings: Any) -> App:
    """Return an app that counts words; task 0 sends them to one topic, all others to
    another one.
    """
    given = {"topic_partitions": 3, "memory_budget": "32MiB", **settings}
    app = App("t", broker="127.0.0.1:9092", **given)
    outs = [app.topic(name, partitions=1, value_serializer="raw") for name in ("here", "gone")]
    counts = app.Table("kept", default=int)

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def agent(stream: Stream[str]) -> None:
        async for event in stream.events():
            counts[event.value] += 1
            first = event.message.tp.partition == 0
            await outs[first].send(value=event.value.encode())

    return app


def test_task_with_deleted_output_waits_and_others_commit(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    station = begun(bench, two_outputs(), T0, T1)
    bench.delete("gone")
    for number in range(1, 6):
        feed(bench, "a")
        feed(bench, "b", partition=1)
        bench.until(lambda n=number: committed(bench, P1) == n, 4)  # type: ignore[misc]
    bench.until(lambda: station.stores["kept", 1].position() == 5)
    assert committed(bench) <= 0
    (line,) = [r.getMessage() for r in caplog.records if "waits with its commit" in r.getMessage()]
    assert line.startswith("Task 0_0 waits with its commit: gone-0 does not take what it has")
    bench.create("gone", 1)
    bench.until(lambda: committed(bench) == 5, 20)
    assert changelog(bench) == {"a": 5}
    assert len(bench.read(TopicPartition("gone", 0))) == 5


def test_revoked_task_with_deleted_output_is_held_until_lost(bench: VirtualCluster) -> None:
    """The task is held until then; the other tasks commit all the time."""
    station = begun(bench, two_outputs(), T0, T1)
    bench.delete("gone")
    feed(bench, "a")
    bench.run(4)
    station.hand.revoke(T0)
    bench.run(4)
    assert station.hand.released() == []
    feed(bench, "b", partition=1)
    bench.until(lambda: committed(bench, P1) == 1, 4)
    station.hand.lose(T0)
    bench.until(lambda: T0 not in station.made.tasks.actives)
    feed(bench, "b", partition=1)
    bench.until(lambda: committed(bench, P1) == 2, 4)


def test_revoked_task_commits_once_the_output_exists_again(
    bench: VirtualCluster,
) -> None:
    station = begun(bench, two_outputs(), T0, T1)
    bench.delete("gone")
    feed(bench, "a")
    bench.run(4)
    station.hand.revoke(T0)
    bench.run(2)
    bench.create("gone", 1)
    bench.until(lambda: station.hand.released() == [1], 10)
    assert committed(bench) == 1


def test_task_with_deleted_output_is_paused_when_too_much_is_dirty(bench: VirtualCluster) -> None:
    """The other tasks continue."""
    station = begun(bench, two_outputs(memory_budget="1MiB"), T0, T1)
    bench.delete("gone")
    total = 1500
    for start in range(0, total, 100):
        feed(bench, *(f"{n}" for n in range(start, start + 100)))
        feed(bench, *(f"{n}" for n in range(start, start + 100)), partition=1)
        bench.run(0.5)
    bench.until(lambda: committed(bench, P1) == total, 20)
    assert station.made.tasks.actives[T0].task.taken["words"] < total
    bench.create("gone", 1)
    bench.until(lambda: committed(bench) == total, 60)
    assert len(bench.read(TopicPartition("gone", 0))) == total


# -- when


def test_commit_event_counts_tasks_and_records_and_empty_commits_are_skipped(
    bench: VirtualCluster,
) -> None:
    station = begun(bench, app_of(put), T0, T1)
    feed(bench, "a", "b")
    feed(bench, "c", partition=1)
    bench.until(lambda: (committed(bench), committed(bench, P1)) == (2, 1))
    bench.run(0.1)
    assert sum(int(str(told["records"])) for told in station.told("commit")) == 3
    bench.run(5)
    tasks = [told["tasks"] for told in station.told("commit")]
    assert sum(int(str(count)) for count in tasks) == 2
    assert all(float(str(told["ms"])) < 500 for told in station.told("commit"))


def test_commit_interval_starts_at_the_end_of_the_previous_commit(bench: VirtualCluster) -> None:
    station = begun(bench, app_of(put, broker_commit_interval=3.0), T0)
    feed(bench, "a")
    bench.until(lambda: committed(bench) == 1, 4)
    ended = bench.scheduler.now
    feed(bench, "b")
    bench.run(2.5)
    assert committed(bench) == 1
    bench.until(lambda: committed(bench) == 2, 1)
    assert bench.scheduler.now - ended == pytest.approx(3.0, abs=0.3)
    bench.run(0.1)
    assert len(station.told("commit")) == 2


def test_commit_interval_counts_from_the_last_row_written(bench: VirtualCluster) -> None:
    """A disk that takes 2 of 3 s would leave 1 s for all other work."""
    station = begun(bench, app_of(put, broker_commit_interval=3.0), T0)
    station.write_s = 2.0
    feed(bench, "a")
    bench.until(lambda: committed(bench) == 1, 4)
    bench.until(lambda: store(station), 4)
    station.write_s, ended = 0.0, bench.scheduler.now
    feed(bench, "b")
    bench.run(2.5)
    assert committed(bench) == 1
    bench.until(lambda: committed(bench) == 2, 1)
    assert bench.scheduler.now - ended == pytest.approx(3.0, abs=0.3)


def test_too_many_dirty_rows_are_committed_before_the_interval(
    bench: VirtualCluster,
) -> None:
    """The limit of bytes allows 350,000 rows, and the interval all of them."""

    def spread(kept: Any, word: str) -> None:
        for n in range(1000):
            kept[f"{word}-{n}"] = n
        bench.scheduler.elapse(0.001)

    station = begun(bench, app_of(spread, broker_commit_interval=60.0, memory_budget="1GiB"), T0)
    feed(bench, *(f"{n}" for n in range(100)))
    bench.until(lambda: committed(bench) > 0, 5)
    rows = len(bench.read(CHANGELOG))
    assert rows == committed(bench) * 1000
    assert DIRTY_ROWS_MAX < rows <= DIRTY_ROWS_MAX + 16_000  # what a turn adds, at 1 ms a record
    bench.run(1)
    assert len(store(station)) == rows


@pytest.mark.parametrize(("records_a_row", "waits"), [(1, False), (2, True)])
def test_rows_shared_by_records_wait_for_the_commit_interval(
    bench: VirtualCluster, monkeypatch: pytest.MonkeyPatch, records_a_row: int, waits: bool
) -> None:
    """Each record that meets a row again saves a write."""
    monkeypatch.setattr("streamsx.tasks.committer.DIRTY_ROWS_MAX", 500)
    begun(bench, app_of(put, broker_commit_interval=5.0), T0)
    feed(bench, *(f"{n // records_a_row}" for n in range(600 * records_a_row)))
    bench.run(2)
    assert (committed(bench) == -1) is waits
    bench.until(lambda: committed(bench) == 600 * records_a_row, 10)
    assert len(bench.read(CHANGELOG)) == 600


def test_too_many_dirty_bytes_are_committed_before_the_interval(bench: VirtualCluster) -> None:
    begun(bench, app_of(put, broker_commit_interval=60.0), T0)
    for n in range(60):
        feed(bench, *(f"{n}-{m}" + "x" * 200 for m in range(500)))
    bench.until(lambda: committed(bench) > 0, 10)


def test_chunk_of_large_rows_ends_at_the_memory_budget(bench: VirtualCluster) -> None:
    """4,000 rows of 100 KB in one turn were 400 MB before the first commit looked at them."""

    def put_much(kept: Any, word: str) -> None:
        kept[word] = word + "x" * 100_000

    station = begun(bench, app_of(put_much), T0)
    feed(bench, *(f"{n}" for n in range(1000)))
    most = 0

    def all_are_committed() -> bool:
        nonlocal most
        most = max(most, station.made.tasks.actives[T0].task.dirty_bytes)
        return committed(bench) == 1000

    bench.until(all_are_committed, 60)
    assert 1 << 20 < most < 0.3 * 32 * MB


def test_changelog_accepting_nothing_stops_the_intake_but_not_the_worker(
    bench: VirtualCluster,
) -> None:
    """Memory grew while the commit did not end."""
    station = begun(bench, app_of(put, produce_buffer="64MiB"), T0)

    def too_few_replicas(service: Service, call: ServedRequest) -> ReplyBody | None:
        if call.api is not Api.PRODUCE:
            return answered(service, call)
        parts = [{"index": 0, "error_code": ErrorCode.NOT_ENOUGH_REPLICAS, "base_offset": -1}]
        return {"responses": [{"name": CHANGELOG.topic, "partition_responses": parts}]}

    bench.answer = too_few_replicas
    feed(bench, "first" + "x" * 200)
    bench.run(2)
    total = 60 * 500
    for n in range(60):
        feed(bench, *(f"{n}-{m}" + "x" * 200 for m in range(500)))
    bench.run(10)
    held = station.made.tasks.actives[T0].task.stores["kept"]
    stood_at = station.made.tasks.actives[T0].task.taken["words"]
    assert stood_at < total
    assert held.dirty_bytes < 3 * 32 * MB // 10
    bench.run(5)
    assert station.made.tasks.actives[T0].task.taken["words"] == stood_at

    bench.answer = answered
    bench.until(lambda: committed(bench) == total + 1)
    bench.run(1)
    assert len(store(station)) == total + 1


# -- bodies that wait


def waiting(seconds: float) -> Keep:
    async def wait(kept: Any, word: str) -> None:
        await asyncio.sleep(seconds)
        kept[word] = word

    return wait


def test_work_finished_after_the_last_input_is_committed(bench: VirtualCluster) -> None:
    station = begun(bench, app_of(waiting(3.0)), T0)
    feed(bench, "a", "b")
    bench.until(lambda: committed(bench) == 2, 10)
    bench.run(0.5)
    assert store(station) == {"a": "a", "b": "b"}


def test_revoked_task_finishes_records_in_progress_first(bench: VirtualCluster) -> None:
    station = begun(bench, app_of(waiting(3.0)), T0)
    feed(bench, "a", "b", "c")
    bench.run(4.0)
    station.hand.revoke(T0)
    bench.run(1.0)
    assert (station.states(T0)[-1], station.hand.released()) == ("suspended", [])
    bench.until(station.hand.released, 5)
    assert (committed(bench), changelog(bench)) == (2, {"a": "a", "b": "b"}), "c is not begun"
    bench.until(lambda: station.states(T0)[-1] == "closed")
    assert store(station) == {"a": "a", "b": "b"}


def test_idle_revoked_task_does_not_wait_for_a_busy_one(bench: VirtualCluster) -> None:
    station = begun(bench, app_of(waiting(3.0)), T0, T1)
    feed(bench, "a")
    bench.run(1.0)
    station.hand.revoke(T0, number=1)
    station.hand.revoke(T1, number=2)
    bench.run(0.5)
    assert station.hand.released() == [2]
    bench.until(lambda: station.hand.released() == [2, 1], 5)


def test_revoked_task_gives_up_on_a_body_waiting_too_long(bench: VirtualCluster) -> None:
    station = begun(bench, app_of(waiting(1000.0), revoke_timeout=20.0), T0)
    feed(bench, "a", "b")
    bench.run(1.0)
    station.hand.revoke(T0)
    bench.run(9.0)
    assert station.hand.released() == []
    bench.until(station.hand.released, 2)
    assert committed(bench) in (-1, 0)
    bench.until(lambda: station.states(T0)[-1] == "closed")


@pytest.mark.parametrize(
    ("leaves_in_s", "waits_s"),
    [(25.0, 20.0), (6.0, 2.5), (100.0, 30.0), (None, 30.0)],
    ids=["less than the last commit needs", "half of that", "as any other", "without an end"],
)
def test_leaving_worker_waits_for_records_in_progress_up_to_a_limit(
    bench: VirtualCluster, leaves_in_s: float | None, waits_s: float
) -> None:
    station = begun(bench, app_of(waiting(1000.0)), T0)
    feed(bench, "a")
    bench.run(1.0)
    now = bench.scheduler.now
    station.deliver(e.IsLeaving(None if leaves_in_s is None else now + leaves_in_s))
    station.hand.revoke(T0)
    bench.run(waits_s - 0.4)
    assert station.hand.released() == []
    bench.until(station.hand.released, 1)


def test_second_signal_cuts_the_wait_for_records_in_progress(bench: VirtualCluster) -> None:
    station = begun(bench, app_of(waiting(1000.0)), T0)
    feed(bench, "a")
    bench.run(1.0)
    station.deliver(e.IsLeaving(bench.scheduler.now + 25))
    station.hand.revoke(T0)
    bench.run(5)
    station.deliver(e.IsLeaving(bench.scheduler.now + 5))
    bench.until(station.hand.released, 1)
    assert len(station.told("leaving")) == 1


def test_revoked_task_lost_while_waiting_commits_nothing(bench: VirtualCluster) -> None:
    station = begun(bench, app_of(waiting(3.0)), T0)
    feed(bench, "a")
    bench.run(1.0)
    station.hand.revoke(T0)
    bench.run(0.5)
    station.hand.lose(T0)
    bench.run(10)
    assert (committed(bench), station.hand.released()) == (-1, [])
    assert station.states(T0)[-1] == "closed"


# -- a disk


class Full(MemoryRows):
    """Outbox that takes no more records; earlier ones stay."""

    def write(self, rows: Mapping[bytes, bytes | None], position: int | None) -> None:
        if rows:
            raise DiskFailed("disk full or broken: here: make room")
        super().write(rows, position)

    def close(self) -> None: ...


def test_failing_store_does_not_keep_others_from_writing_committed_rows(
    bench: VirtualCluster,
) -> None:
    stores: dict[tuple[str, int], MemoryRows] = {("kept", 0): Full()}
    station = bench.station(app_of(put), stores=stores)
    bench.until(lambda: station.hand.alive)
    station.hand.plan(T0, T1)
    bench.until(lambda: all("running" in station.states(task) for task in (T0, T1)))
    feed(bench, "a")
    feed(bench, "b", partition=1)
    bench.until(lambda: station.told("error"), 10)
    assert (committed(bench), committed(bench, P1)) == (1, 1)
    assert (store(station, 0), store(station, 1)) == ({}, {"b": "b"})


# -- values that no commit can take


def setting(bad: Callable[[], object]) -> Keep:
    def keep(kept: Any, word: str) -> None:
        kept[word] = bad() if word == "bad" else word

    return keep


@pytest.mark.parametrize("bad", [object, lambda: "x" * 2_000_000], ids=["object", "2 MB"])
def test_record_of_an_uncommittable_value_is_found_and_skipped(
    bench: VirtualCluster, bad: Callable[[], object], caplog: pytest.LogCaptureFixture
) -> None:
    station = begun(bench, app_of(setting(bad)), T0, T1)
    feed(bench, "a")
    feed(bench, "x", partition=1)
    bench.until(lambda: committed(bench) == 1)
    feed(bench, "b", "bad", "c")
    bench.until(lambda: committed(bench) == 4)
    bench.run(0.5)
    assert store(station) == changelog(bench) == {"a": "a", "b": "b", "c": "c"}
    (told,) = errors(station)
    assert "store kept, key 'bad', type " in told
    assert "(task 0_0, set since words-0 1-3): going back to the last commit" in told
    assert told.endswith("to skip its record")  # it ended in "nothing to do"
    assert "words-0 offset 2, task 0_0, " in caplog.text
    assert (station.begun, "closing" in station.states(T1)) == (True, False)
    feed(bench, "d")
    bench.until(lambda: committed(bench) == 5)


def test_worker_and_test_driver_go_back_to_the_last_commit_alike(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Values that the failing records had set before stay, in both."""

    def keep(kept: Any, word: str) -> None:
        kept[f"before {word}"] = word
        kept[word] = object() if word.startswith("bad") else word

    given = [("a",), ("b", "bad", "c", "bad", "d")]
    station = begun(bench, app_of(keep), T0)
    for reached, some in zip((1, 6), given, strict=True):
        feed(bench, *some)
        bench.until(lambda reached=reached: committed(bench) == reached)  # type: ignore[misc]
    bench.run(0.5)
    with TestDriver(app_of(keep), partitions={"words": 3}, raises=False) as driver:
        for some in given:
            driver.pipe("words", some, partition=0)
        assert store(station) == changelog(bench) == driver.table("kept")
        assert [failure.offset for failure in driver.failures] == [2, 4]
    assert "words-0 offset 2, task 0_0, " in caplog.text
    assert len(errors(station)) == 1


@pytest.mark.parametrize("others", [("b", "bad", "c"), ("bad", "c", "d")], ids=["set", "loaded"])
def test_bad_in_place_change_of_an_existing_value_fails_only_one_record(
    bench: VirtualCluster, others: tuple[str, ...]
) -> None:
    def change(kept: Any, word: str) -> None:
        entry = kept.get("words", {})
        entry[word] = object() if word == "bad" else len(entry)
        kept["words"] = entry

    station = begun(bench, app_of(change), T0)
    feed(bench, "a")
    bench.until(lambda: committed(bench) == 1)
    feed(bench, *others)
    bench.until(lambda: committed(bench) == 4)
    bench.run(0.5)
    good = ["a", *(word for word in others if word != "bad")]
    assert store(station) == {"words": {word: n for n, word in enumerate(good)}}


def test_work_of_a_held_task_is_counted_once_when_the_task_goes_back(bench: VirtualCluster) -> None:
    """The rows of its first seal were acknowledged while its output took no records."""
    app = two_outputs()

    @app.agent(app.topic("odd", value_type=str, value_serializer="raw"))
    async def odd(stream: Stream[str]) -> None:
        async for word in stream:
            app.tables["kept"][word] = object()

    station = begun(bench, app, T0)
    bench.delete("gone")
    feed(bench, "a")
    bench.run(4)
    assert changelog(bench) == {"a": 1}
    bench.append(TopicPartition("odd", 0), [(None, b"bad")])
    bench.run(1)
    bench.create("gone", 1)
    bench.until(lambda: committed(bench) == 1, 20)
    bench.run(1)
    assert "going back to the last commit" in errors(station)[0]
    assert changelog(bench) == store(station) == {"a": 1}


def test_task_that_goes_back_beside_its_commit_begins_behind_it(bench: VirtualCluster) -> None:
    """It asked for its positions before the commit had arrived: it waits for that now."""
    station = begun(bench, app_of(counting_words), T0)
    station.hand.holds = True
    feed(bench, "a", "b")
    bench.run(2)
    feed(bench, "bad", "c")
    bench.run(2)
    assert station.states(T0)[-1] == "running"
    (asked,) = (event for event in station.hand.posted if isinstance(event, e.Commit))
    station.hand.holds = False
    station.hand.commit(asked)
    bench.until(lambda: committed(bench) == 4, 5)
    assert changelog(bench) == {"a": 1, "b": 1, "c": 1}


def test_revoked_task_leaves_the_search_for_a_bad_value_to_the_next_owner(
    bench: VirtualCluster,
) -> None:
    station = begun(bench, app_of(setting(object)), T0)
    feed(bench, "a")
    bench.until(lambda: committed(bench) == 1)
    feed(bench, "bad")
    bench.until(lambda: station.made.tasks.actives[T0].task.taken["words"] == 2, 1)
    station.hand.revoke(T0)
    bench.until(station.hand.released, 5)
    bench.until(lambda: station.states(T0)[-1] == "closed")
    assert (committed(bench), store(station)) == (1, {"a": "a"})
    feed(bench, "b")
    station.hand.plan(T0)
    bench.until(lambda: committed(bench) == 3)


def test_value_changed_after_set_stops_only_one_task(
    bench: VirtualCluster,
) -> None:
    def keep(kept: Any, word: str) -> None:
        kept[word] = values = [word]
        if word == "bad":
            values.append(object())  # type: ignore[arg-type]

    station = begun(bench, app_of(keep), T0, T1)
    feed(bench, "bad")
    bench.until(lambda: station.states(T0)[-1] == "stopped")
    assert committed(bench) == -1
    feed(bench, "x", partition=1)
    bench.until(lambda: committed(bench, P1) == 1)
    assert "the value was changed in place" in errors(station)[-1]
    station.hand.revoke(T0)
    bench.until(station.hand.released, 1)


def test_task_revoked_over_a_changed_value_is_retried_when_reassigned(
    bench: VirtualCluster,
) -> None:
    def keep(kept: Any, word: str) -> None:
        kept[word] = values = [word]
        if mended is False:
            values.append(object())  # type: ignore[arg-type]

    mended = False
    station = begun(bench, app_of(keep), T0)
    feed(bench, "a")
    bench.until(lambda: station.states(T0).count("running") == 2)
    bench.until(lambda: station.made.tasks.actives[T0].task.taken["words"] == 1)
    station.hand.revoke(T0)
    bench.until(lambda: station.states(T0)[-1] == "closed")
    mended = True
    station.hand.plan(T0)
    bench.until(lambda: committed(bench) == 1)
    assert station.states(T0)[-1] == "running"


def test_task_reassigned_while_closing_forgets_the_rollback(
    bench: VirtualCluster,
) -> None:
    """The task was lost, and assigned again before it was closed: it stopped over records of its
    next owner.
    """

    def keep(kept: Any, word: str) -> None:
        kept[word] = values = [word]
        if word == "bad":
            values.append(object())  # type: ignore[arg-type]

    station = begun(bench, app_of(keep), T0)
    feed(bench, "bad")
    bench.until(lambda: station.states(T0).count("closing") == 2)
    assert station.states(T0)[-1] == "closing"
    station.hand.lose(T0)
    bench.committed[P0] = (1, "")
    station.hand.plan(T0)
    feed(bench, "a")
    bench.until(lambda: committed(bench) == 2, 10)
    assert station.states(T0)[-1] == "running"


def test_uncommittable_value_under_policy_stop_ends_the_worker(
    bench: VirtualCluster,
) -> None:
    """The work of the other tasks is committed."""
    station = begun(bench, app_of(setting(object), on_error="stop"), T0, T1)
    feed(bench, "a", "bad")
    feed(bench, "x", partition=1)
    bench.until(lambda: station.told("error"), 10)
    bench.until(lambda: committed(bench, P1) == 1, 10)
    bench.until(lambda: station.states(T0)[-1] == "closed", 5)
    assert (committed(bench), changelog(bench), store(station)) == (-1, {}, {})
    station.deliver(e.Left())
    bench.until(lambda: not station.process.alive, 5)
    assert isinstance(station.main.error, TaskFailed)
    assert "store kept, key 'bad', type " in str(station.main.error)
    assert "(task 0_0, set since words-0 0-1): its policy is stop" in str(station.main.error)


# -- several readers of one topic


def crowd(agents: int) -> App:
    """Return an app whose first agent waits for ever, and the others for nothing."""
    app = App("t", broker="127.0.0.1:9092", topic_partitions=3, memory_budget="32MiB")
    topic = app.topic("words", value_type=str, value_serializer="raw")

    async def first(stream: Stream[str]) -> None:
        async for _ in stream:
            await asyncio.Event().wait()

    async def other(stream: Stream[str]) -> None:
        async for _ in stream:
            pass

    for number in range(agents):
        app.agent(topic, name=f"agent{number}")(other if number else first)
    return app


def test_agents_without_room_for_positions_are_reported_once(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    begun(bench, crowd(400), T0)
    feed(bench, "a", "b")
    bench.until(lambda: committed(bench) == 0)
    bench.run(5)
    text = bench.committed[P0][1]
    kept = OffsetMetadata.decode(text).readers
    assert len(text) <= TEXT_BYTES_MAX
    assert 200 < len(kept) < 399
    (told,) = [each for each in caplog.messages if "has no room" in each]
    assert told.startswith("Task 0_0: words-0 has no room in the 4096 bytes")
    assert told.count("agent") == 399 - len(kept) + 2, "those without room, and the sentence"
    assert "repeat up to 2 records" in told


def test_agents_with_positions_of_a_later_version_are_reported(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    bench.committed[P0] = (1, 'AQAAAYvP5WgA {"r":{"1a2b3c4d":10},"v":2}')
    bench.append(P0, [(None, b"a"), (None, b"b")])
    begun(bench, crowd(2), T0)
    (told,) = [each for each in caplog.messages if "a later version" in each]
    assert told.startswith("words-0: a later version of streamsx committed offset 1")
    assert "Agents of agent0, agent1 that were ahead repeat records from there" in told


# -- records that fail


def failing(kept: Any, word: str) -> None:
    if word.startswith("bad"):
        raise ValueError(word)
    kept[word] = word


def test_ten_failures_in_a_row_stop_the_task_at_the_first_one(
    bench: VirtualCluster,
) -> None:
    station = begun(bench, app_of(failing), T0, T1)
    feed(bench, "a", *["bad"] * 9, "b", *["bad"] * 9)
    bench.until(lambda: committed(bench) == 11)
    bench.run(3)
    assert committed(bench) == 11, "the first of nine is held"
    waiting = station.made.loop._behind
    assert waiting() == 9, "as status has it: it was 0, they had been looked at"
    feed(bench, "bad", "c")
    bench.until(lambda: station.states(T0)[-1] == "stopped")
    (told,) = errors(station)
    assert told.startswith("task stopped: 0_0, words-0 offset 11: 10 records in a row failed")
    assert e.Want("task 0_0 stopped") in station.hand.posted
    assert station.made.session.builder.report.reasons == {T0: told}
    since = bench.scheduler.now
    feed(bench, "d")
    feed(bench, "x", partition=1)
    bench.until(lambda: committed(bench, P1) == 1)
    bench.run(3)
    assert (committed(bench), store(station)) == (11, {"a": "a", "b": "b"})
    assert waiting() >= 10, "it has stopped, and they are still there"
    assert P0 not in [tp for tp, _ in bench.fetched(since + 0.5)]

    station.hand.revoke(T0, number=3)
    bench.until(station.hand.released, 1)
    assert (station.hand.released(), committed(bench)) == ([3], 11)


def test_failures_at_the_end_of_a_quiet_log_are_committed_and_logged_once(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    station = begun(bench, app_of(failing), T0)
    feed(bench, "a", "bad", "bad")
    bench.until(lambda: committed(bench) == 1)
    bench.run(4)
    assert committed(bench) == 1
    feed(bench, "bad")
    bench.run(4.5)
    assert committed(bench) == 1, "5 s count from the last record"
    bench.until(lambda: committed(bench) == 4, 3)
    feed(bench, *["bad"] * 9, "b")
    bench.until(lambda: committed(bench) == 14, 3)
    assert station.states(T0)[-1] == "running", "they begin a row of their own"

    caplog.clear()
    station.hand.revoke(T0)
    bench.until(station.hand.released, 5)
    station.hand.plan(T0)
    bench.run(8)
    assert station.states(T0)[-1] == "running"
    assert not [told for told in caplog.messages if "Record failed" in told]


def test_failures_are_held_while_their_task_is_paused(bench: VirtualCluster) -> None:
    """Its commits are denied, so the failures after them must wait."""
    station = begun(bench, app_of(failing), T0)
    feed(bench, "a", "bad")
    bench.until(lambda: committed(bench) == 1)
    bench.until(lambda: station.made.committer.idle)
    station.made.tasks.actives[T0].paused = True
    bench.run(8)
    assert committed(bench) == 1
    station.made.tasks.actives[T0].paused = False
    bench.run(4)
    assert committed(bench) == 1
    bench.until(lambda: committed(bench) == 2, 3)


def test_stopped_task_commits_earlier_records(bench: VirtualCluster) -> None:
    station = begun(bench, app_of(failing, consecutive_failures_max=1), T0)
    feed(bench, "a", "bad", "b")
    bench.until(lambda: station.states(T0)[-1] == "stopped")
    bench.until(lambda: committed(bench) == 1)
    bench.run(0.5)
    assert store(station) == {"a": "a"}


def test_undecodable_row_fails_only_records_reading_the_row(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def count(kept: Any, word: str) -> None:
        kept[word] = kept.get(word, 0) + 1

    bench.run(0.1)
    station = bench.station(app_of(count))
    bench.until(lambda: station.hand.alive)
    bench.append(CHANGELOG, [(b'"a"', b"5"), (b'"b"', b"{no"), (b'"c"', b"7")])
    bench.run(0.1)
    feed(bench, "a", "b", "c", "b", "a")
    station.hand.plan(T0)
    bench.until(lambda: committed(bench) == 5)
    bench.run(0.5)
    assert changelog_rows(bench) == {b'"a"': b"7", b'"b"': b"{no", b'"c"': b"8"}
    assert """row cannot be read: store kept, key b'"b"'""" in caplog.text
    assert "words-0 offset 1, task 0_0" in caplog.text


def changelog_rows(bench: VirtualCluster) -> dict[bytes | None, bytes | None]:
    return dict(bench.read(CHANGELOG))
