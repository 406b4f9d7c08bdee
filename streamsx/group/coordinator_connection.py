"""One connection to the group coordinator that sends one request at a time, in order.

A connection that is given up is aborted, never closed gracefully. After a graceful close the kernel
still delivers the bytes in its buffer, minutes later if the network was cut: an OffsetCommit behind
newer ones, or an old JoinGroup.
"""

import asyncio
from collections.abc import Awaitable, Callable

from streamsx.client.cluster import Cluster
from streamsx.client.connection import Connection
from streamsx.errors import BrokerUnreachable

Ask = Callable[[Connection], Awaitable[None]]


class CoordinatorConnection:
    """Connection for one kind of request, with a queue of requests that wait.

    `lost` is called when the connection breaks: no request sent or queued on this connection will
    be answered.
    """

    def __init__(self, cluster: Cluster, name: str, lost: Callable[[], None]) -> None:
        self._cluster = cluster
        self._name = name
        self._lost = lost
        self._asked: asyncio.Queue[tuple[int, int, Ask]] = asyncio.Queue()
        self._connection: Connection | None = None
        self._node = -1
        """Node id of the broker at the other end; -1 before the first connection."""
        self._epoch = 0
        """Number of calls of `close`. Requests queued under an older epoch are skipped, and their
        failures are not reported."""

    def put(self, node: int, ask: Ask) -> None:
        """Queue a request for broker `node`, behind the requests that wait already."""
        self._asked.put_nowait((self._epoch, node, ask))

    def close(self) -> None:
        """Abandon the request in flight and all queued requests."""
        self._epoch += 1
        self._abort()

    async def run(self) -> None:
        """Send queued requests one after the other until cancelled."""
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
        """Return an open connection to broker `node`, never to another broker.

        The race: the coordinator moves; the old coordinator stays alive; on the standing connection
        the old coordinator answers NOT_COORDINATOR for ever.
        """
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
