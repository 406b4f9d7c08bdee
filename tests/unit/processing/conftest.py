"""A task played by hand: lists as topics, stores in memory, no broker, a loop that a test turns."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson
import pytest

from streamsx.model import Headers
from streamsx.processing.actor import GatedActor
from streamsx.processing.batch import Batch
from streamsx.processing.failure_policy import Policy
from streamsx.processing.inbox import Actor, Outbox, Send, SendRows
from streamsx.processing.rerun import NO_RERUN, Rerun
from streamsx.processing.task import Task, TaskMetadata
from streamsx.state.cache import CachedStore
from streamsx.state.layout import StoreNode
from streamsx.state.memory import MemoryRows
from streamsx.topology.nodes import SubTopology
from streamsx.worker.driver_loop import DriverLoop
from tests.support.codecs import coded

Row = tuple[bytes | None, bytes | None]


class Sent(Outbox):
    """Outbox that keeps sent records by topic."""

    def __init__(self) -> None:
        self.by_topic: dict[str, list[Row]] = defaultdict(list)
        self.times: list[int] = []
        self.row_times: list[int] = []
        self.timed: dict[str, list[tuple[bytes | None, int]]] = defaultdict(list)
        """Keys and times, per topic, without changelogs."""

    def to(self, topic: str, partition: int | None = None) -> Send:
        def send(
            key: bytes | None,
            value: bytes | None,
            timestamp: int,
            _headers: Headers | None,
            _by: bytes | None = None,
        ) -> None:
            self.by_topic[topic].append((key, value))
            self.times.append(timestamp)
            self.timed[topic].append((key, timestamp))

        return send

    def rows(self, topic: str, partition: int) -> SendRows:
        def send(keys: Sequence[bytes], values: Sequence[bytes | None], timestamp: int) -> None:
            self.row_times.append(timestamp)
            self.by_topic[topic] += zip(keys, values, strict=True)

        return send


JSON = coded(orjson.loads, orjson.dumps)
COUNTS = StoreNode("counts", "app-counts-changelog", JSON, JSON)


class TaskHarness:
    """Task over memory; `again` rebuilds it from its last commit.

    A test stands within a turn of the loop; `turn` runs what is ready.
    """

    def __init__(self, plan: SubTopology, policy: Policy, loop: DriverLoop) -> None:
        self.loop, self.turn = loop, loop.run_ready
        self.plan, self.policy, self.sent = plan, policy, Sent()
        self.rows = {node.name: MemoryRows() for node in plan.stores}
        self.metadata = TaskMetadata(dict.fromkeys(plan.topics, 0))
        self.made: list[Task] = []
        self.asked: list[bool] = []
        """Each time that somebody asked for input outside of a turn: whether others are at work."""
        self.task = self.again()

    def start(self, *about: Any) -> Actor:
        return GatedActor(lambda: self.asked.append(self.task.busy), *about)

    def again(self, rerun: Rerun = NO_RERUN) -> Task:
        stores: dict[str, CachedStore] = {
            node.name: CachedStore(node, self.rows[node.name], 1 << 20) for node in self.plan.stores
        }
        self.task = Task(
            self.plan, 0, stores, self.sent, self.start, self.policy, self.metadata, rerun
        )
        self.made.append(self.task)
        self.turn()
        return self.task

    def commit(self, rows: int = 1000) -> TaskMetadata:
        while (sealed := self.task.seal(rows)) is None:
            pass
        self.task.committed(sealed, dict.fromkeys(self.rows, 1))
        while not self.task.write_some(rows):
            pass
        self.metadata = sealed
        return sealed

    def counts(self) -> dict[Any, Any]:
        return dict(self.task.stores["counts"].items())


def process(task: Task, batch: Batch) -> int:
    """Offer a batch and run the task to its end."""
    task.offer(batch)
    return task.run(len(batch.offsets) or 1, task.plan.topics)


@pytest.fixture
def bench() -> Iterator[Callable[..., TaskHarness]]:
    made: list[TaskHarness] = []

    def make(
        *sources: Any, stores: tuple[StoreNode, ...] = (COUNTS,), **policy: Any
    ) -> TaskHarness:
        made.append(TaskHarness(SubTopology(1, sources, stores), Policy(**policy), loop))
        return made[-1]

    loop = DriverLoop(0.0, lambda: False)
    asyncio._set_running_loop(loop)
    try:
        yield make
        for task in (task for bench in made for task in bench.made):
            task.close()
    finally:
        asyncio._set_running_loop(None)
        loop.end()
