"""Producer with a transactional id, against a coordinator that refuses, fences or hangs up."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from streamsx.client.cluster import Cluster
from streamsx.client.rejected_batch import RefusedRecord
from streamsx.client.transactional_id import VERDICTS, TransactionalId, TransactionVerdict
from streamsx.client.transactional_producer import TransactionalProducer
from streamsx.clock import SystemClock
from streamsx.errors import SettingError, StreamsxError, TransactionFenced
from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import scan
from streamsx.protocol.wire import Api
from tests.support.scripted_broker import NODE, Asked, ScriptedBroker

P = TopicPartition("t", 0)
ID = "app-1"
WAIT_S = 10.0


@dataclass
class Coordinator:
    """Answers of a coordinator to the next requests of each kind; it grants all others."""

    codes: dict[int, list[int | None]] = field(default_factory=dict)
    """Codes by API; None hangs up."""
    epoch: int = -1
    level: int = 2
    log: list[tuple[Api, int]] = field(default_factory=list)
    """Each request that was granted, with its epoch."""
    batches: list[tuple[int, int, bool]] = field(default_factory=list)
    """Epoch, first sequence, and whether it belongs to a transaction."""

    def code(self, api: Api) -> int | None:
        waiting = self.codes.get(api, [])
        return waiting.pop(0) if waiting else 0

    def find(self, asked: Asked) -> dict[str, Any]:
        assert asked.body.key == ID
        return {"node_id": NODE, "host": "127.0.0.1", "port": self.port}

    port = 0

    @property
    def features(self) -> dict[str, Any]:
        feature = {"name": "transaction.version", "max_version_level": self.level}
        return {"finalized_features": [{**feature, "min_version_level": 0}]}

    def begin(self, asked: Asked) -> dict[str, Any] | None:
        if code := self.code(Api.INIT_PRODUCER_ID):
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
        self.epoch += 1
        self.log.append((Api.INIT_PRODUCER_ID, self.epoch))
        return {"producer_id": 7, "producer_epoch": self.epoch}

    def add(self, asked: Asked) -> dict[str, Any] | None:
        code = self.code(Api.ADD_PARTITIONS_TO_TXN)
        topics = [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": n, "partition_error_code": code} for n in topic.partitions
                ],
            }
            for topic in asked.body.v3_and_below_topics
        ]
        self.log.append((Api.ADD_PARTITIONS_TO_TXN, asked.body.v3_and_below_producer_epoch))
        return {"results_by_topic_v3_and_below": topics}

    def group(self, asked: Asked) -> dict[str, Any]:
        self.log.append((Api.ADD_OFFSETS_TO_TXN, asked.body.producer_epoch))
        return {"error_code": self.code(Api.ADD_OFFSETS_TO_TXN)}

    def end(self, asked: Asked) -> dict[str, Any] | None:
        code = self.code(Api.END_TXN)
        if code is None:
            return None
        if code:
            return {"error_code": code}
        self.log.append((Api.END_TXN, asked.body.producer_epoch))
        if asked.version < 5:
            return {"error_code": 0}
        self.epoch += 1
        return {"error_code": 0, "producer_id": 7, "producer_epoch": self.epoch}

    def produce(self, asked: Asked) -> dict[str, Any]:
        assert asked.body.transactional_id == ID
        topics = []
        for topic in asked.body.topic_data:
            parts = []
            for part in topic.partition_data:
                ((_, _, header),) = scan(bytes(part.records), check=True)
                code = self.code(Api.PRODUCE)
                if not code:
                    numbers = header.producer_epoch, header.base_sequence
                    self.batches.append((*numbers, header.transactional))
                parts.append({"index": part.index, "error_code": code, "base_offset": 0})
            topics.append({"name": topic.name, "partition_responses": parts})
        return {"responses": topics}


@dataclass
class Play:
    producer: TransactionalProducer
    coordinator: Coordinator
    broker: ScriptedBroker
    over: list[str]
    failures: list[StreamsxError]
    refused: list[tuple[TopicPartition, int]]
    heard: asyncio.Event

    def send(self, *values: bytes) -> None:
        send = self.producer.to(P.topic, P.partition)
        for value in values:
            send(None, value, 1, None)

    async def commit(self) -> bool:
        assert await self.producer.settle({}, WAIT_S) == frozenset()
        return await self.producer.end()

    def asked(self, api: Api) -> int:
        return len(self.broker.asked_for(api))


@asynccontextmanager
async def playing(coordinator: Coordinator, timeout_s: float) -> AsyncIterator[Play]:
    script: dict[int, Any] = {
        Api.FIND_COORDINATOR: coordinator.find,
        Api.INIT_PRODUCER_ID: coordinator.begin,
        Api.ADD_PARTITIONS_TO_TXN: coordinator.add,
        Api.ADD_OFFSETS_TO_TXN: coordinator.group,
        Api.END_TXN: coordinator.end,
        Api.PRODUCE: coordinator.produce,
    }
    async with ScriptedBroker(script, {"t": 1}) as broker, asyncio.TaskGroup() as jobs:
        coordinator.port = broker.port
        broker.features = coordinator.features
        cluster = Cluster(broker.bootstrap)
        await cluster.start()
        await cluster.follow(["t"])
        over, failures = list[str](), list[StreamsxError]()
        refused = list[tuple[TopicPartition, int]]()
        heard = asyncio.Event()

        def refuses(tp: TopicPartition, code: int, _: RefusedRecord) -> None:
            refused.append((tp, code))
            heard.set()

        def aborts(why: str) -> None:
            over.append(why)
            producer.abort()

        producer = TransactionalProducer(
            cluster, SystemClock(), jobs.create_task,
            refuses,
            linger_s=0.001, buffer_bytes=1 << 20,
            transactional_id=TransactionalId(ID, timeout_s), over=aborts, fails=failures.append,
        )  # fmt: skip
        async with asyncio.timeout(WAIT_S):
            await producer.start()
            yield Play(producer, coordinator, broker, over, failures, refused, heard)
            producer.close()
        await cluster.stop()


Story = Callable[[Play], Awaitable[None]]


def play(story: Story, coordinator: Coordinator | None = None, timeout_s: float = 10.0) -> Any:
    made = coordinator or Coordinator()

    async def run() -> None:
        async with playing(made, timeout_s) as given:
            await story(given)

    asyncio.run(run())
    return made


def test_each_end_raises_the_epoch_of_the_batches_behind_it() -> None:
    async def story(play: Play) -> None:
        play.send(b"a", b"b")
        assert await play.commit()
        play.send(b"c")
        assert await play.commit()

    made = play(story)
    assert made.batches == [(0, 0, True), (1, 0, True)]
    assert made.log == [(Api.INIT_PRODUCER_ID, 0), (Api.END_TXN, 0), (Api.END_TXN, 1)]


def test_first_version_adds_partitions_and_the_group_before_they_are_used() -> None:
    async def story(play: Play) -> None:
        play.send(b"a")
        assert await play.producer.settle({}, WAIT_S) == frozenset()
        assert await play.producer.add_group("app")
        assert await play.producer.end()
        play.send(b"b")
        assert await play.commit()

    made = play(story, Coordinator(level=1))
    assert made.batches == [(0, 0, True), (0, 1, True)]
    assert [api for api, _ in made.log] == [
        Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.END_TXN,
        Api.ADD_PARTITIONS_TO_TXN, Api.END_TXN,
    ]  # fmt: skip


def test_records_behind_a_flush_wait_for_the_next_transaction() -> None:
    async def story(play: Play) -> None:
        play.send(b"a")
        await play.producer.settle({}, WAIT_S)
        play.send(b"b")
        await asyncio.sleep(0.05)
        assert len(play.coordinator.batches) == 1
        assert await play.producer.end()
        await play.producer.flush()

    assert play(story).batches == [(0, 0, True), (1, 0, True)]


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_COORDINATOR, ErrorCode.CONCURRENT_TRANSACTIONS, None]
)
def test_end_is_asked_for_until_it_is_answered(code: int | None) -> None:
    async def story(play: Play) -> None:
        play.send(b"a")
        assert await play.commit()
        assert (play.asked(Api.END_TXN), play.over) == (3, [])

    play(story, Coordinator({Api.END_TXN: [code, code]}))


@pytest.mark.parametrize(
    ("api", "code"),
    [
        (Api.END_TXN, ErrorCode.INVALID_TXN_STATE),
        (Api.END_TXN, ErrorCode.PRODUCER_FENCED),
        (Api.PRODUCE, ErrorCode.INVALID_PRODUCER_EPOCH),
        (Api.PRODUCE, ErrorCode.TRANSACTION_ABORTABLE),
        (Api.PRODUCE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
)
def test_transaction_that_is_over_is_begun_anew_with_nothing_of_it(api: Api, code: int) -> None:
    async def story(play: Play) -> None:
        play.send(b"lost")
        if api is Api.END_TXN:
            assert not await play.commit()
        else:
            await play.producer.flush()
        assert len(play.over) == 1
        assert ErrorCode(code).name in play.over[0]
        fenced = VERDICTS[code] is TransactionVerdict.FENCED
        assert ("transaction_timeout, 10 s" in play.over[0]) == fenced
        play.send(b"kept")
        assert await play.commit()

    made = play(story, Coordinator({api: [code]}))
    assert [api for api, _ in made.log] == [
        Api.INIT_PRODUCER_ID, Api.INIT_PRODUCER_ID, Api.END_TXN,
    ]  # fmt: skip
    assert made.batches[-1][:2] == (1, 0)


def test_batch_is_sent_again_soon_while_the_transaction_before_ends() -> None:
    async def story(play: Play) -> None:
        play.send(b"a")
        assert await play.commit()

    codes: dict[int, list[int | None]] = {Api.PRODUCE: [ErrorCode.CONCURRENT_TRANSACTIONS] * 3}
    assert play(story, Coordinator(codes)).batches == [(0, 0, True)]


def test_end_of_an_aborted_transaction_counts_for_nothing() -> None:
    """EndTxn is not answered; the transaction is aborted; the connection breaks."""

    async def story(play: Play) -> None:
        asked = asyncio.Event()

        async def silent(_: Asked) -> None:
            asked.set()
            await asyncio.Event().wait()

        usual = play.broker.answers[Api.END_TXN]
        play.send(b"a")
        await play.producer.settle({}, WAIT_S)
        play.broker.answers[Api.END_TXN] = silent
        ending = asyncio.create_task(play.producer.end())
        await asked.wait()
        play.producer.abort()
        play.broker.hang_up()
        assert not await ending
        play.broker.answers[Api.END_TXN] = usual
        play.send(b"b")
        assert await play.commit()

    assert [api for api, _ in play(story).log][-2:] == [Api.INIT_PRODUCER_ID, Api.END_TXN]


def test_third_fence_in_a_minute_ends_the_worker() -> None:
    """It leaves the id to the other process, which would be fenced for the third time too."""

    async def story(play: Play) -> None:
        for _ in range(3):
            play.send(b"a")
            await play.commit()
        (error,) = play.failures
        assert isinstance(error, TransactionFenced)
        assert "app-1" in str(error)
        assert "a directory of its own" in str(error)
        await play.producer.finish()

    made = play(story, Coordinator({Api.END_TXN: [ErrorCode.PRODUCER_FENCED] * 3}))
    assert [api for api, _ in made.log].count(Api.INIT_PRODUCER_ID) == 3


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (ErrorCode.INVALID_TRANSACTION_TIMEOUT, "transaction_timeout of 10 s.*max.timeout.ms"),
        (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "TransactionalId.*at_least_once"),
    ],
)
def test_denied_id_is_a_setting_error_at_the_start(code: int, says: str) -> None:
    async def story(_: Play) -> None:
        raise AssertionError("it has begun")

    with pytest.RaisesGroup(pytest.RaisesExc(SettingError, match=says)):
        play(story, Coordinator({Api.INIT_PRODUCER_ID: [code]}))


def test_late_records_leave_with_their_flush() -> None:
    async def story(play: Play) -> None:
        play.producer.worked(2.5)
        play.send(b"a")
        await asyncio.sleep(0.05)
        assert play.coordinator.batches == []
        assert await play.commit()
        assert len(play.coordinator.batches) == 1

    play(story)


def test_body_that_awaits_its_record_lets_late_records_leave() -> None:
    async def story(play: Play) -> None:
        play.producer.worked(2.5)
        send = play.producer.to(P.topic)
        send(b"k", b"a", 1, None)
        await play.producer.last_sent(P.topic, 1).result()
        assert len(play.coordinator.batches) == 1

    play(story)


def test_worker_that_ends_leaves_no_transaction_open() -> None:
    async def story(play: Play) -> None:
        await play.producer.finish()
        assert play.asked(Api.INIT_PRODUCER_ID) == 1
        play.send(b"behind the last commit")
        await play.producer.flush()
        await play.producer.finish()

    made = play(story)
    assert [api for api, _ in made.log] == [Api.INIT_PRODUCER_ID] * 2


def test_partition_without_the_right_to_write_is_refused_to_its_senders_alone() -> None:
    """The transaction was aborted and begun again without end. Now its owner stops the senders
    alone.
    """

    async def story(play: Play) -> None:
        play.send(b"a")
        await play.heard.wait()
        assert play.refused == [(P, ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
        assert play.over == []

    codes: dict[int, list[int | None]] = {
        Api.ADD_PARTITIONS_TO_TXN: [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    }
    play(story, Coordinator(codes, level=1))


def test_missing_right_for_offsets_ends_the_worker() -> None:
    async def story(play: Play) -> None:
        play.send(b"a")
        await play.producer.settle({}, WAIT_S)
        assert not await play.producer.add_group("app")
        assert "GROUP_AUTHORIZATION_FAILED" in str(play.failures[0])

    codes: dict[int, list[int | None]] = {
        Api.ADD_OFFSETS_TO_TXN: [ErrorCode.GROUP_AUTHORIZATION_FAILED]
    }
    play(story, Coordinator(codes, level=1))


def test_records_without_an_end_are_known_until_they_have_one() -> None:
    async def story(play: Play) -> None:
        known = [play.producer.unended]
        play.send(b"a")
        known.append(play.producer.unended)
        assert await play.commit()
        assert [*known, play.producer.unended] == [False, True, False]

    play(story)
