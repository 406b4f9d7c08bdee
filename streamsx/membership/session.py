"""Drives the member: one thread, one event loop, connections of its own to the coordinator.

It performs effects and feeds events; it decides nothing. User code may hold the data loop for
seconds: heartbeats, commits and plans go on here, and what the data loop has to know is
marshalled to it.

Nothing that belongs to a hand-over shares a connection with a request that may wait for minutes:
JoinGroup and SyncGroup have a lane, heartbeats and commits another, offset fetches a third. A
connection that is given up is aborted, never closed gracefully: else the kernel still delivers
what it holds, after a network cut minutes later.

Not here: tasks and stores (the data loop's), what a plan says (the assignor's).
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from streamsx.assignor.model import Copy, Leaving
from streamsx.assignor.partition_assignor import (
    Outcome,
    Report,
    StreamsPartitionAssignor,
)
from streamsx.assignor.wire import AssignmentView
from streamsx.clock import Clock
from streamsx.errors import BrokerUnreachable, WorldError, first_of
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.connection import Connection
from streamsx.kafka.consumer_protocol import PROTOCOL_TYPE, Assignment, Subscription
from streamsx.kafka.errors import name_of
from streamsx.kafka.wire import Api
from streamsx.membership import events as e
from streamsx.membership.member import Member, MemberConfig
from streamsx.model import TaskId, TopicPartition

OFFSETS_LANE = "offsets"
OFFSETS_RETRY_S = 0.1
OFFSETS_TIMEOUT_S = 10.0
FIND_RETRY_S = 0.1
METADATA_RETRY_S = 0.1
METADATA_WAIT_S = 2.0
"""CreateTopics returns before Metadata knows the topic: a plan without it stands for minutes."""
TOPICS_EVERY_S = 30.0
EVICT_TIMEOUT_S = 5.0
CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Published:
    """What the data loop last said of its tasks."""

    copies: Mapping[TaskId, Copy]
    stalled: frozenset[TaskId] = frozenset()


@dataclass(frozen=True, slots=True)
class Joining:
    """A round begins; `generation` is the one that ends."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Planned:
    """An assignment in full, before its parts."""

    generation: int
    assigned: frozenset[TopicPartition]
    view: AssignmentView
    leader: bool


@dataclass(frozen=True, slots=True)
class Positions:
    """Committed offset and metadata; -1 where nothing is committed."""

    ticket: Any
    found: Mapping[TopicPartition, tuple[int, str]]


@dataclass(frozen=True, slots=True)
class IsLeaving:
    """The member is on its way out; monotonic second of its deadline, None without one."""

    deadline: float | None


@dataclass(frozen=True, slots=True)
class Crashed:
    """This thread is over, by a bug."""

    error: BaseException


Message = (
    Joining | Planned | Positions | IsLeaving | Crashed | e.Assigned | e.Revoke | e.Lost
    | e.CommitDone | e.CommitFailed | e.Fatal | e.Left
)  # fmt: skip
DELIVERED = (e.Assigned, e.Revoke, e.Lost, e.CommitDone, e.CommitFailed, e.Fatal, e.Left)


class MemberFile(Protocol):
    """Where the member id is kept for a successor of this process."""

    def remember(self, member_id: str) -> None: ...
    def forget(self) -> None: ...


class Lane:
    """One connection, one request at a time, in order; `close` abandons what it has."""

    def __init__(self, cluster: Cluster, name: str, lost: Callable[[], None]) -> None:
        self._cluster, self._name, self._lost = cluster, name, lost
        self._queue: deque[tuple[int, Callable[[Connection], Awaitable[None]]]] = deque()
        self._connection: Connection | None = None
        self._arrived = asyncio.Event()
        self._current: asyncio.Task[None] | None = None

    def put(self, node: int, job: Callable[[Connection], Awaitable[None]]) -> None:
        self._queue.append((node, job))
        self._arrived.set()

    def close(self) -> None:
        self._queue.clear()
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        if self._current is not None:
            self._current.cancel()

    async def run(self) -> None:
        while True:
            while not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
            node, job = self._queue.popleft()
            self._current = asyncio.create_task(self._do(node, job), name=f"group {self._name}")
            await asyncio.wait([self._current])
            if not self._current.cancelled() and (error := self._current.exception()):
                raise error

    async def _do(self, node: int, job: Callable[[Connection], Awaitable[None]]) -> None:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = await self._cluster.open(node, f"group {self._name}")
            await job(self._connection)
        except BrokerUnreachable:
            if self._connection is not None:
                self._connection.abort()
                self._connection = None
            self._queue.clear()
            self._lost()


class Session:
    """`start`, then `post`; messages come through `deliver`, which any thread may call.

    `published` is read when a join is built; `subscribed`: the source topics.
    """

    def __init__(
        self,
        connect: Callable[[], Cluster],
        clock: Clock,
        config: MemberConfig,
        group: str,
        subscribed: Iterable[str],
        assignor: StreamsPartitionAssignor,
        published: Callable[[], Published],
        deliver: Callable[[Message], None],
        file: MemberFile,
        predecessor: str | None,
        log: Callable[[str], None],
    ) -> None:
        self._connect, self._clock, self._config, self._group = connect, clock, config, group
        self._subscribed = tuple(sorted(subscribed))
        self._assignor, self._published, self._deliver = assignor, published, deliver
        self._file, self._predecessor, self._log = file, predecessor, log
        self._member = Member(config)
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._timers: dict[e.Timer, asyncio.TimerHandle] = {}
        self._counts: dict[str, int] = {}
        self._metadata: tuple[int, bytes] | None = None
        self._fresh, self._leaving = True, False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin: Callable[..., object]
        """An asyncio task that ends by itself, or with the thread."""

    @property
    def lease(self) -> float:
        """Monotonic second until which the group counts us in; any thread may read it."""
        return self._member.lease

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread's end; it may never have begun."""
        if self.alive:
            self._thread.join(CLOSE_S)

    def post(self, event: e.Event) -> None:
        """From another thread; dropped when this one is over."""
        self._call(self._feed, event)

    def fetch_positions(self, ticket: object, tps: Iterable[TopicPartition]) -> None:
        """From another thread; answered by `Positions` with the ticket."""
        self._call(self._ask_positions, ticket, tuple(tps))

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    # -- the thread

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # whatever it is, the data loop has to know
            self._deliver(Crashed(first_of(error)))

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._cluster = self._connect()
        await self._cluster.start()
        try:
            await self._cluster.follow(self._subscribed)
            async with asyncio.TaskGroup() as tasks:
                self._begin = tasks.create_task
                self._lanes = {lane: self._lane(lane) for lane in e.Lane}
                jobs = [
                    *(
                        self._begin(lane.run(), name=f"lane {which.value}")
                        for which, lane in self._lanes.items()
                    ),
                    self._begin(self._watch_topics(), name="watch topics"),
                ]
                self._feed(e.Start(self._predecessor))
                await self._ended.wait()
                for job in jobs:
                    job.cancel()
        finally:
            await self._cluster.stop()

    def _lane(self, lane: e.Lane) -> Lane:
        return Lane(self._cluster, lane.value, lambda: self._feed(e.Disconnected(lane)))

    def _feed(self, event: e.Event) -> None:
        for effect in self._member.step(self._clock.now(), event):
            self._perform(effect)
        self._tell_leaving()

    def _tell_leaving(self) -> None:
        leaving = bool(self._member.leaving)
        if leaving and not self._leaving:
            self._deliver(IsLeaving(self._member.leaving.deadline))
        self._leaving = leaving

    # -- effects

    def _perform(self, effect: e.Effect) -> None:
        match effect:
            case e.Send():
                self._send(effect)
            case e.Arm(timer, at):
                self._disarm(timer)
                loop = asyncio.get_running_loop()
                self._timers[timer] = loop.call_at(at, self._tick, timer)
            case e.Disarm(timer):
                self._disarm(timer)
            case e.Find():
                self._begin(self._find(), name="find coordinator")
            case e.Close(lane):
                self._lanes[lane].close()
            case e.Assign(request, members):
                self._begin(self._assign(request, members), name="assign")
            case e.OnAssignment():
                self._planned(effect)
            case e.Remember(member_id):
                self._file.remember(member_id)
            case e.Count(metric):
                self._log(f"count {metric}")
            case _:
                self._tell(effect)

    def _tell(self, effect: Any) -> None:
        assert isinstance(effect, DELIVERED), effect
        if isinstance(effect, e.Left | e.Fatal):
            self._file.forget()
            self._ended.set()
        self._deliver(effect)

    def _disarm(self, timer: e.Timer) -> None:
        if (handle := self._timers.pop(timer, None)) is not None:
            handle.cancel()

    def _tick(self, timer: e.Timer) -> None:
        self._timers.pop(timer, None)
        self._feed(e.Tick(timer))

    async def _find(self) -> None:
        try:
            node: int | None = await self._cluster.coordinator(self._group)
        except WorldError as error:
            self._log(str(error))
            await asyncio.sleep(FIND_RETRY_S)
            node = None
        self._feed(e.Found(node))

    def _planned(self, effect: e.OnAssignment) -> None:
        self._fresh = False
        view = self._view
        if view.problem:
            self._log(f"assignment: {view.problem}")
        assigned = frozenset(effect.assigned)
        self._deliver(Planned(effect.generation, assigned, view, self._member.leader))

    # -- requests

    def _send(self, send: e.Send) -> None:
        api, body = self._request(send.body)

        async def ask(connection: Connection) -> None:
            reply = await connection.ask(api, body, send.timeout_s)
            self._feed(self._answer(send, reply))

        self._lanes[send.lane].put(send.node, ask)

    def _request(self, body: e.Request) -> tuple[Api, dict[str, Any]]:
        who: dict[str, Any] = {
            "group_id": self._group,
            "member_id": body.member_id,
            "group_instance_id": None,
        }
        match body:
            case e.JoinGroup():
                return Api.JOIN_GROUP, who | self._join(body)
            case e.SyncGroup():
                given = [{"member_id": m, "assignment": data} for m, data in body.assignments]
                return Api.SYNC_GROUP, who | {
                    "generation_id": body.generation,
                    "protocol_type": PROTOCOL_TYPE,
                    "protocol_name": self._assignor.name,
                    "assignments": given,
                }
            case e.Heartbeat():
                return Api.HEARTBEAT, who | {"generation_id": body.generation}
            case e.OffsetCommit():
                return Api.OFFSET_COMMIT, who | {
                    "generation_id_or_member_epoch": body.generation,
                    "topics": by_topic(body.offsets),
                }
            case e.LeaveGroup():
                member = {"member_id": body.member_id, "group_instance_id": None}
                return Api.LEAVE_GROUP, {"group_id": self._group, "members": [member]}

    def _join(self, body: e.JoinGroup) -> dict[str, Any]:
        """User data are built once per nonce: a repeated JoinGroup must be the same bytes."""
        if self._metadata is None or self._metadata[0] != body.nonce:
            self._deliver(Joining(self._member.generation, body.reason))
            self._metadata = body.nonce, self._subscription(body)
        return {
            "session_timeout": int(self._config.session_timeout_s * 1000),
            "rebalance_timeout": int(self._config.rebalance_timeout_s * 1000),
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": self._assignor.name, "metadata": self._metadata[1]}],
            "reason": body.reason,
        }

    def _subscription(self, body: e.JoinGroup) -> bytes:
        said = self._published()
        deadline_ms = None
        if body.deadline is not None:
            ahead_s = body.deadline - self._clock.now()
            deadline_ms = int((self._clock.wall() + ahead_s) * 1000)
        user_data = self._assignor.user_data(
            Report(
                nonce=body.nonce,
                claims=frozenset(body.claims),
                copies=said.copies,
                stalled=said.stalled,
                leaving=Leaving(deadline_ms) if body.leaving else None,
                fresh=self._fresh,
            )
        )
        return Subscription(
            self._subscribed, user_data, tuple(body.claims), body.owned_generation
        ).write()

    def _answer(self, send: e.Send, reply: Any) -> e.Reply:
        """What the member wants to know of a reply."""
        match send.body:
            case e.JoinGroup():
                members = tuple(
                    e.JoinedMember(m.member_id, bytes(m.metadata)) for m in reply.members
                )
                joined = e.Joined(reply.generation_id, reply.member_id, reply.leader, members)
                return e.Reply(send.request, reply.error_code, joined)
            case e.SyncGroup() if not reply.error_code:
                return e.Reply(send.request, 0, self._synced(bytes(reply.assignment)))
            case e.OffsetCommit():
                return self._committed(send.request, reply)
            case _:
                return e.Reply(send.request, reply.error_code)

    def _synced(self, data: bytes) -> e.Synced:
        assignment = Assignment.read(data)
        self._view = view = self._assignor.on_assignment(assignment.user_data)
        mark = None
        if view.mark is not None:
            mark = self._mark(view.mark)
        return e.Synced(
            frozenset(assignment.partitions),
            assignment.user_data,
            more=view.more,
            no_takers=view.no_takers,
            mark=mark,
        )

    def _mark(self, said: Any) -> e.Mark:
        """Deadlines travel as unix time."""
        deadline = None
        if said.deadline_ms is not None:
            deadline = said.deadline_ms / 1000 - self._clock.wall() + self._clock.now()
        return e.Mark(said.leaving, deadline, said.epoch_ms)

    def _committed(self, request: int, reply: Any) -> e.Reply:
        codes = {
            TopicPartition(t.name, p.partition_index): p.error_code
            for t in reply.topics
            for p in t.partitions
        }
        unknown = frozenset(tp for tp, code in codes.items() if code == UNKNOWN_TOPIC)
        error = next((code for code in codes.values() if code not in (0, UNKNOWN_TOPIC)), 0)
        return e.Reply(request, error, e.Committed(unknown))

    # -- leading

    async def _assign(self, request: int, members: tuple[e.JoinedMember, ...]) -> None:
        await self._refresh_counts()
        metadata = [(m.member_id, m.metadata) for m in members]
        outcome = self._assignor.assign(
            metadata,
            self._counts,
            leader=self._member.member_id,
            generation=self._member.generation,
            now_ms=int(self._clock.wall() * 1000),
        )
        self._tell_outcome(outcome)
        error = outcome.error.name if outcome.error else None
        self._feed(e.Planned(request, tuple(outcome.assignments.items()), error))

    def _tell_outcome(self, outcome: Outcome) -> None:
        for note in outcome.notes:
            self._log(note)
        for decision in outcome.plan.explain if outcome.plan else ():
            self._log(f"plan {decision}")
        for eviction in outcome.evictions:
            ahead_s = eviction.at_ms / 1000 - self._clock.wall()
            loop = asyncio.get_running_loop()
            loop.call_later(max(0.0, ahead_s), self._evict, eviction.member)

    def _evict(self, member_id: str) -> None:
        """A marked member that is still there behind its deadline; still the leader's affair?"""
        if not self._member.leader or self._ended.is_set():
            return

        async def leave() -> None:
            try:
                node = await self._cluster.coordinator(self._group)
                conn = await self._cluster.open(node, OFFSETS_LANE)
                member = {"member_id": member_id, "group_instance_id": None}
                body = {"group_id": self._group, "members": [member]}
                await conn.ask(Api.LEAVE_GROUP, body, EVICT_TIMEOUT_S)
                self._log(f"evicted {member_id}: it did not leave by its deadline")
            except WorldError as error:
                self._log(f"not evicted: {member_id}: {error}")

        self._begin(leave(), name="evict")

    async def _refresh_counts(self) -> None:
        """Fresh, and patient while a topic was just created."""
        give_up_at = self._clock.now() + METADATA_WAIT_S
        while True:
            await self._refresh()
            self._counts = {topic: self._cluster.partitions(topic) for topic in self._subscribed}
            if all(self._counts.values()) or self._clock.now() >= give_up_at:
                return
            await asyncio.sleep(METADATA_RETRY_S)

    async def _refresh(self) -> None:
        with suppress(BrokerUnreachable):  # what is known stands
            await self._cluster.refresh()

    async def _watch_topics(self) -> None:
        """A leader plans with the number of partitions that each topic had then."""
        while True:
            await asyncio.sleep(TOPICS_EVERY_S)
            await self._refresh()
            found = {topic: self._cluster.partitions(topic) for topic in self._subscribed}
            if self._counts and found != self._counts:
                self._counts = found
                self._feed(e.PartitionsChanged())

    # -- positions

    def _ask_positions(self, ticket: object, tps: tuple[TopicPartition, ...]) -> None:
        if not self._ended.is_set():
            self._begin(self._positions(ticket, tps), name="positions")

    async def _positions(self, ticket: object, tps: tuple[TopicPartition, ...]) -> None:
        """Stable: what a transaction of the owner before still holds is waited for."""
        topics: dict[str, list[int]] = {}
        for tp in tps:
            topics.setdefault(tp.topic, []).append(tp.partition)
        wanted = [{"name": t, "partition_indexes": ps} for t, ps in topics.items()]
        body = {"group_id": self._group, "topics": wanted, "require_stable": True}
        parts: list[tuple[str, Any]] = []
        while not parts:
            try:
                node = await self._cluster.coordinator(self._group)
                conn = await self._cluster.open(node, OFFSETS_LANE)
                reply = await conn.ask(Api.OFFSET_FETCH, body, OFFSETS_TIMEOUT_S)
                parts = answered(reply)
            except WorldError as error:
                self._log(f"positions: {error}")
                await asyncio.sleep(OFFSETS_RETRY_S)
        found = {
            TopicPartition(name, p.partition_index): (p.committed_offset, p.metadata or "")
            for name, p in parts
        }
        self._deliver(Positions(ticket, found))


UNKNOWN_TOPIC = 3


def answered(reply: Any) -> list[tuple[str, Any]]:
    """Topic and partition of each answer of an OffsetFetch. Raises WorldError for a refusal."""
    parts = [(topic.name, part) for topic in reply.topics for part in topic.partitions]
    codes = [reply.error_code, *(part.error_code for _, part in parts)]
    if bad := next((code for code in codes if code), 0):
        raise WorldError(f"offsets refused: {name_of(bad)}")
    return parts


def by_topic(offsets: e.Offsets) -> list[dict[str, Any]]:
    """As OffsetCommit has it."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp, (offset, metadata) in sorted(offsets.items()):
        topics.setdefault(tp.topic, []).append(
            {
                "partition_index": tp.partition,
                "committed_offset": offset,
                "committed_leader_epoch": -1,
                "committed_metadata": metadata,
            }
        )
    return [{"name": topic, "partitions": parts} for topic, parts in topics.items()]
