"""State of fetches: requests, waiting records and taken records, answer by answer."""

from collections.abc import Iterable

import pytest

from streamsx.client.fetch_state import (
    FIRST_BYTES,
    TAKE_RECORDS,
    Damaged,
    FetchAnswer,
    FetchAsked,
    FetchLimits,
    FetchOutOfRange,
    FetchRefused,
    FetchState,
    FetchTrouble,
    pause_s,
)
from streamsx.model import TopicPartition
from streamsx.processing.batch import Batch
from streamsx.protocol import record_batch
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import Builder
from tests.support.odd_batches import LATIN_1, odd_batch, odd_record

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
SIZE = 1000
"""Of a batch of one record."""


def one(offset: int) -> bytes:
    """Return a batch of one record, of SIZE bytes."""
    builder = Builder(1 << 20)
    builder.append(1, b"%d" % offset, bytes(SIZE - 70 - len(b"%d" % offset)))
    data = builder.close()
    assert len(data) == SIZE, len(data)
    record_batch.place(data, offset, 0)
    return bytes(data)


def many(offset: int, records: int) -> bytes:
    """Return a batch of this many records."""
    builder = Builder(1 << 24)
    for number in range(records):
        builder.append(1, b"%d" % (offset + number), None)
    data = builder.close()
    record_batch.place(data, offset, 0)
    return bytes(data)


def torn(data: bytes) -> bytes:
    """Return a batch with a wrong checksum."""
    return data[:-1] + bytes([data[-1] ^ 1])


class Lane:
    """State machine, its clock, and one broker that leads all partitions unless a test says
    otherwise.
    """

    def __init__(self, *tps: TopicPartition, **limits: int) -> None:
        self.now = 100.0
        self.machine = FetchState(FetchLimits(**limits))  # type: ignore[arg-type]  # no bool among them
        for tp in tps:
            self.machine.add(tp, 0)

    def ask(self, *of: TopicPartition) -> dict[TopicPartition, FetchAsked]:
        return self.machine.wanted(self.now, lambda tp: not of or tp in of)[0]

    def asked(self) -> dict[TopicPartition, int]:
        """Return the positions of a request."""
        return {tp: asked.offset for tp, asked in self.ask().items()}

    def answer(
        self,
        tp: TopicPartition,
        *records: bytes,
        asked: FetchAsked | None = None,
        code: int = 0,
        end: int = 1000,
        aborted: Iterable[tuple[int, int]] = (),
    ) -> FetchTrouble | None:
        data = memoryview(b"".join(records))
        found = FetchAnswer(code, end, data, aborted)
        return self.machine.answered(self.now, tp, asked or self.ask()[tp], found)

    def take(self, tp: TopicPartition) -> list[int] | Damaged | None:
        """Take records, and return their offsets."""
        found = self.machine.take(self.now, tp)
        return list(found.offsets) if isinstance(found, Batch) else found


# Positions.


def test_fetch_continues_where_last_answer_ended() -> None:
    lane = Lane(A, B)
    assert lane.asked() == {A: 0, B: 0}
    assert not lane.machine.waiting(A)
    assert lane.answer(A, many(0, 3), many(3, 2)) is None
    assert lane.machine.waiting(A)
    assert lane.asked() == {A: 5, B: 0}
    assert lane.answer(A, many(5, 1)) is None
    assert (lane.take(A), lane.take(A), lane.take(A)) == ([0, 1, 2, 3, 4], [5], None)
    assert lane.asked() == {A: 6, B: 0}


def test_taken_batch_names_partition_and_next_offset() -> None:
    lane = Lane(C)
    lane.answer(C, many(0, 2))
    found = lane.machine.take(lane.now, C)
    assert isinstance(found, Batch)
    assert (found.topic, found.partition, found.keys) == ("u", 0, [b"0", b"1"])
    assert (found.offsets, found.next_offset) == (range(2), 2)


def test_records_before_start_offset_are_left_out() -> None:
    lane = Lane()
    lane.machine.add(A, 2)
    lane.answer(A, many(0, 5))
    assert lane.take(A) == [2, 3, 4]


def test_fetch_asks_each_broker_only_for_led_partitions() -> None:
    lane = Lane(A, B, C)
    assert list(lane.ask(A, C)) == [A, C]
    assert lane.machine.wanted(lane.now, lambda _: False) == ({}, None)


def test_removed_partition_is_not_fetched_and_late_answer_is_dropped() -> None:
    lane = Lane(A, B)
    asked = lane.ask()[A]
    lane.machine.remove(A)
    assert list(lane.machine) == [B]
    assert lane.answer(A, one(0), asked=asked) is None
    assert (lane.asked(), lane.take(A)) == ({B: 0}, None)


@pytest.mark.parametrize("offset", [0, 7])
def test_answer_from_before_re_add_is_dropped(offset: int) -> None:
    lane = Lane(A)
    asked = lane.ask()[A]
    lane.machine.add(A, offset)
    assert lane.answer(A, one(0), asked=asked) is None
    assert lane.answer(A, asked=asked, code=ErrorCode.OFFSET_OUT_OF_RANGE) is None
    assert (lane.asked(), lane.take(A)) == ({A: offset}, None)


def test_re_adding_partition_drops_held_records() -> None:
    lane = Lane(A, held_bytes=SIZE)
    lane.answer(A, one(0))
    assert lane.asked() == {}
    lane.machine.add(A, 40)
    assert (lane.asked(), lane.machine.waiting(A)) == ({A: 40}, False)


def test_partition_end_is_newest_last_stable_offset() -> None:
    lane = Lane(A)
    assert (lane.machine.end(A), lane.machine.end(B)) == (-1, -1)
    lane.answer(A, one(0), end=1)
    lane.answer(A, end=5)
    assert lane.machine.end(A) == 5


def test_partition_is_caught_up_when_all_records_to_end_are_taken() -> None:
    lane = Lane(A)
    machine = lane.machine
    assert not machine.caught_up(A)  # nobody has said where the end is
    assert not machine.caught_up(B)
    lane.answer(A, end=0)
    assert machine.caught_up(A)
    lane.answer(A, one(0), end=1)
    assert (machine.caught_up(A), machine.waiting(A)) == (False, True)
    lane.take(A)
    assert (machine.caught_up(A), machine.waiting(A)) == (True, False)
    lane.answer(A, end=2)
    assert not machine.caught_up(A)


def test_long_answer_is_taken_in_pieces_of_limited_records() -> None:
    lane = Lane(A)
    lane.answer(
        A, many(0, TAKE_RECORDS), many(5000, TAKE_RECORDS - 1), many(9999, 1), many(10_000, 1)
    )
    takes = [lane.take(A) for _ in range(4)]
    assert [(len(t), t[0]) for t in takes if isinstance(t, list)] == [
        (5000, 0), (5000, 5000), (1, 10_000),
    ]  # fmt: skip
    assert takes[3] is None


def test_aborted_transaction_in_one_piece_drops_nothing_of_next_piece() -> None:
    def written(offset: int, records: int, control: bool = False) -> bytes:
        builder = Builder(1 << 24, transactional=True)
        for _ in range(records):
            builder.append(1, b"\0\0\0\0", None)
        data = builder.close(7, 0, 0)
        record_batch.place(data, offset, 0)
        if control:
            data[22] |= record_batch.CONTROL
        return bytes(data)

    lane = Lane(A)
    lane.machine = FetchState(FetchLimits(check_crcs=False))
    lane.machine.add(A, 0)
    log = [written(0, 1), written(1, 1, control=True), written(2, 6000), written(6002, 4000)]
    lane.answer(A, *log, aborted=[(7, 0)])
    takes = [lane.take(A), lane.take(A)]
    assert [len(t) for t in takes if isinstance(t, list)] == [6000, 4000]


# Limits.


def test_partition_at_held_limit_is_not_fetched_until_records_are_taken() -> None:
    lane = Lane(A, B, held_bytes=2 * SIZE)
    lane.answer(A, one(0))
    assert lane.asked() == {B: 0, A: 1}
    lane.answer(A, one(1))
    assert lane.asked() == {B: 0}
    lane.take(A)
    assert lane.asked() == {B: 0, A: 2}


def test_fetch_stops_at_held_limit_of_all_partitions() -> None:
    lane = Lane(A, B, held_bytes_all=2 * SIZE)
    lane.answer(A, one(0))
    lane.answer(B, one(0))
    assert lane.asked() == {}
    lane.take(A)
    assert lane.asked() == {A: 1, B: 1}


def test_empty_partition_is_fetched_even_at_total_held_limit() -> None:
    """A task waits for B, whose broker was away; the records of A fill all room."""
    lane = Lane(A, B, held_bytes_all=2 * SIZE)
    lane.answer(A, one(0), one(1))
    assert lane.asked() == {B: 0}
    assert lane.ask()[B].bytes_max == FIRST_BYTES
    lane.answer(B, one(0))
    assert lane.asked() == {}
    lane.take(B)
    assert lane.asked() == {B: 1}


def test_first_piece_is_no_larger_than_partition_bytes() -> None:
    lane = Lane(A, B, held_bytes_all=SIZE, partition_bytes=100)
    assert lane.ask()[A].bytes_max == 100
    lane.answer(A, one(0))
    assert lane.ask()[B].bytes_max == 100


def test_removed_partition_frees_held_bytes_for_others() -> None:
    lane = Lane(A, B, held_bytes_all=2 * SIZE)
    lane.answer(A, one(0))
    lane.answer(B, one(0))
    lane.machine.remove(A)
    assert lane.asked() == {B: 1}
    lane.answer(B, one(1))
    assert lane.asked() == {}


def test_taken_records_free_held_bytes_over_many_fetches() -> None:
    lane = Lane(A, held_bytes=2 * SIZE, held_bytes_all=3 * SIZE)
    for offset in range(0, 100, 2):
        assert lane.asked() == {A: offset}
        lane.answer(A, one(offset), one(offset + 1))
        assert lane.take(A) == [offset, offset + 1]


def test_partition_with_records_moves_to_end_of_fetch_order() -> None:
    """A broker fills its answer from the front, and may have no room for the others."""
    lane = Lane(A, B, C)
    lane.answer(A, one(0))
    assert list(lane.ask()) == [B, C, A]
    lane.answer(B)
    assert list(lane.ask()) == [B, C, A]
    lane.answer(C, one(0))
    assert list(lane.ask()) == [B, A, C]


# Refusals.


def test_refused_partition_is_fetched_again_after_doubling_pause() -> None:
    lane = Lane(A, B)
    code, pauses = ErrorCode.NOT_LEADER_OR_FOLLOWER, []
    for _ in range(8):
        refused = lane.answer(A, code=code)
        assert isinstance(refused, FetchRefused)
        assert refused.code == code
        pauses.append(refused.again_s)
        assert lane.asked() == {B: 0}
        lane.now += refused.again_s - 0.01
        assert lane.asked() == {B: 0}
        lane.now += 0.01
        assert lane.asked() == {A: 0, B: 0}
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    lane.answer(A)
    assert lane.answer(A, code=code) == FetchRefused(code, 0.1)


def test_fetch_pause_has_a_maximum() -> None:
    assert pause_s(100_000) == 5.0


def test_fetch_wait_is_nearest_pause_of_wanted_partitions() -> None:
    lane = Lane(A, B)
    for _ in range(2):
        lane.now += 1
        lane.answer(A, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    lane.now += 0.05
    lane.answer(B, code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    wanted, wait_s = lane.machine.wanted(lane.now, lambda _: True)
    assert not wanted
    assert wait_s == pytest.approx(0.1)
    assert lane.machine.wanted(lane.now, lambda tp: tp == A)[1] == pytest.approx(0.15)


def test_offset_out_of_range_is_reported_once_and_not_fetched_again() -> None:
    lane = Lane(A, B)
    lane.machine.add(A, 30)
    assert lane.answer(A, code=ErrorCode.OFFSET_OUT_OF_RANGE) == FetchOutOfRange(30)
    assert lane.asked() == {B: 0}


# Damage.


def test_late_answer_for_later_offset_is_dropped_after_damage() -> None:
    """The next request is on its way while the damaged batch is looked at."""
    lane = Lane(A)
    lane.answer(A, torn(many(0, 100)))
    asked = lane.ask()[A]
    assert asked.offset == 100
    assert isinstance(lane.take(A), Damaged)

    assert lane.answer(A, many(100, 5), asked=asked) is None
    assert lane.answer(A, asked=asked, code=ErrorCode.OFFSET_OUT_OF_RANGE) is None
    assert (lane.take(A), lane.machine.waiting(A)) == (None, False)
    lane.now += 1
    assert lane.asked() == {A: 0}
    lane.answer(A, many(0, 100), many(100, 5))
    assert lane.take(A) == list(range(105))


def test_records_before_damaged_batch_are_taken_and_later_ones_dropped() -> None:
    lane = Lane(A, held_bytes=5 * SIZE)
    lane.answer(A, one(0), one(1), torn(one(2)), one(3))
    lane.answer(A, one(4))
    assert lane.asked() == {}
    assert (lane.take(A), lane.take(A)) == ([0], [1])
    found = lane.take(A)
    assert isinstance(found, Damaged)
    assert (found.offset, found.times) == (2, 1)
    assert "record batch at offset 2: its checksum" in found.why
    assert lane.take(A) is None
    lane.now += 0.1
    assert lane.asked() == {A: 2}
    for offset in range(2, 6):  # nothing is counted as held any more
        lane.answer(A, one(offset))
    assert lane.asked() == {A: 6}
    lane.answer(A, one(6))
    assert lane.asked() == {}


def test_damage_is_counted_per_batch_with_doubling_pause() -> None:
    lane = Lane(A, B)
    told = []
    for _ in range(4):
        lane.answer(A, torn(one(0)), one(1))
        found = lane.take(A)
        assert isinstance(found, Damaged)
        told.append(found.times)
        assert lane.asked() == {B: 0}
        lane.now += pause_s(found.times)
    assert told == [1, 2, 3, 4]
    lane.answer(A, one(0), torn(one(1)))
    assert lane.take(A) == [0]
    found = lane.take(A)
    assert isinstance(found, Damaged)
    assert (found.offset, found.times) == (1, 1)


def test_invalid_batch_header_counts_as_damage_at_fetch_position() -> None:
    broken = one(1)[:16] + b"\x01" + one(1)[17:]
    lane = Lane(A)
    assert isinstance(lane.answer(A, one(0), broken), Damaged)
    assert lane.machine.waiting(A)
    assert lane.asked() == {}
    lane.now += 0.1
    assert lane.asked() == {A: 1}
    assert lane.take(A) == [0]
    found = lane.answer(A, broken)
    assert isinstance(found, Damaged)
    assert (found.offset, found.times) == (1, 2)
    assert "magic 1" in found.why


def test_answer_without_whole_batch_is_fetched_again_after_pause() -> None:
    lane = Lane(A)
    assert lane.answer(A, one(0)[:-1]) is None
    assert lane.asked() == {}
    lane.now += 0.1
    assert lane.asked() == {A: 0}


def test_fetch_without_crc_check_takes_readable_batch_with_bad_crc() -> None:
    lane = Lane()
    lane.machine = FetchState(FetchLimits(check_crcs=False))
    lane.machine.add(A, 0)
    data = bytearray(one(0))
    data[17] ^= 1
    lane.answer(A, bytes(data))
    assert lane.take(A) == [0]


def test_batch_with_odd_header_name_is_not_damaged() -> None:
    odd = odd_batch([odd_record(0), odd_record(1, headers=[(LATIN_1, None)])], 1)
    lane = Lane(A)
    assert lane.answer(A, one(0), odd, one(3)) is None
    assert [lane.take(A) for _ in range(4)] == [[0], [1, 2], [3], None]
    assert lane.asked() == {A: 4}


@pytest.mark.parametrize("unreadable", [True, False])
def test_unreadable_record_is_handed_on_only_where_allowed(unreadable: bool) -> None:
    """The lane of a store stands still there: it cannot skip a row."""
    odd = odd_batch([odd_record(0), odd_record(1, headers=[(None, b"1")])])
    lane = Lane()
    lane.machine = FetchState(FetchLimits(unreadable=unreadable))
    lane.machine.add(A, 0)
    lane.answer(A, odd, one(2))
    found = lane.machine.take(lane.now, A)
    if unreadable:
        assert isinstance(found, Batch)
        assert found.unreadable
        assert (found.values[0], list(found.offsets)) == (b"v", [0, 1])
        assert lane.take(A) == [2]
    else:
        assert isinstance(found, Damaged)
        assert "a header without a name" in found.why
        lane.now += 1
        assert lane.asked() == {A: 0}


def test_unreadable_batch_with_bad_crc_is_damaged_without_crc_check() -> None:
    lane = Lane()
    lane.machine = FetchState(FetchLimits(check_crcs=False, unreadable=True))
    lane.machine.add(A, 0)
    data = bytearray(odd_batch([odd_record(0, headers=[(None, b"1")])]))
    data[17] ^= 1
    lane.answer(A, bytes(data))
    assert isinstance(lane.take(A), Damaged)
