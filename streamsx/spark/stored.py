"""Partitions of stores as rows, from the files of a snapshot or from a changelog.

Compaction, rescaling and queries all read stores through this module. Rows come by ascending key on
disk, each key once, without deleted ones. A request is first checked against the app of this
process: another app, another layout or another number of partitions is refused.

Decoding and writing of rows are not done here.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
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
"""Bytes of a changelog held in memory, beside the newest row of each key, before they are folded.
"""
PIECE_BYTES: Final = 16 << 20
"""Bytes at which a batch is closed; PIECE_ROWS rows close a batch too."""
LOG: Final = pa.schema({"key": pa.large_binary(), "value": pa.large_binary()})
"""Schema of changelog rows; a column of plain binary ends at 2 GiB."""
PAIRS: Final = pa.schema({"key": pa.binary(), "value": pa.binary()})

T = TypeVar("T")
R = TypeVar("R")


class InSnapshot(NamedTuple):
    """Partition of a store in a snapshot, as a committed chain of files; `log` is always None."""

    uri: str
    store: str
    partition: int
    chain: Chain
    scratch: str | None = None
    log: None = None

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the partition, with schema PAIRS.

        Raises:
            StoreCorrupt: the files of the chain are damaged.
            SnapshotFailed: the files cannot be read.
        """
        if not self.chain:
            return
        files = open_files(self.uri)
        scratch = scratch_folder(self.scratch)
        held = checkout(files, scratch, self.store, self.partition, self.chain)
        yield from pieces(held.scan(ROW, INDEX))


class InChangelog(NamedTuple):
    """Partition of a store in its changelog.

    `options` are those of the Kafka source. `changelog_id` is the id of the topic in hex, None if
    the broker knows no ids.
    """

    options: Mapping[str, str]
    store: str
    partition: int
    log: TopicRange
    changelog_id: str | None

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the partition, with schema PAIRS.

        Raises:
            WorldError: the brokers do not answer, or the range is gone.
            CorruptRecord: a record cannot be read.
        """
        if self.log.start == self.log.end:
            return
        node = node_of(self.options["app"], self.store)
        read = rows(SourceOptions(self.options).brokers, self.partition, [self.log])
        for found in newest_rows(by_row(node, read)).to_batches(max_chunksize=PIECE_ROWS):
            columns = zip(found["key"], found["value"], strict=True)
            yield from pieces((key.as_py(), value.as_py()) for key, value in columns)


StoredPart = InSnapshot | InChangelog


def pieces(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of PAIRS, of at most PIECE_ROWS rows, or of fewer if they are
    large.
    """
    keys = list[bytes]()
    values = list[bytes]()
    size = 0
    for key, value in rows:
        keys.append(key)
        values.append(value)
        size += len(key) + len(value)
        if size >= PIECE_BYTES or len(keys) == PIECE_ROWS:
            yield pa.RecordBatch.from_pydict({"key": keys, "value": values}, PAIRS)
            keys = []
            values = []
            size = 0
    if keys:
        yield pa.RecordBatch.from_pydict({"key": keys, "value": values}, PAIRS)


def by_row(node: StoreNode, log: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield records of a changelog with the keys of their rows: two writers may write one key in
    two ways.
    """
    for batch in log:
        keys = pa.array(node.local_keys(batch["key"].to_pylist()), pa.binary())
        yield pa.RecordBatch.from_arrays([keys, batch["value"]], names=LOG.names)


def newest_rows(log: Iterable[pa.RecordBatch], fold_bytes: int = FOLD_BYTES) -> pa.Table:
    """Return the last value of each key, by key, without keys that end with a tombstone."""
    waiting = [LOG.empty_table()]
    size = 0
    for batch in log:
        waiting.append(pa.Table.from_batches([batch.select(LOG.names)]).cast(LOG))
        size += waiting[-1].nbytes
        if size >= fold_bytes:
            waiting = [_folded(waiting)]
            size = 0
    found = _folded(waiting)
    return found.filter(pc.is_valid(found["value"]))


def _folded(tables: list[pa.Table]) -> pa.Table:
    log = pa.concat_tables(tables)
    log = log.filter(pc.is_valid(log["key"]))  # rows without a key belong to no store
    at = log.select(["key"]).append_column("row", pa.array(np.arange(len(log))))
    last = pa.TableGroupBy(at, "key", use_threads=False).aggregate([("row", "max")])
    return log.take(last.sort_by("key")["row_max"])


# -- which there are


class AskedStores(NamedTuple):
    """Stores of an app, each with its sub-topology. `name` is MODULE[:ATTR]."""

    name: str
    app: App
    nodes: Mapping[str, tuple[StoreNode, SubTopology]]


def asked_stores(name: str, stores: Collection[str] | None = None) -> AskedStores:
    """Return the named stores of an app; all of them without `stores`.

    Raises:
        UsageError: there is no such app.
        NotFound: the app has no such store.
    """
    app = app_named(name)
    plans = app.topology().subtopologies
    nodes = {node.name: (node, plan) for plan in plans for node in plan.stores}
    if missing := sorted(set(stores or ()) - nodes.keys()):
        known = ", ".join(nodes) or "none"
        raise NotFound(f"no such store: {', '.join(missing)}: app {app.conf.id} has {known}")
    return AskedStores(name, app, {n: nodes[n] for n in nodes if stores is None or n in stores})


@lru_cache(maxsize=1)
def all_stores(name: str) -> AskedStores:
    """Return all stores of an app, cached: a topology is built once in a task."""
    return asked_stores(name)


def node_of(name: str, store: str) -> StoreNode:
    """Return a store of an app."""
    return all_stores(name).nodes[store][0]


def in_snapshot(
    asked: AskedStores, uri: str, scratch: str | None = None
) -> tuple[Manifest, list[InSnapshot]]:
    """Return the newest snapshot, and the partitions of the stores in it.

    Raises:
        NotFound: there is no snapshot.
        IncompatibleStore: the snapshot does not fit the app, or lacks partitions.
        SnapshotFailed: the files cannot be read.
    """
    files = open_files(uri)
    manifest = newest_there(files)
    mine = asked.app.conf.id
    parts = list[InSnapshot]()
    layouts = dict[str, str]()
    app = manifest.app if manifest.app in asked.app.earlier_ids() else mine
    for name, (node, _) in asked.nodes.items():
        store = manifest.stores.get(name)
        held: Mapping[int, Part] = store.partitions if store else {}
        log = app + node.changelog.removeprefix(mine)  # its name begins with the app's id
        layouts[name] = replace(node, changelog=log).layout(len(held))
        where = f"{files.uri}: snapshot {manifest.number}: {name}"
        whole = list(range(len(held)))
        expect("snapshot of a part of a store", where, whole, sorted(held), ANEW)
        parts += [InSnapshot(absolute(uri), name, n, held[n].chain, scratch) for n in whole]
    refuse_other(manifest, files.uri, app, layouts, {})
    return manifest, parts


def in_changelogs(
    asked: AskedStores, brokers: str | None = None
) -> tuple[Mapping[str, int], list[InChangelog]]:
    """Return partition counts of the topics that the app reads, and the stores in their changelogs.

    The changelogs are read up to the end of records that are committed now. `brokers` replaces the
    brokers of the app.

    Raises:
        NotFound: a topic is not there.
        PartitionCountChanged: a topic has a partition count that does not fit.
        WorldError: the brokers do not answer.
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
    # Ids before bounds. The ids are read; a changelog is made anew; the bounds are read: its old id
    # tells it from the new one. In the other order the new id would stand beside old bounds.
    ids = source.ask(lambda cluster: admin.topic_ids(cluster, logs))
    bounds = there(source).bounds
    counts = Counter(tp.topic for tp in bounds)
    resolve_partition_counts(
        topology, counts, default=1, declare=True
    )  # refuses counts that do not fit
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
    """Return the id in hex, None for zeros, the answer of a broker that knows no ids."""
    return topic_id.hex() if topic_id and any(topic_id) else None


# -- all of them at once


def of_each(spark: "SparkSession | None", work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """Return the result of `work` for each part.

    Each part runs in a Spark task of its own. Without a session the parts run one after the other.
    The error of one part is raised.
    """
    if spark is None or not parts:
        return [work(part) for part in parts]
    try:
        return spark.sparkContext.parallelize(parts, len(parts)).map(work).collect()
    except Exception as error:
        raise translate_error(error) from error
