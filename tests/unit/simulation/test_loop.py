"""Virtual time, turns and threads: as asyncio and the kernel have them, from one seed."""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from streamsx.simulation.network import Net
from streamsx.simulation.process import Process
from streamsx.simulation.scheduler import Killed, Scheduler, Violation
from tests.unit.simulation.conftest import Run, for_ever


def test_an_hour_passes_at_once(scheduler: Scheduler, run: Run) -> None:
    run(lambda: asyncio.sleep(3600), limit_s=4000)
    assert scheduler.now == pytest.approx(3600, abs=0.01)
    assert scheduler.turns < 10


def test_time_moves_on_within_a_turn(run: Run) -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        return [loop.time() for _ in range(1000)]

    times = run(main)
    assert sorted(set(times)) == times
    assert 0.001 < times[-1] - times[0] < 0.01


class Pair:
    """Two threads of a process: `main` starts the other one, which collects what it hears."""

    def __init__(self, net: Net) -> None:
        self.heard: list[tuple[str, float]] = []
        self.process = Process(net, "p")
        self.other = self.process.thread("other", for_ever)

    def hear(self, what: str) -> None:
        self.heard.append((what, self.process.scheduler.now))


def test_another_threads_call_is_in_the_queue_at_once_but_wakes_it_late(
    scheduler: Scheduler, net: Net
) -> None:
    """The other thread's own timer comes first, and takes along what was called before."""
    scheduler.hop_s = 50.0
    pair = Pair(net)

    async def beside() -> None:
        asyncio.get_running_loop().call_later(1.5, pair.hear, "timer")
        await for_ever()

    other = pair.process.thread("beside", beside)

    async def main() -> None:
        other.start()
        await asyncio.sleep(1)
        other.call(pair.hear, "called")
        await for_ever()

    pair.process.start(main)
    scheduler.run_until(5)
    assert [what for what, _ in pair.heard] == ["called", "timer"]
    assert pair.heard[0][1] == pytest.approx(1.5, abs=0.01)


def test_calls_from_another_thread_stay_in_order_and_end_with_it(
    scheduler: Scheduler, net: Net
) -> None:
    pair = Pair(net)
    over: list[float] = []

    async def main() -> None:
        pair.other.call(pair.hear, "before the start")
        pair.other.start()
        for word in "abc":
            pair.other.call(pair.hear, word)
        assert pair.other.task is not None
        pair.other.call(pair.other.task.cancel)
        await asyncio.wait([pair.other.end()])
        over.append(scheduler.now)
        assert not pair.other.alive
        pair.other.call(pair.hear, "after the end")

    pair.process.start(main)
    scheduler.run_until(10)
    assert [what for what, _ in pair.heard] == ["a", "b", "c"]
    assert over[0] < 1


def test_who_waits_for_a_thread_that_never_ends_may_go_on_after_a_while(
    scheduler: Scheduler, net: Net, run: Run
) -> None:
    stuck = Process(net, "stuck").thread("main", for_ever)

    async def main() -> None:
        stuck.start()
        await asyncio.wait([stuck.end()], timeout=5)

    run(main)
    assert scheduler.now == pytest.approx(5, abs=0.1)


def test_a_thread_that_ends_cancels_what_it_has_begun(run: Run) -> None:
    ended: list[str] = []

    async def lives(name: str) -> None:
        try:
            await for_ever()
        finally:
            await asyncio.sleep(0.1)
            ended.append(name)

    async def main() -> None:
        left = [asyncio.create_task(lives(name)) for name in "ab"]
        await asyncio.sleep(1)
        assert len(left) == 2

    run(main)
    assert ended == ["a", "b"]


def test_a_frozen_process_runs_nothing_and_its_timers_come_late(
    scheduler: Scheduler, net: Net
) -> None:
    pair = Pair(net)

    async def main() -> None:
        pair.other.start()
        for _ in range(4):
            pair.hear("tick")
            await asyncio.sleep(1)

    pair.process.start(main)
    scheduler.at(1.5, pair.process.freeze, 5)
    scheduler.at(2, pair.other.call, pair.hear, "called")
    scheduler.run_until(20)
    times = {what: at for what, at in pair.heard if what == "called"}
    assert [int(at) for what, at in pair.heard if what == "tick"] == [0, 1, 6, 7]
    assert times["called"] >= 6.5


def test_who_is_killed_runs_no_finally(scheduler: Scheduler, net: Net) -> None:
    heard: list[str] = []
    process = Process(net, "p")

    async def main() -> None:
        try:
            asyncio.get_running_loop().call_later(2, heard.append, "timer")
            await asyncio.sleep(3)
        finally:
            heard.append("finally")

    process.on_kill.append(lambda: heard.append("handles released"))
    process.start(main)
    scheduler.at(1, process.kill)
    scheduler.run_until(10)
    _ = gc.collect()
    assert heard == ["handles released"]
    assert process.killed


def test_who_is_killed_within_a_turn_ends_it_there(scheduler: Scheduler, net: Net) -> None:
    heard: list[str] = []
    process = Process(net, "p")

    async def main() -> None:
        asyncio.get_running_loop().call_soon(heard.append, "next in this turn")
        process.kill()
        raise Killed

    process.start(main)
    scheduler.run_until(10)
    assert heard == []


def test_a_process_ends_with_its_main_thread(scheduler: Scheduler, net: Net) -> None:
    pair = Pair(net)

    async def main() -> int:
        pair.other.start()
        await asyncio.sleep(1)
        return 3

    thread = pair.process.start(main)
    scheduler.run_until(10)
    assert thread.result == 3
    assert not pair.process.alive
    assert not pair.process.killed
    assert not pair.other.alive


def test_a_signal_goes_to_its_handler_or_kills(scheduler: Scheduler, net: Net) -> None:
    heard: list[str] = []
    handles, plain = Process(net, "handles"), Process(net, "plain")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, heard.append, "handled")
        await for_ever()

    handles.start(main)
    plain.start(for_ever)
    scheduler.run_until(1)
    for process in (handles, plain):
        process.signal(signal.SIGTERM)
    scheduler.run_until(2)
    assert (heard, handles.alive, plain.killed) == (["handled"], True, True)


def test_an_async_generator_that_is_dropped_is_closed(run: Run) -> None:
    closed: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0.1)
            closed.append("generator")

    async def main() -> None:
        async for _ in numbers():
            break
        await asyncio.sleep(1)

    run(main)
    assert closed == ["generator"]


def test_an_executor_takes_time_and_hands_back_errors(scheduler: Scheduler, run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, divmod, 7, 0)

    run(main)
    assert 0 < scheduler.now < 1


def test_a_turn_that_blocks_lets_all_others_run(scheduler: Scheduler, net: Net) -> None:
    pair = Pair(net)

    async def beside() -> None:
        while True:
            await asyncio.sleep(0.9)
            pair.hear("beside")

    other = pair.process.thread("beside", beside)

    async def main() -> None:
        other.start()
        await asyncio.sleep(0.1)
        scheduler.elapse(2)
        pair.hear("blocked for two seconds")
        assert asyncio.current_task() is pair.process.main.task

    pair.process.start(main)
    scheduler.run_until(3)
    assert [what for what, _ in pair.heard] == ["beside", "beside", "blocked for two seconds"]


def test_who_is_killed_while_it_blocks_never_goes_on(scheduler: Scheduler, net: Net) -> None:
    heard: list[str] = []
    process = Process(net, "p")

    async def main() -> None:
        scheduler.elapse(5)
        heard.append("went on")

    process.start(main)
    scheduler.at(2, process.kill)
    scheduler.run_until(10)
    assert heard == []


def test_a_look_at_the_clock_may_let_other_threads_run(scheduler: Scheduler, net: Net) -> None:
    scheduler.preempt = 0.2
    pair = Pair(net)
    order: list[str] = []

    def looks(name: str) -> Callable[[], Any]:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            for _ in range(20):
                loop.time()
                order.append(name)

        return main

    for name in "ab":
        Process(net, name).start(looks(name))
    scheduler.run_until(1)
    assert pair.heard == []
    assert len(order) == 40
    assert "".join(order) not in ("a" * 20 + "b" * 20, "b" * 20 + "a" * 20)


def test_an_exception_in_a_callback_is_a_violation(net: Net) -> None:
    scheduler = Scheduler(7)
    process = Process(Net(scheduler), "p")

    async def main() -> None:
        asyncio.get_running_loop().call_later(1, divmod, 1, 0)
        await asyncio.sleep(5)

    process.start(main)
    with pytest.raises(Violation, match=r"seed 7 at 1\.00.*callback.*ZeroDivisionError"):
        scheduler.run_until(10)
    scheduler.close()


def test_a_loop_that_is_woken_for_ever_is_a_livelock() -> None:
    scheduler = Scheduler(1)
    process = Process(Net(scheduler), "p")

    async def main() -> None:
        def again() -> None:
            asyncio.get_running_loop().call_soon(again)

        again()
        await for_ever()

    process.start(main)
    with pytest.raises(Violation, match="livelock: p/main"):
        scheduler.run_until(10)
    scheduler.close()
