"""Virtual time, turns and threads, drawn by one seed, as asyncio and the kernel have them."""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from streamsx.simulation.network import Network
from streamsx.simulation.process import Process
from streamsx.simulation.scheduler import DISK_S, Killed, Scheduler, Violation
from tests.unit.simulation.conftest import Run, for_ever


@pytest.fixture
def process(net: Network) -> Process:
    return Process(net, "p")


@pytest.fixture
def heard(scheduler: Scheduler) -> "Heard":
    return Heard(scheduler)


class Heard(list[tuple[str, float]]):
    """Calls with their times."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def __call__(self, what: str) -> None:
        self.append((what, self.scheduler.now))

    def words(self) -> list[str]:
        return [word for word, _ in self]


def test_simulated_hour_passes_at_once(scheduler: Scheduler, run: Run) -> None:
    run(lambda: asyncio.sleep(3600), limit_s=4000)
    assert scheduler.now == pytest.approx(3600, abs=0.01)
    assert scheduler.turns < 10


def test_cancelled_timer_causes_no_turn(scheduler: Scheduler, run: Run) -> None:
    async def main() -> None:
        for seconds in range(1, 300):
            asyncio.get_running_loop().call_later(seconds, int).cancel()
        await asyncio.sleep(1000)

    run(main, limit_s=2000)
    assert scheduler.turns < 10


def test_time_advances_within_a_turn(run: Run) -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        return [loop.time() for _ in range(1000)]

    times = run(main)
    assert sorted(set(times)) == times
    assert 0.001 < times[-1] - times[0] < 0.01


def test_call_from_other_thread_is_queued_at_once_and_wakes_loop_late(
    scheduler: Scheduler, process: Process, heard: Heard
) -> None:
    """The other thread's own timer fires first, and runs the earlier call too."""
    scheduler.hop_s = 50.0

    async def beside() -> None:
        asyncio.get_running_loop().call_later(1.5, heard, "timer")
        await for_ever()

    process.start(for_ever)
    scheduler.at(1, process.start(beside, "beside").call, heard, "called")
    scheduler.run_until(5)
    assert heard.words() == ["called", "timer"]
    assert heard[0][1] == pytest.approx(1.5, abs=0.01)


def test_calls_from_other_thread_keep_order_and_end_with_thread(
    scheduler: Scheduler, process: Process, heard: Heard
) -> None:
    async def main() -> None:
        other = process.start(for_ever, "other")
        for word in "abc":
            other.call(heard, word)
        other.call(other.task.cancel)
        await asyncio.wait([other.end()])
        assert not other.alive
        other.call(heard, "after the end")
        await asyncio.sleep(5)
        heard("main")

    process.start(main)
    scheduler.run_until(10)
    assert heard.words() == ["a", "b", "c", "main"]
    assert heard[-1][1] < 6


def test_waiter_of_endless_thread_continues_after_timeout(
    scheduler: Scheduler, process: Process, run: Run
) -> None:
    stuck = process.start(for_ever)

    async def main() -> None:
        await asyncio.wait([stuck.end()], timeout=5)

    run(main)
    assert scheduler.now == pytest.approx(5, abs=0.1)


def test_ending_thread_cancels_remaining_tasks(run: Run) -> None:
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


def test_frozen_process_runs_nothing_and_timers_fire_late(
    scheduler: Scheduler, process: Process, heard: Heard
) -> None:
    async def main() -> None:
        for _ in range(4):
            heard("tick")
            await asyncio.sleep(1)

    process.start(main)
    other = process.start(for_ever, "other")
    scheduler.at(1.5, process.freeze, 5)
    scheduler.at(2, other.call, heard, "called")
    scheduler.run_until(20)
    assert [(what, int(at)) for what, at in heard if what == "tick"] == [
        ("tick", 0), ("tick", 1), ("tick", 6), ("tick", 7),
    ]  # fmt: skip
    assert dict(heard)["called"] >= 6.5


@pytest.mark.parametrize("how", ["from outside", "within a turn", "while it blocks"])
def test_killed_process_never_continues(
    scheduler: Scheduler, process: Process, heard: Heard, how: str
) -> None:
    """From within, running frames are unwound; from outside not even these."""
    unwound: list[str] = []

    async def main() -> None:
        try:
            asyncio.get_running_loop().call_soon(heard, "in the first turn")
            await asyncio.sleep(1)
            asyncio.get_running_loop().call_soon(heard, "next in this turn")
            if how == "within a turn":
                process.kill()
                raise Killed
            if how == "while it blocks":
                scheduler.elapse(5)
            await asyncio.sleep(5)
        finally:
            unwound.append(how)

    process.on_kill.append(lambda: heard("handles released"))
    process.start(main)
    scheduler.at(1 if how == "from outside" else 2, process.kill)
    scheduler.run_until(10)
    _ = gc.collect()
    assert heard.words() == ["in the first turn", "handles released"]
    assert process.killed
    assert bool(unwound) is (how != "from outside")


def test_process_ends_with_main_thread(scheduler: Scheduler, process: Process) -> None:
    async def main() -> int:
        await asyncio.sleep(1)
        return 3

    thread, other = process.start(main), process.start(for_ever, "other")
    scheduler.run_until(10)
    assert (thread.result, other.alive) == (3, False)
    assert (process.alive, process.killed) == (False, False)


def test_signal_is_handled_or_kills_process(
    scheduler: Scheduler, net: Network, process: Process, heard: Heard
) -> None:
    plain = Process(net, "plain")

    async def main() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, heard, "handled")
        await for_ever()

    process.start(main)
    plain.start(for_ever)
    for each in (process, plain):
        scheduler.at(1, each.signal, signal.SIGTERM)
    scheduler.run_until(2)
    assert (heard.words(), process.alive, plain.killed) == (["handled"], True, True)


def test_dropped_async_generator_is_closed(run: Run) -> None:
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


def test_executor_takes_time_and_propagates_errors(scheduler: Scheduler, run: Run) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(None, divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, divmod, 7, 0)

    run(main)
    assert 0 < scheduler.now < 1


def test_disk_recovery_speeds_up_pending_work(
    scheduler: Scheduler, process: Process, heard: Heard
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        begun = [loop.run_in_executor(None, divmod, n, 2) for n in (7, 9)]
        for each in begun:
            heard(str(await each))
        await for_ever()

    scheduler.disk_takes(1e6)
    process.start(main)
    scheduler.run_until(100)
    assert heard == []
    scheduler.disk_takes(DISK_S)
    scheduler.run_until(100 + 10 * DISK_S)
    assert heard.words() == ["(3, 1)", "(4, 1)"]
    scheduler.run_until(1e8)
    assert heard.words() == ["(3, 1)", "(4, 1)"]


@pytest.mark.parametrize(("strikes", "done"), [(lambda p: p.freeze(1e5), 1), (Process.kill, 0)])
def test_pending_disk_work_waits_for_frozen_and_ends_with_dead_process(
    scheduler: Scheduler, process: Process, heard: Heard, strikes: Any, done: int
) -> None:
    async def main() -> None:
        _ = asyncio.get_running_loop().run_in_executor(None, heard, "done")
        await for_ever()

    scheduler.disk_takes(1e3)
    process.start(main)
    scheduler.run_until(0.1)
    strikes(process)
    scheduler.run_until(9e4)
    assert heard == []
    scheduler.run_until(2e5)
    assert heard.words() == ["done"] * done


def test_blocking_turn_lets_other_threads_run(
    scheduler: Scheduler, process: Process, heard: Heard
) -> None:
    async def beside() -> None:
        while True:
            await asyncio.sleep(0.9)
            heard("beside")

    async def main() -> None:
        await asyncio.sleep(0.1)
        scheduler.elapse(2)
        heard("blocked for two seconds")
        assert asyncio.current_task() is process.main.task

    process.start(main)
    process.start(beside, "beside")
    scheduler.run_until(3)
    assert heard.words() == ["beside", "beside", "blocked for two seconds"]


def test_clock_reads_may_preempt_thread(scheduler: Scheduler, net: Network) -> None:
    scheduler.preempt = 0.2
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
    assert sorted(order) == ["a"] * 20 + ["b"] * 20
    assert "".join(order) not in ("a" * 20 + "b" * 20, "b" * 20 + "a" * 20)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (lambda loop, _: loop.call_later(1, divmod, 1, 0), r"7 at 1\.00.*callback.*ZeroDivision"),
        (lambda loop, again: loop.call_soon(again, loop, again), "livelock: p/main"),
    ],
    ids=["an exception in a callback", "woken for ever"],
)
def test_illegal_loop_use_is_a_violation(bad: Callable[..., Any], said: str) -> None:
    scheduler = Scheduler(7)

    async def main() -> None:
        bad(asyncio.get_running_loop(), bad)
        await for_ever()

    Process(Network(scheduler), "p").start(main)
    with pytest.raises(Violation, match=said):
        scheduler.run_until(10)
    scheduler.close()
