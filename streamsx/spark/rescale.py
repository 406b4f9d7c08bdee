"""Rescaling of state to another number of partitions, which a running app cannot take.

Each row goes where the records of its key will go. A snapshot for the new number is written to a
new place. `copy` brings the records after the old snapshot into a topic with the new number.

The files of a new partition come from several old partitions, which have no key in common. So each
task writes the rows that it has read, and nothing is shuffled. A chain has one file of each task
that had rows for the partition.

Stopping and starting of workers is not done here; `procedure` returns the commands.
"""

import json
import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from itertools import islice
from shlex import quote
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamsx.app.lookup import app_named
from streamsx.client import admin
from streamsx.client.admin import NewTopic
from streamsx.client.range_reader import Range
from streamsx.errors import IncompatibleStore, NotFound, NotSupported, SettingError, StateConflict
from streamsx.model import TopicPartition
from streamsx.processing.task import latest
from streamsx.spark.compact import committed, write
from streamsx.spark.partitioner import partitions_of
from streamsx.spark.reading import check
from streamsx.spark.session import translate_error
from streamsx.spark.source import EARLIEST, LATEST, SourceOptions, frame, into_topics, there
from streamsx.spark.stored import (
    AskedStores,
    StoredPart,
    all_stores,
    asked_stores,
    in_snapshot,
    node_of,
    of_each,
)
from streamsx.state.snapshot import Manifest, Position, newest_there, numbers
from streamsx.state.snapshot_files import absolute, open_files
from streamsx.topology.partitions import resolve_partition_counts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK: Final = "python -m streamsx spark"
CHANCE_BITS: Final = 32
"""Bits of certainty: foreign keys all lie where their records would by a chance of 1 in 2^32 at
most.
"""

KeptBy = Mapping[str, tuple[str, int]]
"""Topic with the keys of each store, and the number of its partitions."""


def rescale(
    app: str, source: str, target: str, partitions: Mapping[str, int], *,
    keyed: Mapping[str, str] | None = None, spark: "SparkSession | None" = None,
    scratch: str | None = None,
) -> Manifest:  # fmt: skip
    """Write the newest snapshot under `source`, for new `partitions` of topics, under `target`.

    `app` is MODULE[:ATTR] as it is going to be: of the snapshot's version or of a later one.
    `keyed` names by store the topic with the same keys, if rows are too few to show it. All errors
    but StateConflict are raised before anything is written.

    Raises:
        UsageError, NotFound, NotSupported: the request does not fit the app or its state.
        WorldError: the brokers do not answer.
        StoreCorrupt: a file of the snapshot is damaged.
        StateConflict: another process has written under `target`.
    """
    asked = asked_stores(app)
    files = open_files(target)
    if numbers(files):
        raise SettingError(f"snapshots exist already: {files.uri}: write to a new place")
    before, parts = in_snapshot(asked, source, scratch)
    refuse_placeless(before, source, [])
    counts = _counted(asked, before, partitions)
    keyed = keyed or {}
    known = {(name, topic) for name, (_, plan) in asked.nodes.items() for topic in plan.topics}
    if unknown := sorted(keyed.items() - known):
        texts = [" ".join(map("=".join, each)) for each in (unknown, sorted(known))]
        raise NotFound(f"no such store and topic: {texts[0]}: expected one of {texts[1]}")
    old = {name: len(before.stores[name].partitions) for name in asked.nodes}
    seen = of_each(
        spark, partial(judged, app, old), parts
    )  # reads to the end, so finds torn files too
    plan = {}
    for name, (node, subtopology) in asked.nodes.items():
        mine = [each for part, each in zip(parts, seen, strict=True) if part.store == name]
        given = keyed.get(name) or (subtopology.topics[0] if node.by_bytes else None)
        topic = kept_by(name, subtopology.topics, given, old[name], mine)
        plan[name] = topic, counts[node.changelog]
    work = partial(write, app, absolute(target), 0, scratch, places=partial(placed, app, plan))
    made = of_each(spark, work, parts)
    read = {t: counts[t] for plan in asked.app.topology().subtopologies for t in plan.topics}
    # Offsets only of topics that stay as they are; a new topic is read from its start.
    stay = read.items() & before.partitions.items()
    positions = {
        **_closed(asked, before, counts),
        **{topic: before.positions[topic] for topic, _ in stay if topic in before.positions},
    }
    new = {name: count for name, (_, count) in plan.items()}
    return committed(files, None, asked, "rescale", parts, made, new, read, positions)


def _closed(
    asked: AskedStores, before: Manifest, counts: Mapping[str, int]
) -> dict[str, dict[int, Position]]:
    """Return, for each topic, positions at the start with the stream time that all tasks had.

    A new task has rows of several tasks. What has closed in some of them only closes again, so its
    results may leave twice, and none is lost.
    """
    found: dict[str, dict[int, Position]] = {}
    for plan in asked.app.topology().subtopologies:
        tasks = [
            latest(
                each[n].closed
                for each in map(before.positions.get, plan.topics)
                if each and n in each
            )
            for n in sorted({n for topic in plan.topics for n in before.positions.get(topic, ())})
        ]
        everywhere = set[str]().union(*tasks).intersection(*tasks)
        if closed := {mark: min(task[mark] for task in tasks) for mark in everywhere}:
            at = Position(0, closed=closed)
            found |= {topic: dict.fromkeys(range(counts[topic]), at) for topic in plan.topics}
    return found


def refuse_placeless(before: Manifest, uri: str, topics: Sequence[str]) -> None:
    """Raise IncompatibleStore if the snapshot has no positions of these topics."""
    if not before.positions or set(topics) - before.positions.keys():
        raise IncompatibleStore(
            f"snapshot without positions: {uri}: snapshot {before.number}: expected some of "
            f"{', '.join(topics) or 'topics'}, found {sorted(before.positions)}: stop the workers, "
            f"and with the app as it was: {SPARK} run MODULE --state URI --from group "
            "--available-now"
        )


def procedure(app: str, source: str, target: str) -> list[str]:
    """Return the commands that complete a rescaling."""
    before, made = (newest_there(open_files(uri)) for uri in (source, target))
    sent = {t for plan in app_named(app).topology().subtopologies for t in plan.outputs}
    news = sorted(made.partitions.keys() - before.partitions.keys() - sent)
    gone = sorted(before.positions.keys() - made.partitions.keys())
    olds = [get_close_matches(new, gone, 1, 0)[0] for new in news] if gone else []
    topics = " ".join(f"{old}:{new}" for old, new in zip(olds, news, strict=bool(gone)))
    counts = " ".join(f"{new}={made.partitions[new]}" for new in news)
    copy = f"{SPARK} copy {app} --state {quote(source)} --topics {topics} --partitions {counts}"
    writers = " and ".join(olds)
    then = f"  # then write to {' and '.join(news)}" if olds else ""
    copies = (
        f"{copy}  # as often as you like, while {writers} is written to",
        f"{copy}  # when no program writes to {writers} any more: again until 0 records",
    )
    return [
        *(copies if olds else ()),
        f"{SPARK} handover {app} --state {quote(target)}{then}",
        f"python -m streamsx worker {app} --snapshot {quote(target)}",
    ]


def _counted(asked: AskedStores, before: Manifest, given: Mapping[str, int]) -> Mapping[str, int]:
    """Return the partition counts of all topics: the given ones, and those of the snapshot."""
    topology = asked.app.topology()
    read = {topic for plan in topology.subtopologies for topic in plan.topics}
    if unknown := sorted(given.keys() - read):
        raise NotFound(
            f"no such topic: {', '.join(unknown)}: app {asked.app.conf.id} reads "
            f"{', '.join(sorted(read))}: give MODULE as it is going to be"
        )
    known = {topic: count for topic, count in before.partitions.items() if topic in read}
    default = asked.app.conf.topic_partitions
    return resolve_partition_counts(
        topology, {**known, **given}, default=default, declare=True
    ).counts


class PartitionFindings(NamedTuple):
    """Findings in one partition of a store.

    `keys` is their number, in a store of windows at most CHANCE_BITS. `astray` has, by topic, the
    first key that records of the topic cannot have there.
    """

    keys: int
    astray: Mapping[str, str]


def judged(app: str, old: Mapping[str, int], part: StoredPart) -> PartitionFindings:
    """Return the findings in one partition: its keys, and by topic the first key out of place.

    A table may have keys in an encoding of its own, or keys quite other than those of the records.
    So an error of the encoding puts all keys of the batch out of place.
    """
    rows = 0
    windowed = set[bytes]()
    astray = dict[str, str]()
    node = node_of(app, part.store)
    for batch in part.rows():
        if node.timing is None:
            rows += batch.num_rows
        elif len(windowed) < CHANCE_BITS:  # many windows of one key prove no more than one
            windowed.update(islice(map(node.key_of, batch["key"].to_pylist()), CHANCE_BITS))
        for topic in set(all_stores(app).nodes[part.store][1].topics) - astray.keys():
            try:
                now = {part.store: (topic, old[part.store])}
                there = placed(app, now, part, batch) == part.partition
            except (AttributeError, TypeError, ValueError):
                there = np.zeros(batch.num_rows, bool)
            if not there.all():
                key = node.changelog_key(batch["key"][int(there.argmin())].as_py())
                astray[topic] = f"{part.store}-{part.partition}: {key!r}"
    return PartitionFindings(rows or len(windowed), astray)


def kept_by(
    store: str,
    topics: Sequence[str],
    declared: str | None,
    old: int,
    seen: Sequence[PartitionFindings],
) -> str:
    """Return the topic with the keys of the whole store.

    Raises:
        NotSupported: no topic has these keys, or the rows are too few to decide.
    """
    keys = sum(each.keys for each in seen)
    asked = [declared] if declared else topics
    astray = {topic: key for each in reversed(seen) for topic, key in each.astray.items()}
    left = [topic for topic in asked if topic not in astray]
    refusal = f"state that cannot be cut anew: store {store}: expected keys of records of"
    if not left:
        raise NotSupported(
            f"{refusal} {', '.join(asked)} by murmur2 of {old} partitions, "
            f"found {astray[asked[0]]}: "
            "read these topics again with a new version of the app"
        )
    if keys and not declared and keys * math.log2(old) < CHANCE_BITS:
        raise NotSupported(
            f"{refusal} {', '.join(topics)}, found {keys} keys in {old} partitions, which may lie "
            f"there by chance: give --keyed {store}={left[0]} if its keys are those of the records"
        )
    return left[0]


def placed(
    app: str, plan: KeptBy, part: StoredPart, batch: pa.RecordBatch
) -> npt.NDArray[np.int32]:
    """Return the partition of the records of each key.

    Raises:
        AttributeError, TypeError, ValueError: records cannot have a key of the store.
    """
    node, subtopology = all_stores(app).nodes[part.store]
    topic, count = plan[part.store]
    (encode,) = (each.keys.encode for each in subtopology.sources if each.topic == topic)
    found = map(node.key_of, batch["key"].to_pylist())
    keys = [*found] if node.by_bytes else [encode(node.keys.decode(key)) for key in found]
    if None in keys:
        raise ValueError("a record without a key")
    return partitions_of(pa.array(keys, pa.binary()), count)


# -- what has come since


def copy(
    app: str, uri: str, old: str, new: str, spark: "SparkSession", *, brokers: str | None = None,
    partitions: int | None = None,
) -> tuple[int, dict[str, int]]:  # fmt: skip
    """Copy the records after the newest snapshot under `uri`, and after the last copy, to a new
    topic.

    The partition follows from the key by murmur2. Records that a killed copy has written are
    written again. `partitions` is the partition count of the new topic, if it is not there.

    Returns:
        The number of records, and by partition the end offsets of the copy.

    Raises:
        IncompatibleStore: the snapshot has no positions; nothing is written.
        TopicGone: records are no longer there; nothing is written.
        NotFound, WorldError: a topic is not there, or the brokers do not answer.
        StateConflict: two copies ran at once.
    """
    asked = asked_stores(app, [])
    files = open_files(uri)
    manifest, _ = in_snapshot(asked, uri)
    refuse_placeless(manifest, files.uri, [old])
    options = {"app": app, "kafka.bootstrap.servers": brokers or ",".join(asked.app.conf.bootstrap)}
    source = SourceOptions({**options, "subscribe": f"{old},{new}"})
    if partitions:
        conf = asked.app.conf
        made = NewTopic(new, partitions, conf.topic_replication_factor)
        source.ask(lambda cluster: admin.create_topics(cluster, [made]))
    now = there(source)
    begin = now.at(EARLIEST)[old]
    end = now.at(LATEST)[old]
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
    read = frame(spark, {**options, **bounds, "subscribe": old})
    rows = read.selectExpr(f"'{new}' topic", "key", "value", "headers", "timestamp")
    try:
        into_topics(rows, options)
    except Exception as error:
        raise translate_error(error) from error
    name = f"{folder}/{len(done):012}.json"
    try:
        files.create(name, json.dumps(end).encode())
    except FileExistsError as error:
        raise StateConflict(f"copied twice: {files.uri}/{name}: copy once at a time") from error
    return sum(stop - start for start, stop in ranges.values()), end
