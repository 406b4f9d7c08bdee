"""Drives the member: one thread, one event loop, connections of its own to the coordinator.

It performs effects and feeds events; it decides nothing. User code may hold the data loop for
seconds: heartbeats, commits and plans go on here, and what the data loop has to know is marshalled
to it.

Nothing that belongs to a hand-over shares a connection with a request that may wait for minutes:
JoinGroup and SyncGroup have a lane, heartbeats and commits another, offset fetches a third.

Not here: tasks and stores (the data loop's), what a plan says (the assignor's), what requests look
like (`requests`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

from streamsx.assignor.model import Mark, MarkState, WayOut
from streamsx.assignor.partition_assignor import Report, StreamsPartitionAssignor
from streamsx.assignor.wire import AssignmentView
from streamsx.clock import Clock
from streamsx.errors import WorldError, first_of
from streamsx.kafka.cluster import Cluster
from streamsx.kafka.connection import Connection
from streamsx.kafka.consumer_protocol import Assignment, Subscription
from streamsx.kafka.inquiries import Inquiries
from streamsx.kafka.wire import Api
from streamsx.loops import guarded
from streamsx.membership import events as e
from streamsx.membership import requests
from streamsx.membership.lanes import Lane
from streamsx.membership.leading import Leading
from streamsx.membership.member import Member, MemberConfig
from streamsx.membership.messages import (
    ControlMessage,
    Counted,
    Crashed,
    IsLeaving,
    Joining,
    PlanRead,
    PositionsRead,
    Published,
    Stays,
)
from streamsx.membership.outage import Outage
from streamsx.membership.thread import SystemThread, Threads
from streamsx.model import TopicPartition

LOG = logging.getLogger("streamsx")
OFFSETS_LANE = "offsets"
FIND_RETRY_S = 0.1
DELIVERED = (e.Assigned, e.Revoke, e.Lost, e.CommitDone, e.CommitFailed, e.Fatal, e.Left)


class _Over(Exception):
    """Ends the control thread: whatever it still waits for is given up."""


class MemberFile(Protocol):
    """Where the member id is kept for a successor of this process."""

    def remember(self, member_id: str) -> None: ...
    def forget(self) -> None: ...


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
        deliver: Callable[[ControlMessage], None],
        file: MemberFile,
        predecessor: str | None,
        log: Callable[[str], None],
        threads: Threads = SystemThread,
    ) -> None:
        self._connect, self._clock, self._config, self._group = connect, clock, config, group
        self._subscribed = tuple(sorted(subscribed))
        self._assignor, self._published, self._deliver = assignor, published, deliver
        self._file, self._predecessor, self._log = file, predecessor, log
        self._member = Member(config)
        self._outage = Outage(clock.now, config.session_timeout_s, LOG.warning)
        self._thread = threads("control", self._run)
        self._timers: dict[e.Timer, asyncio.TimerHandle] = {}
        self._metadata: tuple[int, bytes] | None = None
        self._view = AssignmentView()
        self._fresh, self._leaving = True, False
        self.losses = 0
        """How often tasks were taken away; any thread may read it."""
        self._begin: Callable[..., object]
        """An asyncio task that ends by itself, or with the thread."""

    @property
    def lease(self) -> float:
        """Monotonic second until which the group counts us in; any thread may read it."""
        return self._member.lease.until

    @property
    def member(self) -> Member:
        """The machine, for who looks on."""
        return self._member

    @property
    def alive(self) -> bool:
        return self._thread.alive

    def start(self) -> None:
        """It needs no broker for that, only to get anywhere."""
        self._thread.start()

    async def ended(self) -> None:
        """Wait for the thread's end; it may never have begun."""
        await self._thread.ended()

    def post(self, event: e.Event) -> None:
        """From another thread; dropped when this one is over."""
        self._thread.call(self._feed, event)

    def fetch_positions(self, ticket: object, tps: Iterable[TopicPartition]) -> None:
        """From another thread; answered by `PositionsRead` with the ticket."""
        self._thread.call(self._ask_positions, ticket, tuple(tps))

    # -- the thread

    async def _run(self) -> None:
        try:
            await guarded(self._main())
        except BaseException as error:  # whatever it is, the data loop has to know
            self._deliver(Crashed(first_of(error)))

    async def _main(self) -> None:
        self._ended = asyncio.Event()
        self._cluster = self._connect()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._begin = tasks.create_task
                self._lanes = {lane: self._lane(lane) for lane in e.LaneName}
                self._leading = self._leading_part()
                self._offsets = Inquiries(
                    self._fetch_offsets, lambda why: self._log(f"positions: {why}")
                )
                runs = {f"lane {which.value}": lane.run() for which, lane in self._lanes.items()}
                runs["watch topics"] = self._leading.watch(self._grown)
                runs["fetch offsets"] = self._offsets.run()
                for name, run in runs.items():
                    _ = tasks.create_task(run, name=name)
                self._feed(e.Start(self._predecessor))
                await self._ended.wait()
                raise _Over
        except* _Over:
            pass
        finally:
            await self._cluster.stop()

    def _leading_part(self) -> Leading:
        return Leading(
            self._cluster,
            self._clock,
            self._group,
            self._subscribed,
            self._assignor,
            self._ask_coordinator,
            lambda counts: self._deliver(Counted(counts)),
            self._log,
        )

    def _grown(self) -> None:
        self._feed(e.PartitionsChanged())

    def _lane(self, lane: e.LaneName) -> Lane:
        return Lane(self._cluster, lane.value, lambda: self._feed(e.Disconnected(lane)))

    def _feed(self, event: e.Event) -> None:
        now = self._clock.now()
        for effect in self._member.step(now, event):
            self._perform(effect)
        self._tell_leaving()
        self._outage.leased(now, self.lease)

    def _tell_leaving(self) -> None:
        leaving = self._member.leaving
        if bool(leaving) is not self._leaving:
            self._leaving = bool(leaving)
            self._deliver(IsLeaving(leaving.deadline) if leaving else Stays())

    # -- effects

    def _perform(self, effect: e.Effect) -> None:
        match effect:
            case e.SendRequest():
                self._send(effect)
            case e.Arm() | e.Disarm():
                self._wind(effect)
            case e.Find():
                self._begin(self._find(), name="find coordinator")
            case e.Close(lane):
                self._lanes[lane].close()
            case e.Assign():
                self._begin(self._assign(effect), name="assign")
            case e.Evict(member_id):
                self._begin(self._leading.remove(member_id), name=f"evict {member_id}")
            case e.OnAssignment():
                self._planned(effect)
            case e.Remember(member_id):
                self._file.remember(member_id)
            case e.Count(metric, why):
                self._log(f"count {metric}: {why}".rstrip(": "))
            case _:
                self._tell(effect)

    def _tell(self, effect: Any) -> None:
        assert isinstance(effect, DELIVERED), effect
        if isinstance(effect, e.Left | e.Fatal):
            self._ended.set()
        self.losses += isinstance(effect, e.Lost)
        self._deliver(effect)

    def _wind(self, effect: e.Arm | e.Disarm) -> None:
        timer = effect.timer
        if (handle := self._timers.pop(timer, None)) is not None:
            handle.cancel()
        if isinstance(effect, e.Arm):
            self._timers[timer] = asyncio.get_running_loop().call_at(effect.at, self._tick, timer)

    def _tick(self, timer: e.Timer) -> None:
        self._timers.pop(timer, None)
        self._feed(e.Tick(timer))

    async def _find(self) -> None:
        try:
            node: int | None = await self._cluster.coordinator(self._group)
            self._outage.found()
        except WorldError as error:
            self._outage.failed(str(error))
            await asyncio.sleep(FIND_RETRY_S)
            node = None
        self._feed(e.Found(node))

    def _planned(self, effect: e.OnAssignment) -> None:
        self._fresh = False
        view = self._view
        if view.problem:
            self._log(f"assignment: {view.problem}")
        if not effect.learns:
            view = replace(view, learners=frozenset(), promises=frozenset())
        assigned = frozenset(effect.assigned)
        self._deliver(PlanRead(effect.generation, assigned, view, self._member.leader))

    # -- requests

    def _send(self, send: e.SendRequest) -> None:
        body = send.body
        if isinstance(body, e.JoinGroup):
            api = Api.JOIN_GROUP
            metadata = self._metadata_of(body)
            fields = requests.join(self._group, self._config, self._assignor.name, body, metadata)
        else:
            api, fields = requests.request(self._group, self._assignor.name, body)

        async def ask(connection: Connection) -> None:
            reply = await connection.ask(api, fields, send.timeout_s)
            self._feed(self._answer(send, reply))

        self._lanes[send.lane].put(send.node, ask)

    def _answer(self, send: e.SendRequest, reply: Any) -> e.Reply:
        """What the member wants to know of a reply."""
        match send.body:
            case e.JoinGroup():
                return requests.joined(send.request, reply)
            case e.SyncGroup() if not reply.error_code:
                return e.Reply(send.request, 0, self._synced(bytes(reply.assignment)))
            case e.OffsetCommit():
                return requests.committed(send.request, reply)
            case e.LeaveGroup() if not reply.error_code:
                self._file.forget()  # else whoever comes next ends that membership
                return e.Reply(send.request, 0)
            case _:
                return e.Reply(send.request, reply.error_code)

    def _metadata_of(self, body: e.JoinGroup) -> bytes:
        """Built once per nonce: a repeated JoinGroup must be the same bytes."""
        if self._metadata is None or self._metadata[0] != body.nonce:
            self._deliver(Joining(self._member.generation, body.reason))
            self._metadata = body.nonce, self._subscription(body)
        return self._metadata[1]

    def _subscription(self, body: e.JoinGroup) -> bytes:
        said, deadline_ms = self._published(), None
        if body.deadline is not None:
            ahead_s = body.deadline - self._clock.now()
            deadline_ms = int((self._clock.wall() + ahead_s) * 1000)
        report = Report(
            nonce=body.nonce,
            claims=frozenset(body.claims),
            copies=said.copies,
            stalled=said.stalled,
            stopped=said.stopped,
            leaving=WayOut(deadline_ms) if body.leaving else None,
            fresh=self._fresh,
        )
        user_data = self._assignor.user_data(report)
        owned = tuple(body.claims)
        return Subscription(self._subscribed, user_data, owned, body.owned_generation).write()

    def _synced(self, data: bytes) -> e.Synced:
        assignment = Assignment.read(data)
        self._view = view = self._assignor.on_assignment(assignment.user_data)
        return e.Synced(
            frozenset(assignment.partitions),
            assignment.user_data,
            more=view.more,
            no_takers=view.no_takers,
            mark=None if view.mark is None else self._mark(view.mark),
        )

    def _mark(self, said: Mark) -> e.LeaveMark:
        deadline = None if said.deadline_ms is None else self._at(said.deadline_ms)
        return e.LeaveMark(said.state is MarkState.LEAVING, deadline, said.epoch_ms)

    def _at(self, unix_ms: int) -> float:
        """Deadlines travel as unix time."""
        return unix_ms / 1000 - self._clock.wall() + self._clock.now()

    async def _assign(self, assign: e.Assign) -> None:
        outcome = await self._leading.plan(assign)
        error = outcome.error.name if outcome.error else None
        evictions = tuple(e.Eviction(x.member, self._at(x.at_ms)) for x in outcome.evictions)
        assignments = tuple(outcome.assignments.items())
        self._feed(e.Planned(assign.request, assignments, error, evictions))

    # -- positions

    def _ask_positions(self, ticket: object, tps: tuple[TopicPartition, ...]) -> None:
        if not self._ended.is_set():
            self._begin(self._positions(ticket, tps), name="positions")

    async def _positions(self, ticket: object, tps: tuple[TopicPartition, ...]) -> None:
        self._deliver(PositionsRead(ticket, await self._offsets.of(tps)))

    async def _fetch_offsets(
        self, tps: list[TopicPartition]
    ) -> tuple[dict[TopicPartition, tuple[int, str]], WorldError | None]:
        body = requests.offsets_wanted(self._group, tuple(tps))
        try:
            reply = await self._ask_coordinator(Api.OFFSET_FETCH, body, self._cluster.timeout_s)
        except WorldError as error:
            return {}, error
        return requests.offsets_known(reply)

    async def _ask_coordinator(self, api: Api, body: dict[str, Any], timeout_s: float) -> Any:
        """Beside the member's own lanes."""
        node = await self._cluster.coordinator(self._group)
        connection = await self._cluster.open(node, OFFSETS_LANE)
        return await connection.ask(api, body, timeout_s)
