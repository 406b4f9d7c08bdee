"""Cleaning of logs: as short as the topic allows, without the loss of a needed record."""

import errno
import os
import random
import re
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from streamsx.broker.log import appending, cleaning, compaction
from streamsx.broker.log.compaction import CompactionJob, FileDamaged, batches, compact
from streamsx.broker.log.log import Log
from streamsx.broker.log.segment import Descriptors, Segment
from streamsx.errors import CorruptRecord
from streamsx.protocol.record_batch import (
    CHECKED_FROM,
    HEADER_BYTES,
    LENGTH_END,
    NO_TIMESTAMP,
    Builder,
    columns,
)
from tests.support.sweeps import seeds

NOW_MS = 1_000_000
DAY_MS = 86_400_000
Row = tuple[bytes | None, bytes | None]


DESCRIPTORS = Descriptors(8)
"""Of all logs here: nobody closes them."""


def opened(folder: Path, segment_bytes: int = 400) -> Log:
    return Log(folder, DESCRIPTORS, segment_bytes=segment_bytes, clean=False, sync=False)


def append(
    log: Log, *rows: Row, time: int = NOW_MS, compression: str = "none", pid: int = -1, seq: int = 0
) -> int:
    builder = Builder(1 << 20, compression=compression)
    for key, value in rows:
        builder.append(time, key, value)
    sequence = (pid, 0, int(seq)) if pid >= 0 else (-1, -1, -1)
    return appending.append(log, memoryview(builder.close(*sequence)), 1 << 20)


def rows(log: Log, start: int | None = None) -> dict[int, Row]:
    """Return all records that readers see, by offset."""
    found: dict[int, Row] = {}
    offset = log.start if start is None else start
    while data := log.read(offset, 1 << 20):
        part = columns(data, offset)
        found.update(zip(part.offsets, zip(part.keys, part.values, strict=True), strict=True))
        offset = part.next_offset
    return found


def state(log: Log) -> dict[bytes | None, bytes]:
    """Return the table that the log makes."""
    newest = {key: value for _, (key, value) in sorted(rows(log).items())}
    return {key: value for key, value in newest.items() if value is not None}


def cleaned(
    log: Log, now_ms: int = NOW_MS, *, lag_ms: int = 0, tombstones_ms: int = DAY_MS
) -> bool:
    job = cleaning.compaction(log, now_ms, lag_ms=lag_ms, tombstones_ms=tombstones_ms)
    if job is not None:
        cleaning.put(log, job, compact(job))
    return job is not None


def filled(log: Log, rng: random.Random, count: int) -> None:
    for _ in range(count):
        several = [
            (b"k%d" % rng.randrange(20), rng.choice((None, rng.randbytes(20), rng.randbytes(60))))
            for _ in range(rng.choice((1, 1, 3, 10)))
        ]
        append(log, *several, compression=rng.choice(("none", "none", "lz4", "zstd")))


def test_damaged_segment_causes_only_one_roll(
    tmp_path: Path,
) -> None:
    """Each look closed one more file, without effect."""
    log = opened(tmp_path / "t-0", 1 << 20)
    append(log, (b"k", b"1"))
    log.roll()
    log.segments[0].damaged = True
    for _ in range(10):
        append(log, (b"k", b"2"))
        assert not cleaned(log)
    assert len(log.segments) == 2


def noted(segment: Segment) -> tuple[Any, ...]:
    found = segment._offsets, segment._positions, segment._newest, segment._indexed_to
    return segment.base, segment.next, segment.size, segment.oldest, segment.newest, *found


@pytest.mark.parametrize("seed", seeds(10, 30))
def test_compaction_keeps_newest_record_of_each_key_in_place(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = opened(tmp_path / "t-0", rng.choice((200, 1000, 5000)))
    for _ in range(4):
        filled(log, rng, rng.randint(1, 40))
        before, table, end = rows(log), state(log), log.end
        assert cleaned(log, tombstones_ms=rng.choice((0, DAY_MS)))
        after = rows(log)
        index = [noted(segment) for segment in log.segments]
        again = opened(tmp_path / "t-0", log.segment_bytes)
        assert [noted(segment) for segment in again.segments] == index, "as a start finds it"
        assert after.items() <= before.items()
        assert (state(log), log.end) == (table, end)
        assert len({key for key, _ in after.values()}) == len(after), "each is there once"
        assert not cleaned(log), "there is nothing more to do"
        for offset in rng.choices(range(log.start, end), k=5):
            assert rows(log, offset).keys() == {each for each in after if each >= offset}
        again = opened(tmp_path / "t-0", log.segment_bytes)
        assert (rows(again), again.end, again.compacted) == (after, end, log.compacted)


@pytest.mark.parametrize("piece", [1, 61, 100, 300, 1 << 20])
def test_segment_read_in_pieces_smaller_than_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    log = opened(tmp_path / "t-0", 1 << 20)
    for size in (0, 3000, 0, 200, 10):
        append(log, (b"k", b"v" * size), (b"k", b""))
    whole = log.segments[0].path.read_bytes()
    monkeypatch.setattr(compaction, "READ_BYTES", piece)
    assert b"".join(batch for _, batch in batches(log.segments[0].path)) == whole
    for cut in (1, 60, 75):  # amid the last one, or its head
        os.truncate(log.segments[0].path, len(whole) - cut)
        assert len(list(batches(log.segments[0].path, check=True))) == 4


def test_unreadable_sector_raises_and_compaction_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files were mapped: a signal ended the broker, and each later start."""
    log = opened(tmp_path / "t-0")
    filled(log, random.Random(0), 40)
    bad = log.segments[1].path

    def pread(fd: int, size: int, at: int, *, real: Any = os.pread) -> Any:
        if os.readlink(f"/proc/self/fd/{fd}") == str(bad):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, size, at)

    monkeypatch.setattr(os, "pread", pread)
    before = sorted(log.folder.iterdir())
    for reads in (lambda: cleaned(log), lambda: opened(tmp_path / "t-0")):
        with pytest.raises(OSError, match=f"{re.escape(os.strerror(errno.EIO))}.*{bad}"):
            reads()
        assert before == [path for path in sorted(log.folder.iterdir()) if path.stat().st_size]
    assert log.read(0, 1 << 20)


def nonsense(log: Log, *, compression: str = "none") -> None:
    """Return a batch with a right checksum and unreadable records, as a client may send it."""
    builder = Builder(1 << 20, compression=compression)
    builder.append(NOW_MS, b"a", b"x" * 40)
    batch = builder.close()
    batch[HEADER_BYTES] = 0x7F  # the length of its record, or the first byte of what is expanded
    batch[CHECKED_FROM - 4 : CHECKED_FROM] = crc32c(batch[CHECKED_FROM:]).to_bytes(4)
    appending.append(log, memoryview(batch), 1 << 20)


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4", "gzip"])
def test_unreadable_batch_kept_while_other_records_are_compacted(
    tmp_path: Path, compression: str
) -> None:
    """One request of a client ended the broker, and each later start of it."""
    log = opened(tmp_path / "t-0", 1 << 20)
    append(log, (b"a", b"1"), (b"b", b"1"))
    nonsense(log, compression=compression)
    append(log, (b"a", b"2"))
    assert cleaned(log)
    assert rows(log, 3) == {3: (b"a", b"2")}
    with pytest.raises(CorruptRecord, match=r"offset 2: .*damaged before it was written"):
        columns(log.read(2, 1000), 2)
    assert columns(log.read(0, 1), 0).keys == [b"b"]


def flip(path: Path, what: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(what)] ^= 1
    path.write_bytes(data)


def cut(path: Path, what: bytes) -> None:
    os.truncate(path, path.read_bytes().index(what))


@pytest.mark.parametrize("damage", [flip, cut])
def test_damaged_segment_left_unchanged_by_compaction(
    tmp_path: Path, damage: Callable[[Path, bytes], None]
) -> None:
    """A flipped byte got a right checksum, and records behind a cut were lost. Each look read the
    file again, and closed another one.
    """
    log = opened(tmp_path / "t-0", 1 << 20)
    append(log, (b"a", b"old"), (b"b", b"1"))
    append(log, (b"a", b"new"), (b"c", b"other"))
    log.roll()
    damage(log.segments[0].path, b"other")
    job = cleaning.compaction(log, NOW_MS, lag_ms=0, tombstones_ms=0)
    assert isinstance(job, CompactionJob)
    before = log.segments[0].path.read_bytes()
    with pytest.raises(FileDamaged, match=re.escape(str(log.segments[0].path))) as failed:
        compact(job)
    cleaning.leave_alone(log, failed.value.base)
    assert log.segments[0].path.read_bytes() == before
    assert not list(log.folder.glob("*.made"))
    with pytest.raises((CorruptRecord, OSError)):
        rows(log)
    for _ in range(3):
        append(log, (b"a", b"newer"))
        assert not cleaned(log)
    assert len(log.segments) == 2


def test_record_beyond_batch_offsets_does_not_supersede_others(tmp_path: Path) -> None:
    """All later records counted as older, or the broker compacted nothing any more."""
    log = opened(tmp_path / "t-0", 1 << 20)
    builder = Builder(1 << 20)
    for key in (b"a", b"b"):
        builder.append(NOW_MS, key, b"1")
    batch = builder.close()
    assert batch[HEADER_BYTES + 10 + 3] == 2, "the offset delta of the second record, in zigzag"
    batch[HEADER_BYTES + 10 + 3] = 0x7E
    batch[CHECKED_FROM - 4 : CHECKED_FROM] = crc32c(batch[CHECKED_FROM:]).to_bytes(4)
    appending.append(log, memoryview(batch), 1 << 20)
    append(log, (b"b", b"2"))
    append(log, (b"a", b"2"))
    append(log, (b"a", b"3"))
    assert cleaned(log)
    assert rows(log, 2) == {2: (b"b", b"2"), 4: (b"a", b"3")}


@pytest.mark.parametrize(("at", "mask"), [(4, 1), (7, 0x20), (15, 1)])
def test_header_bit_flip_costs_no_other_segment(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at: int, mask: int
) -> None:
    """The bit is in a base offset: all later files counted as left over and were deleted. A
    compaction merged them to one file, which ended there at the next start.
    """
    log = opened(tmp_path / "t-0", 1 << 20)
    for number in range(4):
        for key in range(5):
            append(log, (b"k%d%d" % (number, key), b"1"))
        log.roll()
    append(log, (b"last", b"1"))
    path = log.segments[0].path
    data = bytearray(path.read_bytes())
    data[len(data) * 4 // 5 + at] ^= mask
    path.write_bytes(data)
    job = cleaning.compaction(log, NOW_MS, lag_ms=0, tombstones_ms=0)
    assert isinstance(job, CompactionJob)
    with pytest.raises(FileDamaged, match="a batch at"):
        compact(job)
    log.close()
    log = opened(tmp_path / "t-0", 1 << 20)
    assert [segment.damaged for segment in log.segments[:4]] == [True, False, False, False]
    assert list(rows(log)) == [0, 1, 2, 3, *range(5, 21)]
    assert caplog.text.count("is damaged from byte") == 1


@pytest.mark.parametrize("seed", seeds(4, 10))
def test_compaction_learns_limited_number_of_keys_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A compressed log of 256 MiB would have held 15 GiB of keys."""
    rng = random.Random(seed)
    monkeypatch.setattr(compaction, "KEYS_MAX", 4)
    log = opened(tmp_path / "t-0", rng.choice((200, 1000, 5000)))
    filled(log, rng, 40)
    table, reached = state(log), list[int]()
    while cleaned(log, NOW_MS + len(reached), tombstones_ms=rng.choice((0, 3, DAY_MS))):
        assert state(log) == table
        reached.append(cleaning.compacted_to(log))
        assert bool(cleaning.dirty(log)) == (reached[-1] < log.end)
    again = opened(tmp_path / "t-0")
    assert (rows(again), again.compacted) == (rows(log), log.compacted)
    assert reached == sorted(set(reached))
    assert (len(reached) > 3, reached[-1]) == (True, log.end)
    keys = [key for key, value in rows(log).values() if value is not None]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("what", ["rename", "kill"])
def test_failed_merge_leaves_no_note_deleting_segments_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The note of a failed merge stayed: after a flipped bit it deleted the files again."""
    log = opened(tmp_path / "t-0", 1)
    for key in range(4):
        append(log, (b"k%d" % key, b"1"))
    log.segment_bytes = 1 << 20

    def refused(path: Path, to: Path, *, real: Any = Path.rename) -> Path:
        if path.suffix == ".made":
            raise Killed if what == "kill" else OSError("planted")
        return Path(real(path, to))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "rename", refused)
        with pytest.raises(Killed if what == "kill" else OSError):
            cleaned(log)
    if what == "kill":
        log = opened(tmp_path / "t-0", 1)
    path = log.segments[0].path
    data = bytearray(path.read_bytes())
    data[7] ^= 2
    path.write_bytes(data)
    assert list(rows(opened(tmp_path / "t-0", 1))) == [1, 2, 3]


def test_compaction_keeps_as_many_producers_as_log_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "PRODUCERS_MAX", 3)
    log = opened(tmp_path / "t-0", 1 << 20)
    for pid in (0, 1, 2, 3, 4, 1, 9):
        append(log, (b"a", b"1"), pid=pid, seq=pid == 1 and log.end > 2)
    append(log, (b"a", b"2"))
    assert cleaned(log)
    assert [header.producer_id for header, _ in batches(log.segments[0].path)] == [4, 1, 9, -1]


def test_newest_record_found_after_compaction(tmp_path: Path) -> None:
    """The header of an emptied batch still has its time."""
    log = opened(tmp_path / "t-0", 1 << 20)
    append(log, (b"a", b"1"), time=NOW_MS + 9, pid=7)
    append(log, (b"b", b"1"), time=NOW_MS + 5)
    append(log, (b"a", b"2"), time=NOW_MS)
    assert cleaned(log, NOW_MS + 10)
    assert log.newest() == opened(tmp_path / "t-0").newest() == (1, NOW_MS + 5)


def test_compaction_remembers_digests_of_long_keys(tmp_path: Path) -> None:
    """Each key took its length in memory, however well it was compressed."""
    log, long = opened(tmp_path / "t-0", 1 << 20), bytes(500_000)
    for number in range(3):
        append(log, (long + b"1", b"%d" % number), compression="zstd")
    append(log, (long + b"2", b"x"), compression="zstd")
    log.roll()
    job = cleaning.compaction(log, NOW_MS, lag_ms=0, tombstones_ms=0)
    assert isinstance(job, CompactionJob)
    sieve = compaction.CompactionFilter(job)
    sieve.learn(job.files[0])
    assert sum(map(len, sieve.newest)) < 100
    assert cleaned(log)
    assert list(rows(log)) == [2, 3]


def test_compaction_reads_batch_record_by_record_in_bounded_memory(tmp_path: Path) -> None:
    """A few kilobytes hold millions of equal records."""
    log, builder = opened(tmp_path / "t-0", 1 << 20), Builder(1 << 26, compression="zstd")
    for _ in range(100_000):
        builder.append(NOW_MS, b"a", b"1")
    appending.append(log, memoryview(builder.close()), 1 << 20)
    log.roll()
    job = cleaning.compaction(log, NOW_MS, lag_ms=0, tombstones_ms=0)
    assert isinstance(job, CompactionJob)
    tracemalloc.start()
    made = compact(job)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    cleaning.put(log, job, made)
    assert list(rows(log)) == [99_999]
    assert peak < 8 << 20


def test_damaged_batch_length_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the file was read into memory, twice, before it was known to be no batch."""
    log = opened(tmp_path / "t-0", 1 << 30)
    append(log, (b"k", b"1"))
    path, size, asked = log.segments[0].path, log.size, list[int]()
    with path.open("r+b") as file:
        file.write(path.read_bytes() * 2)
        file.seek(size + LENGTH_END - 4)
        file.write((1 << 30).to_bytes(4))
        file.truncate(100 << 20)

    def pread(fd: int, size: int, at: int, *, real: Any = os.pread) -> Any:
        asked.append(size)
        return real(fd, size, at)

    monkeypatch.setattr(os, "pread", pread)
    assert len(list(batches(path))) == 1
    assert max(asked) == compaction.READ_BYTES


def test_failed_flush_after_compaction_loses_only_unflushed_records(
    tmp_path: Path,
) -> None:
    """The compacted file was cut at its first hole, as if it were the last file (seed 387)."""
    log = Log(tmp_path / "t-0", DESCRIPTORS, segment_bytes=10_000, clean=False, sync=True)
    for number in range(6):
        append(log, (b"k%d" % (number % 2), b"v%d" % number))
    append(log, (b"k0", b"newest"))
    log.flush()
    log.flushed_to(log.mark())
    assert cleaned(log)
    kept = state(log)
    append(log, (b"k1", b"nobody was told of it"))
    log.fail()
    log.close()
    for _ in range(2):
        log = Log(tmp_path / "t-0", DESCRIPTORS, segment_bytes=10_000, clean=False, sync=True)
        assert (state(log), log.end) == (kept, 7)
        log.close()


def test_folder_sync_failure_after_compaction_fails_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is already replaced: readers with the old index would read at wrong places."""
    log = opened(tmp_path / "t-0", 100_000)
    for number in range(300):
        append(log, (b"k%d" % (number % 200), b"v%d" % number))
    table = state(log)

    def failing(_: Path) -> None:
        raise OSError("planted")

    with monkeypatch.context() as broken:
        broken.setattr("streamsx.broker.log.log.sync_folder", failing)
        with pytest.raises(OSError, match="planted"):
            cleaned(log)
    assert log.failed
    log.note_failure()
    log.close()
    again = opened(tmp_path / "t-0", 100_000)
    assert (state(again), again.end) == (table, 300)


def test_compaction_without_disk_space_removes_partial_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partial files took the room of other logs, at each look again."""
    log = opened(tmp_path / "t-0")
    filled(log, random.Random(1), 30)
    job = cleaning.compaction(log, NOW_MS, lag_ms=0, tombstones_ms=DAY_MS)
    assert job is not None
    before, left, real = sorted(log.folder.iterdir()), [2], os.fsync

    def full(fd: int) -> None:
        left[0] -= 1
        if not left[0]:
            assert len(list(log.folder.iterdir())) > len(before) + 1
            raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        compact(job)
    assert sorted(log.folder.iterdir()) == before


class Killed(Exception):
    """Exception of a kill at a step on the disk."""


def killing(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    left = [after]

    def counted(real: Any) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*args, **options)

        return step

    for name in ("rename", "unlink"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))


@pytest.mark.parametrize("steps", range(14))
@pytest.mark.parametrize("seed", seeds(2, 8))
def test_process_killed_during_compaction_leaves_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, seed: int,
    steps: int,
) -> None:  # fmt: skip
    rng = random.Random(seed)
    log = opened(tmp_path / "t-0", 1000)
    for _ in range(2):
        filled(log, rng, 30)
        assert cleaned(log, tombstones_ms=0)
    filled(log, rng, 30)
    table, end = state(log), log.end
    log.segment_bytes = 10_000  # files become one
    with monkeypatch.context() as broken:
        killing(broken, steps)
        with suppress(Killed):
            cleaned(log, NOW_MS + 1, tombstones_ms=0)
    again = opened(tmp_path / "t-0", 1000)
    assert (state(again), again.end) == (table, end)
    found = [header.base_offset for each in again.segments for header, _ in batches(each.path)]
    assert found == sorted(set(found)), "nothing is there twice"
    assert "is damaged from byte" not in caplog.text
    filled(again, rng, 5)
    table = state(again)
    cleaned(again, NOW_MS + 2, tombstones_ms=0)
    assert state(again) == table
    assert not [path for path in (tmp_path / "t-0").iterdir() if path.suffix in (".made", ".tmp")]


def test_tombstone_kept_for_tombstone_time_after_compaction(tmp_path: Path) -> None:
    """The time counts from the compaction that first left it alone with its key."""
    log = opened(tmp_path / "t-0")
    append(log, (b"a", b"1"), (b"b", b"1"))
    append(log, (b"a", None))
    assert cleaned(log, NOW_MS, tombstones_ms=1000)
    append(log, (b"c", b"1"))
    assert cleaned(log, NOW_MS + 999, tombstones_ms=1000)
    assert rows(log)[2] == (b"a", None)
    append(log, (b"d", b"1"))
    assert cleaned(log, NOW_MS + 2000, tombstones_ms=1000)
    assert [key for key, _ in rows(log).values()] == [b"b", b"c", b"d"]


def test_number_of_remembered_compaction_times_is_limited(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    for second in range(500):
        append(log, (b"a", b"%d" % second))
        assert cleaned(log, NOW_MS + second, tombstones_ms=160)
        assert len(log.compacted) <= cleaning.TIMES * 10 // 9 + 3
        heard = [at for _, at in log.compacted if at <= NOW_MS + second - 160]
        assert second < 200 or heard, "some are old enough at any time"


def test_records_younger_than_compaction_lag_are_kept(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0", 1)
    for time in (1, 2, 3):
        append(log, (b"a", b"%d" % time), time=NOW_MS + time)
    assert not cleaned(log, NOW_MS, lag_ms=1)
    assert cleaned(log, NOW_MS + 12, lag_ms=10)
    assert list(rows(log)) == [1, 2]
    assert cleaned(log, NOW_MS - DAY_MS, lag_ms=0), "whatever their producer takes for the time"
    assert list(rows(log)) == [2]


def test_records_without_timestamp_take_age_of_segment_file_for_lag(tmp_path: Path) -> None:
    """A compacted file is as old as the newest of the files that it replaces."""
    log = opened(tmp_path / "t-0", 1)
    for value in (b"1", b"2", b"3"):
        append(log, (b"a", value), time=NO_TIMESTAMP)
    for segment in log.segments:
        os.utime(segment.path, (NOW_MS / 1000, NOW_MS / 1000))
    assert not cleaned(log, NOW_MS + 9, lag_ms=10)
    log.segment_bytes = 1 << 20
    assert cleaned(log, NOW_MS + 10, lag_ms=10)
    assert list(rows(log)) == [2]
    assert [cleaning.youngest(each) for each in log.segments[:-1]] == [NOW_MS]


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4", "zstd"])
def test_compaction_keeps_compression_codec_of_batch(tmp_path: Path, compression: str) -> None:
    log = opened(tmp_path / "t-0")
    append(log, (b"a", b"1"), (b"b", b"1"), compression=compression)
    ((header, _),) = batches(log.segments[0].path)
    append(log, (b"a", b"2"))
    assert cleaned(log)
    (left, _), *_ = batches(log.segments[0].path)
    assert (left.codec, left.records) == (header.codec, 1)


def test_records_without_key_and_producer_state_survive_compaction(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    append(log, (None, b"1"), (b"a", b"1"), pid=7)
    append(log, (None, b"1"), (b"a", b"2"))
    assert cleaned(log)
    assert list(rows(log)) == [0, 2, 3]
    again = opened(tmp_path / "t-0")
    assert append(again, (None, b"1"), (b"a", b"1"), pid=7) == 0, "it is known"


def test_bytes_compacted_at_once_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path / "t-0", 1)
    for _ in range(5):
        append(log, (b"a", b"1"))
    monkeypatch.setattr(cleaning, "DIRTY_BYTES_MAX", 2 * log.segments[0].size)
    assert [cleaned(log) for _ in range(4)] == [True, True, True, False]
    assert list(rows(log)) == [4]


def test_records_deleted_during_compaction_stay_deleted(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0", 1)
    for _ in range(3):
        append(log, (b"a", b"1"))
    job = cleaning.compaction(log, NOW_MS, lag_ms=0, tombstones_ms=0)
    assert isinstance(job, CompactionJob)
    made = compact(job)
    log.delete_before(2)
    cleaning.put(log, job, made)
    assert list(rows(log)) == [2]
    assert not list((tmp_path / "t-0").glob("*.made"))


def test_compacted_segment_not_installed_after_missing_predecessor(tmp_path: Path) -> None:
    """A marker that is missing in a later file still ends records of an earlier one."""
    log = opened(tmp_path / "t-0", 1)
    for key in (b"a", b"b", b"a", b"b", b"c"):
        append(log, (key, b"1"))
    job = cleaning.compaction(log, NOW_MS, lag_ms=0, tombstones_ms=0)
    assert isinstance(job, CompactionJob)
    done = compact(job._replace(segment_bytes=1))
    assert [made.bases for made in done.made] == [(0,), (1,)]
    log.delete_before(1)
    before = rows(log)
    cleaning.put(log, job, done)
    assert (rows(log), log.compacted) == (before, [])
    assert not list((tmp_path / "t-0").glob("*.made"))


@pytest.mark.parametrize(("older_than", "start"), [(0, 0), (2, 1), (3, 2), (99, 3)])
def test_old_segments_deleted_by_time_including_last(
    tmp_path: Path, older_than: int, start: int
) -> None:
    log = opened(tmp_path / "t-0", 1)
    for time in (1, 2, 3):
        append(log, (b"a", b"1"), time=NOW_MS + time)
    cleaning.delete_older(log, NOW_MS + older_than)
    assert (log.start, log.end) == (start, 3)
    again = opened(tmp_path / "t-0", 1)
    assert (again.start, again.end, list(rows(again))) == (start, 3, list(range(start, 3)))
    assert len(list((tmp_path / "t-0").glob("*.log"))) == max(3 - start, 1)


def test_old_segments_deleted_down_to_retention_size(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0", 1)
    for _ in range(4):
        append(log, (b"a", b"1"))
    size = log.segments[0].size
    for kept, start in ((4 * size, 0), (2 * size + 1, 1), (2 * size, 2), (1, 3), (0, 4)):
        cleaning.delete_beyond(log, kept)
        assert log.start == start
    cleaning.delete_beyond(log, 0)
    assert (log.start, log.end, log.size) == (4, 4, 0)


def test_records_without_timestamp_take_age_of_segment_file_for_retention(tmp_path: Path) -> None:
    """They stayed for ever, and so did all records after them."""
    log = opened(tmp_path / "t-0", 1)
    for time in (NO_TIMESTAMP, NOW_MS, NO_TIMESTAMP):
        append(log, (b"a", b"1"), time=time)
    os.utime(log.segments[0].path, (NOW_MS / 1000, NOW_MS / 1000))
    cleaning.delete_older(log, NOW_MS)
    assert log.start == 0
    cleaning.delete_older(log, NOW_MS + 1)
    assert (log.start, log.end) == (2, 3)


def test_retention_does_not_pass_high_watermark(tmp_path: Path) -> None:
    """The log began after the position of its readers: each of their requests was out of range."""
    log = Log(tmp_path / "t-0", DESCRIPTORS, segment_bytes=1, clean=True, sync=True)
    append(log, (b"a", b"1"))
    log.flushed_to(log.mark())
    append(log, (b"a", b"2"))
    cleaning.delete_older(log, NOW_MS + 1)
    cleaning.delete_beyond(log, 0)
    assert (log.start, log.high_watermark, log.end) == (1, 1, 2)


@pytest.mark.parametrize("first", [None, NO_TIMESTAMP])
def test_segment_rolls_by_time_span_and_not_by_record_age(
    tmp_path: Path, first: int | None
) -> None:
    """Each look closed a file where records of years ago were written: thousands in a day. After a
    record without a time none was ever closed.
    """
    log = opened(tmp_path / "t-0")
    if first is not None:
        append(log, (b"a", b"1"), time=first)
    cleaning.roll_long(log, 10)
    for time in (1, 11):
        append(log, (b"a", b"1"), time=time)
        cleaning.roll_long(log, 10)
    assert len(log.segments) == 1
    append(log, (b"a", b"1"), time=12)
    cleaning.roll_long(log, 10)
    assert [segment.base for segment in log.segments] == [0, log.end]
    names = [path.name for path in (tmp_path / "t-0").glob("*.log")]
    assert max(names) == f"{log.end:020d}.log"
