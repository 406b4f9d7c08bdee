"""Lookups about partitions, batched into shared requests and repeated until answered.

Sixty tasks that open at once want the bounds of their changelogs and their committed offsets.
Callers that ask at the same time share one request. Partitions without an answer are asked for
again after pauses that grow. Each caller waits for its own partitions alone: a partition without a
leader delays no other caller. An answer is never older than its question.

Not here: the requests themselves, and the choice of brokers.
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
    """Batched lookup over a request that covers many partitions.

    `ask` returns the answers for some partitions, and the error that kept the others out. An
    exception from `ask` ends the lookups that shared the request. `warn` is called with each error
    that keeps answers away.
    """

    def __init__(
        self,
        ask: Callable[
            [list[TopicPartition]], Awaitable[tuple[dict[TopicPartition, T], StreamsxError | None]]
        ],
        warn: Callable[[StreamsxError], None],
    ) -> None:
        self._ask = ask
        self._warn = warn
        self._coming: dict[_Answer[T], set[TopicPartition]] = {}
        """Partitions that each waiting caller wants from the next request."""
        self._more = asyncio.Event()

    async def of(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, T]:
        """Return a value for every partition, as of now, however long that takes.

        A caller that gives up cancels the call.
        """
        loop = asyncio.get_running_loop()
        left = set(tps)
        pause_s = PAUSE_S
        found: dict[TopicPartition, T] = {}
        while left:
            answer: _Answer[T] = loop.create_future()
            self._coming[answer] = left
            self._more.set()
            answers = await answer
            found |= {tp: answers[tp] for tp in left & answers.keys()}
            left -= answers.keys()
            if left:
                # Callers with equal pauses wake at the same time, and share one request again.
                await asyncio.sleep(pause_s - loop.time() % pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
        return found

    async def run(self) -> None:
        """Send requests until cancelled."""
        async with asyncio.TaskGroup() as group:
            while await self._more.wait():
                self._more.clear()
                coming = self._coming
                self._coming = {}
                _ = group.create_task(self._inquire(coming), name="inquiry")

    async def _inquire(self, waiting: dict[_Answer[T], set[TopicPartition]]) -> None:
        tps = {tp for answer, left in waiting.items() if not answer.done() for tp in left}
        try:
            found, why = await self._ask(sorted(tps))
        except Exception as error:
            for answer in waiting:
                if not answer.done():  # else the caller has given up
                    answer.set_exception(error)
            return
        if why is not None:
            self._warn(why)
        for answer in waiting:
            if not answer.done():
                answer.set_result(found)
