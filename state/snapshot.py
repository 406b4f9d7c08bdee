"""Snapshots of state as files: a chain of SST files per store partition, listed by a manifest.

    URI/manifests/000000000041.json
    URI/sst/{store}/{partition}/000000000041-{uuid4 hex}.sst

Files hold the rows of a store under their local keys, ascending, without the META rows. The first
file of a chain is full, the others are deltas with tombstones; the later file wins. A file that no
manifest names is garbage and does no harm, so a writer may die at any point. The manifest is the
commit: the newest counts.

Out of scope: the place of the files (`snapshot_files`), the writers, the use by workers.
"""

import builtins
import json
import re
import shutil
import types
import uuid
from collections import abc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args, get_origin

import orjson
from crc32c import crc32c
from rocksdict import (
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SstFileWriter,
    WriteBatch,
)

import streamsx
from streamsx.clock import SystemClock
from streamsx.errors import (
    IncompatibleStore,
    NotFound,
    SnapshotNotPublished,
    StateConflict,
    StoreCorrupt,
)
from streamsx.state import disk
from streamsx.state.api import FORMAT, POSITION, position_row
from streamsx.state.rocks import RocksMemory, options, table_options, translate_errors
from streamsx.state.snapshot_files import CHUNK_BYTES, SnapshotFiles, Step

MANIFEST_FORMAT: Final = 1
ANEW: Final = "delete it, or make one in a new place"
MANIFESTS: Final = "manifests"
MAY_BE_ABSENT: Final = frozenset(
    {"stream_time", "high", "readers", "closed", "told", "changelog_id"}
)
DIGITS: Final = 12
MANIFEST_NAME: Final = re.compile(rf"(\d{{{DIGITS}}})\.json")
SST_NAME: Final = re.compile(rf"sst/[A-Za-z0-9._-]+/\d+/(\d{{{DIGITS}}})-[0-9a-f]{{32}}\.sst")
BUILD_BYTES: Final = 1 << 20
"""Memory of a database that takes whole files and two rows."""
RUNNING: Final = 1
"""Margin of numbers below the newest manifest within which garbage collection keeps files.

SST files of an attempt that is under way carry the number after the newest, or a later one.
"""


class SstFile(NamedTuple):
    """File of a chain.

    `file`: name under the URI; `rows`: tombstones included; `full`: there is no file below this
    one.
    """

    file: str
    rows: int
    bytes: int
    crc32c: int
    full: bool


class Part(NamedTuple):
    """State of one store partition.

    `changelog_next`: the first offset that is not in the state; None: the rows are in no changelog.
    """

    chain: tuple[SstFile, ...] = ()
    changelog_next: int | None = None


class Position(NamedTuple):
    """Position in a topic partition, as workers have left it.

    The fields are the next offset, the task's stream time, the highest timestamp, the next offset
    of each reader that is ahead of that offset, the stream time up to which each store of the task
    has closed, by the mark of the store, and the times that the writers of the topic had told, by
    their stage, as in the metadata of a worker's commit.
    """

    next: int
    stream_time: int = -1
    high: int = -1
    readers: Mapping[str, int] = types.MappingProxyType({})
    closed: Mapping[str, int] = types.MappingProxyType({})
    told: Mapping[str, tuple[int | None, ...]] = types.MappingProxyType({})


class StoreSnapshot(NamedTuple):
    """Snapshot of one store.

    `layout`: the store's format text, see `StoreNode.layout`. `changelog_id`: id of the topic of
    `changelog_next`, as hex, so that a topic that was created anew is not taken for the old one.
    """

    layout: str
    partitions: Mapping[int, Part]
    changelog_id: str | None = None


@dataclass(frozen=True)
class Manifest:
    """Content of a manifest.

    `partitions`: number of partitions of each topic; `positions`: by topic and partition; `stores`:
    by name. Fields of a later version are dropped, because only that version knows if they still
    hold.
    """

    app: str
    topology: str
    number: int
    run: str
    made_by: str
    made_at_ms: int
    versions: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)
    positions: Mapping[str, Mapping[int, Position]] = field(default_factory=dict)
    stores: Mapping[str, StoreSnapshot] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return to_json({"format": MANIFEST_FORMAT, **vars(self)})

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "Manifest":
        """Parse a manifest.

        Raises:
            IncompatibleStore: the document is no manifest, or has a later format.
        """
        try:
            document = orjson.loads(data)
            if (found := document["format"]) == MANIFEST_FORMAT:
                made: Manifest = typed(cls, document)
                for part in made.parts():
                    for at, sst in enumerate(part.chain):
                        if not SST_NAME.fullmatch(sst.file) or not (at or sst.full):
                            raise ValueError(f"file {at} of a chain: {sst}")
                return made
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise IncompatibleStore(f"not a manifest: {where}: {what}: {ANEW}") from error
        raise IncompatibleStore(
            f"snapshot in another format: {where}: expected {MANIFEST_FORMAT}, found {found!r}: "
            f"read it with the version that wrote it, or {ANEW}"
        )

    def parts(self) -> Iterator[Part]:
        return (part for store in self.stores.values() for part in store.partitions.values())


def to_json(value: object) -> bytes:
    """Encode named tuples by field names, and a layout as the JSON that it holds."""
    return orjson.dumps(value, _named, orjson.OPT_NON_STR_KEYS)


def _named(value: Any) -> Mapping[str, object]:
    found: dict[str, object] = value._asdict()
    if isinstance(value, StoreSnapshot):
        found["format"] = orjson.Fragment(found.pop("layout"))  # type: ignore[arg-type]  # text
    if isinstance(value, Position):
        for name in ("readers", "closed", "told"):
            if not found[name]:
                del found[name]
    return found


def typed(kind: Any, value: Any) -> Any:
    """Build a value of type `kind` by annotations, without the fields of a later version.

    Raises:
        KeyError, TypeError, ValueError: the value does not fit.
    """
    of = get_args(kind)
    match get_origin(kind):
        case types.UnionType:
            return None if value is None else typed(of[0], value)
        case abc.Mapping:
            return {of[0](name): typed(of[1], each) for name, each in value.items()}
        case builtins.tuple if isinstance(value, list):
            return tuple(typed(of[0], each) for each in value)
    if kind is StoreSnapshot:
        value = {**value, "layout": json.dumps(value["format"], separators=(",", ":"))}
    if hasattr(kind, "__annotations__"):
        names = [n for n in kind.__annotations__ if n in value or n not in MAY_BE_ABSENT]
        return kind(**{name: typed(kind.__annotations__[name], value[name]) for name in names})
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, found {value!r}")
    return value


# -- the newest manifest


def newest(files: SnapshotFiles) -> Manifest | None:
    """Return the newest manifest, or None if there is none.

    Raises:
        IncompatibleStore, SnapshotFailed: it cannot be read.
    """
    found = numbers(files)
    return read(files, found[-1]) if found else None


def newest_there(files: SnapshotFiles) -> Manifest:
    """Return the newest manifest.

    Raises:
        NotFound: there is none; the other errors are those of `newest`.
    """
    if (manifest := newest(files)) is None:
        raise NotFound(
            f"no snapshot: {files.uri}: expected {MANIFESTS}/NUMBER.json, found none: make one"
        )
    return manifest


def numbers(files: SnapshotFiles) -> list[int]:
    """Return the numbers of all manifests, ascending."""
    named = map(MANIFEST_NAME.fullmatch, files.names(MANIFESTS))
    return [int(name[1]) for name in named if name]


def manifest_name(number: int) -> str:
    return f"{MANIFESTS}/{number:0{DIGITS}}.json"


def read(files: SnapshotFiles, number: int) -> Manifest:
    where = f"{files.uri}/{manifest_name(number)}"
    manifest = Manifest.from_json(files.read(manifest_name(number)), where)
    expect("snapshot of another number", where, number, manifest.number, ANEW)
    return manifest


def manifest_after(
    before: Manifest | None,
    app: str,
    signatures: Sequence[int],
    made_by: str,
    *,
    partitions: Mapping[str, int],
    positions: Mapping[str, Mapping[int, Position]],
    stores: Mapping[str, StoreSnapshot],
    run: str | None = None,
) -> Manifest:
    """Return the manifest after `before`, made now.

    `signatures`: those of the app's topology. `run`: by default a new id.
    """
    versions = {"streamsx": streamsx.__version__}
    versions.update(("pyspark", each.version) for each in metadata.distributions(name="pyspark"))
    return Manifest(
        app, str(list(signatures)), before.number + 1 if before else 0, run or uuid.uuid4().hex,
        made_by, int(SystemClock().wall() * 1000), versions, partitions, positions, stores,
    )  # fmt: skip


def commit(files: SnapshotFiles, manifest: Manifest, *, before: Manifest | None) -> None:
    """Write a manifest, which is the newest from then on.

    Raises:
        StateConflict: the newest is not `before`; another run may have written one with that
            number.
        IncompatibleStore, SnapshotFailed: the newest cannot be read, or this one not written.
    """
    expect_newest(files, before)
    try:
        files.create(manifest_name(manifest.number), manifest.to_json())
    except FileExistsError:
        found = read(files, manifest.number)
        # Equal: the first answer was lost, and the request was sent again.
        if _label(found) != _label(manifest):
            raise _conflict(files, before, found) from None


def expect_newest(files: SnapshotFiles, before: Manifest | None) -> None:
    """Check that `before` is the newest manifest.

    Raises:
        StateConflict: another one is the newest.
        IncompatibleStore, SnapshotFailed: the newest cannot be read.
    """
    if _label(found := newest(files)) != _label(before):
        raise _conflict(files, before, found)


def _conflict(
    files: SnapshotFiles, before: Manifest | None, found: Manifest | None
) -> StateConflict:
    return StateConflict(
        f"state with two writers: {files.uri}: expected {_label(before)} to be the newest, found "
        f"{_label(found)}: stop one of them"
    )


def _label(manifest: Manifest | None) -> str:
    if manifest is None:
        return "no snapshot"
    return f"snapshot {manifest.number}, made by run {manifest.run}"


def collect_garbage(files: SnapshotFiles, keep: int) -> None:
    """Delete all manifests but the newest `keep`, and files that no kept manifest names.

    Files of a running attempt stay. An unreadable manifest names no files.

    Raises:
        SnapshotFailed: a file could not be deleted; the next call deletes the rest.
    """
    found = numbers(files)
    manifests = dict[int, Manifest]()
    for number in found:
        with suppress(IncompatibleStore):
            manifests[number] = read(files, number)
    folders = {
        f"sst/{name}/{partition}"
        for manifest in manifests.values()
        for name, store in manifest.stores.items()
        for partition in store.partitions
    }
    for number in found[:-keep]:
        files.delete(manifest_name(number))
        manifests.pop(number, None)
    kept = {f.file for each in manifests.values() for part in each.parts() for f in part.chain}
    for folder in sorted(folders):
        for name in (f"{folder}/{base}" for base in files.names(folder, drafts=True)):
            made = SST_NAME.match(name)
            if made and name not in kept and int(made[1]) < found[-1] - RUNNING:
                files.delete(name)


# -- checks against an app


def expect(what: str, where: str, expected: object, found: object, remedy: str) -> None:
    """Check that two values are equal.

    Raises:
        IncompatibleStore: the values differ.
    """
    if expected != found:
        raise IncompatibleStore(f"{what}: {where}: expected {expected}, found {found}: {remedy}")


def refuse_other(
    manifest: Manifest, uri: str, app: str, layouts: Mapping[str, str], counts: Mapping[str, int]
) -> None:
    """Check that a snapshot is of this app in its present form.

    The check covers the layouts of these stores and the partition counts of these topics, as far as
    the snapshot knows them.

    Raises:
        IncompatibleStore: something differs.
    """
    known = {topic: manifest.partitions.get(topic, n) for topic, n in counts.items()}
    held = {n: store.layout for n, store in manifest.stores.items() if n in layouts}
    for what, expected, found in (
        ("app", app, manifest.app),
        ("partition count", counts, known),
        ("layout", layouts, held),
    ):
        remedy = "give the snapshot of this app as it is now"
        where = f"{uri}: snapshot {manifest.number}"
        expect(f"snapshot of another {what}", where, expected, found, remedy)


class Wanted(NamedTuple):
    """Facts of a worker about one store partition, to be matched with a snapshot.

    `partitions`: those of the task's topics. `start`, `end`, `changelog_id`: those of the
    changelog. `told_since_ms`: deletes before that time may have left no tombstone in the
    changelog.
    """

    app: str
    store: str
    partition: int
    layout: str
    partitions: Mapping[str, int]
    start: int
    end: int
    changelog_id: str
    told_since_ms: int = 0


def part_for(manifest: Manifest, wanted: Wanted, uri: str) -> tuple[Part, int]:
    """Return the part from which an empty store may begin, and the next changelog offset.

    Another topology alone is no reason to refuse: adding a filter must not cost a restore.

    Raises:
        IncompatibleStore: the snapshot does not fit.
        SnapshotNotPublished: the rows are in no changelog.
    """
    refuse_other(manifest, uri, wanted.app, {}, wanted.partitions)
    where = f"{uri}: snapshot {manifest.number}"
    store = manifest.stores.get(wanted.store) or StoreSnapshot("none", {})
    part = store.partitions.get(wanted.partition, Part())
    name = f"{wanted.store}-{wanted.partition}"
    made_from = store.changelog_id
    names = [f"{each}-{n}" for each, of in manifest.stores.items() for n in of.partitions]
    next_ = part.changelog_next
    within = f"{name} at {wanted.start} to {wanted.end}"
    fits = next_ is None or wanted.start <= next_ <= wanted.end
    for what, expected, found in (
        ("store", name, name if name in names else names),
        ("layout", wanted.layout, store.layout),
        ("changelog", wanted.changelog_id, made_from or wanted.changelog_id),
        ("changelog", within, within if fits else next_),
    ):
        remedy = "make one of this app as it is now"
        expect(f"snapshot of another {what}", where, expected, found, remedy)
    if next_ is None:
        raise SnapshotNotPublished(
            f"snapshot not published: {where}: store {wanted.store} is in no changelog: "
            "streamsx spark handover"
        )
    late_ms = wanted.told_since_ms - manifest.made_at_ms
    # One record more is allowed: a transaction marker, or a record that no cleaner has removed.
    if next_ + 1 < wanted.end and late_ms > 0:
        raise IncompatibleStore(
            f"snapshot too old: {where}: by {late_ms / 3_600_000:.1f} h: what was deleted since "
            "has left no tombstone in the changelog, by its delete.retention.ms: make a newer one"
        )
    return part, next_


# -- SST files


def sst_name(store: str, partition: int, number: int) -> str:
    """Return a fresh file name; `number` is that of the manifest that may name the file."""
    return f"sst/{store}/{partition}/{number:0{DIGITS}}-{uuid.uuid4().hex}.sst"


class SstWriter:
    """Writer of one SST file, of rows in ascending order of keys; None is a tombstone.

    lz4 leaves a fifth of the bytes if rows are alike, at no time; zstd leaves a tenth, and takes a
    sixth more time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows = 0
        made = Options(raw_mode=True)
        made.set_compression_type(DBCompressionType.lz4())
        made.set_block_based_table_factory(table_options())
        self._writer = SstFileWriter(made)
        with translate_errors(path):
            self._writer.open(str(path))

    def put(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            del self._writer[key]
        else:
            self._writer[key] = value
        self._rows += 1

    def finish(self) -> tuple[int, int, int] | None:
        """Finish the file and return rows, bytes and checksum.

        Returns:
            None without a row; then there is no file.
        """
        if not self._rows:
            del self._writer
            self._path.unlink()
            return None
        with translate_errors(self._path):
            self._writer.finish()
        return self._rows, self._path.stat().st_size, checksum(self._path)


def checksum(path: Path, step: Step = bool) -> int:
    found = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            found = crc32c(chunk, found)
            step()
    return found


def fetch(files: SnapshotFiles, sst: SstFile, to: Path, step: Step = bool) -> None:
    """Fetch one file of a chain to `to`, and check size and checksum.

    Raises:
        StoreCorrupt: the file is torn.
        SnapshotFailed: the file cannot be read.
    """
    files.fetch(sst.file, to, step)
    expected = (sst.bytes, sst.crc32c)
    found = (to.stat().st_size, checksum(to, step))
    if found != expected:
        to.unlink()
        raise StoreCorrupt(
            f"torn file in a snapshot: {files.uri}/{sst.file}: expected {expected[0]} bytes with "
            f"checksum {expected[1]}, found {found[0]} with {found[1]}: make the snapshot anew"
        )


def ingest(db: Rdict, path: Path) -> None:
    """Move the next file of a chain into the database, where its rows win.

    The call holds the GIL for 8-14 ms.
    """
    how = IngestExternalFileOptions()
    how.set_move_files(True)
    db.ingest_external_file([str(path)], how)


def build(
    files: SnapshotFiles, part: Part, position: int, folder: Path, layout: str, step: Step = bool
) -> None:
    """Build a complete store in a new folder, to be continued from the changelog at `position`.

    `step` is called after each file and chunk. After any error no folder is left.

    Raises:
        StoreCorrupt, SnapshotFailed, DiskFailed: the files or the disk failed.
    """
    arrived = folder.with_name(folder.name + ".sst")
    memory = RocksMemory(blocks_bytes=BUILD_BYTES, buffers_bytes=BUILD_BYTES)
    try:
        with disk.translate_errors(folder), translate_errors(folder):
            folder.parent.mkdir(exist_ok=True)
            with closing(Rdict(str(folder), options(memory))) as db:
                for sst in part.chain:
                    fetch(files, sst, arrived, step)
                    ingest(db, arrived)
                    step()
                batch = WriteBatch(raw_mode=True)
                batch.put(FORMAT, layout.encode())
                batch.put(POSITION, position_row(position))
                db.write(batch)
                db.flush()
                step()
    except BaseException:
        arrived.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        raise
