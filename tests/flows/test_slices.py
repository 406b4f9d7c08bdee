"""Results that leave at one record leave in slices, and a run of the task ends after each slice."""

from typing import Any

from streamsx import App, tumbling
from streamsx.processing.actor import GatedActor
from streamsx.processing.batch import Batch
from streamsx.processing.compile import SLICE_ROWS
from streamsx.processing.failure_policy import Policy
from streamsx.processing.task import Task, TaskMetadata
from streamsx.state.factory import make_store
from streamsx.state.memory import MemoryRows
from streamsx.testing import TestDriver
from tests.unit.processing.conftest import Sent

KEYS = 3 * SLICE_ROWS


def batch(keys: list[bytes], timestamp: int, offset: int) -> Batch:
    count = len(keys)
    offsets = range(offset, offset + count)
    return Batch("in", 0, keys, [b"1"] * count, [timestamp] * count, offsets, None, offset + count)


def test_run_ends_behind_each_slice_of_results_whatever_its_limit() -> None:
    """A limit of 5 ms of counting let 43,000 results leave in one turn of 100 ms."""
    app = App("x", topic_partitions=1)
    windows = app.flow("in").group_by_key().window(tumbling("10s", grace=0))
    windows.count("n", emit="final").to("out")
    (plan,) = app.topology().subtopologies
    stores: dict[str, Any] = {
        node.name: make_store(node, MemoryRows(), 1 << 20) for node in plan.stores
    }
    sent = Sent()

    def start(*about: Any) -> GatedActor:
        return GatedActor(lambda: None, *about)

    task = Task(plan, 0, stores, sent, start, Policy(), TaskMetadata({"in": 0}))
    task.offer(batch([b"%d" % n for n in range(KEYS)], 1000, 0))
    task.offer(batch([b"0"], 99_000, KEYS))
    results = []
    while task.run(1_000_000, ["in"]):
        results.append(len(sent.by_topic["out"]))

    steps = [after - before for before, after in zip([0, *results], results, strict=False)]
    assert max(steps) == SLICE_ROWS
    assert sum(steps) == KEYS
    assert not task.paused


def test_results_of_a_slice_leave_once_when_an_agent_of_their_topic_fails() -> None:
    """A body got the chunk while the loop paused in it, so the task went back over the results."""
    app = App("x", topic_partitions=1, store="memory://")
    numbers = app.topic("in", key_type=str, value_type=int)
    seen = app.Table("seen", default=int)

    @app.agent(numbers)
    async def count(stream: Any) -> None:
        async for number in stream:
            seen["all"] += number
            if number == 3:
                raise ValueError(number)

    numbers_by_key = app.flow(numbers).group_by_key()
    numbers_by_key.window(tumbling("10s", grace=0)).count("n", emit="final").to("out")
    with TestDriver(app, raises=False) as driver:
        driver.pipe("in", [("a", 1, 1), ("b", 1, 2)])
        driver.pipe("in", [("a", 1, 11), ("a", 3, 12), ("b", 1, 21)])
        driver.pipe("in", [("a", 1, 99)])

        results = [(record.key, record.value) for record in driver.read("out")]
        assert results == [
            (b'["a",0,10000]', 1), (b'["b",0,10000]', 1), (b'["a",10000,20000]', 2),
            (b'["b",20000,30000]', 1),
        ]  # fmt: skip
        assert driver.table("seen") == {"all": 5}
