"""The broker's process: the real one, behind the addresses of `front`. It crashes, and comes back.

All nodes are one process and one disk: a node that vanishes is an address that nobody reaches.
"""

import asyncio
import uuid
from pathlib import Path

from streamsx.broker.connection import ConnectionLimits
from streamsx.broker.server import BrokerServer
from streamsx.broker.service import Options, Service
from streamsx.simulation.front import HOSTS, PORT, Front
from streamsx.simulation.network import Net
from streamsx.simulation.process import Process
from streamsx.simulation.scene import Scene

BROKER = "broker"
BOOTSTRAP = ",".join(f"{host}:{PORT}" for host in HOSTS)


class Nodes:
    """`service` is None while there is no broker."""

    def __init__(self, network: Net, front: Front, scene: Scene, folder: Path) -> None:
        self.scheduler, self.network = network.scheduler, network
        self.front, self.scene = front, scene
        self._folder, self._ids = folder, self.scheduler.stream("broker ids")
        self.service: Service | None = None
        self.process: Process
        network.alias((HOSTS[1], PORT), (HOSTS[0], PORT))
        self.start()

    def start(self) -> None:
        process = self.process = Process(self.network, BROKER)

        async def serve() -> None:
            broker = BrokerServer(
                self._folder,
                host=HOSTS[0],
                port=PORT,
                topics=self.scene.sources,
                clock=process.clock,
                options=Options(sync=False, auto_create=True, partitions=self.scene.words),
                limits=ConnectionLimits(connections_max_idle_s=self.scene.idle_s),
                fresh_id=self._fresh_id,
                answer=self.front.answer,
            )
            await broker.start()
            self.service = broker.service
            process.on_kill.append(broker.abandon)
            await asyncio.get_running_loop().create_future()

        process.start(serve)
        self.scheduler.say(BROKER, "starts")

    def _fresh_id(self) -> uuid.UUID:
        return uuid.UUID(int=self._ids.getrandbits(128))

    @property
    def alive(self) -> bool:
        return self.process.alive

    def crash(self, back_s: float, *, power: bool = False) -> None:
        """What it had in memory is gone; with `power` no connection is closed either."""
        if self.alive:
            self.scheduler.say(BROKER, f"crashes, back in {back_s} s, power={power}")
            self.service = None
            self.process.kill(power=power)
            self.scheduler.after(back_s, self.start)

    def freeze(self, seconds: float) -> None:
        if self.alive:
            self.scheduler.say(BROKER, f"frozen for {seconds} s")
            self.process.freeze(seconds)

    def move_coordinator(self, node: int | None = None) -> None:
        """To this node, or to the other one; the old one lives on and refuses."""
        front = self.front
        front.coordinator = 1 - front.coordinator if node is None else node
        self.scheduler.say(BROKER, f"coordinates on node {front.coordinator}")
        if self.alive and self.service is not None:
            self.process.main.call(self.service.groups.move)

    def move_leader(self, node: int | None = None) -> None:
        front = self.front
        front.leader = 1 - front.leader if node is None else node
        self.scheduler.say(BROKER, f"leads on node {front.leader}")

    def vanish(self, node: int, seconds: float, *, over_s: float = 0.5) -> None:
        """Without a word; a little later another one has all that it had."""
        self.scheduler.say(BROKER, f"node {node} vanishes for {seconds} s")
        self.network.lose(HOSTS[node], seconds)
        if self.front.coordinator == node:
            self.scheduler.after(over_s, self.move_coordinator, 1 - node)
        if self.front.leader == node:
            self.scheduler.after(over_s, self.move_leader, 1 - node)

    def delete(self, topic: str) -> None:
        if self.service is not None:
            self.service.topics.delete(self.service.topics.by_name[topic])
            self.scheduler.say(BROKER, f"{topic} is deleted")

    def partitions(self, topic: str) -> int:
        """As many as the broker has, or will have."""
        found = None if self.service is None else self.service.topics.by_name.get(topic)
        return len(found.logs) if found else self.scene.sources.get(topic, 0)

    def grow(self, topic: str, partitions: int) -> None:
        found = None if self.service is None else self.service.topics.by_name.get(topic)
        if self.service is not None and found is not None and len(found.logs) < partitions:
            self.service.topics.grow(found, partitions)
            self.scheduler.say(BROKER, f"{topic} grows to {partitions}")
