"""A group with the facts that follow from it: who stays, who owns each task, who could take it.

A member is the number of its seat here: members sorted by name (instance, else process, else id).
"First" means the lowest seat, so that no answer depends on the order of a set. Nothing is decided.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from streamsx.assignor.model import (
    RUNNING,
    Copy,
    CopyRole,
    Group,
    LeaveRequest,
    MemberMetadata,
    Memory,
    PlannedTask,
    Rules,
    TaskKind,
)
from streamsx.assignor.names import labels
from streamsx.model import TaskId


@dataclass(frozen=True, slots=True)
class Facts:
    """One task as the group is now; members are seats.

    `owner` runs it or ran it until this join. `home` is where it is, or where it is already going.
    `able`: who may receive it, ascending.
    """

    id: TaskId
    stateful: bool
    claimants: tuple[int, ...]
    copies: Mapping[int, Copy]
    owner: int | None
    home: int | None
    able: tuple[int, ...]

    @property
    def kind(self) -> TaskKind:
        return TaskKind.STATEFUL if self.stateful else TaskKind.STATELESS

    def lag(self, seat: int | None) -> float:
        """Records behind; infinite without a copy."""
        copy = None if seat is None else self.copies.get(seat)
        return math.inf if copy is None else copy.behind

    def stands_by(self, seat: int) -> bool:
        copy = self.copies.get(seat)
        return copy is not None and copy.role is CopyRole.STANDBY


@dataclass(frozen=True, slots=True)
class View:
    """A group with its derived facts. `stay`: who may receive; `expired`: leavers out of time;
    `successors`: who takes the seat of which leaver.
    """

    members: tuple[MemberMetadata, ...]
    stay: frozenset[int]
    leaving: frozenset[int]
    expired: frozenset[int]
    successors: Mapping[int, int]
    observed: bool
    tasks: tuple[Facts, ...]
    rules: Rules
    memory: Memory
    labels: Mapping[str, str]
    """What people call each member, by its id."""

    def label(self, seat: int | None) -> str | None:
        return None if seat is None else self.labels[self.members[seat].id]

    def name(self, seat: int | None) -> str | None:
        return None if seat is None else self.members[seat].id

    def promised(self, task: TaskId, seat: int) -> bool:
        return task in self.members[seat].heirs

    def hot(self, task: Facts, seat: int) -> bool:
        """Its copy runs or is near enough."""
        return task.lag(seat) <= self.rules.acceptable_recovery_lag

    def ready(self, task: Facts, seat: int) -> bool:
        """May it take over at once: its copy is hot, or the task was promised to it."""
        return self.hot(task, seat) or (seat in task.copies and self.promised(task.id, seat))

    def follows(self, task: Facts, seat: int) -> bool:
        """May it take over from who runs the task: it is ready, and it reads on. A copy on a disk
        is as near as somebody last saw it: 485 records behind under a limit of 100, within a
        second of having been handed over.
        """
        copy = task.copies.get(seat)
        rests = copy is not None and copy.role is CopyRole.DORMANT
        return self.ready(task, seat) and (not rests or self.promised(task.id, seat))


def survey(group: Group, rules: Rules, memory: Memory, leaving: Mapping[str, LeaveRequest]) -> View:
    """Who is here, and where each task stands. `leaving`: who leaves, by member id."""
    here = (member for member in group.members if not member.observer)
    members = tuple(sorted(here, key=lambda member: (member.name, member.id)))
    leavers = {seat: leaving[m.id] for seat, m in enumerate(members) if m.id in leaving}
    stay = frozenset(s for s, m in enumerate(members) if s not in leavers and not m.opaque)
    named = {m.instance: seat for seat, m in reversed([*enumerate(members)]) if seat in stay}
    named.pop(None, None)
    view = View(
        members=members,
        stay=stay,
        leaving=frozenset(leavers),
        expired=frozenset(s for s, left in leavers.items() if left.overdue(group.now_ms)),
        successors={s: named[out.swap_to] for s, out in leavers.items() if out.swap_to in named},
        observed=len(members) < len(group.members),
        tasks=(),
        rules=rules,
        memory=memory,
        labels=labels(members),
    )
    return replace(view, tasks=_facts(view, sorted(group.tasks, key=lambda task: task.id)))


def _facts(view: View, tasks: Sequence[PlannedTask]) -> tuple[Facts, ...]:
    claimants = _claimants(view, tasks)
    copies = _copies(view, claimants)
    able = {number: _able(view, number) for number in {task.id.subtopology for task in tasks}}
    found = []
    for task in tasks:
        claimed, held = tuple(claimants.get(task.id, ())), copies.get(task.id, {})
        if not task.stateful:
            runs = (s for s, c in held.items() if s in claimed or c.role is CopyRole.RUNNING)
            held = dict.fromkeys(runs, RUNNING)
        owner = _owner(view, claimed, held)
        home = _home(view, task.id, owner, held)
        takers = able[task.id.subtopology]
        found.append(Facts(task.id, task.stateful, claimed, held, owner, home, takers))
    return tuple(found)


def _claimants(view: View, tasks: Sequence[PlannedTask]) -> Mapping[TaskId, Sequence[int]]:
    """Who claims at least one partition of a task, lowest seat first."""
    task_of = {tp: task.id for task in tasks for tp in task.partitions}
    claimants: dict[TaskId, list[int]] = {}
    for seat, member in enumerate(view.members):
        for task in {task_of[tp] for tp in member.claims if tp in task_of}:
            claimants.setdefault(task, []).append(seat)
    return claimants


def _copies(
    view: View, claimants: Mapping[TaskId, Sequence[int]]
) -> Mapping[TaskId, dict[int, Copy]]:
    """What each member has of a task. Who claims it and says no more runs it, to be safe."""
    copies = {task: dict.fromkeys(seats, RUNNING) for task, seats in claimants.items()}
    for seat, member in enumerate(view.members):
        for task, copy in member.copies.items():
            copies.setdefault(task, {})[seat] = copy
    return copies


def _able(view: View, subtopology: int) -> tuple[int, ...]:
    """Who runs the sub-topology as the leader does; everybody, if nobody who stays does.

    The second happens at the end of a rolling upgrade: the leader is the last of its kind, leaves,
    and what it runs has to go to members whose code differs.
    """
    stay = sorted(view.stay)
    knows = {seat: view.members[seat].knows for seat in stay}
    able = (seat for seat, some in knows.items() if some is None or subtopology in some)
    return tuple(able) or tuple(stay)


def _owner(view: View, claimants: Sequence[int], copies: Mapping[int, Copy]) -> int | None:
    """The first who claims it; else who ran it until this join and is furthest."""
    if claimants:
        return claimants[0]
    ran = (
        (copy.role, copy.behind, seat)
        for seat, copy in copies.items()
        if copy.role <= CopyRole.RESTORING and seat not in view.expired
    )
    return min(ran, default=(None, None, None))[2]


def _home(view: View, task: TaskId, owner: int | None, copies: Mapping[int, Copy]) -> int | None:
    """The staying member that learns it, or has a standby that is wanted or was promised it; else
    its owner, if that stays."""
    going = []
    for seat, copy in copies.items():
        promised = view.promised(task, seat)
        wanted = copy.role is CopyRole.STANDBY and task in view.members[seat].wanted
        goes = promised or wanted or copy.role is CopyRole.LEARNER
        if seat != owner and seat in view.stay and goes:
            going.append((not promised, not wanted, copy.behind, seat))
    if going:
        return min(going)[-1]
    return owner if owner in view.stay else None
