"""Standbys: where each task with state has copies beside the one that runs.

They come last: what runs and who learns is settled, and no standby stands in its way. A copy that
is followed already is kept, one on a disk comes before none, and the copies of a task are spread
over the values of members' tags. A standby that another shall replace stays until that one is
ready, as a *spare*, one per task. Nothing that a rebalance could not do later is worth one: who
becomes superfluous goes with the next.

Not here: standbys that are to become active (`refine.fund`).
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
"""Of a member: its values of the rules' tags."""
LOOKS = 4
"""So many of the lightest are looked at for one that is apart from all others."""
Conflict = tuple[int, ...]
"""Per tag, the most important first: how many other copies have the same value of it."""


class StandbyChange(NamedTuple):
    """`seat` begins to follow a task, in place of another, or stops, or stays a while."""

    task: Facts
    name: str
    seat: int
    instead: int | None = None


@dataclass(frozen=True, slots=True)
class StandbyAssignment:
    """Who follows what, by seat, those included that were promised a task or shall have it."""

    standby: Mapping[int, Sequence[TaskId]]
    changes: Sequence[StandbyChange]


@dataclass(slots=True)
class TaskCopies:
    """One task, while its standbys are chosen; members are seats. `bound`: standbys on their way to
    becoming active; `busy`: who has it otherwise, or shall have it.
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
        """All that counts, but the spare one."""
        return (self.target, *self.bound, *(seat for seat in self.kept if seat != self.spare))


class StandbyCounts:
    """How many tasks with state and standbys each member has, and how many it should at most."""

    def __init__(self, view: View, target: Mapping[TaskId, int]) -> None:
        self._view = view
        self._capacity = {seat: view.members[seat].capacity for seat in sorted(view.stay)}
        stateful = [task.id for task in view.tasks if task.stateful]
        copies, whole = len(stateful) * (1 + view.rules.standby), sum(self._capacity.values())
        self._limit = {seat: -(-copies * c // whole) for seat, c in self._capacity.items()}
        self._load = dict.fromkeys(self._capacity, 0)
        for task in stateful:
            if target[task] in self._load:
                self._load[target[task]] += 1
        self._places = {seat: self._place(seat) for seat in range(len(view.members))}
        self._lightest: defaultdict[TagValues, list[tuple[float, int]]] = defaultdict(list)
        """Of each place; what is not the newest share of a member is passed over."""
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
        """Has more than it should."""
        return self._load[seat] > self._limit[seat]

    def conflict(self, seat: int, others: Iterable[int]) -> Conflict:
        place = self._places[seat]
        theirs = [self._places[other] for other in others if other != seat]
        return tuple(
            sum(value is not None and value == there[n] for there in theirs)
            for n, value in enumerate(place)
        )

    def worst(self, each: TaskCopies, seat: int) -> tuple[Conflict, bool, bool, float, int]:
        """Of those who have a standby the largest goes first."""
        unready = not self._view.ready(each.task, seat)
        conflict = self.conflict(seat, each.copies)
        return conflict, self.full(seat), unready, each.task.lag(seat), seat

    def best(self, each: TaskCopies, others: Sequence[int]) -> int | None:
        """Who should have a new standby. `others`: the copies to be apart from.

        Of those without a copy the lightest of each place is enough: with 10,000 tasks, 200 members
        and as many standbys as zones all of them took 12 times as long. Where one of the lightest
        has room and is apart from all copies, no place need be asked: with as many places as
        members that took 15 times as long.
        """
        task, taken = each.task, {*each.busy, *each.bound, *each.kept}

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
        conflict, lag = self.conflict(seat, others), task.lag(seat)
        return conflict, not self.room(seat), readiness, lag, self._share(seat)

    def _first(
        self, lightest: list[tuple[float, int]], suits: Callable[[int], bool],
        looks: float = math.inf,
    ) -> int | None:  # fmt: skip
        passed, found = list[tuple[float, int]](), None
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
    """The standbys of this round. Nobody stays: there are none."""
    if not view.stay:
        return StandbyAssignment({}, ())
    board, changes = StandbyCounts(view, target), list[StandbyChange]()
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
    """Who keeps its standby, and how many there should be.

    While a task moves one fewer may do: who gives it up has the best copy of all. One that only
    waits for its turn to be learned has what it had.
    """
    runner, heir = held.active.get(task.id, task.owner), held.heirs.get(task.id)
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
    """Who is more than wanted goes, unless it is the one that is ready."""
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
    """One that is too near to another copy, or on a member that has more than it should. All of
    them at once: at rest there may be no other round for long.
    """
    if each.moving or each.spare is not None:
        return
    for seat in tuple(each.kept):
        conflict, full = board.conflict(seat, each.copies), board.full(seat)
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
