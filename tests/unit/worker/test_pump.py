"""Agents that wait for other events, in a worker whose group is played by hand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streamsx.errors import TaskFailed
from streamsx.model import TaskId
from tests.unit.conftest import app_of

if TYPE_CHECKING:
    from streamsx import App, Stream
    from tests.unit.conftest import VirtualCluster

T0 = TaskId(0, 0)
AWAY_S, SOON_S = 0.05, 0.1
"""An idle loop looks around by itself after 0.25 s."""


def waiting(seen: list[str]) -> App:
    """Return an app whose words take a moment; `bad` fails after it, `gone` cancels its own
    agent.
    """
    app = app_of(commit_interval=60, fetch_max_wait=5)

    @app.agent(app.topic("words", value_type=str, value_serializer="raw"))
    async def wait(stream: Stream[str]) -> None:
        async for word in stream:
            await asyncio.sleep(AWAY_S)
            if word == "bad":
                raise ValueError(word)
            if word == "gone":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)
            seen.append(word)

    return app


def test_revoked_task_is_released_as_soon_as_the_agent_is_done(
    bench: VirtualCluster,
) -> None:
    seen: list[str] = []
    station = bench.begun(waiting(seen))
    station.hand.plan(T0)
    bench.until(lambda: "running" in station.states(T0))
    bench.feed(0, "a")
    bench.until(lambda: station.told("first_record"))
    station.hand.revoke(T0)
    bench.until(station.hand.released, AWAY_S + SOON_S)
    assert seen == ["a"]


def test_record_after_a_failed_one_is_processed_at_once(bench: VirtualCluster) -> None:
    seen: list[str] = []
    station = bench.begun(waiting(seen))
    station.hand.plan(T0)
    bench.until(lambda: "running" in station.states(T0))
    bench.feed(0, "bad", "a")
    bench.until(lambda: station.told("first_record"))
    bench.until(lambda: seen == ["a"], 2 * AWAY_S + SOON_S)


def test_agent_cancelling_itself_ends_the_worker(bench: VirtualCluster) -> None:
    """Whatever the policy: the work of the other tasks is committed, and no record is skipped."""
    station = bench.begun(waiting([]))
    station.hand.plan(T0)
    bench.until(lambda: "running" in station.states(T0))
    bench.feed(0, "gone", "a")
    bench.until(lambda: station.told("error"))
    (told,) = station.told("error")
    assert TaskFailed.__name__ in str(told)
    assert "it cancelled itself" in str(told)
