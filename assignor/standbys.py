"""Standby placement: the members that hold copies of each stateful task beside the running one.

Standbys come last: runners and learners are settled, and no standby stands in their way. A copy
that is followed already is kept, a copy on a disk is better than none, and the copies of a task are
spread over the values of members' tags. A standby that another one shall replace stays as a *spare*
until the new one is ready, at most one per task. No standby is worth an extra rebalance: a
superfluous one goes with the next.

Out of scope: standbys that shall become active (`round.schedule_learners`).
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streamsx.assignor.cooperative import Held
from streamsx.assignor.round import Learning
from streamsx.assignor.view import Facts, View
from streamsx.model import TaskId

TagValues = tuple[str | None, ...]
"""Values of a member for the tags in the rules."""
LOOKS = 4
"""Number of lightest members to examine for one that conflicts with no copy."""
Conflict = tuple[int, ...]
"""Number of other copies with the same value, per tag, the most important tag first."""


class StandbyChange(NamedTuple):
    """Change of one standby: `seat` starts, replaces another seat, stops, or stays as the spare."""

    task: Facts
    name: str
    seat: int
    instead: int | None = None


@dataclass(frozen=True, slots=True)
class StandbyAssignment:
    """Tasks that each seat follows, promised ones and future active ones included."""

    standby: Mapping[int, Sequence[TaskId]]
    changes: Sequence[StandbyChange]


@dataclass(slots=True)
class TaskCopies:
    """One task while its standbys are chosen; members are seats.

    `bound`: standbys on their way to becoming active. `busy`: seats that have the task in another
    role, or shall have it.
    """

    task: Facts
    target: int
    moving: bool
    busy: frozenset[int]
    bound: tuple[int, ...]
    kept: list[int]
    count: int
    spare: int | None = None

    @property
    def copies(self) -> tuple[int, ...]:
        """Return all seats that count as copies; the spare does not count."""
        return (self.target, *self.bound, *(seat for seat in self.kept if seat != self.spare))


class StandbyCounts:
    """Number of stateful tasks and standbys on each member, and the most that each should have."""

    def __init__(self, view: View, target: Mapping[TaskId, int]) -> None:
        self._view = view
        self._capacity = {seat: view.members[seat].capacity for seat in sorted(view.stay)}
        stateful = [task.id for task in view.tasks if task.stateful]
        copies = len(stateful) * (1 + view.rules.standby)
        whole = sum(self._capacity.values())
        self._limit = {seat: -(-copies * c // whole) for seat, c in self._capacity.items()}
        self._load = dict.fromkeys(self._capacity, 0)
        for task in stateful:
            if target[task] in self._load:
                self._load[target[task]] += 1
        self._places = {seat: self._place(seat) for seat in range(len(view.members))}
        self._lightest: defaultdict[TagValues, list[tuple[float, int]]] = defaultdict(list)
        """Heap per combination of tag values; skip entries older than a member's newest share."""
        self._anywhere: list[tuple[float, int]] = []
        for seat in self._load:
            self.add(seat, 0)

    def _place(self, seat: int) -> TagValues:
        tags = self._view.members[seat].tags
        return tuple(tags.get(key) for key in self._view.rules.tags)

    def add(self, seat: int, count: int = 1) -> None:
        self._load[seat] += count
        heapq.heappush(self._lightest[self._places[seat]], self._share(seat))
        heapq.heappush(self._anywhere, self._share(seat))

    def room(self, seat: int) -> bool:
        return self._load[seat] < self._limit[seat]

    def full(self, seat: int) -> bool:
        """Return whether the member has more than the limit."""
        return self._load[seat] > self._limit[seat]

    def conflict(self, seat: int, others: Iterable[int]) -> Conflict:
        place = self._places[seat]
        theirs = [self._places[other] for other in others if other != seat]
        return tuple(
            sum(value is not None and value == there[n] for there in theirs)
            for n, value in enumerate(place)
        )

    def worst(self, each: TaskCopies, seat: int) -> tuple[Conflict, bool, bool, float, int]:
        """Return the sort key of a standby to drop; the largest goes first."""
        unready = not self._view.ready(each.task, seat)
        conflict = self.conflict(seat, each.copies)
        return conflict, self.full(seat), unready, each.task.lag(seat), seat

    def best(self, each: TaskCopies, others: Sequence[int]) -> int | None:
        """Return the seat for a new standby; the copies on `others` are to be kept apart from.

        Among seats without a copy, the lightest of each combination of tag values is enough: with
        10,000 tasks, 200 members and as many standbys as zones, a scan of all seats took 12 times
        as long. If one of the lightest seats has room and no conflict, the combinations need no
        scan: with as many combinations as members that scan took 15 times as long.
        """
        task = each.task
        taken = {*each.busy, *each.bound, *each.kept}

        def free(seat: int) -> bool:
            return seat in task.able and seat not in taken

        def apart(seat: int) -> bool:
            return free(seat) and self.room(seat) and not any(self.conflict(seat, others))

        found = [*filter(free, task.copies)]
        light = self._first(self._anywhere, apart, LOOKS)
        found += [] if light is None else [light]
        for place in self._lightest.values() if light is None else ():
            light = self._first(place, lambda seat: free(seat) and self.room(seat))
            light = self._first(place, free) if light is None else light
            found += [] if light is None else [light]
        return min(found, key=lambda seat: self._rank(task, seat, others), default=None)

    def _rank(self, task: Facts, seat: int, others: Sequence[int]) -> tuple[object, ...]:
        readiness = 2 if seat not in task.copies else not self._view.ready(task, seat)
        conflict = self.conflict(seat, others)
        lag = task.lag(seat)
        return conflict, not self.room(seat), readiness, lag, self._share(seat)

    def _first(
        self, lightest: list[tuple[float, int]], suits: Callable[[int], bool],
        looks: float = math.inf,
    ) -> int | None:  # fmt: skip
        passed = list[tuple[float, int]]()
        found = None
        while lightest and found is None and len(passed) < looks:
            share = heapq.heappop(lightest)
            if share == self._share(share[1]):
                passed.append(share)
                found = share[1] if suits(share[1]) else None
        for share in passed:
            heapq.heappush(lightest, share)
        return found

    def _share(self, seat: int) -> tuple[float, int]:
        return self._load[seat] / self._capacity[seat], seat


def stand_by(
    view: View, target: Mapping[TaskId, int], held: Held, learning: Learning
) -> StandbyAssignment:
    """Return the standbys of this round; none if no member stays."""
    if not view.stay:
        return StandbyAssignment({}, ())
    board = StandbyCounts(view, target)
    changes = list[StandbyChange]()
    tasks = [_copies_of(view, t, target[t.id], held, learning) for t in view.tasks if t.stateful]
    for each in tasks:
        for seat in (*each.bound, *each.kept):
            if seat != each.target:
                board.add(seat)
    for each in tasks:
        changes += _trim(view, board, each)
    for each in tasks:
        changes += _replace(view, board, each)
    for each in tasks:
        changes += _fill(board, each)
    standby: defaultdict[int, list[TaskId]] = defaultdict(list)
    for each in tasks:
        for seat in (*each.bound, *each.kept):
            standby[seat].append(each.task.id)
    return StandbyAssignment(standby, sorted(changes, key=lambda change: change.task.id))


def _copies_of(view: View, task: Facts, target: int, held: Held, learning: Learning) -> TaskCopies:
    """Return the standbys that a task keeps, and the number that the task should have.

    While a task moves, one standby fewer may do: the member that gives the task up has the best
    copy. A task whose move only waits for a learner keeps its number.
    """
    runner = held.active.get(task.id, task.owner)
    heir = held.heirs.get(task.id)
    next_ = {seat for seat in (heir, learning.wanted.get(task.id)) if seat is not None}
    busy = frozenset(
        {*task.claimants, target, *next_} | ({runner} if runner is not None else set())
    )
    bound = tuple(sorted(seat for seat in next_ if task.stands_by(seat)))
    kept = [
        s for s in sorted(task.copies) if task.stands_by(s) and s in task.able and s not in busy
    ]
    count = min(view.rules.standby, len(view.stay) - 1) - len(bound)
    moving = target != runner and task.id not in learning.parked
    if moving and runner in view.stay and len(kept) < count:
        count -= 1
    return TaskCopies(task, target, moving, busy, bound, kept, max(count, 0))


def _trim(view: View, board: StandbyCounts, each: TaskCopies) -> Iterable[StandbyChange]:
    """Drop surplus standbys; keep the ready one as the spare."""
    surplus = len(each.kept) - each.count
    if surplus <= 0:
        return
    for seat in sorted(each.kept, key=lambda seat: board.worst(each, seat), reverse=True)[:surplus]:
        board.add(seat, -1)
        others = [other for other in (*each.bound, *each.kept) if other != seat]
        late = any(not view.ready(each.task, other) for other in others)
        if each.spare is None and late and view.ready(each.task, seat):
            each.spare = seat
            yield StandbyChange(each.task, "standby-spare", seat)
        else:
            each.kept.remove(seat)
            yield StandbyChange(each.task, "standby-drop", seat)


def _replace(view: View, board: StandbyCounts, each: TaskCopies) -> Iterable[StandbyChange]:
    """Replace standbys that conflict with another copy, or sit on an overfull member.

    All are replaced at once, because at rest there may be no other round for long.
    """
    if each.moving or each.spare is not None:
        return
    for seat in tuple(each.kept):
        conflict = board.conflict(seat, each.copies)
        full = board.full(seat)
        if not (any(conflict) or full):
            continue
        others = [other for other in each.copies if other != seat]
        to = board.best(each, others)
        if to is None:
            continue
        new = board.conflict(to, others)
        if new < conflict or (full and new <= conflict and board.room(to)):
            board.add(seat, -1)
            board.add(to)
            each.kept.append(to)
            late = view.ready(each.task, seat) and not view.ready(each.task, to)
            if late and each.spare is None:
                each.spare = seat
            else:
                each.kept.remove(seat)
            yield StandbyChange(each.task, "standby-move", to, seat)


def _fill(board: StandbyCounts, each: TaskCopies) -> Iterable[StandbyChange]:
    while len(each.kept) - (each.spare is not None) < each.count:
        seat = board.best(each, each.copies)
        if seat is None:
            return
        board.add(seat)
        each.kept.append(seat)
        yield StandbyChange(each.task, "standby-new", seat)
