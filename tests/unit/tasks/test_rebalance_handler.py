"""The group's events in the data loop, with all real parts of a worker that has not started."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamsx.app.app import App
from streamsx.assignor.model import MemberMetadata
from streamsx.assignor.wire import read_join
from streamsx.client.fetcher import HELD_SHARE, limits_of
from streamsx.config import Config
from streamsx.group import member_events as e
from streamsx.group.member_events import IsLeaving, Stays
from streamsx.protocol.consumer_protocol import Assignment, Subscription
from streamsx.state.directory import StateDirectory
from streamsx.tasks.rebalance_handler import RebalanceHandler
from streamsx.worker.wiring import WorkerComponents, assignor_of
from tests.support.worker_context import NOWHERE, context_of


async def read_all(stream: Any) -> None:
    async for _ in stream:
        pass


@pytest.fixture
def rebalance_handler(tmp_path: Path) -> Iterator[RebalanceHandler]:
    app = App("app", broker=f"kafka://{NOWHERE}")
    app.agent(app.topic("orders"))(read_all)
    directory = StateDirectory(tmp_path, "app")

    async def made() -> WorkerComponents:
        return WorkerComponents(context_of(app, directory), {"orders": 1})

    machinery = asyncio.run(made())
    yield machinery.rebalance_handler
    machinery.executor.shutdown()
    directory.release()


def test_tasks_lost_while_leaving_set_the_exit_code(rebalance_handler: RebalanceHandler) -> None:
    rebalance_handler.handle(IsLeaving(None))
    rebalance_handler.handle(e.Lost(()))
    assert rebalance_handler.lost_leaving


def test_tasks_lost_after_a_cancelled_leave_do_not_set_the_exit_code(
    rebalance_handler: RebalanceHandler,
) -> None:
    """A leave was cancelled, then a fence took its tasks. Hours later a SIGTERM ended the worker
    with exit code 1 and without its last flush.
    """
    rebalance_handler.handle(IsLeaving(None))
    rebalance_handler.handle(Stays())
    rebalance_handler.handle(e.Lost(()))
    assert not rebalance_handler.lost_leaving


def test_tasks_lost_before_a_cancelled_leave_are_forgotten(
    rebalance_handler: RebalanceHandler,
) -> None:
    rebalance_handler.handle(IsLeaving(None))
    rebalance_handler.handle(e.Lost(()))
    rebalance_handler.handle(Stays())
    rebalance_handler.handle(IsLeaving(None))
    assert not rebalance_handler.lost_leaving


@pytest.mark.parametrize(("tables", "tasks"), [(1, 1), (0, 3)], ids=["state", "no state"])
def test_stateful_agent_keeps_the_task_count_and_others_follow_the_topic(
    tmp_path: Path, tables: int, tasks: int
) -> None:
    """The topic had one partition at the start, and a leader sees three."""
    app = App("app", broker=f"kafka://{NOWHERE}")
    kept = [app.Table(f"kept{n}") for n in range(tables)]

    @app.agent(app.topic("orders"))
    async def read(stream: Any) -> None:
        async for order in stream:
            for table in kept:
                table["last"] = order

    directory = StateDirectory(tmp_path, "app")
    assignor = assignor_of(context_of(app, directory), {"orders": 1})
    directory.release()
    said = [
        ("m", Subscription(("orders",), assignor.user_data(MemberMetadata("", nonce=1))).write())
    ]
    outcome = assignor.assign(said, {"orders": 3}, leader="m", generation=1, now_ms=0)
    assigned = Assignment.read(outcome.assignments["m"]).partitions
    assert [tp.partition for tp in assigned] == list(range(tasks))


def test_join_carries_capacity_and_tags_of_the_worker(tmp_path: Path) -> None:
    app = App("app", broker=f"kafka://{NOWHERE}", capacity=3, tags="zone=x,rack=7")
    app.agent(app.topic("orders"))(read_all)
    directory = StateDirectory(tmp_path, "app")
    assignor = assignor_of(context_of(app, directory), {"orders": 1})
    directory.release()

    said = read_join(assignor.user_data(MemberMetadata("", nonce=1)))

    assert (said.capacity, said.tags) == (3, {"zone": "x", "rack": "7"})


def test_fetch_lanes_together_hold_their_share_of_the_memory() -> None:
    config = Config(id="app", fetch_max_wait_s=0.3, memory_budget_bytes=1 << 30)
    data, log = limits_of(config)
    assert (data.wait_ms, log.wait_ms) == (300, 300)
    share = int(config.memory_budget_bytes * HELD_SHARE)
    assert data.held_bytes_all + log.held_bytes_all == share
