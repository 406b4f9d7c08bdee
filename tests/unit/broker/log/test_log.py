"""Log of a partition: records come out as they went in, torn ends are cut off, repeats are stored
once.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamsx.broker.log import appending
from streamsx.broker.log.compaction import MADE
from streamsx.broker.log.expanding import Expansions
from streamsx.broker.log.log import Log
from streamsx.broker.log.segment import INDEX_INTERVAL_BYTES, Descriptors, Segment
from streamsx.broker.refusal import Refused
from streamsx.errors import CorruptRecord
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import CONTROL, Builder, columns, scan, stamp

MOST = 1 << 20
ATTRIBUTES_END = 22


def batch(
    *values: bytes, time: int = 1000, pid: int = -1, epoch: int = -1, seq: int = -1
) -> bytearray:
    builder = Builder(MOST)
    for i, value in enumerate(values):
        builder.append(time + i, None, value)
    return builder.close(pid, epoch, seq)


def append(log: Log, *values: bytes, **about: int) -> int:
    return appending.append(log, memoryview(batch(*values, **about)), MOST)


def refusal(log: Log, records: bytes | bytearray) -> ErrorCode:
    before = log.end, log.read(log.start, MOST)
    with pytest.raises(Refused) as refused:
        appending.append(log, memoryview(bytearray(records)), MOST)
    assert (log.end, log.read(log.start, MOST)) == before
    return refused.value.code


def values(log: Log, offset: int = 0, most: int = MOST) -> list[bytes | None]:
    """Return all values that readers see from an offset on."""
    found: list[bytes | None] = []
    while data := log.read(offset, most):
        part = columns(data, offset)
        found += part.values
        offset = part.next_offset
    return found


Opens = Callable[..., Log]


@pytest.fixture
def opens(tmp_path: Path) -> Opens:
    """Open the log of the test, again and again."""

    def opens(*, segment_bytes: int = 1 << 26, clean: bool = False, sync: bool = False) -> Log:
        return Log(
            tmp_path / "t-0", Descriptors(), segment_bytes=segment_bytes, clean=clean, sync=sync
        )

    return opens


@pytest.mark.parametrize("left", [0, 10, 70, 150, -5])
def test_shortened_segment_file_raises_os_error(opens: Opens, left: int) -> None:
    """A request for times closed its connection, and a reader got a part of a batch, for ever."""
    log = opens()
    append(log, b"a", b"b")
    append(log, b"c", b"d", time=2000)
    size = log.size
    os.truncate(log.segments[0].path, left % size)
    for ask in (lambda: log.read(2, MOST), lambda: log.at_time(2000), log.newest):
        with pytest.raises(OSError, match="the file is shorter than it was"):
            ask()


@pytest.mark.parametrize("length", [-12, 0, 48, 1 << 30])
def test_damaged_batch_length_raises_os_error(opens: Opens, length: int) -> None:
    """A search for a later offset ran in a circle, and no other client was served."""
    log = opens()
    for value in (b"a", b"b", b"c"):
        append(log, value)
    with log.segments[0].path.open("r+b") as file:
        file.seek(8)
        file.write(length.to_bytes(4, signed=True))
    with pytest.raises(OSError, match=r"a batch of .* bytes"):
        log.read(0, MOST)
    if length < 1 << 30:
        with pytest.raises(OSError, match=r"a batch of .* bytes"):
            log.read(1, MOST)


def test_file_with_foreign_name_is_ignored(opens: Opens) -> None:
    log = opens()
    append(log, b"a")
    (stray := log.folder / "copy of 0.log").write_bytes(b"x")
    assert values(opens()) == [b"a"]
    assert stray.exists()


def test_appended_records_read_with_rising_offsets(opens: Opens) -> None:
    log = opens()
    assert [append(log, b"a", b"b"), append(log, b"c")] == [0, 2]
    assert (log.start, log.end, log.high_watermark) == (0, 3, 3)
    assert values(log) == [b"a", b"b", b"c"]
    assert values(log, 2) == [b"c"]
    assert log.read(3, MOST) == b""


def test_read_inside_batch_returns_whole_batch(opens: Opens) -> None:
    log = opens()
    append(log, b"a", b"b", b"c")
    (found,) = [header for _, _, header in scan(log.read(2, MOST), check=True)]
    assert (found.base_offset, found.records) == (0, 3)


def test_first_batch_read_whole_beyond_byte_limit(opens: Opens) -> None:
    log = opens()
    append(log, bytes(5000))
    append(log, b"next")
    data = log.read(0, 1)
    assert [header.records for _, _, header in scan(data, check=True)] == [1]
    assert len(log.read(0, 6000)) > len(data)


def test_log_unchanged_after_reopening(opens: Opens) -> None:
    log = opens(segment_bytes=300)
    for i in range(20):
        append(log, b"%d" % i, time=1000 * i)
    assert len(log.segments) > 3
    log.close()
    again = opens(segment_bytes=300)
    assert values(again) == values(log) == [b"%d" % i for i in range(20)]
    assert append(again, b"next") == 20


@pytest.mark.parametrize("segment_bytes", [300, 1 << 26])
def test_records_found_by_time(opens: Opens, segment_bytes: int) -> None:
    log = opens(segment_bytes=segment_bytes)
    for i in range(0, 300, 3):
        append(log, b"x" * 40, b"y", b"z", time=1000 + 10 * i)
    assert log.at_time(0) == (0, 1000)
    assert log.at_time(1001) == (1, 1001)
    assert log.at_time(1003) == (3, 1030)
    assert log.at_time(2500) == (150, 2500)
    assert log.at_time(3972) == (299, 3972)
    assert log.at_time(3973) is None
    assert log.newest() == (299, 3972)


def test_empty_log_has_no_times(opens: Opens) -> None:
    log = opens()
    assert (log.at_time(0), log.newest()) == (None, None)


def test_deleted_records_stay_deleted_after_reopening(opens: Opens, tmp_path: Path) -> None:
    log = opens(segment_bytes=300)
    for i in range(20):
        append(log, b"%d" % i)
    log.delete_before(11)
    log.delete_before(4)
    assert (log.start, log.end) == (11, 20)
    assert values(log, 11) == [b"%d" % i for i in range(11, 20)]
    assert log.at_time(0) == (11, 1000)
    files = len(list((tmp_path / "t-0").glob("*.log")))
    assert files < 10
    log.close()
    again = opens(segment_bytes=300)
    assert (again.start, values(again, 11)) == (11, values(log, 11))


def test_log_deleted_to_end_continues_at_same_offset(opens: Opens) -> None:
    log = opens()
    append(log, b"a", b"b")
    log.delete_before(2)
    (path,) = [segment.path for segment in log.segments]
    log.close()
    path.write_bytes(b"")  # the machine lost its power before the records reached the disk
    again = opens()
    assert (again.start, again.end) == (2, 2)
    assert append(again, b"c") == 2
    assert values(again, 2) == [b"c"]


def test_torn_tail_cut_off_and_logged(opens: Opens, caplog: pytest.LogCaptureFixture) -> None:
    log = opens()
    append(log, b"kept")
    append(log, b"torn")
    path = log.segments[0].path
    log.close()
    path.write_bytes(path.read_bytes()[:-3])
    with caplog.at_level(logging.WARNING):
        again = opens()
    assert values(again) == [b"kept"]
    assert "was cut at byte" in caplog.text
    assert append(again, b"next") == 1


def test_cut_tail_leaves_no_bytes_after_next_append(opens: Opens) -> None:
    """A page in the middle was lost, the page after it was written: new records take the place of
    the first, and the other one would be found after them.
    """
    log = opens()
    for value in (b"kept", b"lost", b"late"):
        append(log, value)
    path = log.segments[0].path
    log.close()
    data = path.read_bytes()
    path.write_bytes(data.replace(b"lost", b"????"))
    again = opens()
    assert append(again, b"next") == 1
    again.close()
    assert values(opens()) == [b"kept", b"next"]


def test_record_located_by_index_without_full_scan(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opens()
    for n in range(2000):
        append(log, b"%d" % n)
    looked, real = list[int](), os.pread

    def pread(fd: int, count: int, at: int) -> bytes:
        looked.append(count)
        return real(fd, count, at)

    monkeypatch.setattr(os, "pread", pread)
    segment = log.segments[0]
    found = real(segment.fd, 8, segment.locate(1990))
    assert int.from_bytes(found) == 1990
    assert sum(looked) <= 2 * INDEX_INTERVAL_BYTES


def test_checksums_not_verified_after_clean_shutdown(opens: Opens) -> None:
    log = opens()
    append(log, b"kept")
    path = log.segments[0].path
    log.close()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert opens(clean=True).end == 1
    assert opens(clean=False).end == 0


def test_unclean_start_flushes_segments(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opens()
    append(log, b"a")
    flushed: list[Path] = []
    monkeypatch.setattr(Segment, "flush", lambda segment: flushed.append(segment.path))
    opens(clean=True)
    assert flushed == []
    opens(clean=False)
    assert flushed == [log.segments[0].path]


def test_data_batch_with_control_bit_treated_as_damaged(opens: Opens) -> None:
    """One bit is flipped, in a file whose checksums are not checked."""
    log = opens(segment_bytes=1)
    for value in (b"a", b"b", b"c"):
        append(log, value)
    path = log.segments[1].path
    log.close()
    data = bytearray(path.read_bytes())
    data[ATTRIBUTES_END] |= CONTROL
    path.write_bytes(data)
    assert values(opens(segment_bytes=1)) == [b"a", b"c"]


@pytest.mark.parametrize("damaged", [range(1), range(1, 3)], ids=["the first", "two in a row"])
def test_damaged_inner_segments_are_skipped(
    opens: Opens, caplog: pytest.LogCaptureFixture, damaged: range
) -> None:
    log = opens(segment_bytes=200)
    for i in range(9):
        append(log, b"%d" % i * 60)
    segments = list(log.segments)
    log.close()
    lost = range(segments[damaged.start].base, segments[damaged.stop].base)
    for index in damaged:
        data = bytearray(segments[index].path.read_bytes())
        data[16] = 9
        segments[index].path.write_bytes(data)
    again = opens(segment_bytes=200)
    assert caplog.text.count("is damaged from byte") == len(damaged)
    for offset in range(9):
        kept = [b"%d" % i * 60 for i in range(offset, 9) if i not in lost]
        assert values(again, offset) == kept


@pytest.mark.parametrize("note", ["start", "unflushed", "compacted", "merged"])
def test_damaged_note_file_named_in_error(opens: Opens, tmp_path: Path, note: str) -> None:
    """It was a bare ValueError, which did not name one of a thousand files."""
    log = opens()
    append(log, b"a")
    log.close()
    path = log.folder / note
    path.write_bytes(b"1\xff2")
    with pytest.raises(OSError, match="damaged") as failed:
        opens()
    assert failed.value.filename == str(path)


def test_compaction_leftover_removed_on_open(opens: Opens) -> None:
    log = opens()
    append(log, b"a")
    log.close()
    left = log.folder / f"{0:020d}.log{MADE}"
    left.write_bytes(b"x")
    assert values(opens()) == [b"a"]
    assert not left.exists()


def full_disk(fd: int, data: memoryview, at: int, *, real: Any = os.pwrite) -> int:
    return int(real(fd, data[: len(data) // 2], at))


@pytest.mark.parametrize("segment_bytes", [1 << 26, 200], ids=["same file", "next file"])
def test_failed_write_leaves_nothing_behind(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, segment_bytes: int
) -> None:
    """A batch too large for the last file begins the next one; then the following batch fits
    again.
    """
    log = opens(segment_bytes=segment_bytes)
    append(log, b"a")
    with monkeypatch.context() as broken:
        broken.setattr("os.pwrite", full_disk)
        with pytest.raises(OSError, match=r"No space left on device: .*\.log'"):
            append(log, b"b" * 100)
        assert sum(path.stat().st_size for path in log.folder.glob("*.log")) == len(batch(b"a"))
    assert append(log, b"c") == 1
    log.close()
    again = opens(segment_bytes=segment_bytes)
    assert values(again) == [b"a", b"c"]
    assert append(again, b"d") == 2


def test_readers_see_only_flushed_records_with_sync(opens: Opens) -> None:
    log = opens(sync=True)
    woken: list[int] = []
    log.waiters[woken.append] = False
    append(log, b"a")
    mark = log.mark()
    append(log, b"b")
    assert (log.end, log.high_watermark, log.read(0, MOST), woken) == (2, 0, b"", [])
    log.flush()
    log.flushed_to(mark)
    assert (values(log), woken) == ([b"a"], [len(batch(b"a"))])
    log.flushed_to(log.mark())
    assert (values(log), woken) == ([b"a", b"b"], [len(batch(b"a"))] * 2)


def test_flushes_ending_out_of_order_keep_high_watermark(opens: Opens) -> None:
    """A reader that had read up to there was out of range, and began at 0 (seeds 1054 and 1113)."""
    log = opens(sync=True)
    append(log, b"a")
    earlier = log.mark()
    append(log, b"b")
    log.flushed_to(log.mark())
    log.flushed_to(earlier)
    assert (log.high_watermark, values(log)) == (2, [b"a", b"b"])


def test_waiters_woken_by_append_and_close(opens: Opens) -> None:
    log = opens()
    woken: list[int] = []
    log.waiters[woken.append] = False
    append(log, b"a")
    log.close()
    assert woken[0] == len(batch(b"a"))
    assert woken[1] > 1 << 60


# Files.


def test_segment_rolls_when_batch_does_not_fit(opens: Opens) -> None:
    size = len(batch(b"x"))
    log = opens(segment_bytes=2 * size)
    for _ in range(5):
        append(log, b"x")
    assert [segment.base for segment in log.segments] == [0, 2, 4]
    append(log, b"x" * 3 * size)
    append(log, b"x")
    assert [segment.base for segment in log.segments] == [0, 2, 4, 5, 6]
    assert {path.name: path.stat().st_size for path in log.folder.glob("*.log")} == {
        segment.path.name: segment.size for segment in log.segments
    }


def test_segment_flushed_before_next_begins(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opens(segment_bytes=1)
    synced: list[int] = []
    monkeypatch.setattr("os.fdatasync", lambda fd: synced.append(os.fstat(fd).st_ino))
    append(log, b"a")
    assert synced == []
    append(log, b"b")
    log.flush()
    assert synced == [segment.path.stat().st_ino for segment in log.segments]


def test_segments_deleted_once_all_records_are_deleted(opens: Opens) -> None:
    log = opens(segment_bytes=1)
    for _ in range(4):
        append(log, b"x")
    log.delete_before(1)
    assert [segment.base for segment in log.segments] == [1, 2, 3]
    log.close()
    (log.folder / "start").write_text("3")  # and then it was killed
    again = opens(segment_bytes=1)
    assert [path.name for path in log.folder.glob("*.log")] == [f"{3:020d}.log"]
    assert (again.start, values(again, 3)) == (3, [b"x"])


def test_least_recently_used_descriptor_is_closed(tmp_path: Path) -> None:
    descriptors, (a, b, c) = Descriptors(limit=2), [tmp_path / name for name in "abc"]
    for path in (a, b, a, c):
        descriptors.of(path)
    assert list(descriptors._open) == [a, c]
    for path in (a, c):
        descriptors.close(path)


@pytest.mark.parametrize("at", [7, 15], ids=["base offset", "leader epoch"])
def test_unchecksummed_fields_verified_after_crash(opens: Opens, at: int) -> None:
    log = opens()
    for value in (b"a", b"b", b"c"):
        append(log, value)
    path, second = log.segments[0].path, len(batch(b"a"))
    log.close()
    data = bytearray(path.read_bytes())
    data[second + at] ^= 4
    path.write_bytes(data)
    assert values(opens()) == [b"a"]


# Times, and what readers see.


def test_records_found_by_time_with_clock_going_back(opens: Opens) -> None:
    log = opens(segment_bytes=1 << 26)
    for time in (1000, 5000, 2000, 3000):
        append(log, b"x" * 5000, time=time)
    assert log.at_time(1500) == (1, 5000)
    assert log.at_time(5001) is None
    assert log.newest() == (1, 5000)


def test_unflushed_records_not_found_by_time_with_sync(opens: Opens) -> None:
    log = opens(sync=True)
    append(log, b"a", time=1000)
    log.flushed_to(log.mark())
    append(log, b"b", time=2000)
    assert (log.at_time(500), log.at_time(1500), log.newest()) == ((0, 1000), None, None)


def test_all_records_visible_after_restart_with_sync(opens: Opens) -> None:
    log = opens(sync=True)
    append(log, b"a")
    log.close()
    again = opens(sync=True)
    assert (again.high_watermark, values(again)) == (1, [b"a"])


# What is refused.


def test_append_refuses_anything_but_one_whole_v2_batch(opens: Opens) -> None:
    log, good = opens(), batch(b"a")
    append(log, b"before")
    old, damaged = bytearray(good), bytearray(good)
    old[16] = 1
    damaged[-1] ^= 1
    invalid = ErrorCode.INVALID_RECORD
    assert refusal(log, b"") == invalid
    assert refusal(log, good[:40]) == invalid
    assert refusal(log, good[:-1]) == invalid
    assert refusal(log, good + good) == invalid
    assert refusal(log, old) == invalid
    with pytest.raises(CorruptRecord):
        appending.append(log, memoryview(damaged), MOST)
    assert refusal(log, batch(bytes(MOST - 70))) == ErrorCode.MESSAGE_TOO_LARGE
    with pytest.raises(Refused):
        appending.append(log, None, MOST)


@pytest.mark.parametrize(
    ("at", "what"), [(23, b"\xff\xff\xff\xff"), (57, b"\0\0\0\2"), (57, b"\0\0\0\0"), (22, b"\x20")]
)
def test_append_refuses_inconsistent_batch_fields(opens: Opens, at: int, what: bytes) -> None:
    records = batch(b"a")
    records[at : at + len(what)] = what
    stamp(records, -1, -1, -1)  # its checksum is right
    assert refusal(opens(), records) == ErrorCode.INVALID_RECORD


def test_append_refuses_transactional_batch_without_transaction(opens: Opens) -> None:
    builder = Builder(MOST, transactional=True)
    builder.append(1, None, b"a")
    assert refusal(opens(), builder.close(1, 0, 0)) == ErrorCode.INVALID_TXN_STATE


# Idempotence.


def test_repeated_batch_answered_with_original_offset(opens: Opens) -> None:
    log = opens()
    for seq in range(6):
        append(log, b"%d" % seq, pid=7, epoch=0, seq=seq)
    assert [append(log, b"again", pid=7, epoch=0, seq=seq) for seq in (5, 1)] == [5, 1]
    assert log.end == 6
    too_old = batch(b"0", pid=7, epoch=0, seq=0)
    assert refusal(log, too_old) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_repeated_batch_recognised_after_crash(opens: Opens) -> None:
    log = opens(segment_bytes=200)
    for seq in range(9):
        append(log, b"x" * 50, pid=7, epoch=0, seq=seq)
    again = opens(segment_bytes=200)
    assert append(again, b"x" * 50, pid=7, epoch=0, seq=8) == 8
    assert again.end == 9
    gap = batch(b"x", pid=7, epoch=0, seq=10)
    assert refusal(again, gap) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_new_producer_epoch_starts_at_zero_and_fences_old_epoch(opens: Opens) -> None:
    log = opens()
    append(log, b"a", pid=7, epoch=0, seq=0)
    late = batch(b"b", pid=7, epoch=1, seq=1)
    assert refusal(log, late) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(log, b"b", pid=7, epoch=1, seq=0)
    zombie = batch(b"z", pid=7, epoch=0, seq=1)
    assert refusal(log, zombie) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_unknown_producer_accepted_at_any_sequence(opens: Opens) -> None:
    assert append(opens(), b"a", pid=7, epoch=3, seq=12) == 0


def test_producer_sequence_wraps_to_zero(opens: Opens) -> None:
    log = opens()
    append(log, b"a", b"b", pid=7, epoch=0, seq=2**31 - 1)
    assert append(log, b"c", pid=7, epoch=0, seq=1) == 2
    assert append(log, b"a", b"b", pid=7, epoch=0, seq=2**31 - 1) == 0


def test_idempotent_producer_without_sequence_refused(opens: Opens) -> None:
    assert refusal(opens(), batch(b"a", pid=7, epoch=0, seq=-1)) == ErrorCode.INVALID_RECORD


def test_producer_id_zero_is_deduplicated(opens: Opens) -> None:
    log = opens()
    assert [append(log, b"a", pid=0, epoch=0, seq=0) for _ in range(2)] == [0, 0]


def test_producers_remembered_up_to_limit(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamsx.broker.log.producer_state.PRODUCERS_MAX", 2)
    log = opens()
    for pid in (1, 2):
        append(log, b"a", pid=pid, epoch=0, seq=0)
    for pid in (1, 2):
        gap = batch(b"b", pid=pid, epoch=0, seq=2)
        assert refusal(log, gap) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_least_recent_producer_forgotten_beyond_limit(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamsx.broker.log.producer_state.PRODUCERS_MAX", 2)
    log = opens()
    for pid in (1, 2, 1, 3):
        append(log, b"a", pid=pid, epoch=0, seq=int(pid == 1 and log.end > 1))
    assert append(log, b"a", pid=2, epoch=0, seq=0) == 4
    assert append(log, b"a", pid=1, epoch=0, seq=5) == 5


def test_log_with_damaged_rest_ends_there_for_readers(opens: Opens) -> None:
    log = opens(segment_bytes=200)
    for i in range(3):
        append(log, b"%d" % i * 60)
    for segment in log.segments[1:]:
        segment.path.write_bytes(b"damaged")
    log.close()
    again = opens(segment_bytes=200)
    assert (again.end, values(again), values(again, 1)) == (2, [b"0" * 60], [])
    assert append(again, b"new") == 2
    assert values(again, 1) == [b"new"]


def test_descriptors_closed_and_reopened_within_limit(tmp_path: Path) -> None:
    descriptors = Descriptors(limit=3)
    logs = [
        Log(tmp_path / f"t-{i}", descriptors, segment_bytes=1 << 20, clean=False, sync=False)
        for i in range(10)
    ]
    for turn in range(3):
        for log in logs:
            assert append(log, b"%d" % turn) == turn
    assert all(values(log) == [b"0", b"1", b"2"] for log in logs)
    assert len(descriptors._open) == 3
    for log in logs:
        log.close()
    assert not descriptors._open


def test_stored_batch_has_leader_epoch_0(opens: Opens) -> None:
    """A batch of another epoch would count as damaged, and be cut off with all records after it."""
    log = opens()
    append(log, b"a")
    assert log.segments[0].path.read_bytes()[12:16] == bytes(4)


def failing(*_: object) -> None:
    raise OSError("planted")


def failed(log: Log) -> None:
    """Return a log whose next flush fails."""
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr("os.fdatasync", failing)
        with pytest.raises(OSError, match="planted"):
            log.flush()
    log.fail()


def failed_behind_a(opens: Opens) -> Log:
    """Return a log whose first record was flushed, and whose second one was not."""
    log = opens()
    append(log, b"a")
    log.flush()
    log.flushed_to(log.mark())
    append(log, b"b")
    failed(log)
    log.close()
    return log


@pytest.mark.parametrize("clean", [False, True])
def test_failed_flush_with_sync_drops_unflushed_records(opens: Opens, clean: bool) -> None:
    log = opens(segment_bytes=1, sync=True)
    append(log, b"a")
    log.flush()
    log.flushed_to(log.mark())
    append(log, b"b")
    append(log, b"c", pid=7, epoch=0, seq=0)
    assert len(log.segments) == 3
    failed(log)
    log.close()
    again = opens(segment_bytes=1, sync=True, clean=clean)
    assert (again.end, values(again)) == (1, [b"a"])
    assert append(again, b"c", pid=7, epoch=0, seq=0) == 1, "it is new"
    again.close()
    assert opens(sync=True).end == 2, "it was forgiven"


def test_failed_flush_without_sync_rewrites_pages_on_reopen(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux takes these pages for clean: a flush would not write them."""
    log = failed_behind_a(opens)
    size = log.segments[0].size
    done: list[object] = []

    def pwrite(fd: int, data: bytes, at: int, *, real: Any = os.pwrite) -> int:
        done.append(at)
        return int(real(fd, data, at))

    def fdatasync(fd: int, *, real: Any = os.fdatasync) -> None:
        done.append("flush")
        real(fd)

    monkeypatch.setattr("os.pwrite", pwrite)
    monkeypatch.setattr("os.fdatasync", fdatasync)
    monkeypatch.setattr("streamsx.broker.log.segment.REWRITTEN_BYTES", size - 1)
    assert values(opens()) == [b"a", b"b"]
    assert done == ["flush", 0, size - 1, "flush"]
    del done[:]
    opens()
    assert done == ["flush"]


def test_records_shown_without_sync_kept_when_reopened_with_sync(opens: Opens) -> None:
    """A flush fails, the broker is stopped, and started again with --sync."""
    failed_behind_a(opens)
    assert values(opens(sync=True)) == [b"a", b"b"]


@pytest.mark.parametrize("sync", [True, False])
def test_flush_failing_at_start_makes_next_start_rewrite(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    """The next start would flush nothing: Linux takes these pages for clean."""
    log = opens(sync=sync)
    append(log, b"a")
    log.close()
    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", failing)
        with pytest.raises(OSError, match="planted"):
            opens(sync=sync)
    written: list[int] = []

    def pwrite(fd: int, data: bytes, at: int, *, real: Any = os.pwrite) -> int:
        written.append(at)
        return int(real(fd, data, at))

    monkeypatch.setattr("os.pwrite", pwrite)
    assert values(opens(sync=sync)) == [b"a"]
    assert written == [0]


def test_flush_failing_before_roll_fails_log(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opens(segment_bytes=1)
    append(log, b"a")
    told: list[int] = []
    log.waiters[told.append] = False
    monkeypatch.setattr("os.fdatasync", failing)
    with pytest.raises(OSError, match="planted"):
        append(log, b"b")
    assert log.failed
    assert told, "who waits for more need not"


def test_flush_completed_after_failure_does_not_count(opens: Opens) -> None:
    """The next file begins during a flush, which fails: its waiters are refused."""
    log = opens(sync=True)
    append(log, b"a")
    mark = log.mark()
    log.flush()
    log.fail()
    log.flushed_to(mark)
    log.note_failure()
    log.close()
    assert values(opens(sync=True)) == []


def bomb(records: int, size: int, *, time: int = 1000) -> bytearray:
    builder = Builder(1 << 30, compression="zstd")
    for _ in range(records):
        builder.append(time, b"k", bytes(size))
    return builder.close()


@pytest.mark.parametrize(("records", "size"), [(1, 60 << 20), (900_000, 0)])
def test_one_request_expands_at_most_one_batch_limit(opens: Opens, records: int, size: int) -> None:
    """Forty batches of 2 kB took four seconds in which no other client was served."""
    log, batch = opens(), bomb(records, size)
    keyed, codes = Expansions(), list[ErrorCode]()
    for _ in range(4):
        try:
            appending.append(log, memoryview(bytearray(batch)), MOST, keyed=keyed)
        except Refused as why:
            codes.append(why.code)
    assert codes[-2:] == [ErrorCode.MESSAGE_TOO_LARGE] * 2
    append(log, b"last", time=2000)
    looked = Expansions()
    assert [log.at_time(1000, looked) for _ in range(3)] == [(0, 1000)] * 3
    assert log.at_time(2000, Expansions()) == (log.end - 1, 2000)
    assert log.at_time(2000, looked) == (log.end - 1, 2000), "coarse, not wrong"
