"""Logs are as short as their topics want them, and nothing that is wanted goes."""

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from streamsx.broker import appending, cleaning
from streamsx.broker.compaction import CompactionJob, compact
from streamsx.broker.log import Log
from streamsx.broker.segment import Descriptors
from streamsx.kafka.batch import Builder, columns

NOW_MS = 1_000_000
DAY_MS = 86_400_000
Row = tuple[bytes | None, bytes | None]


DESCRIPTORS = Descriptors(8)
"""Of all logs here: nobody closes them."""


def opened(folder: Path, segment_bytes: int = 400) -> Log:
    return Log(folder, DESCRIPTORS, segment_bytes=segment_bytes, clean=False, sync=False)


def append(
    log: Log, *rows: Row, time: int = NOW_MS, compression: str = "none", pid: int = -1
) -> int:
    builder = Builder(1 << 20, compression=compression)
    for key, value in rows:
        builder.append(time, key, value)
    sequence = (pid, 0, 0) if pid >= 0 else (-1, -1, -1)
    return appending.append(log, memoryview(builder.close(*sequence)), 1 << 20)


def rows(log: Log, start: int | None = None) -> dict[int, Row]:
    """Everything readers see, by offset."""
    found: dict[int, Row] = {}
    offset = log.start if start is None else start
    while data := log.read(offset, 1 << 20):
        part = columns(data, offset)
        found.update(zip(part.offsets, zip(part.keys, part.values, strict=True), strict=True))
        offset = part.next_offset
    return found


def state(log: Log) -> dict[bytes | None, bytes]:
    """What a table is made of it."""
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


@pytest.mark.parametrize("seed", range(30))
def test_of_each_key_the_newest_stays_where_it_was(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = opened(tmp_path / "t-0", rng.choice((200, 1000, 5000)))
    for _ in range(4):
        filled(log, rng, rng.randint(1, 40))
        before, table, end = rows(log), state(log), log.end
        assert cleaned(log, tombstones_ms=rng.choice((0, DAY_MS)))
        after = rows(log)
        assert after.items() <= before.items()
        assert (state(log), log.end) == (table, end)
        assert len({key for key, _ in after.values()}) == len(after), "each is there once"
        assert not cleaned(log), "there is nothing more to do"
        for offset in rng.choices(range(log.start, end), k=5):
            assert rows(log, offset).keys() == {each for each in after if each >= offset}
        again = opened(tmp_path / "t-0", log.segment_bytes)
        assert (rows(again), again.end, again.compacted) == (after, end, log.compacted)


def test_a_flush_that_fails_behind_a_compaction_costs_what_was_not_flushed_alone(
    tmp_path: Path,
) -> None:
    """What was compacted was cut at its first hole, as if it were the last file (seed 387)."""
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


def test_a_folder_that_cannot_be_flushed_behind_a_compaction_fails_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is another one by then: by the old one's index readers would find anything in it."""
    log = opened(tmp_path / "t-0", 100_000)
    for number in range(300):
        append(log, (b"k%d" % (number % 200), b"v%d" % number))
    table = state(log)

    def failing(_: Path) -> None:
        raise OSError("planted")

    with monkeypatch.context() as broken:
        broken.setattr("streamsx.broker.log.sync_folder", failing)
        with pytest.raises(OSError, match="planted"):
            cleaned(log)
    assert log.failed
    log.note_failure()
    log.close()
    again = opened(tmp_path / "t-0", 100_000)
    assert (state(again), again.end) == (table, 300)


class Killed(Exception):
    """At a step on the disk."""


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


@pytest.mark.parametrize("steps", range(10))
@pytest.mark.parametrize("seed", range(8))
def test_a_process_that_ends_amid_it_leaves_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int
) -> None:
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
    filled(again, rng, 5)
    table = state(again)
    cleaned(again, NOW_MS + 2, tombstones_ms=0)
    assert state(again) == table
    assert not [path for path in (tmp_path / "t-0").iterdir() if path.suffix in (".made", ".tmp")]


def test_a_tombstone_is_heard_of_for_as_long_as_it_was_asked(tmp_path: Path) -> None:
    """From the compaction on that was the first to leave it alone with its key."""
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


def test_only_so_many_times_are_remembered(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    for second in range(500):
        append(log, (b"a", b"%d" % second))
        assert cleaned(log, NOW_MS + second, tombstones_ms=160)
        assert len(log.compacted) <= cleaning.TIMES * 10 // 9 + 3
        heard = [at for _, at in log.compacted if at <= NOW_MS + second - 160]
        assert second < 200 or heard, "some are old enough at any time"


def test_what_is_younger_than_the_lag_is_left_alone(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0", 1)
    for time in (1, 2, 3):
        append(log, (b"a", b"%d" % time), time=NOW_MS + time)
    assert not cleaned(log, NOW_MS, lag_ms=0)
    assert cleaned(log, NOW_MS + 12, lag_ms=10)
    assert list(rows(log)) == [1, 2]


def test_records_without_a_key_stay_and_so_do_producers(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    append(log, (None, b"1"), (b"a", b"1"), pid=7)
    append(log, (None, b"1"), (b"a", b"2"))
    assert cleaned(log)
    assert list(rows(log)) == [0, 2, 3]
    again = opened(tmp_path / "t-0")
    assert append(again, (None, b"1"), (b"a", b"1"), pid=7) == 0, "it is known"


def test_only_so_much_is_compacted_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path / "t-0", 1)
    for _ in range(5):
        append(log, (b"a", b"1"))
    monkeypatch.setattr(cleaning, "DIRTY_BYTES_MAX", 2 * log.segments[0].size)
    assert [cleaned(log) for _ in range(4)] == [True, True, True, False]
    assert list(rows(log)) == [4]


def test_what_was_deleted_meanwhile_stays_deleted(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(("older_than", "start"), [(0, 0), (2, 1), (3, 2), (99, 3)])
def test_files_of_old_records_go_and_the_last_one_too(
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


def test_files_go_while_enough_is_left(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0", 1)
    for _ in range(4):
        append(log, (b"a", b"1"))
    size = log.segments[0].size
    for kept, start in ((4 * size, 0), (2 * size + 1, 1), (2 * size, 2), (0, 3)):
        cleaning.delete_beyond(log, kept)
        assert log.start == start


def test_a_file_that_is_old_is_closed(tmp_path: Path) -> None:
    log = opened(tmp_path / "t-0")
    cleaning.roll_older(log, NOW_MS + 1)
    append(log, (b"a", b"1"))
    cleaning.roll_older(log, NOW_MS)
    assert len(log.segments) == 1
    cleaning.roll_older(log, NOW_MS + 1)
    assert [segment.base for segment in log.segments] == [0, 1]
    names = [path.name for path in (tmp_path / "t-0").glob("*.log")]
    assert max(names) == f"{1:020d}.log"
