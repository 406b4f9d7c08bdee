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
from streamsx.state.snapshot_files import open_files

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
    last, positions = newest(files), positions or {}
    if last is not None:
        refuse_less(last, asked, positions, files.uri)
    number = last.number + 1 if last else 0
    counts, parts = in_changelogs(asked, brokers)
    made = of_each(spark, partial(write, uri, number, scratch), parts)
    held: dict[str, dict[int, Part]] = {name: {} for name in asked.nodes}
    ids = {part.store: part.changelog_id for part in parts}
    for part, written in zip(parts, made, strict=True):
        held[part.store][part.partition] = Part(tuple(written.values()), part.log.end)
    made_of = {
        name: StoreSnapshot(node.layout(len(held[name])), held[name], ids.get(name))
        for name, (node, _) in asked.nodes.items()
    }
    manifest = manifest_after(
        last, asked.app.conf.id, asked.app.topology().signatures, "compact",
        partitions=counts, positions=positions, stores=made_of,
    )  # fmt: skip
    commit(files, manifest, before=last)
    return manifest


def refuse_less(
    last: Manifest, asked: AskedStores, positions: Mapping[str, Mapping[int, Position]], uri: str
) -> None:
    """The newest counts: where it says less than the one before, a run would begin anew and count
    twice, or miss a store. Raises IncompatibleStore, for another app's too.
    """
    remedy, where = "write to a place of its own", f"{uri}: snapshot {last.number}"
    expect("snapshots of another app", uri, asked.app.conf.id, last.app, remedy)
    more = sorted(last.stores.keys() - asked.nodes.keys())
    expect("stores that would be dropped", where, [], more, remedy)
    held = [(topic, n) for topic, each in last.positions.items() for n in each]
    more = sorted(f"{topic}-{n}" for topic, n in held if n not in positions.get(topic, {}))
    expect("positions that would be dropped", where, [], more, remedy)


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
