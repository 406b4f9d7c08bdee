"""State as files: for each store partition a chain of SST files, and one manifest that names them.

    URI/manifests/000000000041.json
    URI/sst/{store}/{partition}/000000000041-{uuid4 hex}.sst

Files hold the rows of a store under their local keys, ascending; never what a store says of
itself. The first file of a chain is full, the others are deltas with tombstones; the later wins. A
file that no manifest names is garbage and does no harm, so whoever writes may die at any point. The
manifest is the commit: the newest counts.

Not here: where the files lie (`snapshot_files`), who writes one, when a worker takes one.
"""

import json
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from crc32c import crc32c
from rocksdict import (
    DBCompressionType,
    IngestExternalFileOptions,
    Options,
    Rdict,
    SstFileWriter,
    WriteBatch,
)

from streamsx.errors import (
    IncompatibleStore,
    SnapshotNotPublished,
    StateConflict,
    StoreCorrupt,
)
from streamsx.state import disk
from streamsx.state.api import FORMAT, POSITION, position_row
from streamsx.state.rocks import RocksMemory, options, table_options, told
from streamsx.state.snapshot_files import CHUNK_BYTES, SnapshotFiles, Step

MANIFEST_FORMAT: Final = 1
MANIFESTS: Final = "manifests"
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
    """Of a topic partition: the next offset, the task's stream time, the highest timestamp."""

    next: int
    stream_time: int = -1
    high: int = -1


class StoreSnapshot(NamedTuple):
    """`layout`: as the store says of itself, see `StoreNode.layout`."""

    layout: str
    partitions: Mapping[int, Part]


class Query(NamedTuple):
    """The Spark query that made it: numbers count from `base` within one `token`."""

    token: str
    base: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """`partitions`: how many each topic has; `positions`: by topic and partition; `stores`: by
    name; `others`: fields of a later version, kept.
    """

    app: str
    topology: str
    number: int
    run: str
    made_by: str
    made_at_ms: int
    versions: Mapping[str, str] = field(default_factory=dict)
    query: Query | None = None
    partitions: Mapping[str, int] = field(default_factory=dict)
    positions: Mapping[str, Mapping[int, Position]] = field(default_factory=dict)
    stores: Mapping[str, StoreSnapshot] = field(default_factory=dict)
    others: Mapping[str, object] = field(default_factory=dict)

    def to_json(self) -> bytes:
        document = {"format": MANIFEST_FORMAT, **self.others} | {
            name: getattr(self, name) for name in PLAIN
        }
        document["query"] = self.query and self.query._asdict()
        document["positions"] = {
            topic: {str(n): position._asdict() for n, position in positions.items()}
            for topic, positions in self.positions.items()
        }
        document["stores"] = {
            name: {
                "format": json.loads(store.layout),
                "partitions": {
                    str(n): {
                        "chain": [file._asdict() for file in part.chain],
                        "changelog_next": part.changelog_next,
                    }
                    for n, part in store.partitions.items()
                },
            }
            for name, store in self.stores.items()
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> "Manifest":
        """Raises IncompatibleStore for what is none, or of a later format."""
        try:
            document = json.loads(data)
            if (found := document["format"]) == MANIFEST_FORMAT:
                return cls(**_fields(document))
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            what = f"{type(error).__name__}: {error}"
            raise IncompatibleStore(
                f"not a manifest: {where}: {what}: make the snapshot anew"
            ) from error
        raise IncompatibleStore(
            f"snapshot in another format: {where}: expected {MANIFEST_FORMAT}, found {found!r}: "
            "read it with the version that wrote it, or make it anew"
        )


PLAIN: Final[Mapping[str, type]] = {
    "app": str, "topology": str, "number": int, "run": str, "made_by": str, "made_at_ms": int,
    "versions": dict, "partitions": dict,
}  # fmt: skip
"""Fields that are in the document as they are."""


def _fields(document: dict[str, Any]) -> dict[str, Any]:
    """By the names of Manifest. Raises KeyError, TypeError, ValueError."""
    query = document.get("query")
    known = {*PLAIN, "format", "query", "positions", "stores"}
    plain = _typed(PLAIN, document)
    _typed(dict.fromkeys(plain["partitions"], int), plain["partitions"])
    return {
        **plain,
        "query": query and _made(Query, query),
        "positions": {
            topic: {int(n): _made(Position, each) for n, each in positions.items()}
            for topic, positions in document["positions"].items()
        },
        "stores": {
            name: StoreSnapshot(
                json.dumps(store["format"], separators=(",", ":")),
                {int(n): _part(each) for n, each in store["partitions"].items()},
            )
            for name, store in document["stores"].items()
        },
        "others": {name: value for name, value in document.items() if name not in known},
    }


def _part(document: dict[str, Any]) -> Part:
    chain = tuple(_made(SstFile, each) for each in document["chain"])
    for file in chain:
        if not SST_NAME.fullmatch(file.file):
            raise ValueError(f"not the name of a file of a chain: {file.file!r}")
    if chain and not chain[0].full:
        raise ValueError(f"a chain begins with a delta: {chain[0].file}")
    _typed({"changelog_next": int | None}, document)
    return Part(chain, document["changelog_next"])


def _made(kind: Any, document: dict[str, Any]) -> Any:
    """Without the fields of a later version."""
    types = {name: each for name, each in kind.__annotations__.items() if name in document}
    return kind(**_typed(types, document))


def _typed(types: Mapping[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    for name, expected in types.items():
        if not isinstance(document[name], expected):
            raise TypeError(f"{name} is {document[name]!r}")
    return {name: document[name] for name in types}


# -- the newest one


def newest(files: SnapshotFiles) -> Manifest | None:
    """Raises IncompatibleStore, SnapshotFailed."""
    found = numbers(files)
    return read(files, found[-1]) if found else None


def numbers(files: SnapshotFiles) -> list[int]:
    """Of all manifests, ascending."""
    named = map(MANIFEST_NAME.fullmatch, files.names(MANIFESTS))
    return [int(name[1]) for name in named if name]


def manifest_name(number: int) -> str:
    return f"{MANIFESTS}/{number:0{DIGITS}}.json"


def read(files: SnapshotFiles, number: int) -> Manifest:
    name = manifest_name(number)
    return Manifest.from_json(files.read(name), f"{files.uri}/{name}")


def commit(files: SnapshotFiles, manifest: Manifest, *, before: int | None) -> None:
    """From here on it counts. Raises StateConflict when the newest is not `before`."""
    found = numbers(files)
    last = found[-1] if found else None
    assert before is None or manifest.number > before
    try:
        if last == before:
            files.create(manifest_name(manifest.number), manifest.to_json())
            return
    except FileExistsError:
        last = manifest.number
    other = f"made by run {read(files, last).run}" if last is not None else "gone"
    raise StateConflict(
        f"state with two writers: {files.uri}: expected {_told(before)} to be the newest, found "
        f"{_told(last)}, {other}: stop one of them"
    )


def _told(number: int | None) -> str:
    return "no snapshot" if number is None else f"snapshot {number}"


def collect_garbage(files: SnapshotFiles, keep: int) -> None:
    """Manifests but the newest `keep`, and what none of those names; nothing of a running attempt.

    Raises SnapshotFailed: what is left then is found the next time.
    """
    found = numbers(files)
    if not found:
        return
    kept, doomed = [read(files, n) for n in found[-keep:]], found[:-keep]
    folders = {
        f"sst/{name}/{partition}"
        for manifest in (*kept, *(read(files, n) for n in doomed))
        for name, store in manifest.stores.items()
        for partition in store.partitions
    }
    named = {
        file.file
        for manifest in kept
        for store in manifest.stores.values()
        for part in store.partitions.values()
        for file in part.chain
    }
    for number in doomed:
        files.delete(manifest_name(number))
    for folder in sorted(folders):
        for name in (f"{folder}/{base}" for base in files.names(folder)):
            made = SST_NAME.fullmatch(name)
            if made and name not in named and int(made[1]) < found[-1] - RUNNING:
                files.delete(name)


# -- whether one fits


class Wanted(NamedTuple):
    """What a worker has of one store partition. `partitions`: of the topics of its task; `start`,
    `end`: of its changelog.
    """

    app: str
    store: str
    partition: int
    layout: str
    partitions: Mapping[str, int]
    start: int
    end: int


def part_for(manifest: Manifest, wanted: Wanted, uri: str) -> tuple[Part, int]:
    """The part that an empty store may begin with, and the changelog's offset after it.

    Another topology alone is no reason: adding a filter must not cost a restore. Raises
    IncompatibleStore, SnapshotNotPublished.
    """
    where = f"{uri}: snapshot {manifest.number}"
    store = manifest.stores.get(wanted.store)
    counts = {topic: manifest.partitions.get(topic, n) for topic, n in wanted.partitions.items()}
    for what, expected, found in (
        ("app", wanted.app, manifest.app),
        ("store", wanted.store, wanted.store if store else sorted(manifest.stores)),
        ("layout", wanted.layout, store and store.layout),
        ("partition counts", dict(wanted.partitions), counts),
    ):
        if expected != found:
            raise IncompatibleStore(
                f"snapshot of another {what}: {where}: expected {expected}, found {found}: give "
                "the snapshot of this app as it is now"
            )
    assert store is not None
    if wanted.partition not in store.partitions:
        raise IncompatibleStore(
            f"snapshot without a partition: {where}: expected {wanted.store}-{wanted.partition}, "
            f"found {sorted(store.partitions)}: make it anew"
        )
    part = store.partitions[wanted.partition]
    if (next_ := part.changelog_next) is None:
        raise SnapshotNotPublished(
            f"snapshot not published: {where}: store {wanted.store} is in no changelog: "
            "streamsx spark handover"
        )
    if not wanted.start <= next_ <= wanted.end:
        raise IncompatibleStore(
            f"snapshot of another changelog: {where}: expected store {wanted.store}-"
            f"{wanted.partition} to go on within {wanted.start} to {wanted.end}, found {next_}: "
            "make it anew"
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
        self._path, self._rows = path, 0
        made = Options(raw_mode=True)
        made.set_compression_type(DBCompressionType.lz4())
        made.set_block_based_table_factory(table_options())
        self._writer = SstFileWriter(made)
        with told(path):
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
        with told(self._path):
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
    expected, found = (sst.bytes, sst.crc32c), (to.stat().st_size, checksum(to, step))
    if found != expected:
        to.unlink()
        raise StoreCorrupt(
            f"torn file in a snapshot: {files.uri}/{sst.file}: expected {expected[0]} bytes with "
            f"checksum {expected[1]}, found {found[0]} with {found[1]}: make the snapshot anew"
        )


def ingest(db: Rdict, paths: Sequence[Path], *, move: bool = True) -> None:
    """In the order of their chain; the later wins. Moved, a file is in the database afterwards, and
    not where it was. Holds the GIL for 8-14 ms a file.
    """
    how = IngestExternalFileOptions()
    how.set_move_files(move)
    for path in paths:
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
        with disk.told(folder), told(folder):
            folder.parent.mkdir(exist_ok=True)
            with closing(Rdict(str(folder), options(memory))) as db:
                for sst in part.chain:
                    fetch(files, sst, arrived, step)
                    ingest(db, [arrived])
                    step()
                batch = WriteBatch(raw_mode=True)
                batch.put(FORMAT, layout.encode())
                batch.put(POSITION, position_row(position))
                db.write(batch)
                db.flush()
    except BaseException:
        arrived.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        raise
