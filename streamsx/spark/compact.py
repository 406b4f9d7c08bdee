"""Snapshots made of changelogs: the newest row of each key, in a full file per store partition.

A new host loads these files (`worker --snapshot`) instead of replaying a long changelog, and then
reads the changelog from the offset where the files end. Workers may run during the compaction.

Not here: reading a store (`stored`), the removal of old snapshots.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamsx.errors import IncompatibleStore
from streamsx.spark.checkout import own_folder, scratch_folder
from streamsx.spark.stored import (
    AskedStores,
    StoredPart,
    asked_stores,
    in_changelogs,
    node_of,
    of_each,
)
from streamsx.state import snapshot
from streamsx.state.api import INDEX
from streamsx.state.snapshot import Manifest, Part, Position, SstFile, SstWriter, StoreSnapshot
from streamsx.state.snapshot_files import SnapshotFiles, absolute, open_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOLD: Final = 3
"""Number of dropped things that the error names."""
Positions = Mapping[str, Mapping[int, Position]]
COMPACT: Final = "compact"
"""Author that the manifests of these snapshots name."""
Places = Callable[[StoredPart, pa.RecordBatch], npt.NDArray[np.int32]]
"""Function that returns the partition of each row in the snapshot to be written."""


def compact(
    app: str, uri: str, *, brokers: str | None = None, stores: Collection[str] | None = None,
    positions: Positions | None = None, spark: "SparkSession | None" = None,
    scratch: str | None = None,
) -> Manifest:  # fmt: skip
    """Write the next snapshot under `uri` from the changelogs of the app MODULE[:ATTR].

    Args:
        app: the app, as MODULE[:ATTR].
        uri: URI of the snapshots.
        brokers: brokers to use instead of the app's.
        stores: names of stores; None means all.
        positions: the group's positions, if no worker or query runs.
        spark: session that runs the work; None means this process.
        scratch: folder for temporary files.

    Raises:
        UsageError, IncompatibleStore, NotFound, WorldError: before anything is written.
        StateConflict: another snapshot was committed meanwhile.
    """
    asked = asked_stores(app, stores)
    files = open_files(uri)
    last = snapshot.newest(files)
    positions = positions or {}
    if last is not None:
        refuse_less(last, asked, positions, files.uri)
    counts, parts = in_changelogs(asked, brokers)
    made = of_each(
        spark, partial(write, app, absolute(uri), last.number + 1 if last else 0, scratch), parts
    )
    whole = Counter(part.store for part in parts)
    return committed(files, last, asked, COMPACT, parts, made, whole, counts, positions)


def refuse_less(last: Manifest, asked: AskedStores, positions: Positions, uri: str) -> None:
    """Refuse to write a snapshot with fewer stores or positions than the last one.

    Only the newest snapshot is used. Without a position a run would begin anew and count twice;
    without a store the run would miss that store.

    Raises:
        IncompatibleStore: a store or position would be dropped, or the last snapshot is of another
            app.
    """
    remedy = "write to another --out"
    snapshot.expect("snapshots of another app", uri, asked.app.conf.id, last.app, remedy)
    held = [(topic, n) for topic, each in last.positions.items() for n in each]
    less = [f"store {name}" for name in sorted(last.stores.keys() - asked.nodes.keys())]
    less += sorted(f"the position of {t}-{n}" for t, n in held if n not in positions.get(t, {}))
    if less:
        more = f" and {len(less) - TOLD} more" if len(less) > TOLD else ""
        raise IncompatibleStore(
            f"snapshot would lose data: {uri}: snapshot {last.number}, made by {last.made_by}, "
            f"has {', '.join(less[:TOLD])}{more}: {remedy}"
        )


def committed(
    files: SnapshotFiles, before: Manifest | None, asked: AskedStores, made_by: str,
    parts: Sequence[StoredPart], written: Sequence[Mapping[int, SstFile]],
    counts: Mapping[str, int], partitions: Mapping[str, int], positions: Positions,
) -> Manifest:  # fmt: skip
    """Commit a manifest that names the files written of these parts.

    Args:
        files: place of the snapshots.
        before: the newest manifest, or None.
        asked: the app and its stores.
        made_by: author that the manifest names.
        parts: the store partitions that were read.
        written: for each part, the file of each partition of the snapshot.
        counts: number of partitions of each store in the snapshot.
        partitions: partition counts of topics.
        positions: positions of the group.

    Raises:
        StateConflict: another snapshot replaced `before` as the newest.
    """
    held = {name: {n: Part() for n in range(count)} for name, count in counts.items()}
    ids = dict[str, str | None]()
    for part, made in zip(parts, written, strict=True):
        for n, file in made.items():
            chain = held[part.store][n].chain
            held[part.store][n] = Part((*chain, file._replace(full=not chain)))
        if part.log is not None:
            chain = held[part.store][part.partition].chain
            held[part.store][part.partition] = Part(chain, part.log.end)
            ids[part.store] = part.changelog_id
    stores = {
        name: StoreSnapshot(node.layout(counts[name]), held[name], ids.get(name))
        for name, (node, _) in asked.nodes.items()
    }
    manifest = snapshot.manifest_after(
        before, asked.app.conf.id, asked.app.topology().signatures, made_by,
        partitions=partitions, positions=positions, stores=stores,
    )  # fmt: skip
    snapshot.commit(files, manifest, before=before)
    return manifest


def own(part: StoredPart, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
    return np.full(batch.num_rows, part.partition, np.int32)


def write(
    app: str, uri: str, number: int, scratch: str | None, part: StoredPart, places: Places = own
) -> dict[int, SstFile]:
    """Write a full file for each partition that rows of `part` belong to.

    `app` is MODULE[:ATTR]. Index rows are made here, as no changelog has them.

    Returns:
        The files by partition.
    """
    files = open_files(uri)
    node = node_of(app, part.store)
    made = {}
    index: dict[int, list[bytes]] = {}
    with TemporaryDirectory(dir=own_folder(scratch_folder(scratch))) as folder:
        writers: dict[int, SstWriter] = {}
        for batch in part.rows():
            found = places(part, batch)
            for target in np.unique(found).tolist():
                if target not in writers:
                    writers[target] = SstWriter(Path(folder, str(target)))
                rows = batch.filter(pa.array(found == target))
                pairs = zip(*(column.to_pylist() for column in rows.columns), strict=True)
                for row, value in node.indexed(dict(pairs)).items():
                    if row < INDEX:
                        writers[target].put(row, value)
                    else:  # behind all rows
                        index.setdefault(target, []).append(row)
        for target, writer in writers.items():
            for row in sorted(index.get(target, ())):
                writer.put(row, b"")
            finished = writer.finish()
            assert finished is not None, "a writer has rows"
            name = snapshot.sst_name(part.store, target, number)
            files.publish(Path(folder, str(target)), name)
            made[target] = SstFile(name, *finished, full=True)
    return made


def sizes(manifest: Manifest) -> dict[str, int]:
    """Return a manifest's number, and how many tasks, rows and bytes it names, for display."""
    parts = list(manifest.parts())
    files = [file for part in parts for file in part.chain]
    return {
        "number": manifest.number,
        "tasks": len(parts),
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.bytes for file in files),
    }
