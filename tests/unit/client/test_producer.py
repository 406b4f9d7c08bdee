"""Producer against a broker that loses batches, refuses them, answers late or not at all."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from streamsx import App
from streamsx.client.cluster import Cluster
from streamsx.client.producer import REMEMBERED_KEY_BYTES, Producer
from streamsx.client.record_accumulator import SEND_BYTES
from streamsx.client.rejected_batch import RefusedRecord, SourceRecords, refusal_message
from streamsx.client.topic_limits import AFTER, BEFORE, POLICY, SIZE, limits_of
from streamsx.clock import SystemClock
from streamsx.errors import NotFound, RecordRefused, RecordTooLarge, UsageError
from streamsx.model import TaskId, TopicPartition
from streamsx.processing.batch import Batch, Chunk
from streamsx.processing.inbox import DONE, RUNNING, Done, Inbox, RecordMetadata, TaskContext
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.partitioner import partition_of
from streamsx.protocol.record_batch import columns, scan
from streamsx.protocol.wire import Api
from streamsx.serde.codec import topic_codec
from tests.support.scripted_broker import NODE, Asked, ScriptedBroker

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER_ID = 7
TASK = TaskId(0, 0)
KEY_OF_2 = next(key for n in range(99) if partition_of(key := b"%d" % n, 3) == 2)
WAIT_S = 10.0


class Sent(NamedTuple):
    """Batch that arrived."""

    tp: TopicPartition
    epoch: int
    sequence: int
    values: list[bytes | None]


class Log:
    """Logs of a broker and its next answers; None: it closes the connection without an answer."""

    def __init__(self) -> None:
        self.arrived: list[Sent] = []
        self.kept: list[Sent] = []
        self.times: list[int] = []
        self.ends: dict[TopicPartition, int] = {}
        self.codes: list[int | None] = []
        self.bytes_max = 1 << 20
        self.refuses: tuple[int, bytes] | None = None
        """A code, and the value of the records that it is said of."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.more = asyncio.Event()

    async def produce(self, asked: Asked) -> dict[str, Any] | None:
        code = self.codes.pop(0) if self.codes else 0
        topics = []
        for topic in asked.body.topic_data:
            parts = [self._take(topic.name, part, code) for part in topic.partition_data]
            topics.append({"name": topic.name, "partition_responses": parts})
        self.more.set()
        await self.gate.wait()
        return None if code is None else {"responses": topics}

    def _take(self, topic: str, part: Any, code: int | None) -> dict[str, Any]:
        tp, data = TopicPartition(topic, part.index), bytes(part.records)
        (_, _, header), *others = scan(data, check=True)
        assert not others
        assert header.producer_id == PRODUCER_ID
        rows = columns(data, 0)
        self.times += rows.timestamps
        values = rows.values
        sent = Sent(tp, header.producer_epoch, header.base_sequence, values)
        base = self.ends.get(tp, 0)
        named: list[dict[str, Any]] = []
        if len(data) > self.bytes_max:
            code = ErrorCode.MESSAGE_TOO_LARGE
        elif self.refuses is not None and self.refuses[1] in values:
            code, bad = self.refuses
            named = [
                {"batch_index": n, "batch_index_error_message": f"{bad.decode()} is bad"}
                for n, value in enumerate(values)
                if value == bad
            ]
        if not code and sent not in self.kept:  # hung up on, it is there all the same
            self.ends[tp] = base + header.records
            self.kept.append(sent)
        self.arrived.append(sent)
        answer = {"index": part.index, "error_code": code or 0, "base_offset": base}
        return {**answer, "record_errors": named}

    async def until(self, batches: int) -> None:
        while len(self.arrived) < batches:
            self.more.clear()
            await self.more.wait()

    def of(self, tp: TopicPartition) -> list[Sent]:
        return [sent for sent in self.arrived if sent.tp == tp]


class Told(NamedTuple):
    """Record that was refused for good."""

    tp: TopicPartition
    code: int
    record: RefusedRecord


class Play(NamedTuple):
    """Producer with its broker; tests look into `leased` and `failures`."""

    producer: Producer
    log: Log
    broker: ScriptedBroker
    leased: list[bool]
    failures: list[Told]
    room: asyncio.Event

    def send(self, *values: bytes, tp: TopicPartition = P) -> None:
        send = self.producer.to(tp.topic, tp.partition)
        for value in values:
            send(None, value, 1, None)


@asynccontextmanager
async def playing(**settings: Any) -> AsyncIterator[Play]:
    log, leased, failures, room = Log(), [True], list[Told](), asyncio.Event()
    script: dict[int, Any] = {
        Api.PRODUCE: log.produce,
        Api.INIT_PRODUCER_ID: lambda _: {"producer_id": PRODUCER_ID, "producer_epoch": 0},
    }
    async with ScriptedBroker(script, {"t": 2, "u": 2}) as broker, asyncio.TaskGroup() as jobs:
        cluster = Cluster(broker.bootstrap)
        await cluster.start()
        await cluster.follow(["t", "u"])
        defaults = {"linger_s": 0.001, "buffer_bytes": 1 << 20}
        producer = Producer(
            cluster, SystemClock(), jobs.create_task, lambda *of: failures.append(Told(*of)),
            held=lambda: leased[0], room=room.set, **{**defaults, **settings},
        )  # fmt: skip
        async with asyncio.timeout(WAIT_S):
            await producer.start()
            yield Play(producer, log, broker, leased, failures, room)
            producer.close()
        await cluster.stop()


Story = Callable[[Play], Awaitable[None]]


def play(story: Story, **settings: Any) -> None:
    async def run() -> None:
        async with playing(**settings) as given:
            await story(given)

    asyncio.run(run())


def test_batches_arrive_in_order_with_consecutive_sequence_numbers() -> None:
    async def story(play: Play) -> None:
        play.send(b"a", b"b")
        assert await play.producer.flush() == {P: 2}
        play.send(b"c")
        play.send(b"x", tp=Q)
        assert await play.producer.flush() == {P: 3, Q: 1}
        assert play.log.of(P) == [Sent(P, 0, 0, [b"a", b"b"]), Sent(P, 0, 2, [b"c"])]
        assert play.log.of(Q) == [Sent(Q, 0, 0, [b"x"])]

    play(story)


def test_bound_send_works_inside_and_outside_the_running_body() -> None:
    async def story(play: Play) -> None:
        long_way: list[dict[str, Any]] = []

        def rare(**record: Any) -> Done:
            long_way.append(record)
            return DONE

        raw = topic_codec(str, "raw", None).encoders
        inbox = Inbox(0, print)
        running = TaskContext(TaskId(0, 0), {}, play.producer, inbox)
        send = play.producer.bound("t", raw.or_none(), raw, running, rare)
        times = (5, 6)
        inbox.chunks.append(Chunk(Batch("in", 0, (), (b"", b""), times, (0, 1), None, 2), 0, 2))
        running.resumed()
        await send(value="before its first record")
        inbox.begin()
        inbox.index = 1
        for value in ("one", "two"):
            await send(key="k", value=value)
        await send(key="k", value="later", timestamp=7.0)
        running.paused()
        await send(key="k", value="not at work")
        assert [record["value"] for record in long_way] == [
            "before its first record", "later", "not at work"
        ]  # fmt: skip
        assert long_way[1] == {"key": "k", "value": "later", "timestamp": 7.0}
        await play.producer.flush()
        tp = TopicPartition("t", partition_of(b"k", 2))
        assert [sent.values for sent in play.log.of(tp)] == [[b"one", b"two"]]
        assert play.log.times == [6, 6]

    play(story)


def test_bound_send_from_another_thread_takes_the_slow_path() -> None:
    """The slow path names the thread."""

    async def story(play: Play) -> None:
        long_way: list[Any] = []

        def rare(**record: Any) -> Done:
            long_way.append(record["value"])
            return DONE

        raw, inbox = topic_codec(str, "raw", None).encoders, Inbox(0, print)
        running = TaskContext(TaskId(0, 0), {}, play.producer, inbox)
        send = play.producer.bound("t", raw.or_none(), raw, running, rare)
        inbox.chunks.append(Chunk(Batch("in", 0, (), (b"",), (5,), (0,), None, 1), 0, 1))
        running.resumed()
        inbox.begin()
        inbox.index = 0
        await send(key="k", value="own")
        with ThreadPoolExecutor(1) as pool:
            _ = pool.submit(send, key="k", value="other").result()
        running.paused()
        assert long_way == ["other"]
        await play.producer.flush()
        assert [sent.values for sent in play.log.arrived] == [[b"own"]]

    play(story)


def test_acknowledgement_has_partition_and_offset_of_the_record() -> None:
    """The same batch, and other batches, hold records before it and after it."""

    async def story(play: Play) -> None:
        play.send(b"ahead")
        await play.producer.flush()
        play.send(b"a", b"b")
        second = play.producer.last_sent("t", 7)
        play.send(b"c", tp=Q)
        other = play.producer.last_sent("t", 8)
        play.send(b"d")
        third = play.producer.last_sent("t", 9)
        assert await (await second) == RecordMetadata("t", 0, P, 2, 7)
        assert [sent.values for sent in play.log.of(P)] == [[b"ahead"], [b"a", b"b", b"d"]]
        assert await (await other) == RecordMetadata("t", 1, Q, 0, 8)
        assert await (await third) == RecordMetadata("t", 0, P, 3, 9)
        assert (await third.result()).offset == 3

    play(story)


def test_acknowledgement_asked_after_a_later_batch_has_no_offset() -> None:
    async def story(play: Play) -> None:
        play.send(b"a")
        early = play.producer.last_sent("t", 7)
        await play.producer.flush()
        play.send(b"b")
        await play.producer.flush()
        told = await (await early)
        assert (told.partition, told.offset) == (0, -1)

    play(story)


def test_body_awaiting_acknowledgements_gets_offsets_from_then_on() -> None:
    """The first `send` of a body takes the slow path, which is exact; the fast path
    ends at once.
    """

    async def story(play: Play) -> None:
        app = App("t", producer_linger="1ms")
        out, inbox = app.topic("t", value_serializer="raw"), Inbox(0, print)
        running = TaskContext(TaskId(0, 0), {}, play.producer, inbox)
        inbox.chunks.append(Chunk(Batch("in", 0, (), (b"",), (5,), (0,), None, 1), 0, 1))
        inbox.begin()
        inbox.index = 0

        async def body() -> list[int]:
            RUNNING.set(running)
            running.resumed()
            first = await out.send(key="k", value=b"0")
            second = await out.send(key="k", value=b"1")
            offsets = [(await first).offset, (await second).offset]
            return [*offsets, (await (await out.send(key="k", value=b"2"))).offset]

        assert await asyncio.create_task(body()) == [0, -1, 2]
        running.paused()

    play(story)


def test_records_within_the_linger_go_as_one_batch() -> None:
    async def story(play: Play) -> None:
        play.send(b"a")
        play.send(b"b")
        await play.log.until(1)
        assert play.log.arrived == [Sent(P, 0, 0, [b"a", b"b"])]

    play(story, linger_s=0.01)


def test_next_batch_grows_while_one_is_in_flight() -> None:
    async def story(play: Play) -> None:
        play.log.gate.clear()
        play.send(b"a")
        await play.log.until(1)
        for value in (b"b", b"c", b"d"):
            play.send(value)
            play.producer.push()
        play.log.gate.set()
        await play.producer.flush()
        assert play.log.arrived[1:] == [Sent(P, 0, 1, [b"b", b"c", b"d"])]

    play(story)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, None],
    ids=["not the leader", "too few replicas", "connection lost"],
)
def test_failed_batch_keeps_order_and_sequence_number(code: int | None) -> None:
    async def story(play: Play) -> None:
        play.log.codes = [code, code]
        play.send(b"a")
        await play.log.until(1)
        play.send(b"b")
        ends = await play.producer.flush()
        assert [(s.sequence, s.values) for s in play.log.arrived] == [
            (0, [b"a"]), (0, [b"a"]), (0, [b"a"]), (1, [b"b"]),
        ]  # fmt: skip
        assert play.log.ends == {P: 2}
        assert ends == {P: 2}
        assert not play.failures

    play(story)


def test_duplicate_batch_counts_as_sent_with_unknown_offset() -> None:
    async def story(play: Play) -> None:
        play.log.codes = [None, ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
        play.send(b"a")
        assert await play.producer.flush() == {}
        play.send(b"b")
        assert await play.producer.flush() == {P: 2}

    play(story)


@pytest.mark.parametrize(
    "code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID]
)
def test_broker_without_producer_state_gets_a_new_epoch(code: int) -> None:
    async def story(play: Play) -> None:
        play.send(b"a")
        await play.producer.flush()
        play.log.codes = [code]
        play.log.gate.clear()
        play.send(b"b")
        await play.log.until(2)
        play.send(b"c")
        play.log.gate.set()
        await play.producer.flush()
        assert play.log.arrived[1:] == [
            Sent(P, 0, 1, [b"b"]), Sent(P, 1, 0, [b"b"]), Sent(P, 1, 1, [b"c"]),
        ]  # fmt: skip

    play(story)


def test_producer_without_a_lease_sends_nothing_and_resumes_without_loss() -> None:
    async def story(play: Play) -> None:
        play.log.gate.clear()
        play.send(b"a")
        await play.log.until(1)
        play.leased[0] = False
        assert not play.producer.follow_lease()
        play.send(b"b")
        flush = asyncio.create_task(play.producer.flush())
        play.log.gate.set()
        play.log.more.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await play.log.more.wait()
        play.leased[0] = True
        play.producer.push()
        await flush
        assert [(s.sequence, s.values) for s in play.log.arrived] == [
            (0, [b"a"]), (0, [b"a"]), (1, [b"b"]),
        ]  # fmt: skip

    play(story)


def test_process_resumed_after_the_lease_sends_nothing_from_a_timer() -> None:
    """A batch waits for its linger; SIGSTOP; the lease ends; SIGCONT: the timer fires first."""

    async def story(play: Play) -> None:
        play.send(b"a")
        play.leased[0] = False
        play.log.more.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await play.log.more.wait()
        assert play.log.arrived == []

    play(story)


def test_dropped_records_never_arrive_and_are_not_waited_for() -> None:
    async def story(play: Play) -> None:
        play.log.gate.clear()
        play.send(b"sent")
        await play.log.until(1)
        play.send(b"closed", b"other", tp=P)
        play.send(b"x", tp=Q)
        flush = asyncio.create_task(play.producer.flush())
        await asyncio.sleep(0)
        play.send(b"open")
        play.producer.drop([P])
        play.log.gate.set()
        assert await flush == {Q: 1}
        play.send(b"new")
        await play.producer.flush()
        assert play.log.of(P) == [Sent(P, 0, 0, [b"sent"]), Sent(P, 1, 0, [b"new"])]

    play(story)


@pytest.mark.parametrize(
    ("topic", "partition", "error", "says"),
    [
        ("t", -1, UsageError, "no such partition: t--1: it has 2"),
        ("t", 2, UsageError, "no such partition: t-2: it has 2"),
        ("made-at-run-time", None, NotFound, "unknown topic: made-at-run-time"),
    ],
)
def test_unknown_topic_or_partition_is_refused_at_send(
    topic: str, partition: int | None, error: type[Exception], says: str
) -> None:
    """As in the test driver; a negative partition does not mean the last one."""

    async def story(play: Play) -> None:
        with pytest.raises(error, match=says):
            play.producer.to(topic, partition)

    play(story)


def test_record_over_the_limit_is_refused_at_send() -> None:
    async def story(play: Play) -> None:
        play.send(b"before")
        limit = r"the limit is 1000000 \(max.message.bytes of the topic\): split it, or raise that"
        with pytest.raises(RecordTooLarge, match=rf"record too large: t: \d+ bytes, {limit}"):
            play.send(bytes(1_100_000))
        play.send(b"behind")
        await play.producer.flush()
        values = [value for sent in play.log.arrived for value in sent.values]
        assert values == [b"before", b"behind"]

    play(story)


def test_refused_record_is_reported_once_and_later_ones_are_sent() -> None:
    async def story(play: Play) -> None:
        play.log.codes = [ErrorCode.MESSAGE_TOO_LARGE]
        play.send(b"a")
        await play.log.until(1)
        play.send(b"b")
        play.send(b"x", tp=Q)
        assert await play.producer.flush() == {P: 1, Q: 1}
        assert play.log.of(P) == [Sent(P, 0, 0, [b"a"]), Sent(P, 0, 0, [b"b"])]
        ((tp, code, record),) = play.failures
        said = refusal_message(tp, code, record, "user alice")
        assert said == (
            "record refused: t-0, no key, sent outside of tasks: MESSAGE_TOO_LARGE: send less, or "
            "raise max.message.bytes of the topic"
        )

    play(story)


def test_too_large_batch_arrives_in_parts_in_order() -> None:
    async def story(play: Play) -> None:
        play.log.bytes_max = 700
        play.send(*(b"%d" % n * 100 for n in range(10)))
        play.send(b"behind")
        assert await play.producer.flush() == {P: 11}
        kept = play.log.kept
        values = [value for sent in kept for value in sent.values]
        assert values == [*(b"%d" % n * 100 for n in range(10)), b"behind"]
        firsts = [sum(len(sent.values) for sent in kept[:n]) for n in range(len(kept))]
        assert [sent.sequence for sent in kept] == firsts
        assert len(kept) > 1
        assert not play.failures

    play(story)


def test_record_named_by_the_broker_is_left_out_and_others_arrive() -> None:
    async def story(play: Play) -> None:
        outbox = play.producer.of(TASK, lambda: SourceRecords("in", 0, 7, 7))
        send = outbox.to("t", 0)
        for value in (b"a", b"bad", b"c"):
            send(b"k", value, 1, None)
        play.log.refuses = ErrorCode.INVALID_TIMESTAMP, b"bad"
        goals = play.producer.sealed(TASK)
        assert await play.producer.settle({TASK: goals}, WAIT_S) == frozenset()
        assert play.log.kept == [Sent(P, 0, 0, [b"a", b"c"])]
        ((tp, code, record),) = play.failures
        assert refusal_message(tp, code, record, "") == (
            "record refused: t-0, key b'k', sent by task 0_0 at in-0 offset 7: INVALID_TIMESTAMP "
            "(bad is bad): correct its timestamp, or raise message.timestamp.after.max.ms of the "
            "topic"
        )

    play(story)


def test_refusal_names_all_source_records_of_a_batch_that_grew_over_several_chunks() -> None:
    async def story(play: Play) -> None:
        at_hand = [SourceRecords("in", 0, 0, 4)]
        send = play.producer.of(TASK, lambda: at_hand[0]).to("t", 0)
        other = play.producer.of(TaskId(0, 1), lambda: None).to("t", 0)
        send(b"k", b"good", 1, None)
        at_hand[0] = SourceRecords("in", 0, 5, 9)
        send(b"k", b"bad", 1, None)
        other(b"k", b"of another task", 1, None)
        at_hand[0] = SourceRecords("in", 0, 10, 14)
        send(b"k", b"good", 1, None)
        at_hand[0] = SourceRecords("elsewhere", 0, 1, 1)
        play.log.refuses = ErrorCode.INVALID_RECORD, b"bad"
        await play.producer.flush()
        ((_, _, record),) = play.failures
        assert str(record.source) == "in-0 offset 0 to 9"

    play(story)


def test_record_without_a_time_keeps_none_ahead_of_records_with_one() -> None:
    async def story(play: Play) -> None:
        send = play.producer.to("t", 0)
        for value, at_ms in ((b"a", -1), (b"b", -1), (b"c", 7), (b"d", -1)):
            send(None, value, at_ms, None)
        await play.producer.flush()
        assert play.log.times == [-1, -1, 7, -1]

    play(story)


def test_unauthorized_batch_is_reported_to_each_sending_task() -> None:
    async def story(play: Play) -> None:
        for number in range(2):
            send = play.producer.of(TaskId(0, number), lambda: None).to("t", 0)
            send(b"k", b"v", 1, None)
            send(b"k", b"w", 1, None)
        play.log.codes = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        await play.producer.flush()
        assert play.log.kept == []
        senders = [(told.record.sender.task, told.record.records) for told in play.failures]
        assert senders == [(TaskId(0, 0), 2), (TaskId(0, 1), 2)]
        assert "let user alice write to topic t" in refusal_message(*play.failures[0], "user alice")

    play(story)


def test_changelog_rows_refused_for_timestamp_are_resent_with_current_time() -> None:
    async def story(play: Play) -> None:
        play.producer.rows("t", 0)([b"k", b"l"], [b"v", b"w"], 5)
        play.log.codes = [ErrorCode.INVALID_TIMESTAMP]
        await play.producer.flush()
        assert [sent.values for sent in play.log.kept] == [[b"v", b"w"]]
        assert play.log.times[:2] == [5, 5]
        assert min(play.log.times[2:]) > 1_700_000_000_000
        assert not play.failures

    play(story)


def test_task_waits_only_for_records_of_the_same_task() -> None:
    async def story(play: Play) -> None:
        leaders(play, of_p=-1)
        play.log.codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        stuck, free = TaskId(0, 0), TaskId(0, 1)
        play.producer.of(stuck, lambda: None).to("t", 0)(None, b"a", 1, None)
        play.producer.of(free, lambda: None).to("t", 1)(None, b"x", 1, None)
        await play.log.until(1)
        goals = {task: play.producer.sealed(task) for task in (stuck, free)}
        assert await play.producer.settle(goals, 0.3) == {stuck}
        assert play.producer.arrived(goals[free])
        leaders(play, of_p=NODE)
        assert await play.producer.settle(goals, WAIT_S) == frozenset()

    play(story)


def test_blocked_partition_holds_up_only_tasks_crowding_the_buffer() -> None:
    async def story(play: Play) -> None:
        leaders(play, of_p=-1)
        play.log.codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        send = play.producer.of(TASK, lambda: None).to("t", 0)
        send(None, b"first", 1, None)
        await play.log.until(1)
        assert await play.producer.settle({TASK: play.producer.sealed(TASK)}, 0.3) == {TASK}
        assert play.producer.crowding() == frozenset()
        for _ in range(20):
            send(None, bytes(100_000), 1, None)
        assert play.producer.crowding() == {TASK}
        assert play.producer.full()
        assert not play.producer.full_elsewhere()
        leaders(play, of_p=NODE)
        await play.producer.flush()
        assert play.producer.crowding() == frozenset()

    play(story)


def test_grown_topic_gets_new_keys_in_the_new_partitions() -> None:
    async def story(play: Play) -> None:
        send = play.producer.to("t")
        send(KEY_OF_2, b"before", 1, None)
        grown = [{"partition_index": n, "leader_id": NODE} for n in range(3)]
        play.broker.answers[Api.METADATA] = lambda _: {
            "brokers": [{"node_id": NODE, "host": "127.0.0.1", "port": play.broker.port}],
            "controller_id": NODE,
            "topics": [{"name": "t", "partitions": grown}],
        }
        await play.producer._cluster.refresh()
        send(KEY_OF_2, b"behind", 1, None)
        await play.producer.flush()
        assert {sent.tp: sent.values for sent in play.log.kept} == {
            TopicPartition("t", partition_of(KEY_OF_2, 2)): [b"before"],
            TopicPartition("t", 2): [b"behind"],
        }

    play(story)


def test_record_outside_topic_limits_fails_at_send() -> None:
    async def story(play: Play) -> None:
        now_ms = int(SystemClock().wall() * 1000)
        out, send = play.producer._sending.topic("t"), play.producer.to("t")
        hour = limits_of({AFTER: "3600000", POLICY: "compact", SIZE: "500"})
        out.limit(hour)
        send(b"k", b"v", now_ms + 3_000_000, None)
        with pytest.raises(RecordRefused, match=r"topic t: its timestamp \d+ is 7200 s ahead"):
            send(b"k", b"v", now_ms + 7_200_000, None)
        with pytest.raises(RecordRefused, match="it has no key, and the topic is compacted"):
            send(None, b"v", now_ms, None)
        with pytest.raises(RecordTooLarge, match="the limit is 500"):
            send(b"k", bytes(500), now_ms, None)
        out.limit(limits_of({BEFORE: "1000"}))
        with pytest.raises(RecordRefused, match="3600 s before now, and message"):
            send(b"k", b"v", now_ms - 3_600_000, None)
        with pytest.raises(RecordRefused, match="its timestamp -1000 is"):
            send(b"k", b"before 1970", -1000, None)
        send(b"k", b"no time", -1, None)
        await play.producer.flush()
        values = [value for sent in play.log.kept for value in sent.values]
        assert sorted(map(str, values)) == ["b'no time'", "b'v'"]

    play(story)


def test_full_batch_leaves_as_soon_as_the_previous_one_is_acknowledged() -> None:
    """The batch need not wait for its linger or for a flush."""

    async def story(play: Play) -> None:
        play.log.gate.clear()
        play.send(bytes(SEND_BYTES))
        play.producer.push()
        await play.log.until(1)
        play.send(bytes(SEND_BYTES))
        play.producer.push()
        assert len(play.log.arrived) == 1
        play.log.gate.set()
        async with asyncio.timeout(WAIT_S / 2):
            await play.log.until(2)

    play(story, linger_s=2 * WAIT_S)


def test_producer_is_full_until_the_broker_has_taken_enough() -> None:
    async def story(play: Play) -> None:
        play.log.gate.clear()
        play.send(b"first")
        await play.log.until(1)
        for _ in range(20):
            play.send(bytes(100_000))
        flush = asyncio.create_task(play.producer.flush())
        await asyncio.sleep(0)
        assert play.producer.full()
        assert not play.room.is_set()
        play.log.gate.set()
        await play.room.wait()
        assert not play.producer.full()
        play.room.clear()
        await flush
        assert not play.room.is_set()

    play(story)


def test_starting_broker_is_asked_again_for_a_producer_id() -> None:
    async def story(play: Play) -> None:
        answers = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE]

        def answer(_: Asked) -> dict[str, int]:
            return {"error_code": answers.pop(0), "producer_id": PRODUCER_ID}

        play.broker.answers[Api.INIT_PRODUCER_ID] = answer
        await play.producer.start()
        assert answers == []

    play(story)


def leaders(play: Play, *, of_p: int, of_q: int = NODE, other: int = 0) -> None:
    """Return the answer of the broker from now on; `other`: the port of node 2."""

    def metadata(_: Asked) -> dict[str, Any]:
        ports = {NODE: play.broker.port, **({2: other} if other else {})}
        partitions = [
            {"partition_index": tp.partition, "leader_id": node}
            for tp, node in ((P, of_p), (Q, of_q))
        ]
        return {
            "brokers": [{"node_id": n, "host": "127.0.0.1", "port": p} for n, p in ports.items()],
            "controller_id": NODE,
            "topics": [{"name": "t", "partitions": partitions}],
        }

    play.broker.answers[Api.METADATA] = metadata


def test_partition_without_a_leader_delays_no_other() -> None:
    async def story(play: Play) -> None:
        leaders(play, of_p=-1)
        play.log.codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
        play.send(b"a")
        await play.log.until(1)
        play.log.arrived.clear()
        for number in range(100):
            play.send(b"%d" % number, tp=Q)
            await play.log.until(number + 1)
        assert not play.log.of(P)
        leaders(play, of_p=NODE)
        assert await play.producer.flush() == {P: 1, Q: 100}

    started = SystemClock().now()
    play(story)
    assert SystemClock().now() - started < 5.0  # each of them would have waited for 0.1 s


def test_moved_leader_is_found_and_gets_the_same_batch() -> None:
    async def story(play: Play) -> None:
        async with ScriptedBroker({Api.PRODUCE: play.log.produce}) as second:
            play.log.codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
            leaders(play, of_p=2, other=second.port)
            play.send(b"a")
            assert await play.producer.flush() == {P: 1}
            assert [len(b.asked_for(Api.PRODUCE)) for b in (play.broker, second)] == [1, 1]
            assert play.log.of(P) == [Sent(P, 0, 0, [b"a"])] * 2

    play(story)


def test_unavailable_broker_is_retried_with_pauses() -> None:
    async def story(play: Play) -> None:
        play.send(b"a")
        await play.producer.flush()
        await play.broker.stop()
        play.send(b"b")
        flush = asyncio.create_task(play.producer.flush())
        await asyncio.sleep(0.35)
        play.broker.connections = 0
        await play.broker.start()
        assert await flush == {P: 2}
        assert play.broker.connections <= 3

    play(story)


def test_silent_broker_is_disconnected() -> None:
    async def story(play: Play) -> None:
        play.producer._cluster.records_timeout_s = 0.1
        play.log.gate.clear()
        play.send(b"a")
        await play.log.until(1)
        await play.log.until(2)
        play.log.gate.set()
        await play.producer.flush()
        assert play.log.kept == [Sent(P, 0, 0, [b"a"])]

    play(story)


def test_records_beyond_the_request_size_go_in_several_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("streamsx.client.record_accumulator.REQUEST_BYTES_MAX", 1000)

    async def story(play: Play) -> None:
        play.send(bytes(800))
        play.send(bytes(800), tp=Q)
        assert await play.producer.flush() == {P: 1, Q: 1}
        assert len(play.broker.asked_for(Api.PRODUCE)) == 2
        play.send(bytes(300))
        play.send(bytes(300), tp=Q)
        assert await play.producer.flush() == {P: 2, Q: 2}
        assert len(play.broker.asked_for(Api.PRODUCE)) == 3

    play(story)


def test_repeated_broker_error_is_logged_once_and_lookups_are_limited(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(play: Play) -> None:
        play.log.codes = [ErrorCode.NOT_ENOUGH_REPLICAS] * 6
        before = len(play.broker.asked_for(Api.METADATA))
        play.producer._warned_at = -100.0
        play.send(b"a")
        play.send(b"x", tp=Q)
        assert await play.producer.flush() == {P: 1, Q: 1}
        assert len(play.broker.asked_for(Api.METADATA)) - before <= 6

    play(story)
    told = [r.getMessage() for r in caplog.records if "Sending again" in r.getMessage()]
    assert told == ["Sending again to t-0: NOT_ENOUGH_REPLICAS."]


def test_keys_go_to_their_partitions_and_stay_there() -> None:
    async def story(play: Play) -> None:
        send = play.producer.to("t")
        keys = [b"%d" % number for number in range(20)]
        for _ in range(2):
            for key in keys:
                send(key, key, 1, None)
        await play.producer.flush()
        for tp in (P, Q):
            values = [value for sent in play.log.of(tp) for value in sent.values]
            wanted = [key for key in keys if partition_of(key, 2) == tp.partition]
            assert values == wanted * 2
            assert wanted

    play(story)


def test_changelog_rows_arrive_in_order_over_several_batches() -> None:
    async def story(play: Play) -> None:
        keys, values = [b"%d" % n for n in range(30)], [bytes([n]) * 100_000 for n in range(30)]
        play.producer.rows("t", 1)(keys, values, 5)
        assert await play.producer.flush() == {Q: 30}
        assert [value for sent in play.log.of(Q) for value in sent.values] == values
        assert len(play.log.of(Q)) == 4

    play(story)


def test_broker_refusing_connections_is_retried_at_intervals() -> None:
    async def story(play: Play) -> None:
        tried, tries = asyncio.Event(), 0

        def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal tries
            tries += 1
            tried.set()
            writer.close()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as away:
            leaders(play, of_p=2, other=away.sockets[0].getsockname()[1])
            play.log.codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
            play.send(b"a")
            flush = asyncio.create_task(play.producer.flush())
            await tried.wait()
            await asyncio.sleep(0.25)
            assert tries <= 4
        leaders(play, of_p=NODE)
        assert await flush == {P: 1}

    play(story)


def test_remembered_keys_of_all_topics_share_one_byte_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """65,536 keys of 15 KB, each sent once, took 1 GB."""
    short = REMEMBERED_KEY_BYTES + 3
    monkeypatch.setattr("streamsx.client.producer.REMEMBERED_BYTES", 10 * short)

    async def story(play: Play) -> None:
        topics = play.producer._sending.topics
        sends = [play.producer.to(topic) for topic in ("t", "u")]

        def remembered() -> list[bytes]:
            return [key for each in topics.values() for key in each.known if key is not None]

        for number in range(100, 600):
            for send in sends:
                send(b"%d" % number, None, 1, None)
            assert 1 <= len(remembered()) <= 10
        sends[0](bytes(5 * short), None, 1, None)
        assert sum(len(key) + REMEMBERED_KEY_BYTES for key in remembered()) <= 10 * short
        assert bytes(5 * short) in remembered()

    play(story)


def test_closed_producer_sends_nothing_when_connections_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A worker that ends with an error has batches on their way; its task group starts no more
    jobs.
    """

    async def story(play: Play) -> None:
        play.producer._warned_at = -100.0
        play.log.gate.clear()
        play.send(b"a")
        await play.log.until(1)
        asked = len(play.broker.asked_for(Api.METADATA))
        play.producer.close()
        assert not play.producer._connections  # what was on its way is cut off
        await asyncio.sleep(0.05)
        play.send(b"b", tp=Q)
        play.log.more.clear()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await play.log.more.wait()
        play.log.gate.set()
        assert len(play.broker.asked_for(Api.METADATA)) == asked

    play(story)
    assert not [r for r in caplog.records if "Sending again" in r.getMessage()]


def test_key_sent_to_an_explicit_partition_goes_there() -> None:
    async def story(play: Play) -> None:
        for tp in (P, Q, P):
            play.producer.to("t", tp.partition)(b"key", b"%d" % tp.partition, 1, None)
        await play.producer.flush()
        values = {tp: [value for sent in play.log.of(tp) for value in sent.values] for tp in (P, Q)}
        assert values == {P: [b"0", b"0"], Q: [b"1"]}

    play(story)


def test_batch_leaves_after_the_linger_even_if_another_is_opened() -> None:
    async def story(play: Play) -> None:
        play.send(b"warm")
        await play.producer.flush()
        play.send(b"a")
        await asyncio.sleep(0.4)
        play.send(b"x", tp=Q)
        await play.log.until(2)
        assert play.log.arrived[1:] == [Sent(P, 0, 1, [b"a"])]
        await play.log.until(3)

    play(story, linger_s=0.8)
