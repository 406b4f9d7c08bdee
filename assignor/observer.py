"""A tool and the group: as whom it tells the members something, and what it reads of them.

A tool joins as an *observer*: no topics, nothing owned, marks in its user data. It is answered with
an empty assignment and leaves at once; the leader has put the marks into the memory that every
member reads. So `leave` and `status` need the broker alone, no way to the workers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from streamsx.assignor.claims import known, read_members
from streamsx.assignor.leaving import leavers
from streamsx.assignor.model import Decision, Mark, MemberMetadata, Rules
from streamsx.assignor.names import labels, shared
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor
from streamsx.assignor.wire import AssignmentView, read_assignment
from streamsx.errors import DataError
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.consumer_protocol import PROTOCOL_TYPE, Assignment


def observing(marks: Mapping[str, Mark], nonce: int) -> StreamsPartitionAssignor:
    """Of a tool that has something to say. Its joins are told apart by `nonce`, from which it
    counts: else a broker may not notice the join of a second tool.
    """
    me = MemberMetadata("", observer=True, nonce=nonce, marks=marks)
    return StreamsPartitionAssignor(me, Rules(), ())


@dataclass(frozen=True, slots=True)
class Instance:
    """A member as its last join and its assignment tell; lags in records, None: unknown.

    `member`: what it said, opaque for one of another version, and for all while the group
    rebalances; `leaving` also if it has only been asked to. `failures`: of the active ones, those
    that process nothing until people have mended something, and why; "" where it has told too many.
    `standbys`: those too that are to become active. `stalled`: what it learns and has not come
    nearer to for long. `alike`: it runs some of the topology as the leader does; who does not is
    given a task when nobody who does stays.
    """

    member: MemberMetadata
    active: tuple[TaskId, ...] = ()
    learners: Mapping[TaskId, int | None] = field(default_factory=dict)
    standbys: Mapping[TaskId, int | None] = field(default_factory=dict)
    failures: Mapping[TaskId, str] = field(default_factory=dict)
    stalled: tuple[TaskId, ...] = ()
    alike: bool = True


@dataclass(frozen=True, slots=True)
class GroupReport:
    """A group as it stands. `leader` is a member id; None, and `generation` -1, right after an
    observer has led or while the group rebalances: ask again. `topics`: what each sub-topology
    reads."""

    generation: int
    leader: str | None
    instances: tuple[Instance, ...]
    withheld: tuple[TaskId, ...]
    marks: Mapping[str, Mark]
    topics: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    protocol_type: str = PROTOCOL_TYPE
    decisions: tuple[Decision, ...] = ()

    @property
    def settled(self) -> bool:
        """It says who runs what; also that nobody is there to run anything."""
        return self.leader is not None or not self.instances

    @property
    def labels(self) -> Mapping[str, str]:
        """What to call each member, by its id."""
        return labels(here.member for here in self.instances)

    @property
    def shared(self) -> Mapping[str, frozenset[str]]:
        """Names of instances that are not one, with the processes that have them."""
        return shared(here.member for here in self.instances)


def describe(members: Sequence[tuple[str, bytes, bytes]]) -> GroupReport:
    """What DescribeGroups tells: member ids, their Subscriptions, their Assignments."""
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
    )


def _read(data: bytes) -> tuple[tuple[TopicPartition, ...], AssignmentView]:
    """Blank while the group rebalances."""
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
    )
