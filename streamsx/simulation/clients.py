"""Who is no worker: the client that feeds lines, and the real `leave` tool.

The client is made of the product's own cluster and producer. It knows what it has fed, so that what
comes out can be compared.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from streamsx.engine.produce import Producer
from streamsx.errors import StreamsxError
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.security import PLAINTEXT
from streamsx.simulation.apps import POISON, UNDECODABLE
from streamsx.simulation.network import Net
from streamsx.simulation.nodes import BOOTSTRAP
from streamsx.simulation.process import Process
from streamsx.simulation.scene import APP, LINES, Scene
from streamsx.tools import leave

CLIENT = "client"
AT_ONCE = (1, 5, 15)
"""Records to one partition, so many behind each other."""
WORDS_PER_LINE = 3
TRY_AGAIN_S, LOOK_EVERY_S = 0.2, 5.0


class _Fed(Exception):
    """Ends the client."""


class Client:
    """`words`: how often each was fed in a line; `lines`: what was fed to other topics."""

    def __init__(self, net: Net, scene: Scene) -> None:
        self.scheduler, self.scene = net.scheduler, scene
        self.words: Counter[str] = Counter()
        self.lines: Counter[bytes] = Counter()
        self.feeding = True
        self._rng = self.scheduler.stream("input")
        self.process = Process(net, CLIENT)
        self._cluster = Cluster(BOOTSTRAP, rng=self.scheduler.stream("client"))
        self.process.start(self._run)

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as self._group:
                await self._feed(await self._producer())
                raise _Fed
        except* _Fed:
            self.scheduler.say(CLIENT, f"has fed {self.words.total()} words")
        except* Exception as error:
            self.scheduler.violate("ClientFails", repr(error))

    async def _feed(self, producer: Producer) -> None:
        rng, rate = self._rng, self.scene.rate
        while self.feeding:
            size = rng.choice(AT_ONCE)
            await asyncio.sleep(rng.expovariate(rate / size))
            there = [t for t in sorted(self.scene.sources) if self._cluster.partitions(t)]
            topic = rng.choice(there)
            partition = rng.randrange(self._cluster.partitions(topic))
            send = producer.to(topic, partition)
            now_ms = int(self.process.clock.wall() * 1000)
            for _ in range(size):
                send(None, self._value(topic), now_ms, None)
            producer.push()
        await producer.flush()

    def _value(self, topic: str) -> bytes:
        numbers = (self._rng.randrange(self.scene.vocabulary) for _ in range(WORDS_PER_LINE))
        words = [f"word{number}" for number in numbers]
        if topic == LINES and self._rng.random() < self.scene.poison:
            return self._rng.choice([POISON.encode(), UNDECODABLE])
        line = " ".join(words).encode()
        if topic == LINES:
            self.words.update(words)
        else:
            self.lines[line] += 1
        return line

    async def _producer(self) -> Producer:
        """Once the broker is there."""
        while True:
            try:
                await self._cluster.start()
                await self._cluster.follow(self.scene.sources)
                break
            except StreamsxError:
                await asyncio.sleep(TRY_AGAIN_S)
        _ = self._group.create_task(self._look(), name="look")
        producer = Producer(
            self._cluster,
            self.process.clock,
            self._group.create_task,
            self._failed,
            linger_s=0.005,
            buffer_bytes=32 << 20,
        )
        await producer.start()
        return producer

    async def _look(self) -> None:
        """For partitions that are new."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            with suppress(StreamsxError):
                await self._cluster.refresh()

    def _failed(self, error: Exception) -> None:
        self.scheduler.violate("ClientFails", repr(error))


class Tool:
    """One run of `streamsx leave`."""

    def __init__(
        self,
        net: Net,
        number: int,
        instances: list[str],
        *,
        timeout_s: float,
        cancel: bool,
        over: Callable[["Tool"], None],
    ) -> None:
        self.name, self.instances, self.cancel = f"tool{number}", instances, cancel
        self.scheduler, self.timeout_s, self._over = net.scheduler, timeout_s, over
        self.code: int | None = None
        """None while it runs, or when it was killed."""
        self.process = Process(net, self.name)
        self.scheduler.say(self.name, f"leave {instances} timeout={timeout_s} cancel={cancel}")
        self.process.start(self._run)

    async def _run(self) -> None:
        options = argparse.Namespace(
            app=APP,
            bootstrap=BOOTSTRAP,
            security=PLAINTEXT,
            instances=self.instances,
            timeout=self.timeout_s,
            no_wait=False,
            cancel=self.cancel,
            people=sys.stdout,
            json=False,
        )
        rng = self.scheduler.stream(self.name)
        try:
            self.code = await leave.ask(options, self.process.clock, rng)
        except StreamsxError as error:
            self.scheduler.say(self.name, f"{type(error).__name__}: {error}")
            self.code = error.exit_code
        except Exception as error:
            self.scheduler.violate("ToolFails", f"{self.name}: {error!r}")
        self.scheduler.say(self.name, f"exits {self.code}")
        self._over(self)

    def kill(self) -> None:
        if self.process.alive:
            self.scheduler.say(self.name, "is killed")
            self.process.kill()
