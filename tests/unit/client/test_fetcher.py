"""Fetch loops against scripted brokers, with changes of leaders and bad answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from streamsx.client import fetcher as fetch
from streamsx.client.cluster import Cluster
from streamsx.client.fetch_state import FetchLimits
from streamsx.client.fetcher import Fetcher
from streamsx.clock import Clock, SystemClock
from streamsx.model import TopicPartition
from streamsx.protocol.error_codes import ErrorCode
from streamsx.protocol.record_batch import Builder, place
from streamsx.protocol.wire import Api, Body
from tests.support.scripted_broker import NODE, Asked, ScriptedBroker

TP = TopicPartition("lines", 0)
NOBODY = -1
SOON_S = 5.0


class Scene:
    """Broker whose only partition has `leader`; fetches find no records."""

    def __init__(self) -> None:
        self.leader = NODE
        self.fetched, self.looked_up = asyncio.Event(), asyncio.Event()
        self.broker = ScriptedBroker({Api.METADATA: self._metadata, Api.FETCH: self._fetch})

    def _metadata(self, _: Asked) -> Body:
        self.looked_up.set()
        partitions = [{"partition_index": 0, "leader_id": self.leader}]
        return {
            "brokers": [{"node_id": NODE, "host": "127.0.0.1", "port": self.broker.port}],
            "controller_id": NODE,
            "topics": [{"name": TP.topic, "partitions": partitions}],
        }

    async def _fetch(self, _: Asked) -> Body:
        self.fetched.set()
        await asyncio.sleep(0.01)  # as long as the request would wait for records
        part = {"partition_index": 0, "high_watermark": 0, "last_stable_offset": 0, "records": b""}
        return {"responses": [{"topic": TP.topic, "partitions": [part]}]}


async def soon(event: asyncio.Event) -> None:
    """Return a deadline soon after now."""
    event.clear()
    async with asyncio.timeout(SOON_S):
        await event.wait()


def ignore(tp: TopicPartition, offset: int) -> None:
    raise AssertionError(f"out of range: {tp} at {offset}")


def damaged(tp: TopicPartition, offset: int, why: str) -> None:
    raise AssertionError(f"damaged: {tp} at {offset}: {why}")


def test_partition_without_a_leader_for_a_while_is_fetched_again() -> None:
    """Also if another request has found out that it has no leader."""

    async def story() -> None:
        scene = Scene()
        async with scene.broker as broker:
            cluster = Cluster(broker.bootstrap)
            await cluster.start()
            await cluster.follow([TP.topic])
            fetcher = Fetcher(
                cluster, SystemClock(), "data", FetchLimits(), lambda: None, ignore, damaged
            )
            fetcher.add(TP, 0)
            running = asyncio.create_task(fetcher.run())
            await soon(scene.fetched)

            scene.leader = NOBODY
            await cluster.refresh()
            await soon(scene.looked_up)
            scene.leader = NODE
            await soon(scene.fetched)

            running.cancel()
            await asyncio.wait([running])
            await cluster.stop()

    asyncio.run(story())


def test_missing_leader_is_looked_up_with_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was asked for ten times a second."""
    monkeypatch.setattr(fetch, "BACKOFF_S", 0.01)
    monkeypatch.setattr(fetch, "LEADERLESS_MAX_S", 0.2)

    async def story() -> None:
        scene = Scene()
        scene.leader = NOBODY
        async with scene.broker as broker:
            cluster = Cluster(broker.bootstrap)
            await cluster.start()
            await cluster.follow([TP.topic])
            fetcher = Fetcher(
                cluster, SystemClock(), "data", FetchLimits(), lambda: None, ignore, damaged
            )
            before = len(broker.asked_for(Api.METADATA))
            fetcher.add(TP, 0)
            running = asyncio.create_task(fetcher.run())
            await asyncio.sleep(1.0)
            assert len(broker.asked_for(Api.METADATA)) - before < 15

            scene.leader = NODE
            await soon(scene.fetched)
            running.cancel()
            await asyncio.wait([running])
            await cluster.stop()

    asyncio.run(story())


A, B = TopicPartition("t", 0), TopicPartition("t", 1)
RECORDS = 10


def written(offset: int) -> bytes:
    """Return a batch of ten records."""
    builder = Builder(1 << 20)
    for number in range(offset, offset + RECORDS):
        builder.append(1, b"%d" % number, None)
    data = builder.close()
    place(data, offset, 0)
    return bytes(data)


def torn(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


class Node:
    """Broker with a list of batches for each partition; a fetch returns one of each."""

    def __init__(self, lane: "Lane", number: int) -> None:
        self.number, self._lane = number, lane
        self.broker = ScriptedBroker({Api.METADATA: self._metadata, Api.FETCH: self._fetch})

    def _metadata(self, _: Asked) -> Body:
        self._lane.looked.set()
        nodes = [(node.number, node.broker.port) for node in self._lane.nodes]
        leaders = self._lane.leaders
        return {
            "brokers": [{"node_id": n, "host": "127.0.0.1", "port": port} for n, port in nodes],
            "controller_id": 1,
            "topics": [
                {
                    "name": "t",
                    "partitions": [
                        {"partition_index": tp.partition, "leader_id": leader}
                        for tp, leader in leaders.items()
                    ],
                }
            ],
        }

    async def _fetch(self, asked: Asked) -> Body | None:
        lane = self._lane
        lane.requests.append((self.number, asked.body))
        lane.asked.set()
        await lane.gate.wait()
        if lane.hangs_up:
            lane.hangs_up -= 1
            return None
        (topic,) = asked.body.topics
        parts = [self._part(part) for part in topic.partitions]
        if not any(part.get("records") or part["error_code"] for part in parts):
            await asyncio.sleep(0.002)  # as a poll would wait
        return {"responses": [{"topic": "t", "partitions": parts}]}

    def _part(self, part: Any) -> dict[str, Any]:
        tp, lane = TopicPartition("t", part.partition), self._lane
        log, answer = lane.logs[tp], {"partition_index": part.partition, "error_code": 0}
        if lane.leaders[tp] != self.number or lane.codes.get(tp):
            code = lane.codes.get(tp, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return {**answer, "error_code": code}
        end = RECORDS * len(log)
        records = b"".join(log[part.fetch_offset // RECORDS :][: lane.batches])
        return {**answer, "high_watermark": end, "last_stable_offset": end, "records": records}


class Lane:
    """Fetcher with its brokers and its log."""

    def __init__(self, brokers: int, batches: int) -> None:
        self.batches = batches
        """In one answer of a partition."""
        self.nodes = [Node(self, number) for number in range(1, brokers + 1)]
        self.leaders, self.logs = {A: 1, B: brokers}, dict[TopicPartition, list[bytes]]()
        self.codes: dict[TopicPartition, int] = {}
        self.hangs_up = 0
        self.requests: list[tuple[int, Any]] = []
        self.gate, self.asked, self.arrived = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.looked = asyncio.Event()
        """Somebody asks who leads what."""
        self.gate.set()
        self.lost = list[tuple[TopicPartition, int]]()
        self.unreadable = list[tuple[TopicPartition, int]]()
        self.told = asyncio.Event()
        self.fetcher: Fetcher

    def out_of_range(self, tp: TopicPartition, offset: int) -> None:
        self.lost.append((tp, offset))
        self.told.set()

    def damaged(self, tp: TopicPartition, offset: int, why: str) -> None:
        assert "checksum" in why
        self.unreadable.append((tp, offset))
        self.told.set()

    async def take(self, tp: TopicPartition, records: int) -> list[int]:
        """Return the next offsets."""
        offsets: list[int] = []
        while len(offsets) < records:
            self.arrived.clear()
            while (batch := self.fetcher.take(tp)) is not None:
                offsets += batch.offsets
            if len(offsets) < records:
                await self.arrived.wait()
        return offsets

    async def request(self) -> Any:
        """Return the next request that arrives."""
        self.asked.clear()
        await self.asked.wait()
        return self.requests[-1][1]


@asynccontextmanager
async def fetching(
    limits: FetchLimits, brokers: int, batches: int, clock: Clock
) -> AsyncIterator[Lane]:
    lane = Lane(brokers, batches)
    async with AsyncExitStack() as stack, asyncio.timeout(SOON_S):
        for node in lane.nodes:
            await stack.enter_async_context(node.broker)
        cluster = Cluster(lane.nodes[0].broker.bootstrap)
        await cluster.start()
        await cluster.follow(["t"])
        lane.fetcher = Fetcher(
            cluster, clock, "data", limits, lane.arrived.set, lane.out_of_range, lane.damaged
        )
        running = asyncio.create_task(lane.fetcher.run())
        yield lane
        running.cancel()
        await asyncio.wait([running])
        await cluster.stop()


Story = Callable[[Lane], Awaitable[None]]


def play(
    story: Story,
    limits: FetchLimits = FetchLimits(),  # noqa: B008  # frozen
    brokers: int = 1,
    batches: int = 1,
    clock: Clock | None = None,
) -> None:
    async def run() -> None:
        async with fetching(limits, brokers, batches, clock or SystemClock()) as lane:
            await story(lane)

    asyncio.run(run())


def test_records_arrive_in_order_and_once_from_every_broker() -> None:
    async def story(lane: Lane) -> None:
        lane.logs = {A: [written(n) for n in range(0, 50, 10)], B: [written(0), written(10)]}
        lane.fetcher.add(A, 0)
        lane.fetcher.add(B, 5)
        assert await lane.take(A, 50) == list(range(50))
        assert await lane.take(B, 15) == list(range(5, 20))
        assert {number for number, _ in lane.requests} == {1, 2}

    play(story, brokers=2)


def test_fetch_request_carries_offsets_and_limits() -> None:
    async def story(lane: Lane) -> None:
        lane.logs = {A: [], B: []}
        lane.fetcher.add(A, 3)
        lane.fetcher.add(B, 4)
        while len((await lane.request()).topics[0].partitions) < 2:
            pass
        body = lane.requests[-1][1]
        assert (body.max_wait, body.min_bytes, body.max_bytes) == (100, 1, 5000)
        assert (body.isolation_level, body.session_epoch, body.replica_id) == (1, -1, -1)
        (topic,) = body.topics
        assert [
            (p.partition, p.fetch_offset, p.partition_max_bytes, p.current_leader_epoch)
            for p in topic.partitions
        ] == [(0, 3, 700, -1), (1, 4, 700, -1)]

    play(story, FetchLimits(wait_ms=100, reply_bytes=5000, partition_bytes=700))


def test_empty_fetch_answer_wakes_no_reader() -> None:
    """Each poll of a topic without new records gets an empty answer."""

    async def story(lane: Lane) -> None:
        lane.logs = {A: [], B: []}
        lane.fetcher.add(A, 0)
        for _ in range(3):
            await lane.request()
        assert not lane.arrived.is_set()
        lane.logs[A].append(written(0))
        await lane.arrived.wait()

    play(story)


class HandClock:
    def __init__(self) -> None:
        self.time = 50.0

    def now(self) -> float:
        return self.time

    def wall(self) -> float:
        return self.time


def test_polls_before_the_first_assignment_are_long() -> None:
    """Also if the clock has just started."""
    clock = HandClock()
    clock.time = 0.0

    async def story(lane: Lane) -> None:
        lane.logs = {A: [], B: []}
        lane.fetcher.add(A, 0)
        assert (await lane.request()).max_wait == 100

    play(story, FetchLimits(wait_ms=100), clock=clock)


def test_polls_after_an_assignment_are_short_for_a_while() -> None:
    """A partition that is added during a poll has to wait for its end."""
    clock = HandClock()

    async def story(lane: Lane) -> None:
        lane.logs = {A: [], B: []}
        lane.fetcher.hurry()
        lane.fetcher.add(A, 0)
        assert (await lane.request()).max_wait == 20
        clock.time += 9.9
        await lane.request()
        assert (await lane.request()).max_wait == 20
        clock.time += 0.1
        await lane.request()
        assert (await lane.request()).max_wait == 250

    play(story, clock=clock)


def test_batch_damaged_in_transit_is_fetched_again_with_later_batches(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The answer to the next request arrives after the damage was found."""

    async def story(lane: Lane) -> None:
        lane.logs = {A: [torn(written(0)), written(10)]}
        lane.fetcher.add(A, 0)
        await lane.arrived.wait()
        lane.arrived.clear()
        assert lane.fetcher.take(A) is None
        lane.logs = {A: [written(0), written(10)]}
        assert await lane.take(A, 20) == list(range(20))
        assert not lane.unreadable

    play(story)
    (told,) = [r.getMessage() for r in caplog.records if "Reading t-0 again" in r.getMessage()]
    assert "record batch at offset 0: its checksum is not" in told


def test_silent_broker_is_disconnected() -> None:
    async def story(lane: Lane) -> None:
        lane.fetcher._cluster.records_timeout_s = 0.05
        lane.logs = {A: [written(0)]}
        lane.gate.clear()
        lane.fetcher.add(A, 0)
        await lane.request()
        await lane.request()
        lane.gate.set()
        assert await lane.take(A, 10) == list(range(10))

    play(story, FetchLimits(wait_ms=50))


def test_damaged_batch_is_reported_once_and_blocks_no_other_partition() -> None:
    async def story(lane: Lane) -> None:
        lane.logs = {A: [written(0), torn(written(10)), written(20)], B: [written(0)]}
        lane.fetcher.add(A, 0)
        lane.fetcher.add(B, 0)
        assert await lane.take(A, 10) == list(range(10))
        reading = asyncio.create_task(lane.take(A, 20))
        await lane.told.wait()
        for number in range(10, 60, 10):
            lane.logs[B].append(written(number))
        assert await lane.take(B, 60) == list(range(60))
        assert lane.unreadable == [(A, 10)]

        lane.logs[A][1] = written(10)  # a sound copy leads
        assert await reading == list(range(10, 30))
        assert lane.unreadable == [(A, 10)]

    play(story)


def test_late_source_gets_first_records_while_another_fills_the_buffer() -> None:
    async def story(lane: Lane) -> None:
        lane.logs = {A: [written(n) for n in range(0, 500, 10)], B: [written(0)]}
        lane.codes = {B: ErrorCode.LEADER_NOT_AVAILABLE}
        lane.fetcher.add(A, 0)
        lane.fetcher.add(B, 0)
        await lane.arrived.wait()
        while any(part.partition == 0 for part in (await lane.request()).topics[0].partitions):
            pass
        lane.codes = {}
        assert await lane.take(B, 10) == list(range(10))
        assert await lane.take(A, 500) == list(range(500))

    play(story, FetchLimits(held_bytes_all=300))


def test_removing_the_source_filling_the_buffer_lets_others_continue() -> None:
    async def story(lane: Lane) -> None:
        lane.logs = {A: [written(0)], B: [written(0), written(10)]}
        lane.fetcher.add(A, 0)
        await lane.arrived.wait()
        lane.fetcher.add(B, 0)
        while not lane.fetcher.waiting(B):
            lane.arrived.clear()
            await lane.arrived.wait()
        requests = len(lane.requests)
        lane.fetcher.remove(A)
        while not (lane.fetcher.waiting(B) and len(lane.requests) > requests):
            await lane.request()
        assert lane.requests[-1][1].topics[0].partitions[0].fetch_offset == 10
        assert await lane.take(B, 20) == list(range(20))

    play(story, FetchLimits(held_bytes_all=len(written(0)) + 1))


def test_disconnecting_broker_causes_no_loss_and_no_duplicates() -> None:
    async def story(lane: Lane) -> None:
        lane.logs = {A: [written(n) for n in range(0, 30, 10)]}
        lane.fetcher.add(A, 0)
        assert await lane.take(A, 10) == list(range(10))
        lane.hangs_up = 2
        assert await lane.take(A, 20) == list(range(10, 30))

    play(story)


def test_moved_leader_is_found_at_once() -> None:
    async def story(lane: Lane) -> None:
        lane.logs = {A: [written(n) for n in range(0, 30, 10)]}
        lane.fetcher.add(A, 0)
        assert await lane.take(A, 10) == list(range(10))
        lane.leaders[A] = 2
        assert await lane.take(A, 20) == list(range(10, 30))
        assert lane.requests[-1][0] == 2

    play(story, brokers=2)


def looked_up(lane: Lane) -> int:
    """Return the number of requests for the leaders."""
    return sum(len(node.broker.asked_for(Api.METADATA)) for node in lane.nodes)


def test_unauthorized_topic_is_logged_with_a_remedy_and_read_once_allowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(lane: Lane) -> None:
        lane.logs = {A: [written(0)], B: [written(0)]}
        lane.codes = {A: ErrorCode.TOPIC_AUTHORIZATION_FAILED}
        lane.fetcher.add(A, 0)
        lane.fetcher.add(B, 0)
        assert await lane.take(B, 10) == list(range(10))
        lane.codes = {}
        assert await lane.take(A, 10) == list(range(10))

    play(story)
    assert (
        "Cannot read t-0: TOPIC_AUTHORIZATION_FAILED: let the user of this worker read the topic. "
        "Trying again in 0.1 s."
    ) in caplog.messages


def test_refused_fetch_causes_one_metadata_lookup_and_a_good_answer_none() -> None:
    async def story(lane: Lane) -> None:
        lane.logs = {A: [written(n) for n in range(0, 60, 10)]}
        lane.fetcher.add(A, 0)
        before = looked_up(lane)
        assert await lane.take(A, 30) == list(range(30))
        assert looked_up(lane) == before
        lane.codes = {A: ErrorCode.REPLICA_NOT_AVAILABLE}
        lane.fetcher.add(A, 30)
        lane.looked.clear()
        await lane.looked.wait()
        lane.codes = {}
        assert await lane.take(A, 30) == list(range(30, 60))
        assert looked_up(lane) == before + 1

    play(story)


def test_disconnecting_broker_is_retried_with_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(lane: Lane) -> None:
        lane.logs, lane.hangs_up, before = {A: [written(0)]}, 3, looked_up(lane)
        began = SystemClock().now()
        lane.fetcher.add(A, 0)
        assert await lane.take(A, 10) == list(range(10))
        assert SystemClock().now() - began >= 0.7  # 0.1, 0.2 and 0.4
        assert looked_up(lane) == before + 3
        assert [line for line in caplog.messages if "does not answer" in line] == caplog.messages[
            :1
        ]

    play(story)


def test_offset_out_of_range_waits_for_the_owner() -> None:
    async def story(lane: Lane) -> None:
        lane.logs, lane.codes = {A: [written(0)]}, {A: ErrorCode.OFFSET_OUT_OF_RANGE}
        lane.fetcher.add(A, 7)
        await lane.told.wait()
        assert lane.lost == [(A, 7)]
        assert len(lane.requests) == 1
        lane.codes = {}
        lane.fetcher.add(A, 0)
        assert await lane.take(A, 10) == list(range(10))

    play(story)


def test_fetcher_reports_end_and_caught_up_from_answers() -> None:
    async def story(lane: Lane) -> None:
        lane.logs, fetcher = {A: [written(0)], B: [written(0)]}, lane.fetcher
        lane.gate.clear()
        fetcher.add(A, 0)
        await lane.request()
        assert (fetcher.end(A), fetcher.caught_up(A), fetcher.waiting(A)) == (-1, False, False)
        lane.gate.set()
        await lane.arrived.wait()
        assert (fetcher.end(A), fetcher.caught_up(A), fetcher.waiting(A)) == (10, False, True)
        assert await lane.take(A, 10) == list(range(10))
        assert fetcher.caught_up(A)
        fetcher.remove(A)
        assert (fetcher.end(A), fetcher.caught_up(A)) == (-1, False)

    play(story)
