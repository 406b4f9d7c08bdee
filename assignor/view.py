"""View of a group: facts that follow from the members' joins, such as owners and takers of tasks.

A member is a *seat* here: its index among the members sorted by name (instance, else process, else
id). "First" means the lowest seat, so that no answer depends on the order of a set. The view
decides nothing.
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
    """Facts about one task at this moment; members are seats.

    `owner` runs the task or ran it until this join. `home` is the task's present place, or the
    place it is already moving to. `able`: seats that may receive the task, ascending.
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
        """Return the records that a seat's copy is behind; infinite without a copy."""
        copy = None if seat is None else self.copies.get(seat)
        return math.inf if copy is None else copy.behind

    def reported_lag(self, seat: int) -> int | None:
        """Return the lag that a seat reports of its copy; None: unknown, or no copy."""
        copy = self.copies.get(seat)
        return None if copy is None else copy.lag

    def stands_by(self, seat: int) -> bool:
        copy = self.copies.get(seat)
        return copy is not None and copy.role is CopyRole.STANDBY


@dataclass(frozen=True, slots=True)
class View:
    """Group with derived facts.

    `stay`: seats that may receive tasks. `expired`: leavers past their deadline. `successors`: the
    seat that takes the place of each leaver.
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
    """Labels of members for people, by member id."""

    def label(self, seat: int | None) -> str | None:
        return None if seat is None else self.labels[self.members[seat].id]

    def name(self, seat: int | None) -> str | None:
        return None if seat is None else self.members[seat].id

    def promised(self, task: TaskId, seat: int) -> bool:
        return task in self.members[seat].heirs

    def hot(self, task: Facts, seat: int) -> bool:
        """Return whether the copy runs, or is within the acceptable recovery lag."""
        return task.lag(seat) <= self.rules.acceptable_recovery_lag

    def ready(self, task: Facts, seat: int) -> bool:
        """Return whether a seat may take over at once: its copy is hot, or the task is promised."""
        return self.hot(task, seat) or (seat in task.copies and self.promised(task.id, seat))

    def follows(self, task: Facts, seat: int) -> bool:
        """Return whether a seat may take over from the runner: it is ready, and keeps reading.

        The lag of a copy on a disk is as old as the last look at that copy: one was 485 records
        behind under a limit of 100, within a second of being handed over.
        """
        copy = task.copies.get(seat)
        rests = copy is not None and copy.role is CopyRole.DORMANT
        return self.ready(task, seat) and (not rests or self.promised(task.id, seat))


def survey(group: Group, rules: Rules, memory: Memory, leaving: Mapping[str, LeaveRequest]) -> View:
    """Return the view of a group. `leaving`: the leave request of each leaver, by member id."""
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
        claimed = tuple(claimants.get(task.id, ()))
        held = copies.get(task.id, {})
        if not task.stateful:
            runs = (s for s, c in held.items() if s in claimed or c.role is CopyRole.RUNNING)
            held = dict.fromkeys(runs, RUNNING)
        owner = _owner(view, claimed, held)
        home = _home(view, task.id, owner, held)
        takers = able[task.id.subtopology]
        found.append(Facts(task.id, task.stateful, claimed, held, owner, home, takers))
    return tuple(found)


def _claimants(view: View, tasks: Sequence[PlannedTask]) -> Mapping[TaskId, Sequence[int]]:
    """Return the seats that claim at least one partition of a task, lowest seat first."""
    task_of = {tp: task.id for task in tasks for tp in task.partitions}
    claimants: dict[TaskId, list[int]] = {}
    for seat, member in enumerate(view.members):
        for task in {task_of[tp] for tp in member.claims if tp in task_of}:
            claimants.setdefault(task, []).append(seat)
    return claimants


def _copies(
    view: View, claimants: Mapping[TaskId, Sequence[int]]
) -> Mapping[TaskId, dict[int, Copy]]:
    """Return the copies of each task by seat.

    A claimant that reports no copy is taken to run the task, to be safe.
    """
    copies = {task: dict.fromkeys(seats, RUNNING) for task, seats in claimants.items()}
    for seat, member in enumerate(view.members):
        for task, copy in member.copies.items():
            copies.setdefault(task, {})[seat] = copy
    return copies


def _able(view: View, subtopology: int) -> tuple[int, ...]:
    """Return the seats that run the sub-topology as the leader does; all staying seats if none.

    The second case ends a rolling upgrade: the leader is the last member with its code, and leaves.
    The tasks it runs have to go to members with other code.
    """
    stay = sorted(view.stay)
    knows = {seat: view.members[seat].knows for seat in stay}
    able = (seat for seat, some in knows.items() if some is None or subtopology in some)
    return tuple(able) or tuple(stay)


def _owner(view: View, claimants: Sequence[int], copies: Mapping[int, Copy]) -> int | None:
    """Return the first claimant; else the nearest copy that ran or restored until this join."""
    if claimants:
        return claimants[0]
    ran = (
        (copy.role, copy.behind, seat)
        for seat, copy in copies.items()
        if copy.role <= CopyRole.RESTORING and seat not in view.expired
    )
    return min(ran, default=(None, None, None))[2]


def _home(view: View, task: TaskId, owner: int | None, copies: Mapping[int, Copy]) -> int | None:
    """Return the staying member that the task is moving to; else its owner, if that stays.

    A task is moving to a learner, to a standby that shall become active, or to a promised heir.
    """
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
