"""The data loop's side of the group, between all the real parts of a worker that has not begun."""

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamsx.app.app import App
from streamsx.clock import SystemClock
from streamsx.engine.assemble import Given, Machinery, assemble
from streamsx.engine.group import GroupLink
from streamsx.engine.journal import Journal
from streamsx.kafka.cluster import Cluster
from streamsx.membership import events as e
from streamsx.membership.messages import IsLeaving, Message, Stays
from streamsx.state.directory import StateDirectory

NOWHERE = "127.0.0.1:9"


class Nobody:
    """A worker whose loop does not run: nothing is asked of it."""

    def spawn(self, job: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        raise AssertionError(name)

    def fail(self, error: Exception) -> None:
        raise error

    def ended(self, error: Exception | None) -> None: ...

    def deliver(self, message: Message) -> None:
        raise AssertionError(message)

    def connect(self) -> Cluster:
        return Cluster(NOWHERE)


@pytest.fixture
def link(tmp_path: Path) -> Iterator[GroupLink]:
    app = App("app", broker=f"kafka://{NOWHERE}")
    orders = app.topic("orders")

    @app.agent(orders)
    async def read(stream: Any) -> None:
        async for _ in stream:
            pass

    directory, clock = StateDirectory(tmp_path, "app"), SystemClock()

    async def made() -> Machinery:
        given = Given(
            Nobody(), app.topology(), app.conf, directory, Journal("a", clock), clock,
            Cluster(NOWHERE), {"orders": 1},
        )  # fmt: skip
        return assemble(given)

    machinery = asyncio.run(made())
    yield machinery.link
    machinery.executor.shutdown()
    directory.release()


def test_what_is_lost_on_the_way_out_is_told_by_the_exit_code(link: GroupLink) -> None:
    link.hear(IsLeaving(None))
    link.hear(e.Lost(()))
    assert link.lost_leaving


def test_what_is_lost_by_one_that_stays_says_nothing_of_how_it_leaves(link: GroupLink) -> None:
    """A mark was taken back; a fence took its tasks, hours ago; a SIGTERM then ended it with 1 and
    without its last flush."""
    link.hear(IsLeaving(None))
    link.hear(Stays())
    link.hear(e.Lost(()))
    assert not link.lost_leaving


def test_what_was_lost_before_a_leave_was_taken_back_is_forgotten(link: GroupLink) -> None:
    link.hear(IsLeaving(None))
    link.hear(e.Lost(()))
    link.hear(Stays())
    link.hear(IsLeaving(None))
    assert not link.lost_leaving
