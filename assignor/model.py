"""What `assign()` is given and what it answers: frozen values. No behaviour.

`Group` is the group as its members describe it in one rebalance, `Plan` the answer.
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
"""Of a member, as KIP-429 names them; they travel in this order, and new ones come behind."""


class CopyRole(IntEnum):
    """What a member holds a copy of a task as; the numbers travel on the wire."""

    RUNNING = 0
    RESTORING = 1  # its task, not at the end of the changelog yet
    LEARNER = 2  # of a task that runs elsewhere and will come here
    STANDBY = 3
    DORMANT = 4  # on disk, nobody keeps it up


class TaskKind(IntFlag):
    """Tasks with and without state are balanced apart; the numbers travel on the wire."""

    STATEFUL = 1
    STATELESS = 2


class MarkState(IntEnum):
    """What a tool has asked of an instance; the numbers travel on the wire."""

    LEAVING = 0
    CANCELLED = 1


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """A unit of work: all its source partitions are with one member, or none is."""

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
    """On its way out; after `deadline_ms` (unix, None: never) it stops whoever is ready. `swap_to`:
    the instance that takes its seat, if it is in the group.
    """

    deadline_ms: int | None = None
    swap_to: str | None = None

    def overdue(self, now_ms: int) -> bool:
        return self.deadline_ms is not None and self.deadline_ms <= now_ms


@dataclass(frozen=True, slots=True)
class Mark:
    """A wish for an instance, told by a tool at `epoch_ms`; of two the newer one counts.

    `swap_to`: the instance that is to take its seat; to a leader of before a leave as any other.
    """

    state: MarkState
    deadline_ms: int | None = None
    swap_to: str | None = None
    epoch_ms: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """What has no owner present who could report it: goes to every member with each plan.

    `balancing`: kinds of which some task is still on its way although its owner stays.
    """

    round: int = 0
    balancing: TaskKind = TaskKind(0)  # noqa: RUF009  # a constant
    marks: Mapping[str, Mark] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """A member as it describes itself at its join.

    `tags`: where it is, such as its zone. `heirs`: tasks it was promised. `wanted`: of its standbys
    those that are to become active. `stalled`: learners whose lag has not fallen for a minute.
    `knows`: sub-topologies it runs the same way as the leader, None: all. `opaque`: the leader
    cannot read it; it keeps what it claims and gets nothing. `eager`: it has let go of everything
    before it joined, and claims nothing. `fresh`: its process has had no assignment yet. `marks`
    and `round` are those of the newest memory it has; an observer's marks are news. `signatures`:
    of its sub-topologies, from which the leader tells what it `knows`. `nonce`, `version` (of
    streamsx), `metrics`, `stopped` (tasks that it runs and that process nothing) and `reasons`
    (why, of some of them) are for the coordinator and for people; no rule reads them.
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
    signatures: tuple[int, ...] = ()
    nonce: int = 0
    version: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.instance or self.process or self.id


@dataclass(frozen=True, slots=True)
class Group:
    """All that a plan depends on. `now_ms` is unix time; `memory` None: this leader has none."""

    tasks: Sequence[PlannedTask]
    members: Sequence[MemberMetadata]
    memory: Memory | None = None
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """The leader's settings: lags in records, learners in flight. None: no limit, 0: no staging.

    `standby`: copies of each task with state beside the one that runs. `tags`: keys of members'
    tags, the first one first, over whose values the copies of a task are spread.
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
    """A task in nobody's active list: `owner` must release it before `heir` may run it."""

    owner: str | None
    heir: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Why a task is not simply where it was; `lag` is that of `to`, None: unknown or no copy."""

    task: TaskId
    decision: str
    why: str
    owner: str | None
    to: str | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class Plan:
    """Who runs, learns and gives up what after this rebalance, by member id; tasks sorted.

    `withheld`: another rebalance comes as soon as these have been released.
    `learner` and `standby` include the promised ones, which `heirs` names; `wanted`: standbys that
    are to become active as soon as they are ready. `target`: where each task shall end; `parked`:
    moves that wait for a free learner; `moves`: tasks whose target is not their owner.
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
