"""State on its way between workers and Spark, in the middle of a feed."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer

from streamsx.app.lookup import app_named
from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.errors import GroupNotEmpty, SnapshotAhead, StateConflict, StateOnSpark
from streamsx.model import TopicPartition
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.protocol.partitioner import partition_of
from streamsx.protocol.wire import Api
from streamsx.spark.bootstrap import bootstrap
from streamsx.spark.checkout import discard_all
from streamsx.spark.handover import handover
from streamsx.spark.plan import stages
from streamsx.spark.publish import changelog_ids, options_of
from streamsx.spark.runner import Committed, run
from streamsx.spark.source import SourceOptions
from streamsx.spark.writer_lock import take
from streamsx.state import snapshot
from streamsx.state.snapshot import Manifest, newest, newest_there
from streamsx.state.snapshot_files import SnapshotFiles, open_files
from streamsx.testing import Broker
from tests.support.apache_kafka import ApacheKafka
from tests.support.client import Client
from tests.support.workers import Workers
from tests.unit.spark.conftest import stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
]
SLOW_ON_KAFKA = pytest.mark.parametrize(
    "either",
    ["embedded", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.slow])],
    indirect=True,
)
"""Tests whose broker does nothing special: the gate runs them on the embedded one alone."""
APP = "tests.unit.spark.apps:carried"
"""Reads sales, regroups them into three partitions, keeps totals."""
LOG = "carried-totals-changelog"
EXACTLY_ONCE = {
    "PYTHONPATH": str(Path.cwd()), "STREAMSX_PROCESSING_GUARANTEE": "exactly_once",
    "STREAMSX_TRANSACTION_TIMEOUT": "20",
}  # fmt: skip


async def removed(cluster: Cluster) -> None:
    """Remove the members as an administrator does, before the session ends."""
    members = (await admin.describe_group(cluster, "carried")).members
    connection = await cluster.open(await cluster.coordinator("carried"), "test")
    gone = [{"member_id": member} for member, *_ in members]
    await connection.ask(Api.LEAVE_GROUP, {"group_id": "carried", "members": gone})


class Shop:
    """Sold items, and the totals that each kind of run makes of them."""

    def __init__(self, spark: "SparkSession", either: Broker | ApacheKafka, folder: Path) -> None:
        self.spark, self.client, self.folder = spark, Client(either.bootstrap), folder
        self.app, self.uri = app_named(APP), str(folder / "state")
        self.app.override(bootstrap=either.bootstrap)
        (self.inner,) = stages(self.app.topology(), {"sales": 2}, 2)[1].inner
        self.truth: Counter[str] = Counter()
        self.heard: list[Committed] = []
        for topic in (LOG, self.inner, "sales"):
            self.client.delete(topic)
        self.client.create("sales", 2)

    def sell(self, start: int, count: int) -> None:
        for n in range(start, start + count):
            sale = {"user": f"u{n % 7}", "amount": n}
            key = sale["user"].encode()  # type: ignore[attr-defined]
            place = TopicPartition("sales", partition_of(key, 2))
            self.client.send(place, [(key, json.dumps(sale).encode())])
            self.truth[f"u{n % 7}"] += n

    def run(self, **more: Any) -> None:
        """Run over all records there are."""
        how = {"scratch": str(self.folder), "heard": self.heard.append, **more}
        run(self.spark, APP, self.uri, available_now=True, **how).wait()

    def logged(self) -> dict[str, int]:
        """The newest of each key in the changelog."""
        read = [r for n in range(3) for r in self.client.read(TopicPartition(LOG, n))]
        newest = {json.loads(r.key or b""): r.value for r in read}
        return {key: int(value) for key, value in newest.items() if value is not None}

    def finished(self) -> bool:
        """Return whether the group has processed everything."""
        tps = [TopicPartition("sales", n) for n in range(2)]
        if not self.client.partitions(self.inner):
            return False
        tps += [TopicPartition(self.inner, n) for n in range(3)]
        ends, at = self.client.ends(tps), self.client.committed("carried", tps)
        return all(max(0, at[tp]) == ends[tp] for tp in tps) and self.logged() == self.truth


@pytest.fixture
def shop(spark: "SparkSession", either: Broker | ApacheKafka, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(spark, either, tmp_path)
    yield made
    made.client.close()
    discard_all()


@SLOW_ON_KAFKA
def test_state_moves_from_workers_to_spark_and_back(
    shop: Shop, either: Broker | ApacheKafka, tmp_path: Path
) -> None:
    shop.sell(0, 30)
    env = {"PYTHONPATH": str(Path.cwd())}
    with Workers(either.bootstrap, tmp_path / "a", app=APP, env=env) as workers:
        workers.start("a")
        workers.until(shop.finished, "all is committed")
        for begin in (
            lambda: shop.run(start="group", publishes=False, sink="noop"),
            lambda: shop.run(publishes=False),
            lambda: shop.run(sink="noop"),
            lambda: bootstrap(shop.spark, APP, str(tmp_path / "b"), {"sales": "kafka"}),
            lambda: bootstrap(
                shop.spark, APP, str(tmp_path / "b"), {"sales": "none"}, partitions={"sales": 2}
            ),
        ):
            with pytest.raises(GroupNotEmpty, match="running: group carried: a: stop"):
                begin()
        assert not Path(shop.uri).exists()
        assert not (tmp_path / "b").exists()
        assert workers.stop("a") == [0]

    # Somebody was killed between stages: what the one has sent the other has not taken.
    for n in range(3):
        for left in list(shop.client.read(TopicPartition(shop.inner, n)))[:2]:
            shop.client.send(TopicPartition(shop.inner, n), [(left.key, left.value)])
            sale = json.loads(left.value or b"")
            shop.truth[sale["user"]] += sale["amount"]
    shop.sell(30, 20)

    def dies(told: str) -> None:
        if told.startswith("batch 1: stage 1"):
            raise MemoryError

    with pytest.raises(MemoryError):
        shop.run(start="group", say=dies)
    assert [each.number for each in [newest(open_files(shop.uri))] if each] == [0]
    shop.run(start="group")
    assert [done.manifest.number for done in shop.heard] == [1, 2]
    assert [done.records for done in shop.heard][1] == 40  # of both stages
    assert shop.logged() == shop.truth
    held = newest(open_files(shop.uri))
    assert held is not None
    assert (found := changelog_ids(APP)[LOG])
    assert held.stores["totals"].changelog_id == found

    env["STREAMSX_SNAPSHOT"] = shop.uri
    with Workers(either.bootstrap, tmp_path / "b", app=APP, env=env) as workers:
        workers.start("b")
        said = f"Spark continued it in {shop.uri}: run streamsx spark handover MODULE"
        assert workers.code("b") == 2
        assert said in workers.error("b")
    other, said = str(tmp_path / "other"), f"carried: .* in {shop.uri}, not in .*other: continue"
    with pytest.raises(StateOnSpark, match=said):
        run(shop.spark, APP, other)
    with pytest.raises(StateOnSpark, match=said):
        bootstrap(shop.spark, APP, other, {"sales": "kafka"})

    done = handover(APP, shop.uri, scratch=str(shop.folder))
    assert done.published == {}
    shop.sell(50, 20)
    with Workers(either.bootstrap, tmp_path / "c", app=APP, env=env) as workers:
        workers.start("c")
        workers.until(shop.finished, "all is committed")
        assert workers.stop("c") == [0]


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_transaction_of_a_killed_worker_is_waited_for(
    shop: Shop, either: Broker | ApacheKafka, tmp_path: Path
) -> None:
    """Offsets, changelog rows and records between stages of the killed worker never count."""
    shop.sell(0, 20)
    with Workers(either.bootstrap, tmp_path / "a", app=APP, env=EXACTLY_ONCE) as workers:
        workers.start("a", fault="after_flush:2")
        assert workers.code("a") == -9
        SourceOptions(options_of(APP)).ask(removed)
    inner = [TopicPartition(shop.inner, n) for n in range(3)]
    assert shop.client.stable_ends(inner) != shop.client.ends(inner)
    # Another worker has committed a record behind the open transaction, and was stopped.
    for n in range(7):
        key = b"u%d" % n
        sale = json.dumps({"user": f"u{n}", "amount": 1000}).encode()
        shop.client.send(TopicPartition(shop.inner, partition_of(key, 3)), [(key, sale)])
        shop.truth[f"u{n}"] += 1000
    shop.run(start="group")
    assert shop.logged() == shop.truth


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_state_moves_to_workers_under_exactly_once_and_back(
    shop: Shop, either: Broker | ApacheKafka, tmp_path: Path
) -> None:
    """The worker begins with the snapshot, and is killed with its transaction open."""
    shop.sell(0, 20)
    shop.run()
    handover(APP, shop.uri, scratch=str(shop.folder))
    env = {**EXACTLY_ONCE, "STREAMSX_SNAPSHOT": shop.uri}
    with Workers(either.bootstrap, tmp_path / "b", app=APP, env=env) as workers:
        workers.start("b")
        shop.sell(20, 20)
        workers.until(lambda: shop.logged() == shop.truth, "all is committed")
        assert workers.stop("b") == [0]
        shop.sell(40, 20)
        workers.start("b", fault="after_txn_offsets:2")
        assert workers.code("b") == -9
    SourceOptions(options_of(APP)).ask(removed)
    shutil.rmtree(shop.uri)
    shop.run(start="group")
    assert shop.logged() == shop.truth


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_earlier_worker_offsets_are_not_ahead_of_the_query(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.sell(0, 60)
    tps = [TopicPartition("sales", n) for n in range(2)]
    old = {tp: (end, "") for tp, end in shop.client.ends(tps).items()}
    SourceOptions(options_of(APP)).ask(
        lambda cluster: admin.commit_offsets(cluster, "carried", old)
    )
    real = snapshot.commit

    def dies(files: SnapshotFiles, made: Manifest, *, before: Manifest | None) -> None:
        if made.number == 1:
            raise MemoryError
        real(files, made, before=before)

    with monkeypatch.context() as dying:
        dying.setattr(snapshot, "commit", dies)
        with pytest.raises(MemoryError):
            shop.run(max_records=20, sink="noop")
    shop.run(max_records=20, sink="noop")
    assert shop.logged() == shop.truth


@pytest.mark.slow
@SLOW_ON_KAFKA
def test_consumer_joining_amid_the_first_batch_ends_the_query(
    shop: Shop, either: Broker | ApacheKafka
) -> None:
    """The group says nothing of Spark yet, and asks nobody to wait."""
    shop.sell(0, 30)
    member = Consumer({"bootstrap.servers": either.bootstrap, "group.id": "carried"})

    def begins(told: str) -> None:
        if told.startswith("batch 0: stage 1"):
            member.subscribe(["sales"])  # it joins on a thread of its own, from here on
            while not member.assignment():
                member.poll(0.1)

    with pytest.raises(GroupNotEmpty, match="workers are running: group carried: rdkafka"):
        shop.run(sink="noop", say=begins)
    member.close()
    assert newest(open_files(shop.uri)) is None
    assert shop.logged() == {}


@pytest.mark.slow
@SLOW_ON_KAFKA
def test_only_one_state_place_continues_of_concurrent_starts(shop: Shop) -> None:
    """Neither had taken the state when the other looked."""
    shop.sell(0, 30)
    tps = [TopicPartition("sales", n) for n in range(2)]
    conf = shop.app.conf

    def begins(told: str) -> None:
        if told.startswith("batch 0: stage 1"):
            ask = SourceOptions(options_of(APP)).ask
            ask(lambda cluster: take(cluster, conf, tps, "/elsewhere", force=False))

    with pytest.raises(StateOnSpark, match="gone on with it in /elsewhere, not in"):
        shop.run(sink="noop", say=begins)
    assert shop.logged() == {}
    shop.run(sink="noop", say=begins, force=True)
    assert shop.logged() == shop.truth


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_handover_releases_also_partitions_without_records(shop: Shop) -> None:
    def taken() -> set[TopicPartition]:
        found = SourceOptions(options_of(APP)).ask(
            lambda cluster: admin.committed(cluster, "carried")
        )
        return {
            tp for tp, (_, text) in found.items() if OffsetMetadata.decode(text).spark == shop.uri
        }

    shop.sell(0, 1)
    both = {TopicPartition("sales", n) for n in range(2)}
    (quiet,) = (tp for tp, end in shop.client.ends(both).items() if not end)
    old = {quiet: (0, OffsetMetadata(1_700_000_000_000).encode())}
    SourceOptions(options_of(APP)).ask(
        lambda cluster: admin.commit_offsets(cluster, "carried", old)
    )
    shop.run(sink="noop")
    assert taken() == both | {TopicPartition(shop.inner, n) for n in range(3)}
    handover(APP, shop.uri, scratch=str(shop.folder))
    assert taken() == set()
    found = SourceOptions(options_of(APP)).ask(lambda cluster: admin.committed(cluster, "carried"))
    assert found[quiet] == old[quiet]  # with its stream time


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_query_with_lost_state_resumes_from_changelogs_and_offsets(shop: Shop) -> None:
    """Changelogs and offsets stand at the last batch, and the lag of the group is right for
    tools.
    """
    shop.sell(0, 30)
    shop.run(sink="noop", max_records=10)
    tps = [TopicPartition("sales", n) for n in range(2)]
    assert shop.client.committed("carried", tps) == shop.client.ends(tps)
    held = newest(open_files(shop.uri))
    assert held is not None
    shutil.rmtree(shop.uri)
    shop.uri += "2"
    shop.sell(30, 20)
    with pytest.raises(StateOnSpark, match="--force if that is over"):
        shop.run(start="group", sink="noop")
    shop.run(start="group", sink="noop", force=True)
    assert shop.logged() == shop.truth
    first = snapshot.read(open_files(shop.uri), 0).positions["sales"]
    assert {n: at._replace(high=-1) for n, at in held.positions["sales"].items()} == first


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_superseded_run_writes_no_more_changelog(shop: Shop) -> None:
    shop.sell(0, 30)
    shop.run(sink="noop")
    files, before = open_files(shop.uri), shop.logged()

    def stands_still(told: str) -> None:
        if told.startswith("batch 1: stage 1"):  # longer than its mark counts
            held = newest_there(files)
            snapshot.commit(files, replace(held, number=1, run="another"), before=held)

    shop.sell(30, 20)
    with pytest.raises(
        StateConflict, match=r"two writers: .*found snapshot 1, made by run another"
    ):
        shop.run(sink="noop", say=stands_still)
    assert shop.logged() == before


@SLOW_ON_KAFKA
def test_query_behind_worker_commits_is_refused_except_a_shadow(shop: Shop) -> None:
    shop.sell(0, 30)
    shop.run(sink="noop")
    handover(APP, shop.uri, scratch=str(shop.folder))
    shop.sell(30, 10)
    ends = shop.client.ends([tp := TopicPartition("sales", 0)])
    workers = {tp: (ends[tp], "")}
    SourceOptions(options_of(APP)).ask(
        lambda cluster: admin.commit_offsets(cluster, "carried", workers)
    )
    with pytest.raises(SnapshotAhead, match=r"workers have continued since: .*run --from group"):
        shop.run(publishes=False, start="group")
    shop.run(publishes=False, sink="noop")  # a shadow sends nothing
    assert len(shop.heard) == 2


@SLOW_ON_KAFKA
def test_stale_changelog_rows_are_not_taken_as_state(shop: Shop) -> None:
    shop.sell(0, 30)
    shop.client.create(LOG, 3)
    shop.client.send(TopicPartition(LOG, 1), [(b'"gone"', b"7")])
    shop.run(sink="noop")
    assert shop.logged() == {**shop.truth, "gone": 7}
    held = newest(open_files(shop.uri))
    assert held is not None
    parts = held.stores["totals"].partitions
    assert [n for n in range(3) if parts[n].changelog_next is None and parts[n].chain] == [1]
    done = handover(APP, shop.uri, scratch=str(shop.folder))
    assert done.published.keys() == {"totals"}
    assert shop.logged() == shop.truth


@SLOW_ON_KAFKA
@pytest.mark.slow
def test_shadow_query_beside_workers_has_equal_state(
    shop: Shop, either: Broker | ApacheKafka, tmp_path: Path
) -> None:
    env = {"PYTHONPATH": str(Path.cwd())}
    with Workers(either.bootstrap, tmp_path / "a", app=APP, env=env) as workers:
        workers.start("a")
        for start in (0, 30):
            shop.sell(start, 30)
            shop.run(publishes=False, sink="noop")
            rows = stored(open_files(shop.uri), str(shop.folder)).values()
            totals = {json.loads(k[1:]): int(v) for part in rows for k, v in part}
            assert totals == shop.truth
        workers.until(shop.finished, "all is committed")
        assert workers.stop("a") == [0]
