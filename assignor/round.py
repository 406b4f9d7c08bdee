"""This round: who runs each task now, who learns it, within which budget.

The target says where a task shall end. A stateful task stays with whoever runs it until the target
is ready to take over; meanwhile the target *learns* it. `RULES` is the whole decision: the first
row that holds.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from streamsx.assignor.model import CopyRole
from streamsx.assignor.view import Facts, View
from streamsx.model import TaskId


@dataclass(frozen=True, slots=True)
class RoundCase:
    """One task and its target; members are seats.

    `owner` is None also when its owner's time is up. `load`: tasks per seat, failovers of this
    round included.
    """

    view: View
    task: Facts
    target: int
    owner: int | None
    load: Mapping[int, int]

    @property
    def ready(self) -> bool:
        return self.view.ready(self.task, self.target)

    @property
    def follows(self) -> bool:
        return self.view.follows(self.task, self.target)

    @property
    def hot(self) -> bool:
        return self.owner is not None and self.view.hot(self.task, self.owner)

    @property
    def nearest(self) -> int | None:
        """Who may receive the task and has a nearer copy than the target: the best of them."""
        nearer = (
            (not self.view.ready(self.task, seat), copy.behind, self.load[seat], seat)
            for seat, copy in self.task.copies.items()
            if seat in self.task.able and copy.behind < self.task.lag(self.target)
        )
        return min(nearer, default=(None,))[-1]


class Row(NamedTuple):
    """Who runs the task now, None: the row does not hold. `learn`: and the target learns it."""

    name: str
    runner: Callable[[RoundCase], int | None]
    learn: bool = False


def _wait(case: RoundCase) -> int | None:
    """A tool that is killed in its round leaves standing still what is withheld in it."""
    return case.owner if case.view.observed and case.owner in case.task.claimants else None


def _failover(case: RoundCase) -> int | None:
    """Without staging it would go back and forth: "m1 releases t for n, which has no copy; nobody
    runs t now, m1's copy is nearest; m1 runs t, n shall have it, m1 releases t"."""
    return case.nearest if case.owner is None and case.view.rules.staging else None


def _least_lag(case: RoundCase) -> int | None:
    return case.target if case.owner is None and case.target in case.task.copies else None


def _rescue(case: RoundCase) -> int | None:
    seat = case.nearest
    return seat if seat is not None and case.view.ready(case.task, seat) else None


def _overtake(case: RoundCase) -> int | None:
    ahead = 2 * case.task.lag(case.target) < case.task.lag(case.owner)
    return case.target if ahead else None


RULES = (
    Row("keep", lambda case: case.target if case.owner == case.target else None),
    Row("wait", _wait, learn=True),
    Row("stateless", lambda case: None if case.task.stateful else case.target),
    # Nobody runs it: at once, with the best there is.
    Row("promote", lambda case: case.target if case.owner is None and case.ready else None),
    Row("failover", _failover, learn=True),
    Row("least-lag", _least_lag),
    Row("cold", lambda case: case.target if case.owner is None else None),
    # Somebody does.
    Row("hand-over", lambda case: case.target if case.follows else None),
    Row("unstaged", lambda case: None if case.view.rules.staging else case.target),
    Row("stage", lambda case: case.owner if case.hot else None, learn=True),
    # It is far behind itself: nothing processes the task now.
    Row("failover", _rescue, learn=True),
    Row("overtake", _overtake),
    Row("keep-restoring", lambda case: case.owner, learn=True),
)


class Choice(NamedTuple):
    """What a row says of a task; `runner` and `target` are seats."""

    task: Facts
    rule: str
    runner: int
    target: int
    learn: bool


def round_assignment(view: View, target: Mapping[TaskId, int]) -> list[Choice]:
    """One choice per task, in order."""
    load = Counter(task.owner for task in view.tasks if task.owner is not None)
    choices = []
    for task in view.tasks:
        owner = None if task.owner in view.expired else task.owner
        case = RoundCase(view, task, target[task.id], owner, load)
        found = ((row, row.runner(case)) for row in RULES)
        row, runner = next((row, seat) for row, seat in found if seat is not None)
        load[runner] += owner is None
        learn = row.learn and task.stateful
        choices.append(Choice(task, row.name, runner, case.target, learn))
    return choices


@dataclass(frozen=True, slots=True)
class Learning:
    """Who learns what, the heirs included, and which moves wait for a free place; seats.

    `wanted`: who follows a task as its standby already, and shall have it as soon as it is ready.
    """

    learner: Mapping[int, Sequence[TaskId]]
    parked: Mapping[TaskId, int]
    wanted: Mapping[TaskId, int]


def schedule_learners(
    view: View, choices: Sequence[Choice], heirs: Mapping[TaskId, int]
) -> Learning:
    """Learners within both limits.

    Restore bandwidth belongs to the receiver, so receivers take turns. Those who already learn go
    on; one that has stalled waits behind the new ones; what a leaver holds comes first. Who has a
    standby needs no learner, and it costs nothing that is not spent already.
    """
    learner: defaultdict[int, list[TaskId]] = defaultdict(list)
    wishes: defaultdict[int, list[tuple[int, bool, float, TaskId]]] = defaultdict(list)
    wanted: dict[TaskId, int] = {}
    for choice in choices:
        heir = heirs.get(choice.task.id)
        if heir is not None and not choice.task.stands_by(heir):
            learner[heir].append(choice.task.id)
        if choice.learn and choice.task.stands_by(choice.target):
            wanted[choice.task.id] = choice.target
        elif choice.learn:
            wishes[choice.target].append(_wish(view, choice))
    # Of each receiver one after the other; its nth is behind the nth of others, however near.
    turns = sorted(
        (tier, stays, nth, lag, task, seat)
        for seat, mine in wishes.items()
        for nth, (tier, stays, lag, task) in enumerate(sorted(mine), len(learner[seat]))
    )
    in_flight = sum(map(len, learner.values()))
    limits, parked = view.rules, dict[TaskId, int]()
    for *_, task, seat in turns:
        ours = _below(len(learner[seat]), limits.max_learners_per_member)
        if ours and _below(in_flight, limits.max_learners):
            learner[seat].append(task)
            in_flight += 1
        else:
            parked[task] = seat
    return Learning(learner, parked, wanted)


def _wish(view: View, choice: Choice) -> tuple[int, bool, float, TaskId]:
    """Of the learners that one receiver should have the smallest comes first: 0 learns it already,
    1 is new, 2 learns it and has stalled; then whether its owner stays, and how far it is behind.
    """
    task, seat = choice.task, choice.target
    copy = task.copies.get(seat)
    stalled = task.id in view.members[seat].stalled
    tier = 1 if copy is None or copy.role is not CopyRole.LEARNER else 2 if stalled else 0
    return tier, task.owner not in view.leaving, task.lag(seat), task.id


def _below(count: int, limit: int | None) -> bool:
    return limit is None or count < limit
