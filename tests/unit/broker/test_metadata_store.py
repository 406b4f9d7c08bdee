"""Database of the broker: rows in order, ids that are given once, a format version."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rocksdict import WriteOptions

from streamsx.broker.metadata_rows import (
    ConfigValue,
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    TopicKey,
    TopicValue,
)
from streamsx.broker.metadata_store import PRODUCER_IDS_AT_ONCE, MetadataStore
from streamsx.errors import IncompatibleStore, StoreCorrupt

GROUP = (GroupKey("g"), GroupValue("consumer", 1, None, None, 0, (), True))
OFFSETS = [(OffsetKey("g", "t", p), OffsetValue(p, -1, "", 0)) for p in range(3)]
TOPIC = (TopicKey("t"), TopicValue(b"i" * 16, 3, (ConfigValue("segment.bytes", "1000"),)))


def test_rows_read_back_by_kind_and_key(tmp_path: Path) -> None:
    meta = MetadataStore(tmp_path / "meta", sync=False)
    meta.write([*reversed(OFFSETS), TOPIC, GROUP])
    meta.write(deletes=[OFFSETS[1][0]])
    meta.close()
    again = MetadataStore(tmp_path / "meta", sync=True)
    assert list(again.rows("GO")) == [GROUP, OFFSETS[0], OFFSETS[2]]
    assert list(again.rows("T")) == [TOPIC]
    again.close()


def test_producer_id_is_never_given_twice(tmp_path: Path) -> None:
    meta = MetadataStore(tmp_path / "meta", sync=False)
    given = [meta.next_producer_id() for _ in range(PRODUCER_IDS_AT_ONCE + 2)]
    meta.close()
    again = MetadataStore(tmp_path / "meta", sync=False)
    given.append(again.next_producer_id())
    again.close()
    assert given[:2] == [0, 1]
    assert len(set(given)) == len(given)


def test_producer_id_not_given_before_persisted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full when the next thousand ids were reserved, and later had room."""
    meta = MetadataStore(tmp_path / "meta", sync=False)
    with monkeypatch.context() as full:
        full.setattr("streamsx.broker.metadata_store.WriteBatch", failing)
        with pytest.raises(OSError, match="No space left"):
            meta.next_producer_id()
    given = [meta.next_producer_id()]
    meta.close()
    again = MetadataStore(tmp_path / "meta", sync=False)
    given.append(again.next_producer_id())
    again.close()
    assert given == [0, PRODUCER_IDS_AT_ONCE]


def failing(*_: object, **__: object) -> None:
    raise OSError("No space left on device")


def test_store_of_newer_format_refused_and_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr("streamsx.broker.metadata_store.FORMAT", 2)
        MetadataStore(tmp_path / "meta", sync=False).close()
    with pytest.raises(IncompatibleStore, match="'2', this broker knows 1") as refused:
        MetadataStore(tmp_path / "meta", sync=False)
    with monkeypatch.context() as later:  # it was let go of, though the story is still told
        later.setattr("streamsx.broker.metadata_store.FORMAT", 2)
        MetadataStore(tmp_path / "meta", sync=False).close()
    assert "use the streamsx that wrote it" in str(refused.value)


def test_producer_ids_always_written_with_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id that is given twice would mix the records of two producers."""
    written = list[WriteOptions]()

    def noted(*about: Any) -> WriteOptions:
        written.append(WriteOptions(*about))
        return written[-1]

    monkeypatch.setattr("streamsx.broker.metadata_store.WriteOptions", noted)
    for sync in (False, True):
        meta = MetadataStore(tmp_path / "meta", sync=sync)
        written.clear()
        meta.write([GROUP])
        meta.next_producer_id()
        meta.close()
        assert [options.sync for options in written] == [sync, True]


def test_file_in_place_of_database_raises_store_corrupt(tmp_path: Path) -> None:
    (tmp_path / "meta").write_text("no database")
    with pytest.raises(StoreCorrupt, match="restore a copy"):
        MetadataStore(tmp_path / "meta", sync=False)


class Refusing:
    """Database that does some of the writes that it refuses."""

    def __init__(self, meta: MetadataStore, *, all_the_same: bool) -> None:
        self._db, self._all_the_same = meta._db, all_the_same

    def write(self, *batch: Any) -> None:
        if self._all_the_same:
            self._db.write(*batch)
        raise OSError("planted")

    def flush_wal(self, _: bool) -> None:
        raise OSError("planted")

    def close(self) -> None:
        self._db.close()


def test_failed_write_leaves_rows_as_restart_would_find(tmp_path: Path) -> None:
    """RocksDB refuses everything then; its log may hold a refused write."""
    meta = MetadataStore(tmp_path / "meta", sync=True)
    meta._db = cast("Any", Refusing(meta, all_the_same=False))
    with pytest.raises(OSError, match="planted"):
        meta.write([GROUP])
    meta.write([TOPIC])
    assert list(meta.rows("GT")) == [TOPIC]
    meta._db = cast("Any", Refusing(meta, all_the_same=True))
    meta.write([GROUP], [TOPIC[0]])
    assert list(meta.rows("GT")) == [GROUP]
    meta.close()


def test_unsynced_write_announced_for_next_flush(tmp_path: Path) -> None:
    meta, told = MetadataStore(tmp_path / "meta", sync=False), []
    meta.written = lambda: told.append(1)
    meta.write([TOPIC], sync=True)
    assert not told
    meta.write([GROUP])
    assert told
    meta._db = cast("Any", Refusing(meta, all_the_same=False))
    with pytest.raises(OSError, match="planted"):
        meta.flush()
    meta.flush()  # there is nothing to flush, as far as it knows
    assert list(meta.rows("GT")) == [GROUP, TOPIC]
    meta.close()


def test_failing_close_of_database_raises_os_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written rows are safe, but a new file finds no room."""
    meta = MetadataStore(tmp_path / "meta", sync=False)
    meta.close()

    def full() -> None:
        raise Exception("IO error: No space left on device")  # as rocksdict does

    monkeypatch.setattr(meta, "_db", SimpleNamespace(close=full))
    with pytest.raises(OSError, match="No space left on device"):
        meta.close()
    meta.close()
