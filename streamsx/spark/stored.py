"""Partitions of stores as rows, wherever they lie: in the files of a snapshot, or in a changelog.

The one way in which compaction, rescaling and queries read a store. Rows come under their keys on
disk, ascending, each once, and none that was deleted. What is asked for is checked first, against
the app as it is here: another app, another layout, another number of partitions are refused.

Not here: what rows are decoded to, who writes them.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from streamsx.app.app import App
from streamsx.app.lookup import app_named
from streamsx.errors import IncompatibleStore, NotFound, StreamsxError
from streamsx.spark.checkout import Chain, checkout, scratch_folder
from streamsx.spark.reading import Stretch, rows
from streamsx.spark.rows import PIECE_ROWS
from streamsx.spark.source import Asked, there
from streamsx.state.api import INDEX, ROW
from streamsx.state.layout import StoreNode, local_keys
from streamsx.state.snapshot import MANIFESTS, Manifest, newest
from streamsx.state.snapshot_files import open_files
from streamsx.topology.nodes import SubTopology
from streamsx.topology.partitions import partitioned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLD_ROWS: Final = 2_000_000
"""Of a changelog, in memory beside the newest row of each key."""
LOG: Final = pa.schema({"key": pa.large_binary(), "value": pa.large_binary()})
"""A column of plain binary ends at 2 GiB."""
PAIRS: Final = pa.schema({"key": pa.binary(), "value": pa.binary()})

T = TypeVar("T")
R = TypeVar("R")


class InSnapshot(NamedTuple):
    """One partition of a store, as a committed chain."""

    uri: str
    store: str
    partition: int
    chain: Chain
    scratch: str | None = None

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Of PAIRS, at most PIECE_ROWS each. Raises StoreCorrupt, SnapshotFailed."""
        if not self.chain:
            return
        files, scratch = open_files(self.uri), scratch_folder(self.scratch)
        held = checkout(files, scratch, self.store, self.partition, self.chain)
        keys, values = list[bytes](), list[bytes]()
        for key, value in held.scan(ROW, INDEX):
            keys.append(key)
            values.append(value)
            if len(keys) == PIECE_ROWS:
                yield pairs(keys, values)
                keys, values = [], []
        if keys:
            yield pairs(keys, values)


class InChangelog(NamedTuple):
    """One partition of a store, as its changelog is; `options`: of our source."""

    options: Mapping[str, str]
    store: str
    partition: int
    log: Stretch

    def rows(self) -> Iterator[pa.RecordBatch]:
        """As of a snapshot. Raises WorldError, CorruptRecord."""
        if self.log.start == self.log.end:
            return
        read = rows(Asked(self.options).brokers, self.partition, [self.log])
        for piece in newest_rows(read).to_batches(max_chunksize=PIECE_ROWS):
            keys, values = (column.to_pylist() for column in piece.columns)
            yield pairs(local_keys(keys), values)


StoredPart = InSnapshot | InChangelog


def pairs(keys: Sequence[bytes | None], values: Sequence[bytes]) -> pa.RecordBatch:
    arrays = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, schema=PAIRS)


def newest_rows(log: Iterable[pa.RecordBatch], fold_rows: int = FOLD_ROWS) -> pa.Table:
    """The last value of each key, by key; a key whose last one is a tombstone is not there."""
    waiting, count = [LOG.empty_table()], 0
    for batch in log:
        waiting.append(pa.Table.from_batches([batch.select(LOG.names)]).cast(LOG))
        count += batch.num_rows
        if count >= fold_rows:
            waiting, count = [_folded(waiting)], 0
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
    if (manifest := newest(files)) is None:
        raise NotFound(
            f"no snapshot: {files.uri}: expected {MANIFESTS}/NUMBER.json, found none: make one"
        )
    ids = [asked.app.conf.id, *asked.app.earlier_ids()]
    parts, app = list[InSnapshot](), manifest.app if manifest.app in ids else ids[0]
    checks: list[tuple[str, object, object]] = [("app", app, manifest.app)]
    for name, (node, _) in asked.nodes.items():
        held = manifest.stores.get(name)
        found: Any = json.loads(held.layout) if held else sorted(manifest.stores)
        numbers = sorted(held.partitions) if held else []
        wanted = json.loads(node.layout(len(numbers)))
        if held and manifest.app != ids[0]:
            wanted["topic"] = found.get("topic")  # bears the app's id
        checks += [(f"store {name}", wanted, found)]
        checks += [(f"partitions of {name}", list(range(len(numbers))), numbers)]
        parts += [
            InSnapshot(uri, name, n, held.partitions[n].chain, scratch) for n in numbers if held
        ]
    for what, expected, had in checks:
        if expected != had:
            raise IncompatibleStore(
                f"snapshot of another app, or of one that has changed: {files.uri}: snapshot "
                f"{manifest.number}: {what}: expected {expected}, found {had}: give the snapshot "
                "of this app as it is now"
            )
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
    bounds = there(Asked(options)).bounds
    counts = Counter(tp.topic for tp in bounds)
    partitioned(topology, counts, default=1, declare=True)  # refuses those that do not fit
    parts = [
        InChangelog(options, logs[tp.topic], tp.partition, Stretch(tp.topic, *bounds[tp]))
        for tp in sorted(bounds)
        if tp.topic in logs
    ]
    return {topic: counts[topic] for topic in sorted(sources)}, parts


# -- all of them at once


def of_each(spark: "SparkSession | None", work: Callable[[T], R], parts: Sequence[T]) -> list[R]:
    """What the work gives, of each in a task of its own; one after the other without a session.
    Raises what one of them raised: Spark would tell it as a trace of its own, after three more
    tries.
    """

    def attempt(part: T) -> Any:
        try:
            return work(part)
        except StreamsxError as error:
            return error

    if spark is None or not parts:
        return [work(part) for part in parts]
    done = spark.sparkContext.parallelize(parts, len(parts)).map(attempt).collect()
    for each in done:
        if isinstance(each, StreamsxError):
            raise each
    return done
