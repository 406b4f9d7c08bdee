"""What user code outside of tasks reaches of a worker: timers and the app's own tasks."""

from collections.abc import Callable, Mapping

from streamsx.clock import Clock
from streamsx.engine.produce import Producer
from streamsx.engine.tasks import Tasks
from streamsx.errors import BrokerUnreachable
from streamsx.model import Headers
from streamsx.state.cache import CachedStore
from streamsx.task.stream import Send


class WorkerHost:
    """The protocol `Host` over a worker. `producer` is not that of the tasks: what is sent here
    belongs to no task's commit, and shares no fate with a task that is lost.
    """

    def __init__(
        self, clock: Clock, producer: Producer, tasks: Tasks, leads: Callable[[], bool]
    ) -> None:
        self._clock, self.producer, self._tasks, self._leads = clock, producer, tasks, leads

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
