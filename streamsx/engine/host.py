"""What user code outside of tasks reaches of a worker: timers, listeners, the app's own tasks."""

import asyncio
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any

from streamsx.clock import Clock
from streamsx.engine.produce import Producer
from streamsx.engine.tasks import Tasks
from streamsx.errors import BrokerUnreachable
from streamsx.model import Headers
from streamsx.state.cache import CachedStore
from streamsx.task.stream import Done, Send


class WorkerHost:
    """The protocol `Host` over a worker. `producer` is not that of the tasks: what is sent here
    belongs to no task's commit, and shares no fate with a task that is lost.
    """

    def __init__(
        self, clock: Clock, producer: Producer, tasks: Tasks, leads: Callable[[], bool]
    ) -> None:
        self._clock, self.producer, self._tasks, self._leads = clock, producer, tasks, leads
        self.thread: int | None = get_ident()

    def to(self, topic: str, partition: int | None = None) -> Send:
        """A sender that refuses more than the producer may hold: nobody waits for it here."""
        send, full = self.producer.to(topic, partition), self.producer.full

        def bounded(
            key: bytes | None, value: bytes | None, timestamp: int, headers: Headers | None
        ) -> None:
            if full():
                raise BrokerUnreachable(
                    f"too much is unsent: {topic}: the broker takes nothing: try again later"
                )
            send(key, value, timestamp, headers)

        return bounded

    def last_sent(self, topic: str, at_ms: int) -> Done:
        return self.producer.last_sent(topic, at_ms)

    def now_ms(self) -> int:
        """Unix time."""
        return int(self._clock.wall() * 1000)

    def stores(self, name: str) -> Mapping[int, CachedStore]:
        """By partition: those of the tasks that run here."""
        return {
            task.partition: active.task.stores[name]
            for task, active in sorted(self._tasks.actives.items())
            if name in active.task.stores
        }

    def is_leader(self) -> bool:
        return self._leads()


def take_sends_as_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let `create_task(topic.send(...))` of this loop work.

    A task wants a coroutine, and what a `send` gives is none: `asyncio.wait` takes no coroutines.
    Without this, `create_task` would raise behind a record that was sent.
    """
    given = loop.get_task_factory()

    def made(loop: asyncio.AbstractEventLoop, job: Any, **options: Any) -> Any:
        if isinstance(job, Done):
            job = _awaited(job)
        if given is not None:
            return given(loop, job, **options)
        return asyncio.Task(job, loop=loop, **options)

    loop.set_task_factory(made)


async def _awaited(sent: Done) -> Any:
    return await sent
