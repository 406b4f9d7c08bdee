"""The real worker, the real `leave` tool and the real broker in virtual time, drawn from a seed.

Who acts are the product's own shells, on a loop per simulated thread (`process`) and a network
of memory (`network`). Here are only what is around them: the broker behind its addresses (`nodes`),
machines with disks (`homes`, `disk`), an app (`apps`), a client and the tool (`clients`), what goes
wrong (`faults`), what must hold (`checks`).

One number draws everything; each concern has its own stream of random numbers, so that a new draw
in one changes no other. One seed is one story, in every process and under every PYTHONHASHSEED.

Phases: FAULTS_S of faults; then everything heals, and the dead come back; CALM_S later the input
ends, and after SETTLE_S the group must be whole and have done everything.

Legend of a story: time, who (w1.2/data: the data loop of worker 1 in its second life, broker,
tool1), and what it said or met.
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
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.record_batch import columns
from streamsx.simulation.apps import app_of
from streamsx.simulation.checks import CHECKS, Check
from streamsx.simulation.clients import Client, Tool
from streamsx.simulation.external_clients import GroupReader, Upstream
from streamsx.simulation.faults import Faults
from streamsx.simulation.hosts import SimulatedHost
from streamsx.simulation.network import Network
from streamsx.simulation.nodes import Nodes
from streamsx.simulation.scene import APP, Scene, draw
from streamsx.simulation.scheduler import Killed, Scheduler, Violation
from streamsx.simulation.shrink import Without
from streamsx.tasks import crash_points as points

FAULTS_S = 45.0
CALM_S = 10.0
SETTLE_S = 38.0
ROUNDS = 8
SAMPLE_S = 0.25
MEMORY = Path("/dev/shm")  # noqa: S108  # a file system in memory, where there is one
PLANTED = os.strerror(errno.EIO)
"""Of `power`: a disk that fails is no fault of the broker's."""
READ_BYTES = 1 << 20
BROKER_LOG = "streamsx.broker"
QUIET = frozenset({"commit", "gap", "calm_gap", "restore_progress", "metrics", "plan"})
"""Of the journal, not in the story."""


class World:
    """One seed. With a `scene` of one's own nothing goes wrong but what is done by hand (`at`)."""

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
        """Committed, as the broker has said so."""
        self.reached: dict[tuple[str, TopicPartition], int] = {}
        """Position of each agent, as that was committed with them."""
        self.runner: dict[TaskId, str] = {}
        """The process in which a task has begun to run last."""
        self.tools: list[Tool] = []
        self.dies_at = ""
        self.healed = False
        self.surplus = 0
        self.nodes = Nodes(self, folder / "broker")
        self.client = Client(self)
        self.homes = [SimulatedHost(self, n, folder) for n in range(self.scene.workers)]
        self.numbers, self._topics = subtopologies(self.scene)
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

    # -- what is done to it

    def leave(
        self, *instances: str, timeout_s: float = 60.0, cancel: bool = False,
        swap_to: str | None = None,
    ) -> Tool:  # fmt: skip
        self.tools.append(Tool(self, instances, timeout_s, cancel=cancel, swap_to=swap_to))
        return self.tools[-1]

    def cancelled(self, name: str) -> bool:
        """Its leave was, and no other tool may have had the last word."""
        tools = [tool for tool in self.tools if name in tool.instances]
        back = [tool for tool in tools if tool.cancel and tool.code == 0]
        return any(not any(other.outdoes(tool) for other in tools) for tool in back)

    def point(self, name: str) -> None:
        """A worker has reached one of `streamsx.tasks.crash_points`."""
        current = self.scheduler.running
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

    # -- what is heard of it

    def hear(self, event: str, *told: Any) -> None:
        """All checks are told."""
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
        """An invariant does not hold, for a reason that has a name."""
        self.excused[name] += 1

    # -- the truth

    @property
    def serves(self) -> bool:
        """The broker is there, and awake."""
        process = self.nodes.process
        return self.nodes.service is not None and not process.frozen

    @property
    def group(self) -> ClassicGroup | None:
        service = self.nodes.service
        machine = None if service is None else service.groups.machine
        group = None if machine is None else machine.groups.get(APP)
        return group if isinstance(group, ClassicGroup) else None

    def belongs(self, home: SimulatedHost) -> bool:
        """The coordinator has it in the group; while none is there, as the last one had."""
        group = self.group or self._counted_in
        member = home.member
        return group is not None and member is not None and member.member_id in group.round.members

    def renumbered(self, task: TaskId) -> TaskId:
        """Of the version before; it has no sub-topology that this one has not."""
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
        """None where nobody could read it: while the broker is gone, or the log out of service."""
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
        """Offset, key, value; without what was aborted."""
        if (log := self.log(tp)) is None:
            return
        at = max(start, log.start)
        while at < end:
            data = log.read(at, READ_BYTES)
            batch = columns(data, at, aborted=log.aborted(at, data))
            if batch.next_offset == at:
                return
            for offset, key, value in zip(batch.offsets, batch.keys, batch.values, strict=True):
                if offset < end:
                    yield offset, key, value
            at = batch.next_offset

    def record(self, tp: TopicPartition, offset: int) -> bytes | None:
        """Its value; None if it is gone."""
        return next((value for _, _, value in self.records(tp, offset, offset + 1)), None)

    def newest(self, tp: TopicPartition, end: int) -> dict[bytes, bytes]:
        """Of each key of a changelog, up to an offset."""
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
        """Faults, then peace. Raises Violation.

        Events of their own, for a turn may be in the middle of its time then. "A broker is stopped
        in a turn, again and again before it goes on; the faults of which that is one end when its
        turn does" (seed 81461, 39 s late).
        """
        self.at(FAULTS_S, self.heal)
        self.at(FAULTS_S + CALM_S, setattr, self.client, "feeding", False)
        # Each may wait for callbacks, and eager members go through several, one behind the other
        # (101297: seven of 6 s when the last one was back, 29 s behind the faults). In each the one
        # who asks for it waits for its own, and then for theirs (1008: six learners, 10 s each).
        callbacks = 1 if self.scene.eager == "none" else 2
        rounds_s = ROUNDS * callbacks * self.scene.slow_revoke_s
        self.run_until(FAULTS_S + CALM_S + SETTLE_S + rounds_s)
        self.settle()

    def heal(self) -> None:
        self.healed = True
        self.say("faults", "heal")
        if self.faults is not None:
            self.faults.heal()

    def settle(self) -> None:
        """What must hold at the end. Raises Violation."""
        for check in self.checks:
            check.settled()
            self.run_until(self.now)

    def run_until(self, end: float) -> None:
        self.scheduler.run_until(end)


def subtopologies(scene: Scene) -> tuple[dict[str, int], dict[int, tuple[str, ...]]]:
    """Of the app: the number of each source topic, and the topics of each number."""
    topology = app_of(scene, lambda *_: None, random.Random(0)).topology()
    topics = {plan.number: plan.topics for plan in topology.subtopologies}
    return {topic: number for number, some in topics.items() for topic in some}, topics


class _Told(logging.Handler):
    """What the product logs, into the story and not into the digest.

    A broker that says that it has failed, and goes on, has failed.
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
    """One to run, in a folder of its own; nothing of it is left behind.

    What a process has once (`engine.faults.point`, logging, the garbage collector, whose
    finalizers would come at other times each time) is set for as long as it lasts.
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
        handler = _Told(made.scheduler)
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
    """Coroutines of processes that were killed are torn down; what they say of it is not heard."""
    made.dies_at = ""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # never awaited, never closed
        made.scheduler.close()
        for part in (made.scheduler, made.network, *made.homes, made):
            vars(part).clear()  # whoever holds one, as a traceback does, holds nothing else
        gc.collect()
    sys.unraisablehook = hook


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a seed. `surplus`: words counted more than once; `cpu_s`: of this process;
    `turns`: of all threads; `struck`: faults that were due.
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
    """One seed. `story`: so many of its last lines are kept; with `logs` also what was logged."""
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
