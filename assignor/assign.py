"""Entry point of the assignor: `assign(group, rules) -> Plan`, a pure function of a frozen view.

The function reads no clock (`now_ms` is a field of the group), draws no random number and keeps no
state between calls. The same group gives the same plan, in whatever order members and tasks come.
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
    """Return the plan of one round: the runner of each task, learners and standbys.

    Raises:
        IllegalPlan: the plan breaks an invariant, which is a bug; leave all claims in place.
    """
    # 1. Derive the facts: members, leavers, and the claimants, owner and takers of each task.
    view = look(group, rules)
    # 2. Compute the target of every task; there is none if no member stays.
    target = target_assignment(view) if view.stay else {}
    # 3. Choose the runner of each task in this round. When no member stays, owners go on, and the
    #    other tasks are withheld without an heir. `no_takers` makes every leaver stop at once,
    #    because no learner will ever come.
    choices = round_assignment(view, target) if view.stay else []
    owners = {task.id: task.owner for task in view.tasks}
    runs = owners | {choice.task.id: choice.runner for choice in choices}
    # 4. Withhold the tasks that another member must release first.
    held = withhold(view, runs)
    # 5. Schedule learners within the limits.
    learning = schedule_learners(view, choices, held.heirs)
    # 6. Place standbys beside runners and learners.
    standing = stand_by(view, target, held, learning)
    # 7. Explain the decisions.
    why = explain(view, choices, held, learning, standing.changes)
    plan = _plan(view, target, held, learning, standing, why)
    # 8. Check the invariants of every plan.
    verify(view, plan)
    return plan


def look(group: Group, rules: Rules) -> View:
    """Return the group with derived facts, the view that `assign` and `verify` share."""
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
    """Group `pairs` by member id; pairs come in task order."""
    tasks: defaultdict[int, list[TaskId]] = defaultdict(list)
    for task, seat in pairs:
        tasks[seat].append(task)
    return {member: tuple(tasks[seat]) for seat, member in enumerate(ids)}
