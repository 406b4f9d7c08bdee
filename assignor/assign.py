"""`assign(group, rules) -> Plan`: one pure function of a frozen view. The order of its steps.

No clock (`now_ms` is a field of the group), no randomness, no state between calls: the same group
gives the same plan, whatever order its members and tasks come in.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from streamsx.assignor.cooperative import Held, withhold
from streamsx.assignor.leaving import leavers
from streamsx.assignor.memory import recall, remember
from streamsx.assignor.model import Decision, Group, Plan, Rules
from streamsx.assignor.round import Learning, round_assignment, schedule_learners
from streamsx.assignor.standbys import StandbyAssignment, stand_by
from streamsx.assignor.target import target_assignment
from streamsx.assignor.verify import explain, verify
from streamsx.assignor.view import View, survey
from streamsx.model import TaskId


def assign(group: Group, rules: Rules) -> Plan:
    """Who runs and who learns each task. Raises IllegalPlan (a bug: leave all claims in place)."""
    # 1. Who is here, who leaves, who claims, owns and could take what.
    view = look(group, rules)
    # 2. Where every task shall end; nowhere, if nobody can take over.
    target = target_assignment(view) if view.stay else {}
    # 3. Who runs it in this round. When nobody stays owners go on, and the rest is withheld for
    #    nobody: every leaver is told to stop at once, as learners will never be (`no_takers`).
    choices = round_assignment(view, target) if view.stay else []
    owners = {task.id: task.owner for task in view.tasks}
    runs = owners | {choice.task.id: choice.runner for choice in choices}
    # 4. What its holder must release first.
    held = withhold(view, runs)
    # 5. Who learns what, within the limits.
    learning = schedule_learners(view, choices, held.heirs)
    # 6. Who follows what, beside all that.
    standing = stand_by(view, target, held, learning)
    # 7. Why.
    why = explain(view, choices, held, learning, standing.changes)
    plan = _plan(view, target, held, learning, standing, why)
    # 8. What must hold of every plan.
    verify(view, plan)
    return plan


def look(group: Group, rules: Rules) -> View:
    """The group with its derived facts, as `assign` and `verify` see it."""
    memory = recall(group)
    return survey(group, rules, memory, leavers(group.members, memory))


def _plan(
    view: View,
    target: Mapping[TaskId, int],
    held: Held,
    learning: Learning,
    standing: StandbyAssignment,
    why: tuple[Decision, ...],
) -> Plan:
    ids = [member.id for member in view.members]
    active = _by_member(ids, held.active.items())
    claimed = ((task.id, seat) for task in view.tasks for seat in task.claimants)
    return Plan(
        active=active,
        learner=_by_seat(ids, learning.learner),
        standby=_by_seat(ids, standing.standby),
        revoke=_by_member(ids, (c for c in claimed if held.active.get(c[0]) != c[1])),
        withheld=held.withheld,
        heirs={task: ids[seat] for task, seat in held.heirs.items()},
        wanted={task: ids[seat] for task, seat in sorted(learning.wanted.items())},
        target={task: ids[seat] for task, seat in sorted(target.items())},
        parked={task: ids[seat] for task, seat in sorted(learning.parked.items())},
        no_takers=not view.stay,
        moves=sum(target.get(task.id, task.owner) != task.owner for task in view.tasks),
        memory=remember(view, held.active, target),
        explain=why,
    )


def _by_seat(
    ids: list[str], tasks: Mapping[int, Sequence[TaskId]]
) -> Mapping[str, tuple[TaskId, ...]]:
    return {member: tuple(sorted(tasks.get(seat, ()))) for seat, member in enumerate(ids)}


def _by_member(
    ids: list[str], pairs: Iterable[tuple[TaskId, int]]
) -> Mapping[str, tuple[TaskId, ...]]:
    """`pairs` in task order."""
    tasks: defaultdict[int, list[TaskId]] = defaultdict(list)
    for task, seat in pairs:
        tasks[seat].append(task)
    return {member: tuple(tasks[seat]) for seat, member in enumerate(ids)}
