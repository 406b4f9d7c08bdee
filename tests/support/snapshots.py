"""Snapshots made from rows without Spark, by the writer that Spark uses.

Not here: the source of the rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from streamsx.state.api import ROW
from streamsx.state.snapshot import (
    Manifest,
    Part,
    Position,
    SstFile,
    SstWriter,
    StoreSnapshot,
    commit,
    manifest_after,
    newest,
    sst_name,
)
from streamsx.state.snapshot_files import open_files

Rows = Mapping[bytes, bytes | None]
"""By their keys in the changelog."""
Log = Iterable[tuple[bytes | None, bytes | None]]


def chain_of(log: Log, cuts: int = 2) -> list[dict[bytes, bytes | None]]:
    """Return a chain with the newest row of each key, from this many pieces of a changelog."""
    records = [(key, value) for key, value in log if key is not None]
    size = -(-len(records) // cuts) or 1
    return [dict(records[at : at + size]) for at in range(0, len(records), size)]


def make(
    uri: str, folder: Path, app: str, store: str, layout: str,
    parts: Mapping[int, tuple[Sequence[Rows], int | None]],
    partitions: Mapping[str, int], positions: Mapping[str, Mapping[int, Position]] | None = None,
) -> Manifest:  # fmt: skip
    """Make the next snapshot under `uri`.

    `parts`: by partition, the rows of each file of the chain, and the next offset of the changelog.
    """
    files = open_files(uri)
    last = newest(files)
    number = last.number + 1 if last else 0
    made = {}
    for partition, (chain, after) in parts.items():
        written = list[SstFile]()
        for rows in chain:
            writer = SstWriter(local := folder / "local.sst")
            full = not written
            for key in sorted(key for key in rows if rows[key] is not None or not full):
                writer.put(ROW + key, rows[key])
            if (found := writer.finish()) is None:
                continue
            files.publish(local, name := sst_name(store, partition, number))
            local.unlink()
            written.append(SstFile(name, *found, full))
        made[partition] = Part(tuple(written), after)
    stores = {store: StoreSnapshot(layout, made)}
    manifest = manifest_after(
        last, app, (), "compact", partitions=partitions, positions=positions or {}, stores=stores
    )
    commit(files, manifest, before=last)
    return manifest
