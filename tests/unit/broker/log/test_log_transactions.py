"""Transactions in one log: read_committed readers get all committed records, and no others."""

import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from streamsx.broker.log import appending, cleaning
from streamsx.broker.log.compaction import compact
from streamsx.broker.log.log import Log
from streamsx.broker.log.producer_state import AbortedTransaction
from streamsx.broker.log.segment import Descriptors
from streamsx.broker.refusal import Refused
from streamsx.errors import CorruptRecord
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import Builder, Header, columns, marker, scan
from tests.support.sweeps import seeds

MOST = 1 << 20
DAY_MS = 86_400_000
DESCRIPTORS = Descriptors(8)
Record = tuple[int, bytes | None, bytes | None]
"""Offset, key, value."""


def opened(
    folder: Path, *, segment_bytes: int = MOST, clean: bool = False, sync: bool = False
) -> Log:
    return Log(folder / "t-0", DESCRIPTORS, segment_bytes=segment_bytes, clean=clean, sync=sync)


def admit(_: Header) -> None:
    """Admit everything."""


def write(
    log: Log, pid: int, *values: bytes, seq: int = 0, epoch: int = 0, key: bytes | None = None,
    transactional: bool = True,
) -> int:  # fmt: skip
    builder = Builder(MOST, transactional=transactional)
    for value in values:
        builder.append(1000, key, value)
    return appending.append(log, memoryview(builder.close(pid, epoch, seq)), MOST, admit)


def end(log: Log, pid: int, *, commit: bool, epoch: int = 0) -> int:
    made = memoryview(marker(pid, epoch, 2000, commit=commit))
    ((_, _, header),) = scan(made, check=True)
    return log.append(made, header)


def read(log: Log, offset: int | None = None, *, most: int = MOST) -> list[Record]:
    """Read like a client with read_committed."""
    found: list[Record] = []
    offset = log.start if offset is None else offset
    while data := log.read(offset, most, committed=True):
        part = columns(data, offset, aborted=log.aborted(offset, data))
        found += zip(part.offsets, part.keys, part.values, strict=True)
        offset = part.next_offset
    return found


def values(records: Iterable[Record]) -> list[bytes | None]:
    return [value for *_, value in records]


def test_read_committed_stops_at_first_open_transaction(tmp_path: Path) -> None:
    log = opened(tmp_path)
    write(log, -1, b"plain", transactional=False, seq=-1, epoch=-1)
    assert write(log, 7, b"a", b"b") == 1
    write(log, 8, b"c")
    write(log, -1, b"more", transactional=False, seq=-1, epoch=-1)
    assert (log.last_stable_offset, log.high_watermark, values(read(log))) == (1, 5, [b"plain"])
    assert end(log, 7, commit=True) == 5
    assert (log.last_stable_offset, values(read(log))) == (3, [b"plain", b"a", b"b"])
    end(log, 8, commit=False)
    assert log.last_stable_offset == log.end == 7
    assert values(read(log)) == [b"plain", b"a", b"b", b"more"]
    assert len(columns(log.read(0, MOST), 0).values) == 5, "others read all of it"


def test_aborted_transactions_listed_only_for_read_range(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for n in range(4):
        write(log, n, b"x" * 100)
        end(log, n, commit=n % 2 == 0)
    assert log.aborted(0, log.read(0, MOST)) == [(1, 2), (3, 6)]
    assert log.aborted(0, log.read(0, 460)) == [(1, 2)]
    assert log.aborted(3, log.read(3, MOST)) == [(1, 2), (3, 6)], "its marker is still to come"
    assert log.aborted(4, log.read(4, MOST)) == [(3, 6)]


def test_aborted_lookup_examines_only_possible_overlaps(tmp_path: Path) -> None:
    log = opened(tmp_path)
    write(log, 9, b"long")
    for seq in range(200):
        write(log, 7, b"x", seq=seq)
        end(log, 7, commit=False)
        if seq == 100:
            end(log, 9, commit=False)
    looked_at = CountingList(log.producers.aborted)
    log.producers.aborted = looked_at
    data = log.read(0, 150, committed=True)
    assert log.aborted(0, data) == [(7, 1), (9, 0)]
    assert looked_at.looks < 120, "the long one ended as number 101"
    looked_at.looks = 0
    at = log.end - 19  # a marker
    assert log.aborted(at, log.read(at, 1, committed=True)) == [(7, at - 1)]
    assert looked_at.looks < 20
    assert log.aborted(log.end, b"") == []


class CountingList(list[AbortedTransaction]):
    """List that counts the items that were read."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.looks += len(found) if isinstance(index, slice) else 1
        return found


def test_compaction_compares_batch_only_with_aborts_of_same_producer(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for seq in range(200):
        write(log, 7, b"x", key=b"k", seq=seq)
        end(log, 7, commit=False)
    write(log, 8, b"1", key=b"k")
    end(log, 8, commit=True)
    job = cleaning.compaction(log, 2 * DAY_MS, lag_ms=0, tombstones_ms=DAY_MS)
    assert job is not None
    compared = Counter[str]()

    class Watched(AbortedTransaction):
        def __getattribute__(self, name: str) -> Any:
            compared[name] += 1
            return super().__getattribute__(name)

    job = job._replace(aborted=tuple(Watched(*each) for each in job.aborted))
    cleaning.put(log, job, compact(job))
    assert values(read(log)) == [b"1"]
    assert compared.total() < 200 * 2 * 20, "each batch with a few, not with all"


def test_marker_with_newer_epoch_fences_older_and_restarts_sequences(tmp_path: Path) -> None:
    log = opened(tmp_path)
    write(log, 7, b"a", b"b")
    end(log, 7, commit=False, epoch=1)
    for at in (log, opened(tmp_path)):
        with pytest.raises(Refused) as refused:
            write(at, 7, b"c", seq=2)
        assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        with pytest.raises(Refused) as refused:
            write(at, 7, b"c", seq=2, epoch=1)
        assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(log, 7, b"c", seq=0, epoch=1) == 3


def test_producer_sequence_continues_after_marker_of_same_epoch(tmp_path: Path) -> None:
    log = opened(tmp_path)
    write(log, 7, b"a", b"b")
    end(log, 7, commit=True)
    again = opened(tmp_path)
    assert write(again, 7, b"a", b"b") == 0, "it is here already"
    assert write(again, 7, b"c", seq=2) == 3


def test_open_and_aborted_transactions_restored_on_reopen(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=100)
    write(log, 7, b"lost")
    end(log, 7, commit=False)
    write(log, 8, b"kept")
    end(log, 8, commit=True)
    write(log, 9, b"open")
    for clean in (True, False):
        again = opened(tmp_path, segment_bytes=100, clean=clean)
        assert (again.last_stable_offset, values(read(again))) == (4, [b"kept"])
        assert again.producers.aborted == log.producers.aborted
        assert [*again.producers.open] == [9]


def test_transaction_with_deleted_records_holds_up_no_reader(tmp_path: Path) -> None:
    log = opened(tmp_path, segment_bytes=100)
    write(log, 7, b"a")
    write(log, -1, b"b", transactional=False, seq=-1, epoch=-1)
    log.delete_before(2)
    assert (log.start, log.last_stable_offset) == (2, 2)
    assert opened(tmp_path, segment_bytes=100).last_stable_offset == 2
    end(log, 7, commit=False)
    log.delete_before(3)
    assert log.producers.aborted == []


def test_read_committed_time_lookup_finds_committed_records_only(tmp_path: Path) -> None:
    log = opened(tmp_path)
    write(log, 7, b"a")
    assert (log.at_time(0), log.at_time(0, committed=True)) == ((0, 1000), None)
    end(log, 7, commit=True)
    assert log.at_time(0, committed=True) == (0, 1000)
    assert (log.at_time(1500), log.newest()) == ((1, 2000), (1, 2000)), "markers have a time too"


def test_read_committed_waiter_woken_by_marker(tmp_path: Path) -> None:
    log = opened(tmp_path)
    told: dict[bool, list[int]] = {False: [], True: []}
    for committed in told:
        log.waiters[told[committed].append] = committed
    write(log, 7, b"a")
    write(log, 8, b"b")
    first, second = told[False]
    assert told[True] == []
    end(log, 8, commit=True)
    assert told[True] == [], "what it would read is behind what is open"
    end(log, 7, commit=True)
    assert told[True] == [first + second + 2 * told[False][-1]]


def test_waiter_woken_by_marker_of_transaction_open_at_start(tmp_path: Path) -> None:
    log = opened(tmp_path)
    write(log, 7, b"a", b"b")
    size = log.size
    write(log, 8, b"c")
    log.close()
    log = opened(tmp_path)
    woken: list[int] = []
    log.waiters[woken.append] = True
    end(log, 7, commit=True)
    assert (log.last_stable_offset, woken) == (2, [size])


def test_marker_lost_by_failed_flush_does_not_end_transaction(tmp_path: Path) -> None:
    """A transaction's records and a plain batch are flushed; the flush of its marker fails, and the
    log is opened again without the marker. No client was told that the transaction had ended.
    """
    log = opened(tmp_path, sync=True)
    woken: list[int] = []
    log.waiters[woken.append] = True
    write(log, 7, b"a")
    write(log, 9, b"plain", transactional=False)
    log.flush()
    log.flushed_to(log.mark())
    end(log, 7, commit=True)
    write(log, 8, b"later")
    assert (log.last_stable_offset, log.high_watermark, read(log), woken) == (0, 2, [], [])
    log.fail()
    log.close()
    again = opened(tmp_path, sync=True)
    assert (again.last_stable_offset, again.end, [*again.producers.open]) == (0, 2, [7])
    again.waiters[woken.append] = True
    woken.clear()
    end(again, 7, commit=True)
    write(again, 8, b"later")
    assert (again.last_stable_offset, woken) == (0, [])
    again.flush()
    again.flushed_to(again.mark())
    assert (again.last_stable_offset, values(read(again))) == (3, [b"a", b"plain"])
    end(again, 8, commit=False)
    assert again.last_stable_offset == 3, "what began behind the marker is told of when it may be"
    again.flush()
    again.flushed_to(again.mark())
    assert again.last_stable_offset == again.end == 5
    assert len(woken) == 2


def compacted(log: Log, *, tombstones_ms: int = DAY_MS, now_ms: int = 10_000) -> bool:
    job = cleaning.compaction(log, now_ms, lag_ms=0, tombstones_ms=tombstones_ms)
    if job is not None:
        cleaning.put(log, job, compact(job))
    return job is not None


def test_aborted_records_supersede_nothing_and_are_compacted_away(tmp_path: Path) -> None:
    log = opened(tmp_path)
    write(log, 7, b"old", key=b"k")
    end(log, 7, commit=True)
    log.roll()
    write(log, 7, b"aborted", key=b"k", seq=1)
    log.roll()
    end(log, 7, commit=False)  # its marker lies in a file that is too young
    log.segments[-1].newest = 20_000
    assert compacted(log)
    assert values(read(log)) == [b"old"]
    assert b"aborted" not in log.read(0, MOST)
    assert values(read(opened(tmp_path))) == [b"old"]


def test_marker_kept_with_transaction_records_and_tombstone_time(tmp_path: Path) -> None:
    log = opened(tmp_path)
    write(log, 7, b"1", key=b"a")
    end(log, 7, commit=True)
    write(log, 8, b"1", key=b"b")
    end(log, 8, commit=True)
    write(log, -1, b"2", key=b"b", transactional=False, seq=-1, epoch=-1)

    def offsets() -> list[int]:
        return [each.base_offset for s in log.segments for each in headers(s.path.read_bytes())]

    assert compacted(log, now_ms=2 * DAY_MS)
    assert offsets() == [0, 1, 3, 4], "readers may have to hear of it"
    write(log, -1, b"3", key=b"c", transactional=False, seq=-1, epoch=-1)
    assert compacted(log, tombstones_ms=100, now_ms=3 * DAY_MS)
    assert offsets() == [0, 1, 4, 5]
    again = opened(tmp_path)
    assert (again.producers.open, again.last_stable_offset) == ({}, 6)


def test_read_committed_stops_in_gap_before_open_transaction(tmp_path: Path) -> None:
    log = opened(tmp_path)
    write(log, -1, b"1", key=b"a", transactional=False, seq=-1, epoch=-1)
    write(log, 7, b"aborted", key=b"a")
    log.roll()
    write(log, 8, b"open", key=b"b")
    end(log, 7, commit=False)
    assert compacted(log, now_ms=2 * DAY_MS)
    assert [each.base_offset for each in headers(log.segments[0].path.read_bytes())] == [0]
    assert (values(read(log)), log.last_stable_offset) == ([b"1"], 2)
    end(log, 8, commit=True)
    assert values(read(log, 1)) == [b"open"]


def test_transactional_producer_continues_after_compaction(tmp_path: Path) -> None:
    log = opened(tmp_path)
    write(log, 7, b"1", b"2", key=b"a")
    end(log, 7, commit=False)
    assert compacted(log)
    log = opened(tmp_path)
    assert (read(log), log.last_stable_offset) == ([], 3)
    assert write(log, 7, b"1", b"2", key=b"a") == 0, "it was here"
    write(log, 7, b"3", key=b"a", seq=2)
    end(log, 7, commit=True)
    assert compacted(log)
    found = headers(log.segments[0].path.read_bytes())
    assert [(each.base_offset, each.records) for each in found] == [(0, 0), (2, 1), (3, 1), (4, 1)]


def test_batches_in_flight_recognised_after_compaction(tmp_path: Path) -> None:
    """All but the last batch were refused with 45 when they were sent again."""
    log = opened(tmp_path)
    for seq in range(7):
        write(log, 7, b"1", key=b"a", seq=seq, transactional=False)
    assert compacted(log)
    log = opened(tmp_path)
    for seq in range(2, 7):
        assert write(log, 7, b"1", key=b"a", seq=seq, transactional=False) == seq
    assert len(headers(log.segments[0].path.read_bytes())) == 5


def test_committed_transaction_not_aborted_by_damage_before_marker(
    tmp_path: Path,
) -> None:
    """Its marker is after the damage, and was not found: a compaction removed the records."""
    log = opened(tmp_path)
    write(log, 7, b"committed")
    log.roll()
    write(log, -1, b"damaged", transactional=False, seq=-1, epoch=-1)
    write(log, 8, b"aborted")
    end(log, 7, commit=True)
    end(log, 8, commit=False)
    log.roll()
    write(log, 9, b"open")
    damaged = log.segments[1].path
    data = bytearray(damaged.read_bytes())
    data[16] ^= 4
    damaged.write_bytes(data)
    log = opened(tmp_path)
    assert list(log.producers.open) == [9]
    assert values(read(log)) == [b"committed"]


def damage(log: Log, base: int, *offsets: int) -> None:
    """Flip a bit in each of these batches of a file, but not in a length."""
    path = log.folder / f"{base:020d}.log"
    data = bytearray(path.read_bytes())
    for at, _, header in tuple(scan(data, check=True)):
        if header.base_offset in offsets:
            data[at + 16] ^= 4
    path.write_bytes(data)


def test_abort_marker_after_damage_does_not_hide_later_commit(tmp_path: Path) -> None:
    """Readers never met the marker, and took the next transaction for the aborted one."""
    log = opened(tmp_path)
    write(log, 7, b"aborted")
    write(log, -1, b"damaged", transactional=False, seq=-1, epoch=-1)
    end(log, 7, commit=False)
    log.roll()
    write(log, 7, b"committed", seq=1)
    end(log, 7, commit=True)
    damage(log, 0, 1)
    log = opened(tmp_path)
    assert values(read(log, 1)) == [b"committed"]


@pytest.mark.parametrize("damaged", [(1,), (1, 2), (1, 2, 4)])
def test_producer_with_records_after_damage_continues(
    tmp_path: Path, damaged: tuple[int, ...]
) -> None:
    log = opened(tmp_path)
    write(log, 7, b"0")
    for _ in range(2):
        write(log, -1, b"damaged", transactional=False, seq=-1, epoch=-1)
    write(log, 7, b"1", seq=1)
    write(log, -1, b"damaged", transactional=False, seq=-1, epoch=-1)
    end(log, 7, commit=True)
    log.roll()
    damage(log, 0, *damaged)
    log = opened(tmp_path)
    assert not log.producers.open
    assert write(log, 7, b"1", seq=1) == 3, "it was here"
    assert write(log, 7, b"2", seq=2) == 6


def test_transaction_begun_after_damage_without_end_holds_up_no_reader(tmp_path: Path) -> None:
    """Readers of committed records stopped before it, and before all sound files after it, for
    ever.
    """
    log = opened(tmp_path)
    write(log, -1, b"damaged", transactional=False, seq=-1, epoch=-1)
    write(log, 7, b"behind")
    write(log, 8, b"behind too")
    end(log, 7, commit=True)
    log.roll()
    write(log, 8, b"goes on", seq=1)
    damage(log, 0, 0, 3)
    log = opened(tmp_path)
    assert (list(log.producers.open), log.last_stable_offset) == ([8], 4)
    end(log, 8, commit=True)
    assert values(read(log, 3)) == [b"goes on"]


def test_read_committed_returns_records_before_damaged_batch(tmp_path: Path) -> None:
    log = opened(tmp_path)
    write(log, 7, b"aborted")
    write(log, -1, b"damaged", transactional=False, seq=-1, epoch=-1)
    end(log, 7, commit=False)
    damage(log, 0, 1)
    assert log.aborted(0, log.read(0, MOST, committed=True)) == [(7, 0)]
    with pytest.raises(CorruptRecord):
        log.aborted(1, log.read(1, MOST, committed=True))


def test_compaction_keeps_last_batch_of_producer(tmp_path: Path) -> None:
    log = opened(tmp_path)
    write(log, 7, b"1", key=b"a", transactional=False)
    write(log, 7, b"2", key=b"b", seq=1, transactional=False)
    write(log, -1, b"3", key=b"b", transactional=False, seq=-1, epoch=-1)
    assert compacted(log, now_ms=2 * DAY_MS), "the producer is quiet, or writes of long ago"
    assert values(read(log)) == [b"1", b"3"]
    log = opened(tmp_path)
    assert write(log, 7, b"2", key=b"b", seq=1, transactional=False) == 1, "it was here"
    assert write(log, 7, b"4", key=b"c", seq=2, transactional=False) == 3


def headers(data: bytes) -> list[Header]:
    return [header for _, _, header in scan(data, check=True)]


def test_damaged_segment_fails_compaction_instead_of_being_shortened(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for n in range(3):
        write(log, -1, b"%d" % n, key=b"k", transactional=False, seq=-1, epoch=-1)
    path = log.segments[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 3 + 16] = 9
    path.write_bytes(data)
    job = cleaning.compaction(log, 10_000, lag_ms=0, tombstones_ms=0)
    assert job is not None
    with pytest.raises(CorruptRecord):
        compact(job)


class Model:
    """Written records and their outcomes: offset -> (producer, key, value)."""

    def __init__(self, rng: random.Random, folder: Path) -> None:
        self.rng, self.folder = rng, folder
        self.size = rng.choice((150, 400, 3000))
        self.log = opened(folder, segment_bytes=self.size)
        self.committed: dict[int, tuple[bytes | None, bytes | None]] = {}
        self.open: dict[int, dict[int, tuple[bytes | None, bytes | None]]] = {}
        self.next_seq: dict[int, int] = {}

    def write(self) -> None:
        pid = self.rng.randrange(-1, 4)
        key, value = b"k%d" % self.rng.randrange(6), b"v%d" % self.log.end
        several = [value] * self.rng.choice((1, 1, 3))
        seq = self.next_seq.get(pid, 0) if pid >= 0 else -1
        epoch = 0 if pid >= 0 else -1
        at = write(
            self.log, pid, *several, key=key, seq=seq, epoch=epoch, transactional=pid >= 0
        )  # fmt: skip
        self.next_seq[pid] = seq + len(several)
        into = self.committed if pid < 0 else self.open.setdefault(pid, {})
        into |= {at + i: (key, value) for i in range(len(several))}

    def end(self) -> None:
        if self.open:
            pid, commit = self.rng.choice([*self.open]), self.rng.random() < 0.6
            records = self.open.pop(pid)
            if pid in self.log.producers.open:
                end(self.log, pid, commit=commit)
            else:
                assert max(records) < self.log.start, "something of it is there, and not open"
            if commit:
                self.committed |= records

    def reopen(self) -> None:
        self.log.close()
        clean = self.rng.random() < 0.5
        self.log = opened(self.folder, segment_bytes=self.size, clean=clean)

    def compact(self) -> None:
        compacted(
            self.log, tombstones_ms=self.rng.choice((0, DAY_MS)), now_ms=self.rng.randrange(10**6)
        )  # fmt: skip

    def delete(self) -> None:
        if self.rng.random() < 0.3:
            self.log.delete_before(self.rng.randint(self.log.start, self.log.end))

    def roll(self) -> None:
        self.log.roll()

    def check(self) -> None:
        log, stable = self.log, self.log.last_stable_offset
        kept = {p: [o for o in records if o >= log.start] for p, records in self.open.items()}
        unread = [min(offsets) for offsets in kept.values() if offsets]
        assert stable <= min(unread, default=log.end)
        if not self.open:
            assert stable == log.end
        start = self.rng.randint(log.start, log.end)
        seen = read(log, start, most=self.rng.choice((1, 200, MOST)))
        expected = {o: r for o, r in self.committed.items() if start <= o < stable}
        assert {o: (k, v) for o, k, v in seen}.items() <= expected.items(), "only what is committed"
        newest = {key: offset for offset, (key, _) in sorted(expected.items())}
        assert {k: o for o, k, _ in seen} == newest, "and the newest of each key"


@pytest.mark.parametrize("seed", seeds(12, 40))
def test_committed_records_read_after_random_operations(tmp_path: Path, seed: int) -> None:
    model = Model(random.Random(seed), tmp_path)
    steps = (
        [model.write] * 12 + [model.end] * 5
        + [model.reopen, model.compact, model.delete, model.roll]
    )  # fmt: skip
    for _ in range(120):
        model.rng.choice(steps)()
        model.check()
