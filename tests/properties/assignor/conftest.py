"""A whole group, played round by round without time: members join, report, learn and release tasks.

`Play` calls `assign()` itself; `Wired` calls a leader's adapter, in bytes. What a member reports
next follows the rules of `scenarios.json`.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

import pytest

from streamsx.assignor.assign import assign
from streamsx.assignor.document import COPIES, document_of
from streamsx.assignor.model import (
    Copy,
    CopyRole,
    Group,
    LeaveRequest,
    MemberMetadata,
    Memory,
    Plan,
    PlannedTask,
    Rules,
)
from streamsx.assignor.partition_assignor import StreamsPartitionAssignor, Subtopology
from streamsx.model import TaskId, TopicPartition
from streamsx.protocol.consumer_protocol import Assignment, Subscription
from streamsx.tools.assign import answers

FAR = 1_000_000  # lag of a learner that has just begun, in records
RUNS = Copy(CopyRole.RUNNING, 0)


def source(task: TaskId) -> TopicPartition:
    return TopicPartition(f"topic-{task.subtopology}", task.partition)


@dataclass
class Seat:
    """One member. `claims`: tasks that it holds; `slow`: it releases tasks one round late."""

    copies: dict[TaskId, Copy] = field(default_factory=dict)
    claims: set[TaskId] = field(default_factory=set)
    promises: frozenset[TaskId] = frozenset()
    leaving: LeaveRequest | None = None
    wanted: frozenset[TaskId] = frozenset()
    tags: dict[str, str] = field(default_factory=dict)
    capacity: int = 1
    eager: bool = False
    slow: bool = False

    @property
    def active(self) -> set[TaskId]:
        return {task for task, copy in self.copies.items() if copy.role <= CopyRole.RESTORING}

    @property
    def unready(self) -> list[TaskId]:
        """Return the tasks whose copies are restoring, learning or following, and not at the end
        yet.
        """
        roles = (CopyRole.RESTORING, CopyRole.LEARNER, CopyRole.STANDBY)
        return sorted(task for task, c in self.copies.items() if c.role in roles and c.lag != 0)

    def reach(self, task: TaskId, lag: int) -> None:
        role = self.copies[task].role
        done = role is CopyRole.RESTORING and lag == 0
        self.copies[task] = RUNS if done else Copy(role, lag)


class Play:
    """Group of members. `policy`: tasks that a member releases before it joins: none, being_learned
    or all.
    """

    def __init__(
        self,
        stateful: Iterable[TaskId],
        stateless: Iterable[TaskId] = (),
        rules: Rules | None = None,
        policy: str = "none",
    ) -> None:
        kinds = [(task, True) for task in stateful] + [(task, False) for task in stateless]
        self.tasks = {task: PlannedTask(task, kind, (source(task),)) for task, kind in kinds}
        self.rules = rules or Rules()
        self.policy = policy
        self.seats: dict[str, Seat] = {}
        self.memory: Memory | None = None
        self.born: set[TaskId] = set()

    def start(self, name: str, active: Iterable[TaskId] = (), *, eager: bool = False) -> None:
        """Start a member without a move in progress. Its copies and tags are those of its seat."""
        tasks = set(active)
        self.seats[name] = Seat(dict.fromkeys(tasks, RUNS), tasks, eager=eager)
        self.born |= tasks

    def forget(self) -> None:
        """Lose the leader, and with it the memory of the group."""
        self.memory = None

    def round(self, deaf: Iterable[str] = ()) -> Plan:
        """Let all members join, and plan once; `deaf` members do not get the plan."""
        claims = {name: self._claims(name) for name in self.seats}
        plan = self.decide(claims, deaf)
        self._check(plan, claims)
        for name, seat in self.seats.items():
            if name not in deaf:
                self._follow(name, seat, plan, claims[name] if seat.slow else set())
            else:  # what it let go of before the join is gone all the same
                for task in seat.active - claims[name]:
                    seat.copies[task] = Copy(CopyRole.DORMANT, seat.copies[task].lag)
                seat.claims = claims[name]
        self.born.update(*(seat.active for seat in self.seats.values()))
        return plan

    def decide(self, claims: Mapping[str, set[TaskId]], deaf: Iterable[str] = ()) -> Plan:
        members = [
            MemberMetadata(
                id=name,
                instance=name,
                capacity=seat.capacity,
                leaving=seat.leaving,
                claims=frozenset(map(source, claims[name])),
                copies=seat.copies,
                heirs=seat.promises,
                wanted=seat.wanted,
                tags=seat.tags,
            )
            for name, seat in self.seats.items()
        ]
        plan = assign(Group(list(self.tasks.values()), members, self.memory), self.rules)
        self.memory = plan.memory
        return plan

    def _claims(self, name: str) -> set[TaskId]:
        seat = self.seats[name]
        if self.policy == "all" or seat.eager:
            return set()
        if self.policy == "none":
            return seat.claims
        learned = (
            {task for task, copy in other.copies.items() if copy.role is CopyRole.LEARNER}
            for other in self.seats.values()
        )
        return seat.claims.difference(*learned)

    def _follow(self, name: str, seat: Seat, plan: Plan, let_go: set[TaskId]) -> None:
        """Take the plan over. `let_go`: tasks that the member holds one round longer than it
        should.
        """
        old, active, learner = seat.copies, plan.active[name], plan.learner[name]
        copies = {
            task: Copy(CopyRole.DORMANT, copy.lag)
            for task, copy in old.items()
            if self.tasks[task].stateful
        }
        copies |= {task: old[task] for task in let_go}
        copies |= {task: self._run(task, old.get(task)) for task in active}
        copies |= {t: Copy(CopyRole.LEARNER, old[t].lag if t in old else FAR) for t in learner}
        copies |= {
            t: Copy(CopyRole.STANDBY, old[t].lag if t in old else FAR) for t in plan.standby[name]
        }
        seat.copies = copies
        seat.wanted = frozenset(task for task, to in plan.wanted.items() if to == name)
        seat.claims = {*active, *let_go} - set(learner) - set(plan.standby[name])
        seat.promises = frozenset(task for task, heir in plan.heirs.items() if heir == name)

    def _run(self, task: TaskId, copy: Copy | None) -> Copy:
        if task not in self.born or not self.tasks[task].stateful:
            return RUNS
        lag = FAR if copy is None else copy.lag
        return RUNS if lag == 0 else Copy(CopyRole.RESTORING, lag)

    def _check(self, plan: Plan, claims: Mapping[str, set[TaskId]]) -> None:
        """Check what no group survives, in other words than the assignor's own checks."""
        given = [task for tasks in plan.active.values() for task in tasks]
        assert sorted([*given, *plan.withheld]) == sorted(self.tasks)
        for name, tasks in plan.active.items():
            others = (theirs for other, theirs in claims.items() if other != name)
            assert not set(tasks).intersection(*[set().union(*others)])


class Wired(Play):
    """The same group in bytes, each member with its own adapter; the first by name leads."""

    def __init__(
        self,
        stateful: Iterable[TaskId],
        stateless: Iterable[TaskId] = (),
        rules: Rules | None = None,
        policy: str = "none",
    ) -> None:
        super().__init__(stateful, stateless, rules, policy)
        self.adapters: dict[str, StreamsPartitionAssignor] = {}
        self.heard: dict[str, int] = {}  # generation of the last assignment, by member
        self.generation = 0

    def start(self, name: str, active: Iterable[TaskId] = (), *, eager: bool = False) -> None:
        super().start(name, active, eager=eager)
        self.heard.pop(name, None)
        self.adapters.pop(name, None)

    def forget(self) -> None:
        self.adapters = {}

    def decide(self, claims: Mapping[str, set[TaskId]], deaf: Iterable[str] = ()) -> Plan:
        self.generation += 1
        leader = min(self.seats)
        counts: Counter[str] = Counter(source(task).topic for task in self.tasks)
        outcome = self._adapter(leader).assign(
            [(name, self._subscription(name, claims[name])) for name in self.seats],
            counts,
            leader=leader,
            generation=self.generation,
            now_ms=0,
        )
        assert outcome.plan is not None, outcome.notes
        assert outcome.notes == ()
        assert outcome.summary, "the plan in a line"
        for name in set(self.seats).difference(deaf):
            self._hear(name, outcome.assignments[name], outcome.plan)
        return outcome.plan

    def _adapter(self, name: str) -> StreamsPartitionAssignor:
        if name not in self.adapters:
            kinds = {task.subtopology: kind.stateful for task, kind in self.tasks.items()}
            process = name.encode().ljust(16).hex()
            self.adapters[name] = StreamsPartitionAssignor(
                MemberMetadata(
                    "",
                    name,
                    process,
                    self.seats[name].capacity,
                    self.seats[name].tags,
                    version="0.1.0",
                ),
                self.rules,
                [
                    Subtopology(n, (f"topic-{n}",) if n in kinds else (), kinds.get(n, False), 7)
                    for n in range(1 + max(kinds))
                ],
            )
        return self.adapters[name]

    def _subscription(self, name: str, claims: set[TaskId]) -> bytes:
        seat, owned = self.seats[name], frozenset(map(source, claims))
        fresh = name not in self.heard
        report = MemberMetadata(
            "",
            nonce=self.generation,
            claims=owned,
            copies=seat.copies,
            leaving=seat.leaving,
            fresh=fresh,
        )
        return Subscription(
            topics=tuple(sorted({source(task).topic for task in self.tasks})),
            user_data=self._adapter(name).user_data(report),
            owned=tuple(sorted(owned)),
            generation=self.heard.get(name, -1),
        ).write()

    def _hear(self, name: str, data: bytes, plan: Plan) -> None:
        """Check that the bytes mean what the plan means."""
        assignment = Assignment.read(data)
        view = self._adapter(name).on_assignment(assignment.user_data)
        heirs = frozenset(task for task, heir in plan.heirs.items() if heir == name)
        assert self._adapter(name).tasks_of(assignment.partitions) == set(plan.active[name])
        wanted = frozenset(task for task, to in plan.wanted.items() if to == name)
        assert (view.learners, view.promises) == (frozenset(plan.learner[name]), heirs)
        assert (view.standbys, view.wanted) == (frozenset(plan.standby[name]), wanted)
        assert view.more == (bool(plan.withheld or plan.wanted) or any(plan.learner.values()))
        assert view.no_takers == plan.no_takers
        assert view.leader == (name == min(self.seats))
        self.heard[name] = self.generation


class Filtered(Play):
    """The same group as lines of JSON for `streamsx assign`, which applies the policy itself."""

    told: object = None

    def forget(self) -> None:
        super().forget()
        self.told = None

    def decide(self, claims: Mapping[str, set[TaskId]], deaf: Iterable[str] = ()) -> Plan:
        kinds = [{"id": str(t), "stateful": kind.stateful} for t, kind in self.tasks.items()]
        document = {
            "config": {**asdict(self.rules), "revoke_before_join": self.policy},
            "tasks": kinds[::-1],
            "members": [self._member(name) for name in reversed(self.seats)],
            "memory": self.told,
        }
        (answer,) = answers(["", json.dumps(document)])
        plan = super().decide(claims, deaf)
        assert answer == document_of(plan)
        self.told = json.loads(json.dumps(answer))["memory"]
        return plan

    def _member(self, name: str) -> dict[str, object]:
        seat = self.seats[name]
        copies: dict[str, dict[str, int | None]] = {role: {} for role in COPIES}
        for role, kind in COPIES.items():
            copies[role] = {str(t): c.lag for t, c in seat.copies.items() if c.role is kind}
        return {
            "id": name,
            "owned": sorted(map(str, seat.claims)),
            "heir": sorted(map(str, seat.promises)),
            "wanted": sorted(map(str, seat.wanted)),
            "tags": seat.tags,
            "capacity": seat.capacity,
            "leaving": asdict(seat.leaving) if seat.leaving else False,
            "protocol": "eager" if seat.eager else "cooperative",
            **copies,
        }


@pytest.fixture(params=[Play, Wired, Filtered])
def play(request: pytest.FixtureRequest) -> type[Play]:
    """Return each way to play a group."""
    return request.param  # type: ignore[no-any-return]  # one of those above


@pytest.fixture
def direct() -> type[Play]:
    return Play


@pytest.fixture
def wired() -> type[Play]:
    return Wired
