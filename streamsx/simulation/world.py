"""Simulated world: the real worker, `leave` tool and broker in virtual time, drawn from a seed.

The actors are the product's own shells. Each simulated thread has an event loop (`process`), and
the network is in memory (`network`). This module adds only their surroundings: the broker behind
its addresses (`nodes`), machines with disks (`hosts`, `disk`), an app (`apps`), a client and the
tool (`clients`), faults (`faults`) and invariants (`checks`).

One seed draws everything. Each concern has its own stream of random numbers, so that a new draw in
one changes no other. One seed is one story, in every process and under every PYTHONHASHSEED.

Phases: faults for FAULTS_S seconds; then everything heals, and dead workers come back. CALM_S
seconds later the input ends. After SETTLE_S more the group must be whole and have done everything.

Legend of a story: time, actor (w1.2/data: the data loop of worker 1 in its second life, broker,
tool1), and the actor's message or the fault that struck.
"""

import contextlib
import errno
import gc
import io
import json
import logging
import os
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from typing import Any

from streamsx.broker.groups.classic import ClassicGroup
from streamsx.broker.log.log import Log
from streamsx.client.transactional_id import FENCES_MAX, FENCES_S
from streamsx.client.transactional_producer import TransactionalProducer
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.record_batch import columns
from streamsx.simulation.apps import app_of
from streamsx.simulation.checks import CHECKS, Check
from streamsx.simulation.clients import Client, Tool
from streamsx.simulation.external_clients import Fence, GroupReader, Upstream
from streamsx.simulation.faults import Faults
from streamsx.simulation.hosts import SimulatedHost
from streamsx.simulation.network import Network
from streamsx.simulation.nodes import Nodes
from streamsx.simulation.scene import APP, Scene, draw
from streamsx.simulation.scheduler import Killed, Scheduler, Violation
from streamsx.simulation.shrink import Without
from streamsx.state.layout import StoreNode
from streamsx.tasks import crash_points as points

FAULTS_S = 45.0
CALM_S = 10.0
SETTLE_S = 38.0
MOODY_S = 20.0
ROUNDS = 8
SAMPLE_S = 0.25
MEMORY = Path("/dev/shm")  # noqa: S108  # a file system in memory, if the machine has one
PLANTED = os.strerror(errno.EIO)
"""Text of the errors that `power` injects: a disk that fails is no fault of the broker."""
READ_BYTES = 1 << 20
BROKER_LOG = "streamsx.broker"
FENCE_S = 0.5
"""Time for which a worker that is being fenced does nothing."""
QUIET = frozenset({"commit", "gap", "calm_gap", "restore_progress", "metrics", "plan"})
"""Events of the journal that are left out of the story."""


class World:
    """Simulated world of one seed.

    With a `scene` of the caller, no faults strike but those that the caller schedules (`at`).
    """

    def __init__(
        self, seed: int, folder: Path, scene: Scene | None = None, without: Without = frozenset()
    ) -> None:
        self.seed = seed
        self.scene = scene or draw(seed)
        scheduler = self.scheduler = Scheduler(seed)
        self.at = scheduler.at
        self.after = scheduler.after
        self.say = scheduler.say
        self.network = Network(self.scheduler)
        self.network.mean_s = self.scene.latency_s
        scheduler.hop_s = self.scene.hop_s
        scheduler.preempt = self.scene.preempt
        self.excused = Counter[str]()
        self.met = Counter[str]()
        self._counted_in: ClassicGroup | None = None
        self.offsets: dict[TopicPartition, int] = {}
        """Committed offsets, as the broker has acknowledged them."""
        self.reached: dict[tuple[str, TopicPartition], int] = {}
        """Position of each agent, as committed with the offsets."""
        self.runner: dict[TaskId, str] = {}
        """Process in which each task has begun to run last."""
        self.tools: list[Tool] = []
        self.dies_at = ""
        self.fenced_at = ""
        self.fences: list[Fence] = []
        self.healed = False
        self.surplus = 0
        self.nodes = Nodes(self, folder / "broker")
        self.client = Client(self)
        self.homes = [SimulatedHost(self, n, folder) for n in range(self.scene.workers)]
        self.numbers, self._topics = subtopologies(self.scene)
        self.stores = stores_of(self.scene)
        _, self._topics_before = subtopologies(self.scene.before())
        self.checks: list[Check] = [check(self) for check in CHECKS]
        self.faults = None if scene else Faults(self, without)
        kind = self.scene.upstream
        self.upstream = None if kind == "none" else Upstream(self, modern=kind == "v2")
        self.readers = [GroupReader(self, n) for n in range(self.scene.readers)]
        self.after(SAMPLE_S, self._sample)

    @property
    def now(self) -> float:
        return self.scheduler.now

    # -- actions

    def leave(
        self, *instances: str, timeout_s: float = 60.0, cancel: bool = False,
        swap_to: str | None = None,
    ) -> Tool:  # fmt: skip
        self.tools.append(Tool(self, instances, timeout_s, cancel=cancel, swap_to=swap_to))
        return self.tools[-1]

    def cancelled(self, name: str) -> bool:
        """Return whether the leave of an instance was cancelled for good.

        The answer is False if another tool may have had the last word.
        """
        tools = [tool for tool in self.tools if name in tool.instances]
        back = [tool for tool in tools if tool.cancel and tool.code == 0]
        return any(not any(other.outdoes(tool) for other in tools) for tool in back)

    def point(self, name: str) -> None:
        """Kill the running worker if `name` is the point where the next worker dies.

        Workers call this at each of `streamsx.tasks.crash_points`.

        Raises:
            Killed: The worker died here.
        """
        current = self.scheduler.running
        if name == self.fenced_at and current is not None:
            self._fence(name)
        if name != self.dies_at or current is None:
            return
        for home in self.homes:
            if home.alive and home.process is current.process:
                self.dies_at = ""
                home.say(f"dies at {name}")
                home.kill()
                if not self.healed:
                    self.after(1.0, home.start)
                raise Killed

    def _fence(self, name: str) -> None:
        """Fence the running worker, and stop it until that has been done.

        A worker that has been fenced too often ends, so another one is waited for then.
        """
        running = self.scheduler.running
        for home in self.homes:
            producer = None if home.parts is None else home.parts.producer
            here = home.alive and running is not None and home.process is running.process
            if not (here and isinstance(producer, TransactionalProducer)):
                continue
            fenced = producer.open_transaction.transactional_id
            times = [fence.at for fence in self.fences if fence.transactional_id == fenced]
            if sum(self.now - at < FENCES_S for at in times) + 1 < FENCES_MAX:
                home.say(f"is fenced at {name}")
                self.fenced_at = ""
                home.freeze(FENCE_S)
                self.fences.append(Fence(self, fenced))

    # -- reports

    def hear(self, event: str, *told: Any) -> None:
        """Report an event to all checks."""
        if event == "asked":
            self._counted_in = self.group or self._counted_in
        for check in self.checks:
            getattr(check, event)(*told)

    def journaled(self, home: SimulatedHost, event: str, fields: dict[str, object]) -> None:
        if event == "task" and fields["to"] == "running" and self.belongs(home):
            number, _, partition = str(fields["task"]).partition("_")
            task = home.named(TaskId(int(number), int(partition)))
            self.runner[task] = home.process.name
            self.hear("begins", home, task)
        self.hear("said", home, event, fields)
        if event not in QUIET:
            told = {name: value for name, value in fields.items() if name != "pid"}
            home.say(f"{event} {told}")

    def ended(self, home: SimulatedHost, outcome: int | Exception) -> None:
        self.hear("ended", home, outcome)
        if self.faults is not None:
            self.faults.over(home)

    def _sample(self) -> None:
        self.hear("sample")
        self.after(SAMPLE_S, self._sample)

    def excuse(self, name: str) -> None:
        """Count an invariant that does not hold, under the name of the reason."""
        self.excused[name] += 1

    # -- the true state

    @property
    def serves(self) -> bool:
        """Return whether the broker runs and is not frozen."""
        process = self.nodes.process
        return self.nodes.service is not None and not process.frozen

    @property
    def group(self) -> ClassicGroup | None:
        service = self.nodes.service
        machine = None if service is None else service.groups.machine
        group = None if machine is None else machine.groups.get(APP)
        return group if isinstance(group, ClassicGroup) else None

    def belongs(self, home: SimulatedHost) -> bool:
        """Return whether the coordinator has the worker in the group.

        While there is no coordinator, the group of the last one decides.
        """
        group = self.group or self._counted_in
        member = home.member
        return group is not None and member is not None and member.member_id in group.round.members

    def renumbered(self, task: TaskId) -> TaskId:
        """Return the id in this version of the app for a task of the version before.

        Each sub-topology of the version before is in this version too.
        """
        topic = self._topics_before[task.subtopology][0]
        return TaskId(self.numbers[topic], task.partition)

    def tasks(self) -> list[TaskId]:
        return [
            TaskId(number, partition)
            for number, topics in self._topics.items()
            for partition in range(max(map(self.nodes.partitions, topics)))
        ]

    def partitions(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, n) for n in range(self.nodes.partitions(topic))]

    def log(self, tp: TopicPartition) -> Log | None:
        """Return the log of a partition.

        Returns:
            None while no client could read the log: the broker is gone, or the log out of service.
        """
        service = self.nodes.service
        topic = None if service is None else service.topics.by_name.get(tp.topic)
        log = None if topic is None else topic.logs[tp.partition]
        return None if log is None or log.failed else log

    def end(self, tp: TopicPartition) -> int:
        log = self.log(tp)
        return 0 if log is None else log.last_stable_offset

    def records(
        self, tp: TopicPartition, start: int, end: int
    ) -> Iterator[tuple[int, bytes | None, bytes | None]]:
        """Yield offset, key and value of each record, without aborted ones."""
        return ((offset, key, value) for offset, key, value, _ in self._rows(tp, start, end))

    def timed(self, tp: TopicPartition) -> Iterator[tuple[bytes | None, bytes | None, int]]:
        """Yield key, value and timestamp in ms of each record, without aborted ones."""
        return ((key, value, at) for _, key, value, at in self._rows(tp, 0, self.end(tp)))

    def _rows(
        self, tp: TopicPartition, start: int, end: int
    ) -> Iterator[tuple[int, bytes | None, bytes | None, int]]:
        if (log := self.log(tp)) is None:
            return
        at = max(start, log.start)
        while at < end:
            data = log.read(at, READ_BYTES)
            batch = columns(data, at, aborted=log.aborted(at, data))
            if batch.next_offset == at:
                return
            rows = zip(batch.offsets, batch.keys, batch.values, batch.timestamps, strict=True)
            yield from (row for row in rows if row[0] < end)
            at = batch.next_offset

    def record(self, tp: TopicPartition, offset: int) -> bytes | None:
        """Return the value of a record, or None if the record is gone."""
        return next((value for _, _, value in self.records(tp, offset, offset + 1)), None)

    def newest(self, tp: TopicPartition, end: int) -> dict[bytes, bytes]:
        """Return the newest value of each key of a changelog up to an offset; skip deleted keys."""
        rows = {key: value for _, key, value in self.records(tp, 0, end)}
        return {key: value for key, value in rows.items() if key is not None and value is not None}

    def counts(self, changelog: str) -> Counter[str]:
        found = Counter[str]()
        for tp in self.partitions(changelog):
            for key, value in self.newest(tp, self.end(tp)).items():
                found[json.loads(key)] = json.loads(value)
        return found

    # -- the run

    def run(self) -> None:
        """Run the faults, then the calm, and check the end.

        Healing and the end of the input are events of their own, because a turn may be in the
        middle of its time then. Seed 81461: the broker is frozen in a turn, again and again before
        the turn goes on; the faults would end only with that turn, 39 s late.

        Raises:
            Violation: An invariant was broken.
        """
        self.at(FAULTS_S, self.heal)
        self.at(FAULTS_S + CALM_S, setattr, self.client, "feeding", False)
        # Each rebalance may wait for callbacks, and eager members go through several in a row
        # (seed 101297: seven of 6 s when the last worker was back, 29 s after the faults). In each
        # one the member that asks for the rebalance waits for its own callback, and then for those
        # of the others (seed 1008: six learners, 10 s each).
        callbacks = 1 if self.scene.eager == "none" else 2
        rounds_s = ROUNDS * callbacks * self.scene.slow_revoke_s
        # A moody body waits 18 ms for each word, one word after the other (seed 81461: 1,300 words
        # of a partition, and brokers that are frozen for 28 of the 55 s before).
        words_s = MOODY_S if self.scene.moody else 0.0
        self.run_until(FAULTS_S + CALM_S + SETTLE_S + rounds_s + words_s)
        self.settle()

    def heal(self) -> None:
        self.healed = True
        self.say("faults", "heal")
        if self.faults is not None:
            self.faults.heal()

    def settle(self) -> None:
        """Check the end of the run.

        Raises:
            Violation: An invariant was broken.
        """
        for check in self.checks:
            check.settled()
            self.run_until(self.now)

    def run_until(self, end: float) -> None:
        self.scheduler.run_until(end)


def subtopologies(scene: Scene) -> tuple[dict[str, int], dict[int, tuple[str, ...]]]:
    """Return the sub-topology of each source topic of the app, and the topics of each."""
    topology = app_of(scene, lambda *_: None, random.Random(0)).topology()
    topics = {plan.number: plan.topics for plan in topology.subtopologies}
    return {topic: number for number, some in topics.items() for topic in some}, topics


def stores_of(scene: Scene) -> dict[str, StoreNode]:
    """Return the stores of the app, by the names of their changelogs."""
    topology = app_of(scene, lambda *_: None, random.Random(0)).topology()
    nodes = [node for plan in topology.subtopologies for node in plan.stores]
    return {node.changelog: node for node in nodes}


class _StoryHandler(logging.Handler):
    """Log handler that adds the product's log lines to the story, and not to the digest.

    An error that the broker logs is a violation, even if the broker goes on.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler

    def emit(self, record: logging.LogRecord) -> None:
        current = self._scheduler.running
        who = "" if current is None else current.name
        told = f"log {record.levelname} {record.getMessage()}"
        self._scheduler.trace.append((self._scheduler.now, who, told))
        ours = record.name.startswith(BROKER_LOG) and PLANTED not in told
        if ours and record.levelno >= logging.ERROR:
            self._scheduler.violate("BrokerFails", told)


@contextlib.contextmanager
def world(
    seed: int, scene: Scene | None = None, *, logs: bool = False, without: Without = frozenset()
) -> Iterator[World]:
    """Make a world in a folder of its own, and remove the folder afterwards.

    State that a process has once is set for as long as the world lasts: `crash_points.point`,
    logging, and the garbage collector, which is off: finalizers would run at random times.
    """
    with contextlib.ExitStack() as stack:
        for redirect in (contextlib.redirect_stdout, contextlib.redirect_stderr):
            stack.enter_context(redirect(io.StringIO()))
        at = MEMORY if MEMORY.is_dir() else None
        folder = tempfile.TemporaryDirectory(dir=at, ignore_cleanup_errors=True)
        made = World(seed, Path(stack.enter_context(folder)), scene, without)
        stack.callback(setattr, points, "point", points.point)
        points.point = made.point
        if made.scene.sync or made.scene.unsynced:
            stack.enter_context(made.nodes.disk.watching())
        logger = logging.getLogger("streamsx")
        handler = _StoryHandler(made.scheduler)
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.INFO if logs else logging.ERROR)
        stack.callback(setattr, logger, "propagate", logger.propagate)
        logger.propagate = False
        stack.callback(logger.removeHandler, handler)
        logger.addHandler(handler)
        stack.callback(gc.enable)
        gc.disable()
        stack.callback(_end, made)
        yield made


def _end(made: World) -> None:
    """Tear down the coroutines of killed processes, and ignore their warnings."""
    made.dies_at = ""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # coroutines never awaited, files never closed
        made.scheduler.close()
        for part in (made.scheduler, made.network, *made.homes, made):
            vars(part).clear()  # a traceback may hold one: keep nothing else alive
        gc.collect()
    sys.unraisablehook = hook


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of a seed.

    `surplus`: words counted more than once; `cpu_s`: CPU time of this process in seconds; `turns`:
    turns of all threads; `struck`: faults that were due.
    """

    seed: int
    digest: str
    violation: Violation | None
    virtual_s: float
    cpu_s: float
    surplus: int
    excused: Counter[str]
    met: Counter[str]
    story: tuple[str, ...]
    turns: int
    struck: int


def play(
    seed: int, *, story: int = 40, logs: bool = False, without: Without = frozenset()
) -> Result:
    """Play one seed. `story`: number of its last lines to keep; `logs`: include log lines."""
    began = process_time()
    violation = None
    with world(seed, logs=logs, without=without) as made:
        try:
            made.run()
        except Violation as wrong:
            violation = wrong
        told = made.scheduler.trace[-story:] if story else []
        lines = tuple(f"{at:9.3f} {who:12} {what}" for at, who, what in told)
        cpu_s = process_time() - began
        digest = made.scheduler.digest
        return Result(
            seed,
            digest,
            violation,
            made.now,
            cpu_s,
            made.surplus,
            made.excused,
            made.met,
            lines,
            made.scheduler.turns,
            made.faults.struck if made.faults else 0,
        )
