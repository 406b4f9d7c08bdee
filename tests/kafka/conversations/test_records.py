"""Records: appended, read, found and deleted; repeated batches are stored once."""

from typing import Any

from streamsx.protocol.error_codes import ErrorCode as E
from streamsx.protocol.record_batch import columns
from streamsx.protocol.wire import Api
from tests.support.conversation import NOW, Conversation, batch


def test_batches_are_accepted_or_refused_and_fetched(talk: Conversation) -> None:
    check, name = talk.check, talk.topic()
    good = batch(b"a", b"b")
    damaged, old = bytearray(good), bytearray(good)
    damaged[-1] ^= 1
    old[16] = 1
    check("produce", talk.produce(name, good), (E.NONE, 0))
    check("produce damaged", talk.produce(name, damaged)[0], E.CORRUPT_MESSAGE)
    check("produce nothing", talk.produce(name, b"")[0], E.INVALID_RECORD)
    check("produce a cut batch", talk.produce(name, good[:-1])[0], E.INVALID_RECORD)
    check("produce two batches", talk.produce(name, good + good)[0], E.INVALID_RECORD)
    check("produce magic 1", talk.produce(name, old)[0], E.INVALID_RECORD)
    check("produce with acks 2", talk.produce(name, good, acks=2)[0], E.INVALID_REQUIRED_ACKS)
    check(
        "produce with acks 2 to nowhere",
        talk.produce(f"{name}-no", good, acks=2)[0],
        E.UNKNOWN_TOPIC_OR_PARTITION,
    )
    check("produce to nowhere", talk.produce(f"{name}-no", good)[0], E.UNKNOWN_TOPIC_OR_PARTITION)
    check(
        "produce to partition 9",
        talk.produce(name, good, partition=9)[0],
        E.UNKNOWN_TOPIC_OR_PARTITION,
    )
    check("produce again", talk.produce(name, batch(b"c")), (E.NONE, 2))

    by_id = talk.ask(
        Api.PRODUCE, 13, acks=-1, timeout=5000, topic_data=[
            {"topic_id": i, "partition_data": [{"index": 0, "records": batch(b"d")}]}
            for i in (talk.topic_id(name), b"?" * 16)
        ],
    )  # fmt: skip
    codes = sorted(
        (t.partition_responses[0].error_code, t.partition_responses[0].base_offset)
        for t in by_id.responses
    )
    check("produce by id", codes, [(E.NONE, 3), (E.UNKNOWN_TOPIC_ID, -1)])

    def read(offset: int, **about: Any) -> tuple[int, list[bytes | None], int]:
        found = talk.fetch(name, offset, **about)
        data = bytes(found.records or b"")
        return found.error_code, columns(data, offset).values, found.high_watermark

    check("fetch", read(0), (E.NONE, [b"a", b"b", b"c", b"d"], 4))
    check("fetch within a batch", read(1), (E.NONE, [b"b", b"c", b"d"], 4))
    check("fetch a little", read(0, max_bytes=1), (E.NONE, [b"a", b"b"], 4))
    check("fetch at the end", read(4), (E.NONE, [], 4))
    check("fetch beyond", read(5)[:2], (E.OFFSET_OUT_OF_RANGE, []))
    check("fetch before", read(-1)[:2], (E.OFFSET_OUT_OF_RANGE, []))
    check("fetch committed", read(2, isolation_level=1), (E.NONE, [b"c", b"d"], 4))
    check(
        "fetch of a session",
        talk.fetch(name, 0, session_id=9, session_epoch=1).error_code,
        E.FETCH_SESSION_ID_NOT_FOUND,
    )
    check(
        "fetch from nowhere", talk.fetch(f"{name}-no", 0).error_code, E.UNKNOWN_TOPIC_OR_PARTITION
    )

    partition = {"partition": 0, "fetch_offset": 4, "partition_max_bytes": 1 << 20}
    poll = talk.park(
        Api.FETCH, 13, replica_id=-1, max_wait=15_000, min_bytes=1, max_bytes=1 << 20,
        topics=[{"topic_id": talk.topic_id(name), "partitions": [partition]}],
        forgotten_topics_data=[],
    )  # fmt: skip
    talk.produce(name, batch(b"e"))
    found = poll.answer().responses[0].partitions[0]
    check("a fetch waits", columns(bytes(found.records), 4).values, [b"e"])


def test_idempotent_producer_is_deduplicated_and_fenced(talk: Conversation) -> None:
    check, name = talk.check, talk.topic()
    made = talk.ready(
        Api.INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=1000, producer_id=-1,
        producer_epoch=-1,
    )  # fmt: skip
    check("a producer id", (made.error_code, made.producer_epoch), (E.NONE, 0))
    pid = made.producer_id

    def send(seq: int, epoch: int = 0, count: int = 1) -> tuple[int, int]:
        return talk.produce(name, batch(*[b"%d" % seq] * count, pid=pid, epoch=epoch, seq=seq))

    check("in order", [send(0), send(1, count=2), send(3)], [(E.NONE, 0), (E.NONE, 1), (E.NONE, 3)])
    check("again", [send(0), send(1, count=2)], [(E.NONE, 0), (E.NONE, 1)])
    check("a gap", send(9)[0], E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    for seq in range(4, 8):
        send(seq)
    check("long ago", send(0)[0], E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    check("a new epoch, later", send(5, epoch=1)[0], E.OUT_OF_ORDER_SEQUENCE_NUMBER)
    check("a new epoch", send(0, epoch=1), (E.NONE, 8))
    check("the old epoch", send(8)[0], E.INVALID_PRODUCER_EPOCH)
    check(
        "no sequence",
        talk.produce(name, batch(b"x", pid=pid, epoch=1, seq=-1))[0],
        E.INVALID_RECORD,
    )
    unknown = batch(b"x", pid=pid + 100_000, epoch=0, seq=7)
    check("an unknown producer", talk.produce(name, unknown), (E.NONE, 9))


def test_offsets_are_found_and_records_deleted(talk: Conversation) -> None:
    check, name = talk.check, talk.topic()
    for i in range(3):
        talk.produce(name, batch(b"a", b"b", time=NOW + 100 * i))
    check("the end", talk.offset(name, 0, -1), (E.NONE, 6, -1))
    check("the start", talk.offset(name, 0, -2), (E.NONE, 0, -1))
    check("the youngest", talk.offset(name, 0, -3), (E.NONE, 5, NOW + 201))
    check("before all", talk.offset(name, 0, 0), (E.NONE, 0, NOW))
    check("within a batch", talk.offset(name, 0, NOW + 1), (E.NONE, 1, NOW + 1))
    check("between batches", talk.offset(name, 0, NOW + 50), (E.NONE, 2, NOW + 100))
    check("after all", talk.offset(name, 0, NOW + 202), (E.NONE, -1, -1))
    check("of partition 1", talk.offset(name, 1, -1)[0], E.UNKNOWN_TOPIC_OR_PARTITION)
    empty = talk.topic()
    check("the youngest of none", talk.offset(empty, 0, -3), (E.NONE, -1, -1))

    asked = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
    found = talk.ask(
        Api.OFFSET_FOR_LEADER_EPOCH, 4, topics=[{"topic": name, "partitions": asked}]
    ).topics[0].partitions[0]  # fmt: skip
    check(
        "of a leader epoch",
        (found.error_code, found.leader_epoch, found.end_offset),
        (E.NONE, 0, 6),
    )

    def delete(offset: int, topic: str = name) -> tuple[int, int]:
        partition = [{"partition_index": 0, "offset": offset}]
        found = talk.ask(
            Api.DELETE_RECORDS, 2, topics=[{"name": topic, "partitions": partition}], timeout=5000
        )
        answer = found.topics[0].partitions[0]
        return answer.error_code, answer.low_watermark

    check("delete", delete(3), (E.NONE, 3))
    check("delete less", delete(1), (E.NONE, 3))
    check("delete beyond", delete(7)[0], E.OFFSET_OUT_OF_RANGE)
    check("delete nowhere", delete(0, f"{name}-no")[0], E.UNKNOWN_TOPIC_OR_PARTITION)
    for policy, code in (
        ("compact", E.POLICY_VIOLATION), ("compact,delete", E.NONE), ("", E.NONE),
    ):  # fmt: skip
        kept = talk.topic(configs={"cleanup.policy": policy})
        check(f"delete where the policy is {policy!r}", delete(0, kept)[0], code)
    check("the new start", talk.offset(name, 0, -2), (E.NONE, 3, -1))
    check("fetch what is gone", talk.fetch(name, 2).error_code, E.OFFSET_OUT_OF_RANGE)
    check("find what is left", talk.offset(name, 0, 0), (E.NONE, 3, NOW + 101))
    check("delete all", delete(-1), (E.NONE, 6))
    check("go on", talk.produce(name, batch(b"c")), (E.NONE, 6))
