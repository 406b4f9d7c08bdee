"""Errors in callbacks of asyncio: ours end the run, others are logged."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial

import pytest

from streamsx.errors import InvalidTransition
from streamsx.event_loops import guarded, run, system_thread
from streamsx.model import Role, TaskId
from streamsx.tasks.state_machine import TaskEvent, TaskStateMachine

Planted = Callable[[asyncio.AbstractEventLoop], object]
LIFE = TaskStateMachine(TaskId(1, 0), Role.ACTIVE)


def timer(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_later(0.001, LIFE.step, 0.0, TaskEvent.CLOSED)


def message(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon_threadsafe(LIFE.step, 0.0, TaskEvent.CLOSED)


@pytest.mark.parametrize("plant", [timer, message])
def test_an_error_of_ours_in_a_callback_ends_the_run_with_it(plant: Planted) -> None:
    """The error was logged, and the loop continued with a broken state machine."""

    async def waits_for_ever() -> None:
        plant(asyncio.get_running_loop())
        await asyncio.Event().wait()

    with pytest.raises(InvalidTransition, match="CLOSED while active and created: story"):
        run(waits_for_ever())


def test_it_counts_also_when_the_run_ends_by_itself_meanwhile() -> None:
    async def ends() -> int:
        asyncio.get_running_loop().call_soon(LIFE.step, 0.0, TaskEvent.CLOSED)
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return 0
        return 1

    with pytest.raises(InvalidTransition):
        run(ends())


def test_running_tasks_are_cancelled_in_order() -> None:
    """Like any other cancellation: connections are closed, locks are released."""
    closed = []

    async def holds_something() -> None:
        timer(asyncio.get_running_loop())
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    with pytest.raises(InvalidTransition):
        run(holds_something())
    assert closed == [True]


def test_error_in_code_of_others_is_logged_and_ends_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Users' code and libraries; a state machine of ours that they misuse is their mistake too."""

    def users_own() -> None:
        LIFE.step(0.0, TaskEvent.CLOSED)

    async def goes_on() -> int:
        asyncio.get_running_loop().call_soon(users_own)
        await asyncio.sleep(0.01)
        return 7

    assert run(goes_on()) == 7
    assert "Exception in callback" in caplog.text


def test_unawaited_answer_ends_nothing() -> None:
    async def goes_on() -> int:
        future = asyncio.get_running_loop().create_future()
        future.set_exception(InvalidTransition("too late"))
        del future
        await asyncio.sleep(0)
        return 7

    assert run(goes_on()) == 7


class Broken(asyncio.Protocol):
    """End of a connection with bytes that a state machine of ours cannot read."""

    def __init__(self, lost: asyncio.Event) -> None:
        self._lost = lost
        self.data_received = partial(LIFE.step, event=TaskEvent.CLOSED)  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set()


async def hears_from_a_client() -> int:
    lost = asyncio.Event()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Broken(lost), "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        try:
            writer.write(b"anything")
            await lost.wait()
        finally:
            writer.close()
            await writer.wait_closed()
    return 7


def test_bad_bytes_of_a_client_end_its_connection_and_not_the_server() -> None:
    assert run(hears_from_a_client(), serves=True) == 7
    with pytest.raises(InvalidTransition):
        run(hears_from_a_client())


def test_the_handler_of_before_is_back_afterwards() -> None:
    async def within() -> None:
        loop = asyncio.get_running_loop()
        await guarded(asyncio.sleep(0))
        assert loop.get_exception_handler() is None

    asyncio.run(within())


# A thread with an event loop, as a worker has one for its group.


def test_it_runs_under_its_name_and_its_end_is_told() -> None:
    heard: list[str] = []

    async def main() -> None:
        heard.append(threading.current_thread().name)
        await asyncio.sleep(0)

    async def caller() -> None:
        over = system_thread("control", main)
        assert not over.done()
        await over
        heard.append(threading.current_thread().name)

    asyncio.run(caller())
    assert heard == ["control", "MainThread"]


@pytest.mark.parametrize("why", [ValueError("a bug"), asyncio.CancelledError()], ids=repr)
def test_error_of_a_system_thread_is_its_result(why: BaseException) -> None:
    async def main() -> None:
        raise why

    async def caller() -> BaseException | None:
        over = system_thread("control", main)
        await asyncio.wait([over])
        return over.exception()

    assert asyncio.run(caller()) is why


def test_system_thread_need_not_be_awaited() -> None:
    begun, go_on = threading.Event(), threading.Event()

    async def main() -> None:
        begun.set()
        go_on.wait()

    async def caller() -> None:
        _ = system_thread("control", main)

    asyncio.run(caller())
    assert begun.wait(5)
    before = threading.active_count()
    go_on.set()
    while threading.active_count() == before:
        pass
