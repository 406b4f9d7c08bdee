"""worker/slow_code.py: records that take long, and a worker that stood still."""

import asyncio
from pathlib import Path
from typing import Any

from streamsx import App
from streamsx.clock import SystemClock
from streamsx.journal import Journal
from streamsx.testing import TestDriver
from streamsx.worker.slow_code import SLOW_S, STILL_S, SlowCode


class Heard(Journal):
    """Journal that keeps its events."""

    def __init__(self) -> None:
        super().__init__("a", SystemClock())
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, **fields: object) -> None:
        self.events.append((event, fields))


def test_record_that_takes_long_is_logged_with_the_line_that_waits() -> None:
    app = App("x", topic_partitions=1, store="memory://")
    gate = asyncio.Event()

    @app.agent(app.topic("numbers"), name="slow")
    async def slow(numbers: Any) -> None:
        async for number in numbers:
            if number == 13:
                await gate.wait()

    heard = Heard()
    watch = SlowCode(heard)
    with TestDriver(app) as driver:
        driver.pipe("numbers", [1, 2])
        tasks = [*driver._tasks.values()]
        watch.look(0.0, tasks)
        driver.pipe("numbers", [13])
        for now in (1.0, SLOW_S, SLOW_S + 1, 2 * SLOW_S, 2 * SLOW_S + 1):
            watch.look(now, tasks)

    (first, again) = heard.events
    assert first[0] == "record_takes_long"
    waits_at = first[1].pop("waits_at")
    assert Path(waits_at[0].rpartition(":")[0]) == Path(__file__)
    assert Path(waits_at[-1].rpartition(":")[0]).name == "locks.py"
    assert first[1] == {
        "task": "0_0", "topic": "numbers", "partition": 0, "offset": 2, "operator": "slow",
        "seconds": SLOW_S,
    }  # fmt: skip
    assert again[1]["seconds"] == 2 * SLOW_S, "each further line comes twice as late"


def test_time_between_two_turns_is_logged() -> None:
    heard = Heard()
    watch = SlowCode(heard)
    for now in (0.0, 1.0, STILL_S, STILL_S + 25):
        watch.turn(now)
    assert heard.events == [("stood_still", {"ms": 25_000})]
