"""The broker's database: rows in their order, ids that are never given twice, a format."""

from pathlib import Path
from typing import Any

import pytest
from rocksdict import WriteOptions

from streamsx.broker.meta import PRODUCER_IDS_AT_ONCE, Meta
from streamsx.broker.records import (
    ConfigValue,
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    TopicKey,
    TopicValue,
)
from streamsx.errors import IncompatibleStore, StoreCorrupt

GROUP = (GroupKey("g"), GroupValue("consumer", 1, None, None, 0, (), True))
OFFSETS = [(OffsetKey("g", "t", p), OffsetValue(p, -1, "", 0)) for p in range(3)]
TOPIC = (TopicKey("t"), TopicValue(b"i" * 16, 3, (ConfigValue("segment.bytes", "1000"),)))


def test_rows_come_back_by_kind_and_key(tmp_path: Path) -> None:
    meta = Meta(tmp_path / "meta", sync=False)
    meta.write([*reversed(OFFSETS), TOPIC, GROUP])
    meta.write(deletes=[OFFSETS[1][0]])
    meta.close()
    again = Meta(tmp_path / "meta", sync=True)
    assert list(again.rows("GO")) == [GROUP, OFFSETS[0], OFFSETS[2]]
    assert list(again.rows("T")) == [TOPIC]
    again.close()


def test_a_producer_id_is_given_once_whatever_happens(tmp_path: Path) -> None:
    meta = Meta(tmp_path / "meta", sync=False)
    given = [meta.next_producer_id() for _ in range(PRODUCER_IDS_AT_ONCE + 2)]
    meta.close()
    again = Meta(tmp_path / "meta", sync=False)
    given.append(again.next_producer_id())
    again.close()
    assert given[:2] == [0, 1]
    assert len(set(given)) == len(given)


def test_no_producer_id_is_given_that_was_not_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full when the next thousand were to be set aside, and then it was not."""
    meta = Meta(tmp_path / "meta", sync=False)
    with monkeypatch.context() as full:
        full.setattr("streamsx.broker.meta.WriteBatch", failing)
        with pytest.raises(OSError, match="No space left"):
            meta.next_producer_id()
    given = [meta.next_producer_id()]
    meta.close()
    again = Meta(tmp_path / "meta", sync=False)
    given.append(again.next_producer_id())
    again.close()
    assert given == [0, PRODUCER_IDS_AT_ONCE]


def failing(*_: object, **__: object) -> None:
    raise OSError("No space left on device")


def test_a_directory_of_a_newer_format_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr("streamsx.broker.meta.FORMAT", 2)
        Meta(tmp_path / "meta", sync=False).close()
    with pytest.raises(IncompatibleStore, match="format 2, this broker knows 1") as refused:
        Meta(tmp_path / "meta", sync=False)
    with monkeypatch.context() as later:  # it was let go of, though the story is still told
        later.setattr("streamsx.broker.meta.FORMAT", 2)
        Meta(tmp_path / "meta", sync=False).close()
    assert "use a newer streamsx" in str(refused.value)


def test_what_is_to_outlive_a_power_failure_is_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id that is given twice would make records of two producers one."""
    written = list[WriteOptions]()

    def noted(*about: Any) -> WriteOptions:
        written.append(WriteOptions(*about))
        return written[-1]

    monkeypatch.setattr("streamsx.broker.meta.WriteOptions", noted)
    for sync in (False, True):
        meta = Meta(tmp_path / "meta", sync=sync)
        written.clear()
        meta.write([GROUP])
        meta.next_producer_id()
        meta.close()
        assert [options.sync for options in written] == [sync, True]


def test_what_is_no_database_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "meta").write_text("no database")
    with pytest.raises(StoreCorrupt, match="restore a copy"):
        Meta(tmp_path / "meta", sync=False)
