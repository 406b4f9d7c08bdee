"""Rebalance listeners of an app: callbacks for assigned, revoked and lost partitions (KIP-429).

Callbacks are notifications. If one fails, the error is logged, all others run, and the event has
happened all the same. The first error ends the worker, as an error out of a consumer's poll would.
No callback is called for an empty set of partitions, except `assigned`, which ends each rebalance.

Revoked partitions are released when their callbacks have returned. No other partition waits for
that, and the group waits no longer than `revoke_timeout`: then the partitions are lost (KIP-983).

Callbacks about one partition run one after another. The race without this: on_assigned begins to
open a connection, which takes a while; the partition is revoked; on_revoked closes the connection
too early, and the connection stays open. A worker that ends waits for callbacks, as for its stores.

Not here: the causes of such calls (`rebalance_handler`, `group_gateway`).
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
"""Function that takes the seconds that the callbacks took."""
Spawn = Callable[[Coroutine[Any, Any, None], str], object]
"""Function that starts a job under a name; the worker's task group owns the job."""


@dataclass(frozen=True, slots=True)
class RebalanceListeners:
    """Listeners of an app, in the order in which they were added.

    Without `lost` listeners, the `revoked` ones are called for lost partitions.
    """

    assigned: list[Listener] = field(default_factory=list)
    revoked: list[Listener] = field(default_factory=list)
    lost: list[Listener] = field(default_factory=list)


class ListenerCalls:
    """Calls of one worker's listeners; `then` is called when all callbacks have returned."""

    def __init__(
        self,
        *,
        listeners: RebalanceListeners,
        spawn: Spawn,
        fail: Callable[[Exception], None],
        journal: Callable[..., None],
        now: Callable[[], float],
    ) -> None:
        self._listeners = listeners
        self._spawn = spawn
        self._fail = fail
        self._journal = journal
        self._now = now
        self._newest: dict[TopicPartition, asyncio.Event] = {}
        """Newest call of each partition with calls under way; set when that call is over."""
        self._revoked: PartitionSet = frozenset()
        """Partitions for which `revoked` was called since they were assigned."""
        self._under_way = 0

    def __len__(self) -> int:
        """Return the number of calls under way."""
        return self._under_way

    def assigned(self, tps: Iterable[TopicPartition], then: Took) -> None:
        """Call the listeners for partitions that are the worker's and begin; maybe none."""
        given = frozenset(tps)
        self._revoked -= given
        self._call("on_assigned", self._listeners.assigned, given, then)

    def revoked(self, tps: PartitionSet, then: Took) -> None:
        """Call the listeners for partitions that have stopped, committed and are still ours."""
        self._revoked |= tps
        self._call("on_revoked", self._listeners.revoked if tps else [], tps, then)

    def lost(self, tps: Iterable[TopicPartition], then: Took) -> None:
        """Call the listeners for lost partitions, which may have another owner by now.

        If `revoked` listeners stand in for `lost` ones, leave out the partitions for which they
        were called already.
        """
        gone = frozenset(tps)
        ours = self._listeners
        name, callbacks = ("on_lost", ours.lost) if ours.lost else ("on_revoked", ours.revoked)
        gone = gone if ours.lost else gone - self._revoked
        self._call(name, callbacks if gone else [], gone, then)

    def _call(self, name: str, listeners: list[Listener], tps: PartitionSet, then: Took) -> None:
        if not listeners:
            then(0.0)
            return
        over = asyncio.Event()
        newest = self._newest
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
            # At the end of a worker a later call of the same partition may be cancelled first.
            for tp in [tp for tp in tps if self._newest.get(tp) is over]:
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
                    first = TaskFailed(f"{what}: the rebalance itself is done: fix the callback")
                    first.__cause__ = error
        then(self._now() - began)
        if first is not None:
            self._fail(first)


async def failure(listener: Listener, tps: PartitionSet) -> BaseException | None:
    """Call a listener and return the error that the user's code raised, None without one.

    A listener has failed if it awaits an asyncio task that the listener itself has cancelled.

    Raises:
        CancelledError: the end of the worker cancelled the call, which is no failure.
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
