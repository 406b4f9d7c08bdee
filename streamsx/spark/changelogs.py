"""Comparison of changelogs with a snapshot: records that only one of the two holds.

The caller holds the writer lock (`writer_lock`). A late attempt of an earlier batch could still
write to a changelog, so each function fences such an attempt first.

Not here: the changelog rows of a batch (`publish`).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, count, islice
from typing import Final

import pyarrow as pa

from streamsx.client import admin
from streamsx.client.cluster import Cluster
from streamsx.client.range_reader import Range
from streamsx.client.transaction import transaction
from streamsx.clock import SystemClock
from streamsx.errors import SnapshotAhead
from streamsx.event_loops import run
from streamsx.model import TopicPartition
from streamsx.protocol.commit_metadata import OffsetMetadata
from streamsx.spark.checkout import checkout, scratch_folder
from streamsx.spark.plan import LOG, Stage
from streamsx.spark.publish import options_of, transaction_name, written
from streamsx.spark.reading import TopicRange, rows
from streamsx.spark.rows import PIECE_ROWS, batch_of
from streamsx.spark.source import SourceOptions
from streamsx.state.api import INDEX, ROW
from streamsx.state.layout import StoreNode
from streamsx.state.snapshot import Manifest, Part
from streamsx.state.snapshot_files import SnapshotFiles

RUN: Final = (
    "a batch was published and not committed",
    "run spark run --available-now once more",
)
WORKERS: Final = (
    "workers have continued since",
    "run spark run --from group with a new place: this snapshot is too old",
)


def settled(asked: SourceOptions, group: str, tp: TopicPartition) -> Range:
    """Fence late attempts on a changelog partition, then return its range of offsets.

    After the fence no late attempt can write to the partition any more.
    """

    async def fence(cluster: Cluster) -> Range:
        async with transaction(cluster, transaction_name(group, tp)):
            pass
        return Range(*(await admin.bounds(cluster, [tp], committed=True))[tp])

    return asked.ask(fence)


async def who_went_on(
    cluster: Cluster, manifest: Manifest, read: Collection[str]
) -> tuple[str, str]:
    """Find the writer of the records that follow a snapshot in a changelog: a run or workers.

    Workers wrote them if the group has committed offsets of the topics `read` beyond the snapshot's
    positions. Offsets that carry Spark's mark do not count: Spark committed them, or workers did so
    before Spark took over.

    Returns:
        WORKERS or RUN: a description of the writer, and the remedy.
    """
    group = await admin.committed(cluster, manifest.app)
    group = {tp: found for tp, found in group.items() if not OffsetMetadata.decode(found[1]).spark}
    places = {
        TopicPartition(topic, n): at.next
        for topic in read for n, at in manifest.positions.get(topic, {}).items()
    }  # fmt: skip
    begins = await admin.bounds(cluster, places)
    ahead = (group.get(tp, (-1, ""))[0] > (at or begins[tp].start) for tp, at in places.items())
    return WORKERS if any(ahead) else RUN


def taken_back(
    name: str, base: Manifest, made: Sequence[Stage], files: SnapshotFiles, scratch: str | None
) -> Manifest:
    """Undo changelog rows that were published but never committed by a manifest.

    A batch publishes its changelog rows, then dies before it writes its manifest. The next batch
    may end at other offsets, and would leave some of those rows in the changelog, ahead of the
    committed state. So each key that follows `base` gets its old value again.

    Returns:
        `base`, with the changelog positions after the corrections.

    Raises:
        SnapshotAhead: workers wrote the rows.
    """
    asked = SourceOptions(options_of(name))
    stores = dict(base.stores)
    external = [topic for stage in made for topic in stage.external]
    for node, n in (
        (node, n) for s in made for node in s.subtopology.stores for n in range(s.tasks)
    ):
        store = stores.get(node.name)
        part = store.partitions.get(n, Part()) if store else Part()
        if store is None or part.changelog_next is None:
            continue
        tp = TopicPartition(node.changelog, n)
        at = part.changelog_next
        start, end = settled(asked, base.app, tp)
        if not start <= at < end:
            continue  # nothing follows, or the topic was created anew
        after = rows(asked.brokers, n, [TopicRange(tp.topic, at, end)])
        if not (keys := keys_of(after)):
            continue
        who = asked.ask(lambda cluster: who_went_on(cluster, base, external))
        if who == WORKERS:
            raise SnapshotAhead(f"{who[0]}: {tp}: {len(keys)} keys from {at} on: {who[1]}")
        held = checkout(files, scratch_folder(scratch), node.name, n, part.chain)
        pairs = [(key, held.get(row)) for key, row in rows_of(node, sorted(keys))]
        ends = run(written(base.app, asked.brokers, log(tp, pairs, count())))
        stores[node.name] = store._replace(
            partitions={**store.partitions, n: part._replace(changelog_next=ends[tp])}
        )
    return replace(base, stores=stores)


def whole(
    asked: SourceOptions,
    app_id: str,
    place: tuple[SnapshotFiles, str | None],
    node: StoreNode,
    partition: int,
    part: Part,
) -> tuple[int, int]:
    """Write all rows of a store partition to its changelog, and tombstones for all other keys.

    Returns:
        The offset after the written rows, and the number of rows and tombstones.
    """
    files, scratch = place
    held = checkout(files, scratch_folder(scratch), node.name, partition, part.chain)
    tp = TopicPartition(node.changelog, partition)
    start, end = settled(asked, app_id, tp)
    there = rows(asked.brokers, partition, [TopicRange(tp.topic, start, end)])
    known = rows_of(node, sorted(keys_of(there)))
    gone = [(key, None) for key, row in known if held.get(row) is None]
    live = ((node.changelog_key(row), value) for row, value in held.scan(ROW, INDEX))
    counted = count()
    ends = run(written(app_id, asked.brokers, log(tp, chain(gone, live), counted)))
    return ends.get(tp, end), next(counted)


def keys_of(read: Iterable[pa.RecordBatch]) -> set[bytes]:
    return {key for batch in read for key in batch.column("key").to_pylist() if key is not None}


def rows_of(node: StoreNode, keys: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys of a changelog with the keys of their rows."""
    for key, row in zip(keys, node.local_keys(keys), strict=True):
        assert row is not None, f"{node.name}: a changelog key without a row"
        yield key, row


def log(
    tp: TopicPartition, pairs: Iterable[tuple[bytes, bytes | None]], counted: Iterator[int]
) -> Iterator[pa.RecordBatch]:
    """Yield pairs of key and value as batches of ROWS, in the form that a task yields them.

    `counted` numbers the rows.
    """
    now = int(SystemClock().wall() * 1000)
    pairs = iter(pairs)
    while piece := list(islice(pairs, PIECE_ROWS)):
        sent = [(LOG, *tp, next(counted), now, *pair, None, None, None) for pair in piece]
        yield batch_of(list(zip(*sent, strict=True)))
