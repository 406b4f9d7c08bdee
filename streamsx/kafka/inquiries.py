"""Many small questions about partitions, asked together, and again until they are answered.

Sixty tasks that open at once want the bounds of their changelogs and their committed offsets: all
that want to know at one time share a request, and what stays open is asked for again after pauses
that grow. Each asks for itself: one partition without a leader keeps nobody else waiting. An answer
is never older than its question.

Not here: what is asked, and of whom.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from streamsx.errors import StreamsxError
from streamsx.loops import wait
from streamsx.model import TopicPartition

T = TypeVar("T")

PAUSE_S = 0.1
PAUSE_MAX_S = 2.0


@dataclass(slots=True, eq=False)
class _Inquiry(Generic[T]):
    """Of one that waits. `due`: the loop's second, None while it is being asked."""

    open: set[TopicPartition]
    answer: asyncio.Future[dict[TopicPartition, T]]
    due: float | None
    found: dict[TopicPartition, T] = field(default_factory=dict)
    pause_s: float = field(default_factory=lambda: PAUSE_S)


class Inquiries(Generic[T]):
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
        self._waiting: dict[_Inquiry[T], None] = {}
        self._more = asyncio.Event()

    async def of(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, T]:
        """As of now, however long it takes: whoever has enough of it cancels."""
        loop = asyncio.get_running_loop()
        inquiry = _Inquiry[T](set(tps), loop.create_future(), loop.time())
        if not inquiry.open:
            return {}
        self._waiting[inquiry] = None
        self._more.set()
        try:
            return await inquiry.answer
        finally:
            del self._waiting[inquiry]

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                self._more.clear()
                pausing = {each: at for each in self._waiting if (at := each.due) is not None}
                wait_s = min(pausing.values()) - loop.time() if pausing else None
                if wait_s is not None and wait_s <= 0:
                    for each in pausing:  # those too whose pause is not over: it is one request
                        each.due = None
                    _ = group.create_task(self._inquire(list(pausing)), name="inquiry")
                    wait_s = None
                await wait(self._more, wait_s)

    async def _inquire(self, those: list[_Inquiry[T]]) -> None:
        try:
            found, why = await self._ask(sorted({tp for each in those for tp in each.open}))
        except Exception as error:
            for each in those:
                if not each.answer.done():
                    each.answer.set_exception(error)
            return
        if why is not None:
            self._tell(why)
        for each in those:
            self._heard(each, found)

    def _heard(self, inquiry: _Inquiry[T], found: dict[TopicPartition, T]) -> None:
        inquiry.found |= {tp: found[tp] for tp in inquiry.open & found.keys()}
        inquiry.open -= found.keys()
        if inquiry.answer.done():
            return  # whoever asked has had enough
        if not inquiry.open:
            inquiry.answer.set_result(inquiry.found)
            return
        inquiry.due = asyncio.get_running_loop().time() + inquiry.pause_s
        inquiry.pause_s = min(2 * inquiry.pause_s, PAUSE_MAX_S)
        self._more.set()
