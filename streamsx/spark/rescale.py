"""State for another number of partitions: the one change that a running app cannot take.

Each row goes where the records of its key will go; a snapshot for the new number is written to a
place of its own. `copy` takes the records behind the old one over into a topic with that number.

Files of a new partition come from several old ones, which have no key in common. So each task
writes what it has read, nothing is shuffled, and a chain has a file of each that had some.

Not here: who stops and starts what, and when (PROCEDURE says it).
"""

import json
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamsx.engine.records import Range
from streamsx.errors import IncompatibleStore, NotFound, NotSupported, SettingError, StateConflict
from streamsx.model import TopicPartition
from streamsx.spark.compact import commit_stores, write
from streamsx.spark.connector import PYTHON, frame, into_topics
from streamsx.spark.partitioner import partitions_of
from streamsx.spark.reading import check
from streamsx.spark.session import told
from streamsx.spark.source import EARLIEST, LATEST, Asked, there
from streamsx.spark.stored import AskedStores, StoredPart, asked_stores, in_snapshot, of_each
from streamsx.state.layout import changelog_key
from streamsx.state.snapshot import Manifest, Part, numbers
from streamsx.state.snapshot_files import open_files
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

OldAndNew = Mapping[str, tuple[int, int]]
"""How many partitions each store has, and will have."""


def rescale(
    app: str,
    source: str,
    target: str,
    partitions: Mapping[str, int],
    *,
    spark: "SparkSession | None" = None,
    scratch: str | None = None,
) -> Manifest:
    """The newest snapshot under `source`, for `partitions` of these topics, under `target`.

    `app`: MODULE[:ATTR], as it is going to be: of the snapshot's version, or of a later one. Raises
    UsageError, NotFound, WorldError, StoreCorrupt, before anything is written; StateConflict.
    """
    asked, files = asked_stores(app), open_files(target)
    if numbers(files):
        raise SettingError(f"snapshots are there already: {files.uri}: write to a new place")
    before, parts = in_snapshot(asked, source, scratch)
    made = _counted(asked, before, partitions)
    counts = {
        name: (len(before.stores[name].partitions), made[node.changelog])
        for name, (node, _) in asked.nodes.items()
    }
    places = partial(placed, app, counts)
    of_each(spark, partial(_read, places), parts)
    held = {name: {n: Part() for n in range(new)} for name, (_, new) in counts.items()}
    work = partial(write, target, 0, scratch, places=places)
    for part, written in zip(parts, of_each(spark, work, parts), strict=True):
        for number, file in written.items():
            chain = held[part.store][number].chain
            held[part.store][number] = Part((*chain, file._replace(full=not chain)))
    read = {topic for plan in asked.app.topology().subtopologies for topic in plan.topics}
    sources = {topic: made[topic] for topic in sorted(read)}
    return commit_stores(files, asked, "rescale", None, sources, held, {})


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


def _read(places: partial[npt.NDArray[np.int32]], part: StoredPart) -> None:
    """To its end: what cannot be read, or has no place, is found before anything is written."""
    for batch in part.rows():
        places(part, batch)


def placed(
    app: str, counts: OldAndNew, part: StoredPart, batch: pa.RecordBatch
) -> npt.NDArray[np.int32]:
    """Where the records of each key will be; as they were sent to be where it is now.

    A table has keys of its own encoding, or quite others than the records have. Raises
    NotSupported.
    """
    node, plan = _stores(app).nodes[part.store]
    old, new = counts[part.store]
    keys = [node.keys.decode(changelog_key(key)) for key in batch.column("key").to_pylist()]
    for source in plan.sources:
        try:
            encoded = pa.array(map(source.keys.encode, keys), pa.binary())
        except (AttributeError, TypeError, ValueError):
            continue
        if not encoded.null_count and (partitions_of(encoded, old) == part.partition).all():
            return partitions_of(encoded, new)
    raise NotSupported(
        f"state that cannot be cut anew: store {part.store}-{part.partition}, key {keys[0]!r} or "
        f"one after it: expected keys of records of {', '.join(plan.topics)} by murmur2 of "
        f"{old} partitions, found others: read these topics again with a new version of the app"
    )


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
