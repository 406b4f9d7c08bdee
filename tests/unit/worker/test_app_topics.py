"""Changelogs that are deleted and created again: the state on a worker's disk is kept."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from streamsx.broker.api.served import answered
from streamsx.errors import ChangelogLost
from streamsx.protocol.wire import Api
from tests.unit.conftest import app_of, changelog, counting

if TYPE_CHECKING:
    import pytest

    from streamsx import App, Stream
    from streamsx.broker.groups.coordinator_events import ReplyBody
    from streamsx.broker.net.client_connection import ServedRequest
    from streamsx.broker.service import Service
    from tests.unit.conftest import Stored, VirtualCluster, WorkerHarness

COUNTS = changelog(0).topic


def start(
    bench: VirtualCluster, app: App, name: str = "w1", stores: Stored | None = None
) -> WorkerHarness:
    return bench.station(app, name, by_hand=False, stores=stores)


def counted(bench: VirtualCluster, words: int = 4) -> WorkerHarness:
    """Run a worker of three tasks until it has committed so many words in each, and kill it."""
    station = working(bench, words)
    station.process.kill()
    bench.run(0.1)
    return station


def working(bench: VirtualCluster, words: int = 4) -> WorkerHarness:
    station = start(bench, counting())
    for partition in range(3):
        bench.feed(partition, *["a"] * words)
    bench.until(lambda: station.begun and len(station.made.tasks.actives) == 3)
    bench.until(lambda: bench.counted() == {"a": 3 * words})
    bench.run(1)
    assert station.position(0)
    return station


def make_anew(bench: VirtualCluster, topic: str = COUNTS) -> None:
    topics, named = bench.broker.service.topics, bench.broker.service.fresh_id().bytes
    configs = {"cleanup.policy": "compact"} if topic == COUNTS else {}
    bench.at_broker(lambda: topics.create(topic, named, 3, configs))
    bench.run(0.01)


def ended(bench: VirtualCluster, station: WorkerHarness, limit_s: float = 60) -> str:
    """Return the error with which the worker ended."""
    bench.until(lambda: not station.process.alive, limit_s)
    assert isinstance(station.main.error, ChangelogLost)
    assert station.main.error.exit_code == 2
    return str(station.main.error)


def test_deleted_changelog_is_not_recreated_while_state_is_on_disk(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The changelog was created again, and the state on disk, the last copy, was replaced by its
    empty content.
    """
    first = counted(bench)
    bench.delete(COUNTS)
    at, rows = bench.scheduler.now, first.rows(0)
    second = start(bench, counting(), stores=first.stores)
    folder = bench.folder / "w1" / "t" / "stores" / "counts"
    says = f"changelog is gone: topic {COUNTS}: the state of table counts in {folder} may be its"
    assert ended(bench, second).startswith(says)
    assert 10 <= bench.scheduler.now - at < 12
    asked = f"Changelogs are not there, and their state is: {COUNTS}. Asking again for 10 s."
    assert caplog.messages.count(asked) == 1
    assert COUNTS not in bench.broker.service.topics.by_name
    assert (second.rows(0), second.position(0)) == (rows, first.position(0))


def test_changelog_not_yet_known_to_a_broker_is_waited_for(bench: VirtualCluster) -> None:
    first = counted(bench)
    end = bench.scheduler.now + 6

    def knows_it_late(service: Service, call: ServedRequest) -> ReplyBody | None:
        body = answered(service, call)
        if call.api is Api.METADATA and body is not None and bench.scheduler.now < end:
            body["topics"] = [
                {"name": t["name"], "error_code": 3} if t["name"] == COUNTS else t
                for t in body["topics"]
            ]
        return body

    bench.answer = knows_it_late
    second = start(bench, counting(), stores=first.stores)
    bench.until(lambda: second.begun and len(second.made.tasks.actives) == 3)
    assert second.rows(0) == {"a": b"4"}


def test_state_of_a_recreated_changelog_is_kept_until_moved_away(bench: VirtualCluster) -> None:
    first = counted(bench)
    bench.delete(COUNTS)
    make_anew(bench)
    at = bench.scheduler.now
    second = start(bench, counting(), stores=first.stores)
    says = f"changelog was deleted and created again: topic {COUNTS}: the state of table counts in "
    assert ended(bench, second).startswith(says)
    assert bench.scheduler.now - at < 2
    assert second.rows(0) == {"a": b"4"}
    shutil.move(bench.folder / "w1" / "t" / "stores" / "counts", bench.folder / "aside")
    third = start(bench, counting())
    bench.until(lambda: third.begun and len(third.made.tasks.actives) == 3)
    bench.feed(0, "a")
    bench.until(lambda: bench.counted() == {"a": 1})


def test_new_table_in_a_running_app_starts_empty_with_a_warning(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    first = counted(bench)
    second = start(bench, counting(tables=1), stores=first.stores)
    bench.until(lambda: second.begun and len(second.made.tasks.actives) == 3)
    (told,) = [line for line in caplog.messages if "begins empty" in line]
    assert told.startswith("Table other0 begins empty: its changelog t-other0-changelog was not")
    assert "words was read already. No action needed if the table is new; else raise the" in told


def test_first_start_does_not_warn_of_empty_tables(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    counted(bench)
    assert not [line for line in caplog.messages if "begins empty" in line]


def test_vanished_changelog_is_reported_once_and_then_every_30_s(
    bench: VirtualCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """For minutes there was only `sending again: t-counts-changelog-0: no leader`."""
    station = working(bench)
    bench.delete(COUNTS)
    at = bench.scheduler.now
    bench.feed(0, "a")
    bench.run(80)
    told = [
        (when - at, str(fields["what"])) for when, name, fields in station.events if name == "error"
    ]
    assert [round((when - told[0][0]) / 30) for when, _ in told] == [0, 1, 2]
    assert 10 <= told[0][0] <= 16
    assert told[0][1].startswith(
        f"topic {COUNTS} is not there any more: table counts is not committed"
    )
    assert not [line for line in caplog.messages if "no leader" in line]
    assert station.rows(0) == {"a": b"4"}


def test_workers_with_a_recreated_changelog_end_and_keep_their_state(bench: VirtualCluster) -> None:
    first = working(bench)
    second = start(bench, counting(), "w2")
    bench.until(lambda: second.begun and len(second.made.tasks.actives) >= 1)
    bench.delete(COUNTS)
    bench.run(20)
    make_anew(bench)
    at = bench.scheduler.now
    says = f"changelog was deleted and created again: topic {COUNTS}"
    for station in (first, second):
        assert ended(bench, station, 20).startswith(says)
    assert bench.scheduler.now - at < 15
    again = start(bench, counting(), stores=first.stores)
    assert ended(bench, again).startswith(says)


def test_vanished_record_topic_is_reported_and_ends_no_worker(bench: VirtualCluster) -> None:
    app = app_of()
    out = app.topic("out", partitions=1, value_serializer="raw")

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def copy(stream: Stream[str]) -> None:
        async for word in stream:
            await out.send(value=word)

    station = start(bench, app)
    bench.until(lambda: station.begun and len(station.made.tasks.actives) == 3)
    bench.delete("out")
    bench.run(20)
    (told,) = station.told("error")
    assert str(told["what"]).startswith("topic out is not there any more: records sent to it wait")
    bench.delete("words")
    bench.run(35)
    gone = [str(it["what"]) for it in station.told("error") if it["where"] == "words"]
    assert gone[0].startswith("topic words is not there any more: nothing is read from it, and")
    make_anew(bench, "words")
    make_anew(bench, "out")
    bench.feed(0, "a")
    bench.run(20)
    assert station.process.alive
