"""State as files: for each store partition a chain of SST files, and one manifest that names them.

    URI/manifests/000000000041.json
    URI/sst/{store}/{partition}/000000000041-{uuid4 hex}.sst

Files hold the rows of a store under their local keys, ascending; never what a store says of
itself. The first file of a chain is full, the others are deltas with tombstones; the later wins. A
file that no manifest names is garbage and does no harm, so whoever writes may die at any point. The
manifest is the commit: the newest counts.

Not here: where the files lie (`snapshot_files`), who writes one, when a worker takes one.
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
MAY_BE_ABSENT: Final = frozenset({"stream_time", "high", "readers", "changelog_id"})
DIGITS: Final = 12
MANIFEST_NAME: Final = re.compile(rf"(\d{{{DIGITS}}})\.json")
SST_NAME: Final = re.compile(rf"sst/[A-Za-z0-9._-]+/\d+/(\d{{{DIGITS}}})-[0-9a-f]{{32}}\.sst")
BUILD_BYTES: Final = 1 << 20
"""For a database that takes whole files and two rows."""
RUNNING: Final = 1
"""SST files of an attempt that is under way carry the number after the newest, or a later one."""


class SstFile(NamedTuple):
    """`file`: its name under the URI; `rows`: with tombstones; `full`: nothing lies below it."""

    file: str
    rows: int
    bytes: int
    crc32c: int
    full: bool


class Part(NamedTuple):
    """One store partition. `changelog_next`: the first offset that is not in it; None: its rows are
    in no changelog.
    """

    chain: tuple[SstFile, ...] = ()
    changelog_next: int | None = None


class Position(NamedTuple):
    """Of a topic partition: the next offset, the task's stream time, the highest timestamp, and
    the next offset of each reader that is ahead of that, as workers have left them.
    """

    next: int
    stream_time: int = -1
    high: int = -1
    readers: Mapping[str, int] = types.MappingProxyType({})


class StoreSnapshot(NamedTuple):
    """`layout`: as the store says of itself, see `StoreNode.layout`; `changelog_id`: of the topic
    that `changelog_next` is of, as hex, so that one that was made anew is not taken for it.
    """

    layout: str
    partitions: Mapping[int, Part]
    changelog_id: str | None = None


@dataclass(frozen=True)
class Manifest:
    """`partitions`: how many each topic has; `positions`: by topic and partition; `stores`: by
    name. Fields of a later version are left out: whether they still hold, that one knows.
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
        """Raises IncompatibleStore for what is none, or of a later format."""
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
    """What is in it by names, and a layout as what it says."""
    return orjson.dumps(value, _named, orjson.OPT_NON_STR_KEYS)


def _named(value: Any) -> Mapping[str, object]:
    found: dict[str, object] = value._asdict()
    if isinstance(value, StoreSnapshot):
        found["format"] = orjson.Fragment(found.pop("layout"))  # type: ignore[arg-type]  # text
    if isinstance(value, Position) and not value.readers:
        del found["readers"]
    return found


def typed(kind: Any, value: Any) -> Any:
    """By annotations, without the fields of a later version. Raises KeyError, TypeError, ValueError
    for anything else.
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


# -- the newest one


def newest(files: SnapshotFiles) -> Manifest | None:
    """Raises IncompatibleStore, SnapshotFailed."""
    found = numbers(files)
    return read(files, found[-1]) if found else None


def newest_there(files: SnapshotFiles) -> Manifest:
    """Raises NotFound where there is none, as `newest`."""
    if (manifest := newest(files)) is None:
        raise NotFound(
            f"no snapshot: {files.uri}: expected {MANIFESTS}/NUMBER.json, found none: make one"
        )
    return manifest


def numbers(files: SnapshotFiles) -> list[int]:
    """Of all manifests, ascending."""
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
    """The next one, made now. `signatures`: of the app's topology; `run`: without it, one of its
    own.
    """
    versions = {"streamsx": streamsx.__version__}
    versions.update(("pyspark", each.version) for each in metadata.distributions(name="pyspark"))
    return Manifest(
        app, str(list(signatures)), before.number + 1 if before else 0, run or uuid.uuid4().hex,
        made_by, int(SystemClock().wall() * 1000), versions, partitions, positions, stores,
    )  # fmt: skip


def commit(files: SnapshotFiles, manifest: Manifest, *, before: Manifest | None) -> None:
    """From here on it counts. Raises StateConflict when the newest is not `before`, which another
    run may have replaced by one with its number; IncompatibleStore, SnapshotFailed.
    """
    expect_newest(files, before)
    try:
        files.create(manifest_name(manifest.number), manifest.to_json())
    except FileExistsError:
        found = read(files, manifest.number)
        if _told(found) != _told(manifest):  # else the answer was lost, and it was asked for again
            raise _conflict(files, before, found) from None


def expect_newest(files: SnapshotFiles, before: Manifest | None) -> None:
    """Raises StateConflict where it is not `before`; IncompatibleStore, SnapshotFailed."""
    if _told(found := newest(files)) != _told(before):
        raise _conflict(files, before, found)


def _conflict(
    files: SnapshotFiles, before: Manifest | None, found: Manifest | None
) -> StateConflict:
    return StateConflict(
        f"state with two writers: {files.uri}: expected {_told(before)} to be the newest, found "
        f"{_told(found)}: stop one of them"
    )


def _told(manifest: Manifest | None) -> str:
    if manifest is None:
        return "no snapshot"
    return f"snapshot {manifest.number}, made by run {manifest.run}"


def collect_garbage(files: SnapshotFiles, keep: int) -> None:
    """Manifests but the newest `keep`, and what none of those names; nothing of a running attempt.
    One that is none names nothing.

    Raises SnapshotFailed: what is left then is found the next time.
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


# -- whether one fits


def expect(what: str, where: str, expected: object, found: object, remedy: str) -> None:
    """Raises IncompatibleStore where they differ."""
    if expected != found:
        raise IncompatibleStore(f"{what}: {where}: expected {expected}, found {found}: {remedy}")


def refuse_other(
    manifest: Manifest, uri: str, app: str, layouts: Mapping[str, str], counts: Mapping[str, int]
) -> None:
    """Whether it is of this app as it is now: the layouts of these stores, and how many partitions
    these topics have, as far as it knows them. Raises IncompatibleStore.
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
    """What a worker has of one store partition. `partitions`: of the topics of its task; `start`,
    `end`, `changelog_id`: of its changelog; `told_since_ms`: what was deleted before may have left
    no tombstone in it.
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
    """The part that an empty store may begin with, and the changelog's offset after it.

    Another topology alone is no reason: adding a filter must not cost a restore. Raises
    IncompatibleStore, SnapshotNotPublished.
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
    if next_ + 1 < wanted.end and late_ms > 0:  # one more: a marker, or what no cleaner has taken
        raise IncompatibleStore(
            f"snapshot too old: {where}: by {late_ms / 3_600_000:.1f} h: what was deleted since "
            "has left no tombstone in the changelog, by its delete.retention.ms: make a newer one"
        )
    return part, next_


# -- SST files


def sst_name(store: str, partition: int, number: int) -> str:
    """A fresh one; `number` is that of the manifest which may name it."""
    return f"sst/{store}/{partition}/{number:0{DIGITS}}-{uuid.uuid4().hex}.sst"


class SstWriter:
    """One file, of rows in ascending order of their keys; None is a tombstone. lz4: a fifth of the
    bytes where rows are alike, for no time; zstd, a tenth of them, costs a sixth more.
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
        """Rows, bytes and checksum; None without a row, and there is no file then."""
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
    """One file of a chain, as it was written; StoreCorrupt for a torn one, SnapshotFailed."""
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
    """The next file of a chain: it wins. It is in the database afterwards, and not where it was.
    Holds the GIL for 8-14 ms.
    """
    how = IngestExternalFileOptions()
    how.set_move_files(True)
    db.ingest_external_file([str(path)], how)


def build(
    files: SnapshotFiles, part: Part, position: int, folder: Path, layout: str, step: Step = bool
) -> None:
    """A whole store in a new folder, which goes on in its changelog at `position`.

    `step` is called after each file and chunk; whatever is raised, no folder is left. Raises
    StoreCorrupt, SnapshotFailed, DiskFailed.
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
