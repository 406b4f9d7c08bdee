"""Files of the embedded broker: segments with their batches, notes beside them, its folder."""

from pathlib import Path

from streamsx.broker.log import appending
from streamsx.broker.log.log import Log
from streamsx.broker.log.segment import Descriptors
from streamsx.protocol.record_batch import Builder, columns, marker
from streamsx.testing import Broker

AT = 1_700_000_000_000
MOST = 1 << 20
THREE = bytes.fromhex(
    "0000000000000000 0000004a 00000000 02 df4a9183 0000 00000002"  # offset, length, crc, last
    "0000018bcfe56800 0000018bcfe56802 ffffffffffffffff ffff ffffffff 00000003"
    "1000000002610231 00 0e00020202620100 0e000404010233 00"
)
"""a=1, b deleted, 3 without a key; of no producer."""
ONE = bytes.fromhex(
    "0000000000000003 0000003e 00000000 02 14ced25f 0000 00000000"
    "0000018bcfe56800 0000018bcfe56800 00000000000003e8 0002 00000007 00000001"
    "18 00 00 00 02 61 02 31 02 02 68 02 78"
)
"""a=1 with a header; of producer 1000, epoch 2, from sequence 7."""
MARKER = (
    "0000000000000000 00000042 ffffffff 02 {crc} 0030 00000000"
    "0000018bcfe56800 0000018bcfe56800 00000000000003e8 0002 ffffffff 00000001"
    "20 00 00 00 08 0000 {decision} 0c 0000 00000000 00"
)


def opened(folder: Path) -> Log:
    return Log(folder, Descriptors(), segment_bytes=100, clean=True, sync=False)


def fill(folder: Path) -> Log:
    """Append two batches to a new log; each fills a segment."""
    log = opened(folder)
    three, one = Builder(MOST), Builder(MOST)
    three.append(AT, b"a", b"1")
    three.append(AT + 1, b"b", None)
    three.append(AT + 2, None, b"3")
    one.append(AT, b"a", b"1", [("h", b"x")])
    appending.append(log, memoryview(three.close(-1, -1, -1)), MOST)
    appending.append(log, memoryview(one.close(1000, 2, 7)), MOST)
    return log


def test_segments_are_named_by_their_first_offset_and_hold_these_bytes(tmp_path: Path) -> None:
    fill(tmp_path / "t-0").close()
    found = {path.name: path.read_bytes().hex(" ") for path in (tmp_path / "t-0").iterdir()}
    assert found == {
        "00000000000000000000.log": THREE.hex(" "),
        "00000000000000000003.log": ONE.hex(" "),
    }


def test_segments_of_these_bytes_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / "00000000000000000000.log").write_bytes(THREE)
    (folder / "00000000000000000003.log").write_bytes(ONE)
    log = opened(folder)
    assert (log.start, log.end) == (0, 4)
    first, second = columns(log.read(0, 1), 0), columns(log.read(3, 1), 3)
    log.close()
    rows = zip(first.offsets, first.keys, first.values, first.timestamps, strict=True)
    assert list(rows) == [(0, b"a", b"1", AT), (1, b"b", None, AT + 1), (2, None, b"3", AT + 2)]
    assert (list(second.offsets), second.keys, second.values) == ([3], [b"a"], [b"1"])


def test_notes_beside_segments_are_named_and_written_so(tmp_path: Path) -> None:
    log = fill(tmp_path / "t-0")
    log.delete_before(1)
    log.compacted = [(1, AT), (3, AT + 5)]
    log.note_compacted()
    log.note_failure()
    log.close()
    notes = [path for path in (tmp_path / "t-0").iterdir() if path.suffix != ".log"]
    assert {path.name: path.read_text() for path in notes} == {
        "start": "1",
        "compacted": "1 1700000000000 3 1700000000005",
        "unflushed": "0 4",
    }


def test_notes_beside_segments_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    fill(folder).close()
    (folder / "start").write_text("2")
    (folder / "compacted").write_text("1 1700000000000 3 1700000000005")
    (folder / "unflushed").write_text("0 4")
    log = opened(folder)
    assert (log.start, log.end) == (2, 4)
    assert log.compacted == [(1, AT), (3, AT + 5)]
    log.close()
    assert not (folder / "unflushed").exists(), "it is written again, and noted no more"


def test_note_of_merged_segments_is_heeded(tmp_path: Path) -> None:
    """A kill amid a compaction leaves the segment that stands in the one before it by now."""
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / "00000000000000000000.log").write_bytes(THREE + ONE)
    (folder / "00000000000000000003.log").write_bytes(ONE)
    (folder / "merged").write_text("3")
    log = opened(folder)
    assert log.end == 4
    log.close()
    assert [path.name for path in folder.iterdir()] == ["00000000000000000000.log"]


def test_markers_of_transactions_are_these_bytes() -> None:
    committed = MARKER.format(crc="faf14181", decision="0001")
    aborted = MARKER.format(crc="0ecf97c9", decision="0000")
    for text, commit in ((committed, True), (aborted, False)):
        assert marker(1000, 2, AT, commit=commit).hex(" ") == bytes.fromhex(text).hex(" ")


def test_folder_of_a_broker_has_these_files(tmp_path: Path) -> None:
    folder = tmp_path / "broker"

    def found() -> set[str]:
        names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        return {name for name in names if not name.startswith("meta/")}

    with Broker(folder, topics={"t": 2}):
        assert found() == {"lock", "logs", "logs/t-0", "logs/t-1", "meta"}
    assert found() == {"clean", "lock", "logs", "logs/t-0", "logs/t-1", "meta"}
