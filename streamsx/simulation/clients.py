"""Client that feeds lines to a world, and runs of the real `leave` tool.

The client is no process: its records reach the broker's logs whatever the network does, so that a
story has input. The client is an idempotent producer all the same. Records that were not
acknowledged, because the broker died or its flush failed, are sent again and stand in the log once.
The client counts all that was fed, so that the output can be compared.
"""

import argparse
from collections import Counter, deque
from functools import partial
from io import StringIO
from math import inf
from typing import TYPE_CHECKING, Any

from streamsx.broker.log import appending
from streamsx.broker.log.log import Log
from streamsx.broker.log.producer_state import BATCHES_KEPT
from streamsx.broker.refusal import Refused
from streamsx.client.security import PLAINTEXT
from streamsx.errors import StreamsxError
from streamsx.model import TopicPartition
from streamsx.protocol.record_batch import Builder
from streamsx.simulation.apps import POISON, UNDECODABLE
from streamsx.simulation.nodes import BOOTSTRAP, NOBODY
from streamsx.simulation.process import Process
from streamsx.simulation.scene import APP, LINES
from streamsx.tools import leave

if TYPE_CHECKING:
    from streamsx.simulation.world import World

AT_ONCE = (1, 5, 15)
"""Numbers of records that may be written to one partition in a row."""
WORDS_PER_LINE = 3
BATCH_BYTES = 1 << 20
AGAIN_S = 0.5
PRODUCER_ID = 1 << 40
"""Producer id of the first partition; the ids that the broker assigns are small."""
OPTIONS: dict[str, Any] = {
    "app": APP, "bootstrap": BOOTSTRAP, "security": PLAINTEXT, "no_wait": False, "json": False,
}  # fmt: skip
"""Options of every run of the tool."""


class FedPartition:
    """Batches of the client for one partition.

    A batch in `unsent` may have been sent before, to a log that is gone.
    """

    def __init__(self, world: "World", producer_id: int) -> None:
        self._world = world
        self.unsent: deque[list[bytes]] = deque()
        self.sent: deque[list[bytes]] = deque()
        """Batches that were sent and are not acknowledged yet."""
        self._producer_id = producer_id
        self._epoch = 0
        self._sequence = 0
        self._log: Log | None = None

    def take_back(self, log: Log) -> None:
        """Queue unacknowledged batches again if `log` is another one than before.

        The log detects by sequence number which of these batches are already there.
        """
        if log is not self._log:
            self._sequence -= sum(map(len, self.sent))
            self.unsent.extendleft(reversed(self.sent))
            self.sent.clear()
            self._log = log

    def send(self, log: Log, now_ms: int) -> None:
        """Append the next batch to the log.

        Raises:
            OSError: The log failed; the batch is still to be sent.
        """
        lines = self.unsent[0]
        batch = Builder(BATCH_BYTES)
        for line in lines:
            batch.append(now_ms, None, line)
        made = batch.close(self._producer_id, self._epoch, self._sequence)
        try:
            appending.append(log, memoryview(made), BATCH_BYTES)
        except Refused as why:  # acknowledged data was lost with the power: begin anew
            if self._world.scene.sync:
                self._world.scheduler.violate("SyncedIsThere", f"{log.folder.name}: {why!r}")
            self._epoch = self._epoch + 1
            self._sequence = 0
            self.send(log, now_ms)
            return
        self._sequence += len(lines)
        self.sent.append(self.unsent.popleft())

    def acknowledged(self, log: Log) -> None:
        """Drop the oldest sent batch, if `log` is still in use and has not failed."""
        if log is self._log and not log.failed:
            self.sent.popleft()


class Client:
    """Producer of input. `words`: counts of words fed in lines; `lines`: input of other topics."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.scene = world.scene
        self.words: Counter[str] = Counter()
        self.lines: Counter[bytes] = Counter()
        self.feeding = True
        self._fed: dict[TopicPartition, FedPartition] = {}
        self._rng = world.scheduler.stream("input")
        self._feed()
        self._send_again()

    def _feed(self) -> None:
        if self.feeding and not self._begun():
            self.world.after(AGAIN_S, self._feed)
        elif self.feeding:
            size = self._rng.choice(AT_ONCE)
            self.world.nodes.process.main.call(self._write, size)
            self.world.after(self._rng.expovariate(self.scene.rate / size), self._feed)

    def _begun(self) -> bool:
        """Return whether the app will read input that is fed now.

        Under `latest` this is so once the idle tasks have committed their first positions.
        """
        tps = [tp for topic in self.scene.sources for tp in self.world.partitions(topic)]
        return not self.scene.latest or self.world.offsets.keys() >= set(tps)

    def _send_again(self) -> None:
        for tp, fed in self._fed.items():
            if fed.unsent or fed.sent:
                self.world.nodes.process.main.call(self._send, tp)
        self.world.after(AGAIN_S, self._send_again)

    def _write(self, size: int) -> None:
        """Write new lines to a partition, in the broker's thread; none if there is no leader."""
        topic = self._rng.choice(sorted(self.scene.sources))
        tp = TopicPartition(topic, self._rng.randrange(self.world.nodes.partitions(topic)))
        if self._leader(tp) is not None:
            fed = self._fed.setdefault(tp, FedPartition(self.world, PRODUCER_ID + len(self._fed)))
            fed.unsent.append([self._value(topic) for _ in range(size)])
            self._send(tp)

    def _leader(self, tp: TopicPartition) -> Log | None:
        return None if self.world.nodes.leads(tp.topic) == NOBODY else self.world.log(tp)

    def _send(self, tp: TopicPartition) -> None:
        """Send pending batches of a partition, in the broker's thread, as a produce would."""
        service = self.world.nodes.service
        log = self._leader(tp)
        fed = self._fed[tp]
        if service is None or log is None:
            return
        fed.take_back(log)
        while fed.unsent and len(fed.sent) < BATCHES_KEPT:
            try:
                fed.send(log, int(self.world.nodes.process.clock.wall() * 1000))
            except OSError:
                service.flusher.heal()
                return
            service.flusher.appended(log)
            acknowledged = partial(fed.acknowledged, log)
            if self.scene.sync:
                service.flusher.when_flushed(acknowledged)
            else:
                acknowledged()

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
    """Run of `streamsx leave` or of `streamsx swap`."""

    def __init__(
        self, world: "World", instances: tuple[str, ...], timeout_s: float, *, cancel: bool,
        swap_to: str | None = None,
    ) -> None:  # fmt: skip
        self.scheduler = world.scheduler
        self.number = len(world.tools) + 1
        self.name = f"tool{self.number}"
        self.instances = instances
        self.cancel = cancel
        self.code: int | None = None
        """Exit code; None while the tool runs, or if it was killed."""
        self.ended_at = inf
        self.printed = StringIO()
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
        """Return whether this leave may have had the last word over a cancelling tool.

        That is so if this tool began after `other`, or ended later without being cancelled.
        Sequence 1: the leave is cancelled, and so ends after `other`. The leave did not have the
        last word, and the tool prints `cancelled`. Sequence 2: the leave does not reach the group;
        `other` finds nothing to cancel; the leave gets in, and its time is over. The leave had the
        last word.
        """
        told = self.code in (None, 0, 1) and "cancelled" not in self.printed.getvalue()
        lasted = self.ended_at > other.ended_at and told
        return not self.cancel and (self.number > other.number or lasted)
