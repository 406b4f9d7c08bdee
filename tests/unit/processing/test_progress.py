"""Times of writers: bytes, marks in batches, and the lowest time."""

import pytest

from streamsx.model import Headers
from streamsx.processing.batch import Batch
from streamsx.processing.progress import HEADERS, Progress, TimeMark, Told, decode, separated
from streamsx.topology.time_links import Writer

A, B = Writer(0xFEDCBA98, 0), Writer(7, 3)
Row = tuple[bytes | None, bytes | None, Headers]


def batch(*rows: Row) -> Batch:
    keys, values, headers = zip(*rows, strict=True)
    offsets = range(10, 10 + len(rows))
    return Batch("t", 0, keys, values, [*range(len(rows))], offsets, headers, 10 + len(rows))


RECORD: Row = (b"k", b"v", [])


def test_bytes_of_a_time_outlive_the_process() -> None:
    value = Told(B, 1_700_000_000_000, idle=True).encode()
    assert value.hex() == "01010000018bcfe568000000000700000003"
    assert decode(value) == Told(B, 1_700_000_000_000, idle=True)


def test_times_become_marks_ahead_of_the_records_behind_them() -> None:
    told, other = Told(A, 5), Told(B, 6)
    made = separated(
        batch(RECORD, (None, told.encode(), HEADERS), RECORD, (None, other.encode(), HEADERS))
    )
    assert made.marks == (TimeMark(1, told), TimeMark(2, other))
    assert list(made.offsets) == [10, 12]
    assert list(made.keys) == [b"k", b"k"]
    assert list(made.timestamps) == [0, 2]
    assert made.next_offset == 14
    assert made.headers is None


def test_time_of_another_version_is_passed_over() -> None:
    value = b"\x02" + Told(A, 5).encode()[1:]
    made = separated(batch((None, value, HEADERS), (None, b"\x01", HEADERS), RECORD))
    assert made.marks == ()
    assert list(made.offsets) == [12]


@pytest.mark.parametrize(
    "row",
    [
        (b"k", Told(A, 5).encode(), HEADERS),
        (None, Told(A, 5).encode(), [("__streamsx.time", b"x")]),
        (None, Told(A, 5).encode(), [*HEADERS, ("more", None)]),
        (None, Told(A, 5).encode(), []),
        (None, None, HEADERS),
    ],
)
def test_foreign_records_stay_records(row: Row) -> None:
    made = batch(row, RECORD)
    assert separated(made) == made


def test_stream_time_is_the_lowest_of_all_writers() -> None:
    progress = Progress([A, B])
    assert not progress.tell(Told(A, 100))
    assert (progress.time, progress.silent) == (-1, [B])
    assert progress.tell(Told(B, 50))
    assert progress.tell(Told(B, 70))
    assert not progress.tell(Told(A, 200))
    assert (progress.time, progress.silent) == (70, [])


def test_time_never_goes_back() -> None:
    progress = Progress([A], {A: 50})
    assert not progress.tell(Told(A, 30))
    assert (progress.time, progress.times[A]) == (50, 50)
    more = Writer(A.stage, 9)  # of a partition that was added
    assert not progress.tell(Told(more, 10))
    assert (progress.time, progress.times[more]) == (50, 10)


def test_writers_of_the_app_before_its_sources_were_changed_do_not_hold_the_time() -> None:
    progress = Progress([A], {A: 50, B: 10})
    assert progress.time == 50
    progress.tell(Told(B, 20))
    progress.tell(Told(A, 60))
    assert progress.time == 60


def test_idle_writer_does_not_hold_the_others() -> None:
    progress = Progress([A, B])
    progress.tell(Told(A, 100))
    assert progress.tell(Told(B, 20, idle=True))
    assert progress.time == 100
    found = [progress.idle]
    progress.tell(Told(A, 100, idle=True))
    found.append(progress.idle)
    assert progress.time == 100
    progress.tell(Told(B, 120))
    assert [*found, progress.idle] == [False, True, False]
    assert progress.time == 120
