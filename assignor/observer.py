"""Observer: the membership through which a tool marks instances and reads the state of a group.

A tool joins as an *observer*: without topics, owning nothing, with marks in its user data. The
leader answers with an empty assignment and puts the marks into the memory that every member reads;
the tool leaves at once. So `leave` and `status` need only the broker, and no way to the workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from streamsx.assignor.claims import known, read_members
from streamsx.assignor.leaving import leavers
from streamsx.assignor.model import Decision, Mark, MemberMetadata, PastPlan, Rules
from streamsx.assignor.names import labels, shared
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor
from streamsx.assignor.wire import AssignmentView, read_assignment
from streamsx.errors import DataError
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.consumer_protocol import PROTOCOL_TYPE, Assignment


def observing(marks: Mapping[str, Mark], nonce: int) -> StreamsPartitionAssignor:
    """Return the assignor of a tool that brings marks to the group.

    Its joins are numbered from `nonce` on. Without that number a broker may not notice the join of
    a second tool.
    """
    me = MemberMetadata("", observer=True, nonce=nonce, marks=marks)
    return StreamsPartitionAssignor(me, Rules(), ())


@dataclass(frozen=True, slots=True)
class Instance:
    """Member described by the last join and assignment; lags in records, None: unknown.

    `member`: the member's join; opaque for one of another version, and for all during a rebalance.
    `member.leaving`: also set if a tool has only asked the member to leave.
    `standbys`: these include the ones that shall become active.
    `failures`: active tasks that process nothing until a person repairs the cause, with the reason;
        "" where the member has more reasons than a join can carry.
    `stalled`: followed tasks whose copies have come no nearer for long.
    `alike`: the member runs at least some of the topology as the leader does. A member that
        does not gets a task only when no member that does stays.
    `same_code`: the member runs all of the topology as the leader does.
    """

    member: MemberMetadata
    active: tuple[TaskId, ...] = ()
    learners: Mapping[TaskId, int | None] = field(default_factory=dict)
    standbys: Mapping[TaskId, int | None] = field(default_factory=dict)
    failures: Mapping[TaskId, str] = field(default_factory=dict)
    stalled: tuple[TaskId, ...] = ()
    alike: bool = True
    same_code: bool = True


@dataclass(frozen=True, slots=True)
class GroupReport:
    """State of a group at one moment. `leader` is a member id.

    Right after an observer has led, and while the group rebalances, `leader` is None and
    `generation` is -1: ask again. `topics`: the source topics of each sub-topology. `plans`: the
    newest plans that the leader has made, the newest first.
    """

    generation: int
    leader: str | None
    instances: tuple[Instance, ...]
    withheld: tuple[TaskId, ...]
    marks: Mapping[str, Mark]
    topics: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    protocol_type: str = PROTOCOL_TYPE
    decisions: tuple[Decision, ...] = ()
    plans: tuple[PastPlan, ...] = ()

    @property
    def settled(self) -> bool:
        """Return whether the report shows the runners of tasks, or a group without members."""
        return self.leader is not None or not self.instances

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the label of each member, by member id."""
        return labels(here.member for here in self.instances)

    @property
    def shared(self) -> Mapping[str, frozenset[str]]:
        """Return instance names that several processes share, with these processes."""
        return shared(here.member for here in self.instances)


def describe(members: Sequence[tuple[str, bytes, bytes]]) -> GroupReport:
    """Return the report of a group from DescribeGroups: member ids, Subscriptions, Assignments."""
    joined, _ = read_members([(member, metadata) for member, metadata, _ in members])
    assigned = {member: _read(data) for member, _, data in members}
    leads = (member for member, (_, word) in assigned.items() if word.leader)
    leader = next(leads, None)
    word = assigned[leader][1] if leader is not None else AssignmentView()
    number = {topic: sub for sub, topics in word.topics.items() for topic in topics}
    leaves = leavers(joined, word.memory)
    here = [replace(m, leaving=leaves.get(m.id)) for m in joined if not m.observer]
    ours = next((member.signatures for member in here if member.id == leader), ())
    return GroupReport(
        generation=word.generation if leader is not None else -1,
        leader=leader,
        instances=tuple(_instance(m, *assigned[m.id], number, ours) for m in here),
        withheld=tuple(sorted(word.withheld)),
        marks=word.memory.marks,
        topics=word.topics,
        decisions=word.decisions,
        plans=_plans(word),
    )


def _plans(word: AssignmentView) -> tuple[PastPlan, ...]:
    """Return the newest plans; the newest one alone from a leader of before these were kept."""
    if not word.leader:
        return ()
    first, *past = word.plans or (PastPlan(word.generation, 0, ""),)
    return (replace(first, decisions=word.decisions), *past)


def _read(data: bytes) -> tuple[tuple[TopicPartition, ...], AssignmentView]:
    """Read an Assignment; while the group rebalances the result is empty."""
    try:
        assignment = Assignment.read(data)
        return assignment.partitions, read_assignment(assignment.user_data)
    except DataError:
        return (), AssignmentView()


def _instance(
    member: MemberMetadata,
    partitions: tuple[TopicPartition, ...],
    word: AssignmentView,
    number: Mapping[str, int],
    ours: Sequence[int],
) -> Instance:
    active = {TaskId(number[tp.topic], tp.partition) for tp in partitions if tp.topic in number}
    lags = {task: copy.lag for task, copy in member.copies.items()}
    return Instance(
        member,
        active=tuple(sorted(active)),
        learners={task: lags.get(task) for task in sorted(word.learners)},
        standbys={task: lags.get(task) for task in sorted(word.standbys)},
        failures={t: member.reasons.get(t, "") for t in sorted(active & member.stopped)},
        stalled=tuple(sorted((word.learners | word.standbys) & member.stalled)),
        alike=not ours or known(member.signatures, ours) != frozenset(),
        same_code=not (ours and member.signatures) or tuple(member.signatures) == tuple(ours),
    )
