"""What user code outside of tasks reaches of a worker: timers, listeners, the app's own tasks."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from threading import get_ident
from typing import Any

from streamsx.client.producer import DoneFuture, Producer
from streamsx.clock import Clock
from streamsx.errors import BrokerUnreachable, NotHere
from streamsx.journal import LOG
from streamsx.model import Headers
from streamsx.processing.inbox import Done, Send
from streamsx.protocol.partitioner import partition_of
from streamsx.state.cache import CachedStore
from streamsx.tasks.task_driver import TaskDriver
from streamsx.topology.nodes import SubTopology
from streamsx.worker.late_topics import LateTopics


class KeyPlaces:
    """Which partition of a table a key belongs to: that of the records with this key.

    A body may use other keys than its records have: `table["total"] += 1`. Nobody can tell from a
    key alone. But once such a key is found in another partition than its bytes say, no missing key
    of that table is taken to be here.
    """

    def __init__(self, plans: Iterable[SubTopology], counts: Mapping[str, int]) -> None:
        """`counts`: of each topic's partitions."""
        plan_of = {node.name: plan for plan in plans for node in plan.stores}
        self._sources = {name: plan.sources for name, plan in plan_of.items()}
        self._counts = {name: counts[plan.topics[0]] for name, plan in plan_of.items()}
        self._otherwise: set[str] = set()
        """Tables with keys that are not those of their records."""
        self._told: set[str] = set()

    def found(self, name: str, key: Any, partition: int) -> None:
        """Learn where a key is."""
        if self._place(name, key) != partition:
            self._otherwise.add(name)

    def check(self, name: str, key: Any, here: frozenset[int]) -> None:
        """Raise NotHere for a missing key that may be in a partition which is not here."""
        count = self._counts.get(name, 0)
        if len(here) >= count or (name not in self._otherwise and self._place(name, key) in here):
            return
        raise NotHere(
            f"not on this worker: table {name}, key {key!r}: {_part(here, count)}: read it in an "
            "agent whose records have that key, or catch streamsx.NotHere",
            name,
            key,
            here,
        )

    def tell_part(self, name: str, here: frozenset[int]) -> None:
        """Warn once for each table."""
        count = self._counts.get(name, 0)
        if len(here) < count and name not in self._told:
            self._told.add(name)
            LOG.warning(
                "only a part of table %s is read: %s: other workers have the rest, or it is being "
                "restored",
                name,
                _part(here, count),
            )

    def _place(self, name: str, key: Any) -> int | None:
        """Return the partition; None where the key is none of its topics', or they differ."""
        places = set[int | None]()
        for source in self._sources[name]:
            try:
                raw = source.keys.encode(key)
            except Exception:  # any codec's: no record has this key
                return None
            places.add(None if raw is None else partition_of(raw, self._counts[name]))
        return places.pop() if len(places) == 1 else None


def _part(here: frozenset[int], count: int) -> str:
    if not here:
        return f"this worker has none of its {count} partitions"
    return f"this worker has partitions {', '.join(map(str, sorted(here)))} of {count}"


class WorkerHost:
    """The protocol `Host` over a worker. `producer` is not that of the tasks: what is sent here
    belongs to no task's commit, and shares no fate with a task that is lost.
    """

    def __init__(
        self,
        clock: Clock,
        producer: Producer,
        tasks: TaskDriver,
        leads: Callable[[], bool],
        places: KeyPlaces,
        late: LateTopics,
    ) -> None:
        self._clock, self.producer, self._tasks, self._leads = clock, producer, tasks, leads
        self.thread: int | None = get_ident()
        self._places = places
        self.send_late = late.send

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

    def look(self, name: str, key: Any) -> Any:
        """Return the value of a key of a table; None where it is missing and belongs here.

        Raises NotHere.
        """
        stores = self.stores(name)
        for partition, store in stores.items():
            value = store.get(key)
            if value is not None:
                self._places.found(name, key, partition)
                return value
        self._places.check(name, key, frozenset(stores))
        return None

    def tell_part(self, name: str) -> None:
        self._places.tell_part(name, frozenset(self.stores(name)))

    def is_leader(self) -> bool:
        return self._leads()


def take_sends_as_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let `create_task(topic.send(...))` of this loop work.

    A task wants a coroutine, and what a `send` gives is none: `asyncio.wait` takes no coroutines.
    Without this, `create_task` would raise behind a record that was sent.
    """
    given = loop.get_task_factory()

    def made(loop: asyncio.AbstractEventLoop, job: Any, **options: Any) -> Any:
        if isinstance(job, Done | DoneFuture):
            job = _awaited(job)
        if given is not None:
            return given(loop, job, **options)
        return asyncio.Task(job, loop=loop, **options)

    loop.set_task_factory(made)


async def _awaited(sent: Done | DoneFuture) -> Any:
    return await sent
