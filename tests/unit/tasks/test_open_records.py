"""tasks/open_records.py: commits of a worker whose bodies wait in the middle of their records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from streamsx import App, Stream
from streamsx.group import member_events as e
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


def test_task_takes_no_record_between_the_end_of_one_and_its_seal(bench: VirtualCluster) -> None:
    """When the body is done, another cycle waits for its commit."""
    station = begun(bench, app_of(adding), T0, T1)
    feed(bench, "2", "9")
    feed(bench, "a", partition=1)
    station.hand.holds = True
    bench.run(4)
    station.hand.holds = False
    (asked,) = (event for event in station.hand.posted if isinstance(event, e.Commit))
    station.hand.commit(asked)
    bench.until(lambda: committed(bench) == 1, 1)
    assert changelog(bench) == {"2": 1}


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
