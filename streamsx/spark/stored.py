"""Partitions of stores as rows, wherever they lie: in the files of a snapshot, or in a changelog.

The one way in which compaction, rescaling and queries read a store. Rows come under their keys on
disk, ascending, each once, and none that was deleted. What is asked for is checked first, against
the app as it is here: another app, another layout, another number of partitions are refused.

Not here: what rows are decoded to, who writes them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamsx.app.app import App
from streamsx.app.lookup import app_named
from streamsx.client import admin
from streamsx.errors import NotFound
from streamsx.spark.checkout import Chain, checkout, scratch_folder
from streamsx.spark.reading import TopicRange, rows
from streamsx.spark.rows import PIECE_ROWS
from streamsx.spark.session import translate_error
from streamsx.spark.source import SourceOptions, there
from streamsx.state.api import INDEX, ROW
from streamsx.state.layout import StoreNode
from streamsx.state.snapshot import ANEW, Manifest, Part, expect, newest_there, refuse_other
from streamsx.state.snapshot_files import absolute, open_files
from streamsx.topology.nodes import SubTopology
from streamsx.topology.partitions import resolve_partition_counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLD_BYTES: Final = 128 << 20
"""Of a changelog, in memory beside the newest row of each key."""
PIECE_BYTES: Final = 16 << 20
"""A batch is closed when it has so many, or PIECE_ROWS."""
LOG: Final = pa.schema({"key": pa.large_binary(), "value": pa.large_binary()})
"""A column of plain binary ends at 2 GiB."""
PAIRS: Final = pa.schema({"key": pa.binary(), "value": pa.binary()})

T = TypeVar("T")
R = TypeVar("R")


class InSnapshot(NamedTuple):
    """One partition of a store, as a committed chain, wherever its changelog is."""

    uri: str
    store: str
    partition: int
    chain: Chain
    scratch: str | None = None
    log: None = None

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Of PAIRS. Raises StoreCorrupt, SnapshotFailed."""
        if not self.chain:
            return
        files, scratch = open_files(self.uri), scratch_folder(self.scratch)
        held = checkout(files, scratch, self.store, self.partition, self.chain)
        yield from pieces(held.scan(ROW, INDEX))


class InChangelog(NamedTuple):
    """One partition of a store, as its changelog is. `options`: of our source; `changelog_id`: of
    the topic, as hex, None from a broker that knows none.
    """

    options: Mapping[str, str]
    store: str
    partition: int
    log: TopicRange
    changelog_id: str | None

    def rows(self) -> Iterator[pa.RecordBatch]:
        """As of a snapshot. Raises WorldError, CorruptRecord."""
        if self.log.start == self.log.end:
            return
        read = rows(SourceOptions(self.options).brokers, self.partition, [self.log])
        for found in newest_rows(read).to_batches(max_chunksize=PIECE_ROWS):
            columns = zip(found["key"], found["value"], strict=True)
            yield from pieces((ROW + key.as_py(), value.as_py()) for key, value in columns)


StoredPart = InSnapshot | InChangelog


def pieces(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
    """As PAIRS, at most PIECE_ROWS each, and few where they are large."""
    keys, values, size = list[bytes](), list[bytes](), 0
    for key, value in rows:
        keys.append(key)
        values.append(value)
        size += len(key) + len(value)
        if size >= PIECE_BYTES or len(keys) == PIECE_ROWS:
            yield pa.RecordBatch.from_pydict({"key": keys, "value": values}, PAIRS)
            keys, values, size = [], [], 0
    if keys:
        yield pa.RecordBatch.from_pydict({"key": keys, "value": values}, PAIRS)


def newest_rows(log: Iterable[pa.RecordBatch], fold_bytes: int = FOLD_BYTES) -> pa.Table:
    """The last value of each key, by key; a key whose last one is a tombstone is not there."""
    waiting, size = [LOG.empty_table()], 0
    for batch in log:
        waiting.append(pa.Table.from_batches([batch.select(LOG.names)]).cast(LOG))
        size += waiting[-1].nbytes
        if size >= fold_bytes:
            waiting, size = [_folded(waiting)], 0
    found = _folded(waiting)
    return found.filter(pc.is_valid(found["value"]))


def _folded(tables: list[pa.Table]) -> pa.Table:
    log = pa.concat_tables(tables)
    log = log.filter(pc.is_valid(log["key"]))  # the others are nobody's
    at = log.select(["key"]).append_column("row", pa.array(np.arange(len(log))))
    last = pa.TableGroupBy(at, "key", use_threads=False).aggregate([("row", "max")])
    return log.take(last.sort_by("key")["row_max"])


# -- which there are


class AskedStores(NamedTuple):
    """Stores of an app, and the sub-topology of each. `name`: MODULE[:ATTR]."""

    name: str
    app: App
    nodes: Mapping[str, tuple[StoreNode, SubTopology]]


def asked_stores(name: str, stores: Collection[str] | None = None) -> AskedStores:
    """All without `stores`. Raises UsageError for what is no app, NotFound for a store."""
    app = app_named(name)
    plans = app.topology().subtopologies
    nodes = {node.name: (node, plan) for plan in plans for node in plan.stores}
    if missing := sorted(set(stores or ()) - nodes.keys()):
        known = ", ".join(nodes) or "none"
        raise NotFound(f"no such store: {', '.join(missing)}: app {app.conf.id} has {known}")
    return AskedStores(name, app, {n: nodes[n] for n in nodes if stores is None or n in stores})


def in_snapshot(
    asked: AskedStores, uri: str, scratch: str | None = None
) -> tuple[Manifest, list[InSnapshot]]:
    """Of the newest one. Raises NotFound, IncompatibleStore, SnapshotFailed."""
    files = open_files(uri)
    manifest = newest_there(files)
    mine, parts, layouts = asked.app.conf.id, list[InSnapshot](), dict[str, str]()
    app = manifest.app if manifest.app in asked.app.earlier_ids() else mine
    for name, (node, _) in asked.nodes.items():
        store = manifest.stores.get(name)
        held: Mapping[int, Part] = store.partitions if store else {}
        log = app + node.changelog.removeprefix(mine)  # bears the app's id
        layouts[name] = replace(node, changelog=log).layout(len(held))
        where, whole = f"{files.uri}: snapshot {manifest.number}: {name}", list(range(len(held)))
        expect("snapshot of a part of a store", where, whole, sorted(held), ANEW)
        parts += [InSnapshot(absolute(uri), name, n, held[n].chain, scratch) for n in whole]
    refuse_other(manifest, files.uri, app, layouts, {})
    return manifest, parts


def in_changelogs(
    asked: AskedStores, brokers: str | None = None
) -> tuple[Mapping[str, int], list[InChangelog]]:
    """Up to what is committed now; and how many partitions each topic of the app has that it reads.
    `brokers`: others than the app's. Raises NotFound, PartitionCountChanged, WorldError.
    """
    topology = asked.app.topology()
    sources = {topic for plan in topology.subtopologies for topic in plan.topics}
    logs = {node.changelog: name for name, (node, _) in asked.nodes.items()}
    options = {
        "app": asked.name,
        "subscribe": ",".join(sorted(sources | logs.keys())),
        "kafka.bootstrap.servers": brokers or ",".join(asked.app.conf.bootstrap),
    }
    source = SourceOptions(options)
    # Ahead of the bounds: a changelog that is made anew between them is told from this one then.
    ids = source.ask(lambda cluster: admin.topic_ids(cluster, logs))
    bounds = there(source).bounds
    counts = Counter(tp.topic for tp in bounds)
    resolve_partition_counts(
        topology, counts, default=1, declare=True
    )  # refuses those that do not fit
    parts = [
        InChangelog(
            options,
            logs[tp.topic],
            tp.partition,
            TopicRange(tp.topic, *bounds[tp]),
            hex_id(ids[tp.topic]),
        )
        for tp in sorted(bounds)
        if tp.topic in logs
    ]
    return {topic: counts[topic] for topic in sorted(sources)}, parts


def hex_id(topic_id: bytes | None) -> str | None:
    """None for zeros: the broker knows no ids."""
    return topic_id.hex() if topic_id and any(topic_id) else None


# -- all of them at once


def of_each(spark: "SparkSession | None", work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """What the work gives, of each in a task of its own; one after the other without a session.
    Raises what one of them raised.
    """
    if spark is None or not parts:
        return [work(part) for part in parts]
    try:
        return spark.sparkContext.parallelize(parts, len(parts)).map(work).collect()
    except Exception as error:
        raise translate_error(error) from error
