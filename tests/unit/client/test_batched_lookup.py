"""client/batched_lookup.py: many small requests are sent together until they are answered."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

from streamsx.client.batched_lookup import BatchedLookup
from streamsx.errors import SettingError, StreamsxError, TopicGone
from streamsx.model import TopicPartition
from tests.support.autojump_loop import AutojumpLoop

TPS = [TopicPartition("log", number) for number in range(60)]


class Oracle:
    """Source of a number for each partition that is not `lost`; it answers when it may."""

    def __init__(self) -> None:
        self.asked: list[list[TopicPartition]] = []
        self.told: list[StreamsxError] = []
        self.lost: set[TopicPartition] = set()
        self.refuses: Exception | None = None
        self.more = asyncio.Event()
        self.may = asyncio.Event()
        self.may.set()
        self.inquiries = BatchedLookup(self._ask, self.told.append)

    async def _ask(
        self, tps: list[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], StreamsxError | None]:
        self.asked.append(tps)
        self.more.set()
        number = len(self.asked)
        await self.may.wait()
        if self.refuses:
            raise self.refuses
        lost = self.lost & set(tps)
        return {tp: number for tp in tps if tp not in lost}, TopicGone("lost") if lost else None

    async def until_asked(self, times: int) -> None:
        while len(self.asked) < times:
            self.more.clear()
            await self.more.wait()


Story = Callable[[Oracle], Coroutine[Any, Any, None]]


def run(story: Story) -> None:
    async def told() -> None:
        oracle = Oracle()
        running = asyncio.create_task(oracle.inquiries.run())
        async with asyncio.timeout(10):
            await story(oracle)
        running.cancel()

    with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
        runner.run(told())


def test_concurrent_inquiries_share_one_request() -> None:
    async def story(oracle: Oracle) -> None:
        found = await asyncio.gather(*(oracle.inquiries.of([tp]) for tp in TPS))
        assert found == [{tp: 1} for tp in TPS]
        assert oracle.asked == [TPS]

    run(story)


def test_unanswered_partition_asked_again_without_delaying_others() -> None:
    async def story(oracle: Oracle) -> None:
        oracle.lost = {TPS[1]}
        first = asyncio.create_task(oracle.inquiries.of(TPS[:2]))
        assert await oracle.inquiries.of([TPS[2]]) == {TPS[2]: 1}
        await oracle.until_asked(5)
        assert oracle.asked[-2:] == [[TPS[1]]] * 2
        assert not first.done()
        oracle.lost.clear()
        assert (await first).keys() == set(TPS[:2])
        assert {type(why) for why in oracle.told} == {TopicGone}

    run(story)


def test_inquiry_retries_back_off_up_to_limit() -> None:
    """It was every 0.1 s, for each task by itself."""

    async def story(oracle: Oracle) -> None:
        loop, times = asyncio.get_running_loop(), list[float]()
        oracle.lost = set(TPS)
        waiting = [asyncio.create_task(oracle.inquiries.of([tp])) for tp in TPS]
        for asked in range(1, 10):
            await oracle.until_asked(asked)
            assert oracle.asked[-1] == TPS
            times.append(loop.time())
        for each in waiting:
            each.cancel()
        pauses = [round(later - before, 6) for before, later in pairwise(times)]
        assert pauses == [0.1, 0.1, 0.2, 0.4, 0.8, 0.4, 2, 2]  # they end at multiples of a pause

    run(story)


def test_inquiry_not_answered_by_earlier_request() -> None:
    async def story(oracle: Oracle) -> None:
        oracle.may.clear()
        first = asyncio.create_task(oracle.inquiries.of([TPS[0]]))
        await oracle.until_asked(1)
        second = asyncio.create_task(oracle.inquiries.of([TPS[0]]))
        await oracle.until_asked(2)
        oracle.may.set()
        assert (await first, await second) == ({TPS[0]: 1}, {TPS[0]: 2})

    run(story)


def test_unretriable_error_ends_inquiry() -> None:
    async def story(oracle: Oracle) -> None:
        oracle.refuses = SettingError("not allowed")
        asked = [oracle.inquiries.of([tp]) for tp in TPS[:3]]
        told = await asyncio.gather(*asked, return_exceptions=True)
        assert told == [oracle.refuses] * 3
        oracle.refuses = None
        assert await oracle.inquiries.of([TPS[0]]) == {TPS[0]: 2}

    run(story)


def test_cancelled_inquiry_is_not_asked_again() -> None:
    async def story(oracle: Oracle) -> None:
        oracle.lost = {TPS[0]}
        waiting = asyncio.create_task(oracle.inquiries.of([TPS[0]]))
        await oracle.until_asked(2)
        waiting.cancel()
        await asyncio.wait([waiting])
        await oracle.inquiries.of([TPS[1]])
        assert oracle.asked[-1] == [TPS[1]]

    run(story)


def test_empty_inquiry_sends_no_request() -> None:
    async def story(oracle: Oracle) -> None:
        assert await oracle.inquiries.of([]) == {}
        assert oracle.asked == []

    run(story)
