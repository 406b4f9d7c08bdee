"""A whole group in virtual time: the product's machines on one heap of events, drawn from a seed.

Level 1 of the simulation. Coordinator, Member, StreamsPartitionAssignor and the machines of
lifecycle/ are the product's own; their shells are here: a broker (node.py), a network (network.py),
the two threads of a worker (control.py, worker.py), a tool (tool.py), what goes wrong (faults.py),
what must hold after every event (checks.py).

One number draws everything. Each concern has its own stream of random numbers, so that a new draw
in one does not reshuffle the others, and the heap is ordered by (time, number) alone: one seed is
one story, in every process and under every PYTHONHASHSEED.

Phases: FAULTS_S of faults; then everything heals and some of the dead come back, and within
SETTLE_S the group must be whole again.

Legend of a story: time, who (w1.0: the control thread of worker 1 in its first life, w1.0/data: its
data loop, broker, faults, t1: a tool), what came to it, and about what.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from streamsx.assignor.model import Mark
from streamsx.assignor.partition_assignor import Outcome, StreamsPartitionAssignor
from streamsx.broker.coordinator import Coordinator
from streamsx.errors import Bug
from streamsx.membership.member import Member, MemberConfig
from streamsx.testing.simulation.checks import Check, checks, recorded
from streamsx.testing.simulation.dataloop import Cell, changelog
from streamsx.testing.simulation.faults import Faults
from streamsx.testing.simulation.heap import STORY_TAIL, Heap, Life
from streamsx.testing.simulation.network import Network
from streamsx.testing.simulation.node import Node
from streamsx.testing.simulation.scene import FAULTS_S, SETTLE_S, Scene, draw, stateful
from streamsx.testing.simulation.tool import Tool
from streamsx.testing.simulation.worker import Directory, Worker


class Violation(AssertionError):
    """An invariant does not hold. `at`: virtual seconds."""

    def __init__(self, seed: int, at: float, invariant: str, what: str, tail: str) -> None:
        super().__init__(f"seed {seed} at {at:.3f}: {invariant}: {what}\n{tail}")
        self.seed, self.at, self.invariant = seed, at, invariant


@dataclass(frozen=True, slots=True)
class Parts:
    """The machines of a world. A planted bug replaces one by a faulty child of it."""

    member: Callable[[MemberConfig], Member] = Member
    assignor: Callable[..., StreamsPartitionAssignor] = StreamsPartitionAssignor
    coordinator: Callable[[], Coordinator] = Coordinator


PRODUCT = Parts()
BUG_MAX = 2000
"""Characters of its story."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What became of many seeds."""

    seeds: int
    events: int
    virtual_s: float
    failures: tuple[Violation, ...]


class World:
    """One seed. `keep` keeps the whole story; with a `scene` of one's own nothing goes wrong but
    what is put on the heap by hand."""

    def __init__(
        self,
        seed: int,
        parts: Parts = PRODUCT,
        *,
        scene: Scene | None = None,
        keep: bool = False,
    ) -> None:
        self.seed, self.parts, self.scene = seed, parts, scene or draw(seed)
        self.heap = Heap(keep=keep)
        self.network = Network(self.heap, seed, self.scene.delay_s)
        topics, mutes = self.scene.partitions, self.scene.mutes
        self.node = Node(self.heap, self.network, parts.coordinator, topics, mutes=mutes)
        for task in self.scene.tasks():
            if stateful(task):
                history = [(b"x%d" % n, b"0,-1") for n in range(self.scene.history)]
                self.node.logs[changelog(task)] = history
        self.life = Life("world")
        self.directories: list[Directory] = []
        self.workers: list[Worker] = []
        self.alive: list[Worker] = []
        self.tools: list[Tool] = []
        self.begun: list[tuple[Worker, Cell]] = []
        self.healed = False
        self.checks: list[Check] = checks(self)
        self.faults = Faults(self, quiet=scene is not None)
        for _ in range(self.scene.workers):
            self.add()

    # Processes.

    def add(self) -> None:
        self.directories.append(Directory(f"w{len(self.directories) + 1}"))
        self.begin(self.directories[-1])

    def begin(self, directory: Directory) -> None:
        """Not while another process holds the directory."""
        worker = Worker(
            self.heap, self.network, self.scene, directory, self._member(), self.parts.assignor,
            self,
        )  # fmt: skip
        self.workers.append(worker)
        self.alive.append(worker)
        self.heap.after(0.0, worker.life, "start", None, worker.start)

    def use_tool(self, marks: dict[str, Mark]) -> None:
        name = f"t{len(self.tools) + 1}"
        self.tools.append(Tool(self.heap, self.network, name, self._member(), marks))
        self.heap.after(0.0, self.tools[-1].life, "start", tuple(marks), self.tools[-1].start)

    def _member(self) -> Member:
        count = len(self.workers) + len(self.tools)
        return self.parts.member(self.scene.config(jitter=count % 7 / 7))

    @property
    def dead(self) -> list[Directory]:
        held = {worker.directory.name for worker in self.alive}
        return [directory for directory in self.directories if directory.name not in held]

    # A worker's witness.

    def plans(self, outcome: Outcome) -> None:
        for check in self.checks:
            self._judge(check, check.plans(outcome))

    def runs(self, worker: Worker, cell: Cell) -> None:
        self.begun.append((worker, cell))

    def ends(self, worker: Worker) -> None:
        self.alive.remove(worker)

    def over(self, worker: Worker, *, clean: bool) -> None:
        self.faults.over(worker, clean=clean)

    # The run.

    def run(self) -> None:
        """Faults, then peace. Raises Violation."""
        self.run_until(FAULTS_S)
        self.healed = True
        self.faults.heal()
        self.run_until(FAULTS_S + SETTLE_S)
        for check in self.checks:
            self._judge(check, check.settled())

    def run_until(self, end: float) -> None:
        """Raises Violation, also where a machine was asked for the impossible."""
        try:
            self._run_until(end)
        except Bug as bug:
            raise self._violation(type(bug).__name__, str(bug)[:BUG_MAX]) from bug

    def _run_until(self, end: float) -> None:
        watching = [check for check in self.checks if type(check).after is not Check.after]
        while self.heap.step(end):
            for check in watching:
                if (wrong := check.after()) is not None:
                    self._judge(check, wrong)
            while self.begun:
                self._begin_to_run(*self.begun.pop())

    def _begin_to_run(self, worker: Worker, cell: Cell) -> None:
        """Unless it has heard in the same breath that it must not. What a zombie begins says
        nothing: its commits are refused."""
        begins = cell.task in worker.loop.running and worker.loop.cells[cell.task] is cell
        for check in self.checks if begins and recorded(self, worker) else ():
            self._judge(check, check.runs(worker, cell))

    def _judge(self, check: Check, wrong: str | None) -> None:
        if wrong is not None:
            raise self._violation(type(check).__name__, wrong)

    def _violation(self, invariant: str, what: str) -> Violation:
        tail = "\n".join(map(str, list(self.heap.story)[-STORY_TAIL:]))
        return Violation(self.seed, self.heap.now, invariant, what, tail)


def story(seed: int, parts: Parts = PRODUCT) -> tuple[list[str], Violation | None]:
    """One line per event of this seed, and how it ended."""
    world = World(seed, parts, keep=True)
    violation = None
    try:
        world.run()
    except Violation as wrong:
        violation = wrong
    return [str(line) for line in world.heap.story], violation


def survey(seeds: Iterable[int], parts: Parts = PRODUCT) -> Survey:
    """Many seeds, one after another."""
    count, events, virtual_s, failures = 0, 0, 0.0, list[Violation]()
    for seed in seeds:
        world = World(seed, parts)
        try:
            world.run()
        except Violation as violation:
            failures.append(violation)
        count, events, virtual_s = count + 1, events + world.heap.events, virtual_s + world.heap.now
    return Survey(count, events, virtual_s, tuple(failures))
