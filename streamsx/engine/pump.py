"""Agents that may really wait for something: each instance lives in an asyncio task of its own.

It is woken once per chunk; inside a chunk nothing suspends unless the body awaits something
foreign, and then only its own task of the topology waits. `spent_s` is the cost of the bodies,
from each resume to the next request for input: measured from the hand-over it would count whoever
ran in between, and eight tasks would plan turns of 200 ms.

What a chunk is, and which one is next, is decided in `streamsx.task`.
"""

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from typing import Any

from streamsx.clock import Clock
from streamsx.errors import TaskFailed
from streamsx.task.stream import RUNNING, Running, returned
from streamsx.topology.nodes import AgentNode


class LoopInstance:
    """A body in an asyncio task: `asyncio.timeout` and `current_task` work in it."""

    def __init__(
        self,
        pump: "LoopPump",
        agent: AgentNode,
        stream: AsyncIterator[Any],
        running: Running,
        failed: Callable[[Exception], None],
    ) -> None:
        self.idle = False
        self._pump, self._name, self._failed = pump, agent.name, failed
        self._resumed = pump.clock.now()
        self._input: asyncio.Future[None] | None = None
        self._closing = False
        running.inbox.wait = self._wait
        context = contextvars.copy_context()
        context.run(RUNNING.set, running)
        name = f"agent {agent.name} of task {running.task}"
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(agent.body(stream), name=name, context=context)
        self._task.add_done_callback(self._over)

    async def _wait(self) -> None:
        self._pump.spent_s += self._pump.clock.now() - self._resumed
        self._input = asyncio.get_running_loop().create_future()
        self.idle = True
        self._pump.idle()
        await self._input
        self._resumed = self._pump.clock.now()

    def wake(self) -> None:
        self.idle = False
        if self._input is not None and not self._input.done():
            self._input.set_result(None)

    def close(self) -> None:
        self._closing = True
        self._task.cancel()

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._pump.spent_s += self._pump.clock.now() - self._resumed
        if self._closing:
            return
        if task.cancelled():
            self._failed(TaskFailed(f"agent ended: {self._name}: it cancelled itself"))
        else:
            error = task.exception()
            self._failed(error if isinstance(error, Exception) else returned(self._name))
        self._pump.idle()


class LoopPump:
    """One per task. `idle` is called whenever a body has used up its input, or is over."""

    def __init__(self, clock: Clock, idle: Callable[[], None]) -> None:
        self.clock, self.idle = clock, idle
        self.spent_s = 0.0

    def start(
        self,
        agent: AgentNode,
        stream: AsyncIterator[Any],
        running: Running,
        failed: Callable[[Exception], None],
    ) -> LoopInstance:
        return LoopInstance(self, agent, stream, running, failed)
