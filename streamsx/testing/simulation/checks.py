"""What must hold in a world: after every event, of every plan, whenever a task begins to run, and
at the end.

Each check is a small class with its reason; what is wrong it returns in a sentence. It reads the
truth, of all processes at once, which no process knows.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from streamsx.assignor.partition_assignor import Outcome
from streamsx.assignor.wire import ErrorWord
from streamsx.broker import events as b
from streamsx.broker.classic import State as GroupState
from streamsx.broker.records import GroupKey, GroupValue, OffsetKey, OffsetValue
from streamsx.lifecycle.task import State
from streamsx.membership import member
from streamsx.model import Role, TopicPartition
from streamsx.testing.simulation.dataloop import KEYS, Cell, changelog, counted, key_of, output
from streamsx.testing.simulation.node import GROUP, Produce
from streamsx.testing.simulation.scene import SESSION_S, source, stateful
from streamsx.testing.simulation.worker import Worker

if TYPE_CHECKING:
    from streamsx.testing.simulation.world import World


class Check(Protocol):
    """What each method returns is wrong."""

    def after(self) -> str | None:
        """After every event."""
        return None

    def plans(self, outcome: Outcome) -> str | None:
        """A leader has planned."""
        return None

    def runs(self, worker: Worker, cell: Cell) -> str | None:
        """A task is about to run."""
        return None

    def settled(self) -> str | None:
        """At the end."""
        return None


def belongs(world: "World", worker: Worker) -> bool:
    """The coordinator has it in the group."""
    group = world.node.machine.groups.get(GROUP)
    return group is not None and worker.member.member_id in group.round.members


def recorded(world: "World", worker: Worker) -> bool:
    """The coordinator would have it in the group after a crash."""
    row = world.node.disk.get(GroupKey(GROUP))
    members = row.members if isinstance(row, GroupValue) else ()
    return any(m.member_id == worker.member.member_id for m in members)


class OneRunner(Check):
    """S1. Two runners of one task write to one changelog: whoever restores from it finds neither.

    One that the coordinator does not count in may still run until it hears of it, or its lease
    ends: its commits are refused.
    """

    def __init__(self, world: "World") -> None:
        self.world = world

    def after(self) -> str | None:
        runs = [worker.loop.running for worker in self.world.alive]
        if sum(map(len, runs)) == len(set().union(*runs)):
            return None
        workers = [w for w in self.world.alive if w.works and belongs(self.world, w)]
        for task in sorted(set().union(*runs)):
            runners = [worker.life.name for worker in workers if task in worker.loop.running]
            if len(runners) > 1:
                return f"{task} runs on {' and '.join(runners)}"
        return None


class NobodyOutlivesItsSession(Check):
    """S1. Who runs on after its session has ended writes rows behind the new owner's back."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.sessions: dict[str, float] = {}
        self.expired: set[str] = set()
        world.node.watch_events.append(self.watch)

    def watch(self, event: b.Event) -> None:
        group = self.world.node.machine.groups.get(GROUP)
        members = group.round.members if group else {}
        if isinstance(event, b.Tick):
            ended = {m for m, at in self.sessions.items() if at <= self.world.heap.now}
            self.expired |= ended
        self.expired -= members.keys()  # a crash before the next generation brings one back
        self.sessions = {m.id: m.session_at for m in members.values() if not m.parked}

    def after(self) -> str | None:
        if not self.expired:
            return None
        for worker in self.world.alive:
            member_id = worker.member.member_id
            if member_id in self.expired and worker.loop.running and worker.works:
                return f"{worker.life.name} runs tasks, its session as {member_id} has ended"
        return None


class OnlyItsRunnerCommits(Check):
    """S2. A commit of an earlier owner makes the next one lose or repeat what the last one did."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.runner: dict[TopicPartition, str] = {}
        self.offsets: dict[TopicPartition, int] = {}
        self.wrong: str | None = None
        world.node.watch_writes.append(self.watch)

    def watch(self, write: b.Persist) -> None:
        for key, value in write.puts:
            if isinstance(key, OffsetKey) and isinstance(value, OffsetValue):
                self._committed(TopicPartition(key.topic, key.partition), value.offset)

    def _committed(self, tp: TopicPartition, offset: int) -> None:
        host, runner = self.world.node.host, self.runner.get(tp)
        if offset < self.offsets.get(tp, 0):
            self.wrong = f"{host} sets {tp} back from {self.offsets[tp]} to {offset}"
        if host != runner:
            self.wrong = f"{host} commits {tp}, which {runner} runs"
        self.offsets[tp] = offset

    def runs(self, worker: Worker, cell: Cell) -> str | None:
        tp = source(cell.task)
        self.runner[tp] = worker.life.name
        if cell.committed != self.offsets.get(tp, 0):
            return f"{worker.life.name} runs {tp} from {cell.committed}, not {self.offsets.get(tp)}"
        return None

    def after(self) -> str | None:
        return self.wrong


class RestoredBeforeItRuns(Check):
    """S3. A store that lacks what was committed counts wrong for ever.

    Its rows equal the changelog up to the end that was read, at least; nobody who owns the task has
    written behind that end; and all that is committed shows. Not where somebody wrote who did not
    own the task any more: at least once, such rows can win over newer ones.
    """

    def __init__(self, world: "World") -> None:
        self.world = world
        self.writes: dict[TopicPartition, list[tuple[str, int]]] = {}
        self.spoiled: set[TopicPartition] = set()
        self.sources = {changelog(t): source(t) for t in world.scene.tasks() if stateful(t)}
        world.node.watch_logs.append(self.watch)

    def watch(self, produce: Produce) -> None:
        host = self.world.node.host
        writer = next((w for w in self.world.workers if w.life.name == host), None)
        for log, rows in produce.rows:
            if log not in self.sources:
                continue
            tp = self.sources[log]
            owns = writer is not None and belongs(self.world, writer)
            if writer is None or not owns or tp not in writer.member.claims.owned:
                self.spoiled.add(log)
            else:
                end = len(self.world.node.logs[log])
                self.writes.setdefault(log, []).append((host, end - len(rows)))

    def runs(self, worker: Worker, cell: Cell) -> str | None:
        if not stateful(cell.task):
            return None
        log = changelog(cell.task)
        rows = self.world.node.logs[log]
        who = f"{worker.life.name} runs {cell.task}"
        position = cell.store.position or 0
        if position < cell.end:
            return f"{who} at {position} of {cell.end}"
        if log not in self.spoiled and cell.store.rows != dict(rows[:position]):
            return f"{who} with other rows than its changelog has up to {position}"
        for host, start in self.writes.get(log, ()):
            if start >= cell.end and host != worker.life.name:
                return f"{who} up to {cell.end}, {host} has written at {start}"
        lacks = [] if log in self.spoiled else list(lacking(cell))
        return f"{who} from {cell.committed}, its store lacks {lacks}" if lacks else None


def lacking(cell: Cell) -> Iterator[int]:
    """Records before the committed offset that its store has not seen, of the last of each key."""
    for number in range(max(0, cell.committed - KEYS), cell.committed):
        if counted(cell.store.rows.get(key_of(number)))[1] < number:
            yield number


class LegalPlans(Check):
    """S4. The leader verifies its plans itself, and ships none that breaks what it promises."""

    def plans(self, outcome: Outcome) -> str | None:
        failed = outcome.error is ErrorWord.ASSIGNMENT_FAILED
        return "; ".join(outcome.notes) if failed else None


class Whole(Check):
    """L. A group that stays torn when nothing hurts it any more helps nobody."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.generation, self.changed_at = -1, 0.0

    def after(self) -> str | None:
        group = self.world.node.machine.groups.get(GROUP)
        generation = group.round.generation if group else -1
        if generation != self.generation:
            self.generation, self.changed_at = generation, self.world.heap.now
        return None

    def settled(self) -> str | None:
        now, wrong = self.world.heap.now, self._members() + self._tasks()
        if now - self.changed_at < SESSION_S:
            wrong.append(f"the last rebalance was at {self.changed_at:.3f}")
        return "; ".join(wrong) or None

    def _members(self) -> list[str]:
        group = self.world.node.machine.groups.get(GROUP)
        ids = {worker.member.member_id for worker in self.world.alive}
        wrong = []
        if group is None or group.round.state is not GroupState.STABLE:
            wrong.append(f"the group is {group.round.state.value if group else 'not there'}")
        elif group.round.members.keys() != ids:
            wrong.append(f"members {sorted(group.round.members)}, alive {sorted(ids)}")
        for worker in self.world.alive:
            if worker.member.state is not member.State.STABLE:
                wrong.append(f"{worker.life.name} is {worker.member.state.value}")
            if worker.member.leaving:
                wrong.append(f"{worker.life.name} is leaving")
        return wrong

    def _tasks(self) -> list[str]:
        alive, now = self.world.alive, self.world.heap.now
        tasks = list(self.world.scene.tasks())
        runners = {t: [w for w in alive if t in w.loop.running and w.works] for t in tasks}
        wrong = [f"{t} runs on {len(some)}" for t, some in runners.items() if len(some) != 1]
        end = self.world.scene.input_end(now)
        for task, some in runners.items():
            if some and some[0].loop.cells[task].next < end:
                wrong.append(f"{task} is at {some[0].loop.cells[task].next} of {end}")
        for worker in alive:
            held = worker.loop.holdings
            learns = [t for t in held.tasks() if held.of(t).role is Role.LEARNER]
            rest = [t for t in held.tasks() if held.of(t).state is not State.RUNNING]
            if learns or rest:
                wrong.append(f"{worker.life.name} learns {learns}, does not run {rest}")
        return wrong + self._balance(alive)

    def _balance(self, alive: list[Worker]) -> list[str]:
        if self.world.scene.rules.imbalance_percentage or not alive:
            return []
        counts = [sum(map(stateful, worker.loop.running)) for worker in alive]
        return [f"stateful tasks {counts}"] if max(counts) - min(counts) > 1 else []


class NothingIsSkipped(Check):
    """S7. At least once: each input record shows in the output."""

    def __init__(self, world: "World") -> None:
        self.world = world

    def settled(self) -> str | None:
        end = self.world.scene.input_end(self.world.heap.now)
        for task in self.world.scene.tasks():
            said = {int(value) for _, value in self.world.node.logs.get(output(task), ())}
            if missing := sorted(set(range(end)) - said):
                return f"{task} has skipped {missing[:5]} of {end}"
        return None


def checks(world: "World") -> list[Check]:
    return [
        OneRunner(world), NobodyOutlivesItsSession(world), OnlyItsRunnerCommits(world),
        RestoredBeforeItRuns(world), LegalPlans(), Whole(world), NothingIsSkipped(world),
    ]  # fmt: skip
