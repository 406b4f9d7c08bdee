"""State for another number of partitions: the one change that a running app cannot take.

Each row goes where the records of its key will go; a snapshot for the new number is written to a
place of its own. `copy` takes the records behind the old one over into a topic with that number.

Files of a new partition come from several old ones, which have no key in common. So each task
writes what it has read, nothing is shuffled, and a chain has a file of each that had some.

Not here: who stops and starts what, and when (PROCEDURE says it).
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamsx.engine.records import Range
from streamsx.errors import IncompatibleStore, NotFound, NotSupported, SettingError, StateConflict
from streamsx.model import TopicPartition
from streamsx.spark.compact import write
from streamsx.spark.connector import PYTHON, frame, into_topics
from streamsx.spark.partitioner import partitions_of
from streamsx.spark.reading import check
from streamsx.spark.session import told
from streamsx.spark.source import EARLIEST, LATEST, Asked, there
from streamsx.spark.stored import AskedStores, StoredPart, asked_stores, in_snapshot, of_each
from streamsx.state.layout import StoreNode, changelog_key
from streamsx.state.snapshot import (
    Manifest,
    Part,
    StoreSnapshot,
    commit,
    manifest_after,
    numbers,
)
from streamsx.state.snapshot_files import open_files
from streamsx.topology.nodes import Source
from streamsx.topology.partitions import partitioned

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROCEDURE: Final = (
    "have all who write to the old topic write to the new one, which has the new number",
    "streamsx spark copy {app} --state {source} --topics OLD:NEW, again and again until 0 records",
    "streamsx spark handover {app} --state {target}",
    "streamsx worker {app} --snapshot {target}",
)
"""Behind `rescale`: workers have been stopped, `run --from group --available-now` has taken over
what they had, and MODULE is the app as it will be, of a later version, with the new topic.
"""

CHANCE_BITS: Final = 32
"""Keys of something else lie all where records with them would by a chance of 1 in 2^32 at most."""

KeptBy = Mapping[str, tuple[str, int]]
"""The topic by whose records' keys each store is kept, and how many partitions it will have."""


def rescale(
    app: str,
    source: str,
    target: str,
    partitions: Mapping[str, int],
    *,
    keyed: Mapping[str, str] | None = None,
    spark: "SparkSession | None" = None,
    scratch: str | None = None,
) -> Manifest:
    """The newest snapshot under `source`, for `partitions` of these topics, under `target`.

    `app`: MODULE[:ATTR], as it is going to be: of the snapshot's version, or of a later one;
    `keyed`: by store, the topic whose records' keys it has, where rows are too few to show it.
    Raises UsageError, NotFound, WorldError, StoreCorrupt, NotSupported, before anything is written;
    StateConflict.
    """
    asked, files = asked_stores(app), open_files(target)
    if numbers(files):
        raise SettingError(f"snapshots are there already: {files.uri}: write to a new place")
    before, parts = in_snapshot(asked, source, scratch)
    made = _counted(asked, before, partitions)
    keyed = keyed or {}
    refuse_unknown(asked, keyed)
    old = {name: len(before.stores[name].partitions) for name in asked.nodes}
    seen = of_each(spark, partial(judged, app, old), parts)  # to the end: torn files are found too
    plan = {}
    for name, (node, subtopology) in asked.nodes.items():
        mine = [each for part, each in zip(parts, seen, strict=True) if part.store == name]
        topic = kept_by(name, subtopology.topics, keyed.get(name), old[name], mine)
        plan[name] = topic, made[node.changelog]
    places = partial(placed, app, plan)
    held = {name: {n: Part() for n in range(new)} for name, (_, new) in plan.items()}
    work = partial(write, target, 0, scratch, places=places)
    for part, written in zip(parts, of_each(spark, work, parts), strict=True):
        for number, file in written.items():
            chain = held[part.store][number].chain
            held[part.store][number] = Part((*chain, file._replace(full=not chain)))
    read = {topic for plan in asked.app.topology().subtopologies for topic in plan.topics}
    sources = {topic: made[topic] for topic in sorted(read)}
    stores = {
        name: StoreSnapshot(node.layout(len(held[name])), held[name])
        for name, (node, _) in asked.nodes.items()
    }
    manifest = manifest_after(
        None, asked.app.conf.id, asked.app.topology().signatures, "rescale",
        partitions=sources, positions={}, stores=stores,
    )  # fmt: skip
    commit(files, manifest, before=None)
    return manifest


def _counted(asked: AskedStores, before: Manifest, given: Mapping[str, int]) -> Mapping[str, int]:
    """Of all topics: what is given, and of others what they had."""
    topology = asked.app.topology()
    read = {topic for plan in topology.subtopologies for topic in plan.topics}
    if unknown := sorted(given.keys() - read):
        raise NotFound(
            f"no such topic: {', '.join(unknown)}: app {asked.app.conf.id} reads "
            f"{', '.join(sorted(read))}: give MODULE as it is going to be"
        )
    known = {topic: count for topic, count in before.partitions.items() if topic in read}
    default = asked.app.conf.topic_partitions
    return partitioned(topology, {**known, **given}, default=default, declare=True).counts


def refuse_unknown(asked: AskedStores, keyed: Mapping[str, str]) -> None:
    """Raises NotFound."""
    for name, topic in keyed.items():
        topics = asked.nodes[name][1].topics if name in asked.nodes else ()
        if topic not in topics:
            raise NotFound(
                f"no such store and topic: {name}={topic}: expected one of "
                f"{', '.join(asked.nodes)}, and a topic that its task reads"
                + (f": {', '.join(topics)}" if topics else "")
            )


class Seen(NamedTuple):
    """Of one partition of a store. `astray`: by topic, the first key that its records cannot have
    there.
    """

    rows: int
    astray: Mapping[str, str]


def judged(app: str, old: Mapping[str, int], part: StoredPart) -> Seen:
    """A table has keys of its own encoding, or quite others than the records have."""
    node, plan = _stores(app).nodes[part.store]
    rows, astray = 0, dict[str, str]()
    for batch in part.rows():
        rows += batch.num_rows
        for source in plan.sources:
            if source.topic in astray:
                continue
            keys = decoded(node, batch)
            try:
                there = partitions_of(encoded(source, keys), old[part.store]) == part.partition
            except (AttributeError, TypeError, ValueError):
                there = np.zeros(len(keys), bool)
            if not there.all():
                astray[source.topic] = f"{part.store}-{part.partition}: {keys[there.argmin()]!r}"
    return Seen(rows, astray)


def kept_by(
    store: str, topics: Sequence[str], declared: str | None, old: int, seen: Sequence[Seen]
) -> str:
    """The topic by whose keys the whole store is kept. Raises NotSupported where it is none of
    them, or cannot be told.
    """
    rows = sum(each.rows for each in seen)
    left = [declared] if declared else list(topics)
    found = [key for each in seen for topic, key in each.astray.items() if topic in left]
    left = [topic for topic in left if not any(topic in each.astray for each in seen)]
    told = f"state that cannot be cut anew: store {store}: expected keys of records of"
    if not left:
        raise NotSupported(
            f"{told} {declared or ', '.join(topics)} by murmur2 of {old} partitions, found "
            f"{found[0]}: read these topics again with a new version of the app"
        )
    if rows and not declared and rows * math.log2(old) < CHANCE_BITS:
        raise NotSupported(
            f"{told} {', '.join(topics)}, found {rows} rows in {old} partitions, which may lie "
            f"there by chance: give --keyed {store}={left[0]} if its keys are those of the records"
        )
    return left[0]


def placed(
    app: str, plan: KeptBy, part: StoredPart, batch: pa.RecordBatch
) -> npt.NDArray[np.int32]:
    """Where the records of each key will be."""
    node, subtopology = _stores(app).nodes[part.store]
    topic, new = plan[part.store]
    (source,) = (each for each in subtopology.sources if each.topic == topic)
    return partitions_of(encoded(source, decoded(node, batch)), new)


def decoded(node: StoreNode, batch: pa.RecordBatch) -> list[Any]:
    return [node.keys.decode(changelog_key(key)) for key in batch.column("key").to_pylist()]


def encoded(source: Source, keys: Sequence[Any]) -> pa.Array:
    """Raises AttributeError, TypeError, ValueError for keys that its records cannot have."""
    made = pa.array(map(source.keys.encode, keys), pa.binary())
    if made.null_count:
        raise ValueError("a record without a key")
    return made


@lru_cache(maxsize=1)
def _stores(app: str) -> AskedStores:
    return asked_stores(app)


# -- what has come since


def copy(
    app: str, uri: str, old: str, new: str, spark: "SparkSession", *, brokers: str | None = None
) -> tuple[int, dict[str, int]]:
    """Records behind the newest snapshot under `uri`, and behind the last copy, from one topic to
    another, by murmur2: how many, and up to where, by partition. What is written when this is
    killed is written again.

    Raises IncompatibleStore without positions, TopicGone for records that are there no more, before
    anything is written; NotFound, WorldError, StateConflict.
    """
    asked, files = asked_stores(app, []), open_files(uri)
    manifest, _ = in_snapshot(asked, uri)
    if old not in manifest.positions:
        raise IncompatibleStore(
            f"snapshot without positions: {files.uri}: snapshot {manifest.number}: expected some "
            f"of {old}, found {sorted(manifest.positions)}: make it by spark run --from group "
            "--available-now"
        )
    options = {"app": app, "kafka.bootstrap.servers": brokers or ",".join(asked.app.conf.bootstrap)}
    now = there(Asked({**options, "subscribe": f"{old},{new}"}))
    begin, end = now.at(EARLIEST)[old], now.at(LATEST)[old]
    begin |= {str(n): at.next for n, at in manifest.positions[old].items()}
    folder = f"copied/{manifest.number}-{old}-{new}"
    if done := files.names(folder):
        begin |= json.loads(files.read(f"{folder}/{done[-1]}"))
    ranges = {TopicPartition(old, int(n)): Range(at, end.get(n, -1)) for n, at in begin.items()}
    check(now.bounds, ranges)
    if begin == end:
        return 0, end
    wanted = {"startingOffsets": begin, "endingOffsets": end}
    bounds = {name: json.dumps({old: at}) for name, at in wanted.items()}
    read = frame(spark, PYTHON, {**options, **bounds, "subscribe": old})
    rows = read.selectExpr(f"'{new}' topic", "key", "value", "headers", "timestamp")
    try:
        into_topics(rows, options)
    except Exception as error:
        raise told(error) from error
    name = f"{folder}/{len(done):012}.json"
    try:
        files.create(name, json.dumps(end).encode())
    except FileExistsError as error:
        raise StateConflict(f"copied twice: {files.uri}/{name}: copy once at a time") from error
    return sum(stop - start for start, stop in ranges.values()), end
