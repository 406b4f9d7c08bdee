"""Malformed batches, which are refused, and odd ones, which are accepted."""

import struct
from collections.abc import Callable
from typing import Any

import crc32c

from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.record_batch import Builder, columns
from streamsx.protocol.wire import Api
from tests.support.conversation import NOW, Conversation, batch

BASE_OFFSET, LENGTH, LEADER_EPOCH, MAGIC, CRC = 0, 8, 12, 16, 17
ATTRIBUTES, LAST_OFFSET_DELTA, MAX_TIMESTAMP, COUNT, RECORDS = 21, 23, 35, 57, 61


def changed(form: str, at: int, value: int, *, sealed: bool = True) -> bytearray:
    """Return a batch of two records with one field changed."""
    made = batch(b"a", b"b")
    struct.pack_into(form, made, at, value)
    if sealed:
        struct.pack_into(">I", made, CRC, crc32c.crc32c(bytes(made[ATTRIBUTES:])))
    return made


def empty() -> bytearray:
    made = changed(">i", COUNT, 0)[:RECORDS]
    struct.pack_into(">i", made, LENGTH, RECORDS - LEADER_EPOCH)
    struct.pack_into(">i", made, LAST_OFFSET_DELTA, -1)
    struct.pack_into(">I", made, CRC, crc32c.crc32c(bytes(made[ATTRIBUTES:])))
    return made


BATCHES: dict[str, tuple[Callable[[], bytes | bytearray], E]] = {
    "a byte": (lambda: b"\0", E.INVALID_RECORD),
    "12 bytes": (lambda: batch(b"a")[:12], E.INVALID_RECORD),
    "17 bytes": (lambda: batch(b"a")[:17], E.INVALID_RECORD),
    "a header": (lambda: batch(b"a")[:61], E.INVALID_RECORD),
    "magic 0": (lambda: changed(">b", MAGIC, 0), E.INVALID_RECORD),
    "magic 3": (lambda: changed(">b", MAGIC, 3), E.CORRUPT_MESSAGE),
    "an offset": (lambda: changed(">q", BASE_OFFSET, 77), E.INVALID_RECORD),
    "length 5": (lambda: changed(">i", LENGTH, 5), E.CORRUPT_MESSAGE),
    "length -1": (lambda: changed(">i", LENGTH, -1), E.CORRUPT_MESSAGE),
    "a long length": (lambda: changed(">i", LENGTH, 10**6), E.INVALID_RECORD),
    "a leader epoch": (lambda: changed(">i", LEADER_EPOCH, 9), E.NONE),
    "no checksum": (lambda: changed(">b", RECORDS + 1, 9, sealed=False), E.CORRUPT_MESSAGE),
    "a control batch": (lambda: changed(">h", ATTRIBUTES, 0x20), E.INVALID_RECORD),
    "a time of the broker's": (lambda: changed(">h", ATTRIBUTES, 0x08), E.NONE),
    "an unused bit": (lambda: changed(">h", ATTRIBUTES, 0x100), E.NONE),
    "a record too many": (lambda: changed(">i", COUNT, 3), E.INVALID_RECORD),
    "a record too few": (lambda: changed(">i", COUNT, 1), E.INVALID_RECORD),
    "no record of two": (lambda: changed(">i", COUNT, 0), E.INVALID_RECORD),
    "less than no record": (lambda: changed(">i", COUNT, -1), E.INVALID_RECORD),
    "a last offset too far": (lambda: changed(">i", LAST_OFFSET_DELTA, 5), E.INVALID_RECORD),
    "a last offset before": (lambda: changed(">i", LAST_OFFSET_DELTA, -1), E.INVALID_RECORD),
    "no records": (empty, E.INVALID_RECORD),
    "another newest time": (lambda: changed(">q", MAX_TIMESTAMP, 5), E.NONE),
    "of 1970": (lambda: batch(b"a", time=1), E.NONE),
    "of no time": (lambda: batch(b"a", time=-1), E.NONE),
    "of before all time": (lambda: batch(b"a", time=-5), E.NONE),
    "of soon": (lambda: batch(b"a", time=NOW + 3_000_000), E.NONE),
}


def test_malformed_batches_are_accepted_or_refused_as_kafka_does(talk: Conversation) -> None:
    name = talk.topic()
    for label, (made, code) in BATCHES.items():
        talk.check(label, talk.produce(name, made())[0], code)
    garbled = talk.produce(name, changed(">b", RECORDS, 0x7F))[0]
    talk.check("what stands in records", garbled, E.INVALID_RECORD)
    codec = talk.produce(name, changed(">h", ATTRIBUTES, 7))[0]
    talk.check("an unknown codec", codec != E.NONE, True)
    talk.check("nowhere", talk.produce(name, batch(b"a"), partition=-1)[0], 3)
    for acks in (-2, 127):
        told = talk.produce(name, batch(b"a"), acks=acks)
        talk.check(f"acks {acks}", told, (E.INVALID_REQUIRED_ACKS, -1))


def test_topic_configs_decide_which_batches_are_accepted(talk: Conversation) -> None:
    check, small = talk.check, talk.topic(configs={"max.message.bytes": "100"})
    check("too long", talk.produce(small, batch(bytes(100)))[0], E.MESSAGE_TOO_LARGE)
    check("short enough", talk.produce(small, batch(bytes(20))), (E.NONE, 0))

    compacted = talk.topic(configs={"cleanup.policy": "compact"})
    check("without a key", talk.produce(compacted, batch(b"v"))[0], E.INVALID_RECORD)

    def keyed(*pairs: tuple[bytes | None, bytes | None]) -> tuple[int, int]:
        builder = Builder(1 << 20)
        for key, value in pairs:
            builder.append(NOW, key, value)
        return talk.produce(compacted, builder.close())

    check("with a key", keyed((b"k", b"v")), (E.NONE, 0))
    check("with an empty key", keyed((b"", b"v")), (E.NONE, 1))
    check("a tombstone", keyed((b"k", None)), (E.NONE, 2))
    check("with a key and without", keyed((b"k", b"v"), (None, b"v"))[0], E.INVALID_RECORD)


def test_every_version_of_produce_is_answered(talk: Conversation) -> None:
    name = talk.topic()
    topic_id = talk.topic_id(name)
    for version in range(3, 14):
        data = [
            {"index": index, "records": batch(b"a", b"b")} for index in (0, 5)
        ]  # fmt: skip
        told = talk.ask(
            Api.PRODUCE, version, transactional_id=None, acks=1, timeout=5000,
            topic_data=[{"name": name, "topic_id": topic_id, "partition_data": data}],
        ).responses[0].partition_responses  # fmt: skip
        found = sorted((p.index, p.error_code, p.base_offset) for p in told)
        unknown = (5, E.UNKNOWN_TOPIC_OR_PARTITION, -1)
        talk.check(f"produce {version}", found, [(0, E.NONE, 2 * (version - 3)), unknown])


PRODUCER = {
    # label: (sequence, epoch, records, code, offset)
    "a first batch may come late": (5, 0, 1, E.NONE, 0),
    "the next": (6, 0, 1, E.NONE, 1),
    "before the first": (0, 0, 1, E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
    "once more": (5, 0, 1, E.NONE, 0),
    "once more, but longer": (5, 0, 2, E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
    "half of it is known": (6, 0, 2, E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
    "the last once more": (6, 0, 1, E.NONE, 1),
    "a later epoch": (0, 5, 1, E.NONE, 2),
    "an epoch between": (1, 4, 1, E.INVALID_PRODUCER_EPOCH, -1),
    "goes on": (1, 5, 1, E.NONE, 3),
    "of the epoch once more": (0, 5, 1, E.NONE, 2),
}


def test_producer_sequences_and_epochs_are_checked(talk: Conversation) -> None:
    check, name = talk.check, talk.topic()
    made = talk.ready(
        Api.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=1000, producer_id=-1,
        producer_epoch=-1,
    )  # fmt: skip
    pid = made.producer_id

    def send(seq: int, epoch: int = 0, count: int = 1, of: int = 0) -> tuple[int, int]:
        made = batch(*[b"v"] * count, pid=pid + of, epoch=epoch, seq=seq)
        return talk.produce(name, made)

    for label, (seq, epoch, count, code, offset) in PRODUCER.items():
        check(label, send(seq, epoch, count), (code, offset))
    check("a negative sequence", send(-2)[0], E.INVALID_RECORD)

    last, other = 2**31 - 1, 1_000_000
    check("the last sequence", send(last, of=other), (E.NONE, 4))
    check("behind it comes 0", send(0, of=other), (E.NONE, 5))
    check("over the end", send(last - 1, count=4, of=other + 1), (E.NONE, 6))
    check("behind that", send(2, of=other + 1), (E.NONE, 10))
    check("over the end again", send(last - 1, count=4, of=other + 1), (E.NONE, 6))
    check("an unknown producer's epoch", send(4, epoch=3, of=other + 2), (E.NONE, 11))

    row = [send(seq, of=other + 3)[1] for seq in range(7)]
    check("a row", row, [*range(12, 19)])
    gone = (E.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    again = [send(seq, of=other + 3) for seq in range(7)]
    known = [(E.NONE, offset) for offset in row[2:]]
    check("five of them are remembered", again, [gone, gone, *known])


HOUR_MS = 3_600_000


def produced(talk: Conversation, name: str, records: bytes | bytearray) -> Any:
    """Return the whole answer for partition 0."""
    data = [{"index": 0, "records": records}]
    return talk.ask(
        Api.PRODUCE, 9, acks=-1, timeout=5000, topic_data=[{"name": name, "partition_data": data}]
    ).responses[0].partition_responses[0]  # fmt: skip


def refused(talk: Conversation, name: str, records: bytes | bytearray) -> tuple[int, list[int]]:
    """Return the error code, and the indexes of the records that are named."""
    told = produced(talk, name, records)
    return told.error_code, [each.batch_index for each in told.record_errors]


def of_times(*times: int, compression: str = "none", key: bytes | None = b"k") -> bytearray:
    builder = Builder(1 << 20, compression=compression)
    for time in times:
        assert builder.append(time, key, b"v"), "such a time begins a batch of its own"
    return builder.close()


def test_records_with_a_refused_timestamp_are_named(talk: Conversation) -> None:
    check, name = talk.check, talk.topic()
    ahead = NOW + 2 * HOUR_MS
    check("far ahead", refused(talk, name, of_times(ahead)), (E.INVALID_TIMESTAMP, [0]))
    some = of_times(NOW, ahead, NOW, -1, ahead)
    check("some far ahead", refused(talk, name, some), (E.INVALID_TIMESTAMP, [1, 4]))
    zipped = of_times(NOW, ahead, compression="gzip")
    check("compressed", refused(talk, name, zipped), (E.INVALID_TIMESTAMP, [1]))
    lies = of_times(NOW, NOW)
    struct.pack_into(">q", lies, MAX_TIMESTAMP, ahead)
    struct.pack_into(">I", lies, CRC, crc32c.crc32c(bytes(lies[ATTRIBUTES:])))
    check("a newest time that no record has", refused(talk, name, lies), (E.NONE, []))
    check("of long ago", refused(talk, name, of_times(1, 0)), (E.NONE, []))

    recent = talk.topic(configs={"message.timestamp.before.max.ms": str(HOUR_MS)})
    old = of_times(NOW, NOW - 2 * HOUR_MS, NOW, NOW - HOUR_MS // 2, 0)
    check("too old", refused(talk, recent, old), (E.INVALID_TIMESTAMP, [1, 4]))
    check("without a time", refused(talk, recent, of_times(-1, -1)), (E.NONE, []))
    check("old enough to be read", talk.produce(recent, of_times(NOW - HOUR_MS // 2)), (E.NONE, 2))

    far = talk.topic(configs={"message.timestamp.after.max.ms": str(9 * HOUR_MS)})
    check("a later limit", refused(talk, far, of_times(ahead)), (E.NONE, []))
    compacted = talk.topic(configs={"cleanup.policy": "compact"})
    keyless = of_times(NOW, NOW, key=None)
    check("without keys", refused(talk, compacted, keyless), (E.INVALID_RECORD, [0, 1]))
    keyless = of_times(ahead, NOW, key=None)
    check("without keys, far ahead", refused(talk, compacted, keyless), (E.INVALID_RECORD, [0, 1]))
    both = Builder(1 << 20)
    both.append(NOW, None, b"v")
    both.append(ahead, b"k", b"v")
    told = refused(talk, compacted, both.close())
    check("one without a key, one far ahead", told, (E.INVALID_TIMESTAMP, [0, 1]))


def test_log_append_time_topic_stamps_each_batch_with_broker_time(talk: Conversation) -> None:
    check = talk.check
    name = talk.topic(configs={"message.timestamp.type": "LogAppendTime"})
    told = produced(talk, name, of_times(0, NOW + 2 * HOUR_MS, -1))
    stamped = told.log_append_time
    check("any time is taken", (told.error_code, told.base_offset), (E.NONE, 0))
    check("it is told", NOW - HOUR_MS < stamped < NOW + HOUR_MS, True)
    found = columns(bytes(talk.fetch(name, 0).records), 0)
    check("each record has it", found.timestamps, [stamped] * 3)
    told = talk.offset(name, 0, 5)
    check("found by it", told, (E.NONE, 0, stamped))
    check("not later", talk.offset(name, 0, stamped + 1), (E.NONE, -1, -1))
    claims = changed(">h", ATTRIBUTES, 0x08)
    check("who says so is refused", refused(talk, name, claims), (E.INVALID_TIMESTAMP, [0, 1]))

    usual = talk.topic()
    told = produced(talk, usual, changed(">h", ATTRIBUTES, 0x08))
    check("no time of the broker is told", (told.error_code, told.log_append_time), (E.NONE, -1))
    found = columns(bytes(talk.fetch(usual, 0).records), 0)
    check("times of the records", found.timestamps, [NOW, NOW + 1])
