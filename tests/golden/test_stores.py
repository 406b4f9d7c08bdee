"""State on the disk of a worker: what a database says of itself, its rows, files and folders."""

import json
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from rocksdict import Rdict

from streamsx.errors import IncompatibleStore
from streamsx.serde.codec import table_codec, table_key_codec
from streamsx.state.api import position_row
from streamsx.state.directory import StateDirectory
from streamsx.state.layout import StoreNode, Timing
from streamsx.state.rocks import DAMAGED, RocksMemory, RocksRows, options

COUNTS = StoreNode("counts", "wc-counts-changelog", table_key_codec(str), table_codec(int))
PIXELS = StoreNode("pixels", "wc-pixels-changelog", table_key_codec(bytes), table_codec(bytes))
LAYOUT = (
    '{"version":1,"store":"kv","key":"json","value":"json",'
    '"topic":"wc-counts-changelog","partitions":8}'
)
RAW_LAYOUT = (
    '{"version":1,"store":"kv","key":"raw","value":"raw",'
    '"topic":"wc-pixels-changelog","partitions":1}'
)
ROWS = {
    b"\x00format": LAYOUT.encode(),
    b"\x00offset": b"\x00\x00\x00\x00\x00\x00\x01\x02",
    b'\x01"a"': b"1",
    b'\x01"\xc3\xa4"': b"-7",
}


@pytest.mark.parametrize(
    ("node", "partitions", "text"),
    [(COUNTS, 8, LAYOUT), (PIXELS, 1, RAW_LAYOUT)],
    ids=["json", "raw"],
)
def test_layout_of_a_store_is_this_text(node: StoreNode, partitions: int, text: str) -> None:
    assert node.layout(partitions) == text


def test_key_of_a_row_is_that_of_the_changelog_behind_a_tag() -> None:
    assert COUNTS.local_keys([b'"a"', b"", None]) == [b'\x01"a"', b"\x01", None]
    assert COUNTS.changelog_key(b'\x01"a"') == b'"a"'


TIMED = StoreNode(
    "visits", "wc-visits-changelog", table_key_codec(str), table_codec(int),
    kind="window", timing=Timing(10_000, 5_000, 12_000),
)  # fmt: skip
TIMED_ROWS = {
    "window": (b'\x01\x00\x00\x01\x8b\xcf\xe5h\x00"a"', b'["a",[1700000000.0,1700000009.9]]'),
    "session": (b'\x01"a"', b'"a"'),
    "buffer": (b'\x01\x00\x00\x01\x8b\xcf\xe5h\x00"a"', b'\x00\x00\x01\x8b\xcf\xe5h\x00"a"'),
}
SESSIONS = (
    b"\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x27\x11\x00\x00\x00\x017"
    b"\x00\x00\x00\x00\x00\x00\x75\x30\x00\x00\x00\x00\x00\x00\x75\x30\x00\x00\x00\x00"
)
ENTRIES = (
    b"\x00\x00\x00\x00\x00\x00\x00\x05\x01\x00\x00\x00\x017"
    b"\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x00\x00"
)
INDEX_ROWS = {
    b'\x02\x00\x00\x00\x00\x00\x00\x27\x10"a"': b"",
    b'\x02\x00\x00\x00\x00\x00\x00\x75\x30"a"': b"",
}


@pytest.mark.parametrize("kind", TIMED_ROWS)
def test_rows_by_time_have_these_keys_here_and_in_the_changelog(kind: str) -> None:
    node = replace(TIMED, kind=kind)
    row, key = TIMED_ROWS[kind]
    assert (node.changelog_key(row), node.local_keys([key, None])) == (key, [row, None])
    assert node.layout(8) == (
        f'{{"version":1,"store":"{kind}","key":"json","value":"json",'
        '"topic":"wc-visits-changelog","partitions":8,"size":10000,"step":5000}'
    )


def test_sessions_and_joined_records_are_framed_so() -> None:
    node = replace(TIMED, kind="session")
    sessions = [[5, 10_001, 7], [30_000, 30_000, None]]
    assert node.row_values.encode(sessions) == SESSIONS
    assert node.row_values.decode(SESSIONS) == sessions
    rows = {b'\x01"a"': SESSIONS, b'\x01"gone"': None}
    assert node.indexed(rows) == {**rows, **INDEX_ROWS}
    records = replace(TIMED, kind="buffer").row_values
    assert records.encode([[5, True, 7], [5, False, None]]) == ENTRIES
    assert records.decode(ENTRIES) == [[5, True, 7], [5, False, None]]


def test_position_row_is_eight_bytes_the_largest_first() -> None:
    assert position_row(258) == b"\x00\x00\x00\x00\x00\x00\x01\x02"


def memory() -> RocksMemory:
    return RocksMemory(blocks_bytes=1 << 20, buffers_bytes=1 << 20)


def test_database_of_a_store_holds_these_rows(tmp_path: Path) -> None:
    rows = RocksRows(tmp_path / "0", memory(), LAYOUT)
    rows.write({b'\x01"a"': b"1", b'\x01"\xc3\xa4"': b"-7", b'\x01"gone"': None}, 258)
    rows.close()
    db = Rdict(str(tmp_path / "0"), options(memory()))
    assert dict(db.items()) == ROWS
    db.close()


def test_database_of_these_rows_is_read(tmp_path: Path) -> None:
    db = Rdict(str(tmp_path / "0"), options(memory()))
    for key, value in ROWS.items():
        db[key] = value
    db.close()
    rows = RocksRows(tmp_path / "0", memory(), LAYOUT)
    assert rows.position() == 258
    assert dict(rows.scan(b"\x01", b"\x02")) == {b'\x01"a"': b"1", b'\x01"\xc3\xa4"': b"-7"}
    rows.close()


def test_database_with_another_layout_is_refused(tmp_path: Path) -> None:
    RocksRows(tmp_path / "0", memory(), LAYOUT).close()
    with pytest.raises(IncompatibleStore):
        RocksRows(tmp_path / "0", memory(), LAYOUT.replace('"version":1', '"version":2'))


# -- the state directory

PROCESS_ID = "00000000-0000-0000-0000-000000000001"
FILES = {
    "process.json": {"format": 1, "process_id": PROCESS_ID, "instance_id": "a"},
    "member.json": {"format": 1, "group": "shop", "member_id": "m-1", "host": "h"},
    "sources.json": {"format": 1, "ids": {"orders": "0a" * 16}, "partitions": {"orders": 4}},
    "stores/totals/changelog.json": {
        "format": 1, "topic": "shop-totals-changelog", "id": "01" * 16,
    },
}  # fmt: skip


def test_files_of_a_state_directory_are_named_and_written_so(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "shop", lambda: UUID(int=1))
    directory.name_instance("a")
    directory.remember_member("shop", "m-1", "h")
    directory.remember_sources({"orders": "0a" * 16}, {"orders": 4})
    directory.remember_changelog("totals", "shop-totals-changelog", b"\x01" * 16)
    directory.release()
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {"shop/LOCK", *(f"shop/{name}" for name in FILES)}
    for name, document in FILES.items():
        assert (tmp_path / "shop" / name).read_text() == json.dumps(document)


def test_files_of_a_state_directory_are_read_from_this_text(tmp_path: Path) -> None:
    for name, document in FILES.items():
        path = tmp_path / "shop" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))
    directory = StateDirectory(tmp_path, "shop")
    assert (str(directory.process_id), directory.instance_id) == (PROCESS_ID, "a")
    assert directory.fresh is False
    assert directory.predecessor("shop", "h") == "m-1"
    assert directory.source_ids() == {"orders": "0a" * 16}
    assert directory.source_counts() == {"orders": 4}
    assert directory.changelog_id("totals") == b"\x01" * 16
    directory.release()


def test_folders_of_a_state_directory_are_named_so(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path, "shop", lambda: UUID(int=0xABCD << 112))
    path = tmp_path / "shop"
    assert directory.store("totals", 7) == path / "stores" / "totals" / "7"
    assert directory.stores_of("totals") == str(path / "stores" / "totals")
    assert directory.kept("totals", 7) == str(path / "kept" / "totals-7-abcd0000")
    assert directory.aside() == path / "trash" / "abcd0000000000000000000000000000"
    assert DAMAGED == "DAMAGED"
    directory.release()


def test_slots_of_a_shared_folder_are_numbers(tmp_path: Path) -> None:
    held = [StateDirectory.in_slot(tmp_path, "shop") for _ in range(2)]
    assert [each.path for each in held] == [tmp_path / "0" / "shop", tmp_path / "1" / "shop"]
    for each in held:
        each.release()
