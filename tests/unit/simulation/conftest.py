"""Two hosts, and protocols that record their events."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from streamsx.simulation.network import Network
from streamsx.simulation.process import Process
from streamsx.simulation.scheduler import Scheduler


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    made = Scheduler(1)
    yield made
    made.close()
    assert made.violation is None


@pytest.fixture
def net(scheduler: Scheduler) -> Network:
    return Network(scheduler)


Main = Callable[[], Coroutine[Any, Any, Any]]
Run = Callable[..., Any]


@pytest.fixture
def run(scheduler: Scheduler, net: Network) -> Run:
    """Run a coroutine as the main one of a process; return its result."""

    def ran(main: Main, *, name: str = "a", limit_s: float = 1000.0) -> Any:
        thread = Process(net, name).start(main)
        scheduler.run_until(scheduler.now + limit_s, lambda: not thread.alive)
        assert not thread.alive, f"{name} has not ended in {limit_s} s"
        if thread.error is not None:
            raise thread.error
        return thread.result

    return ran


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()
