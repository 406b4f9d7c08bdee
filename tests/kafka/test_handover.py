"""State from Spark to workers on Apache Kafka: changelogs, offsets and stream times; refusals."""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from streamsx.client import admin
from streamsx.client.admin import NewTopic
from streamsx.client.cluster import Cluster
from streamsx.client.security import PLAINTEXT
from streamsx.clock import SystemClock
from streamsx.errors import GroupNotEmpty, IncompatibleStore, NotFound, SnapshotAhead, UsageError
from streamsx.model import TopicPartition
from streamsx.protocol.record_batch import Builder
from streamsx.spark.handover import handover
from streamsx.spark.publish import written
from streamsx.spark.reading import Brokers, TopicRange, rows
from streamsx.spark.runner import left_by_group
from streamsx.state.snapshot import newest
from tests.kafka.test_publishing import log
from tests.support.apache_kafka import ApacheKafka
from tests.support.client import Client
from tests.support.workers import Workers
from tests.unit.spark.conftest import Batches, Fed, fed

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.xdist_group("kafka"),
    pytest.mark.timeout(240),
]
APP = "tests.unit.spark.apps:grouped"
"""Reads orders, regroups them into three partitions, keeps sums."""


def ask(kafka: ApacheKafka, what: Callable[[Cluster], Any]) -> Any:
    async def story() -> Any:
        cluster = Cluster(kafka.bootstrap)
        await cluster.start()
        try:
            return await what(cluster)
        finally:
            await cluster.stop()

    return asyncio.run(story())


def order(user: str, amount: int, at: int) -> Fed:
    return fed("orders", 2, user, json.dumps({"user": user, "amount": amount}), at)


def feed(client: Client, records: list[Fed]) -> None:
    for each in records:
        builder = Builder(1 << 16)
        builder.append(each.timestamp, each.key, each.value)
        client.send_raw(TopicPartition(each.topic, each.partition), builder.close())


def test_snapshot_is_handed_over_whole_and_refusal_writes_nothing(
    kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMSX_BOOTSTRAP", kafka.bootstrap)
    batches = Batches(APP, tmp_path / "b", orders=2)
    batches.app.override(bootstrap=kafka.bootstrap)  # others may have asked it before
    uri, log_topic = batches.uri, "grouped-sums-changelog"
    (inner,) = batches.stages[1].inner
    brokers = Brokers(kafka.bootstrap, PLAINTEXT)

    def read() -> dict[int, dict[bytes, bytes | None]]:
        tps = [TopicPartition(log_topic, n) for n in range(3)]
        ends = ask(kafka, lambda c: admin.bounds(c, tps))
        found: dict[int, dict[bytes, bytes | None]] = {}
        for _, n in tps:
            stretch = TopicRange(log_topic, *ends[log_topic, n])
            part = rows(brokers, n, [stretch]) if stretch.start < stretch.end else ()
            found[n] = {r["key"]: r["value"] for batch in part for r in batch.to_pylist()}
        return found

    with pytest.raises(NotFound, match="no snapshot"):
        handover(APP, uri)
    first = [order(f"u{n}", n, 100 + n) for n in range(20)]
    batches.batch(batches.rows(first))
    topics = [NewTopic("orders", 2), NewTopic(log_topic, 3, configs={"cleanup.policy": "compact"})]
    ask(kafka, lambda c: admin.create_topics(c, topics))
    client = Client(kafka.bootstrap)
    feed(client, first)
    # What an earlier run had, and this one has not.
    asyncio.run(written("grouped", brokers, [log(log_topic, 1, (b'"gone"', b"7"))]))
    until = int(SystemClock().wall() * 1000) + 60_000
    batches.files.create(f"running/{until}-1-run-here", b"running")
    batches.files.create("running/.nfs-0-1-2", b"of a file system")
    with pytest.raises(NotFound, match=r"no snapshot: .*nowhere: expected"):
        handover(APP, nowhere := f"{uri}/nowhere")
    assert not Path(nowhere).exists()
    with pytest.raises(UsageError, match=r"a query is running: .*process 1 on here"):
        handover(APP, uri)
    member = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "grouped"})
    member.subscribe(["orders"])
    while not member.assignment():
        member.poll(0.1)
    with pytest.raises(GroupNotEmpty, match="workers are running: group grouped: rdkafka"):
        handover(APP, uri, force=True)
    member.close()
    assert read() == {0: {}, 1: {b'"gone"': b"7"}, 2: {}}

    done = handover(APP, uri, force=True, scratch=batches.scratch)
    manifest = newest(batches.files)
    assert manifest is not None
    stored = batches.stored()
    expected = {n: {k[1:]: v for k, v in stored.get(("sums", n), [])} for n in range(3)}
    assert {n: {k: v for k, v in each.items() if v} for n, each in read().items()} == expected
    assert read()[1][b'"gone"'] is None
    assert manifest.number == 1
    assert done.published == {"sums": 21}
    assert done.worker == f"python -m streamsx worker {APP} --snapshot {batches.files.uri}"
    offsets = {n: batches.offsets["orders", n] for n in range(2)}
    assert done.positions == {"orders": offsets, inner: dict.fromkeys(range(3), 0)}
    left = left_by_group(APP, batches.stages)
    held = manifest.positions
    assert {n: at.next for n, at in left["orders"].items()} == offsets
    for topic, each in left.items():
        times = {n: held[topic][n].stream_time if n in held[topic] else -1 for n in each}
        assert {n: at.stream_time for n, at in each.items()} == times

    # Workers go on where Spark ended, in the middle of the feed.
    more = [order(f"u{n}", 100, 200 + n) for n in range(10, 30)]
    batches.rows(more)
    feed(client, more)
    with Workers(
        kafka.bootstrap,
        tmp_path,
        app=APP,
        env={"PYTHONPATH": os.getcwd(), "STREAMSX_SNAPSHOT": uri},
    ) as workers:
        workers.start("a")
        ends = {TopicPartition("orders", n): batches.offsets["orders", n] for n in range(2)}
        ends |= client.ends([TopicPartition(inner, n) for n in range(3)])

        def done_with() -> bool:
            ends.update(client.ends([tp for tp in ends if tp.topic == inner]))
            read_all = sum(at for tp, at in ends.items() if tp.topic == inner) == len(more)
            return read_all and client.committed("grouped", ends) == ends

        workers.until(done_with, "all is committed")
        assert workers.stop("a") == [0]
    sums = {k: v for each in read().values() for k, v in each.items() if v is not None}
    assert sums == {
        b'"u%d"' % n: b"%d" % ((n if n < 20 else 0) + (100 if n >= 10 else 0)) for n in range(30)
    }
    left = left_by_group(APP, batches.stages)
    assert {n: at.next for n, at in left["orders"].items()} == {
        n: batches.offsets["orders", n] for n in range(2)
    }
    assert max(at.stream_time for at in left[inner].values()) == 229

    # What follows in a changelog is of workers, or of a batch that died.
    with pytest.raises(
        SnapshotAhead, match=r"workers have continued since: grouped-sums-changelog-.*from group"
    ):
        handover(APP, uri, force=True)
    assert newest(batches.files) == manifest

    client.delete(log_topic)
    client.create(log_topic, 3)
    with pytest.raises(IncompatibleStore, match=r"snapshot of another changelog: .*snapshot 1"):
        handover(APP, uri, force=True)
    client.delete("orders")
    with pytest.raises(
        IncompatibleStore, match=r"with other partitions: .*\{'orders': 2\}, found \{'orders': 0\}"
    ):
        handover(APP, uri, force=True)
    client.close()


def test_history_also_in_the_topic_is_not_counted_twice(
    kafka: ApacheKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMSX_BOOTSTRAP", kafka.bootstrap)
    batches = Batches("tests.unit.spark.apps:keeper", tmp_path / "b", edits=1)
    batches.app.override(bootstrap=kafka.bootstrap)
    batches.more = {"numbered": frozenset({"edits"})}
    client = Client(kafka.bootstrap)
    client.create("edits", 1)
    batches.batch(batches.rows([fed("edits", 1, "a", "1", 5), fed("edits", 1, "b", "1", 7)]))
    feed(client, [fed("edits", 1, "b", "1", 7)])
    with pytest.raises(UsageError, match=r"overlap: edits-0: .*:00.007\+00:00, in .*twice: boots"):
        handover(batches.name, batches.uri)
    client.delete_records(TopicPartition("edits", 0), 1)
    feed(client, [fed("edits", 1, "b", "1", 8)])
    done = handover(batches.name, batches.uri, scratch=batches.scratch)
    assert done.positions == {"edits": {0: 1}}
    # No worker has run: the group is where the hand-over has put it.
    row = log("keeper-kept-changelog", 0, (b'"b"', b'"1"'))
    asyncio.run(written("keeper", Brokers(kafka.bootstrap, PLAINTEXT), [row]))
    with pytest.raises(SnapshotAhead, match="a batch was published and not committed"):
        handover(batches.name, batches.uri)
    client.delete("edits")
    client.close()
