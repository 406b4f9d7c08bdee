"""The broker's RocksDB: topics, groups, offsets and the next producer id, in rows of bytes.

RocksDB's log makes each write whole or nothing, and drops a torn tail by itself. What the rows
mean is `records`'s.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from streamsx.broker.records import Key, TopicKey, TopicValue, Value, key_bytes, read_row, row_bytes
from streamsx.errors import IncompatibleStore, StoreCorrupt

FORMAT = 1
"""Of the whole directory, logs included."""
FORMAT_KEY, PRODUCER_KEY = b"V", b"P"
PRODUCER_IDS_AT_ONCE = 1000
"""Handed out between two writes; what is left of them at the end is never used."""
WRITE_BUFFER_BYTES = 4 << 20


class Meta:
    """One database. With `sync` each write reaches the disk before it returns."""

    def __init__(self, path: Path, *, sync: bool) -> None:
        """Raises StoreCorrupt, or IncompatibleStore for a newer format."""
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(WRITE_BUFFER_BYTES)
        try:
            self._db = Rdict(str(path), options)
        except Exception as error:  # rocksdict raises nothing narrower
            raise StoreCorrupt(f"{path}: {error}: restore a copy of the directory") from error
        self._sync = sync
        self._producer_id = self._producer_ids_end = 0
        found = int(self._db.get(FORMAT_KEY) or FORMAT)
        if found > FORMAT:
            self.close()
            raise IncompatibleStore(
                f"{path} has format {found}, this broker knows {FORMAT}: use a newer streamsx"
            )
        self._write([(FORMAT_KEY, b"%d" % FORMAT)], ())

    def write(
        self,
        puts: Iterable[tuple[Key | TopicKey, Value | TopicValue]] = (),
        deletes: Iterable[Key | TopicKey] = (),
    ) -> None:
        """All of it or nothing. Raises OSError."""
        self._write([row_bytes(*row) for row in puts], [key_bytes(key) for key in deletes])

    def rows(self, kinds: str) -> Iterator[tuple[Any, Any]]:
        """All rows of these kinds ("G", "O", "T"), in the order of their keys."""
        for kind in kinds:
            prefix = kind.encode() + b"\0"
            cursor = self._db.iter()
            cursor.seek(prefix)
            while cursor.valid() and (key := cursor.key()).startswith(prefix):
                yield read_row(key, cursor.value())
                cursor.next()

    def next_producer_id(self) -> int:
        """One that was never given out and never will be again. Raises OSError."""
        if self._producer_id == self._producer_ids_end:
            first = int(self._db.get(PRODUCER_KEY) or 0)
            end = first + PRODUCER_IDS_AT_ONCE
            self._write([(PRODUCER_KEY, b"%d" % end)], (), sync=True)
            self._producer_id, self._producer_ids_end = first, end
        self._producer_id += 1
        return self._producer_id - 1

    def close(self) -> None:
        """At the end."""
        self._db.close()

    def _write(
        self, puts: list[tuple[bytes, bytes]], deletes: Iterable[bytes], *, sync: bool = False
    ) -> None:
        batch, options = WriteBatch(raw_mode=True), WriteOptions()
        options.sync = sync or self._sync
        for key, value in puts:
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        try:
            self._db.write(batch, options)
        except Exception as error:  # rocksdict raises nothing narrower
            raise OSError(f"the broker's metadata cannot be written: {error}") from error
