"""Handover of state and positions from Spark to workers.

No query runs during the handover, and the group has no members. Workers begin with the newest
snapshot, the changelogs that follow it, and the group's offsets with stream times.

Not here: the way back (`run --from group`).
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from streamsx.app.lookup import app_named
from streamsx.errors import SnapshotAhead, SnapshotNotPublished
from streamsx.model import TopicPartition
from streamsx.spark.changelogs import settled, who_went_on, whole
from streamsx.spark.plan import Stage, stages
from streamsx.spark.publish import (
    changelog_ids,
    options_of,
    require_transactions,
)
from streamsx.spark.reading import TopicRange, rows
from streamsx.spark.runner import counts_found, create_topics, refuse_overlap
from streamsx.spark.source import SourceOptions
from streamsx.spark.writer_lock import WriterLock, commit_positions, take
from streamsx.state.layout import StoreNode
from streamsx.state.snapshot import (
    Manifest,
    Part,
    Wanted,
    expect,
    manifest_after,
    newest_there,
    part_for,
)
from streamsx.state.snapshot import commit as commit_manifest
from streamsx.state.snapshot_files import SnapshotFiles, open_files

BY: Final = "handover"


class HandedOver(NamedTuple):
    """Result of a handover.

    Attributes:
        group: name of the consumer group.
        positions: offsets that the handover committed for the group, by topic and partition.
        published: number of rows written to changelogs, for each store that was in no changelog.
        worker: command that starts a worker.
    """

    group: str
    positions: dict[str, dict[int, int]]
    published: dict[str, int]
    worker: str


def handover(name: str, uri: str, *, force: bool = False, scratch: str | None = None) -> HandedOver:
    """Hand the newest snapshot under `uri` over to workers, which may start afterwards.

    Args:
        name: the app, as MODULE[:ATTR].
        uri: URI of the snapshots.
        force: ignore the running marks of queries under `uri`, and a history that overlaps its
            topic.
        scratch: folder for temporary files.

    Raises:
        UsageError, GroupNotEmpty, SnapshotAhead, IncompatibleStore, NotFound, WorldError: before
            anything is written.
        StateConflict: another snapshot was committed meanwhile.
    """
    require_transactions(
        name, "workers continue from changelogs: use brokers that have transactions"
    )
    files = open_files(uri)
    newest_there(files)
    with WriterLock(name, files, writes=True, force=force):
        manifest = newest_there(files)
        if not force:
            refuse_overlap(name, manifest, files.uri)
        return _handed(name, files, manifest, scratch, force=force)


def _handed(
    name: str, files: SnapshotFiles, manifest: Manifest, scratch: str | None, *, force: bool
) -> HandedOver:
    app = app_named(name)
    asked = SourceOptions(options_of(name))
    found = counts_found(name)
    made = stages(app.topology(), found, app.conf.topic_partitions)
    refuse_counts(manifest, made, found, files.uri)
    unpublished = refuse_ahead(name, files, manifest, made, found)
    create_topics(name, found)
    ids = changelog_ids(name)
    published = dict[str, int]()
    stores = dict(manifest.stores)
    tps = [tp for stage in made for tp in stage.read]
    if unpublished:
        asked.ask(lambda cluster: take(cluster, app.conf, tps, files.uri, force=force))
    for node, partition, part in unpublished:
        end, size = whole(asked, app.conf.id, (files, scratch), node, partition, part)
        store = stores[node.name]
        parts = {**store.partitions, partition: Part(part.chain, end)}
        made_from = ids.get(node.changelog)
        stores[node.name] = store._replace(partitions=parts, changelog_id=made_from)
        published[node.name] = published.get(node.name, 0) + size
    if unpublished:
        before = manifest
        manifest = manifest_after(
            before, before.app, app.topology().signatures, BY, partitions=before.partitions,
            positions=before.positions, stores=stores,
        )  # fmt: skip
        commit_manifest(files, manifest, before=before)
    offsets = asked.ask(lambda cluster: commit_positions(cluster, app.conf.id, manifest, made))
    positions: dict[str, dict[int, int]] = {}
    for tp, at in offsets.items():
        positions.setdefault(tp.topic, {})[tp.partition] = at
    worker = f"python -m streamsx worker {name} --snapshot {files.uri}"
    return HandedOver(app.conf.id, positions, published, worker)


# -- checks


def refuse_counts(
    manifest: Manifest, made: Sequence[Stage], found: Mapping[str, int], uri: str
) -> None:
    """Check that the topics have as many partitions as in the snapshot.

    External topics must exist; a missing topic of the app counts as the app would create it.

    Raises:
        IncompatibleStore: a topic has another number of partitions.
    """
    external = {topic for stage in made for topic in stage.external}
    there = {t: found.get(t, 0 if t in external else n) for t, n in made[0].counts.items()}
    wrong = {t: n for t, n in manifest.partitions.items() if there.get(t, n) != n}
    expect(
        "topics with other partitions", f"{uri}: snapshot {manifest.number}", wrong,
        {topic: there[topic] for topic in wrong}, "create each with the expected number",
    )  # fmt: skip


def refuse_ahead(
    name: str,
    files: SnapshotFiles,
    manifest: Manifest,
    made: Sequence[Stage],
    found: Mapping[str, int],
) -> list[tuple[StoreNode, int, Part]]:
    """Find the store partitions that are in no changelog, and check the others.

    Late attempts that could still write to a changelog are fenced. `found` holds the partition
    counts of topics that exist.

    Raises:
        IncompatibleStore: the snapshot does not fit the app.
        SnapshotAhead: records follow the snapshot in a changelog.
    """
    left = []
    asked = SourceOptions(options_of(name))
    ids = changelog_ids(name)
    external = [topic for stage in made for topic in stage.external]
    for stage in made:
        topics = {topic: stage.counts[topic] for topic in stage.subtopology.topics}
        for node, n in ((node, n) for node in stage.subtopology.stores for n in range(stage.tasks)):
            tp = TopicPartition(node.changelog, n)
            layout = node.layout(stage.tasks)
            start, end = settled(asked, manifest.app, tp) if tp.topic in found else (0, 0)
            held = manifest.stores.get(node.name)
            made_from = ids.get(tp.topic) or (held and held.changelog_id) or ""
            wanted = Wanted(manifest.app, node.name, n, layout, topics, start, end, made_from)
            try:
                _, at = part_for(manifest, wanted, files.uri)
            except SnapshotNotPublished:
                left.append((node, n, manifest.stores[node.name].partitions[n]))
                continue
            after = rows(asked.brokers, n, [TopicRange(tp.topic, at, end)])
            if size := sum(batch.num_rows for batch in after):
                who = asked.ask(lambda cluster: who_went_on(cluster, manifest, external))
                raise SnapshotAhead(f"{who[0]}: {tp}: {size} records from {at} on: {who[1]}")
    return left
