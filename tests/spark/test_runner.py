"""spark/runner.py: state is exact, whoever dies and whatever is repeated or lost."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streamsx.app.lookup import app_named
from streamsx.broker.api.served import answered
from streamsx.broker.groups.coordinator_events import ReplyBody
from streamsx.broker.net.client_connection import ServedRequest
from streamsx.broker.service import Service
from streamsx.errors import IncompatibleStore, NotFound, StateConflict, UsageError
from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.partitioner import partition_of
from streamsx.protocol.wire import Api
from streamsx.spark.checkout import discard_all
from streamsx.spark.runner import Committed, LiveQuery, run
from streamsx.spark.writer_lock import RUNNING
from streamsx.state.snapshot import commit, manifest_name, newest, numbers, read
from streamsx.state.snapshot_files import open_files
from streamsx.testing import Broker
from tests.support.apache_kafka import ApacheKafka
from tests.support.client import Client
from tests.unit.spark.conftest import Fed, Stored, driven, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]
APP = "tests.spark.apps:frail"
COUNTS = {"words": 2}


class Feed:
    """The app `frail`, what it was fed, and its state. `heard`: of each batch."""

    def __init__(self, spark: "SparkSession", broker: Broker, folder: Path) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.uri, self.app = str(folder / "state"), app_named(APP)
        self.app.override(bootstrap=broker.bootstrap)
        self.client = Client(broker.bootstrap)
        self.files = open_files(self.uri)
        self.fed: list[Fed] = []
        self.heard: list[Committed] = []
        self.said: list[str] = []

    def on_kafka(self, kafka: Broker | ApacheKafka) -> None:
        """Start from here, as if no query had run before."""
        self.client.close()
        self.client = Client(kafka.bootstrap)
        for topic in (*COUNTS, "told", "frail-seen-changelog"):
            self.client.delete(topic)
        self.client.create("words", 2)
        self.app.override(bootstrap=kafka.bootstrap)

    def feed(self, *words: str) -> None:
        for word in words:
            key = word.encode()
            place = partition_of(key, 2)
            self.client.send(TopicPartition("words", place), [(key, key)])
            self.fed.append(Fed("words", place, 0, key, key))

    def live(self, **more: Any) -> LiveQuery:
        about = {"sink": "noop", "publishes": False, "scratch": str(self.folder), **more}
        how: dict[str, Any] = {"heard": self.heard.append, "say": self.said.append}
        return run(self.spark, APP, self.uri, **{**how, **about})

    def run(self, **more: Any) -> None:
        """Run over all records there are."""
        self.live(available_now=True, **more).wait()

    def stored(self) -> Stored:
        return stored(self.files, str(self.folder))

    def truth(self) -> Stored:
        return driven(self.app, self.fed, COUNTS)


@pytest.fixture
def feed(spark: "SparkSession", tmp_path: Path) -> Iterator[Feed]:
    with Broker(topics=COUNTS) as broker:
        made = Feed(spark, broker, tmp_path)
        yield made
        made.client.close()
    discard_all()


def some(start: int, count: int = 40) -> list[str]:
    return [f"w{n * n % 17}" for n in range(start, start + count)]


def test_each_batch_continues_from_the_previous_batch(feed: Feed) -> None:
    feed.feed(*some(0))
    feed.run(max_records=15, sink="kafka")
    assert [done.manifest.number for done in feed.heard] == [0, 1, 2]
    assert [done.records for done in feed.heard] == [15, 15, 10]
    assert feed.client.partitions("told") == 2
    sent = [r.value for n in range(2) for r in feed.client.read(TopicPartition("told", n), 0)]
    assert len(sent) == 40
    feed.feed(*some(40))
    feed.run()
    assert feed.heard[-1].manifest.number == 3
    assert feed.stored() == feed.truth()
    assert feed.files.names(RUNNING) == []
    assert "checkpoint" not in os.listdir(feed.uri)


def test_task_attempt_killed_after_applying_records_leaves_no_trace(feed: Feed) -> None:
    feed.feed(*some(0), "die", *some(40), "die")
    feed.run()
    assert sum(done.records for done in feed.heard) == len(feed.fed)
    assert feed.stored() == feed.truth()


@pytest.mark.slow
def test_newest_snapshot_alone_decides_where_a_query_resumes(feed: Feed) -> None:
    """A lost snapshot is made again; Spark repeats or skips no number."""
    feed.feed(*some(0))
    feed.run(max_records=20)
    feed.files.delete("manifests/000000000001.json")
    feed.feed(*some(40))
    feed.run(max_records=20)
    assert [done.manifest.number for done in feed.heard] == [0, 1, 1, 2, 3]
    assert feed.stored() == feed.truth()


@pytest.mark.slow
def test_start_latest_is_fixed_when_the_first_query_starts(feed: Feed) -> None:
    old = some(0)
    feed.feed(*old)
    feed.run(start="latest")
    assert newest(feed.files) is not None
    feed.fed.clear()
    feed.feed(*some(40))
    feed.run(start="latest")
    assert feed.stored() == feed.truth()


@pytest.mark.slow
def test_start_group_without_commits_starts_as_a_worker_would(feed: Feed) -> None:
    feed.feed(*some(0))
    feed.run(start="group")
    assert [done.manifest.number for done in feed.heard] == [1]
    first = read(feed.files, 0)
    assert first.made_by == "compact"
    assert {n: at.next for n, at in first.positions["words"].items()} == {0: 0, 1: 0}
    feed.feed(*some(40))
    feed.run(start="group")  # the newest snapshot counts
    assert feed.stored() == feed.truth()


def test_snapshot_without_positions_is_refused(feed: Feed) -> None:
    feed.feed(*some(0))
    feed.run()
    held = newest(feed.files)
    assert held is not None
    commit(feed.files, replace(held, number=1, made_by="compact", positions={}), before=held)
    with pytest.raises(UsageError, match=r"without positions: .*snapshot 1, made by compact"):
        feed.run()


def test_idle_query_renews_the_running_mark(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamsx.spark.writer_lock.RENEW_S", 0.1)
    renewed, begun = threading.Event(), threading.Event()
    names: set[str] = set()
    create = type(feed.files).create

    def seen(files: Any, name: str, data: bytes) -> None:
        create(files, name, data)
        if name.startswith(f"{RUNNING}/"):
            names.add(name)
            if begun.is_set() and len(names) > 3:
                renewed.set()

    monkeypatch.setattr(type(feed.files), "create", seen)

    def owners() -> set[str]:
        """While a mark is renewed there are two of one owner."""
        return {name.partition("-")[2] for name in feed.files.names(RUNNING)}

    live = feed.live(every_s=0.2)
    try:
        begun.set()
        assert renewed.wait(30)
        for _ in range(2):
            with pytest.raises(UsageError, match=rf"a query is running: .*process {os.getpid()}"):
                feed.live()
        assert len(owners()) == 1
        feed.live(force=True).stop()
        assert len(owners()) == 1
    finally:
        live.stop()
    assert feed.files.names(RUNNING) == []


def test_query_that_fails_to_start_leaves_no_running_mark(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Exception, match=r"(?i)interval|duration|spark"):
        feed.live(every_s=float("nan"))
    assert feed.files.names(RUNNING) == []


@pytest.mark.slow
def test_unreadable_old_manifest_does_not_end_a_query(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamsx.spark.runner.GARBAGE_EVERY", 1)
    feed.feed(*some(0))
    feed.run(max_records=20)
    Path(feed.uri, "manifests/000000000000.json").write_text('{"format": 2}')
    feed.feed(*some(40))
    feed.run()
    assert feed.stored() == feed.truth()


@pytest.mark.slow
def test_garbage_is_removed_and_newest_snapshots_are_kept(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamsx.spark.runner.GARBAGE_EVERY", 5)
    feed.feed(*some(0, 12))
    feed.run(max_records=2, keep=3)
    assert numbers(feed.files) == [3, 4, 5]
    assert feed.stored() == feed.truth()


@pytest.mark.slow
def test_second_writer_of_one_state_is_refused(feed: Feed) -> None:
    feed.feed(*some(0))
    feed.run()
    feed.feed(*some(40))

    def other(text: str) -> None:
        if "stage 0" in text and (held := newest(feed.files)) and held.number == 0:
            commit(feed.files, replace(held, number=1, run="other"), before=held)

    with pytest.raises(StateConflict, match=r"found snapshot 1, made by run other: stop one"):
        feed.run(say=other)
    assert numbers(feed.files) == [0, 1]


def test_skipped_records_are_reported(feed: Feed) -> None:
    feed.client.send(TopicPartition("words", 0), [(b"a", b"\xff")] * 5)
    feed.run()
    (told,) = [line for line in feed.said if "passed over" in line]
    assert told.startswith("5 records passed over: ")
    assert [f"words-0 offset {n}" in told for n in range(5)] == [True] * 3 + [False] * 2


@pytest.mark.slow
def test_garbage_that_cannot_be_removed_is_reported_only(feed: Feed) -> None:
    feed.feed("a")
    feed.run()
    held = newest(feed.files)
    assert held is not None
    commit(feed.files, replace(held, number=15), before=held)
    (Path(feed.uri) / manifest_name(3)).symlink_to("/proc/self/mem")  # cannot be read
    feed.feed("b")
    feed.run()
    assert numbers(feed.files) == [0, 3, 15, 16]
    (told,) = [line for line in feed.said if line.startswith("garbage stays: ")]
    assert f"{manifest_name(3)}: Input/output error" in told


@pytest.mark.slow
def test_sink_path_not_shared_with_executors_is_refused(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamsx.spark.session.is_local", lambda _: False)
    monkeypatch.chdir(feed.folder)  # where executors are not
    feed.feed("a")
    with pytest.raises(UsageError, match=r"cannot see /proc/.*: use a shared mount as --sink pa"):
        feed.run(sink="parquet=/proc/self/cwd/told")
    assert newest(feed.files) is None
    feed.run(sink=f"parquet={feed.folder}/told")
    assert feed.stored() == feed.truth()


def test_stop_lets_the_running_batch_finish(feed: Feed) -> None:
    feed.feed(*some(0))
    stop = threading.Event()
    live = run(
        feed.spark, APP, feed.uri, sink="noop", publishes=False, scratch=str(feed.folder),
        heard=feed.heard.append, say=lambda text: stop.set() if "stage 0" in text else None,
    )  # fmt: skip
    live.wait(stop)
    assert not live.query.isActive
    assert [done.records for done in feed.heard] == [40]
    assert feed.stored() == feed.truth()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"app": "other"}, "another app: .*expected frail, found other"),
        ({"partitions": {"words": 4}}, "another partition count: .*'words': 2.*'words': 4"),
        ({"stores": {}}, "another layout: .*'seen'.*found {}"),
    ],
)
def test_incompatible_snapshot_is_refused(feed: Feed, change: dict[str, Any], what: str) -> None:
    feed.feed("a")
    feed.run()
    held = newest(feed.files)
    assert held is not None
    commit(feed.files, replace(held, number=1, **change), before=held)
    with pytest.raises(IncompatibleStore, match=what):
        feed.run()


def without_transactions(service: Service, call: ServedRequest) -> ReplyBody | None:
    """Answer as a broker without a coordinator for transactions."""
    if call.api is Api.FIND_COORDINATOR and call.body.key_type:
        return {"error_code": ErrorCode.INVALID_REQUEST, "coordinators": []}
    return answered(service, call)


def test_missing_transactions_or_topics_are_refused_before_writing(feed: Feed) -> None:
    with Broker(topics=COUNTS, answer=without_transactions) as older:
        feed.app.override(bootstrap=older.bootstrap)
        with pytest.raises(UsageError, match=r"brokers without transactions: .*--no-publish"):
            feed.run(publishes=True)
    feed.app.override(bootstrap=feed.broker.bootstrap)
    feed.client.delete("words")
    with pytest.raises(NotFound, match="no such topic: words: frail reads it"):
        feed.run()
    assert not Path(feed.uri).exists()


@pytest.mark.slow
def test_deleted_unread_records_fail_the_query(feed: Feed) -> None:
    feed.feed(*["a"] * 5)
    feed.run(max_records=2)
    feed.feed(*["a"] * 5)
    feed.client.delete_records(TopicPartition("words", partition_of(b"a", 2)), 8)
    before = numbers(feed.files)
    with pytest.raises(Exception, match="records are gone: words-"):
        feed.run()
    assert numbers(feed.files) == before


@pytest.mark.kafka
def test_changelogs_hold_the_state_named_by_manifests(feed: Feed, kafka: ApacheKafka) -> None:
    feed.on_kafka(kafka)
    feed.feed(*some(0))
    feed.run(max_records=25, sink="kafka", publishes=True)
    held = newest(feed.files)
    assert held is not None
    assert held.number == 1
    for (store, partition), rows in feed.truth().items():
        log = TopicPartition(f"frail-{store}-changelog", partition)
        written = {r.key: r.value for r in feed.client.read(log, 0)}
        assert sorted(written.items()) == [(key[1:], value) for key, value in rows]
        end = held.stores[store].partitions[partition].changelog_next
        assert end is not None
        # The marker of a transaction may lie behind it.
        assert end <= feed.client.ends([log])[log] <= end + 1
