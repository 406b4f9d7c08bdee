"""Input and output of `assign()`: frozen values without behaviour.

`Group` is the group in one rebalance, described by the members; `Plan` is the answer.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag

from streamsx.model import TaskId, TopicPartition

METRICS = (
    "partitions-revoked-latency-avg", "partitions-revoked-latency-max",
    "partitions-assigned-latency-avg", "partitions-assigned-latency-max",
    "partitions-lost-latency-avg", "partitions-lost-latency-max",
    "rebalance-rate-per-hour", "rebalance-total", "rebalance-latency-avg",
    "rebalance-latency-max", "rebalance-latency-total", "failed-rebalance-rate-per-hour",
    "failed-rebalance-total", "last-rebalance-seconds-ago",
)  # fmt: skip
"""Rebalance metrics of a member, with the names of KIP-429.

They travel in this order; append new ones at the end.
"""


class CopyRole(IntEnum):
    """Role in which a member holds a copy of a task; the numbers travel on the wire."""

    RUNNING = 0
    RESTORING = 1  # assigned to the member, not at the end of the changelog yet
    LEARNER = 2  # of a task that runs elsewhere and will move here
    STANDBY = 3
    DORMANT = 4  # on disk, not kept up to date


class TaskKind(IntFlag):
    """Kinds of tasks, balanced separately; the numbers travel on the wire."""

    STATEFUL = 1
    STATELESS = 2


class MarkState(IntEnum):
    """Request of a tool to an instance; the numbers travel on the wire."""

    LEAVING = 0
    CANCELLED = 1


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """Unit of work: one member has all source partitions of the task, or no member has any."""

    id: TaskId
    stateful: bool
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """State of a task on one member. `lag`: records behind the changelog's end, None: unknown."""

    role: CopyRole
    lag: int | None = None

    @property
    def behind(self) -> float:
        if self.role is CopyRole.RUNNING:
            return 0
        return math.inf if self.lag is None else self.lag


RUNNING = Copy(CopyRole.RUNNING, 0)


@dataclass(frozen=True, slots=True)
class LeaveRequest:
    """Request of a member to leave the group.

    After `deadline_ms` (unix time, None: no deadline) the member stops, whether or not another
    member is ready. `swap_to`: the instance that takes the member's place, if that instance is in
    the group.
    """

    deadline_ms: int | None = None
    swap_to: str | None = None

    def overdue(self, now_ms: int) -> bool:
        return self.deadline_ms is not None and self.deadline_ms <= now_ms


@dataclass(frozen=True, slots=True)
class Mark:
    """Request of a tool to an instance, made at `epoch_ms`; of two marks the newer one counts.

    `swap_to`: the instance that shall take the marked instance's place. A leader of an older
    version reads such a mark as an ordinary leave.
    """

    state: MarkState
    deadline_ms: int | None = None
    swap_to: str | None = None
    epoch_ms: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """Facts that no present owner could report; they go to every member with each plan.

    `balancing`: kinds with at least one task that is still moving although the owner stays.
    """

    round: int = 0
    balancing: TaskKind = TaskKind(0)  # noqa: RUF009  # a constant
    marks: Mapping[str, Mark] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """Member of the group, described by the member's own join.

    `tags`: where the member runs, such as its zone.
    `heirs`: tasks that the member was promised.
    `wanted`: those of the member's standbys that shall become active.
    `stalled`: learners with a lag that has not fallen for a minute.
    `knows`: sub-topologies that the member runs the same way as the leader, None: all.
    `opaque`: the leader cannot read the member, which keeps its claims and gets nothing.
    `eager`: the member released everything before it joined, and claims nothing.
    `fresh`: the process has had no assignment yet.
    `marks`, `round`: those of the newest memory the member has; the marks of an observer are new.
    `stops_app`: the reason for which the member stops all workers of the app, empty if it does not.
    `signatures`: those of the member's sub-topologies, from which the leader derives `knows`.

    The other fields are for the coordinator and for people; no rule reads them: `nonce`, `version`
    (of streamsx), `metrics`, `session_ms` and `commit_ms` (the session timeout and the interval of
    commits, 0: not known), `stopped` (tasks that the member runs and that process nothing) and
    `reasons` (the cause, for some of the stopped tasks).
    """

    id: str
    instance: str | None = None
    process: str = ""
    capacity: int = 1
    tags: Mapping[str, str] = field(default_factory=dict)
    leaving: LeaveRequest | None = None
    fresh: bool = False
    eager: bool = False
    observer: bool = False
    opaque: bool = False
    claims: frozenset[TopicPartition] = frozenset()
    copies: Mapping[TaskId, Copy] = field(default_factory=dict)
    heirs: frozenset[TaskId] = frozenset()
    wanted: frozenset[TaskId] = frozenset()
    stalled: frozenset[TaskId] = frozenset()
    stopped: frozenset[TaskId] = frozenset()
    reasons: Mapping[TaskId, str] = field(default_factory=dict)
    knows: frozenset[int] | None = None
    round: int = 0
    marks: Mapping[str, Mark] = field(default_factory=dict)
    stops_app: str = ""
    signatures: tuple[int, ...] = ()
    nonce: int = 0
    version: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    session_ms: int = 0
    commit_ms: int = 0

    @property
    def name(self) -> str:
        return self.instance or self.process or self.id


@dataclass(frozen=True, slots=True)
class Group:
    """Complete input of a plan. `now_ms` is unix time; `memory` None: this leader has none."""

    tasks: Sequence[PlannedTask]
    members: Sequence[MemberMetadata]
    memory: Memory | None = None
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of the leader: lags in records, learners in flight. None: no limit, 0: no staging.

    `standby`: copies of each stateful task beside the running one. `tags`: keys of members' tags,
    the most important first; the copies of a task are spread over the values of these tags.
    """

    acceptable_recovery_lag: int = 10_000
    standby: int = 0
    imbalance_percentage: float = 0.2
    max_learners: int | None = None
    max_learners_per_member: int | None = 2
    tags: tuple[str, ...] = ()

    @property
    def staging(self) -> bool:
        return self.max_learners != 0 and self.max_learners_per_member != 0


@dataclass(frozen=True, slots=True)
class Withheld:
    """Task in no active list: `owner` must release the task before `heir` may run it."""

    owner: str | None
    heir: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Reason for a task that does not simply stay.

    `lag` is that of `to`, None: unknown or no copy.
    """

    task: TaskId
    decision: str
    why: str
    owner: str | None
    to: str | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class PastPlan:
    """Plan as people read it later: who led, who came and went, and why tasks moved.

    Workers go by their labels. `at_ms` is Unix time. `joined`: workers without an assignment before
    this plan. `left`: workers of the plan before that ended in order, as far as this leader made
    that one. `gone`: those that ended otherwise.
    """

    generation: int
    at_ms: int
    leader: str
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Tasks that each member runs, learns, follows and gives up after this rebalance.

    Keys are member ids; tasks are sorted.

    `withheld`: tasks to be released first; another rebalance follows as soon as they have been.
    `learner`, `standby`: these include the promised tasks, which `heirs` lists.
    `wanted`: standbys that become active as soon as they are ready.
    `target`: the member on which each task shall end.
    `parked`: moves that wait for a free learner.
    `moves`: number of tasks whose target is not their owner.
    """

    active: Mapping[str, tuple[TaskId, ...]]
    learner: Mapping[str, tuple[TaskId, ...]]
    standby: Mapping[str, tuple[TaskId, ...]]
    revoke: Mapping[str, tuple[TaskId, ...]]
    withheld: Mapping[TaskId, Withheld]
    heirs: Mapping[TaskId, str]
    wanted: Mapping[TaskId, str]
    target: Mapping[TaskId, str]
    parked: Mapping[TaskId, str]
    no_takers: bool
    moves: int
    memory: Memory
    explain: tuple[Decision, ...]
