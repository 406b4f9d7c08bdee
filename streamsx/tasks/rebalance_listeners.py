"""Calls back who wants to hear what a worker is given, gives back and has lost (KIP-429).

Callbacks are notifications: one that fails is told, all others run all the same, what they stand
for has happened, and the first error ends the worker as it would come out of a consumer's poll.
Nobody is called for nothing, but for `assigned`, which ends each rebalance. What is given back is
given back when its callbacks have returned; no other partition waits for that, and the group no
longer than `revoke_timeout`: then it is lost (KIP-983). Of one partition the next callback waits
for the one before: "a connection is opened, which takes a while; the partition is given back":
closed first, it would stay open. A worker that ends waits for them, as for its stores.

Not here: when there is something to hear of (`group`, `door`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any

from streamsx.errors import TaskFailed
from streamsx.model import TopicPartition
from streamsx.tasks.task_partitions import PartitionSet

Listener = Callable[[PartitionSet], Awaitable[object] | object]
Took = Callable[[float], object]
"""Is given the seconds that it took."""
Spawn = Callable[[Coroutine[Any, Any, None], str], object]
"""A job and its name; the worker's group owns it."""


@dataclass(frozen=True, slots=True)
class RebalanceListeners:
    """Of an app, in the order in which they were added. What is lost is told to `revoked`, where
    nobody listens for it."""

    assigned: list[Listener] = field(default_factory=list)
    revoked: list[Listener] = field(default_factory=list)
    lost: list[Listener] = field(default_factory=list)


class ListenerCalls:
    """Of one worker; `then` is called when all callbacks have returned."""

    def __init__(
        self, listeners: RebalanceListeners, spawn: Spawn, fail: Callable[[Exception], None],
        journal: Callable[..., None], now: Callable[[], float],
    ) -> None:  # fmt: skip
        self._listeners, self._spawn, self._fail = listeners, spawn, fail
        self._journal, self._now = journal, now
        self._newest: dict[TopicPartition, asyncio.Event] = {}
        """Of each partition that somebody is being called about: set when that is over."""
        self._revoked: PartitionSet = frozenset()
        """Of which `revoked` was told since they were assigned."""
        self._under_way = 0

    def __len__(self) -> int:
        """How many are under way."""
        return self._under_way

    def assigned(self, tps: Iterable[TopicPartition], then: Took) -> None:
        """They are the worker's, and begin; maybe none."""
        given = frozenset(tps)
        self._revoked -= given
        self._call("on_assigned", self._listeners.assigned, given, then)

    def revoked(self, tps: PartitionSet, then: Took) -> None:
        """They have stopped, with all they have done committed, and are still the worker's."""
        self._revoked |= tps
        self._call("on_revoked", self._listeners.revoked if tps else [], tps, then)

    def lost(self, tps: Iterable[TopicPartition], then: Took) -> None:
        """They may be somebody else's by now. Where `revoked` stands for this, it has been told of
        those that were being given back."""
        gone, ours = frozenset(tps), self._listeners
        name, told = ("on_lost", ours.lost) if ours.lost else ("on_revoked", ours.revoked)
        gone = gone if ours.lost else gone - self._revoked
        self._call(name, told if gone else [], gone, then)

    def _call(self, name: str, listeners: list[Listener], tps: PartitionSet, then: Took) -> None:
        if not listeners:
            then(0.0)
            return
        over, newest = asyncio.Event(), self._newest
        before = [newest[tp] for tp in sorted(tps & newest.keys())]
        newest.update(dict.fromkeys(tps, over))
        self._under_way += 1
        self._spawn(self._next(name, listeners, tps, before, over, then), name)

    async def _next(
        self, name: str, listeners: list[Listener], tps: PartitionSet,
        before: Iterable[asyncio.Event], over: asyncio.Event, then: Took,
    ) -> None:  # fmt: skip
        try:
            for earlier in before:
                await earlier.wait()
            await self._all(name, listeners, tps, then)
        finally:
            self._under_way -= 1
            over.set()
            for tp in [tp for tp in tps if self._newest[tp] is over]:
                del self._newest[tp]

    async def _all(
        self, name: str, listeners: list[Listener], tps: PartitionSet, then: Took
    ) -> None:
        began = self._now()
        first: Exception | None = None
        for listener in listeners:
            if (error := await failure(listener, tps)) is not None:
                who = getattr(listener, "__qualname__", repr(listener))
                why = f"{type(error).__name__}: {error}".rstrip(": ")
                what = f"callback failed: {name} {who}: {why}"
                self._journal("error", what=what, where=", ".join(map(str, sorted(tps))))
                if first is None:
                    first = TaskFailed(f"{what}: what it was told of has happened all the same")
                    first.__cause__ = error
        then(self._now() - began)
        if first is not None:
            self._fail(first)


async def failure(listener: Listener, tps: PartitionSet) -> BaseException | None:
    """The user's own, of one call. Who awaits a task that it has cancelled itself has failed; who
    is cancelled by the worker's end has not, and that goes on.
    """
    try:
        result = listener(tps)
        if isawaitable(result):
            await result
    except (Exception, asyncio.CancelledError) as error:
        here = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and here is not None and here.cancelling():
            raise
        return error
    return None
