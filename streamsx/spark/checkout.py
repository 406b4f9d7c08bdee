"""State of a task on an executor: a database of a committed chain of files, and the new rows.

A database holds exactly the files of one chain and receives no other writes. Each database belongs
to one process and stays open there, because the next batch usually only adds a file. Spark may run
any task in any process, so each host fetches a file once, into a cache beside the databases. Spark
kills idle processes, so the next process removes the folders of dead ones.

    SCRATCH/{pid}/{n}           databases of a process, and the files that the process writes
    SCRATCH/sst/{uri}/...       files of this host; each use checks the checksum

Not here: the choice of the committed chain, the rows that a task writes.
"""

import errno
import os
import shutil
import socket
import tempfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import cache
from heapq import merge
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Final

from streamsx.spark.plan import STORES_MAX
from streamsx.state.api import END, POSITION, ROW, Rows, position_row
from streamsx.state.rocks import RocksMemory, RocksRows, translate_errors
from streamsx.state.snapshot import DIGITS, SstFile, SstWriter, checksum, fetch, ingest, sst_name
from streamsx.state.snapshot_files import SnapshotFiles, place

CHAIN_MAX: Final = 16
BLOCKS_BYTES: Final = 64 << 20
BUFFERS_BYTES: Final = 8 << 20
"""Small write buffers: a database receives whole files, and only two rows of its own."""

Chain = tuple[SstFile, ...]


class HeldChain(RocksRows):
    """Database of this process that holds a chain of files."""

    chain: Chain = ()

    def add(self, sst: SstFile, cached: Path) -> None:
        """Append the next file to the chain."""
        link = self.path.with_name(f"{self.path.name}.sst")
        with translate_errors(self.path):
            link.unlink(missing_ok=True)  # left by an ingest that failed, as on a full disk
            place(cached, link)
            ingest(self._db, link)
        self.chain = (*self.chain, sst)

    def discard(self) -> None:
        self._db.close()
        shutil.rmtree(self.path)


_HELD: Final[OrderedDict[tuple[str, str, int], HeldChain]] = OrderedDict()
"""Open databases of this process by URI, store and partition, the least recently used one first."""
_NAMES: Final = count()


@cache
def _memory() -> RocksMemory:
    return RocksMemory(blocks_bytes=BLOCKS_BYTES, buffers_bytes=BUFFERS_BYTES)


def scratch_folder(given: str | None) -> Path:
    """Return the scratch folder of this host and user, made if missing.

    The name holds the host because hosts may share a disk, and a process id of one host means
    nothing on another. The driver passes the same `given` to all hosts.
    """
    spark = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    found = given or os.environ.get("STREAMSX_SCRATCH") or spark or tempfile.gettempdir()
    folder = Path(found, f"streamsx-{os.getuid()}-{socket.gethostname()}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def checkout(
    files: SnapshotFiles, scratch: Path, store: str, partition: int, chain: Chain
) -> HeldChain:
    """Return the database that holds exactly this chain.

    Raises:
        StoreCorrupt, SnapshotFailed: a file cannot be fetched or opened.
    """
    key = files.uri, store, partition
    held = _HELD.pop(key, None)
    if held is not None and held.chain != chain[: len(held.chain)]:
        held.discard()
        held = None
    held = held or HeldChain(own_folder(scratch) / str(next(_NAMES)), _memory(), "snapshot")
    _HELD[key] = held
    for sst in chain[len(held.chain) :]:
        for last in (False, False, True):
            try:
                held.add(sst, _cached(files, scratch, sst))
                break
            except FileNotFoundError:  # a run began the chain anew, and a process removed the file
                if last:
                    raise
    if chain:
        _forget(cache_place(files, scratch, chain[0].file))
    while len(_HELD) > STORES_MAX:
        _HELD.popitem(last=False)[1].discard()
    return held


def discard_all() -> None:
    """Discard all databases of this process, as in a new process."""
    while _HELD:
        _HELD.popitem()[1].discard()


def cache_place(files: SnapshotFiles, scratch: Path, name: str) -> Path:
    """Return the path of a file in the cache that all processes of this host share."""
    path = scratch / "sst" / f"{zlib.crc32(files.uri.encode()):08x}" / name.removeprefix("sst/")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _cached(files: SnapshotFiles, scratch: Path, sst: SstFile) -> Path:
    """Return the cached path of a file, fetched first if missing or if its checksum is wrong.

    The check finds files that this host's disk corrupted. The check costs 0.02 % of a task's CPU;
    when a new process opens 71 MiB, the check takes 11 ms of 19 ms.
    """
    path = cache_place(files, scratch, sst.file)
    if not path.exists() or checksum(path) != sst.crc32c:
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)  # left by an earlier process with our pid
        fetch(files, sst, draft)
        draft.replace(path)
    return path


def _forget(first: Path) -> None:
    """Remove a store partition's cached files older than the first file of the chain."""
    for each in first.parent.iterdir():
        if each.name[:DIGITS] < first.name[:DIGITS]:
            each.unlink(missing_ok=True)


def own_folder(scratch: Path) -> Path:
    """Return the folder of this process."""
    return _begun(scratch, os.getpid())


@cache
def _begun(scratch: Path, pid: int) -> Path:
    """Make this process's folder, and remove those of dead processes and of one with our pid."""
    for folder in scratch.iterdir():
        if folder.name.isdigit() and (int(folder.name) == pid or _is_gone(int(folder.name))):
            shutil.rmtree(folder, ignore_errors=True)  # another process may remove the folder too
    own = scratch / str(pid)
    own.mkdir(exist_ok=True)
    return own


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.ESRCH  # any other error: the process runs, as another user
    return False


class SnapshotRows(Rows):
    """Rows of one attempt: a committed chain, and above the chain the rows written since.

    `number` is the number of the snapshot that may name the attempt's files.
    """

    def __init__(
        self,
        files: SnapshotFiles,
        scratch: Path,
        store: str,
        partition: int,
        chain: Chain,
        number: int,
    ) -> None:
        self._place = files, scratch, store, partition
        self._number = number
        self._below = checkout(*self._place, chain)
        self._new: dict[bytes, bytes | None] = {}

    @property
    def chain(self) -> Chain:
        """Return the chain, with the files that were spilled."""
        return self._below.chain

    def get(self, key: bytes) -> bytes | None:
        return self._new[key] if key in self._new else self._below.get(key)

    def scan(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        within = (key for key in self._new if start <= key and (stop is None or key < stop))
        new = [(key, self._new[key]) for key in sorted(within)]
        last = None
        for key, value in merge(new, self._below.scan(start, stop), key=itemgetter(0)):
            if key != last and value is not None:
                yield key, value
            last = key

    def write(self, rows: Mapping[bytes, bytes | None], position: int | None) -> None:
        self._new.update(rows)
        if position is not None:
            self._new[POSITION] = position_row(position)

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Delete keys one by one, because a file of a chain holds no range deletes."""
        self.write(dict.fromkeys(key for key, _ in self.scan(start, stop)), None)

    def estimate(self) -> int:
        return self._below.estimate() + len(self._new)

    def close(self) -> None:
        """Keep the database open for the next attempt."""

    def spill(self, *, last: bool) -> None:
        """Write the new rows as the next file of the chain.

        The `last` file of an attempt may begin the chain anew as a full file: a long chain is slow
        to check out, and deltas larger than the full file cost more than they save.
        """
        rows = {key: value for key, value in self._new.items() if key >= ROW}
        if not rows:
            return
        files, scratch, store, partition = self._place
        chain = self.chain
        deltas = sum(each.bytes for each in chain[1:])
        full = not chain or (last and (len(chain) >= CHAIN_MAX or deltas > chain[0].bytes))
        name = sst_name(store, partition, self._number)
        writer = SstWriter(path := cache_place(files, scratch, name))
        for key, value in self.scan(ROW, END) if full else sorted(rows.items()):
            writer.put(key, value)
        made = writer.finish()
        before = () if full else chain
        if made is not None:
            files.publish(path, name)
            before = (*before, SstFile(name, *made, full))
        self._below = checkout(*self._place, before)
        self._new = {}
