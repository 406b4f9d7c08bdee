"""Batches: filled, sent, acknowledged, sent again and dropped, request by request."""

from collections.abc import Sequence

import pytest

from streamsx.client.idempotence import FORGOTTEN, Idempotence
from streamsx.client.record_accumulator import (
    REQUEST_BYTES_MAX,
    SEND_BYTES,
    Acknowledged,
    OutputPartition,
    RecordAccumulator,
    SendRefused,
    Sent,
    body_of,
    sticky,
)
from streamsx.client.rejected_batch import Run, Sender
from streamsx.errors import RecordTooLarge
from streamsx.model import BATCH_BYTES_MAX, TaskId, TopicPartition
from streamsx.protocol.error_codes import RETRIABLE, ErrorCode
from streamsx.protocol.record_batch import NO_HEADERS, columns, scan

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
LINGER_S, BACKOFF_S = 0.005, 0.1
PRODUCER_ID = 7


class Outbox:
    """State machine, its clock, and the leaders of its partitions."""

    def __init__(
        self, *tps: TopicPartition, buffer_bytes: int = 1 << 20, compression: str = "none"
    ) -> None:
        self.now = 100.0
        self.machine = RecordAccumulator(
            compression,
            lambda partition: self.machine.opened(partition, self.now),
            Idempotence(PRODUCER_ID),
            linger_s=LINGER_S,
            buffer_bytes=buffer_bytes,
        )
        self.leaders: dict[TopicPartition, int | None] = dict.fromkeys(tps, 1)
        for tp in tps:
            self.machine.partition(tp)

    def put(self, tp: TopicPartition, *values: bytes) -> None:
        partition = self.machine.partition(tp)
        for value in values:
            if partition.builder is None:
                partition.open(1, None, value, NO_HEADERS)
            elif not partition.builder.append(1, None, value):
                self.machine.close(partition)
                partition.open(1, None, value, NO_HEADERS)

    def due(self) -> dict[int, list[TopicPartition]]:
        found, _ = self.machine.due(self.now, self.leaders.get)
        return {
            node: [partition.tp for partition in partitions] for node, partitions in found.items()
        }

    def send(self) -> list[Sent]:
        """Send all that is due, in one request."""
        found, _ = self.machine.due(self.now, self.leaders.get)
        ((partitions),) = found.values()
        (request,) = self.machine.requests(partitions)
        return request

    def after(self, seconds: float) -> list[Sent]:
        self.now += seconds
        return self.send()

    def answer(
        self, request: list[Sent], code: int = 0, base: int = 0, tps: Sequence[TopicPartition] = ()
    ) -> list[SendRefused]:
        """Answer all partitions of a request, or some."""
        wanted = tps or [sent.partition.tp for sent in request]
        return self.machine.answered(
            self.now, request, dict.fromkeys(wanted, Acknowledged(code, base))
        )


def told(sent: Sent) -> tuple[TopicPartition, int, int, list[bytes | None]]:
    """Return partition, epoch, first sequence number and values."""
    ((_, _, header),) = scan(sent.batch.data, check=True)
    assert header.producer_id == PRODUCER_ID
    values = columns(sent.batch.data, 0).values
    return sent.partition.tp, header.producer_epoch, header.base_sequence, values


# When something leaves.


def test_batch_is_due_after_linger_or_when_large() -> None:
    box = Outbox(A, B)
    box.put(A, b"a")
    box.put(B, bytes(SEND_BYTES))
    assert box.due() == {1: [B]}
    assert box.machine.next_at() == 0.0
    box.send()
    assert box.machine.next_at() == pytest.approx(100 + LINGER_S)
    box.now += LINGER_S - 0.001
    assert box.due() == {}
    box.now += 0.001
    assert box.due() == {1: [A]}


def test_linger_starts_with_first_record() -> None:
    box = Outbox(A)
    box.put(A, b"a")
    box.now += LINGER_S / 2
    box.put(A, b"b")
    (sent,) = box.after(LINGER_S / 2)
    assert told(sent) == (A, 0, 0, [b"a", b"b"])


def test_closed_batch_is_due_at_once() -> None:
    box = Outbox(A)
    box.put(A, b"a")
    assert box.machine.flush() == [(box.machine.partition(A), 1)]
    assert box.due() == {1: [A]}
    assert box.machine.next_at() == 0.0


def test_producer_with_nothing_to_send_has_nothing_due() -> None:
    box = Outbox(A)
    assert (box.due(), box.machine.next_at(), box.machine.flush()) == ({}, None, [])
    box.put(A, b"a")
    box.answer(box.after(1))
    assert (box.due(), box.machine.next_at(), box.machine.flush()) == ({}, None, [])


def test_next_batch_grows_while_one_is_in_flight() -> None:
    box = Outbox(A)
    box.put(A, b"a")
    request = box.after(1)
    box.put(A, b"b", b"c")
    box.now += 1
    assert (box.due(), box.machine.next_at()) == ({}, None)
    box.answer(request)
    (sent,) = box.send()
    assert told(sent) == (A, 0, 1, [b"b", b"c"])


def test_batches_are_due_at_leader_of_each_partition() -> None:
    box = Outbox(A, B, C)
    box.leaders[B] = 2
    for tp in (C, B, A):
        box.put(tp, b"x")
    box.now += 1
    assert box.due() == {1: [C, A], 2: [B]}


def test_partition_without_leader_pauses_and_others_are_sent() -> None:
    box = Outbox(A, B)
    box.leaders[A] = None
    box.put(A, b"a")
    box.put(B, b"b")
    box.now += 1
    found, leaderless = box.machine.due(box.now, box.leaders.get)
    assert ([partition.tp for partition in leaderless], list(found)) == ([A], [1])
    box.answer(box.send())
    assert box.machine.next_at() == pytest.approx(101 + BACKOFF_S)
    box.leaders[A] = 1
    assert box.due() == {}
    box.now += BACKOFF_S
    assert box.due() == {1: [A]}


def test_produce_request_is_split_at_size_limit() -> None:
    """Kafka closes the connection on a request of 100 MiB, at each retry."""
    count = REQUEST_BYTES_MAX // 900_000 + 2
    tps = [TopicPartition("t", number) for number in range(count)]
    box = Outbox(*tps)
    for tp in tps:
        box.put(tp, bytes(900_000))
    found, _ = box.machine.due(box.now, box.leaders.get)
    requests = list(box.machine.requests(found[1]))
    assert [[sent.partition.tp for sent in request] for request in requests] == [tps[:-2], tps[-2:]]
    assert sum(len(sent.batch.data) for sent in requests[0]) <= REQUEST_BYTES_MAX
    assert box.due() == {}


def test_batch_larger_than_request_limit_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamsx.client.record_accumulator.REQUEST_BYTES_MAX", 1000)
    box = Outbox(A, B, C)
    for tp, size in ((A, 5000), (B, 100), (C, 100)):
        box.put(tp, bytes(size))
    box.now += 1
    found, _ = box.machine.due(box.now, box.leaders.get)
    requests = list(box.machine.requests(found[1]))
    assert [[sent.partition.tp for sent in request] for request in requests] == [[A], [B, C]]


def test_produce_request_groups_partitions_by_topic() -> None:
    box = Outbox(A, B, C)
    for tp in (A, C, B):
        box.put(tp, b"x")
    request = box.after(1)
    body = body_of(request, None)
    assert (body["transactional_id"], body["acks"], body["timeout"]) == (None, -1, 30_000)
    first, second = body["topic_data"]
    assert (first["name"], [part["index"] for part in first["partition_data"]]) == ("t", [0, 1])
    assert (second["name"], [part["index"] for part in second["partition_data"]]) == ("u", [0])
    assert first["partition_data"][0]["records"] is request[0].batch.data


# Answers.


def test_sequences_continue_and_end_offsets_are_known() -> None:
    box = Outbox(A, B)
    box.put(A, b"a", b"b")
    first = box.after(1)
    assert told(first[0]) == (A, 0, 0, [b"a", b"b"])
    assert box.machine.ends() == {}
    assert box.answer(first, base=40) == []
    assert box.machine.ends() == {A: 42}
    box.put(A, b"c")
    second = box.after(1)
    assert told(second[0]) == (A, 0, 2, [b"c"])
    box.answer(second, base=42)
    assert box.machine.ends() == {A: 43}


@pytest.mark.parametrize("code", sorted(RETRIABLE))
def test_retriable_batch_is_resent_unchanged_and_in_order(code: int) -> None:
    box = Outbox(A)
    box.put(A, b"a")
    first = box.after(1)
    box.put(A, b"b")
    box.machine.flush()
    assert box.answer(first, code) == [SendRefused(A, code, again=True)]
    assert box.due() == {}
    assert box.machine.next_at() == pytest.approx(box.now + BACKOFF_S)
    again = box.after(BACKOFF_S)
    assert again[0].batch is first[0].batch
    box.answer(again)
    assert told(box.send()[0]) == (A, 0, 1, [b"b"])


def test_unanswered_batch_is_resent_unchanged_after_pause() -> None:
    box = Outbox(A, B)
    box.put(A, b"a")
    box.put(B, b"b")
    first = box.after(1)
    assert box.machine.answered(box.now, first, {A: Acknowledged(0, 5)}) == []
    assert box.due() == {}
    assert box.after(BACKOFF_S) == first[1:]
    assert box.machine.ends() == {A: 6}


def test_duplicate_batch_is_acknowledged_without_known_offset() -> None:
    box = Outbox(A)
    box.put(A, b"a")
    box.answer(box.after(1), base=3)
    assert box.machine.ends() == {A: 4}
    box.put(A, b"b")
    assert box.answer(box.after(1), ErrorCode.DUPLICATE_SEQUENCE_NUMBER, base=4) == []
    assert (box.machine.ends(), box.machine.flush()) == ({}, [])
    box.put(A, b"c")
    box.answer(box.after(1), base=-1)
    assert box.machine.ends() == {}


@pytest.mark.parametrize("code", sorted(FORGOTTEN))
def test_forgotten_producer_resends_waiting_batches_in_new_epoch(code: int) -> None:
    box = Outbox(A, B)
    box.put(A, b"a")
    box.answer(box.after(1))
    box.put(A, b"b", b"c")
    request = box.after(1)
    box.put(A, b"d")
    box.machine.flush()
    box.put(A, b"e")
    assert box.answer(request, code) == [SendRefused(A, code, again=True)]
    assert box.due() == {}
    box.now += 1
    sent = []
    for _ in range(3):
        request = box.after(1)
        sent.append(told(request[0]))
        box.answer(request)
    assert sent == [(A, 1, 0, [b"b", b"c"]), (A, 1, 2, [b"d"]), (A, 1, 3, [b"e"])]
    box.put(B, b"x")
    assert told(box.after(1)[0]) == (B, 0, 0, [b"x"])


def test_refused_record_leaves_sequence_to_next_batch() -> None:
    box = Outbox(A)
    box.put(A, b"a")
    request = box.after(1)
    box.put(A, b"b")
    box.machine.flush()
    (outcome,) = box.answer(request, ErrorCode.INVALID_RECORD)
    assert (outcome.again, [record.records for record in outcome.records]) == (False, [1])
    partition = box.machine.partition(A)
    assert (partition.closed, partition.acknowledged) == (2, 1)
    (sent,) = box.send()
    assert told(sent) == (A, 0, 0, [b"b"])
    box.answer([sent])
    assert (partition.closed, partition.acknowledged, box.machine.next_at()) == (2, 2, None)


def test_too_large_batch_is_halved_and_acknowledged_with_last_part() -> None:
    box = Outbox(A)
    box.put(A, *(b"%d" % n for n in range(4)))
    ((partition, goal),) = box.machine.flush()
    (outcome,) = box.answer(box.send(), ErrorCode.MESSAGE_TOO_LARGE)
    assert outcome == SendRefused(A, ErrorCode.MESSAGE_TOO_LARGE, again=False)
    first = box.send()
    assert told(first[0]) == (A, 0, 0, [b"0", b"1"])
    box.answer(first)
    assert partition.acknowledged < goal
    second = box.send()
    assert told(second[0]) == (A, 0, 2, [b"2", b"3"])
    box.answer(second, ErrorCode.MESSAGE_TOO_LARGE)
    for values in ([b"2"], [b"3"]):
        assert partition.acknowledged < goal
        sent = box.send()
        assert told(sent[0])[3] == values
        box.answer(sent)
    assert partition.acknowledged == goal
    assert box.machine._closed_bytes == 0


def test_too_large_refusal_shrinks_later_batches() -> None:
    box = Outbox(A)
    box.put(A, bytes(400), bytes(400))
    size = len((request := box.after(1))[0].batch.data)
    box.answer(request, ErrorCode.MESSAGE_TOO_LARGE)
    box.put(A, bytes(300), bytes(300))
    assert box.machine.partition(A).topic.batch_bytes < size * 0.6
    sizes = []
    while box.due():
        sent = box.send()
        sizes.append(len(told(sent[0])[3]))
        box.answer(sent)
        box.now += 1
    assert sizes == [1, 1, 1, 1]


def test_record_as_large_as_a_refused_one_fails_on_send() -> None:
    box = Outbox(A)
    box.put(A, bytes(5000))
    box.answer(box.after(1), ErrorCode.MESSAGE_TOO_LARGE)
    with pytest.raises(RecordTooLarge, match="the limit is"):
        box.put(A, bytes(5000))
    box.put(A, bytes(2000))


def test_records_named_by_broker_are_left_out_of_resend() -> None:
    box = Outbox(A)
    box.put(A, b"a", b"bad", b"c", b"worse")
    answer = Acknowledged(ErrorCode.INVALID_RECORD, -1, {1: "why", 3: "more", 9: "none"}, "all")
    (outcome,) = box.machine.answered(box.now, box.after(1), {A: answer})
    assert [record.why for record in outcome.records] == ["why", "more"]
    assert told(box.send()[0]) == (A, 0, 0, [b"a", b"c"])


def test_task_waits_only_for_batches_with_own_records() -> None:
    box = Outbox(A, B)
    one, two = Sender(TaskId(0, 0)), Sender(TaskId(0, 1))
    for tp, sender in ((A, one), (A, two), (B, two)):
        box.machine.partition(tp).written_by(sender)
        box.put(tp, b"x")
    partition_a, partition_b = box.machine.partition(A), box.machine.partition(B)
    assert one.seal() == [(partition_a, 1)]
    assert two.seal() == [(partition_a, 1), (partition_b, 1)]
    assert one.seal() == []
    assert partition_b.writer is None
    assert partition_a.runs == [Run(0, one, None), Run(1, two, None)]


def test_pause_holds_back_one_partition_only() -> None:
    box = Outbox(A, B)
    box.put(A, b"a")
    box.put(B, b"b")
    box.machine.pause(box.now, [box.machine.partition(A)])
    box.now += LINGER_S
    assert box.due() == {1: [B]}
    box.now = 100 + BACKOFF_S - 0.001
    assert box.due() == {1: [B]}
    box.now += 0.002
    assert box.due() == {1: [A, B]}


# Limits.


def test_producer_is_full_of_closed_unacknowledged_batches() -> None:
    box = Outbox(A, buffer_bytes=100_000)
    box.put(A, bytes(80_000))
    box.machine.flush()
    assert not box.machine.full()
    box.put(A, bytes(80_000))
    box.machine.flush()
    assert box.machine.full()
    box.answer(box.send())
    assert not box.machine.full()
    box.answer(box.send())
    assert box.machine._closed_bytes == 0


def test_compressed_batch_counts_compressed_size_once_sent() -> None:
    box = Outbox(A, buffer_bytes=100_000, compression="gzip")
    for _ in range(2):
        box.put(A, bytes(80_000))
        box.machine.flush()
    assert box.machine.full()
    request = box.send()
    assert not box.machine.full()
    assert len(request[0].batch.data) < 1000
    box.answer(request)
    box.answer(box.send())
    assert box.machine._closed_bytes == 0


def test_producer_is_full_of_open_batches_too() -> None:
    """A hundred partitions with a batch of 1 MB each are 100 MB."""
    tps = [TopicPartition("t", number) for number in range(10)]
    box = Outbox(*tps, buffer_bytes=100_000)
    for tp in tps[:9]:
        box.put(tp, bytes(11_000))
    assert not box.machine.full()
    box.put(tps[9], bytes(11_000))
    assert box.machine.full()
    box.machine.drop(tps[:1])
    assert not box.machine.full()


def test_record_over_limit_is_refused_and_leaves_no_trace() -> None:
    box = Outbox(A)
    with pytest.raises(RecordTooLarge, match=r"record too large: t: \d+ bytes, the limit is"):
        box.put(A, bytes(BATCH_BYTES_MAX))
    assert box.machine.flush() == []
    box.put(A, bytes(BATCH_BYTES_MAX - 200))
    assert len(box.machine.flush()) == 1


# Flushing and dropping.


def test_flush_ends_when_records_before_the_flush_are_acknowledged() -> None:
    box = Outbox(A, B)
    box.put(A, b"a")
    first = box.after(1)
    box.put(A, b"b")
    goals = box.machine.flush()
    ((partition, goal),) = goals
    assert (partition.tp, goal, partition.acknowledged) == (A, 2, 0)
    box.put(A, b"behind")
    box.answer(first)
    assert partition.acknowledged == 1
    box.answer(box.send())
    assert partition.acknowledged == 2


def test_dropped_batches_are_never_sent_and_epoch_is_renewed() -> None:
    box = Outbox(A, B, buffer_bytes=100)
    box.put(A, b"sent")
    box.put(B, b"other")
    request = box.after(1)
    box.put(A, bytes(200))
    goals = box.machine.flush()
    box.put(A, b"open")
    assert box.machine.drop([A, C])
    partition = box.machine.partition(A)
    assert all(each.acknowledged >= goal for each, goal in goals if each is partition)
    box.machine.answered(box.now, request, {})
    assert box.after(1) == request[1:]
    box.answer(request[1:])
    assert (box.machine.full(), box.machine._closed_bytes) == (False, 0)
    box.put(A, b"new")
    assert told(box.after(1)[0]) == (A, 1, 0, [b"new"])


def test_answer_to_dropped_batch_is_not_taken_for_next_batch() -> None:
    box = Outbox(A)
    box.put(A, b"old")
    request = box.after(1)
    box.machine.drop([A])
    box.put(A, b"new")
    box.machine.flush()
    assert box.answer(request, base=7) == []
    assert box.machine.ends() == {}
    assert told(box.send()[0]) == (A, 1, 0, [b"new"])


def test_unsent_batches_are_dropped_without_reconnect_or_new_epoch() -> None:
    box = Outbox(A)
    assert not box.machine.drop([A])
    box.put(A, b"closed")
    box.machine.flush()
    box.put(A, b"open")
    assert not box.machine.drop([A])
    assert (box.due(), box.machine.next_at(), box.machine.flush()) == ({}, None, [])
    assert box.machine._closed_bytes == 0
    box.put(A, b"new")
    assert told(box.after(1)[0]) == (A, 0, 0, [b"new"])


def test_dropped_batch_awaiting_retry_renews_epoch() -> None:
    """The batch arrived, its answer did not, and it is dropped: its numbers may be used on the
    broker.
    """
    box = Outbox(A)
    box.put(A, b"old")
    box.machine.answered(box.now, box.after(1), {})
    assert not box.machine.drop([A])
    box.put(A, b"new")
    assert told(box.after(1)[0]) == (A, 1, 0, [b"new"])


# Partitions.


def test_partition_lookup_returns_the_same_object() -> None:
    box = Outbox(A)
    assert box.machine.partition(A) is box.machine.partition(A)
    assert box.machine.partition(A) is not box.machine.partition(B)


def test_keyless_records_fill_a_batch_then_move_to_next_partition() -> None:
    def partition(number: int) -> OutputPartition:
        return box.machine.partition(TopicPartition("t", number))

    box = Outbox()
    partitions = [partition(2), partition(0), partition(1)]
    assert sticky(partitions) is partition(0)
    box.put(TopicPartition("t", 1), b"x")
    assert sticky(partitions) is partition(1)
    box.machine.flush()
    assert sticky(partitions) is partition(0)
    box.now += 1
    box.put(TopicPartition("t", 0), b"x")
    box.machine.flush()
    assert sticky(partitions) is partition(2)


def test_keyless_records_avoid_partition_without_leader() -> None:
    """It gets none until it has taken what waits for it, and no extra records later."""
    box = Outbox(A, B)
    partitions = [box.machine.partition(A), box.machine.partition(B)]
    box.leaders[A] = None
    taken = []
    for _ in range(10):
        box.now += 1
        taken.append(sticky(partitions).tp)
        box.put(taken[-1], b"x")
        box.now += LINGER_S
        if box.due():
            box.answer(box.send())
    assert taken == [A] + [B] * 9
    box.leaders[A] = 1
    box.answer(box.after(1))
    for _ in range(4):
        box.now += 1
        taken.append(sticky(partitions).tp)
        box.put(taken[-1], b"x")
        box.answer(box.after(LINGER_S))
    assert taken[10:] == [A, B, A, B]
    box.leaders[A] = box.leaders[B] = None
    for partition in partitions:
        box.put(partition.tp, b"x")
    box.now += 1
    assert box.due() == {}
    assert sticky(partitions) in partitions, "all of them pause"
