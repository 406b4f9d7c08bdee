"""Drives a member: a coroutine with connections of its own to the coordinator.

It performs effects and feeds events; it decides nothing. A worker runs it in a thread of its own:
user code may hold the data loop for seconds, and heartbeats, commits and plans go on. A tool runs
it on the loop that it has.

Nothing that belongs to a hand-over shares a connection with a request that may wait for minutes:
JoinGroup and SyncGroup have a lane, heartbeats and commits another.

Not here: tasks and stores (the data loop's), what is said at a join and what a plan says (`seat`),
what requests look like (`requests`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from streamsx.client.cluster import Cluster
from streamsx.client.connection import Connection
from streamsx.clock import Clock
from streamsx.errors import DataError, WorldError
from streamsx.group import member_events as e
from streamsx.group import requests
from streamsx.group.coordinator_connection import CoordinatorConnection
from streamsx.group.leader import Leader
from streamsx.group.member import Member, MemberConfig
from streamsx.group.outage import Outage
from streamsx.group.rebalance_metrics import RebalanceMetrics
from streamsx.group.subscription_builder import SubscriptionBuilder
from streamsx.protocol import wire
from streamsx.protocol.error_codes import ErrorCode, name_of
from streamsx.protocol.wire import Api

LOG = logging.getLogger("streamsx")


class _Over(Exception):
    """Ends the session: whatever it still waits for is given up."""


class Session:
    """`deliver` is called on the session's loop. `keep` is given each member id before anything is
    sent with it, and None once no successor need end that membership.
    """

    def __init__(
        self,
        clock: Clock,
        config: MemberConfig,
        group: str,
        seat: SubscriptionBuilder,
        deliver: Callable[[e.ControlMessage], None],
        outage: Outage,
        keep: Callable[[str | None], None] = lambda _: None,
    ) -> None:
        self._clock, self._config, self._group, self.seat = clock, config, group, seat
        self._deliver, self._keep, self._outage = deliver, keep, outage
        self.member = Member(config)
        self.metrics = RebalanceMetrics(clock.now())
        self._timers: dict[e.Timer, asyncio.TimerHandle] = {}
        self._posted: deque[e.Event] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.losses = 0
        """How often tasks were taken away; any thread may read it."""
        self.failed = ""
        """Why a round has failed, of the newest that has."""

    def post(self, event: e.Event) -> None:
        """From any thread; waits for the session's start, and is nothing after its end."""
        self._posted.append(event)
        if self._loop is not None:  # else whoever sets it looks what is there
            with suppress(RuntimeError):  # it is closed
                self._loop.call_soon_threadsafe(self._heard)

    def _heard(self) -> None:
        while self._posted:
            event = self._posted.popleft()
            if not self._over.is_set():
                self._feed(event)

    async def run(self, cluster: Cluster, predecessor: str | None = None) -> None:
        """Until it has left the group, or must not be in it any more. `predecessor`: member id of a
        dead process that kept it where this one does. Raises what `outage` does not bear."""
        self._cluster, self._over = cluster, asyncio.Event()
        self._lanes = {which: self._lane(which) for which in e.ConnectionName}
        self._leading = Leader(cluster, self._clock, self.seat, self._feed)
        try:
            async with asyncio.TaskGroup() as self._tasks:
                for which, lane in self._lanes.items():
                    self._begin(lane.run(), f"lane {which.value}")
                self._begin(self._leading.watch(), "watch topics")
                self._feed(e.Start(predecessor))
                self._loop = asyncio.get_running_loop()
                self._heard()
                await self._over.wait()
                raise _Over
        except* _Over:
            pass
        finally:
            self._over.set()
            for timer in self._timers.values():
                timer.cancel()

    def _begin(self, job: Coroutine[Any, Any, None], name: str) -> None:
        """It ends by itself, or with the session."""
        _ = self._tasks.create_task(job, name=name)

    def _lane(self, which: e.ConnectionName) -> CoordinatorConnection:
        return CoordinatorConnection(
            self._cluster, which.value, lambda: self._feed(e.Disconnected(which))
        )

    def _feed(self, event: e.Event) -> None:
        now = self._clock.now()
        effects = self.member.step(now, event)
        self.metrics.observe(now, event, effects)
        for effect in effects:
            self._perform(effect)
        lease = self.member.lease
        self._outage.leased(now, lease.until, lease.limit)

    # -- effects

    def _perform(self, effect: e.Effect) -> None:
        match effect:
            case e.SendRequest():
                self._send(effect)
            case e.Arm(timer, at):
                self._wind(timer, at)
            case e.Find():
                self._begin(self._find(), "find coordinator")
            case e.Close(lane):
                self._lanes[lane].close()
            case e.Assign():
                self._begin(self._leading.plan(effect), "assign")
            case e.Remember(member_id):
                self._keep(member_id)
            case e.Count(metric, why):
                self.failed = why or self.failed
                LOG.debug("%s", f"count {metric}: {why}".rstrip(": "))
            case _:
                self._tell(effect)

    def _tell(self, message: e.ControlMessage) -> None:
        if isinstance(message, e.Left | e.Fatal):
            self._over.set()
        self.losses += isinstance(message, e.Lost)
        self._deliver(message)

    def _wind(self, timer: e.Timer, at: float | None) -> None:
        if (handle := self._timers.pop(timer, None)) is not None:
            handle.cancel()
        if at is not None:
            self._timers[timer] = asyncio.get_running_loop().call_at(at, self._tick, timer)

    def _tick(self, timer: e.Timer) -> None:
        self._timers.pop(timer, None)
        self._feed(e.Tick(timer))

    async def _find(self) -> None:
        try:
            node: int | None = await self._cluster.coordinator(self._group)
            self._outage.found(self._clock.now())
        except WorldError as error:
            self._outage.failed(self._clock.now(), error)
            node = None
        self._feed(e.Found(node))

    # -- requests

    def _send(self, send: e.SendRequest) -> None:
        body = send.body
        word = b""
        if isinstance(body, e.JoinGroup):
            word = self.seat.word(body, self._zero(), self.metrics.values(self._clock.now()))
        protocol = self.seat.assignor.name
        api, fields = requests.request(self._group, self._config, protocol, send, word)

        async def ask(connection: Connection) -> None:
            compile_codecs(connection)
            reply = await connection.ask(api, fields, send.timeout_s)
            self._feed(self._answer(send, reply))

        self._lanes[send.lane].put(send.node, ask)

    def _answer(self, send: e.SendRequest, reply: Any) -> e.Reply:
        """What the member wants to know of a reply."""
        match send.body:
            case e.JoinGroup():
                return requests.joined(send.request, reply)
            case e.SyncGroup() if not reply.error_code:
                return self._given(send.request, bytes(reply.assignment))
            case e.OffsetCommit():
                return requests.committed(send.request, reply)
            case e.LeaveGroup(member_ids, why):
                left = requests.left(send.request, reply)
                end = f"not out of the group: {name_of(left.error)}" if left.error else why
                LOG.info("leave of %s: %s", ", ".join(member_ids), end)
                return left
            case _:
                return e.Reply(send.request, reply.error_code)

    def _given(self, request: int, data: bytes) -> e.Reply:
        try:
            synced = self.seat.given(data, self._zero())
        except DataError as error:
            LOG.warning("the leader's plan cannot be read: %s: joining again", error)
            return e.Reply(request, ErrorCode.CORRUPT_MESSAGE)
        if synced.view.problem:
            LOG.info("assignment: %s", synced.view.problem)
        return e.Reply(request, 0, synced)

    def _zero(self) -> float:
        return self._clock.wall() - self._clock.now()


def compile_codecs(connection: Connection) -> None:
    """They are made at their first use, which takes 5 ms: "the members are answered, the marked one
    joins again, the tool's SyncGroup comes": REBALANCE_IN_PROGRESS, and one more round for it."""
    for api in (Api.SYNC_GROUP, Api.LEAVE_GROUP):
        version = connection.version(api)
        wire.request_encoder(api, version)
        wire.response_decoder(api, version)
