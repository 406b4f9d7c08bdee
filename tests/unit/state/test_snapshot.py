"""Snapshots: manifests, chains, matching apps, and torn or foreign files."""

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from rocksdict import Rdict

import streamsx
from streamsx.clock import SystemClock
from streamsx.errors import (
    IncompatibleStore,
    SnapshotFailed,
    SnapshotNotPublished,
    StateConflict,
    StoreCorrupt,
)
from streamsx.state.api import INDEX, ROW
from streamsx.state.rocks import RocksMemory, RocksRows, options
from streamsx.state.snapshot import (
    Manifest,
    Part,
    Position,
    SstFile,
    SstWriter,
    StoreSnapshot,
    Wanted,
    build,
    checksum,
    collect_garbage,
    commit,
    fetch,
    ingest,
    manifest_after,
    manifest_name,
    newest,
    part_for,
    sst_name,
)
from streamsx.state.snapshot_files import LinkFiles, SnapshotFiles

MEMORY = RocksMemory(blocks_bytes=1 << 20, buffers_bytes=8 << 20)
LAYOUT = '{"version":1,"store":"kv","key":"str","topic":"shop-totals-changelog","partitions":6}'
FILE = SstFile("sst/totals/0/000000000041-" + "0" * 32 + ".sst", 3, 1000, 7, full=True)
MANIFEST = Manifest(
    app="shop",
    topology="9f3c",
    number=41,
    run="a run",
    made_by="run",
    made_at_ms=1795255713000,
    versions={"streamsx": "0.1.0"},
    partitions={"orders": 6},
    positions={"orders": {0: Position(251140, 1700000400000, 1700000399000), 3: Position(7)}},
    stores={"totals": StoreSnapshot(LAYOUT, {0: Part((FILE,), 51812), 1: Part((), None)}, "aa")},
)


@pytest.fixture
def files(tmp_path: Path) -> SnapshotFiles:
    return LinkFiles(tmp_path / "root", "file:root")


Row = tuple[bytes, bytes | None]


def write(
    files: SnapshotFiles, tmp_path: Path, rows: Iterable[Row], *, full: bool = True, number: int = 0
) -> SstFile:
    """Publish one file of the chain of totals-0."""
    writer = SstWriter(local := tmp_path / "local.sst")
    for key, value in rows:
        writer.put(key, value)
    made = writer.finish()
    assert made is not None
    name = sst_name("totals", 0, number)
    files.publish(local, name)
    local.unlink()
    return SstFile(name, *made, full)


def held(path: Path, layout: str = LAYOUT) -> tuple[dict[bytes, bytes], int | None]:
    """Return the rows that a worker finds in that folder."""
    rows = RocksRows(path, MEMORY, layout)
    try:
        return dict(rows.scan(ROW, INDEX)), rows.position()
    finally:
        rows.close()


# -- manifests


def test_manifest_roundtrips_through_json() -> None:
    assert Manifest.from_json(MANIFEST.to_json(), "here") == MANIFEST
    bare = Manifest("shop", "", 0, "", "compact", 0)
    assert Manifest.from_json(bare.to_json(), "here") == bare
    document = json.loads(MANIFEST.to_json())
    assert document["format"] == 1
    assert document["stores"]["totals"]["format"] == json.loads(LAYOUT)
    assert document["positions"]["orders"]["3"] == {"next": 7, "stream_time": -1, "high": -1}


def test_manifest_fields_of_other_versions_are_left_out() -> None:
    """A version that changes state without knowing these fields would pass on wrong ones."""
    document = json.loads(MANIFEST.to_json())
    document["query"] = {"token": "token", "base": 17}  # manifests had it once
    document["later"] = {"than": "this"}
    document["positions"]["orders"]["0"]["later"] = 1
    document["stores"]["totals"]["partitions"]["0"]["chain"][0]["later"] = 1
    assert Manifest.from_json(json.dumps(document).encode(), "here") == MANIFEST


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(MANIFEST.to_json()), **fields}).encode()


def chain(*names: object, full: object = True) -> dict[str, object]:
    each = [{"file": name, "rows": 1, "bytes": 1, "crc32c": 1, "full": full} for name in names]
    part = {"chain": each, "changelog_next": 1}
    return {"totals": {"format": {}, "partitions": {"0": part}}}


@pytest.mark.parametrize(
    "rubbish",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"7",
        b"[" * 100_000,
        MANIFEST.to_json()[:-20],
        changed(partitions=[1]),
        changed(partitions={"orders": "6"}),
        changed(number="41"),
        changed(positions={"orders": {"0": {"next": None}}}),
        changed(positions={"orders": {"zero": {"next": 1}}}),
        changed(stores={"totals": {}}),
        changed(stores={"totals": {"format": {}, "partitions": {"0": {"chain": []}}}}),
        changed(stores={"totals": {"format": {}, "partitions": {"0": {"changelog_next": 1}}}}),
        json.dumps(
            {k: v for k, v in json.loads(MANIFEST.to_json()).items() if k != "stores"}
        ).encode(),
        changed(number=True),
        changed(stores=chain("sst/../../etc/passwd")),
        changed(stores=chain("/etc/passwd")),
        changed(stores=chain(7)),
        changed(stores=chain(FILE.file, full=False)),
    ],
)
def test_invalid_manifest_is_refused_with_place(rubbish: bytes) -> None:
    with pytest.raises(IncompatibleStore, match=r"^not a manifest: here: ") as told:
        Manifest.from_json(rubbish, "here")
    assert "\n" not in str(told.value)


def test_later_manifest_format_is_refused_with_both_versions() -> None:
    with pytest.raises(IncompatibleStore, match="here: expected 1, found 2"):
        Manifest.from_json(changed(format=2), "here")


def test_newest_manifest_has_highest_number(files: SnapshotFiles) -> None:
    assert newest(files) is None
    before = None
    for number in (9, 10, 100):
        commit(files, made := replace(MANIFEST, number=number), before=before)
        before = made
    files.create("manifests/note.txt", b"")
    assert newest(files) == replace(MANIFEST, number=100)


def test_second_writer_is_refused_with_newest_snapshot(files: SnapshotFiles) -> None:
    commit(files, MANIFEST, before=None)
    second = replace(MANIFEST, number=42, run="second")
    for before, told in (
        (None, "no snapshot"),
        (replace(MANIFEST, number=40), "snapshot 40, made by run a run"),
        (replace(MANIFEST, run="another"), "snapshot 41, made by run another"),
    ):
        found = "found snapshot 41, made by run a run: "
        with pytest.raises(StateConflict, match=f"{told} to be the newest, {found}"):
            commit(files, second, before=before)
    assert newest(files) == MANIFEST
    commit(files, second, before=MANIFEST)
    assert newest(files) == second


def test_manifest_after_another_continues_number_and_stores(files: SnapshotFiles) -> None:
    held, since = MANIFEST, int(SystemClock().wall() * 1000)
    for before, number in ((None, 0), (held, 42)):
        made = manifest_after(
            before, "shop", (7, 9), "compact", partitions=held.partitions,
            positions=held.positions, stores=held.stores,
        )  # fmt: skip
        assert (made.number, made.topology, made.made_by) == (number, "[7, 9]", "compact")
        assert made.stores == held.stores
        assert made.run not in ("", held.run)
        assert made.versions["streamsx"] == streamsx.__version__
        assert made.made_at_ms >= since


def test_concurrent_commit_of_same_number_raises_state_conflict(
    files: SnapshotFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have looked; both create."""
    commit(files, MANIFEST, before=None)
    looked = files.names("manifests")
    commit(files, replace(MANIFEST, number=42), before=MANIFEST)
    monkeypatch.setattr(files, "names", lambda _: looked)
    with pytest.raises(StateConflict, match="found snapshot 42"):
        commit(files, replace(MANIFEST, number=42, run="second"), before=MANIFEST)


def test_commit_with_lost_answer_is_recognized_as_own(
    files: SnapshotFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = files.create

    def asked_twice(name: str, data: bytes) -> None:
        create(name, data)
        create(name, data)

    monkeypatch.setattr(files, "create", asked_twice)
    commit(files, MANIFEST, before=None)
    assert newest(files) == MANIFEST


def test_garbage_collection_removes_only_unreferenced_old_files(
    files: SnapshotFiles, tmp_path: Path
) -> None:
    made = [write(files, tmp_path, [(ROW + b"a", b"%d" % n)], number=n) for n in range(6)]
    orphan = [write(files, tmp_path, [(ROW + b"a", b"x")], number=n) for n in (1, 4, 5, 6, 7)]
    drafts = [f"{file.file}.{'0' * 32}.tmp" for file in orphan[:2]]
    (tmp_path / "torn").write_bytes(b"of a process that was killed")
    for draft in drafts:
        files.publish(tmp_path / "torn", draft)
    for n, file in enumerate(made):
        old = (made[0], file) if n else (file,)
        stores = {"totals": StoreSnapshot(LAYOUT, {0: Part(old, 1)})}
        commit(files, replace(MANIFEST, number=n, stores=stores), before=newest(files))
    collect_garbage(files, keep=2)
    assert files.names("manifests") == ["000000000004.json", "000000000005.json"]
    found = files.names("sst/totals/0", drafts=True)
    assert [f"sst/totals/0/{name}" for name in found if name.endswith(".tmp")] == drafts[1:]
    left = {f"sst/totals/0/{name}" for name in files.names("sst/totals/0")}
    assert left == {file.file for file in (made[0], made[4], made[5], *orphan[1:])}
    collect_garbage(files, keep=2)
    assert len(files.names("sst/totals/0")) == len(left)


@pytest.mark.parametrize("keep", [2, 1])
def test_invalid_manifest_does_not_stop_garbage_collection(
    files: SnapshotFiles, tmp_path: Path, keep: int
) -> None:
    """Neither an old one that has to go nor one that stays."""
    made = [write(files, tmp_path, [(ROW + b"a", b"%d" % n)], number=n) for n in range(6)]
    for n, file in enumerate(made):
        if n in (1, 4):
            files.create(manifest_name(n), b"{" * n)
            continue
        stores = {"totals": StoreSnapshot(LAYOUT, {0: Part((file,), 1)})}
        files.create(manifest_name(n), replace(MANIFEST, number=n, stores=stores).to_json())
    collect_garbage(files, keep=keep)
    assert len(files.names("manifests")) == keep
    left = {f"sst/totals/0/{name}" for name in files.names("sst/totals/0")}
    assert left == {made[4].file, made[5].file}
    assert newest(files) is not None


def test_manifest_under_name_of_another_number_is_refused(files: SnapshotFiles) -> None:
    files.create(manifest_name(42), MANIFEST.to_json())
    told = "another number: .*000000000042.json: expected 42, found 41: delete it"
    with pytest.raises(IncompatibleStore, match=told):
        newest(files)


# -- chains


def test_later_rows_of_chain_win_on_ingest(files: SnapshotFiles, tmp_path: Path) -> None:
    first = write(files, tmp_path, [(ROW + bytes([n]), b"old") for n in range(5)])
    delta = [(ROW + b"\x00", None), (ROW + b"\x01", b"new"), (ROW + b"\x09", b""), (INDEX, b"i")]
    second = write(files, tmp_path, delta, full=False)
    assert (first.rows, second.rows) == (5, 4)
    paths = [tmp_path / name for name in ("a", "b")]
    for sst, path in zip((first, second), paths, strict=True):
        fetch(files, sst, path)
    db = Rdict(str(tmp_path / "db"), options(MEMORY))
    for path in paths:
        ingest(db, path)
    found = dict(db.items())
    db.close()
    old = {ROW + bytes([n]): b"old" for n in (2, 3, 4)}
    assert found == {**old, ROW + b"\x01": b"new", ROW + b"\x09": b"", INDEX: b"i"}
    assert not any(path.exists() for path in paths)
    again = [checksum(tmp_path / "root" / sst.file) for sst in (first, second)]
    assert again == [first.crc32c, second.crc32c], "who ingests does not write to what is shared"


def test_writer_without_rows_makes_no_file(tmp_path: Path) -> None:
    assert SstWriter(tmp_path / "a").finish() is None
    assert not (tmp_path / "a").exists()


def test_rows_out_of_order_are_refused(tmp_path: Path) -> None:
    writer = SstWriter(tmp_path / "a")
    writer.put(ROW + b"b", b"")
    with pytest.raises(Exception, match="ascending"):
        writer.put(ROW + b"a", b"")


@pytest.mark.parametrize("torn", ["short", "long", "flipped", "empty"])
def test_torn_file_is_reported_and_not_kept(
    files: SnapshotFiles, tmp_path: Path, torn: str
) -> None:
    sst = write(files, tmp_path, [(ROW + b"%d" % n, os.urandom(20)) for n in range(10)])
    path = tmp_path / "root" / sst.file
    whole = path.read_bytes()
    flipped = bytes([*whole[:100], whole[100] ^ 1, *whole[101:]])
    path.write_bytes({"short": whole[:-1], "long": whole + b"x", "flipped": flipped}.get(torn, b""))
    with pytest.raises(StoreCorrupt, match=f"file:root/{sst.file}: expected {sst.bytes} bytes"):
        fetch(files, sst, tmp_path / "came")
    assert not (tmp_path / "came").exists()


# -- whole stores


def test_store_is_built_from_chain_with_position(files: SnapshotFiles, tmp_path: Path) -> None:
    first = write(files, tmp_path, [(ROW + b"a", b"1"), (ROW + b"b", b"2")])
    second = write(files, tmp_path, [(ROW + b"a", None)], full=False)
    build(files, Part((first, second)), 77, tmp_path / "trash" / "new", LAYOUT)
    assert held(tmp_path / "trash" / "new") == ({ROW + b"b": b"2"}, 77)
    assert [path.name for path in (tmp_path / "trash").iterdir()] == ["new"]
    with pytest.raises(IncompatibleStore):
        held(tmp_path / "trash" / "new", "another")


def test_store_without_rows_is_built_from_no_file(files: SnapshotFiles, tmp_path: Path) -> None:
    build(files, Part(), 3, tmp_path / "new", LAYOUT)
    assert held(tmp_path / "new") == ({}, 3)


def test_position_and_format_rows_in_file_are_ignored_by_build(
    files: SnapshotFiles, tmp_path: Path
) -> None:
    meta = [(b"\x00format", b"x"), (b"\x00offset", (9).to_bytes(8, "big")), (ROW + b"a", b"1")]
    build(files, Part((write(files, tmp_path, meta),)), 3, tmp_path / "new", LAYOUT)
    assert held(tmp_path / "new") == ({ROW + b"a": b"1"}, 3)


@pytest.mark.parametrize("what", ["torn", "gone", "ended", "no database"])
def test_failed_store_build_leaves_nothing(files: SnapshotFiles, tmp_path: Path, what: str) -> None:
    whole = write(files, tmp_path, [(ROW + b"a", b"1")])
    broken = write(files, tmp_path, [(ROW + b"b", b"1")], full=False)
    path = tmp_path / "root" / broken.file
    left = iter(range(3))
    expected: type[BaseException] = StoreCorrupt
    match what:
        case "torn":
            path.write_bytes(b"torn")
        case "gone":
            path.unlink()
            expected = SnapshotFailed
        case "ended":
            expected = StopIteration
        case _:  # whole, by its checksum, and yet no file of rows
            path.write_bytes(b"x" * 50)
            broken = broken._replace(bytes=50, crc32c=checksum(path))
    step = (lambda: next(left)) if what == "ended" else bool
    with pytest.raises(expected):
        build(files, Part((whole, broken)), 1, tmp_path / "trash" / "new", LAYOUT, step)
    assert list((tmp_path / "trash").iterdir()) == []


# -- what fits whom

WANTED = Wanted("shop", "totals", 0, LAYOUT, {"orders": 6}, 100, 51812, "aa")
HERE = "file:root: snapshot 41: expected"


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (WANTED._replace(app="stop"), f"of another app: {HERE} stop, found shop"),
        (WANTED._replace(store="sums"), rf"another store: {HERE} sums-0, found \['totals-0', "),
        (WANTED._replace(layout="{}"), f"of another layout: {HERE} {{}}, found {{"),
        (
            WANTED._replace(partitions={"orders": 7}),
            f"another partition count: {HERE} {{'orders': 7}}, found {{'orders': 6}}",
        ),
        (WANTED._replace(partition=2), rf"{HERE} totals-2, found \['totals-0', 'totals-1'\]"),
        (WANTED._replace(start=51813, end=60000), f"{HERE} .*51813 to 60000, found 51812"),
        (WANTED._replace(end=51811), f"{HERE} totals-0 at 100 to 51811, found 51812"),
        (WANTED._replace(changelog_id="bb"), f"of another changelog: {HERE} bb, found aa"),
        (
            WANTED._replace(end=51814, told_since_ms=MANIFEST.made_at_ms + 5_400_000),
            r"snapshot too old: .*: by 1\.5 h: .*: make a newer one",
        ),
    ],
)
def test_mismatched_snapshot_part_is_refused_with_expected_value(wanted: Wanted, told: str) -> None:
    with pytest.raises(IncompatibleStore, match=told):
        part_for(MANIFEST, wanted, "file:root")


def test_part_without_changelog_position_is_not_published() -> None:
    with pytest.raises(SnapshotNotPublished, match=r"totals is in no changelog: .*handover"):
        part_for(MANIFEST, WANTED._replace(partition=1), "file:root")


@pytest.mark.parametrize(
    "wanted",
    [
        WANTED,
        WANTED._replace(start=51812),
        WANTED._replace(end=51813, told_since_ms=MANIFEST.made_at_ms + 1),  # a marker follows
        WANTED._replace(end=51814, told_since_ms=MANIFEST.made_at_ms),
        WANTED._replace(partitions={"orders": 6, "a topic more": 6}),
    ],
)
def test_matching_part_is_accepted_with_any_topology(wanted: Wanted) -> None:
    anew = replace(MANIFEST, topology="another")
    assert part_for(anew, wanted, "file:root") == (Part((FILE,), 51812), 51812)


def test_snapshot_file_names_follow_format() -> None:
    assert manifest_name(41) == "manifests/000000000041.json"
    assert sst_name("totals", 3, 32).startswith("sst/totals/3/000000000032-")
    assert sst_name("totals", 3, 32) != sst_name("totals", 3, 32)
