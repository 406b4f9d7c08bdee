"""Partition assignor of one member: topics and bytes at the border, tasks inside."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from streamsx.assignor.assign import assign
from streamsx.assignor.claims import Metadata, read_members
from streamsx.assignor.codec import Unreadable
from streamsx.assignor.leaving import evictions, leavers
from streamsx.assignor.membership import (
    MemberChange,
    MemberNews,
    Membership,
    differs,
    idle,
    worker_name,
)
from streamsx.assignor.memory import recall
from streamsx.assignor.model import (
    Copy,
    CopyRole,
    Decision,
    Group,
    MemberMetadata,
    PastPlan,
    Plan,
    PlannedTask,
    Rules,
)
from streamsx.assignor.names import labels, shared
from streamsx.assignor.verify import in_a_line
from streamsx.assignor.wire import (
    PLAN_DECISIONS_MAX,
    PLANS_MAX,
    AssignmentView,
    ErrorWord,
    read_assignment,
    write_assignment,
    write_join,
)
from streamsx.errors import IllegalPlan
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.consumer_protocol import Assignment

RECORD_BYTES_NEAR = 768 << 10
RECORD_BYTES_MAX = 1000 << 10
"""Size of a group's record from which on the assignor warns, and the limit of that size.

A coordinator keeps the whole group in one record, and a broker rejects a record of more than
`message.max.bytes`, by default 1 MiB: the SyncGroup of all members would fail, again and again.
"""
MEMBER_BYTES = 50
"""Bytes that Kafka writes for a member beside the data, the member id and the instance id in it."""
STOPS = "topic-gone"
"""Decision about a task that cannot run, because a source topic of it is gone."""
FEWER = (
    "All tasks stay where they are; use shorter names of topics, fewer topics to a worker, or "
    "fewer workers."
)


@dataclass(frozen=True, slots=True)
class Subtopology:
    """Part of the topology that one task runs.

    `signature`: 32 bits that differ when the code differs. `tasks`: number of tasks for which the
    state was made; None: as many as the topics have partitions.
    """

    number: int
    topics: tuple[str, ...]
    stateful: bool
    signature: int
    tasks: int | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Answer of a leader.

    `assignments`: Assignment bytes for every member, observers included.
    `plan`: None beside an `error`: each member keeps its claims.
    `record_bytes`: bytes of the one record that the coordinator will write for this generation.
    `evictions`: members to remove if they are still there, with the time in unix ms.
    `notes`: sentences for the log. `summary`: the plan in one line.
    `news`: changes of the members since the last plan.
    `round`: number of the round, which the members report from now on.
    """

    assignments: Mapping[str, bytes]
    plan: Plan | None
    evictions: Mapping[str, int]
    error: ErrorWord
    notes: tuple[str, ...]
    record_bytes: int = 0
    summary: str = ""
    news: tuple[MemberNews, ...] = ()
    round: int = 0

    @property
    def alarm(self) -> str:
        """Return a warning, for people, that the group's record nears its limit; else empty."""
        if self.record_bytes <= RECORD_BYTES_NEAR:
            return ""
        return (
            f"The group's record nears its limit: {self.record_bytes:,} of {RECORD_BYTES_MAX:,} "
            "bytes. Use shorter names of topics, fewer topics to a worker, or fewer workers."
        )


class StreamsPartitionAssignor:
    """Assignor of one member, pure except for the last assignment, kept and repeated.

    At a join `user_data(said)` goes into the Subscription. If this member is elected, `assign()`
    returns the assignments of all members, within a second for 10,000 tasks on 200 members; no data
    of a member make it raise. Each assignment goes into `on_assignment(user_data)`.

    `me`: the facts of this member that are the same at every join; the marks of an observer are new
    ones, and its joins are numbered from its nonce on. `rules`: used if this member leads.
    """

    name = "streamsx"

    def __init__(
        self, me: MemberMetadata, rules: Rules, subtopologies: Sequence[Subtopology]
    ) -> None:
        numbers = [sub.number for sub in subtopologies]
        assert numbers == list(range(len(numbers))), f"signatures travel by position: {numbers}"
        self._topics = {sub.number: sub.topics for sub in subtopologies}
        self._subtopologies = tuple(subtopologies)
        self._number = {topic: sub.number for sub in subtopologies for topic in sub.topics}
        self._rules = rules
        self._led: tuple[PastPlan, ...] = ()
        """Plans that this member has made as the leader, the newest first."""
        self._self = replace(me, signatures=tuple(sub.signature for sub in subtopologies))
        self._last = AssignmentView()
        self._membership = Membership()

    @property
    def others(self) -> tuple[str, ...]:
        """Return the names of the other workers of the newest plan; a leader alone knows them."""
        return self._membership.names(self._self.name) if self._last.leader else ()

    @property
    def led_by(self) -> str:
        """Return the name of the leader as of the last assignment; empty if it is not known."""
        return self._last.led_by

    def worker(self, member: str) -> str:
        """Return the name of a member of this leader's newest plan; empty if it has none."""
        return self._membership.name(member)

    def task_of(self, tp: TopicPartition) -> TaskId | None:
        """Return the task of a partition; None: the topic is no source of this topology."""
        number = self._number.get(tp.topic)
        return None if number is None else TaskId(number, tp.partition)

    def tasks_of(self, tps: Iterable[TopicPartition]) -> frozenset[TaskId]:
        """Return the tasks with at least one of these partitions.

        A member that is assigned one partition of a task is assigned all of them.
        """
        return frozenset(task for tp in tps if (task := self.task_of(tp)) is not None)

    def partitions_of(
        self, task: TaskId, partitions: Mapping[str, int]
    ) -> tuple[TopicPartition, ...]:
        """Return the source partitions of a task.

        `partitions`: number of partitions of each topic; the topics of a stateless task need not
        have equally many.
        """
        return tuple(
            TopicPartition(topic, task.partition)
            for topic in self._topics[task.subtopology]
            if task.partition < partitions.get(topic, 0)
        )

    def user_data(self, said: MemberMetadata) -> bytes:
        """Return the user data of this member's Subscription.

        The claims travel in the Subscription itself, as owned partitions. The method adds the
        identity of the member and its last assignment to `said`. `nonce` grows by 1 at every join;
        without that a broker would answer some joins with the old assignment.
        """
        me = self._self
        last = self._last
        if me.observer:
            return write_join(replace(me, nonce=me.nonce + said.nonce))
        claimed = self.tasks_of(said.claims)
        return write_join(
            replace(
                said,
                instance=me.instance,
                process=me.process,
                capacity=me.capacity,
                tags=me.tags,
                eager=me.eager,
                signatures=me.signatures,
                version=me.version,
                session_ms=me.session_ms,
                commit_ms=me.commit_ms,
                copies=_reported(_followed(said.copies, last), claimed),
                heirs=last.promises - claimed,
                wanted=last.wanted - claimed,
                marks=last.memory.marks,
                round=last.memory.round,
            )
        )

    def on_assignment(self, user_data: bytes) -> AssignmentView:
        """Read and keep the leader's user data.

        Unreadable data change nothing; the returned view then carries an error and the problem.
        """
        try:
            view = read_assignment(user_data)
        except Unreadable as error:
            word = ErrorWord.ASSIGNMENT_FAILED
            return replace(self._last, error=word, problem=str(error))
        self._last = replace(view, mark=view.memory.marks.get(self._self.name))
        return self._last

    def assign(
        self,
        metadata: Metadata,
        partitions: Mapping[str, int],
        *,
        leader: str,
        generation: int,
        now_ms: int,
    ) -> Outcome:
        """Assign tasks to all members of the group, as its leader.

        `metadata`: member ids and Subscription bytes, all of the answer to JoinGroup.
        `partitions`: number of partitions of each topic by fresh metadata. 0: the topic is gone,
            and the tasks that need it are given up. A missing topic is unknown, and nothing moves.
        `leader`: the id of this member. `now_ms`: unix time.

        An observer knows no tasks, so nothing moves; the marks enter the memory all the same. The
        kinds that were being balanced are forgotten: the next leader may stop inside the tolerance.
        """
        outcome = self._outcome(metadata, partitions, leader, generation, now_ms)
        if outcome.plan is None:
            self._membership.unplanned(outcome.round)
        return outcome

    def _outcome(
        self,
        metadata: Metadata,
        partitions: Mapping[str, int],
        leader: str,
        generation: int,
        now_ms: int,
    ) -> Outcome:
        """Return the plan, or the claims as they are."""
        members, unread = read_members(metadata, self._self.signatures)
        if self._self.observer:
            return claims_stay(Group((), members, None, now_ms), ErrorWord.NONE, more=True)
        group = Group(self._tasks(partitions), members, self._last.memory, now_ms)
        unknown = sorted(topic for topic in self._number if topic not in partitions)
        if unknown:
            why = (
                f"Source topics are not there: {', '.join(unknown)}. All tasks stay where they "
                "are; create the topics."
            )
            return claims_stay(group, ErrorWord.SOURCE_TOPIC_MISSING, (*unread, why))
        try:
            plan = assign(group, self._rules)
        except IllegalPlan as error:
            notes = (*unread, str(error), f"its input: {group!r} {self._rules!r}")
            return claims_stay(group, ErrorWord.ASSIGNMENT_FAILED, notes)
        strangers = self._strangers(members, partitions)
        named = labels(member for member in members if not member.observer)
        plan = replace(plan, explain=self._explained(plan, members, partitions))
        words = _words(plan, members, leader)
        words[leader] = replace(
            words[leader],
            leader=True,
            generation=generation,
            withheld=frozenset(plan.withheld),
            topics=self._topics,
            decisions=tuple(_named(each, named) for each in plan.explain),
        )
        claimed = {t for member in members for t in self._runs(member)}
        last = self._last
        news = self._membership.news(
            members, plan, claimed, last.led_by, leader_left=last.leader_leaves
        )
        past = self._past(words[leader], now_ms, news)
        assignments = _answers(metadata, group, plan, words, strangers, leader, past)
        summary = f"Plan of round {generation}: {in_a_line(plan, named)}."
        notes = (*unread, *_kept(strangers, named))
        record = sum(len(data) + 2 * len(member) + MEMBER_BYTES for member, data in metadata)
        record += sum(map(len, assignments.values()))
        if record > RECORD_BYTES_MAX:
            why = f"The group's record is too large: {record} of {RECORD_BYTES_MAX} bytes. {FEWER}"
            return claims_stay(group, ErrorWord.ASSIGNMENT_FAILED, (*unread, why))
        gone = evictions(members, plan.memory, now_ms)
        return Outcome(
            assignments, plan, gone, ErrorWord.NONE, notes, record, summary, news, plan.memory.round
        )

    def _explained(
        self, plan: Plan, members: Sequence[MemberMetadata], partitions: Mapping[str, int]
    ) -> tuple[Decision, ...]:
        """Return the decisions, with one for each task that stops because its topic is gone."""
        absent = {
            sub.number: gone
            for sub in self._subtopologies
            if (gone := [topic for topic in sub.topics if partitions.get(topic) == 0])
        }
        if not absent:
            return plan.explain
        owners = {task: member.id for member in members for task in self._runs(member)}
        stops = [
            Decision(task, STOPS, _why_absent(absent[task.subtopology]), owner, None, None)
            for task, owner in owners.items()
            if task.subtopology in absent and task not in plan.target
        ]
        return tuple(sorted((*plan.explain, *stops), key=lambda each: each.task))

    def _runs(self, member: MemberMetadata) -> frozenset[TaskId]:
        """Return the tasks that a member has; an eager one claims nothing, and has released all."""
        ran = (task for task, copy in member.copies.items() if copy.role <= CopyRole.RESTORING)
        return self.tasks_of(member.claims).union(ran)

    def _past(
        self, word: AssignmentView, now_ms: int, news: Sequence[MemberNews]
    ) -> tuple[PastPlan, ...]:
        """Return this plan and the last ones, and keep this one unless it has changed nothing."""
        joined = tuple(sorted(each.worker for each in news if _has_come(each)))
        left = _changed(news, MemberChange.LEFT)
        gone = _changed(news, MemberChange.LOST)
        noted = PastPlan(word.generation, now_ms, self._self.name, joined, left, gone=gone)
        past = self._led
        if word.decisions or joined or left or gone:
            kept = replace(noted, decisions=word.decisions[:PLAN_DECISIONS_MAX])
            self._led = (kept, *past)[:PLANS_MAX]
        return (noted, *past)

    def _tasks(self, partitions: Mapping[str, int]) -> list[PlannedTask]:
        """Return one task for each partition of the largest source topic of each sub-topology.

        A stateful task reads all of its topics or none. State cannot be repartitioned when topics
        grow.
        """
        tasks = []
        for sub in self._subtopologies:
            counts = [partitions.get(topic, 0) for topic in sub.topics]
            count = max(counts, default=0)
            if sub.stateful:
                count = min(count, sub.tasks or count) if all(counts) else 0
            ids = (TaskId(sub.number, partition) for partition in range(count))
            tasks += [PlannedTask(t, sub.stateful, self.partitions_of(t, partitions)) for t in ids]
        return tasks

    def _strangers(
        self, members: Sequence[MemberMetadata], partitions: Mapping[str, int]
    ) -> Mapping[str, list[TopicPartition]]:
        """Return claims of no task, by claimant, to be handed back unless the topic is gone.

        Race: a topic grows; a member sees the growth and is given the new partition; another member
        leads, with older metadata. That leader must not take away a partition that it does not
        know.
        """
        claimants = _claimants(members)
        found: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for member in members:
            for tp in sorted(member.claims):
                known = tp.topic in self._number and tp.partition < partitions[tp.topic]
                if not known and claimants[tp] == 1 and partitions.get(tp.topic) != 0:
                    found[member.id].append(tp)
        return found


def _kept(
    strangers: Mapping[str, Sequence[TopicPartition]], named: Mapping[str, str]
) -> Iterator[str]:
    """Yield the partitions that members keep although no task of this app reads them."""
    for member, tps in strangers.items():
        yield (
            f"Worker {named.get(member, member)} keeps partitions that belong to no task of this "
            f"app: {', '.join(map(str, tps))}; no action needed."
        )


def _why_absent(topics: Sequence[str]) -> str:
    noun, verb = ("topics", "are") if len(topics) > 1 else ("topic", "is")
    return f"stops, because {noun} {', '.join(topics)} {verb} not there"


def _changed(news: Iterable[MemberNews], change: MemberChange) -> tuple[str, ...]:
    return tuple(sorted(each.worker for each in news if each.change is change))


def _has_come(news: MemberNews) -> bool:
    """Return whether a worker is new in the group, or a new process of one that was there."""
    again = news.change is MemberChange.RESTARTED and not news.back
    return again or news.change is MemberChange.JOINED


def _answers(
    metadata: Metadata,
    group: Group,
    plan: Plan,
    words: Mapping[str, AssignmentView],
    strangers: Mapping[str, Sequence[TopicPartition]],
    leader: str,
    past: tuple[PastPlan, ...],
) -> dict[str, bytes]:
    """Return the assignments; past plans, which only people read, go where there is room."""
    word = words[leader]
    answers = _written(group, plan, {**words, leader: replace(word, plans=past)}, strangers)
    sizes = (len(data) + len(answers[member]) for member, data in metadata)
    if sum(sizes) > RECORD_BYTES_NEAR:
        bare = {leader: replace(word, plans=past[:1])}
        answers |= _written(group, plan, bare, strangers)
    return answers


def _written(
    group: Group,
    plan: Plan,
    words: Mapping[str, AssignmentView],
    strangers: Mapping[str, Sequence[TopicPartition]],
) -> dict[str, bytes]:
    partitions_of = {task.id: task.partitions for task in group.tasks}
    assignments = {}
    for member, word in words.items():
        active = (tp for task in plan.active.get(member, ()) for tp in partitions_of[task])
        given = (*active, *strangers.get(member, ()))
        assignments[member] = Assignment(given, write_assignment(word)).write()
    return assignments


def _followed(copies: Mapping[TaskId, Copy], last: AssignmentView) -> Mapping[TaskId, Copy]:
    """Return the copies in the roles of the newest plan.

    A worker calls a standby that shall become active a learner; the plan still calls it a standby.
    """
    follows = (CopyRole.LEARNER, CopyRole.STANDBY)
    roles = dict.fromkeys(last.learners, CopyRole.LEARNER)
    roles |= dict.fromkeys(last.standbys, CopyRole.STANDBY)
    return {
        task: Copy(roles.get(task, copy.role), copy.lag) if copy.role in follows else copy
        for task, copy in copies.items()
    }


def _reported(copies: Mapping[TaskId, Copy], claimed: frozenset[TaskId]) -> dict[TaskId, Copy]:
    """Return the copies that a join reports beside its claims, of which the claims are newer.

    Race: m is granted t and joins again before its data loop has published that it no longer learns
    t. The join then reports t as restoring. A claimed task that runs needs no report.
    """
    return {
        task: Copy(CopyRole.RESTORING, copy.lag) if task in claimed else copy
        for task, copy in copies.items()
        if copy.role is not CopyRole.RUNNING or task not in claimed
    }


def _named(decision: Decision, names: Mapping[str, str]) -> Decision:
    """Return a decision with labels for people, in place of member ids."""
    return replace(decision, owner=names.get(decision.owner or ""), to=names.get(decision.to or ""))


def _words(plan: Plan, members: Sequence[MemberMetadata], leader: str) -> dict[str, AssignmentView]:
    """Return the message to each member; `leader`: member id of the leader."""
    promises: defaultdict[str, set[TaskId]] = defaultdict(set)
    for task, heir in plan.heirs.items():
        promises[heir].add(task)
    # A round begins when the last member has noticed it; at rest that takes a heartbeat interval.
    # `more` announces the rounds that follow soon: for released tasks, for learners that are soon
    # ready, and for a tool that leaves at once.
    asks = any(member.observer for member in members)
    stop_app = _stop_app(members)
    twice = shared(members)
    wanted: defaultdict[str, set[TaskId]] = defaultdict(set)
    for task, member in plan.wanted.items():
        wanted[member].add(task)
    named = labels(member for member in members if not member.observer)
    (led,) = (member for member in members if member.id == leader)
    led_by = worker_name(led, named[leader])
    leaves = leader in leavers(members, plan.memory)
    more = bool(plan.withheld or plan.wanted) or any(plan.learner.values()) or asks
    return {
        member.id: AssignmentView(
            memory=plan.memory,
            more=more,
            no_takers=plan.no_takers,
            shared_name=member.instance in twice,
            heard=member.nonce,
            stop_app=stop_app,
            learners=frozenset(plan.learner.get(member.id, ())),
            standbys=frozenset(plan.standby.get(member.id, ())),
            wanted=frozenset(wanted[member.id]),
            promises=frozenset(promises[member.id]),
            led_by=led_by,
            leader_leaves=leaves,
            differs=differs(member),
            idle=idle(member, plan, len(named), led_by),
        )
        for member in members
    }


def _stop_app(members: Sequence[MemberMetadata]) -> str:
    """Return the reason for which all workers have to end, empty if no member gives one."""
    return min((member.stops_app for member in members if member.stops_app), default="")


def claims_stay(
    group: Group, error: ErrorWord, notes: tuple[str, ...] = (), *, more: bool = False
) -> Outcome:
    """Return assignments under which each member keeps the partitions that it alone claims.

    A member also keeps the tasks that it released for this round, and goes on learning and
    following its copies. Marks are passed on all the same.
    """
    memory = recall(group)
    memory = replace(memory, round=memory.round + 1)
    claimants = _claimants(group.members)
    ran = _let_go(group, claimants)
    stop_app = _stop_app(group.members)
    answers = {}
    for member in group.members:
        keeps = (*(tp for tp in member.claims if claimants[tp] == 1), *ran[member.id])
        roles = {role: _held_as(role, member) for role in (CopyRole.LEARNER, CopyRole.STANDBY)}
        word = AssignmentView(
            memory,
            more,
            learners=roles[CopyRole.LEARNER] | (member.heirs - roles[CopyRole.STANDBY]),
            standbys=roles[CopyRole.STANDBY],
            wanted=member.wanted & roles[CopyRole.STANDBY],
            promises=member.heirs,
            heard=member.nonce,
            stop_app=stop_app,
            error=error,
        )
        answers[member.id] = Assignment(keeps, write_assignment(word)).write()
    gone = evictions(group.members, memory, group.now_ms)
    return Outcome(answers, None, gone, error, notes, round=memory.round)


def _let_go(
    group: Group, claimants: Mapping[TopicPartition, int]
) -> Mapping[str, list[TopicPartition]]:
    """Return the partitions that an eager member ran until this join, if no other member has them.

    An eager member claims nothing, and would have nothing for as long as no plan can be made.
    """
    ran: defaultdict[TaskId, list[str]] = defaultdict(list)
    for member in group.members:
        for task, copy in member.copies.items():
            if copy.role <= CopyRole.RESTORING:
                ran[task].append(member.id)
    found: defaultdict[str, list[TopicPartition]] = defaultdict(list)
    for each in group.tasks:
        if len(ran[each.id]) == 1 and not any(claimants[tp] for tp in each.partitions):
            found[ran[each.id][0]] += each.partitions
    return found


def _held_as(role: CopyRole, member: MemberMetadata) -> frozenset[TaskId]:
    return frozenset(task for task, copy in member.copies.items() if copy.role is role)


def _claimants(members: Iterable[MemberMetadata]) -> Mapping[TopicPartition, int]:
    """Count the claimants of each partition."""
    return Counter(tp for member in members for tp in member.claims)
