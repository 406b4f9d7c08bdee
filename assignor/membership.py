"""News of a group's members, for the log of its leader: who joined, left, came back, or is gone.

A leader compares the members of a round with those of its last plan. A new leader has not seen the
round before: it knows new processes by their `fresh`, and the last leader by the name that the last
plan gave to every member. Members that leave say so in their joins, and so differ from those that
are gone. Tools are no workers.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from streamsx.assignor.leaving import leavers
from streamsx.assignor.model import MemberMetadata, Plan
from streamsx.assignor.names import labels
from streamsx.model import TaskId

UNNAMED = "of another version"
"""Name of a member that cannot be read."""


class MemberChange(Enum):
    """Change of a group's members."""

    JOINED = "joined"
    RESTARTED = "restarted"
    LEFT = "left"
    LOST = "lost"
    DIFFERS = "differs"
    """A worker that runs other code than the leader, in parts or as a whole."""


@dataclass(frozen=True, slots=True)
class MemberNews:
    """Change of one worker.

    `tasks`: the tasks that move to a worker that joined, else those that it had before it went.
    `to`: number of these tasks by the worker that they go to. `total`: number of the app's tasks.
    `back`: the process was a member before. `led`: the worker was the leader. `was`: name of the
    worker that had the same state directory, if another.
    """

    change: MemberChange
    worker: str
    tasks: tuple[TaskId, ...] = ()
    to: Mapping[str, int] = field(default_factory=dict)
    total: int = 0
    back: bool = False
    led: bool = False
    was: str = ""


@dataclass(frozen=True, slots=True)
class SeenMember:
    """Member of the last plan. `handed`: tasks that it had when it began to leave, else None."""

    name: str
    process: str
    tasks: frozenset[TaskId] = frozenset()
    handed: frozenset[TaskId] | None = None
    differs: bool = False
    led: bool = False


class Membership:
    """Members of the newest plan of one leader."""

    def __init__(self) -> None:
        self._seen: dict[str, SeenMember] = {}
        self._round = -1

    def names(self, but: str) -> tuple[str, ...]:
        """Return the names of the workers of the newest plan, without the one of this name."""
        return tuple(sorted(each.name for each in self._seen.values() if each.name != but))

    def name(self, member: str) -> str:
        """Return the name of a member of the newest plan; empty if there is none."""
        seen = self._seen.get(member)
        return seen.name if seen else ""

    def unplanned(self, number: int) -> None:
        """Note that a round was answered without a plan: its members are compared later."""
        if self._seen:
            self._round = number

    def news(
        self,
        members: Sequence[MemberMetadata],
        plan: Plan,
        claimed: Collection[TaskId],
        led_by: str,
        *,
        leader_left: bool,
    ) -> tuple[MemberNews, ...]:
        """Return the news of a round, and keep its members.

        Args:
            members: all members of the round.
            plan: plan of the round.
            claimed: tasks that members of the round have already.
            led_by: name of the leader of the last round that this member knows.
            leader_left: whether that leader was leaving.
        """
        here = [member for member in members if not member.observer]
        named = {m.id: worker_name(m, label) for m, label in zip(here, _labels(here), strict=True)}
        if self._round >= max((member.round for member in here), default=0):
            before = self._seen
            new = {m.id for m in here} - before.keys()
        else:
            stays = any(has_label(m, led_by) for m in here if not m.fresh)
            gone_leader = "" if stays else led_by
            before = self._guess(named, plan, claimed, gone_leader, left=leader_left)
            new = {m.id for m in here if m.fresh}
        gone = {seen: before[seen] for seen in sorted(before.keys() - named.keys())}
        targets: dict[str, list[TaskId]] = {m.id: [] for m in here}
        for task, member in sorted(plan.target.items()):
            targets.setdefault(member, []).append(task)
        total = len(plan.target)
        found: list[MemberNews] = []
        for m in sorted(here, key=lambda m: named[m.id]):
            if m.id not in new:
                continue
            was = next((i for i, g in gone.items() if m.process and g.process == m.process), None)
            if was is None:
                was = next(
                    (i for i, g in gone.items() if g.led and is_label(g.name, m.instance)), None
                )
            change = MemberChange.JOINED if was is None else MemberChange.RESTARTED
            other = "" if was is None else gone.pop(was).name
            found.append(
                MemberNews(
                    change, named[m.id], tuple(targets[m.id]), total=total, back=not m.fresh,
                    was="" if other == named[m.id] else other,
                )
            )  # fmt: skip
        ended = [_ended(each, plan, named, claimed) for each in gone.values()]
        self._keep(here, named, plan, before)
        differ = [
            MemberNews(MemberChange.DIFFERS, seen.name)
            for member, seen in self._seen.items()
            if seen.differs and not (member in before and before[member].differs)
        ]
        return (*ended, *found, *differ)

    def _guess(
        self,
        named: Mapping[str, str],
        plan: Plan,
        claimed: Collection[TaskId],
        gone_leader: str,
        *,
        left: bool,
    ) -> dict[str, SeenMember]:
        """Return what a new leader knows of the round before: the last leader, if it is gone."""
        before = {member: SeenMember(name, "") for member, name in named.items()}
        if gone_leader and left:
            before[""] = SeenMember(gone_leader, "", handed=frozenset(), led=True)
        elif gone_leader:
            tasks = frozenset(plan.target.keys() - set(claimed))
            before[""] = SeenMember(gone_leader, "", tasks, led=True)
        return before

    def _keep(
        self,
        here: Sequence[MemberMetadata],
        named: Mapping[str, str],
        plan: Plan,
        before: Mapping[str, SeenMember],
    ) -> None:
        """Keep the members of this round."""
        leave = leavers(here, plan.memory)
        seen = {}
        for m in here:
            tasks = frozenset((*plan.active.get(m.id, ()), *plan.revoke.get(m.id, ())))
            known = before.get(m.id)
            handed = None if m.id not in leave else (known and known.handed) or tasks
            seen[m.id] = SeenMember(named[m.id], m.process, tasks, handed, bool(differs(m)))
        self._seen = seen
        self._round = plan.memory.round


def _labels(here: Sequence[MemberMetadata]) -> list[str]:
    named = labels(here)
    return [named[member.id] for member in here]


def is_label(label: str, instance: str | None) -> bool:
    """Return whether a label is that of an instance, alone or among others of its name."""
    return instance is not None and (label == instance or label.startswith(f"{instance}@"))


def has_label(member: MemberMetadata, label: str) -> bool:
    """Return whether a label is that of a member, alone or among others of its name."""
    name, at, digits = label.partition("@")
    if member.instance != name:
        return False
    return not at or member.id == digits or member.process.startswith(digits)


def worker_name(member: MemberMetadata, label: str) -> str:
    """Return the label of a member that has a name, and other words for one without."""
    return label if member.instance else UNNAMED


def differs(member: MemberMetadata) -> frozenset[int]:
    """Return the sub-topologies of a member that the leader runs otherwise, or not at all."""
    known = range(len(member.signatures)) if member.knows is None else member.knows
    return frozenset(range(len(member.signatures))) - frozenset(known)


def _ended(
    seen: SeenMember, plan: Plan, named: Mapping[str, str], claimed: Collection[TaskId]
) -> MemberNews:
    """Return the news of a member that is not here any more."""
    tasks = sorted(seen.handed if seen.handed is not None else seen.tasks - set(claimed))
    left = seen.handed is not None or not (tasks or seen.led)  # without tasks it leaves at once
    to = Counter(named[plan.target[t]] for t in tasks if plan.target.get(t) in named)
    change = MemberChange.LEFT if left else MemberChange.LOST
    return MemberNews(change, seen.name, tuple(tasks), dict(sorted(to.items())), led=seen.led)


def idle(member: MemberMetadata, plan: Plan, workers: int, leader: str) -> str:
    """Return why a worker has nothing to do, and will not have; empty if it has or will.

    Args:
        workers: number of workers in the group.
        leader: name of the leader.
    """
    has = (plan.active, plan.learner, plan.standby)
    if member.observer or member.opaque or any(held.get(member.id) for held in has):
        return ""
    coming = {*plan.target.values(), *plan.heirs.values(), *plan.wanted.values()}
    if member.id in coming or member.id in leavers([member], plan.memory):
        return ""
    if differs(member):
        return (
            f"its code differs from that of the leader, worker {leader}: it gets tasks when all "
            "workers run the same code"
        )
    tasks = len(plan.target)
    if not tasks:
        return "the topics that the app reads are not there: create them, or look at their names"
    if tasks < workers:
        return f"the app has {tasks} task{'s' * (tasks != 1)} and {workers} workers"
    return f"the other workers run all {tasks} tasks, and no move would balance them better"
