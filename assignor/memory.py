"""Memory of the leader: recalled from the members' reports, and sent on with each plan.

Every member keeps the memory of its last assignment and repeats it at the next join, so a new
leader knows the facts that the dead leader knew. Nothing in the memory decides which member may run
a task: lost memory costs only time.
"""

from collections.abc import Mapping, Sequence

from streamsx.assignor.model import Group, Mark, MarkState, MemberMetadata, Memory, TaskKind
from streamsx.assignor.view import View
from streamsx.model import TaskId

MARKS_MAX = 64
MARK_KEPT_MS = 10 * 60 * 1000


def recall(group: Group) -> Memory:
    """Return the newest memory that any member has, without ended marks and with new ones.

    Rounds count up from unix time in seconds. Race: w4 is cut off in round 13; all other members
    stop and start again, so none of them remembers a round; w4 comes back. Round 13 must not be the
    newest then, or the old marks of w4 would count once more.
    """
    own = group.memory or Memory()
    members = [member for member in group.members if not member.observer]
    newest = max((own.round, *(member.round for member in members)))
    marks: dict[str, Mark] = {}
    for known, reported in ((own.round, own.marks), *((m.round, m.marks) for m in members)):
        if known == newest:
            _merge(marks, reported)
    ended = _ended(marks, members, group.now_ms)
    marks = {instance: mark for instance, mark in marks.items() if instance not in ended}
    for member in group.members:
        if member.observer:
            _merge(marks, member.marks)
    balancing = own.balancing if own.round == newest else TaskKind(0)
    return Memory(max(newest, group.now_ms // 1000), balancing, _newest(marks))


def remember(view: View, active: Mapping[TaskId, int], target: Mapping[TaskId, int]) -> Memory:
    """Return the memory after a plan. `active`: the runner of each task, without withheld tasks."""
    balancing = TaskKind(0)
    for task in view.tasks:
        if task.owner in view.stay and active.get(task.id) != target[task.id]:
            balancing |= task.kind
    return Memory(view.memory.round + 1, balancing, view.memory.marks)


def _merge(marks: dict[str, Mark], reported: Mapping[str, Mark]) -> None:
    for instance, mark in reported.items():
        if instance not in marks or _age(marks[instance]) < _age(mark):
            marks[instance] = mark


def _age(mark: Mark) -> tuple[int, int, int, str]:
    """Return the sort key of a mark, older first.

    The fields after `epoch_ms` break ties, so the result is the same in every order of the marks.
    """
    return mark.epoch_ms, mark.state, mark.deadline_ms or 0, mark.swap_to or ""


def _ended(marks: Mapping[str, Mark], members: Sequence[MemberMetadata], now_ms: int) -> set[str]:
    """Return the instances with marks of earlier rounds that have served their purpose.

    An instance that joins fresh has left and come back. An instance that is away for ten minutes is
    not expected any more. A cancellation has been read by then.
    """
    fresh = {member.instance for member in members if member.fresh}
    here = {member.instance for member in members}
    return {
        instance
        for instance, mark in marks.items()
        if instance in fresh
        or (
            max(mark.epoch_ms, mark.deadline_ms or 0) + MARK_KEPT_MS < now_ms
            and (instance not in here or mark.state is MarkState.CANCELLED)
        )
    }


def _newest(marks: Mapping[str, Mark]) -> Mapping[str, Mark]:
    kept = sorted(marks.items(), key=lambda item: (_age(item[1]), item[0]))[-MARKS_MAX:]
    return dict(sorted(kept))
