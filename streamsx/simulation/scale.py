"""Capacity planning: the time that a group is out of balance when it grows or shrinks.

The assignor of the product decides, round after round, in virtual time. Members are only what the
assignor sees of them: their claims, and the lag of their copies. Every task has state. A copy is
restored in `restore_s`, beside others of its worker or one after another. A rebalance takes
`REBALANCE_S` (ASSIGNOR.md 10). Standbys, if the rules ask for some, exist at the beginning. At the
end not all need be restored: no rebalance waits for them.

Not here: workers, brokers and faults (`simulation/world`), and clocks: this module only decides.
"""

import heapq
from dataclasses import dataclass, field, replace
from typing import Final

from streamsx.assignor.assign import assign
from streamsx.assignor.model import (
    RUNNING,
    Copy,
    CopyRole,
    Group,
    LeaveRequest,
    MemberMetadata,
    Memory,
    Plan,
    PlannedTask,
    Rules,
)
from streamsx.model import TaskId, TopicPartition

REBALANCE_S: Final = 0.05
"""Measured seconds of a rebalance in a busy group; one at rest begins within 3 s (heartbeats)."""
FAR: Final = 1_000_000
"""Lag in records of a copy until it is restored."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Change of a balanced group: `add` workers join and `remove` workers leave at once.

    `serial`: a worker restores one task after another; `together`: a worker asks for its learner
    tasks only when all are ready (`learner_partial_rebalance` false).
    """

    tasks: int
    workers: int
    add: int = 0
    remove: int = 0
    restore_s: float = 30.0
    serial: bool = False
    together: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a resize.

    `moves`: tasks that changed hands; `unavailable_task_s`: seconds without processing, summed over
    tasks; `learning_task_s`: seconds with two copies, summed over tasks; `balanced_s`: seconds
    until the group was in balance and the leaving workers were gone.
    """

    rebalances: int
    moves: int
    balanced_s: float
    unavailable_task_s: float
    learning_task_s: float


@dataclass(slots=True)
class SimulatedMember:
    """Member as the assignor sees it.

    `due`: time when a copy will be restored; `learns`: time since which a task is learned;
    `wanted`: standbys that the group waits for.
    """

    copies: dict[TaskId, Copy] = field(default_factory=dict)
    promises: frozenset[TaskId] = frozenset()
    wanted: frozenset[TaskId] = frozenset()
    due: dict[TaskId, float] = field(default_factory=dict)
    learns: dict[TaskId, float] = field(default_factory=dict)
    busy_until: float = 0.0
    leaving: LeaveRequest | None = None

    @property
    def active(self) -> set[TaskId]:
        return {task for task, copy in self.copies.items() if copy.role <= CopyRole.RESTORING}


class Scaling:
    """Group during a resize: one `step` is one rebalance and the wait after it.

    The group begins balanced, with a worker for each task. Then all workers join and leave at once.
    """

    def __init__(self, resize: Resize, rules: Rules) -> None:
        ids = [TaskId(0, n) for n in range(resize.tasks)]
        self._tasks = [PlannedTask(task, True, (source(task),)) for task in ids]
        self._seats = {name_of(n): SimulatedMember() for n in range(resize.workers)}
        self._resize = resize
        self._rules = rules
        self._memory: Memory | None = None
        self._now = 0.0
        self._unavailable_s = 0.0
        self._learning_s = 0.0
        self._rebalances = 0
        self._moves = 0
        self._runner: dict[TaskId, str] = {}
        self._stopped: dict[TaskId, float] = {}
        self._made: list[tuple[float, str, TaskId]] = []
        plan = self._plan()
        for name, seat in self._seats.items():
            tasks = plan.active[name]
            followed = plan.standby.get(name, ())
            seat.copies = dict.fromkeys(tasks, RUNNING)
            seat.copies |= dict.fromkeys(followed, Copy(CopyRole.STANDBY, 0))
            self._runner.update(dict.fromkeys(tasks, name))
        here = list(self._seats)
        for name in here[len(here) - resize.remove :]:
            self._seats[name].leaving = LeaveRequest()
        self._seats |= {name_of(len(here) + n): SimulatedMember() for n in range(resize.add)}

    def step(self) -> bool:
        """Simulate one rebalance.

        Returns:
            False if nothing is left that could ask for another rebalance.
        """
        plan = self._plan()
        self._rebalances += 1
        self._now += REBALANCE_S
        for name, seat in self._seats.items():
            self._follow(name, seat, plan)
        self._stopped = dict.fromkeys(plan.withheld, self._now) | self._stopped
        gone = [name for name, seat in self._seats.items() if seat.leaving and not seat.active]
        for name in gone:
            del self._seats[name]
        return bool(plan.withheld or gone) or self._wait()

    @property
    def cost(self) -> Cost:
        times = self._now, self._unavailable_s, self._learning_s
        return Cost(self._rebalances, self._moves, *times)

    def _plan(self) -> Plan:
        members = [
            MemberMetadata(
                id=name, leaving=seat.leaving, claims=frozenset(map(source, seat.active)),
                copies=seat.copies, heirs=seat.promises, wanted=seat.wanted,
            )
            for name, seat in self._seats.items()
        ]  # fmt: skip
        plan = assign(Group(self._tasks, members, self._memory), self._rules)
        self._memory = plan.memory
        return plan

    def _follow(self, name: str, seat: SimulatedMember, plan: Plan) -> None:
        """Let a member follow the plan; the member drops copies of tasks that it has no role in."""
        old = seat.copies
        copies = dict[TaskId, Copy]()
        for task in plan.learner[name]:
            copies[task] = old.get(task) or self._begun(name, task, CopyRole.LEARNER)
            seat.learns.setdefault(task, self._now)
        for task in plan.active[name]:
            copies[task] = self._run(name, task, old.get(task))
            self._moves += self._runner[task] != name
            self._runner[task] = name
        for task in plan.standby.get(name, ()):
            copy = old.get(task) or self._begun(name, task, CopyRole.STANDBY)
            copies[task] = Copy(CopyRole.STANDBY, copy.lag or 0)
        for task in seat.learns.keys() - plan.learner[name]:
            self._learning_s += self._now - seat.learns.pop(task)
        seat.copies = copies
        seat.promises = frozenset(task for task, heir in plan.heirs.items() if heir == name)
        seat.wanted = frozenset(task for task, who in plan.wanted.items() if who == name)

    def _run(self, name: str, task: TaskId, copy: Copy | None) -> Copy:
        if copy and copy.lag == 0:
            self._processed(task)
            return RUNNING
        self._stopped.setdefault(task, self._now)
        return replace(copy or self._begun(name, task, CopyRole.RESTORING), role=CopyRole.RESTORING)

    def _begun(self, name: str, task: TaskId, role: CopyRole) -> Copy:
        seat = self._seats[name]
        begins = max(self._now, seat.busy_until) if self._resize.serial else self._now
        due = seat.due[task] = seat.busy_until = begins + self._resize.restore_s
        heapq.heappush(self._made, (due, name, task))
        return Copy(role, FAR)

    def _processed(self, task: TaskId) -> None:
        self._unavailable_s += self._now - self._stopped.pop(task, self._now)

    def _wait(self) -> bool:
        """Wait until a learner is ready and its member joins.

        With `together`, all learners of the member must be ready. A member that restores its own
        active tasks asks for nothing.

        Returns:
            False if no learner is left to wait for.
        """
        ready = False
        while self._made and not (ready and self._made[0][0] > self._now):
            due, name, task = heapq.heappop(self._made)
            seat = self._seats.get(name, SimulatedMember())
            copies = seat.copies
            if task not in copies or seat.due[task] != due:  # the plan has dropped that copy
                continue
            self._now = due
            if copies[task].role is CopyRole.RESTORING:
                copies[task] = RUNNING
                self._processed(task)
            else:
                copies[task] = replace(copies[task], lag=0)
                learns = {t for t, c in copies.items() if c.role is CopyRole.LEARNER} | seat.wanted
                asks = not self._resize.together or all(copies[t].lag == 0 for t in learns)
                ready = ready or (task in learns and asks)
        return ready


def name_of(worker: int) -> str:
    return f"worker-{worker:05}"


def source(task: TaskId) -> TopicPartition:
    return TopicPartition("records", task.partition)
