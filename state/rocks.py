"""Committed rows in RocksDB: one database per (task, store), one column family, log on, no fsync.

The changelog position is a row of the same family and of the same batch as the rows before it, so
the position can never be ahead of the rows. Flushes of several families can diverge after SIGKILL,
even with atomic flush; one family cannot. After SIGKILL the last write is there; after a power loss
the store is an older consistent prefix.

get, put, write, iteration and open hold the GIL; flush and close release the GIL. So batches are
small, and `flush` and `close` belong in an executor.

Out of scope: the directory (`directory`), the meaning of a position
(`streamsx.tasks.store_restore`).
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice
from pathlib import Path

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteBufferManager,
)

from streamsx.errors import IncompatibleStore, StoreCorrupt, StoreLocked, StreamsxError
from streamsx.state import disk
from streamsx.state.api import END, FORMAT, POSITION, Rows, position_row
from streamsx.state.layout import remedy

WRITE_BUFFER_BYTES = 2 << 20
"""Write buffer of a small store.

A larger buffer fills with old values of rows that are written again each second: four tasks held 32
MiB in buffers of 8 MiB each, and a row cost 15 % more.
"""
LARGE_BYTES = 16 << 20
LARGE_WRITE_BUFFER_BYTES = 8 << 20
"""Write buffer of a store beyond LARGE_BYTES.

345 MB of random rows cost 2.3 us a row, and 3.4 us with a buffer of 2 MiB, because of compactions.
"""
WRITE_BUFFERS_MAX = 3
ARENA_BLOCK_BYTES = 64 << 10
"""Arena block: the buffer manager counts whole blocks.

100 stores used 207 MiB with the default size, and 52 MiB with this one.
"""
BLOCK_BYTES = 4 << 10
DAMAGED = "DAMAGED"
"""File in the folder of a store that could not be read completely."""
BLOOM_BITS_PER_KEY = 10
MEMTABLE_BLOOM_RATIO = 0.02
BACKGROUND_JOBS = 2
RANGE_ROWS = 1000
"""Rows from which on one range tombstone deletes them, and not a tombstone for each.

The first read after a range was deleted orders the range tombstones of the write buffer: with 4,000
of them in 11 ms. Ranges of so many rows fill a buffer after 40.
"""


class RocksMemory:
    """Memory shared by all stores of a process: block cache and write buffers, both in bytes."""

    def __init__(self, *, blocks_bytes: int, buffers_bytes: int) -> None:
        self.blocks = Cache(blocks_bytes)
        self.buffers = WriteBufferManager(buffers_bytes, False)
        self.opened = set[Path]()
        """Folders of the open stores."""


def options(memory: RocksMemory) -> Options:
    """Return the options of every store; raw mode must agree with the batches."""
    table = table_options()
    table.set_block_cache(memory.blocks)
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    made = Options(raw_mode=True)
    made.create_if_missing(True)
    made.set_write_buffer_size(WRITE_BUFFER_BYTES)
    made.set_max_write_buffer_number(WRITE_BUFFERS_MAX)
    made.set_arena_block_size(ARENA_BLOCK_BYTES)
    made.set_write_buffer_manager(memory.buffers)
    made.set_memtable_prefix_bloom_ratio(MEMTABLE_BLOOM_RATIO)
    made.set_memtable_whole_key_filtering(True)  # a miss costs 295 ns with it, 790 without
    made.set_max_background_jobs(BACKGROUND_JOBS)
    made.set_compression_type(DBCompressionType.none())
    made.set_block_based_table_factory(table)
    return made


def table_options() -> BlockBasedOptions:
    """Return the table options of every SST file, from any writer."""
    table = BlockBasedOptions()
    table.set_block_size(BLOCK_BYTES)
    table.set_bloom_filter(BLOOM_BITS_PER_KEY, False)
    return table


class RocksRows(Rows):
    """Implementation of `Rows` in one database.

    `layout`: format text of the database.

    Raises:
        IncompatibleStore: the database has another layout.
        StoreLocked: another process has the database open.
        StoreCorrupt: the database cannot be opened.
        DiskFailed: from every method, when the disk is full or broken.
    """

    def __init__(self, path: Path, memory: RocksMemory, layout: str) -> None:
        self.path = path
        self._layout = layout
        self._memory = memory
        self._open()

    def _open(self) -> None:
        with disk.translate_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            damaged = (self.path / DAMAGED).exists()
        if damaged:
            raise corrupt(self.path, "a part of it could not be read")
        with self._translated():
            self._db = Rdict(str(self.path), options(self._memory))
            self._large = False
            try:
                self._check_layout()
            except Exception:
                self._db.close()  # the caller may open a new database here at once
                raise
        self._memory.opened.add(self.path)

    def _translated(self) -> AbstractContextManager[None]:
        return translate_errors(self.path, len(self._memory.opened))

    def _check_layout(self) -> None:
        found = self._db.get(FORMAT)
        if found is None:
            self._db.put(FORMAT, self._layout.encode())
        elif bytes(found) != self._layout.encode():
            raise IncompatibleStore(
                f"store written in another format: {self.path}: it has {bytes(found).decode()}, "
                f"this app needs {self._layout}: {remedy(bytes(found).decode(), self._layout)}"
            )

    def get(self, key: bytes) -> bytes | None:
        try:
            found: bytes | None = self._db.get(key)
        except Exception as error:  # inline: a `with` would cost more than the look-up
            raise refused(self.path, error, len(self._memory.opened)) from error
        return found

    def scan(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Yield rows as of the first step.

        Finish or close the iterator before `close`: an open iterator keeps the lock.

        The loop steps by hand because the binding's own iteration ends silently at an unreadable
        block. A store that was preloaded up to that block would count as complete, and all rows
        after the block would start from nothing.
        """
        rows = self._db.iter()
        rows.seek(start)
        while rows.valid():
            key: bytes = rows.key()
            if stop is not None and key >= stop:
                return
            yield key, rows.value()
            rows.next()
        with self._translated():
            rows.status()

    def write(self, rows: Mapping[bytes, bytes | None], position: int | None) -> None:
        batch = WriteBatch(raw_mode=True)
        for key, value in rows.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        if position is not None:
            batch.put(POSITION, position_row(position))
        with self._translated():
            self._db.write(batch)
            if not self._large and self._files_bytes() >= LARGE_BYTES:
                self._db.set_options({"write_buffer_size": str(LARGE_WRITE_BUFFER_BYTES)})
                self._large = True

    def _files_bytes(self) -> int:
        return int(self._db.property_int_value("rocksdb.total-sst-files-size") or 0)

    def last(self, start: bytes, stop: bytes) -> bytes | None:
        rows = self._db.iter()
        rows.seek_for_prev(stop)
        if rows.valid() and rows.key() == stop:
            rows.prev()
        with self._translated():
            rows.status()
        return rows.key() if rows.valid() and rows.key() >= start else None

    def delete_range(self, start: bytes, stop: bytes) -> None:
        few = [key for key, _ in islice(self.scan(start, stop), RANGE_ROWS)]
        with self._translated():
            if len(few) == RANGE_ROWS:
                self._db.delete_range(start, stop)
            elif few:
                self.write(dict.fromkeys(few), None)

    def wipe(self) -> None:
        super().wipe()
        assert next(self.scan(POSITION, END), None) is None, f"{self.path}: deleted rows are there"

    def estimate(self) -> int:
        return int(self._db.property_int_value("rocksdb.estimate-num-keys") or 0)

    def set_aside(self, to: str) -> bool:
        """Move the store to `to` and open an empty one; as slow as closing and opening together."""
        self.close()
        with disk.translate_errors(to):
            Path(to).parent.mkdir(exist_ok=True)
            self.path.rename(to)
        self._open()
        return True

    def take(self, folder: str, old: str) -> bool:
        """Replace the store by the one in `folder`; as slow as `set_aside`.

        A process that is killed meanwhile leaves an empty store or the complete one.
        """
        self.close()
        with disk.translate_errors(folder):
            self.path.rename(old)
            Path(folder).rename(self.path)
        self._open()
        return True

    def close(self) -> None:
        """Flush and close; slow, and releases the GIL.

        Rows that could not be flushed come from RocksDB's own log, or else from the changelog, when
        the store is opened again.
        """
        with self._translated():
            try:
                self._db.flush()
            finally:
                self._memory.opened.discard(self.path)
                self._db.close()


@contextmanager
def translate_errors(path: Path, stores: int | None = None) -> Iterator[None]:
    """Translate errors of RocksDB: its binding raises nothing narrower than Exception."""
    try:
        yield
    except StreamsxError:
        raise
    except Exception as error:
        raise refused(path, error, stores) from error


def refused(path: Path, error: Exception, stores: int | None = None) -> Exception:
    """Return one of our errors for an error of RocksDB, or the same error if none fits.

    `stores`: number of open stores.
    """
    text = str(error)
    if "lock hold" in text or "Resource temporarily unavailable" in text:
        return StoreLocked(f"store in use: {path}: stop the process that has it open")
    if "Corruption" in text:
        return corrupt(path, text)
    if text.startswith("IO error"):
        if any(os.strerror(code) in text for code in disk.NO_DESCRIPTOR):
            return disk.used_up(path, text.rpartition(": ")[2], stores)
        return disk.failed(path, text.rpartition(": ")[2])
    if isinstance(error, DbClosedError):  # the store could not be set aside
        return disk.failed(path, "it was closed and not opened again")
    return error


def corrupt(path: Path, why: str) -> StoreCorrupt:
    """Mark the store as damaged, and return the error.

    Without the mark: a block is broken; the store opens; a read of that block ends the worker; the
    worker is started again, and ends at the same block, again and again.
    """
    with suppress(OSError):  # on a disk that takes no writes the next read finds the damage again
        (path / DAMAGED).touch()
    return StoreCorrupt(f"store damaged: {path}: {why}: it is restored when it is opened again")
