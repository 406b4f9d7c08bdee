"""Random groups under random events: they come to rest, balanced."""

from collections import Counter
from math import ceil, floor
from random import Random
from typing import TYPE_CHECKING

import pytest

from streamsx.assignor.model import Copy, CopyRole, LeaveRequest, Plan, Rules
from streamsx.model import TaskId

if TYPE_CHECKING:
    from tests.properties.assignor.conftest import Play

EVENTS_PER_GROUP = 9


def some_group(play: "type[Play]", random: Random) -> "Play":
    stateful = [
        TaskId(n, p) for n in range(random.randint(1, 3)) for p in range(random.randint(1, 9))
    ]
    stateless = [TaskId(n + 3, p) for n in range(random.randint(0, 2)) for p in range(5)]
    rules = Rules(
        acceptable_recovery_lag=random.choice([0, 100]),
        imbalance_percentage=random.choice([0, 0.2, 0.5]),
        max_learners=random.choice([None, None, 1, 3]),
        max_learners_per_member=random.choice([None, 1, 2, 0]),
        standby=random.choice([0, 0, 1, 2]),
        tags=random.choice([(), (), ("zone",)]),
    )
    group = play(
        stateful, stateless, rules, random.choice(["none", "none", "being_learned", "all"])
    )
    for number in range(random.randint(1, 5)):
        join(group, random, f"m{number}")
    return group


def join(group: "Play", random: Random, name: str) -> None:
    group.start(name)
    group.seats[name].capacity = random.choice([1, 1, 1, 2, 3])
    group.seats[name].tags = random.choice([{"zone": "a"}, {"zone": "b"}])


def crash(group: "Play", random: Random, name: str) -> None:
    del group.seats[name]


def restart(group: "Play", random: Random, name: str) -> None:
    """Restart a member with the stores on its disk."""
    old = group.seats.pop(name)
    disk = old.copies
    group.start(name)
    group.seats[name].tags = old.tags
    group.seats[name].copies = {
        task: Copy(CopyRole.DORMANT, copy.lag)
        for task, copy in disk.items()
        if group.tasks[task].stateful
    }


def leave(group: "Play", random: Random, name: str) -> None:
    group.seats[name].leaving = LeaveRequest(random.choice([None, None, 0]))


def stay(group: "Play", random: Random, name: str) -> None:
    group.seats[name].leaving = None


def forget(group: "Play", random: Random, name: str) -> None:
    """Lose the memory of the group, and the promises to this member."""
    group.forget()
    group.seats[name].promises = frozenset()


CHANGES = (crash, restart, leave, stay, forget)


def disturb(group: "Play", random: Random, number: int) -> None:
    if not group.seats or random.random() < 0.3:
        join(group, random, f"n{number}")
    else:
        random.choice(CHANGES)(group, random, random.choice(sorted(group.seats)))
    for seat in group.seats.values():
        seat.slow = random.random() < 0.2


def progress(group: "Play", random: Random) -> bool:
    """Let some copies restore a bit; return False if no copy had anything to restore."""
    behind = [(name, task) for name, seat in sorted(group.seats.items()) for task in seat.unready]
    for name, task in behind:
        if random.random() < 0.3:
            group.seats[name].reach(task, random.choice([0, 50, 5_000]))
    if behind:
        name, task = random.choice(behind)
        group.seats[name].reach(task, 0)
    return bool(behind)


def at_rest(group: "Play", plan: Plan) -> bool:
    waits = plan.withheld or plan.parked or any(plan.learner.values())
    leavers = any(seat.leaving for seat in group.seats.values())
    unready = any(seat.unready for seat in group.seats.values())
    return plan.no_takers or not (waits or leavers or unready)


def settle(group: "Play", random: Random) -> int:
    """Play until no task moves, and return the rounds. P2, P3: at most 20 + 4 per task."""
    for seat in group.seats.values():
        seat.slow = False
    for number in range(20 + 4 * len(group.tasks)):
        plan = group.round()
        if at_rest(group, plan):
            rest(group, plan)
            return number
        progress(group, random)
        for name in [name for name, seat in group.seats.items() if seat.leaving]:
            if not group.seats[name].claims:
                del group.seats[name]
    raise AssertionError(f"not at rest: {group.seats}")


STANDBY_ROUNDS = 3


def rest(group: "Play", plan: Plan) -> None:
    """P2: no task moves, and standbys are complete and stay in three rounds."""
    for _ in range(STANDBY_ROUNDS):
        for seat in group.seats.values():
            for task in seat.unready:
                seat.reach(task, 0)
        plan, before = group.round(), plan
        assert (plan.active, plan.learner) == (before.active, before.learner)
    for seat in group.seats.values():
        for task in seat.unready:
            seat.reach(task, 0)
    again = group.round()
    assert again.standby == plan.standby, f"{again.explain}"
    if plan.no_takers:
        return
    stay = sum(seat.leaving is None for seat in group.seats.values())
    followed = Counter(task for tasks in plan.standby.values() for task in tasks)
    for task in group.tasks:
        wanted = min(group.rules.standby, stay - 1) if group.tasks[task].stateful else 0
        assert followed[task] == wanted, f"{task} has {followed[task]} of {wanted}: {group.seats}"


def assert_even(group: "Play") -> None:
    """P3, P5: the load is within the tolerance; without one, also the sum of both kinds is even."""
    x = group.rules.imbalance_percentage
    capacities = {name: seat.capacity for name, seat in group.seats.items()}
    total: Counter[str] = Counter()
    for kind in (True, False):
        counts = {
            name: sum(group.tasks[task].stateful is kind for task in seat.active)
            for name, seat in group.seats.items()
        }
        total.update(counts)
        for name, count in counts.items():
            even = sum(counts.values()) * capacities[name] / sum(capacities.values())
            low = min(floor(even), ceil(even * (1 - x)))
            high = max(ceil(even), floor(even * (1 + x)))
            assert low <= count <= high, f"{name} has {count} of {counts}, even is {even}"
    if x == 0 and len(set(capacities.values())) == 1:
        assert max(total.values()) - min(total.values()) <= 1


def live(play: "type[Play]", seed: int) -> None:
    """Play events, each before the last one has settled; then let the group settle."""
    random = Random(f"{seed}/settling")
    group = some_group(play, random)
    for number in range(EVENTS_PER_GROUP):
        disturb(group, random, number)
        for _ in range(random.randint(0, 3)):
            deaf = [name for name in sorted(group.seats) if random.random() < 0.05]
            if group.seats:
                group.round(deaf)
            progress(group, random)
    if not group.seats:
        group.start("last")
    settle(group, random)
    if all(seat.leaving is None for seat in group.seats.values()):
        assert_even(group)


GATE_DIRECT, GATE_IN_BYTES = 100, 30
"""Seeds per commit; `just slow` plays all the others, both ways."""


def test_every_group_settles_evenly(direct: "type[Play]") -> None:
    for seed in range(GATE_DIRECT):
        live(direct, seed)


def test_every_group_settles_evenly_in_bytes(wired: "type[Play]") -> None:
    for seed in range(GATE_IN_BYTES):
        live(wired, seed)


@pytest.mark.slow
def test_many_groups_settle_evenly(play: "type[Play]") -> None:
    for seed in range(GATE_IN_BYTES, 3_000):
        live(play, seed)
