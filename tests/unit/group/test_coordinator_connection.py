"""A lane to the coordinator, against scripted brokers that are coordinator in turn."""

import asyncio
from typing import Any, Self

from streamsx.client.cluster import Cluster
from streamsx.client.connection import Connection
from streamsx.group.coordinator_connection import CoordinatorConnection
from streamsx.protocol.wire import Api
from tests.support.scripted_broker import Answer, Asked, ScriptedBroker

BEAT = {"group_id": "g", "generation_id": 1, "member_id": "m"}


class TwoNodes:
    """Two brokers: node 1 is found first and names `coordinator`, which both can be."""

    def __init__(self) -> None:
        self.coordinator = 1
        self.lost = 0
        self.answers: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        """Node that was asked, error code that it answered."""

    async def __aenter__(self) -> Self:
        self.brokers = {
            node: ScriptedBroker({Api.FIND_COORDINATOR: self._named, Api.HEARTBEAT: beat})
            for node, beat in ((1, self._beat(1)), (2, self._beat(2)))
        }
        for broker in self.brokers.values():
            await broker.start()
        self.cluster = Cluster(self.brokers[1].bootstrap)
        await self.cluster.start()
        self.lane = CoordinatorConnection(self.cluster, "beat", self._lost)
        self._running = asyncio.create_task(self.lane.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._running.cancel()
        await self.cluster.stop()
        for broker in self.brokers.values():
            await broker.stop()

    def _lost(self) -> None:
        self.lost += 1

    def _named(self, _: Asked) -> dict[str, Any]:
        port = self.brokers[self.coordinator].port
        return {"node_id": self.coordinator, "host": "127.0.0.1", "port": port}

    def _beat(self, node: int) -> Answer:
        return lambda _: {"error_code": 0 if node == self.coordinator else 16}

    async def asked(self) -> tuple[int, int]:
        """Send a heartbeat to the current coordinator; return the node that answered, and its
        answer.
        """
        node = await self.cluster.coordinator("g")

        async def ask(connection: Connection) -> None:
            reply = await connection.ask(Api.HEARTBEAT, BEAT)
            self.answers.put_nowait((node, reply.error_code))

        self.lane.put(node, ask)
        async with asyncio.timeout(5):
            return await self.answers.get()


def test_lane_follows_coordinator_while_old_broker_lives() -> None:
    """The lane kept its open connection: error 16 for ever, in 3 of 3 runs on three brokers."""

    async def story() -> None:
        async with TwoNodes() as world:
            assert await world.asked() == (1, 0)
            world.coordinator = 2
            assert await world.asked() == (2, 0)
            world.coordinator = 1
            assert await world.asked() == (1, 0)
            assert world.lost == 0
            asked = {node: len(b.asked_for(Api.HEARTBEAT)) for node, b in world.brokers.items()}
            assert asked == {1: 2, 2: 1}

    asyncio.run(story())


async def hangs(_: Asked) -> None:
    await asyncio.get_running_loop().create_future()


def test_closed_lane_drops_connection_and_waiting_requests() -> None:
    """A parked join would be answered to a member that has given it up."""

    async def story() -> None:
        async with TwoNodes() as world:
            asked = asyncio.Event()

            async def never(connection: Connection) -> None:
                asked.set()
                await connection.ask(Api.HEARTBEAT, BEAT)

            world.brokers[1].answers[Api.HEARTBEAT] = hangs
            for _ in range(2):
                world.lane.put(1, never)
            async with asyncio.timeout(5):
                await asked.wait()
                first = world.brokers[1].connections
                world.lane.close()
                asked.clear()
                world.brokers[1].answers[Api.HEARTBEAT] = lambda _: {"error_code": 0}
                assert await world.asked() == (1, 0)
            assert not asked.is_set()
            assert world.brokers[1].connections == first + 1
            assert world.lost == 0

    asyncio.run(story())
