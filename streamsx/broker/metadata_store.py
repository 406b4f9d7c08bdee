"""RocksDB of the broker: topics, groups, offsets and the next producer id, in rows of bytes.

RocksDB's write-ahead log makes each write atomic, and drops a torn tail by itself. After a failed
write the database is opened again, so that the content is the same as after a restart.
`metadata_rows` defines the meaning of the rows.
"""

import errno
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from streamsx.broker.metadata_rows import (
    Key,
    TopicKey,
    TopicValue,
    Value,
    key_bytes,
    read_row,
    row_bytes,
)
from streamsx.errors import IncompatibleStore, StoreCorrupt

FORMAT = 1
"""Format of the whole directory, logs included."""
FORMAT_KEY = b"V"
PRODUCER_KEY = b"P"
PRODUCER_IDS_AT_ONCE = 1000
"""Producer ids reserved by one write; those left over at the end are never used."""
WRITE_BUFFER_BYTES = 4 << 20
OF_THE_DISK = ("IO error", f"os error {errno.ENOSPC}", f"os error {errno.EFBIG}")
"""Parts of rocksdict's messages when the disk fails; the data on the disk may be intact."""

logger = logging.getLogger(__name__)


class MetadataStore:
    """Database with the rows of one broker.

    With `sync` each write reaches the disk before the call returns. `written` is called after each
    write that may not have reached the disk yet.
    """

    def __init__(self, path: Path, *, sync: bool) -> None:
        """Open the database, or create a new one.

        Raises:
            StoreCorrupt: The database cannot be read.
            OSError: The disk failed.
            IncompatibleStore: The directory has another format.
        """
        self._path = path
        self._sync = sync
        self._broken = self._unflushed = False
        self.written: Callable[[], None] = lambda: None
        self._db = self._open()
        self._producer_id = self._producer_ids_end = 0
        found = (self._db.get(FORMAT_KEY) or b"%d" % FORMAT).decode(errors="replace")
        if found != str(FORMAT):
            self.close()
            raise IncompatibleStore(
                f"data of another format: {path}: {found!r}, this broker knows {FORMAT}:"
                " use the streamsx that wrote it, or another directory"
            )
        if not self._db.get(FORMAT_KEY):
            self._write([(FORMAT_KEY, b"%d" % FORMAT)], [], sync=True)

    def write(
        self,
        puts: Iterable[tuple[Key | TopicKey, Value | TopicValue]] = (),
        deletes: Iterable[Key | TopicKey] = (),
        *,
        sync: bool = False,
    ) -> None:
        """Write all rows and deletions, or none; with `sync` they are on the disk on return.

        Raises:
            OSError: The database cannot be written.
        """
        keys = [key_bytes(key) for key in deletes]
        self._write([row_bytes(*row) for row in puts], keys, sync=sync)

    def flush(self) -> None:
        """Write everything out to the disk; callable from any thread.

        Raises:
            OSError: The database cannot be written.
        """
        if self._unflushed:
            self._unflushed = False
            try:
                self._db.flush_wal(True)
            except Exception as error:  # rocksdict raises nothing narrower
                raise self._failed(error) from error

    def rows(self, kinds: str) -> Iterator[tuple[Any, Any]]:
        """Yield all rows of these kinds (letters of `metadata_rows.KINDS`), each kind in key order.

        Raises:
            OSError: The database cannot be opened.
        """
        self.revive()
        for kind in kinds:
            prefix = kind.encode() + b"\0"
            cursor = self._db.iter()
            cursor.seek(prefix)
            while cursor.valid() and (key := cursor.key()).startswith(prefix):
                yield read_row(key, cursor.value())
                cursor.next()

    def next_producer_id(self) -> int:
        """Return a producer id that was never given out and never will be again.

        Raises:
            OSError: The database cannot be written.
        """
        if self._producer_id == self._producer_ids_end:
            self.revive()
            first = int(self._db.get(PRODUCER_KEY) or 0)
            end = first + PRODUCER_IDS_AT_ONCE
            self._write([(PRODUCER_KEY, b"%d" % end)], [], sync=True)
            self._producer_id = first
            self._producer_ids_end = end
        self._producer_id += 1
        return self._producer_id - 1

    def close(self) -> None:
        """Close the database.

        Raises:
            OSError: The database cannot be closed.
        """
        try:
            self._db.close()
        except Exception as error:  # rocksdict raises nothing narrower
            if not self._broken:  # a broken one is closed already if it could not be reopened
                raise self._failed(error) from error

    def _open(self) -> Rdict:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(WRITE_BUFFER_BYTES)
        try:
            return Rdict(str(self._path), options)
        except Exception as error:  # rocksdict raises nothing narrower
            if any(each in str(error) for each in OF_THE_DISK):
                raise OSError(f"{self._path}: {error}") from error
            raise StoreCorrupt(f"{self._path}: {error}: restore a copy of the directory") from error

    def revive(self) -> None:
        """Open the database again after a failed write or flush; otherwise do nothing.

        RocksDB refuses every call after such a failure, and may have kept the failed write. Once
        the database is open again, everything that RocksDB kept is on the disk.

        Raises:
            OSError: The database cannot be opened.
        """
        if not self._broken:
            return
        with suppress(Exception):  # the flush may fail, or the database is closed already
            self._db.close()
        try:
            self._db = self._open()
        except StoreCorrupt as error:
            raise OSError(str(error)) from error
        self._broken = False
        logger.warning("The metadata in %s were opened again after a failure.", self._path)

    def _stands(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> bool:
        """Reopen the database, and return whether a write that failed was kept after all."""
        with suppress(OSError):
            self.revive()
            gone = all(self._db.get(key) is None for key in deletes)
            return gone and all(self._db.get(key) == value for key, value in puts)
        return False

    def _failed(self, error: Exception) -> OSError:
        self._broken = True
        return OSError(f"the broker's metadata cannot be written: {error}")

    def _write(
        self, puts: list[tuple[bytes, bytes]], deletes: list[bytes], *, sync: bool = False
    ) -> None:
        self.revive()
        options = WriteOptions()
        try:
            batch = WriteBatch(raw_mode=True)
            options.sync = sync or self._sync
            for key, value in puts:
                batch.put(key, value)
            for key in deletes:
                batch.delete(key)
            self._db.write(batch, options)
        except Exception as error:  # rocksdict raises nothing narrower
            failed = self._failed(error)
            if not self._stands(puts, deletes):
                raise failed from error
        if not options.sync:
            self._unflushed = True
            self.written()
