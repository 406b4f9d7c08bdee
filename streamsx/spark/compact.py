"""Changelogs into a snapshot: the newest row of each key, one full file per store partition.

A new host that would replay a long changelog takes the files instead (`worker --snapshot`), and
goes on in the changelog where they end. Workers may be at work meanwhile.

Not here: how a store is read (`stored`), when old snapshots are removed.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamsx.spark.checkout import scratch_folder
from streamsx.spark.stored import AskedStores, StoredPart, asked_stores, in_changelogs, of_each
from streamsx.state.snapshot import (
    Manifest,
    Part,
    Position,
    SstFile,
    SstWriter,
    StoreSnapshot,
    commit,
    expect,
    manifest_after,
    newest,
    sst_name,
)
from streamsx.state.snapshot_files import SnapshotFiles, open_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Places = Callable[[StoredPart, pa.RecordBatch], npt.NDArray[np.int32]]
"""The partition of each row in the snapshot that is written."""


def compact(
    app: str,
    uri: str,
    *,
    brokers: str | None = None,
    stores: Collection[str] | None = None,
    positions: Mapping[str, Mapping[int, Position]] | None = None,
    spark: "SparkSession | None" = None,
    scratch: str | None = None,
) -> Manifest:
    """The next snapshot under `uri`, of the app MODULE[:ATTR]. `brokers`: others than the app's;
    `positions`: of the group, when nobody is at work. Without a session all is done here.

    Raises UsageError, IncompatibleStore, NotFound, WorldError, before anything is written;
    StateConflict.
    """
    asked, files = asked_stores(app, stores), open_files(uri)
    last = last_of(files, asked)
    number = last.number + 1 if last else 0
    counts, parts = in_changelogs(asked, brokers)
    made = of_each(spark, partial(write, uri, number, scratch), parts)
    held: dict[str, dict[int, Part]] = {name: {} for name in asked.nodes}
    for part, written in zip(parts, made, strict=True):
        held[part.store][part.partition] = Part(tuple(written.values()), part.log.end)
    return commit_stores(files, asked, "compact", last, counts, held, positions or {})


def last_of(files: SnapshotFiles, asked: AskedStores) -> Manifest | None:
    """The newest one where another is to be written. Raises IncompatibleStore for another app's."""
    last = newest(files)
    if last is not None:
        remedy = "write to a place of its own"
        expect("snapshots of another app", files.uri, asked.app.conf.id, last.app, remedy)
    return last


def write(
    uri: str, number: int, scratch: str | None, part: StoredPart, places: Places | None = None
) -> dict[int, SstFile]:
    """A full file for each partition that rows of this one belong to; by partition, without
    `places` its own.
    """
    files = open_files(uri)
    with TemporaryDirectory(dir=scratch_folder(scratch)) as folder:
        writers: dict[int, SstWriter] = {}
        for target, rows in _by_place(part, places):
            if target not in writers:
                writers[target] = SstWriter(Path(folder, str(target)))
            put = writers[target].put
            for key, value in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                put(key, value)
        done = {target: writer.finish() for target, writer in writers.items()}
        made = {}
        for target, finished in done.items():
            assert finished is not None, "a writer has rows"
            name = sst_name(part.store, target, number)
            files.publish(Path(folder, str(target)), name)
            made[target] = SstFile(name, *finished, full=True)
    return made


def _by_place(part: StoredPart, places: Places | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in part.rows():
        if places is None:
            yield part.partition, batch
            continue
        found = places(part, batch)
        for target in np.unique(found).tolist():
            yield target, batch.filter(pa.array(found == target))


def commit_stores(
    files: SnapshotFiles,
    asked: AskedStores,
    made_by: str,
    last: Manifest | None,
    counts: Mapping[str, int],
    stores: Mapping[str, Mapping[int, Part]],
    positions: Mapping[str, Mapping[int, Position]],
) -> Manifest:
    """The manifest after `last`. Raises StateConflict."""
    app = asked.app
    manifest = manifest_after(
        last, app.conf.id, app.topology().signatures, made_by,
        partitions=counts,
        positions=positions,
        stores={
            name: StoreSnapshot(asked.nodes[name][0].layout(len(parts)), parts)
            for name, parts in stores.items()
        },
    )  # fmt: skip
    commit(files, manifest, before=last)
    return manifest


def sizes(manifest: Manifest) -> dict[str, int]:
    """For people: how much it names."""
    parts: Sequence[Part] = [p for s in manifest.stores.values() for p in s.partitions.values()]
    files = [file for part in parts for file in part.chain]
    return {
        "number": manifest.number,
        "tasks": len(parts),
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.bytes for file in files),
    }
