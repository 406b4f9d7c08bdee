"""Cooperative release (KIP-429): no task is taken from a member that still claims the task.

A task that another member still claims is in no active list. Its claimants see the task missing,
finish their work, release the task and join again; the next round gives the task to the heir.
Meanwhile the heir holds a *promise* of the task: a few records written before the release must not
revert the decision.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from streamsx.assignor.model import Withheld
from streamsx.assignor.view import Facts, View
from streamsx.model import TaskId


@dataclass(frozen=True, slots=True)
class Held:
    """Result of `withhold`: active tasks, withheld tasks and heirs; members are seats."""

    active: Mapping[TaskId, int]
    withheld: Mapping[TaskId, Withheld]
    heirs: Mapping[TaskId, int]


def withhold(view: View, runs: Mapping[TaskId, int | None]) -> Held:
    """Withhold each task that a member other than the chosen runner claims.

    `runs`: the chosen runner of each task; None: no member can run the task.
    """
    active: dict[TaskId, int] = {}
    withheld: dict[TaskId, Withheld] = {}
    heirs: dict[TaskId, int] = {}
    for task in view.tasks:
        runner = runs[task.id]
        if runner is not None and all(seat == runner for seat in task.claimants):
            active[task.id] = runner
            continue
        heir = runner if runner in view.stay else None
        withheld[task.id] = Withheld(view.name(task.owner), view.name(heir), _reason(view, task))
        if heir is not None and task.stateful and heir in task.copies:
            heirs[task.id] = heir
    return Held(active, withheld, heirs)


def _reason(view: View, task: Facts) -> str:
    claimants = [view.label(seat) for seat in task.claimants]
    if not claimants:
        return "all workers leave"
    if len(claimants) == 1:
        return f"still owned by {claimants[0]}"
    return f"claimed by {' and '.join(map(str, claimants))}"
