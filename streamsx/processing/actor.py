"""Bodies of agents at work: each is an asyncio task, and its next input is a gate that we open.

A body asks for input by awaiting its `Gate`, which looks like a future to the asyncio task: the
task hands it its continuation, and `wake` calls that, within our own turn. So what a record costs
is known when the turn is over, two agents on one topic take turns by chunks, and yet
`current_task`, `asyncio.timeout` and what libraries make of them see the body's own task. What a
body awaits beside its input wakes the task through the event loop, as ever, until it asks for
input again. 5.3 us a wake; with a future of the loop's own 7.6.

The two functions of asyncio.tasks are those that its documentation names for whoever steps tasks
("Extending asyncio", task lifetime support).

What a chunk is, and which one is next, is decided in `streamsx.task`.
"""

import asyncio
import contextvars
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Generator, Iterator
from inspect import iscoroutine
from typing import Any, Final, NoReturn

from streamsx.errors import TaskFailed, UsageError
from streamsx.processing.inbox import RUNNING, BodyFailed, TaskContext, Values, returned
from streamsx.topology.nodes import AgentNode


class Gate:
    """Where a body waits: of a future it has what an asyncio task asks of one.

    `asks` is called when somebody waits at it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, asks: Callable[[], object]) -> None:
        self._loop, self._asks = loop, asks
        self._asyncio_future_blocking = False
        self._go_on: Callable[[Any], None] | None = None
        self._context: contextvars.Context | None = None

    def __await__(self) -> Generator[Any, None, None]:
        if self._go_on is not None:
            raise UsageError(
                "two tasks wait for one stream: the other one would never go on: let one read it, "
                "and hand on what it reads"
            )
        self._asyncio_future_blocking = True
        yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(
        self, callback: Callable[[Any], None], *, context: contextvars.Context
    ) -> None:
        """The continuation of whoever waits."""
        self._go_on, self._context = callback, context
        self._asks()

    def result(self) -> None:
        """Asked for by the continuation."""

    def cancel(self, msg: Any = None) -> bool:  # a future's
        """Whoever waits is cancelled, soon, and waits here no more. "A task that reads is
        cancelled; before it hears of that, its body waits here itself": which is not cancelled.
        """
        go_on, self._go_on = self._go_on, None
        if go_on is None:
            return False
        self._loop.call_soon(go_on, CANCELLED, context=self._context)
        return True

    def over(self) -> None:
        """Send whoever waits away, in a turn of its own."""
        go_on, self._go_on = self._go_on, None
        if go_on is not None:
            self._loop.call_soon(go_on, OVER, context=self._context)

    def open(self) -> None:
        """Whoever waits goes on, here and now, until the next thing that it waits for."""
        go_on, self._go_on = self._go_on, None
        if go_on is None:
            return
        assert self._context is not None, "a continuation comes with its context"
        outer = asyncio.current_task(self._loop)
        if outer is not None:
            _leave_task(self._loop, outer)
        try:
            self._context.run(go_on, self)
        finally:
            if outer is not None:
                _enter_task(self._loop, outer)


class Cancelled:
    """What the continuation of a cancelled wait is given in place of its gate."""

    def result(self) -> NoReturn:
        raise asyncio.CancelledError


CANCELLED: Final = Cancelled()


class StreamOver(BaseException):
    """The stream of a body whose task has gone; `except CancelledError` does not catch it."""


class _Over:
    """The result of a wait at a closed gate."""

    def result(self) -> NoReturn:
        raise StreamOver


OVER: Final = _Over()
OVER_TRIES = 3
"""So often a body that catches everything is sent away from its gate; then it stays there."""


class GatedActor:
    """One agent in one task of the topology, for as long as that lives. A body that fails is
    followed by a new one, in the same asyncio task.

    `asks` is called when it waits for input that no turn of ours can give it at once.
    """

    def __init__(
        self,
        asks: Callable[[], object],
        agent: AgentNode,
        values: Values,
        running: TaskContext,
        failed: BodyFailed,
    ) -> None:
        self.idle = False
        self._told, self._agent, self._values, self._failed = asks, agent, values, failed
        self._running, self._waking, self._closing = running, False, False
        self._sent_away = 0
        loop = asyncio.get_running_loop()
        self._gate = running.inbox.gate = Gate(loop, self._asks)
        context = contextvars.copy_context()
        context.run(RUNNING.set, running)
        name = f"agent {agent.name} of task {running.task}"
        self._task = loop.create_task(self._live(), name=name, context=context)
        self._task.add_done_callback(self._over)

    def wake(self) -> None:
        """There is input. It is used up on return, unless the body waits for something foreign."""
        self.idle, self._waking = False, True
        self._running.resumed()
        try:
            self._gate.open()
        finally:
            self._running.paused()
            self._waking = False

    def lines(self) -> Iterator[tuple[str, int]]:
        """Where it waits: file and line of each coroutine, the body's own first."""
        coroutine: Any = self._task.get_coro()
        while iscoroutine(coroutine) and coroutine.cr_frame is not None:
            yield coroutine.cr_code.co_filename, coroutine.cr_frame.f_lineno
            coroutine = coroutine.cr_await

    def close(self) -> None:
        self._closing = True
        self._task.cancel()

    def _asks(self) -> None:
        self.idle = True
        if self._closing and self._sent_away < OVER_TRIES:
            # It caught its cancellation and wants the next record, which never comes.
            self._sent_away += 1
            self._gate.over()
            return
        if not self._waking:
            self._told()

    async def _live(self) -> None:
        goes_on = True
        while goes_on:
            error: Exception = returned(self._agent.name)
            try:
                await self._agent.body(self._values)
            except StreamOver:
                return
            except asyncio.CancelledError:
                if self._closing:
                    raise
                error = TaskFailed(f"agent ended: {self._agent.name}: it cancelled itself")
            except Exception as raised:  # the body's own
                error = raised
            goes_on = not self._closing and self._failed(error)

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.result()  # what is raised here is a fault of ours, and ends the worker
        self._told()
