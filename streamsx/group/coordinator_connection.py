"""A lane to the coordinator: one connection, one request at a time, in order.

A connection that is given up is aborted, never closed gracefully: else the kernel still delivers
what it holds, after a network cut minutes later: an OffsetCommit behind newer ones, an old
JoinGroup.
"""

import asyncio
from collections.abc import Awaitable, Callable

from streamsx.client.cluster import Cluster
from streamsx.client.connection import Connection
from streamsx.errors import BrokerUnreachable

Ask = Callable[[Connection], Awaitable[None]]


class CoordinatorConnection:
    """`lost` is called when the requests of the lane are unanswered and over."""

    def __init__(self, cluster: Cluster, name: str, lost: Callable[[], None]) -> None:
        self._cluster, self._name, self._lost = cluster, name, lost
        self._asked: asyncio.Queue[tuple[int, int, Ask]] = asyncio.Queue()
        self._connection: Connection | None = None
        self._node = -1
        """The broker at its other end."""
        self._epoch = 0
        """Of what was asked before the last `close` nothing is done or told any more."""

    def put(self, node: int, ask: Ask) -> None:
        """To this broker, behind what waits already."""
        self._asked.put_nowait((self._epoch, node, ask))

    def close(self) -> None:
        """Abandon what was asked, and what waits to be."""
        self._epoch += 1
        self._abort()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            epoch, node, ask = await self._asked.get()
            if epoch != self._epoch:
                continue
            try:
                connection = await self._connected(node)
                if epoch == self._epoch:
                    await ask(connection)
            except BrokerUnreachable:
                if epoch == self._epoch:
                    self.close()
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

    def _abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
