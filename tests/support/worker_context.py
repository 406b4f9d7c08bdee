"""Context of a worker's parts, without a worker, a group or a broker."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from streamsx.app.app import App
from streamsx.client.cluster import Cluster
from streamsx.clock import SystemClock
from streamsx.group.member_events import ControlMessage
from streamsx.journal import Journal
from streamsx.state.directory import StateDirectory
from streamsx.worker.wiring import WorkerContext

NOWHERE = "127.0.0.1:9"


class IdleOwner:
    """Owner whose loop does not run; none of its calls is expected."""

    def spawn(self, job: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        raise AssertionError(name)

    def spawn_users(self, job: Coroutine[Any, Any, None], *, name: str) -> None:
        raise AssertionError(name)

    def fail(self, error: Exception) -> None:
        raise error

    def ended(self, error: Exception | None) -> None: ...

    def deliver(self, message: ControlMessage) -> None:
        raise AssertionError(message)

    def connect(self) -> Cluster:
        return Cluster(NOWHERE)


def context_of(app: App, directory: StateDirectory) -> WorkerContext:
    clock = SystemClock()
    return WorkerContext(
        IdleOwner(), app.topology(), app.conf, directory, Journal("a", clock), clock,
        Cluster(NOWHERE),
    )  # fmt: skip
