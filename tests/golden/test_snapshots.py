"""Snapshots: names of their files, the text of a manifest, rows of their SST files."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rocksdict import Rdict

from streamsx.errors import IncompatibleStore
from streamsx.state.rocks import RocksMemory, options
from streamsx.state.snapshot import (
    Manifest,
    Part,
    Position,
    SstFile,
    SstWriter,
    StoreSnapshot,
    build,
    checksum,
    commit,
    ingest,
    manifest_name,
    newest,
    sst_name,
)
from streamsx.state.snapshot_files import open_files
from tests.golden.make_kept import unpack

LAYOUT = (
    '{"version":1,"store":"kv","key":"json","value":"json",'
    '"topic":"shop-totals-changelog","partitions":6}'
)
FULL = SstFile("sst/totals/0/000000000040-" + "0" * 32 + ".sst", 3, 1000, 7, full=True)
DELTA = SstFile("sst/totals/0/000000000041-" + "f" * 32 + ".sst", 1, 900, 8, full=False)
MANIFEST = Manifest(
    app="shop",
    topology="[1, 2]",
    number=41,
    run="a run",
    made_by="run",
    made_at_ms=1_795_255_713_000,
    versions={"streamsx": "0.1.0"},
    partitions={"orders": 6},
    positions={"orders": {0: Position(251_140, 17, 16, {"1a2b3c4d": 9}), 3: Position(7)}},
    stores={
        "totals": StoreSnapshot(LAYOUT, {0: Part((FULL, DELTA), 51_812), 1: Part((), None)}, "aa")
    },
)
TEXT = (
    '{"format":1,"app":"shop","topology":"[1, 2]","number":41,"run":"a run","made_by":"run",'
    '"made_at_ms":1795255713000,"versions":{"streamsx":"0.1.0"},"partitions":{"orders":6},'
    '"positions":{"orders":{"0":{"next":251140,"stream_time":17,"high":16,'
    '"readers":{"1a2b3c4d":9}},"3":{"next":7,"stream_time":-1,"high":-1}}},'
    '"stores":{"totals":{"partitions":{"0":{"chain":['
    '{"file":"sst/totals/0/000000000040-00000000000000000000000000000000.sst",'
    '"rows":3,"bytes":1000,"crc32c":7,"full":true},'
    '{"file":"sst/totals/0/000000000041-ffffffffffffffffffffffffffffffff.sst",'
    '"rows":1,"bytes":900,"crc32c":8,"full":false}],"changelog_next":51812},'
    '"1":{"chain":[],"changelog_next":null}},"changelog_id":"aa","format":' + LAYOUT + "}}}"
)


def test_manifest_is_written_as_this_text() -> None:
    assert MANIFEST.to_json().decode() == TEXT


def test_manifest_is_read_from_this_text() -> None:
    assert Manifest.from_json(TEXT.encode(), "here") == MANIFEST


def test_manifest_of_before_some_fields_is_read() -> None:
    text = TEXT.replace('"stream_time":-1,"high":-1', '"stream_time":-1')
    text = text.replace(',"readers":{"1a2b3c4d":9}', "").replace('"changelog_id":"aa",', "")
    positions = {"orders": {0: Position(251_140, 17, 16), 3: Position(7)}}
    stores = {"totals": MANIFEST.stores["totals"]._replace(changelog_id=None)}
    expected = replace(MANIFEST, positions=positions, stores=stores)
    assert Manifest.from_json(text.encode(), "here") == expected


def test_manifest_of_a_later_format_is_refused() -> None:
    with pytest.raises(IncompatibleStore, match="expected 1, found 2"):
        Manifest.from_json(TEXT.replace('"format":1', '"format":2', 1).encode(), "here")


def test_files_of_a_snapshot_are_named_so() -> None:
    assert manifest_name(41) == "manifests/000000000041.json"
    made = sst_name("totals", 3, 41)
    assert re.fullmatch(r"sst/totals/3/000000000041-[0-9a-f]{32}\.sst", made)


def test_manifest_lies_under_its_name(tmp_path: Path) -> None:
    files = open_files(f"file://{tmp_path}/root")
    commit(files, MANIFEST, before=None)
    found = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert [str(path.relative_to(tmp_path / "root")) for path in found] == [manifest_name(41)]
    assert found[0].read_text() == TEXT


def memory() -> RocksMemory:
    return RocksMemory(blocks_bytes=1 << 20, buffers_bytes=1 << 20)


def test_file_of_a_chain_holds_rows_under_their_local_keys(tmp_path: Path) -> None:
    writer = SstWriter(tmp_path / "0.sst")
    writer.put(b'\x01"a"', b"1")
    writer.put(b'\x01"b"', None)
    made = writer.finish()
    assert made is not None
    assert made[0] == 2
    db = Rdict(str(tmp_path / "db"), options(memory()))
    db[b'\x01"b"'] = b"2"
    ingest(db, tmp_path / "0.sst")
    assert dict(db.items()) == {b'\x01"a"': b"1"}
    db.close()


def test_kept_snapshot_is_built_into_these_rows(tmp_path: Path) -> None:
    folder = unpack("snapshot", tmp_path)
    files = open_files(f"file://{folder}")
    manifest = newest(files)
    assert manifest is not None
    store = manifest.stores["counts"]
    assert (manifest.app, manifest.number, manifest.made_by) == ("wc-kept", 0, "compact")
    for partition, (rows, position) in enumerate(((25, 25), (26, 26))):
        part = store.partitions[partition]
        for sst in part.chain:
            assert checksum(folder / sst.file) == sst.crc32c
        build(files, part, position, tmp_path / "built" / str(partition), store.layout)
        db = Rdict(str(tmp_path / "built" / str(partition)), options(memory()))
        found = dict(db.items())
        db.close()
        assert found.pop(b"\x00format") == store.layout.encode()
        assert found.pop(b"\x00offset") == bytes([0] * 7 + [position])
        assert len(found) == rows
        for key, value in found.items():
            assert isinstance(key, bytes)
            assert key.startswith(b'\x01"')
            assert int(value) > 0
