"""Recorder of histories: unmodified clients on a broker that is killed, all drawn by one seed.

The seed decides the faults and their times; what they cause depends on the machine. At the end no
more faults come, the clients stop, and two readers read everything.
"""

import os
import random
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from threading import Event as Moment
from typing import Self

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as At

from streamsx.clock import Clock, SystemClock
from streamsx.model import TopicPartition
from streamsx.tools.cli.processes import Child
from tests.support.apache_kafka import ApacheKafka
from tests.support.client import Client
from tests.support.embedded_broker import EmbeddedBroker
from tests.support.history.client_arguments import ClientArguments
from tests.support.history.clients import (
    EXIT_CANNOT_GO_ON,
    consumer_settings,
    polled,
)
from tests.support.history.events import (
    Action,
    Assign,
    Commit,
    Committed,
    Drain,
    End,
    History,
    Level,
    Phase,
    Poll,
    Send,
)
from tests.support.history.journal import Journal, merged, read

ROOT = Path(__file__).parents[3]
PARTITIONS = 2
DRAIN_S = GOES_ON_S = 40.0
LOOK_S = 0.2
STOP_S = 20.0
EVERYBODY = (
    "plain", "plain", "reader", "uncommitted", "member", "member", "transactional",
    "transactional", "copier", "copier", "aio", "aio-transactional",
)  # fmt: skip


DOES: dict[str, type[Action]] = {
    "plain": Send, "reader": Poll, "uncommitted": Poll, "member": Commit, "transactional": End,
    "copier": End, "aio": Send, "aio-transactional": End,
}  # fmt: skip
"""What each kind of client is there for."""


@dataclass
class Slot:
    """Identity and the process that has it. `frozen`: processes that were replaced while they stood
    still.
    """

    kind: str
    identity: str
    client: Child | None = None
    frozen: list[Child] = field(default_factory=list)


class Recording:
    """Recording with its processes. A context manager; all have ended when it is left."""

    def __init__(
        self,
        seed: int,
        broker: EmbeddedBroker | ApacheKafka,
        folder: Path,
        kinds: Sequence[str],
        *,
        calm_s: float = 0.8,
        transaction_s: float = 4.0,
        clock: Clock | None = None,
    ) -> None:
        """Prepare a recording.

        Args:
            folder: Folder of the clients' journals.
            calm_s: Longest time between two faults.
            transaction_s: Timeout of a transaction; better longer than the broker is away.
        """
        self._broker, self._folder = broker, folder
        self._clock, self._pause = clock or SystemClock(), Moment()
        self._seed, self._rng = seed, random.Random(seed)
        self._topic = f"history-{seed}-{os.urandom(4).hex()}"
        self._names = count(1)
        self._all: list[Child] = []
        self._slots = [Slot(kind, f"{kind}-{i}") for i, kind in enumerate(kinds)]
        self._calm_s, self._transaction_s, self.faults = calm_s, transaction_s, 0

    def __enter__(self) -> Self:
        with closing(Client(self._broker.bootstrap)) as client:
            for topic in (self._topic, f"{self._topic}-made"):
                client.create(topic, PARTITIONS)
        for slot in self._slots:
            self._start(slot)
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._all:
            client.kill()

    def run(self, duration_s: float) -> History:
        """Run the clients with faults for a time, then stop them and read everything.

        The last fault is a kill of the broker. After it all clients have to continue.

        Raises:
            AssertionError: a client ended in an unknown way, did not continue or could not stop; or
                not all could be read.
        """
        self._until_all_go_on()
        until = self._clock.now() + duration_s
        faults = (
            self._kill_broker, self._freeze_broker, self._kill_client, self._freeze_client,
        )  # fmt: skip
        while self._clock.now() < until:
            self._pause.wait(self._rng.uniform(0.1, 1.0) * self._calm_s)
            self._do(self._rng.choice(faults))
        self._do(self._kill_broker)
        self._until_all_go_on()
        self._stop_all()
        for level in Level:
            self._read_all(level)
        return merged(sorted(self._folder.glob("*.journal")))

    # -- faults

    def _do(self, fault: Callable[[], None]) -> None:
        fault()
        self.faults += 1
        self._look_after()

    def _kill_broker(self) -> None:
        self._broker.kill()
        self._pause.wait(self._rng.choice((0.0, 0.2, 1.0)))
        self._broker.start()

    def _freeze_broker(self) -> None:
        """Freeze the broker, sometimes for longer than a session."""
        assert self._broker.pid is not None
        os.kill(self._broker.pid, signal.SIGSTOP)
        self._pause.wait(self._rng.choice((0.1, 0.5, 2.0)))
        os.kill(self._broker.pid, signal.SIGCONT)

    def _kill_client(self) -> None:
        """Kill a client. Its successor has not always waited for its end."""
        slot = self._rng.choice(self._slots)
        client = slot.client
        assert client is not None
        if self._rng.random() < 0.3:
            self._start(slot)
        client.kill()
        if slot.client is client:
            self._start(slot)

    def _freeze_client(self) -> None:
        """Freeze a client, sometimes for longer than a session; its successor starts, and it wakes
        up again.
        """
        slot = self._rng.choice(self._slots)
        client = slot.client
        assert client is not None
        client.send(signal.SIGSTOP)
        self._pause.wait(self._rng.choice((0.1, 0.5, 2.0)))
        if self._rng.random() < 0.5:
            self._start(slot)
            slot.frozen.append(client)
            self._pause.wait(self._rng.uniform(0.0, 1.0))
        client.send(signal.SIGCONT)

    def _look_after(self) -> None:
        """Replace clients that could not continue, and end those that were replaced."""
        for slot in self._slots:
            for old in slot.frozen:
                old.kill()
            slot.frozen.clear()
            if slot.client is not None and slot.client.code is not None:
                self._expect(slot.client, EXIT_CANNOT_GO_ON)
                self._start(slot)

    def _until_all_go_on(self) -> None:
        """Wait until each client has done its work again, without faults."""
        began, waiting = self._clock.now(), list(self._slots)
        while waiting:
            late = [slot.identity for slot in waiting]
            assert self._clock.now() < began + GOES_ON_S, f"{late} do nothing"
            self._pause.wait(LOOK_S)
            self._look_after()
            waiting = [slot for slot in waiting if not self._has_done(slot, began)]

    def _has_done(self, slot: Slot, since: float) -> bool:
        assert slot.client is not None
        journal = self._folder / f"{slot.client.name}.journal"
        return journal.exists() and any(
            at > since and event.phase is Phase.OK and isinstance(event.action, DOES[slot.kind])
            for at, event in read(journal)
        )

    # -- clients

    def _start(self, slot: Slot) -> None:
        name = f"{slot.identity}.{next(self._names)}"
        given = replace(
            self._given, kind=slot.kind, name=name, identity=f"{self._topic}-{slot.identity}",
            seed=f"{self._seed}/{name}", journal=str(self._folder / f"{name}.journal"),
        )  # fmt: skip
        command = [sys.executable, "-m", "tests.support.history.clients", given.argument()]
        slot.client = Child(name, self._folder / f"{name}.log", command, folder=ROOT)
        self._all.append(slot.client)

    @property
    def _given(self) -> ClientArguments:
        """Return the arguments that all clients share."""
        return ClientArguments(
            kind="", name="", identity="", bootstrap=self._broker.bootstrap, seed="", journal="",
            topic=self._topic, made=f"{self._topic}-made", partitions=PARTITIONS,
            transaction_ms=round(self._transaction_s * 1000),
        )  # fmt: skip

    def _stop_all(self) -> None:
        running = [slot.client for slot in self._slots if slot.client is not None]
        for client in running:
            client.send(signal.SIGTERM)
        until = self._clock.now() + STOP_S
        for client in running:
            try:
                client.wait(max(0.0, until - self._clock.now()))
            except TimeoutError:
                client.send(signal.SIGUSR1)
                self._pause.wait(1.0)
                raise AssertionError(f"{client.name} does not stop: {client.tail()}") from None
            self._expect(client, 0, EXIT_CANNOT_GO_ON, -signal.SIGTERM)  # before it could listen

    def _expect(self, client: Child, *codes: int) -> None:
        assert client.code in codes, f"{client.name}: {client.code}: {client.tail()}"

    # -- the end

    def _read_all(self, level: Level) -> None:
        """Read all records, and all commits of groups."""
        name = f"last-{level}"
        with closing(Journal(self._folder / f"{name}.journal", name)) as journal:
            self._drain(journal, name, level)
            for kind in sorted({slot.kind for slot in self._slots} & {"member", "copier"}):
                self._ask(journal, f"{self._topic}-{kind}")

    def _drain(self, journal: Journal, name: str, level: Level) -> None:
        """Read to the end: a read_committed reader gets there too, because open
        transactions end.
        """
        tps = [*self._given.tps(self._given.topic), *self._given.tps(self._given.made)]
        with closing(Client(self._broker.bootstrap)) as client:
            ends = client.ends(tps)
        journal.note(Assign(dict.fromkeys(tps, 0)))
        settings = consumer_settings(self._given, name, level)
        with closing(Consumer({**settings, "enable.partition.eof": True})) as consumer:
            consumer.assign([At(tp.topic, tp.partition, 0) for tp in tps])
            until, found = self._clock.now() + DRAIN_S, dict[TopicPartition, int]()
            while any(found.get(tp, -1) < end for tp, end in ends.items()):
                assert self._clock.now() < until, f"{name} stands at {found} of {ends}"
                if rows := polled(consumer, 500, found):
                    journal.note(Poll(level, rows))
        journal.note(Drain(level, dict(found)))

    def _ask(self, journal: Journal, group: str) -> None:
        tps = self._given.tps(self._topic)
        over = journal.begin(Committed(group, tuple(tps), {}))
        with closing(Consumer(consumer_settings(self._given, group, Level.COMMITTED))) as consumer:
            found = consumer.committed([At(*tp) for tp in tps], timeout=DRAIN_S)
        offsets = {tp: at.offset for tp, at in zip(tps, found, strict=True) if at.offset >= 0}
        over(Phase.OK, Committed(group, tuple(tps), offsets))
