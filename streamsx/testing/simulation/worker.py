"""A worker of a world: a control thread with its member, a data loop with its tasks, a directory.

This is the seat of its member: it says what it holds, plans as the leader, reads what is assigned,
and tells its data loop, which hears of it late.

Not here: the data loop (dataloop.py); what may go wrong, and what must hold.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from streamsx.assignor.model import Copy, CopyRole, Leaving, MarkState
from streamsx.assignor.partition_assignor import Outcome, Report, StreamsPartitionAssignor
from streamsx.assignor.wire import AssignmentView, ErrorWord
from streamsx.kafka.consumer_protocol import Assignment, Subscription
from streamsx.lifecycle import reconcile as r
from streamsx.lifecycle import restore as s
from streamsx.lifecycle.task import State
from streamsx.membership import events as e
from streamsx.membership.member import Member
from streamsx.model import Role, TaskId
from streamsx.testing.simulation.control import Control
from streamsx.testing.simulation.dataloop import Cell, DataLoop, Store
from streamsx.testing.simulation.heap import Heap, Life, Thread
from streamsx.testing.simulation.network import Network
from streamsx.testing.simulation.scene import SUBTOPOLOGIES, Scene


@dataclass(slots=True)
class Directory:
    """What a process leaves to the next one in its state directory."""

    name: str
    member_id: str | None = None
    stores: dict[TaskId, Store] = field(default_factory=dict)
    lives: int = 0


class Witness(Protocol):
    """Who is told what only a worker knows."""

    def plans(self, outcome: Outcome) -> None: ...
    def runs(self, worker: "Worker", cell: Cell) -> None: ...
    def ends(self, worker: "Worker") -> None: ...
    def over(self, worker: "Worker", *, clean: bool) -> None: ...


class Worker:
    """One process."""

    def __init__(
        self,
        heap: Heap,
        network: Network,
        scene: Scene,
        directory: Directory,
        member: Member,
        assignor: Callable[..., StreamsPartitionAssignor],
        witness: Witness,
    ) -> None:
        self.heap, self.network, self.scene, self.directory = heap, network, scene, directory
        self.witness = witness
        name = f"{directory.name}.{directory.lives}"
        directory.lives += 1
        self.life, self.data = Life(name), Life(f"{name}/data")
        self.member = member
        self.control = Control(heap, network, self.life, member, self)
        self.thread = Thread(heap, self.data, scene.hop_s)
        self.loop = DataLoop(network, scene, self.thread, directory.stores, self)
        self.assignor = assignor(
            subtopologies=SUBTOPOLOGIES,
            rules=scene.rules,
            process=directory.name.encode().ljust(16),
            instance=directory.name,
            version="",
        )
        self._fresh, self._view = True, AssignmentView()

    def start(self) -> None:
        predecessor, self.directory.member_id = self.directory.member_id, None
        self.control.feed(e.Start(predecessor))
        self.loop.turn()

    def kill(self) -> None:
        self.life.over = self.data.over = True
        self.network.end(self.life)
        self.directory.stores |= {task: cell.store for task, cell in self.loop.cells.items()}
        self.witness.ends(self)

    @property
    def works(self) -> bool:
        """It processes what it runs; what it has been told it hears first."""
        frozen = self.life.frozen_until > self.heap.now or not self.thread.listens
        return not (frozen or self.life.over or self.stands)

    # What the data loop asks of the control thread.

    @property
    def stands(self) -> bool:
        """Without a lease nothing is processed and nothing is sent."""
        return self.heap.now >= self.member.lease.until

    def post(self, event: e.Event) -> None:
        """A data loop that is held up on the way says later what it knew before."""
        what = type(event).__name__
        self.heap.after(self.scene.hop_s, self.data, what, event, partial(self.control.feed, event))

    def fetch_positions(self, task: TaskId, told: Callable[[int], None]) -> None:
        """Of its one source; 0 for none."""
        (tp,) = self.assignor.partitions_of(task, self.scene.partitions)

        def came(offset: int) -> None:
            self.thread.tell("positions", (task, offset), lambda: told(max(0, offset)))

        def ask() -> None:
            self.control.fetch_offsets((tp,), lambda offsets: came(offsets[tp]))

        self.heap.after(self.scene.hop_s, self.life, "fetch positions", task, ask)

    def runs(self, cell: Cell) -> None:
        self.witness.runs(self, cell)

    # The member's seat.

    def subscription(self, join: e.JoinGroup) -> bytes:
        deadline_ms = None if join.deadline is None else int(join.deadline * 1000)
        report = Report(
            nonce=join.nonce,
            claims=frozenset(join.claims),
            copies=self._copies(),
            leaving=Leaving(deadline_ms) if join.leaving else None,
            fresh=self._fresh,
        )
        topics = tuple(topic for sub in SUBTOPOLOGIES for topic in sub.topics)
        user_data = self.assignor.user_data(report)
        return Subscription(topics, user_data, join.claims, join.owned_generation).write()

    def _copies(self) -> Mapping[TaskId, Copy]:
        held = self.loop.holdings
        dormant = {t: Copy(CopyRole.DORMANT) for t in self.directory.stores if t not in held}
        return dormant | {task: self._copy(task, held) for task in held.tasks()}

    def _copy(self, task: TaskId, held: r.Holdings) -> Copy:
        life, restore = held.of(task), self.loop.cells[task].restore
        known = restore is not None and restore.state is not s.State.OPENING
        lag = restore.lag if restore is not None and known else None
        if life.state in (State.RUNNING, State.SUSPENDED):
            return Copy(CopyRole.RUNNING, 0)
        if life.state is State.CLOSING:
            return Copy(CopyRole.DORMANT, lag)
        if life.role is Role.ACTIVE:
            return Copy(CopyRole.RESTORING, lag)
        near = life.state is State.TAILING and lag is not None
        limit = self.scene.rules.acceptable_recovery_lag
        return Copy(CopyRole.LEARNER, min(lag or 0, limit) if near else lag)

    def plan(self, assign: e.Assign) -> e.Planned:
        outcome = self.assignor.assign(
            [(m.member_id, m.metadata) for m in assign.members],
            self.scene.partitions,
            leader=assign.member_id,
            generation=assign.generation,
            now_ms=int(self.heap.now * 1000),
        )
        self.witness.plans(outcome)
        error = None if outcome.error is ErrorWord.NONE else outcome.error.name
        evictions = tuple(e.Eviction(x.member, x.at_ms / 1000) for x in outcome.evictions)
        assignments = tuple(sorted(outcome.assignments.items()))
        return e.Planned(assign.request, assignments, error, evictions)

    def read(self, assignment: bytes) -> e.Synced:
        told = Assignment.read(assignment)
        self._view = view = self.assignor.on_assignment(told.user_data)
        self._fresh, mark = False, None
        if view.mark is not None:
            ends_ms = view.mark.deadline_ms
            deadline = None if ends_ms is None else ends_ms / 1000
            mark = e.Mark(view.mark.state is MarkState.LEAVING, deadline, view.mark.epoch_ms)
        tps = frozenset(told.partitions)
        return e.Synced(tps, told.user_data, view.more, view.no_takers, mark)

    def hear(self, effect: e.Effect) -> None:
        tasks_of = self.assignor.tasks_of
        match effect:
            case e.Remember(member_id):
                self.directory.member_id = member_id
            case e.Left() | e.Fatal():
                self._over(clean=isinstance(effect, e.Left))
            case e.OnAssignment(generation, _, assigned, learns):
                view, active = self._view, tasks_of(assigned)
                new = (view.learners - active, view.promises - active)
                plan = r.Planned(active, *(new if learns else (frozenset(), frozenset())))
                self._tell(plan, partial(self.loop.take_in, generation, plan))
            case e.Assigned(tps):
                self._tell_event(r.Assigned(tasks_of(tps)))
            case e.Revoke(tps, number):
                self._tell_event(r.Revoked(tasks_of(tps), number))
            case e.Lost(tps):
                self._tell_event(r.Lost(tasks_of(tps)))
            case e.CommitDone(number, dropped):
                self._tell(effect, partial(self.loop.committed, number, tasks_of(dropped)))
            case e.CommitFailed(number):
                self._tell(effect, partial(self.loop.committed, number, None))

    def _tell_event(self, event: r.Event) -> None:
        self._tell(event, partial(self.loop.hold, event))

    def _tell(self, about: object, call: Callable[[], None]) -> None:
        self.thread.tell("hears", about, call)

    def _over(self, *, clean: bool) -> None:
        if clean:
            self.directory.member_id = None
        self.kill()
        self.witness.over(self, clean=clean)
