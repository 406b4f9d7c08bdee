"""Assignment of one round: the runner of each task now, and the learners within their limits.

The target is the member on which a task shall end. A stateful task stays with its runner until the
target is ready to take over; meanwhile the target *learns* the task. `RULES` is the whole decision:
the first matching row counts.
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
    """One task and the target of that task; members are seats.

    `owner` is also None when the owner's deadline has passed. `load`: tasks per seat, including the
    failovers of this round.
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
        """Return the best seat that may receive the task and has a nearer copy than the target."""
        nearer = (
            (not self.view.ready(self.task, seat), copy.behind, self.load[seat], seat)
            for seat, copy in self.task.copies.items()
            if seat in self.task.able and copy.behind < self.task.lag(self.target)
        )
        return min(nearer, default=(None,))[-1]


class Row(NamedTuple):
    """Rule of the table: `runner` returns the seat that runs the task now; None: no match.

    `learn`: the target learns the task meanwhile.
    """

    name: str
    runner: Callable[[RoundCase], int | None]
    learn: bool = False


def _wait(case: RoundCase) -> int | None:
    """Return the owner while a tool is in the group.

    A tool that is killed in its own round would leave the tasks withheld in that round at a
    standstill.
    """
    return case.owner if case.view.observed and case.owner in case.task.claimants else None


def _failover(case: RoundCase) -> int | None:
    """Return the nearest seat for a task without an owner, if learners are staged.

    Without staging the task would go back and forth: m1 releases t for n, which has no copy; no
    member runs t now and m1 has the nearest copy; m1 runs t, the target is n, and m1 releases t
    again.
    """
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
    # No member runs the task: assign it at once, to the best copy there is.
    Row("promote", lambda case: case.target if case.owner is None and case.ready else None),
    Row("failover", _failover, learn=True),
    Row("least-lag", _least_lag),
    Row("cold", lambda case: case.target if case.owner is None else None),
    # A member runs the task.
    Row("hand-over", lambda case: case.target if case.follows else None),
    Row("unstaged", lambda case: None if case.view.rules.staging else case.target),
    Row("stage", lambda case: case.owner if case.hot else None, learn=True),
    # The owner itself is far behind: nothing processes the task now.
    Row("failover", _rescue, learn=True),
    Row("overtake", _overtake),
    Row("keep-restoring", lambda case: case.owner, learn=True),
)


class Choice(NamedTuple):
    """Result of `RULES` for one task; `runner` and `target` are seats."""

    task: Facts
    rule: str
    runner: int
    target: int
    learn: bool


def round_assignment(view: View, target: Mapping[TaskId, int]) -> list[Choice]:
    """Return one choice per task, in task order."""
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
    """Tasks that each seat learns, heirs included, and the moves that wait for a free learner.

    `wanted`: the seat that already follows a task as a standby, and takes over as soon as it is
    ready.
    """

    learner: Mapping[int, Sequence[TaskId]]
    parked: Mapping[TaskId, int]
    wanted: Mapping[TaskId, int]


def schedule_learners(
    view: View, choices: Sequence[Choice], heirs: Mapping[TaskId, int]
) -> Learning:
    """Schedule learners within the limits per member and per group.

    Restore bandwidth belongs to the receiver, so receivers take turns. Present learners go on; a
    stalled one waits behind the new ones; the tasks of a leaver come first. A target with a standby
    needs no learner: the standby costs nothing more.
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
    # Within a tier receivers take turns: the first learner of each comes before the second of any,
    # however near that one is.
    turns = sorted(
        (tier, stays, nth, lag, task, seat)
        for seat, mine in wishes.items()
        for nth, (tier, stays, lag, task) in enumerate(sorted(mine), len(learner[seat]))
    )
    in_flight = sum(map(len, learner.values()))
    limits = view.rules
    parked = dict[TaskId, int]()
    for *_, task, seat in turns:
        ours = _below(len(learner[seat]), limits.max_learners_per_member)
        if ours and _below(in_flight, limits.max_learners):
            learner[seat].append(task)
            in_flight += 1
        else:
            parked[task] = seat
    return Learning(learner, parked, wanted)


def _wish(view: View, choice: Choice) -> tuple[int, bool, float, TaskId]:
    """Return the sort key of a learner; the smallest key of a receiver comes first.

    The tier comes first: 0 is learning, 1 is new, 2 is learning and has stalled. Then
    come the tasks of leavers, then the smallest lag.
    """
    task = choice.task
    seat = choice.target
    copy = task.copies.get(seat)
    stalled = task.id in view.members[seat].stalled
    tier = 1 if copy is None or copy.role is not CopyRole.LEARNER else 2 if stalled else 0
    return tier, task.owner not in view.leaving, task.lag(seat), task.id


def _below(count: int, limit: int | None) -> bool:
    return limit is None or count < limit
