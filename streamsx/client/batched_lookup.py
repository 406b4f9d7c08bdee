"""Many small questions about partitions, asked together, and again until they are answered.

Sixty tasks that open at once want the bounds of their changelogs and their committed offsets: all
that want to know at one time share a request, and what stays open is asked for again after pauses
that grow. Each asks for itself: one partition without a leader keeps nobody else waiting. An answer
is never older than its question.

Not here: what is asked, and of whom.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from streamsx.errors import StreamsxError
from streamsx.model import TopicPartition

T = TypeVar("T")
_Answer = asyncio.Future[dict[TopicPartition, T]]

PAUSE_S = 0.1
PAUSE_MAX_S = 2.0


class BatchedLookup(Generic[T]):
    """`ask`: what can be told of some partitions, and why not of the others; what it raises ends
    the inquiry. `tell` hears each time what keeps answers away.
    """

    def __init__(
        self,
        ask: Callable[
            [list[TopicPartition]], Awaitable[tuple[dict[TopicPartition, T], StreamsxError | None]]
        ],
        tell: Callable[[StreamsxError], None],
    ) -> None:
        self._ask, self._tell = ask, tell
        self._coming: dict[_Answer[T], set[TopicPartition]] = {}
        """Who waits for the next request, and what for."""
        self._more = asyncio.Event()

    async def of(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, T]:
        """As of now, however long it takes: whoever has enough of it cancels."""
        loop, left, pause_s = asyncio.get_running_loop(), set(tps), PAUSE_S
        found: dict[TopicPartition, T] = {}
        while left:
            answer: _Answer[T] = loop.create_future()
            self._coming[answer] = left
            self._more.set()
            told = await answer
            found |= {tp: told[tp] for tp in left & told.keys()}
            left -= told.keys()
            if left:
                # All whose pauses are as long end them together: theirs is one request again.
                await asyncio.sleep(pause_s - loop.time() % pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
        return found

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            while await self._more.wait():
                self._more.clear()
                coming, self._coming = self._coming, {}
                _ = group.create_task(self._inquire(coming), name="inquiry")

    async def _inquire(self, those: dict[_Answer[T], set[TopicPartition]]) -> None:
        tps = {tp for answer, left in those.items() if not answer.done() for tp in left}
        try:
            found, why = await self._ask(sorted(tps))
        except Exception as error:
            for answer in those:
                if not answer.done():  # else whoever asked has had enough
                    answer.set_exception(error)
            return
        if why is not None:
            self._tell(why)
        for answer in those:
            if not answer.done():
                answer.set_result(found)
