"""Execution of agent bodies: one asyncio task per body, whose next input is behind a gate.

A body asks for input by awaiting a `Gate`, which looks like a future to the asyncio task. The
asyncio task hands its continuation to the gate, and `wake` calls the continuation within the
caller's own turn. So the cost of a record is known when the turn is over, two agents on one topic
take turns by chunks, and yet `current_task`, `asyncio.timeout` and libraries that use them see the
body's own task. Anything else that a body awaits wakes the task through the event loop, as usual,
until the body asks for input again. A wake takes 5.3 us; with a future of the event loop 7.6 us.

The two functions of asyncio.tasks are the ones that the documentation of asyncio names for code
that steps tasks ("Extending asyncio", task lifetime support).

Not here: the definition of a chunk (`batch`), the choice of the next one (`merge`).
"""

import asyncio
import contextvars
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Generator, Iterator
from inspect import isawaitable, iscoroutine
from typing import Any, Final, NoReturn

from streamsx.errors import TaskFailed, UsageError
from streamsx.processing.inbox import RUNNING, BodyFailed, TaskContext, Values, returned
from streamsx.topology.nodes import AgentNode


class Gate:
    """Awaitable at which a body waits for input.

    A gate has the part of a future's interface that an asyncio task uses. `asks` is called when a
    body begins to wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, asks: Callable[[], object]) -> None:
        self._loop = loop
        self._asks = asks
        self._asyncio_future_blocking = False
        self._go_on: Callable[[Any], None] | None = None
        self._context: contextvars.Context | None = None

    def __await__(self) -> Generator[Any, None, None]:
        if self._go_on is not None:
            raise UsageError(
                "two asyncio tasks read one stream: one of them would wait for ever: let one "
                "read it, and pass on what it reads"
            )
        self._asyncio_future_blocking = True
        yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(
        self, callback: Callable[[Any], None], *, context: contextvars.Context
    ) -> None:
        """Store the continuation of the waiting task, and report the wait through `asks`."""
        self._go_on = callback
        self._context = context
        self._asks()

    def result(self) -> None:
        """Return None, as the result that the continuation asks a future for."""

    def cancel(self, msg: Any = None) -> bool:  # a future's signature
        """Cancel the wait: call the continuation soon, with a CancelledError, and free the gate.

        The gate is free at once: "a task that reads is cancelled; before that task runs, the
        body itself waits at the gate": the body's wait is not cancelled.

        Returns:
            False if no task waits.
        """
        go_on = self._go_on
        self._go_on = None
        if go_on is None:
            return False
        self._loop.call_soon(go_on, CANCELLED, context=self._context)
        return True

    def over(self) -> None:
        """End the wait with StreamOver, in a later turn of the event loop."""
        go_on = self._go_on
        self._go_on = None
        if go_on is not None:
            self._loop.call_soon(go_on, OVER, context=self._context)

    def open(self) -> None:
        """Run the waiting task, here and now, until the next thing that it awaits."""
        go_on = self._go_on
        self._go_on = None
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
    """Stand-in for the gate, handed to the continuation of a cancelled wait."""

    def result(self) -> NoReturn:
        raise asyncio.CancelledError


CANCELLED: Final = Cancelled()


class StreamOver(BaseException):
    """End of a stream whose task has gone; `except CancelledError` does not catch it."""


class _Over:
    """Stand-in for a closed gate, whose result is StreamOver."""

    def result(self) -> NoReturn:
        raise StreamOver


OVER: Final = _Over()
OVER_TRIES = 3
"""Number of times that StreamOver is raised in a body that catches everything; then the body is
left waiting at its gate."""


class GatedActor:
    """Running body of one agent in one task of the topology, for as long as that task lives.

    A new body follows a body that fails, in the same asyncio task. Where the inbox says so, each
    body waits for its first record before it begins. `asks` is called when a body
    waits for input outside of `wake`, and when the asyncio task ends.
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
        self._notify = asks
        self._agent = agent
        self._values = values
        self._failed = failed
        self._running = running
        self._waking = False
        self._closing = False
        self._sent_away = 0
        loop = asyncio.get_running_loop()
        self._gate = running.inbox.gate = Gate(loop, self._asks)
        context = contextvars.copy_context()
        context.run(RUNNING.set, running)
        name = f"agent {agent.name} of task {running.task}"
        self._task = loop.create_task(self._live(), name=name, context=context)
        self._task.add_done_callback(self._over)

    def wake(self) -> None:
        """Run the body on the new input.

        The input is used up on return, unless the body awaits something else.
        """
        self.idle = False
        self._waking = True
        self._running.resumed()
        try:
            self._gate.open()
        finally:
            self._running.paused()
            self._waking = False

    def lines(self) -> Iterator[tuple[str, int]]:
        """Yield file and line of each coroutine that waits, beginning with the body's own."""
        own: Any = self._task.get_coro()
        coroutine = getattr(own, "cr_await", None)
        while iscoroutine(coroutine) and coroutine.cr_frame is not None:
            yield coroutine.cr_code.co_filename, coroutine.cr_frame.f_lineno
            coroutine = coroutine.cr_await

    def close(self) -> None:
        self._closing = True
        self._running.closed = True
        self._task.cancel()

    def _asks(self) -> None:
        self.idle = True
        if self._closing and self._sent_away < OVER_TRIES:
            # The body caught its cancellation and wants the next record, which never comes.
            self._sent_away += 1
            self._gate.over()
            return
        if not self._waking:
            self._notify()

    async def _live(self) -> None:
        goes_on = True
        inbox = self._running.inbox
        while goes_on:
            while inbox.awaited and not inbox.chunks:
                await self._gate
            error: Exception = returned(self._agent.name)
            try:
                await self._agent.body(self._values)
            except StreamOver:
                return
            except asyncio.CancelledError:
                if self._closing:
                    raise
                error = TaskFailed(
                    f"agent ended: {self._agent.name}: it cancelled itself: let its body loop "
                    "over its stream"
                )
            except Exception as raised:  # raised by the body
                error = raised
                await self._tell(error)
            goes_on = not self._closing and self._failed(error)

    async def _tell(self, error: Exception) -> None:
        """Call the agent's function for errors, and wait for it as for the body itself.

        The policy follows whatever becomes of this call; the error gets a note if the call fails.
        """
        if self._agent.raised is None:
            return
        try:
            answer = self._agent.raised(error)
            if isawaitable(answer):
                await answer
        except asyncio.CancelledError:
            if self._closing:
                raise
            error.add_note("its on_error cancelled itself")
        except Exception as failed:  # raised by the user's function
            error.add_note(f"its on_error failed: {type(failed).__name__}: {failed}")

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            task.result()  # an exception here is a fault of this package, and ends the worker
        self._notify()
