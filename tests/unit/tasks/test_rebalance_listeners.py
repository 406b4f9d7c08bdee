"""Rebalance listeners: which are called, in which order, and whose error counts."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from streamsx.errors import TaskFailed
from streamsx.group import member_events as e
from streamsx.model import TaskId, TopicPartition
from streamsx.tasks.rebalance_listeners import ListenerCalls, RebalanceListeners
from streamsx.tasks.task_partitions import PartitionSet
from tests.unit.conftest import VirtualCluster, counting

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
BOTH = frozenset({P, Q})
NOBODY: PartitionSet = frozenset()


class WorkerHarness:
    """Worker with listeners. `heard`: calls in order; `ended`: the reason of its end."""

    def __init__(self, **failing: Exception) -> None:
        self.heard: list[tuple[str, PartitionSet]] = []
        self.told: list[tuple[str, dict[str, object]]] = []
        self.ended: list[Exception] = []
        self.jobs: list[asyncio.Task[None]] = []
        self.failing = failing
        self.listeners = RebalanceListeners()
        self.listening = ListenerCalls(
            listeners=self.listeners,
            spawn=self.spawn,
            fail=self.ended.append,
            journal=self.journal,
            now=lambda: 0.0,
        )

    def spawn(self, job: Coroutine[Any, Any, None], name: str) -> None:
        self.jobs.append(asyncio.get_running_loop().create_task(job, name=name))

    def journal(self, event: str, **fields: object) -> None:
        self.told.append((event, fields))

    def hears(self, name: str, *, waits: bool = False) -> Callable[[PartitionSet], object]:
        async def wait() -> None:
            await asyncio.sleep(0)

        def called(tps: PartitionSet) -> object:
            self.heard.append((name, tps))
            if name in self.failing:
                raise self.failing[name]
            return wait() if waits else None

        return called

    def play(self, *calls: Callable[[], None]) -> None:
        async def story() -> None:
            for call in calls:
                call()
                await asyncio.gather(*self.jobs)

        asyncio.run(story())


def test_app_without_listeners_is_not_waited_for() -> None:
    station, over = WorkerHarness(), list[float]()
    station.listening.revoked(BOTH, over.append)
    station.listening.lost(BOTH, over.append)
    station.listening.assigned([], over.append)
    assert over == [0.0] * 3


def test_empty_partition_sets_reach_only_the_assigned_listener() -> None:
    """Requirement R429-19 of tests/requirements.md."""
    station = WorkerHarness()
    for name in ("assigned", "revoked", "lost"):
        getattr(station.listeners, name).append(station.hears(name))
    over: list[float] = []

    station.play(
        lambda: station.listening.revoked(NOBODY, over.append),
        lambda: station.listening.lost([], over.append),
        lambda: station.listening.assigned([], over.append),
    )

    assert station.heard == [("assigned", NOBODY)]
    assert len(over) == 3


@pytest.mark.parametrize("listens", [True, False])
def test_lost_partitions_go_to_on_revoked_without_an_on_lost_listener(listens: bool) -> None:
    """Requirement R429-04 of tests/requirements.md."""
    station = WorkerHarness()
    station.listeners.revoked.append(station.hears("revoked"))
    if listens:
        station.listeners.lost.append(station.hears("lost"))

    station.play(lambda: station.listening.lost([P], lambda _: None))

    assert station.heard == [("lost" if listens else "revoked", frozenset({P}))]


def test_partition_lost_during_the_revoke_callback_is_revoked_once(bench: VirtualCluster) -> None:
    """The callback closes connections, which took longer than `revoke_timeout`. Called again for
    the same partition it found none to close, and that ended the worker.
    """
    app, told = counting(revoke_timeout=4), list[str]()

    @app.on_assigned
    def given(tps: PartitionSet) -> None:
        told.extend(f"+{tp}" for tp in tps)

    @app.on_revoked
    async def back(tps: PartitionSet) -> None:
        told.extend(f"-{tp}" for tp in tps)
        await asyncio.sleep(6)

    station, task = bench.begun(app), TaskId(0, 0)
    station.hand.plan(task)
    bench.until(lambda: station.states(task)[-1:] == ["running"])
    station.hand.revoke(task)
    bench.until(lambda: len(told) == 2)
    station.hand.lose(task)
    bench.run(10.0)
    assert told == ["+words-0", "-words-0"]

    station.hand.plan(task)
    bench.until(lambda: station.states(task)[-1:] == ["running"])
    station.hand.lose(task)
    bench.run(10.0)
    assert told[2:] == ["+words-0", "-words-0"]


def test_calls_of_one_partition_may_be_cancelled_in_any_order() -> None:
    """Seed 20852: at the end of a worker the later call is cancelled ahead of the earlier one."""
    station = WorkerHarness()

    async def close_connections(_: PartitionSet) -> None:
        await asyncio.Event().wait()

    station.listeners.revoked.append(close_connections)

    async def story() -> list[BaseException | None]:
        station.listening.revoked(BOTH, lambda _: None)
        station.listening.lost([P], lambda _: None)
        await asyncio.sleep(0)
        for job in reversed(station.jobs):
            job.cancel()
        await asyncio.wait(station.jobs)
        return [None if job.cancelled() else job.exception() for job in station.jobs]

    station.listeners.lost.append(close_connections)
    assert asyncio.run(story()) == [None, None]
    assert len(station.listening) == 0


def test_partitions_are_released_after_their_callbacks_return() -> None:
    """R983-04: a delay is a callback that waits."""
    station, order = WorkerHarness(), list[str]()
    slow = station.hears("slow", waits=True)
    station.listeners.revoked.extend([slow, station.hears("second")])

    def released(_: float) -> None:
        order.extend([*(name for name, _ in station.heard), "released"])

    station.play(lambda: station.listening.revoked(BOTH, released))

    assert order == ["slow", "second", "released"]
    assert station.ended == []


def test_all_callbacks_run_and_the_first_error_is_kept() -> None:
    """R429-18: the callbacks of revoke and assignment fail; both have run, and the first error
    counts.
    """
    boom, bang = ValueError("boom"), KeyError("bang")
    station = WorkerHarness(first=boom, third=bang)
    station.listeners.revoked.extend([station.hears("first"), station.hears("second")])
    station.listeners.assigned.extend([station.hears("third"), station.hears("fourth")])
    over: list[str] = []

    station.play(
        lambda: station.listening.revoked(BOTH, lambda _: over.append("released")),
        lambda: station.listening.assigned([P], lambda _: over.append("assigned")),
    )

    assert [name for name, _ in station.heard] == ["first", "second", "third", "fourth"]
    assert over == ["released", "assigned"]
    assert [type(error) for error in station.ended] == [TaskFailed, TaskFailed]
    assert [error.__cause__ for error in station.ended] == [boom, bang]
    assert "callback failed: on_revoked" in str(station.ended[0])
    assert [event for event, _ in station.told] == ["error", "error"]
    assert station.told[0][1]["where"] == "t-0, t-1"


def test_callback_awaiting_a_cancelled_task_fails_like_any_other() -> None:
    """No other callback ran, no event was reported, and its partitions were lost at the time
    limit.
    """
    station, over = WorkerHarness(), list[float]()

    async def stops_its_poller(_: PartitionSet) -> None:
        poller = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        poller.cancel()
        await poller

    station.listeners.revoked.extend([stops_its_poller, station.hears("second")])

    station.play(lambda: station.listening.revoked(BOTH, over.append))

    assert [name for name, _ in station.heard] == ["second"]
    assert over == [0.0]
    assert "stops_its_poller: CancelledError" in str(station.ended[0])


def test_cancelled_worker_calls_no_further_callbacks() -> None:
    station, over = WorkerHarness(), list[float]()
    waits = asyncio.Event()

    async def slow(_: PartitionSet) -> None:
        await waits.wait()

    station.listeners.revoked.extend([slow, station.hears("second")])

    async def story() -> None:
        station.listening.revoked(BOTH, over.append)
        await asyncio.sleep(0)
        station.jobs[0].cancel()
        await asyncio.wait(station.jobs)

    asyncio.run(story())

    assert station.jobs[0].cancelled()
    assert (station.heard, over, station.ended, len(station.listening)) == ([], [], [], 0)


def test_callbacks_of_one_partition_run_one_after_another() -> None:
    """A connection was closed before it had been opened, and stayed open."""
    station, told = WorkerHarness(), list[str]()
    opened = asyncio.Event()

    async def opens(_: PartitionSet) -> None:
        told.append("opening")
        await opened.wait()
        told.append("open")

    station.listeners.assigned.append(opens)
    station.listeners.revoked.append(lambda tps: told.append(f"closed {min(tps)}"))

    async def story() -> None:
        station.listening.assigned([P], lambda _: None)
        station.listening.revoked(frozenset({P}), lambda _: None)
        station.listening.revoked(frozenset({Q}), lambda _: None)
        for _ in range(3):
            await asyncio.sleep(0)
        assert (told, len(station.listening)) == (["opening", "closed t-1"], 2)
        opened.set()
        await asyncio.gather(*station.jobs)

    asyncio.run(story())

    assert told[2:] == ["open", "closed t-0"]
    assert len(station.listening) == 0


def test_rebalance_prolonged_by_a_callback_shows_in_the_metrics(bench: VirtualCluster) -> None:
    """They were reported half a second after the assignment, and again after the next one."""
    app = counting()

    @app.on_assigned
    async def given(_: PartitionSet) -> None:
        await asyncio.sleep(3)

    station = bench.station(app, by_hand=False)
    bench.until(lambda: station.told("assigned"))
    bench.run(5.0)

    last: dict[str, Any] = station.told("metrics")[-1]
    assert last["rebalance-total"] == len(station.told("assigned"))
    assert 3000 <= last["partitions-assigned-latency-max"] <= last["rebalance-latency-max"]


def test_ending_worker_waits_for_the_on_lost_callback(bench: VirtualCluster) -> None:
    """The callback was cut off in the middle, or before it had started."""
    app, told = counting(), list[str]()

    @app.on_lost
    async def lost(tps: PartitionSet) -> None:
        told.append("begins")
        await asyncio.sleep(3)
        told.append("is over")

    station = bench.begun(app)
    station.hand.plan(TaskId(0, 0))
    bench.until(lambda: station.states(TaskId(0, 0))[-1:] == ["running"])

    station.hand.lose(TaskId(0, 0))
    station.deliver(e.Left())
    bench.until(lambda: not station.process.alive)

    assert told == ["begins", "is over"]


def test_rebalance_callback_may_send_and_read_tables(bench: VirtualCluster) -> None:
    """The app has no timer: what sends outside of agents existed for timers only, and the first
    `send` of a callback ended the worker.
    """
    app = counting()
    told = app.topic("told", partitions=1, value_serializer="raw")

    @app.on_assigned
    async def given(tps: PartitionSet) -> None:
        acknowledged = await told.send(value=b"+%d %d" % (len(tps), len(app.tables["counts"])))
        await acknowledged

    @app.on_revoked
    async def back(tps: PartitionSet) -> None:
        await told.send(value=b"-%d" % len(tps))

    station = bench.station(app, by_hand=False)
    bench.until(lambda: station.told("assigned"))
    bench.run(1)
    station.process.signal(signal.SIGTERM)
    bench.until(lambda: not station.process.alive)
    assert station.main.result == 0
    values = [value or b"" for _, value in bench.read(TopicPartition("told", 0))]
    assert values[0] in (b"+0 0", b"+3 0")
    assert sum(int(value) for value in values if value.startswith(b"-")) == -3
