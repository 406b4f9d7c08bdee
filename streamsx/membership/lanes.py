"""A lane to the coordinator: one connection, one request at a time, in order.

A connection that is given up is aborted, never closed gracefully: else the kernel still delivers
what it holds, after a network cut minutes later: an OffsetCommit behind newer ones, an old
JoinGroup.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from streamsx.errors import BrokerUnreachable
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.connection import Connection

Ask = Callable[[Connection], Awaitable[None]]


class Lane:
    """`lost` is called when the requests of the lane are unanswered and over."""

    def __init__(self, cluster: Cluster, name: str, lost: Callable[[], None]) -> None:
        self._cluster, self._name, self._lost = cluster, name, lost
        self._waiting: deque[tuple[int, Ask]] = deque()
        self._arrived = asyncio.Event()
        self._connection: Connection | None = None
        self._node = -1
        """The broker at its other end."""
        self._epoch = 0
        """Of what was asked before the last `close` nothing is told any more."""

    def put(self, node: int, ask: Ask) -> None:
        """To this broker, behind what waits already."""
        self._waiting.append((node, ask))
        self._arrived.set()

    def close(self) -> None:
        """Abandon what was asked, and what waits to be."""
        self._epoch += 1
        self._drop()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            node, ask = self._waiting.popleft()
            epoch = self._epoch
            try:
                connection = await self._connected(node)
                if epoch == self._epoch:
                    await ask(connection)
            except BrokerUnreachable:
                if epoch == self._epoch:
                    self._drop()
                    self._lost()

    async def _connected(self, node: int) -> Connection:
        """To this broker and no other: "the coordinator moves; the old one lives, and says for ever
        on the connection that stands that it is none"."""
        if node != self._node:
            self._abort()
        if self._connection is None or self._connection.closed:
            self._connection = await self._cluster.open(node, f"group {self._name}")
            self._node = node
        return self._connection

    def _drop(self) -> None:
        self._waiting.clear()
        self._abort()

    def _abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
