"""Progress of an instance that was asked to leave, or to stay after all.

A progress is a value; each description of the group makes the next value. The end is one of these:

LEFT       No process of that name is in the group, or another process is: the instance left and
           came back. Tasks that others run by then have moved.
TIMEOUT    The deadline has passed and the instance was still there. The instance leaves all the
           same, now with tasks that no other member has learned: these are the tasks `left`.
CANCELLED  The instance is in the group and stays.
UNKNOWN    The instance was not in the group at the start.

Until then the state is LEAVING, also for an instance that was asked to stay and does not know yet.
A group that rebalances shows only member ids. A missing member id is a reason to note the time, and
no proof that the instance left: a fenced member comes back under another id and still leaves.

Not here: sending marks (`observer`), describing a group (`describe`), the order of steps (`leave`).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from streamsx.assignor.model import Mark, MarkState
from streamsx.assignor.observer import GroupReport, Instance
from streamsx.errors import NotFound, UsageError
from streamsx.model import TaskId

SETTLE_MS = 10_000
"""Wait for a group to name the new owners of a gone member's tasks, in milliseconds."""
NO_MARK = Mark(MarkState.LEAVING)


class LeaveState(Enum):
    """State of a departure, in the words of `streamsx leave`."""

    LEAVING = "leaving"
    LEFT = "left"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LeaveProgress:
    """Progress of one instance.

    `members`: known member ids of the instance. `tasks`: the tasks that the instance ran at the
    first look. `left`: those tasks that no other member runs by now. `cancels`: the instance was
    asked to stay. `swap_to`: the only instance that may take the tasks.

    Unix milliseconds: `asked_ms`; `deadline_ms`, inf without a deadline; `epoch_ms`, of the newest
    known mark; `seen_ms`, of the newest look, or for a `gone` instance of the first look without
    it.
    """

    instance: str
    cancels: bool
    state: LeaveState
    members: frozenset[str]
    tasks: frozenset[TaskId]
    left: frozenset[TaskId]
    asked_ms: int
    deadline_ms: float
    epoch_ms: int
    seen_ms: int
    gone: bool = False
    swap_to: str | None = None

    @property
    def ended(self) -> bool:
        return self.state is not LeaveState.LEAVING

    @property
    def tasks_moved(self) -> int:
        """Return the number of tasks from the first look that others run by now."""
        return len(self.tasks) - len(self.left)

    @property
    def ms(self) -> int:
        """Return the duration of the departure so far, in milliseconds."""
        return self.seen_ms - self.asked_ms


def refuse_shared(names: Iterable[str], report: GroupReport) -> None:
    """Refuse a name that several members share, because a mark would reach all of them.

    Raises:
        UsageError: a name is shared.
    """
    members = [here.member for here in report.instances]
    owners = {report.labels[member.id]: member.instance or "" for member in members}
    for asked in names:
        name = owners.get(asked, asked)
        if name in report.shared:
            rows = ", ".join(label for label, owner in owners.items() if owner == name)
            raise UsageError(
                f"several workers have one name: {asked}: {rows} are called {name}: end the one "
                "that you mean with SIGTERM, or start it again with an --instance-id of its own"
            )


def refuse_absent(successor: str, report: GroupReport) -> None:
    """Refuse a successor that is absent or leaving.

    Raises:
        NotFound: no such instance.
        UsageError: the successor is leaving too.
    """
    if not (mine := _mine(successor, report)):
        raise NotFound(
            f"no such worker: {successor}: it has to join before it can take over: start it"
        )
    if any(here.member.leaving for here in mine):
        raise UsageError(f"worker is leaving: {successor}: name one that stays")


def begun(
    instance: str,
    report: GroupReport,
    *,
    cancels: bool,
    now_ms: int,
    deadline_ms: float,
    swap_to: str | None = None,
) -> LeaveProgress:
    """Return the initial progress, from the first description with known owners."""
    mine = _mine(instance, report)
    leaves = [here.member.leaving for here in mine if here.member.leaving]
    sooner = [leaving.deadline_ms for leaving in leaves if leaving.deadline_ms is not None]
    tasks = frozenset(task for here in mine for task in here.active)
    state = LeaveState.LEAVING if mine else LeaveState.UNKNOWN
    return LeaveProgress(
        instance=instance,
        cancels=cancels,
        state=LeaveState.CANCELLED if mine and cancels and not leaves else state,
        members=frozenset(here.member.id for here in mine),
        tasks=tasks,
        left=tasks,
        asked_ms=now_ms,
        deadline_ms=deadline_ms if cancels else min([deadline_ms, *sooner]),
        epoch_ms=_mark(instance, report).epoch_ms,
        seen_ms=now_ms,
        swap_to=swap_to,
    )


def mark_to_send(departure: LeaveProgress, report: GroupReport, now_ms: int) -> Mark | None:
    """Return the mark that the group does not have yet.

    Returns:
        None: the group has the mark, or an unsettled group does not show it.
    """
    if departure.ended or not report.settled:
        return None
    epoch_ms = max(now_ms, departure.epoch_ms + 1)  # another tool's clock may be ahead
    if departure.cancels:
        knows = _cancels(_mark(departure.instance, report))  # may still leave, by a signal
        return None if knows else Mark(MarkState.CANCELLED, epoch_ms=epoch_ms)
    due_ms = None if departure.deadline_ms == math.inf else int(departure.deadline_ms)
    ways = [here.member.leaving for here in _mine(departure.instance, report)]
    in_time = all(way is not None and (due_ms is None or way.overdue(due_ms)) for way in ways)
    if in_time and departure.swap_to in (None, _mark(departure.instance, report).swap_to):
        return None
    return Mark(MarkState.LEAVING, due_ms, departure.swap_to, epoch_ms)


def after(departure: LeaveProgress, report: GroupReport, now_ms: int) -> LeaveProgress:
    """Return the progress after another description of the group."""
    if departure.ended:
        return departure
    mine = _mine(departure.instance, report)
    back = frozenset(here.member.id for here in mine if here.member.leaving)
    members = back or departure.members
    gone = not any(here.member.id in members for here in report.instances)
    seen_ms = departure.seen_ms if gone and departure.gone else now_ms
    noted = replace(departure, members=members, gone=gone, seen_ms=seen_ms)
    if seen_ms >= departure.deadline_ms:
        return replace(noted, state=LeaveState.TIMEOUT)
    patient = not gone or now_ms <= seen_ms + SETTLE_MS
    if not report.settled:
        return noted if patient else replace(noted, state=LeaveState.LEFT)
    others = [here for here in report.instances if here.member.instance != departure.instance]
    left = departure.tasks.difference(*(here.active for here in others))
    lie = left.difference(*(here.active for here in report.instances))
    if gone and lie and others and patient:  # the next round gives these tasks to other members
        return replace(noted, left=left)
    return replace(noted, left=left, state=_state(noted, report))


def _state(noted: LeaveProgress, report: GroupReport) -> LeaveState:
    """Return the state shown by a description with known owners."""
    mine = _mine(noted.instance, report)
    mark = _mark(noted.instance, report)
    if any(here.member.leaving for here in mine):
        return LeaveState.LEAVING
    if mine and (noted.cancels or (_cancels(mark) and mark.epoch_ms > noted.epoch_ms)):
        return LeaveState.CANCELLED
    return LeaveState.LEFT if noted.gone else LeaveState.LEAVING


def _mine(instance: str, report: GroupReport) -> list[Instance]:
    """Return the members of this name: several, while a dead process is still a member."""
    return [here for here in report.instances if here.member.instance == instance]


def _mark(instance: str, report: GroupReport) -> Mark:
    return report.marks.get(instance, NO_MARK)


def _cancels(mark: Mark) -> bool:
    return mark.state is MarkState.CANCELLED
