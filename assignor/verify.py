"""Invariants of every plan, and the sentences that explain a plan.

`verify` runs in production after each assignment: a plan that breaks an invariant is not sent.
`explain` gives the reason for each task that does not simply stay. `in_a_line` summarizes the
changes of each member.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from streamsx.assignor.cooperative import Held
from streamsx.assignor.model import CopyRole, Decision, Plan
from streamsx.assignor.round import Choice, Learning
from streamsx.assignor.standbys import StandbyChange
from streamsx.assignor.view import Facts, View
from streamsx.errors import IllegalPlan
from streamsx.model import TaskId, brief


class Audit:
    """Plan beside the facts it was made from, indexed so that each invariant takes a few lines."""

    def __init__(self, view: View, plan: Plan) -> None:
        self.view = view
        self.plan = plan
        self.seats = {member.id: seat for seat, member in enumerate(view.members)}
        self.tasks = {task.id: task for task in view.tasks}
        self.strangers: list[str] = []
        self.active = list(self._pairs(plan.active.items()))
        self.learner = list(self._pairs(plan.learner.items()))
        self.standby = list(self._pairs(plan.standby.items()))
        waits = ((w.heir, (task,)) for task, w in plan.withheld.items() if w.heir is not None)
        self.heirs = list(self._pairs(waits))

    def _pairs(self, given: Iterable[tuple[str, Sequence[TaskId]]]) -> Iterator[tuple[int, Facts]]:
        for member, tasks in given:
            for task in tasks:
                if member in self.seats and task in self.tasks:
                    yield self.seats[member], self.tasks[task]
                else:
                    self.strangers.append(f"{task} on {member}")

    @property
    def followers(self) -> list[tuple[int, Facts]]:
        return [*self.learner, *self.standby]

    def able(self, seat: int, task: Facts) -> bool:
        return seat in task.able and not self.view.members[seat].opaque


def each_task_is_active_once_or_withheld(audit: Audit) -> Iterator[str]:
    """V1. A missing task stands still; a task that is active twice corrupts its state."""
    times = Counter(task.id for _, task in audit.active)
    times.update(audit.plan.withheld.keys())
    yield from (f"{task} is given {times[task]} times" for task in audit.tasks if times[task] != 1)


def no_task_runs_that_another_member_claims(audit: Audit) -> Iterator[str]:
    """V2. A claimant runs the task until it has released the task: there would be two runners."""
    for seat, task in audit.active:
        if any(claimant != seat for claimant in task.claimants):
            yield f"{task.id} runs while another member claims it"


def only_what_is_claimed_is_withheld(audit: Audit) -> Iterator[str]:
    """V3. No member would release the task, which would stand still for ever."""
    for task in audit.view.tasks:
        if task.id in audit.plan.withheld and audit.view.stay and not task.claimants:
            yield f"{task.id} is withheld although no member claims it"


def a_member_has_one_copy_of_a_task(audit: Audit) -> Iterator[str]:
    """V4. One directory has one store, with one writer."""
    times = Counter((seat, task.id) for seat, task in [*audit.active, *audit.followers])
    yield from (f"{task} is on one member twice" for (_, task), n in times.items() if n > 1)


def a_leaver_receives_nothing(audit: Audit) -> Iterator[str]:
    """V5. A leaver that receives tasks would never finish."""
    for seat, task in audit.active:
        if seat in audit.view.leaving and seat != task.owner:
            yield f"{task.id} is given to a leaver"
    for seat, task in audit.followers:
        if seat in audit.view.leaving:
            yield f"{task.id} is followed by a leaver"


def what_has_no_state_is_not_followed(audit: Audit) -> Iterator[str]:
    """V6. A stateless task has nothing to learn: its learner would never be ready."""
    yield from (f"{task.id} has no state" for _, task in audit.followers if not task.stateful)


def learners_lead_to_the_target(audit: Audit) -> Iterator[str]:
    """V7. A learner that is neither target nor heir works for nothing."""
    for seat, task in audit.learner:
        member = audit.view.name(seat)
        if member not in (audit.plan.target.get(task.id), audit.plan.heirs.get(task.id)):
            yield f"{task.id} is learned where it will not run"


def learners_stay_within_the_limits(audit: Audit) -> Iterator[str]:
    """V8. Restoring takes bandwidth from running tasks. A promise is kept all the same."""
    rules = audit.view.rules
    heirs = audit.plan.heirs
    learners = Counter(seat for seat, _ in audit.learner)
    fresh = {seat for seat, task in audit.learner if heirs.get(task.id) != audit.view.name(seat)}
    one = rules.max_learners_per_member
    group = rules.max_learners
    if one is not None and any(learners[seat] > one for seat in fresh):
        yield "a member learns too much at once"
    if group is not None and fresh and learners.total() > group:
        yield "the group learns too much at once"


def nothing_is_taken_for_a_copy_that_is_not_ready(audit: Audit) -> Iterator[str]:
    """V9. A running task stays until the other copy can continue from there."""
    for seat, task in [*audit.active, *audit.heirs]:
        owner = None if task.owner in (seat, *audit.view.expired) else task.owner
        runs = owner is not None and task.copies[owner].role is CopyRole.RUNNING
        staged = task.stateful and audit.view.rules.staging
        if runs and staged and not audit.view.follows(task, seat):
            yield f"{task.id} is taken from its runner for a copy that is not ready"


def nobody_gets_what_it_cannot_run(audit: Audit) -> Iterator[str]:
    """V10. Members with other code, unreadable ones and tools get no task, but may keep theirs."""
    yield from (f"{stranger}: not in this group" for stranger in audit.strangers)
    for seat, task in [*audit.active, *audit.followers]:
        if seat != task.owner and not audit.able(seat, task):
            yield f"{task.id} is given to a member that cannot run it"


def standbys_are_as_many_as_asked_for(audit: Audit) -> Iterator[str]:
    """V11. Each standby is a copy on a disk, and takes broker bandwidth from other members.

    One standby may be spare. A standby that is promised its task, or shall have it, does not count:
    it is on its way to becoming active.
    """
    plan = audit.plan
    name = audit.view.name
    idle = Counter(
        task.id
        for seat, task in audit.standby
        if name(seat) not in (plan.heirs.get(task.id), plan.wanted.get(task.id))
    )
    most = audit.view.rules.standby + 1
    yield from (f"{task} has {count} standbys" for task, count in idle.items() if count > most)
    for task, member in plan.wanted.items():
        if task not in plan.standby.get(member, ()) or plan.target.get(task) != member:
            yield f"{task} is asked of {member}, which does not learn it or must not have it"


INVARIANTS: tuple[Callable[[Audit], Iterator[str]], ...] = (
    each_task_is_active_once_or_withheld,
    no_task_runs_that_another_member_claims,
    only_what_is_claimed_is_withheld,
    a_member_has_one_copy_of_a_task,
    a_leaver_receives_nothing,
    what_has_no_state_is_not_followed,
    learners_lead_to_the_target,
    learners_stay_within_the_limits,
    nothing_is_taken_for_a_copy_that_is_not_ready,
    nobody_gets_what_it_cannot_run,
    standbys_are_as_many_as_asked_for,
)


def verify(view: View, plan: Plan) -> None:
    """Check all invariants.

    Raises:
        IllegalPlan: at least one is broken; the message names every broken one.
    """
    audit = Audit(view, plan)
    broken = [f"{rule.__name__}: {what}" for rule in INVARIANTS for what in rule(audit)]
    if broken:
        raise IllegalPlan(
            f"bad plan, a bug of streamsx: round {plan.memory.round}: all tasks stay where they "
            f"are, please report this: {'; '.join(broken)}"
        )


# Summary for the log

UNCHANGED_MAX = 8
"""Limit of members named in the summary although nothing changes for them."""


def in_a_line(plan: Plan, labels: Mapping[str, str]) -> str:
    """Return a summary: how many tasks each member runs, and which ones it takes, gives up and
    learns.
    """
    owners = {decision.task: decision.owner for decision in plan.explain}
    new = {(d.to, d.task) for d in plan.explain if d.decision in ("standby-new", "standby-move")}
    parts: list[str] = []
    unchanged: list[str] = []
    for member, label in sorted(labels.items(), key=lambda pair: pair[1]):
        active = plan.active.get(member, ())
        changes = {
            "takes over": [task for task in active if owners.get(task, member) != member],
            "gives up": plan.revoke.get(member, ()),
            "learns": plan.learner.get(member, ()),
            "follows": [task for task in plan.standby.get(member, ()) if (member, task) in new],
        }
        runs = f"{label} runs {len(active)}"
        words = [f"{verb} {brief(tasks)}" for verb, tasks in changes.items() if tasks]
        (parts if words else unchanged).append(", ".join([runs, *words]))
    parts += unchanged[:UNCHANGED_MAX]
    if len(unchanged) > UNCHANGED_MAX:
        parts.append(f"{len(unchanged) - UNCHANGED_MAX} others stay")
    if plan.parked:
        parts.append(f"later: {brief(sorted(plan.parked))}")
    return "; ".join(parts)


# Reasons for tasks that do not simply stay

WHY = {
    "wait": "a command asks the group, so nothing is handed over now; {owner} keeps running",
    "stateless": "no state, so nothing has to be restored",
    "promote": "{left}; {target} (limit {limit}) and takes over",
    "failover": "{left}; {runner} and takes over; {target} and learns it",
    "least-lag": "{left} and no other copy is nearer: {target}",
    "cold": "{left} and no worker has a copy; {to} restores it",
    "hand-over": "{target} (limit {limit}) and takes over from {owner}",
    "unstaged": "nothing is learned first (max_learners is 0); {to} takes over from {owner}",
    "stage": "{target} (limit {limit}); {owner} keeps running",
    "overtake": "{left}; {target} and continues from there",
    "keep-restoring": "{left}; {target}",
    "withheld": "{reason}; {to} is next",
    "parked": "{full}; {runner} and keeps running",
}
WHY_STANDBY = {
    "standby-new": "{copy} and follows it from now on; {count} kept (num_standby_replicas)",
    "standby-move": "{copy} and follows it in place of {instead}, which is too full or too near",
    "standby-spare": "{copy} and follows it until another one is ready (limit {limit})",
    "standby-drop": "{copy} and follows it no more; {count} kept (num_standby_replicas)",
}


def explain(
    view: View,
    choices: Sequence[Choice],
    held: Held,
    learning: Learning,
    changes: Sequence[StandbyChange],
) -> tuple[Decision, ...]:
    """Return the decisions in task order.

    There is one for each task that is not simply kept, and one for each change of a standby.
    """
    decisions = [_of_standby(view, change) for change in changes]
    for choice in choices:
        task = choice.task
        name = choice.rule
        if task.id in held.withheld:
            name = "withheld"
        elif task.id in learning.parked:
            name = "parked"
        if name != "keep":
            why = WHY[name].format_map(_words(view, choice, held, learning))
            owner = view.name(task.owner)
            to = view.name(choice.target)
            lag = task.reported_lag(choice.target)
            decisions.append(Decision(task.id, name, why, owner, to, lag))
    return tuple(sorted(decisions, key=lambda each: each.task))


def _of_standby(view: View, change: StandbyChange) -> Decision:
    task, name, seat, instead = change
    why = WHY_STANDBY[name].format(
        copy=_far(view, task, seat),
        instead=view.label(instead),
        count=view.rules.standby,
        limit=view.rules.acceptable_recovery_lag,
    )
    lag = task.reported_lag(seat)
    return Decision(task.id, name, why, view.name(task.owner), view.name(seat), lag)


def _words(view: View, choice: Choice, held: Held, learning: Learning) -> Mapping[str, object]:
    task = choice.task
    rules = view.rules
    owner = view.label(task.owner)
    to = view.label(choice.target)
    learns = len(learning.learner.get(choice.target, ()))
    full = f"{to} already learns {learns} (max_learners_per_member)"
    if rules.max_learners_per_member is None or learns < rules.max_learners_per_member:
        full = f"the group already learns {rules.max_learners} (max_learners)"
    withheld = held.withheld.get(task.id)
    return {
        "owner": owner,
        "to": to,
        "limit": rules.acceptable_recovery_lag,
        "left": _left(view, task),
        "target": _far(view, task, choice.target),
        "runner": _far(view, task, choice.runner),
        "reason": "" if withheld is None else withheld.reason,
        "full": full,
    }


def _left(view: View, task: Facts) -> str:
    if task.owner is None:
        return "no worker has it now"
    if task.owner in view.expired:
        return f"the time of {view.label(task.owner)} is up"
    return f"{_far(view, task, task.owner)} and restores"


def _far(view: View, task: Facts, seat: int | None) -> str:
    copy = None if seat is None else task.copies.get(seat)
    name = view.label(seat)
    if copy is None:
        return f"{name} has no copy"
    if copy.lag is None:
        return f"{name} does not know how far behind it is"
    where = " on its disk" if copy.role is CopyRole.DORMANT else ""
    return f"{name} is {copy.lag} records behind{where}"
