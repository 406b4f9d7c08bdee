"""What must be released before it can be given: no task is taken from a member that runs it.

A task that somebody else still claims is in nobody's active list. Its claimants see it missing,
finish their work, release it and join again; that next round gives it to the heir. The heir is
*promised* the task meanwhile: a few records written before the release must not send it back.
KIP-429.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from streamsx.assignor.model import Withheld
from streamsx.assignor.view import Facts, View
from streamsx.model import TaskId


@dataclass(frozen=True, slots=True)
class Held:
    """The outcome: who runs what, what waits for whom; members are seats."""

    active: Mapping[TaskId, int]
    withheld: Mapping[TaskId, Withheld]
    heirs: Mapping[TaskId, int]


def withhold(view: View, runs: Mapping[TaskId, int | None]) -> Held:
    """`runs`: who shall run each task; None: nobody can."""
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
        return "nobody stays"
    if len(claimants) == 1:
        return f"still owned by {claimants[0]}"
    return f"claimed by {' and '.join(map(str, claimants))}"
