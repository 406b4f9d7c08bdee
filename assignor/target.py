"""Target assignment: the member on which every task shall end. Sticky, balanced, fewest moves.

Stateful and stateless tasks are balanced separately, each kind in *buckets* of tasks that the same
members can take. Whether a receiver is ready to run a task today is decided elsewhere (`round`).

Each bucket goes through three steps. Quotas: the number of tasks that each member shall have.
Donate: members above their quota give tasks to the pool. Fill: the pool goes to copies first, then
round robin. One seat more than the even share is a *spare seat*. A spare seat goes to a member that
turns out to have a copy, because a spare seat assigned by name alone moves a task twice.
"""

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from streamsx.assignor.model import TaskKind
from streamsx.assignor.view import Facts, View
from streamsx.model import TaskId


@dataclass(slots=True)
class Bucket:
    """Tasks that the same members can take, during their distribution; members are seats."""

    view: View
    stateful: bool
    able: tuple[int, ...]
    tasks: list[Facts] = field(default_factory=list)
    kept: dict[int, list[Facts]] = field(default_factory=dict)
    pool: list[Facts] = field(default_factory=list)
    quota: dict[int, int] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)  # seats that may take a spare seat, in order
    spare: int = 0

    def capacity(self, seat: int) -> int:
        return self.view.members[seat].capacity

    def may_wait(self, seat: int) -> bool:
        """Return whether the member may still take a spare seat."""
        return self.spare > 0 and seat in self.waiting


def target_assignment(view: View) -> Mapping[TaskId, int]:
    """Return the seat on which each task shall end. Requires `view.stay` not to be empty."""
    target: dict[TaskId, int] = {}
    total: Counter[int] = Counter()
    for bucket in _buckets(view, target):
        _split(bucket)
        _set_quotas(bucket, total)
        _donate(bucket)
        _fill(bucket)
        for seat, tasks in bucket.kept.items():
            total[seat] += len(tasks)
            target.update((task.id, seat) for task in tasks)
    return target


def _buckets(view: View, target: dict[TaskId, int]) -> list[Bucket]:
    """Return the buckets: stateful ones first, then those with fewer takers.

    Tasks of an unreadable member stay with that member. A successor gets the stateful tasks of its
    leaver, keeps its own, and gets no others.
    """
    taken = frozenset(view.successors.values())
    found: dict[tuple[bool, tuple[int, ...]], Bucket] = {}
    for task in view.tasks:
        if task.owner is not None and view.members[task.owner].opaque:
            target[task.id] = task.owner
            continue
        if (seat := _taken_over(view, task)) is not None:
            target[task.id] = seat
            continue
        able = tuple(s for s in task.able if not (task.stateful and s in taken)) or task.able
        key = (not task.stateful, able)
        bucket = found.setdefault(key, Bucket(view, task.stateful, able))
        bucket.tasks.append(task)
    return sorted(found.values(), key=lambda b: (not b.stateful, len(b.able), b.able))


def _taken_over(view: View, task: Facts) -> int | None:
    """Return the successor that has the task, or inherits it from its leaver; None: none does.

    A stateless task needs no successor: the leaver gives way, and the newcomer has the room that
    the leaver has left.
    """
    if not task.stateful:
        return None
    seat = view.successors.get(task.owner, task.owner) if task.owner is not None else None
    if seat not in view.successors.values() and task.owner not in view.stay:
        seat = task.home
    return seat if seat in view.successors.values() and seat in task.able else None


def _split(bucket: Bucket) -> None:
    bucket.kept = {seat: [] for seat in bucket.able}
    for task in bucket.tasks:
        home = bucket.kept.get(task.home) if task.home is not None else None
        (bucket.pool if home is None else home).append(task)


# Quotas


def _set_quotas(bucket: Bucket, total: Mapping[int, int]) -> None:
    n = len(bucket.tasks)
    capacity = {seat: bucket.capacity(seat) for seat in bucket.able}
    whole = sum(capacity.values())
    low = {seat: n * c // whole for seat, c in capacity.items()}
    extras = n - sum(low.values())
    waiting = sorted(
        (seat for seat, c in capacity.items() if n * c % whole),
        key=lambda seat: _turn(bucket, seat, low[seat], total[seat]),
    )
    seated = set(waiting[:extras])
    quota = {seat: low[seat] + (seat in seated) for seat in bucket.able}
    tolerated = _tolerated(bucket, quota, total)
    if tolerated is not None:
        bucket.quota = tolerated
    elif not bucket.stateful:
        bucket.quota = quota
    else:
        # Only members that already use an extra seat keep it. The others wait until the copies of
        # the tasks in the pool are known.
        keep = {seat for seat in seated if len(bucket.kept[seat]) > low[seat]}
        bucket.quota = {seat: low[seat] + (seat in keep) for seat in bucket.able}
        bucket.waiting = [seat for seat in waiting if seat not in keep]
        bucket.spare = extras - len(keep)


def _turn(bucket: Bucket, seat: int, low: int, total: int) -> tuple[float, ...]:
    """Return the sort key for extra seats: the first donor gives, the first receiver gets."""
    capacity = bucket.capacity(seat)
    kept = len(bucket.kept[seat])
    donor = kept > low
    load = 0.0 if bucket.stateful else total / capacity
    return load, not donor, low != 0, -kept / capacity, -seat if donor else seat


def _tolerated(
    bucket: Bucket, quota: Mapping[int, int], total: Mapping[int, int]
) -> dict[int, int] | None:
    """Return quotas under which no member gives a task away, if all are then near the even share.

    While balancing is under way the answer is None. Otherwise balancing would stop half way, as
    soon as the group is inside the tolerance, and would answer differently after each round.
    """
    over = any(len(bucket.kept[seat]) > quota[seat] for seat in bucket.able)
    if not over or _balancing(bucket):
        return None
    counts = {seat: len(bucket.kept[seat]) for seat in bucket.able}
    lightest = [((counts[s] + 1) / bucket.capacity(s), s) for s in bucket.able]
    heapq.heapify(lightest)
    for _ in bucket.pool:
        seat = lightest[0][1]
        counts[seat] += 1
        heapq.heapreplace(lightest, ((counts[seat] + 1) / bucket.capacity(seat), seat))
    fits = _even(bucket, counts)
    if not bucket.stateful:
        fits = fits and _even(bucket, {seat: counts[seat] + total[seat] for seat in bucket.able})
    return counts if fits else None


def _even(bucket: Bucket, counts: Mapping[int, int]) -> bool:
    x = bucket.view.rules.imbalance_percentage
    n = sum(counts.values())
    whole = sum(bucket.capacity(seat) for seat in counts)
    for seat, count in counts.items():
        share = n * bucket.capacity(seat)
        even = share / whole
        if not min(share // whole, even * (1 - x)) <= count <= max(math.ceil(even), even * (1 + x)):
            return False
    return True


def _balancing(bucket: Bucket) -> bool:
    kind = TaskKind.STATEFUL if bucket.stateful else TaskKind.STATELESS
    return kind in bucket.view.memory.balancing or any(
        task.home != task.owner and task.owner in bucket.view.stay for task in bucket.tasks
    )


# Donate


def _donate(bucket: Bucket) -> None:
    surpluses = {seat: len(bucket.kept[seat]) - bucket.quota[seat] for seat in bucket.able}
    open_to = {seat for seat, more in surpluses.items() if more < 0 or bucket.may_wait(seat)}
    for seat, surplus in surpluses.items():
        if surplus > 0:
            given = _surplus(bucket, seat, surplus, open_to)
            bucket.pool += given.values()
            bucket.kept[seat] = [task for task in bucket.kept[seat] if task.id not in given]


def _surplus(bucket: Bucket, seat: int, count: int, open_to: set[int]) -> dict[TaskId, Facts]:
    """Return the tasks that a member gives away.

    Moves not made yet come first, then tasks that another member has ready, then tasks of the
    fullest sub-topology.
    """
    view = bucket.view
    coming = [task for task in bucket.kept[seat] if task.owner != seat]
    coming.sort(key=lambda task: (view.promised(task.id, seat), -task.lag(seat), task.id))
    owned = [task for task in bucket.kept[seat] if task.owner == seat]
    warm = [task for task in owned if any(view.ready(task, s) for s in task.copies if s in open_to)]
    given = {task.id: task for task in [*coming, *warm][:count]}
    left = [task for task in owned if task.id not in given]
    given.update((task.id, task) for task in _from_the_fullest(left, count - len(given)))
    return given


def _from_the_fullest(tasks: Sequence[Facts], count: int) -> Iterator[Facts]:
    """Yield tasks of the sub-topology with most tasks left, one by one, lowest partition first."""
    by_number: defaultdict[int, deque[Facts]] = defaultdict(deque)
    for task in tasks:
        by_number[task.id.subtopology].append(task)
    for _ in range(count):
        fullest = min(by_number, key=lambda number: (-len(by_number[number]), number))
        yield by_number[fullest].popleft()


# Fill


def _fill(bucket: Bucket) -> None:
    room = {seat: bucket.quota[seat] - len(bucket.kept[seat]) for seat in bucket.able}
    rest = _to_copies(bucket, room)
    for seat in bucket.waiting[: bucket.spare]:
        room[seat] += 1
    ring = deque(seat for seat in bucket.able if room[seat])
    for task in rest:
        seat = ring.popleft()
        bucket.kept[seat].append(task)
        room[seat] -= 1
        if room[seat]:
            ring.append(seat)


def _to_copies(bucket: Bucket, room: dict[int, int]) -> list[Facts]:
    """Give tasks of the pool to members with copies, best copies first; return the others by id."""
    subtopologies: Counter[tuple[int, int]] = Counter(
        (seat, task.id.subtopology) for seat, tasks in bucket.kept.items() for task in tasks
    )

    def fit(seat: int, number: int) -> tuple[float, float, int]:
        seats = room[seat] + bucket.may_wait(seat)
        capacity = bucket.capacity(seat)
        return subtopologies[seat, number] / capacity, -seats / capacity, seat

    left = {task.id: task for task in bucket.pool}
    for (_, _, task_id), seats in _offers(bucket):
        takers = [s for s in seats if room[s] or bucket.may_wait(s)]
        if not takers or task_id not in left:
            continue
        seat = min(takers, key=lambda s: fit(s, task_id.subtopology))
        if room[seat]:
            room[seat] -= 1
        else:
            bucket.spare -= 1
            bucket.waiting.remove(seat)
        subtopologies[seat, task_id.subtopology] += 1
        bucket.kept[seat].append(left.pop(task_id))
    return [left[task_id] for task_id in sorted(left)]


def _offers(bucket: Bucket) -> list[tuple[tuple[bool, float, TaskId], list[int]]]:
    """Return the copies of the pool's tasks: owners and promised heirs first, then by lag."""
    view = bucket.view
    offers: defaultdict[tuple[bool, float, TaskId], list[int]] = defaultdict(list)
    for task in bucket.pool:
        for seat, copy in task.copies.items():
            if seat in bucket.kept:
                first = task.owner == seat or view.promised(task.id, seat)
                offers[not first, copy.behind, task.id].append(seat)
    return sorted(offers.items())
