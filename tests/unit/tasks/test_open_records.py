"""tasks/open_records.py: commits of a worker whose bodies wait in the middle of their records."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from streamsx import App, Stream, tumbling
from streamsx.group import member_events as e
from streamsx.model import TaskId, TopicPartition
from streamsx.tasks.open_records import RECORD_PATIENCE_S
from tests.unit.tasks.test_committer import (
    P1,
    T0,
    T1,
    app_of,
    begun,
    changelog,
    committed,
    feed,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.conftest import VirtualCluster


def adding(kept: Any, word: str) -> Any:
    """Count a word, and then wait as long as it says, or fail."""
    kept[word] = (kept.get(word) or 0) + 1
    if word == "bad":
        raise ValueError(word)
    return None if word.isalpha() else asyncio.sleep(float(word))


def test_commit_waits_for_the_end_of_a_record(bench: VirtualCluster) -> None:
    """A commit in its middle would have its change, and the position ahead of it."""
    begun(bench, app_of(adding), T0)
    feed(bench, "a", "3.3", "b")
    bench.run(3.2)
    assert (committed(bench), changelog(bench)) == (-1, {})
    bench.until(lambda: committed(bench) == 2, 0.3)
    assert changelog(bench) == {"a": 1, "3.3": 1}
    bench.until(lambda: committed(bench) == 3, 1.5)


def test_record_that_waits_over_a_commit_counts_once_when_another_one_fails(
    bench: VirtualCluster,
) -> None:
    """The task goes back to the commit, which must not have a part of the record."""
    begun(bench, app_of(adding, broker_commit_interval=0.5), T0)
    feed(bench, "a", "1.2", "b", "0.7", "bad", "c")
    bench.until(lambda: committed(bench) == 6, 20)
    assert changelog(bench) == {"a": 1, "1.2": 1, "b": 1, "0.7": 1, "c": 1}


def test_other_tasks_commit_at_the_interval_while_one_waits_for_its_record(
    bench: VirtualCluster,
) -> None:
    begun(bench, app_of(adding), T0, T1)
    feed(bench, *["0.8"] * 30)
    for turn in range(8):
        feed(bench, "a", partition=1)
        bench.run(1.25)
        assert committed(bench, P1) == turn + 1
    assert committed(bench) >= 7


def test_interval_of_other_tasks_does_not_begin_anew_with_a_commit_of_one_task(
    bench: VirtualCluster,
) -> None:
    """Once the interval has ended while nothing but the waiting task had work to commit."""
    begun(bench, app_of(adding), T0, T1)
    feed(bench, "a", partition=1)
    bench.until(lambda: committed(bench, P1) == 1, 2)
    feed(bench, "2.5")
    bench.run(2.6)
    assert committed(bench) == 1
    feed(bench, "b", partition=1)
    bench.until(lambda: committed(bench, P1) == 2, 0.6)


def test_task_is_sealed_at_the_end_of_a_record_whatever_the_cycle_waits_for(
    bench: VirtualCluster,
) -> None:
    """Else tasks stand for as long as the commits of others take."""
    station = begun(bench, app_of(adding), T0, T1)
    feed(bench, "2", "9")
    feed(bench, "a", partition=1)
    station.hand.holds = True
    bench.run(2.5)
    assert changelog(bench) == {"2": 1}
    assert station.made.tasks.actives[T0].task.busy, "it has begun with the next record"
    (asked,) = (event for event in station.hand.posted if isinstance(event, e.Commit))
    station.hand.holds = False
    station.hand.commit(asked)
    bench.until(lambda: committed(bench) == 1, 0.5)
    assert changelog(bench) == {"2": 1}


def test_commit_does_not_end_the_patience_with_a_revoked_task(bench: VirtualCluster) -> None:
    """The interval ends first, and other tasks commit."""
    station = begun(bench, app_of(adding), T0, T1)
    feed(bench, "a", "5", "b")
    feed(bench, "a", partition=1)
    bench.run(0.5)
    station.hand.revoke(T0)
    bench.until(lambda: committed(bench, P1) == 1, 2)
    bench.run(2)
    assert changelog(bench) == {}
    bench.until(station.hand.released, 3)
    assert (committed(bench), changelog(bench)) == (2, {"a": 1, "5": 1})


def test_task_that_is_sealed_by_itself_and_revoked_commits_all_it_has_done(
    bench: VirtualCluster,
) -> None:
    """A cycle of another task runs meanwhile, then one with the first seal, then the last one."""
    station = begun(bench, app_of(adding), T0, T1)
    feed(bench, "1.5", "0.5", "b")
    feed(bench, "a", partition=1)
    station.hand.holds = True
    bench.run(3)
    (asked,) = (event for event in station.hand.posted if isinstance(event, e.Commit))
    station.hand.revoke(T0)
    bench.run(1)
    station.hand.holds = False
    station.hand.commit(asked)
    bench.until(station.hand.released, 1)
    assert (committed(bench), changelog(bench)) == (3, {"1.5": 1, "0.5": 1, "b": 1})


def test_task_that_is_sealed_by_itself_goes_back_like_any_other(bench: VirtualCluster) -> None:
    """A record fails behind the seal; another task's commit is still under way."""
    station = begun(bench, app_of(adding), T0, T1)
    feed(bench, "1.5", "b", "bad", "c")
    feed(bench, "a", partition=1)
    station.hand.holds = True
    bench.run(3)
    (asked,) = (event for event in station.hand.posted if isinstance(event, e.Commit))
    station.hand.holds = False
    station.hand.commit(asked)
    bench.until(lambda: committed(bench) == 4, 10)
    assert changelog(bench) == {"1.5": 1, "b": 1, "c": 1}


@pytest.mark.parametrize(
    ("guarantee", "kept"), [("at_least_once", (-1, {})), ("exactly_once", (1, {"a": 1}))]
)
def test_record_that_ends_its_worker_is_not_sealed(
    bench: VirtualCluster, guarantee: str, kept: tuple[int, dict[str, int]]
) -> None:
    """Its body fails while the seal waits for it. Other tasks use up the turns."""

    async def sleep_and_fail(seconds: float) -> None:
        await asyncio.sleep(seconds)
        raise ValueError(seconds)

    def add(kept: Any, word: str) -> Any:
        if word == "busy":
            bench.scheduler.elapse(0.012)
            return None
        kept[word] = 1
        return None if word.isalpha() else sleep_and_fail(float(word))

    app = app_of(add, on_error="stop", processing_guarantee=guarantee, commit_interval=1.0)
    begun(bench, app, T0, T1, TaskId(0, 2))
    feed(bench, "a", "2.5")
    for partition in 1, 2:
        feed(bench, *["busy"] * 2000, partition=partition)
    bench.run(8)
    assert (committed(bench), changelog(bench)) == kept


def test_revoked_task_commits_what_a_body_has_done_that_takes_too_long(
    bench: VirtualCluster,
) -> None:
    station = begun(bench, app_of(adding, revoke_timeout=20.0), T0)
    feed(bench, "a", "1000")
    bench.run(3)
    station.hand.revoke(T0)
    bench.run(9)
    assert station.hand.released() == []
    bench.until(station.hand.released, 2)
    assert (committed(bench), changelog(bench)) == (1, {"a": 1, "1000": 1})


def test_body_that_never_ends_its_record_is_committed_in_the_middle(bench: VirtualCluster) -> None:
    begun(bench, app_of(adding), T0)
    feed(bench, "a", "1e9")
    bench.run(RECORD_PATIENCE_S - 0.5)
    assert committed(bench) == -1
    bench.until(lambda: committed(bench) == 1, 2.5)
    assert changelog(bench) == {"a": 1, "1e9": 1}


def test_other_agents_go_on_when_a_record_has_taken_too_long(bench: VirtualCluster) -> None:
    app = App("t", broker="127.0.0.1:9092", topic_partitions=3, memory_budget="32MiB")
    kept = app.Table("kept")
    words = app.topic("words", value_type=str, value_serializer="raw")

    @app.agent(words)
    async def never_ends(stream: Stream[str]) -> None:
        async for _ in stream:
            await asyncio.sleep(1e9)

    @app.agent(words)
    async def puts(stream: Stream[str]) -> None:
        async for word in stream:
            await asyncio.sleep(0.7)
            kept[word] = word

    begun(bench, app, T0)
    feed(bench, "a", "b", "c")
    bench.run(2 * RECORD_PATIENCE_S + 10)
    assert changelog(bench) == {"a": "a", "b": "b", "c": "c"}


def test_revoked_task_holds_the_memory_of_no_other(bench: VirtualCluster) -> None:
    """Its body puts too much within one record."""

    async def put_much(kept: Any) -> None:
        for row in range(400):
            kept[row] = "x" * 100_000
            await asyncio.sleep(0.01)
        await asyncio.sleep(1e9)

    def put(kept: Any, word: str) -> Any:
        if word == "much":
            return put_much(kept)
        kept[word] = word
        return None

    station = begun(bench, app_of(put), T0, T1)
    feed(bench, "much")
    bench.run(0.3)
    station.hand.revoke(T0)
    bench.run(5)
    feed(bench, "a", partition=1)
    bench.until(lambda: committed(bench, P1) == 1, 3)


def orders_and_words(
    bench: VirtualCluster, flow: Callable[[Any], Any], keep: Callable[[Any, str], Any] = adding
) -> None:
    """Run an agent that keeps orders, and waits or fails as they say, and a flow of words."""
    for topic in "orders", "out":
        bench.create(topic, 3)
    app = App("t", broker="127.0.0.1:9092", topic_partitions=3, memory_budget="32MiB")
    kept = app.Table("kept")
    words = app.topic("words", key_serializer="raw", value_serializer="raw")

    @app.agent(app.topic("orders", value_type=str, value_serializer="raw"))
    async def orders(stream: Stream[str]) -> None:
        async for order in stream:
            if (waits := keep(kept, order)) is not None:
                await waits

    @app.agent(words)
    async def joins_the_task(stream: Stream[bytes]) -> None:
        async for word in stream:
            kept["word"] = word.decode()

    flow(app.flow(words).group_by_key()).to("out")
    begun(bench, app, T0)


def give(bench: VirtualCluster, topic: str, *values: str, key: bytes = b"k", hour: int = 0) -> None:
    rows = [(key, value.encode()) for value in values]
    bench.append(TopicPartition(topic, 0), rows, 1_700_000_000_000 + hour * 3_600_000)


def results(bench: VirtualCluster) -> list[bytes | None]:
    parts = (bench.read(TopicPartition("out", partition)) for partition in range(3))
    return [value for rows in parts for _, value in rows]


def test_results_of_a_commit_leave_once_when_the_next_record_fails(bench: VirtualCluster) -> None:
    """The seal sends them, and its commit is under way when the task goes back."""
    orders_and_words(bench, lambda words: words.count("total", emit="commit"))
    bench.run(0.3)
    give(bench, "words", "a", "b", "c")
    give(bench, "orders", "1.5", "bad", "c")
    bench.run(10)
    assert results(bench) == [b"3"]


def test_results_of_an_idle_window_leave_once_when_a_record_fails_that_a_seal_waits_for(
    bench: VirtualCluster,
) -> None:
    """No commit comes between the results and the failure, so they leave behind both."""
    window = tumbling("1h", grace="0s", idle="3s")
    hours = partial(orders_and_words, bench, keep=failing_late)
    hours(lambda words: words.window(window).count("hour", emit="final"))
    bench.run(0.3)
    give(bench, "words", "a", "b", "c")
    give(bench, "orders", "6", "c")
    bench.run(20)
    assert results(bench) == [b"3"]


def test_results_of_many_windows_leave_once_when_the_next_record_fails(
    bench: VirtualCluster,
) -> None:
    """The record fails when it is given back, and no chunk is taken behind that."""
    window = tumbling("1h", grace="0s")
    orders_and_words(bench, lambda words: words.window(window).count("hour", emit="final"))
    for number in range(1200):
        give(bench, "words", "a", key=b"%d" % number)
    bench.run(0.3)
    give(bench, "orders", "2.5", "bad", "c")
    bench.run(0.7)
    give(bench, "words", "a", hour=2)
    bench.run(20)
    assert len(results(bench)) == 1200


def test_seal_that_fails_beside_the_writes_of_another_task_ends_no_worker(
    bench: VirtualCluster,
) -> None:
    """The record fails for which the seal has waited, and its task goes back."""
    station = begun(bench, app_of(failing_late), T0, T1)
    station.write_s = 0.02
    feed(bench, "a", "1.5", "c")
    feed(bench, *map(str.__add__, ["w"] * 5000, map(str, range(5000))), partition=1)
    bench.until(lambda: committed(bench) == 3 and committed(bench, P1) == 5000, 60)
    assert changelog(bench) == {"a": 1, "c": 1}
    assert station.process.alive


def failing_late(kept: Any, word: str) -> Any:
    """Count a word; fail behind a wait if it is a number."""

    async def wait_and_fail() -> None:
        await asyncio.sleep(float(word))
        raise ValueError(word)

    kept[word] = (kept.get(word) or 0) + 1
    return wait_and_fail() if word[0].isdigit() else None


def test_windows_of_an_idle_topic_close_beside_a_slow_agent(bench: VirtualCluster) -> None:
    """A seal waits for the agent again and again; the topic of the windows is quiet for 3 s."""
    for topic in "orders", "finals":
        bench.create(topic, 3)
    app = App("t", broker="127.0.0.1:9092", topic_partitions=3, memory_budget="32MiB")
    kept = app.Table("kept")
    words = app.topic("words", key_serializer="raw", value_serializer="raw")
    orders = app.topic("orders", value_type=str, value_serializer="raw")

    @app.agent(words)
    async def reads(stream: Stream[bytes]) -> None:
        async for word in stream:
            kept["word"] = word.decode()

    @app.agent(orders)
    async def waits(stream: Stream[str]) -> None:
        async for order in stream:
            kept["order"] = order
            await asyncio.sleep(0.8)

    window = tumbling("1h", grace="0s", idle="3s")
    app.flow(words).group_by_key().window(window).count("hour", emit="final").to("finals")
    begun(bench, app, T0)
    bench.append(TopicPartition("words", 0), [(b"k", b"w")], 1_699_999_999_000)
    bench.append(TopicPartition("orders", 0), [(None, b"o")] * 20, 1_700_000_000_000)
    finals = [TopicPartition("finals", partition) for partition in range(3)]
    bench.until(lambda: any(map(bench.read, finals)), 6)


def test_record_is_not_waited_for_when_too_much_is_dirty(bench: VirtualCluster) -> None:
    """Its task would hold the memory of all tasks."""

    def put_much(kept: Any, word: str) -> Any:
        if word == "wait":
            return asyncio.sleep(1e9)
        kept[word] = "x" * 100_000
        return None

    begun(bench, app_of(put_much, broker_commit_interval=5.0), T0, T1)
    feed(bench, *map(str, range(20)), "wait")
    bench.run(7)
    assert committed(bench) == -1, "the interval does not end the wait"
    feed(bench, *map(str, range(200)), partition=1)
    bench.until(lambda: committed(bench) == 20, 5)


def test_body_that_connects_ahead_of_its_first_record_delays_no_commit(
    bench: VirtualCluster,
) -> None:
    """The task commits where it begins, before it takes a record."""
    bench.uncommitted = (-1, "")
    app = App("t", broker="127.0.0.1:9092", memory_budget="32MiB")
    kept = app.Table("kept")

    @app.agent(app.topic("words", value_type=str, value_serializer="raw", partitions=3))
    async def connects(stream: Stream[str]) -> None:
        await asyncio.sleep(10)
        async for word in stream:
            kept[word] = word

    begun(bench, app, T0)
    bench.until(lambda: committed(bench) == 0, 2)


def test_careful_task_commits_while_a_body_waits_without_its_record(bench: VirtualCluster) -> None:
    begun(bench, app_of(adding), T0)
    feed(bench, "bad", "a")
    bench.until(lambda: committed(bench) == 2, 3)
    feed(bench, "b", "7")
    bench.until(lambda: committed(bench) == 3, 3)
    assert changelog(bench) == {"a": 1, "b": 1}
    bench.until(lambda: committed(bench) == 4, 8)
    assert changelog(bench) == {"a": 1, "b": 1, "7": 1}
