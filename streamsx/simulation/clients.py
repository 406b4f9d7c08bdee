"""Who is no worker: the client that feeds lines, and the real `leave` tool.

The client is no process: what it feeds is in the broker's logs at once, whatever the network does,
so that a story has its input. It knows what it has fed, and what comes out can be compared.
"""

import argparse
from collections import Counter
from functools import partial
from io import StringIO
from math import inf
from typing import TYPE_CHECKING, Any

from streamsx.broker import appending
from streamsx.errors import StreamsxError
from streamsx.kafka.batch import Builder
from streamsx.kafka.security import PLAINTEXT
from streamsx.model import TopicPartition
from streamsx.simulation.apps import POISON, UNDECODABLE
from streamsx.simulation.nodes import BOOTSTRAP, NOBODY
from streamsx.simulation.process import Process
from streamsx.simulation.scene import APP, LINES
from streamsx.tools import leave

if TYPE_CHECKING:
    from streamsx.simulation.world import World

AT_ONCE = (1, 5, 15)
"""Records to one partition, so many behind each other."""
WORDS_PER_LINE = 3
BATCH_BYTES = 1 << 20
OPTIONS: dict[str, Any] = {
    "app": APP, "bootstrap": BOOTSTRAP, "security": PLAINTEXT, "no_wait": False, "json": False,
}  # fmt: skip
"""Of each run of the tool."""


class Client:
    """`words`: how often each was fed in a line; `lines`: what was fed to other topics."""

    def __init__(self, world: "World") -> None:
        self.world, self.scene = world, world.scene
        self.words: Counter[str] = Counter()
        self.lines: Counter[bytes] = Counter()
        self.feeding = True
        self._rng = world.scheduler.stream("input")
        self._feed()

    def _feed(self) -> None:
        if self.feeding:
            size = self._rng.choice(AT_ONCE)
            self.world.nodes.process.main.call(self._append, size)
            self.world.after(self._rng.expovariate(self.scene.rate / size), self._feed)

    def _append(self, size: int) -> None:
        """In the broker's thread: nothing, where nobody leads."""
        topic = self._rng.choice(sorted(self.scene.sources))
        partition = self._rng.randrange(self.world.nodes.partitions(topic))
        log = self.world.log(TopicPartition(topic, partition))
        if log is not None and not log.failed and self.world.nodes.leads(topic) != NOBODY:
            batch, now_ms = Builder(BATCH_BYTES), int(self.world.nodes.process.clock.wall() * 1000)
            for _ in range(size):
                batch.append(now_ms, None, self._value(topic))
            appending.append(log, memoryview(batch.close()), BATCH_BYTES)
            with self.world.nodes.disk.well():
                log.flush()
            log.flushed_to(log.mark())

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


class Tool:
    """One run of `streamsx leave`, or of `streamsx swap`."""

    def __init__(
        self, world: "World", instances: tuple[str, ...], timeout_s: float, *, cancel: bool,
        swap_to: str | None = None,
    ) -> None:  # fmt: skip
        self.scheduler, self.number = world.scheduler, len(world.tools) + 1
        self.name, self.instances, self.cancel = f"tool{self.number}", instances, cancel
        self.code: int | None = None
        """None while it runs, or when it was killed."""
        self.ended_at, self.printed = inf, StringIO()
        self.process = Process(world.network, self.name)
        self._swap_to = swap_to
        told = f"leave {list(instances)} timeout={timeout_s} cancel={cancel} swap_to={swap_to}"
        self.scheduler.say(self.name, told)
        given = {"instances": list(instances), "timeout": timeout_s, "people": self.printed}
        options = argparse.Namespace(**OPTIONS, **given, cancel=cancel)
        self.process.start(partial(self._run, options))

    async def _run(self, options: argparse.Namespace) -> None:
        rng = self.scheduler.stream(self.name)
        try:
            self.code = await leave.ask(options, self.process.clock, rng, swap_to=self._swap_to)
        except StreamsxError as error:
            self.scheduler.say(self.name, f"{type(error).__name__}: {error}")
            self.code = error.exit_code
        except Exception as error:
            self.scheduler.violate("ToolFails", f"{self.name}: {error!r}")
        self._end(f"exits {self.code}")

    def kill(self) -> None:
        if self.process.alive:
            self._end("is killed")
            self.process.kill()

    def _end(self, how: str) -> None:
        self.scheduler.say(self.name, how)
        self.ended_at = self.scheduler.now

    def outdoes(self, other: "Tool") -> bool:
        """It leads out whom the other one has taken back, and may have had the last word: it began
        behind it, or went on for longer. "It ends behind the one that takes it back, because of
        that": then it had not, and says so. "It does not reach the group; the other one finds
        nothing to take back; now it gets in, and its time is over": it had.
        """
        told = self.code in (None, 0, 1) and "cancelled" not in self.printed.getvalue()
        lasted = self.ended_at > other.ended_at and told
        return not self.cancel and (self.number > other.number or lasted)
