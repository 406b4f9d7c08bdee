"""State of a task on an executor: a committed chain of files as a database, and what is written.

A database holds exactly a chain and is never written otherwise. It belongs to one process, and
stays open there: the next batch most often only adds a file. Any process meets any task, so files
are fetched once per host, into a cache beside the databases; Spark kills idle processes, so what
the dead have left is removed by who comes next.

    SCRATCH/{pid}/{n}           databases of a process, and what it writes
    SCRATCH/sst/{uri}/...       files of this host, checked whenever one is taken

Not here: which chain is the committed one, what a task writes.
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
"""Databases take files and two rows."""

Chain = tuple[SstFile, ...]


class HeldChain(RocksRows):
    """A chain as a database of this process."""

    chain: Chain = ()

    def add(self, sst: SstFile, cached: Path) -> None:
        """The next file of its chain."""
        link = self.path.with_name(f"{self.path.name}.sst")
        with translate_errors(self.path):
            link.unlink(missing_ok=True)  # of one that a full disk has refused
            place(cached, link)
            ingest(self._db, link)
        self.chain = (*self.chain, sst)

    def discard(self) -> None:
        self._db.close()
        shutil.rmtree(self.path)


_HELD: Final[OrderedDict[tuple[str, str, int], HeldChain]] = OrderedDict()
"""Of this process, by URI, store and partition; the one that was used last is the last."""
_NAMES: Final = count()


@cache
def _memory() -> RocksMemory:
    return RocksMemory(blocks_bytes=BLOCKS_BYTES, buffers_bytes=BUFFERS_BYTES)


def scratch_folder(given: str | None) -> Path:
    """Of this host and user: on a disk that hosts share, a process id says nothing of another's.
    `given` by the driver, for all hosts alike.
    """
    spark = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    found = given or os.environ.get("STREAMSX_SCRATCH") or spark or tempfile.gettempdir()
    folder = Path(found, f"streamsx-{os.getuid()}-{socket.gethostname()}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def checkout(
    files: SnapshotFiles, scratch: Path, store: str, partition: int, chain: Chain
) -> HeldChain:
    """The database that holds this chain, and nothing else. Raises StoreCorrupt, SnapshotFailed."""
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
            except FileNotFoundError:  # a run has begun it anew, and forgotten what we read
                if last:
                    raise
    if chain:
        _forget(cache_place(files, scratch, chain[0].file))
    while len(_HELD) > STORES_MAX:
        _HELD.popitem(last=False)[1].discard()
    return held


def discard_all() -> None:
    """As if this process were a new one."""
    while _HELD:
        _HELD.popitem()[1].discard()


def cache_place(files: SnapshotFiles, scratch: Path, name: str) -> Path:
    """Where a file is for all processes of this host."""
    path = scratch / "sst" / f"{zlib.crc32(files.uri.encode()):08x}" / name.removeprefix("sst/")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _cached(files: SnapshotFiles, scratch: Path, sst: SstFile) -> Path:
    """What this host's disk has spoilt is fetched anew. To look for that is 0.02 % of a task's CPU;
    of opening 71 MiB in a new process 11 ms, of 19.
    """
    path = cache_place(files, scratch, sst.file)
    if not path.exists() or checksum(path) != sst.crc32c:
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)  # of somebody who had our number
        fetch(files, sst, draft)
        draft.replace(path)
    return path


def _forget(first: Path) -> None:
    """Files of one store partition from before its chain."""
    for each in first.parent.iterdir():
        if each.name[:DIGITS] < first.name[:DIGITS]:
            each.unlink(missing_ok=True)


def own_folder(scratch: Path) -> Path:
    """Of this process."""
    return _begun(scratch, os.getpid())


@cache
def _begun(scratch: Path, pid: int) -> Path:
    """Folders of processes that are no more are removed, also of one that had our number."""
    for folder in scratch.iterdir():
        if folder.name.isdigit() and (int(folder.name) == pid or _is_gone(int(folder.name))):
            shutil.rmtree(folder, ignore_errors=True)  # or somebody else removes it
    own = scratch / str(pid)
    own.mkdir(exist_ok=True)
    return own


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.ESRCH  # one of somebody else's is there
    return False


class SnapshotRows(Rows):
    """Rows of one attempt: a committed chain, and above it what is written. `number`: of the
    snapshot that may name its files.
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
        """With the files that were spilled."""
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
        """One by one: a file of a chain has no range of deletes."""
        self.write(dict.fromkeys(key for key, _ in self.scan(start, stop)), None)

    def estimate(self) -> int:
        return self._below.estimate() + len(self._new)

    def close(self) -> None:
        """The database stays, for the next one."""

    def spill(self, *, last: bool) -> None:
        """What was written becomes the next file of the chain; its `last` one may begin it anew:
        a long chain is slow to check out, and deltas beyond a full file cost more than they save.
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
