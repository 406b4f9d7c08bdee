"""Access to a worker for user code outside of tasks: timers, listeners, the app's own tasks."""

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
    """Partition of a key in a table: the partition of records with this key.

    A body may use other keys than those of its records: `table["total"] += 1`. A key alone does not
    reveal that. But once such a key is found in another partition than its bytes lead to, no
    missing key of that table is assumed to belong here.
    """

    def __init__(self, plans: Iterable[SubTopology], counts: Mapping[str, int]) -> None:
        """Create the lookup; `counts`: the partition count of each topic."""
        plan_of = {node.name: plan for plan in plans for node in plan.stores}
        self._sources = {name: plan.sources for name, plan in plan_of.items()}
        self._counts = {name: counts[plan.topics[0]] for name, plan in plan_of.items()}
        self._otherwise: set[str] = set()
        """Tables with keys other than those of their records."""
        self._warned: set[str] = set()

    def found(self, name: str, key: Any, partition: int) -> None:
        """Learn the partition of a key."""
        if self._place(name, key) != partition:
            self._otherwise.add(name)

    def check(self, name: str, key: Any, here: frozenset[int]) -> None:
        """Check a missing key.

        Raises:
            NotHere: the key may be in a partition of another worker.
        """
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

    def warn_of_part(self, name: str, here: frozenset[int]) -> None:
        """Warn once for each table that is only partly on this worker."""
        count = self._counts.get(name, 0)
        if len(here) < count and name not in self._warned:
            self._warned.add(name)
            LOG.warning(
                "Only a part of table %s is read: %s. Other workers have the rest, or it is being "
                "restored; no action needed if the part is what you want.",
                name,
                _part(here, count),
            )

    def _place(self, name: str, key: Any) -> int | None:
        """Return the partition of a key.

        Returns:
            None: no topic of the table can have the key, or its topics lead to different
                partitions.
        """
        places = set[int | None]()
        for source in self._sources[name]:
            try:
                raw = source.keys.encode(key)
            except Exception:  # of any codec: no record has this key
                return None
            places.add(None if raw is None else partition_of(raw, self._counts[name]))
        return places.pop() if len(places) == 1 else None


def _part(here: frozenset[int], count: int) -> str:
    if not here:
        return f"this worker has none of its {count} partitions"
    return f"this worker has partitions {', '.join(map(str, sorted(here)))} of {count}"


class WorkerHost:
    """Implementation of the protocol `Host` by a worker.

    `producer` is not the producer of the tasks: a record sent here belongs to no task's commit, and
    is not dropped with a lost task. `committed`: tables have committed values alone, as under
    exactly-once.
    """

    def __init__(
        self,
        *,
        producer: Producer,
        tasks: TaskDriver,
        leads: Callable[[], bool],
        places: KeyPlaces,
        late: LateTopics,
        clock: Clock,
        committed: bool = False,
    ) -> None:
        self._clock = clock
        self._committed = committed
        self.producer = producer
        self._tasks = tasks
        self._leads = leads
        self.thread: int | None = get_ident()
        self._places = places
        self.send_late = late.send

    def to(self, topic: str, partition: int | None = None) -> Send:
        """Return a sender that refuses records beyond the producer's limit.

        No caller waits here until the producer has room.
        """
        send = self.producer.to(topic, partition)
        full = self.producer.full

        def bounded(
            key: bytes | None,
            value: bytes | None,
            timestamp: int,
            headers: Headers | None,
            by: bytes | None = None,
        ) -> None:
            if full():
                raise BrokerUnreachable(
                    f"too many unsent records: {topic}: the broker takes none: try again later"
                )
            send(key, value, timestamp, headers, by)

        return bounded

    def last_sent(self, topic: str, at_ms: int) -> Done:
        return self.producer.last_sent(topic, at_ms)

    def now_ms(self) -> int:
        """Return unix time in milliseconds."""
        return int(self._clock.wall() * 1000)

    def stores(self, name: str) -> Mapping[int, CachedStore]:
        """Return the stores of the table's tasks that run here, by partition."""
        found = {
            task.partition: active.task.stores[name]
            for task, active in sorted(self._tasks.actives.items())
            if name in active.task.stores
        }
        if self._committed:
            return {partition: store.committed_view() for partition, store in found.items()}
        return found

    def look(self, name: str, key: Any) -> Any:
        """Return the value of a key of a table; None for a missing key that belongs here.

        Raises:
            NotHere: the missing key may be on another worker.
        """
        stores = self.stores(name)
        for partition, store in stores.items():
            value = store.get(key)
            if value is not None:
                self._places.found(name, key, partition)
                return value
        self._places.check(name, key, frozenset(stores))
        return None

    def warn_of_part(self, name: str) -> None:
        self._places.warn_of_part(name, frozenset(self.stores(name)))

    def is_leader(self) -> bool:
        return self._leads()


def take_sends_as_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Let `create_task(topic.send(...))` of this loop work.

    A task needs a coroutine, and the result of `send` is none: `asyncio.wait` takes no coroutines.
    Without this factory `create_task` would raise after the record was sent.
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
